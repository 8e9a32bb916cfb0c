// A pattern of tokenizer.json that cuts text into pieces, matched by PCRE2 over UTF-8 with Unicode's classes.
//
// Such patterns are written for Oniguruma's Ruby syntax. Where PCRE2 reads a construct otherwise it is translated (\s and \S
// are Unicode's White_Space) or refused by name, so that no text is cut differently unnoticed: escapes other than those of
// classes, properties and characters, classes in classes, intersections, and inline options other than i.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace hyscale {

class SplitPattern {
 public:
  enum class Kind { regex, literal };
  // Throws UserError beginning with `place` for a pattern that is malformed, too large or not supported.
  SplitPattern(const std::string& pattern, Kind, const std::string& place);

  // Calls `piece` for the matches and the gaps between them, in order and never empty. `text` is valid UTF-8.
  // Throws UserError when matching takes more steps or memory than any sensible pattern does.
  void split(std::string_view text, const std::function<void(std::string_view piece, bool matched)>& piece) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
  std::string place_;
};

}  // namespace hyscale
