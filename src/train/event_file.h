// TensorBoard event files: the scalars of metrics.jsonl for TensorBoard, without TensorFlow.
// A file is a row of records: u64 length, masked crc32c of it, the bytes, masked crc32c of them (TFRecord); each record is an Event
// message (tensorflow/core/util/event.proto), of which scalars, the file version and the session start are used.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "core/file.h"

namespace hyscale {

class EventFile {
 public:
  // A new file in `folder`, which is made when missing. Readers drop what earlier files say of `first_step` and later ones: a resumed
  // run writes those again. Throws UserError when it cannot be written.
  EventFile(const std::string& folder, int64_t first_step);

  // Every number of the line becomes a scalar of its "step": "loss"; "index_loss_of_layer/00" of a list; "parts/attention" of an
  // object. Null, text and booleans are left out.
  void write(const nlohmann::json& line);

 private:
  void record(const std::string& event);
  File file_;
};

// CRC-32C of bytes, and the form in which TFRecord stores it.
uint32_t crc32c(const void* bytes, size_t count);
uint32_t masked_crc32c(const void* bytes, size_t count);

}  // namespace hyscale
