#include "data/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "core/error.h"

namespace hyscale {
namespace {

constexpr size_t kLongestPattern = 1 << 16;
// Steps of one match: some for every byte, since a run of spaces is walked to its end and back, and many for short texts.
constexpr size_t kStepsPerByte = 16, kStepsAtLeast = 10'000'000;
constexpr uint32_t kMostHeapKibibytes = 64 << 10;

template <typename T, void (*Free)(T*)>
struct Deleter {
  void operator()(T* p) const { Free(p); }
};
template <typename T, void (*Free)(T*)>
using Owned = std::unique_ptr<T, Deleter<T, Free>>;

std::string message_of(int code) {
  char text[256];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

// Oniguruma's syntax to PCRE2's.
class Translation {
 public:
  Translation(const std::string& pattern, const std::string& place) : pattern_(pattern), place_(place) {}

  std::string run() {
    for (at_ = 0; at_ < pattern_.size(); ++at_) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        in_class(c);
      } else {
        outside(c);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(concat(place_, ": the pattern \"", pattern_, "\" has ", what, " at character ", at_, ", which is not supported"));
  }
  char next() const { return at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0'; }

  void escape() {
    const char c = next();
    const bool letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter_or_digit && std::string_view("pPdDsSrntx").find(c) == std::string_view::npos) refuse(concat("the escape \\", c));
    if (c == 's' || c == 'S') {
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else {
      out_ += '\\';
      out_ += c;
    }
    ++at_;
    if (c == 'p' || c == 'P' || c == 'x') braces();
  }

  // The braces of \p{...} and \x{...} are no quantifier.
  void braces() {
    if (next() != '{') return;
    while (++at_ < pattern_.size()) {
      out_ += pattern_[at_];
      if (pattern_[at_] == '}') return;
    }
  }

  void in_class(char c) {
    if (c == '[') refuse("a class in a class");
    if (c == '&' && next() == '&') refuse("an intersection of classes");
    if (c == ']') in_class_ = false;
    out_ += c;
  }

  void outside(char c) {
    out_ += c;
    if (c == '[') {
      in_class_ = true;
      if (next() == '^') out_ += pattern_[++at_];
      if (next() == ']') refuse("an empty class");
    }
    if (c == '}' && next() == '+') refuse("a repeated quantifier");
    if (c == '{' && next() == ',') refuse("a quantifier without a lower bound");
    if (c == '(' && next() == '*') refuse("a verb");
    if (c == '(' && next() == '?') {
      const std::string_view rest = std::string_view(pattern_).substr(at_ + 2);
      for (const char* known : {":", "=", "!", ">", "<=", "<!", "i:", "i)"})
        if (rest.starts_with(known)) return;
      refuse("a group of another kind than (?:, (?=, (?!, (?<=, (?<!, (?> and (?i");
    }
  }

  const std::string &pattern_, &place_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct SplitPattern::Compiled {
  Owned<pcre2_code, pcre2_code_free> code;
};

SplitPattern::SplitPattern(const std::string& pattern, Kind kind, const std::string& place) : place_(place) {
  if (pattern.empty() || pattern.size() > kLongestPattern) throw UserError(concat(place, ": a pattern of ", pattern.size(), " bytes; expected 1 to ", kLongestPattern));
  const std::string text = kind == Kind::regex ? Translation(pattern, place).run() : pattern;
  // In Ruby's syntax ^ and $ match at every line, and only LF ends one.
  const uint32_t options = PCRE2_UTF | (kind == Kind::regex ? PCRE2_UCP | PCRE2_MULTILINE : PCRE2_LITERAL);
  const Owned<pcre2_compile_context, pcre2_compile_context_free> context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t at = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &at, context.get()));
  if (!compiled->code) throw UserError(concat(place, ": the pattern \"", pattern, "\" is malformed: ", message_of(error)));
  // Without it, as on hosts that forbid executable memory, matching is interpreted: slower, with the same result.
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
  compiled_ = std::move(compiled);
}

void SplitPattern::split(std::string_view text, const std::function<void(std::string_view, bool)>& piece) const {
  const pcre2_code* code = compiled_->code.get();
  const Owned<pcre2_match_data, pcre2_match_data_free> match(pcre2_match_data_create_from_pattern(code, nullptr));
  const Owned<pcre2_match_context, pcre2_match_context_free> limits(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(limits.get(), static_cast<uint32_t>(std::min<size_t>(kStepsAtLeast + kStepsPerByte * text.size(), UINT32_MAX)));
  pcre2_set_heap_limit(limits.get(), kMostHeapKibibytes);
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;
  for (size_t from = 0; from < text.size();) {
    int result = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, match.get(), limits.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter has the heap
      result = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.get(), limits.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) throw UserError(concat(place_, ": the pattern fails on a text of ", text.size(), " bytes: ", message_of(result)));
    const size_t begin = pcre2_get_ovector_pointer(match.get())[0], end = pcre2_get_ovector_pointer(match.get())[1];
    if (begin > done) piece(text.substr(done, begin - done), false);
    if (end > begin) piece(text.substr(begin, end - begin), true);
    done = end;
    from = end;
    // After an empty match the search goes on behind the next character.
    if (end == begin)
      for (++from; from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80;) ++from;
  }
  if (done < text.size()) piece(text.substr(done), false);
}

}  // namespace hyscale
