// UTF-8: decoding and normal forms, by utf8proc.
#pragma once
#include <string>
#include <string_view>

namespace hyscale {

// Code points of valid UTF-8. Throws UserError naming the first byte that is not ("byte 17 is not valid UTF-8").
std::u32string decode_utf8(std::string_view text);
void check_utf8(std::string_view text);

enum class NormalForm { none, nfc, nfd, nfkc, nfkd };
std::string normalize(std::string_view text, NormalForm);

}  // namespace hyscale
