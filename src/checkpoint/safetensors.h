// The safetensors format: 8 bytes header size, a JSON header, then the tensors' bytes, little-endian.
// Files may come from anyone: sizes, offsets and shapes are checked before they are used.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/file.h"
#include "core/tensor.h"

namespace hyscale {

struct SafetensorInfo {
  std::string dtype;            // as in the file: "F32", "BF16", "F16", "F64", "I64", "I32", "U8", ...
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;   // bytes in the file
  int64_t elements() const;
};

class SafetensorsReader {
 public:
  // Throws UserError naming the path and what is wrong: too short, header beyond the file, no JSON, unknown dtype,
  // offsets outside the file, sizes that disagree with dtype and shape, overlaps, gaps, bytes left over.
  explicit SafetensorsReader(const std::string& path);

  const std::map<std::string, SafetensorInfo>& tensors() const { return tensors_; }
  const SafetensorInfo& info(const std::string& name) const;  // UserError naming the tensor and the file
  // Raw bytes; `to` holds end - begin of them.
  void read(const std::string& name, void* to) const;
  // Values of a floating-point tensor as f32. F64, F32, BF16, F16.
  std::vector<float> read_f32(const std::string& name) const;
  std::vector<int64_t> read_i64(const std::string& name) const;  // I64 or I32
  const std::string& path() const { return file_.path(); }

 private:
  File file_;
  std::map<std::string, SafetensorInfo> tensors_;
};

// Writes tensors in the order given. All sizes are known before the first byte, so the header comes first.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name, dtype;
    std::vector<int64_t> shape;
  };
  SafetensorsWriter(const std::string& path, const std::vector<Entry>&);
  void append(const void* bytes, size_t count);  // of the entries, one after the other, in pieces of any size
  void finish();  // checks that every byte came, syncs and closes
  std::string digest() const;  // of all bytes so far, as in file_digest

 private:
  void write(const void* bytes, size_t count);

  File file_;
  Digest digest_;
  int64_t expected_ = 0, written_ = 0;
};

// Bytes of one element, 0 for an unknown dtype.
int64_t safetensors_dtype_bytes(const std::string& dtype);

}  // namespace hyscale
