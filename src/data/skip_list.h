// Sequences that training leaves out, for instance those of a step at which the loss jumped. A text file: per line the index of
// a sequence, or a range FIRST-LAST that includes both; empty lines and lines that begin with # say nothing.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hyscale {

class SkipList {
 public:
  SkipList() = default;  // of nothing
  // Throws UserError naming file and line for what is no index or range, and for more than a million sequences in all.
  explicit SkipList(const std::string& path);
  bool contains(int64_t sequence) const;
  int64_t num_sequences() const { return num_sequences_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // first and last, ascending, none in another
  int64_t num_sequences_ = 0;
};

}  // namespace hyscale
