// The text of a gzip file, unpacked as it is read; several members one after the other are one text, as gzip has it.
#pragma once
#include <memory>
#include <streambuf>
#include <string>
#include <vector>

#include "core/file.h"

struct inflate_state;

namespace hyscale {

// Throws UserError naming the file where it is no gzip, is damaged (checksum included) or is cut off. A stream passes that on
// only with exceptions(std::ios::badbit).
class GzipBuffer : public std::streambuf {
 public:
  explicit GzipBuffer(const std::string& path);
  ~GzipBuffer() override;

 protected:
  int_type underflow() override;

 private:
  bool read_more();  // false at the end of the file
  File file_;
  int64_t offset_ = 0;
  std::vector<char> packed_, text_;
  std::unique_ptr<inflate_state> state_;
};

}  // namespace hyscale
