#include "data/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "core/error.h"

namespace hyscale {
namespace {

// The code point at byte `at`, and `at` moved behind it.
char32_t next_code_point(std::string_view text, size_t& at) {
  int32_t code_point = 0;
  const auto bytes = utf8proc_iterate(reinterpret_cast<const uint8_t*>(text.data()) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code_point);
  if (bytes <= 0) throw UserError(concat("byte ", at, " is not valid UTF-8"));
  at += static_cast<size_t>(bytes);
  return static_cast<char32_t>(code_point);
}

bool is_ascii(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 128) return false;
  return true;
}

int options_of(NormalForm form) {
  switch (form) {
    case NormalForm::nfc: return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalForm::nfd: return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalForm::nfkc: return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    default: return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
}

}  // namespace

std::u32string decode_utf8(std::string_view text) {
  std::u32string code_points;
  for (size_t at = 0; at < text.size();) code_points.push_back(next_code_point(text, at));
  return code_points;
}

void check_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) next_code_point(text, at);
}

std::string normalize(std::string_view text, NormalForm form) {
  if (form == NormalForm::none || is_ascii(text)) return std::string(text);
  uint8_t* raw = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &raw,
                                  static_cast<utf8proc_option_t>(options_of(form)));
  const std::unique_ptr<uint8_t, void (*)(void*)> owner(raw, std::free);
  if (bytes < 0) throw UserError(concat("text cannot be normalised: ", utf8proc_errmsg(bytes)));
  return {reinterpret_cast<const char*>(raw), static_cast<size_t>(bytes)};
}

}  // namespace hyscale
