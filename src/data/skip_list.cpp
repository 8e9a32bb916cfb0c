#include "data/skip_list.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "core/error.h"
#include "core/file.h"

namespace hyscale {
namespace {

constexpr int64_t kMostSequences = 1'000'000;

// A whole number that takes up all of `text`, or -1.
int64_t index_of(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

}  // namespace

SkipList::SkipList(const std::string& path) {
  std::istringstream lines(read_text_file(path));
  std::vector<std::pair<int64_t, int64_t>> given;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const std::string_view text = trimmed(line);
    if (text.empty() || text.front() == '#') continue;
    const size_t dash = text.find('-');
    const int64_t first = index_of(text.substr(0, dash)), last = dash == std::string_view::npos ? first : index_of(text.substr(dash + 1));
    if (first < 0 || last < first) throw UserError(concat(path, ":", number, ": \"", text.substr(0, 100), "\"; expected the index of a sequence, or FIRST-LAST"));
    given.emplace_back(first, last);
  }
  std::sort(given.begin(), given.end());
  for (auto [first, last] : given) {
    if (!ranges_.empty()) first = std::max(first, ranges_.back().second + 1);
    if (last < first) continue;
    if (last - first >= kMostSequences - num_sequences_) throw UserError(concat(path, ": skips more than ", kMostSequences, " sequences"));
    num_sequences_ += last - first + 1;
    ranges_.emplace_back(first, last);
  }
}

bool SkipList::contains(int64_t sequence) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), std::pair(sequence, INT64_MAX));
  return after != ranges_.begin() && std::prev(after)->second >= sequence;
}

}  // namespace hyscale
