#include "train/event_file.h"

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "comm/communicator.h"

namespace hyscale {
namespace {

// Wire types and field numbers of protocol buffers, as far as these messages need them.
constexpr uint32_t kVarint = 0, kEightBytes = 1, kLengthDelimited = 2, kFourBytes = 5;
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // of Event
constexpr uint32_t kValue = 1, kTag = 1, kSimpleValue = 2;                                      // of Summary and Summary.Value
constexpr uint32_t kStatus = 1, kStart = 1;                                                     // of SessionLog

class Message {
 public:
  void number(uint32_t field, uint64_t value) { varint(field << 3 | kVarint), varint(value); }
  void real(uint32_t field, double value) { varint(field << 3 | kEightBytes), raw(&value, sizeof value); }
  void real(uint32_t field, float value) { varint(field << 3 | kFourBytes), raw(&value, sizeof value); }
  void bytes(uint32_t field, const std::string& value) { varint(field << 3 | kLengthDelimited), varint(value.size()), text_ += value; }
  const std::string& text() const { return text_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) text_ += static_cast<char>(value | 128);
    text_ += static_cast<char>(value);
  }
  void raw(const void* from, size_t count) { text_.append(static_cast<const char*>(from), count); }
  std::string text_;
};

Message event(int64_t step) {
  Message m;
  m.real(kWallTime, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  m.number(kStep, static_cast<uint64_t>(step));
  return m;
}

void add_scalar(Message& summary, const std::string& tag, const nlohmann::json& value) {
  if (!value.is_number()) return;
  Message scalar;
  scalar.bytes(kTag, tag);
  scalar.real(kSimpleValue, value.get<float>());
  summary.bytes(kValue, scalar.text());
}

std::string new_path(const std::string& folder) {
  make_folder(folder);
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}", folder, now, host_name(), getpid());
}

}  // namespace

uint32_t crc32c(const void* bytes, size_t count) {
  return ~crc32_iscsi(static_cast<unsigned char*>(const_cast<void*>(bytes)), static_cast<int>(count), ~0u);
}

uint32_t masked_crc32c(const void* bytes, size_t count) {
  const uint32_t crc = crc32c(bytes, count);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

EventFile::EventFile(const std::string& folder, int64_t first_step) : file_(File::create(new_path(folder))) {
  Message version = event(0);
  version.bytes(kFileVersion, "brain.Event:2");
  record(version.text());
  Message status, start = event(first_step);
  status.number(kStatus, kStart);
  start.bytes(kSessionLog, status.text());
  record(start.text());
}

void EventFile::record(const std::string& bytes) {
  const uint64_t length = bytes.size();
  const uint32_t crcs[2] = {masked_crc32c(&length, sizeof length), masked_crc32c(bytes.data(), bytes.size())};
  std::string out(sizeof length + sizeof crcs + bytes.size(), '\0');
  std::memcpy(out.data(), &length, sizeof length);
  std::memcpy(out.data() + 8, &crcs[0], 4);
  std::memcpy(out.data() + 12, bytes.data(), bytes.size());
  std::memcpy(out.data() + 12 + bytes.size(), &crcs[1], 4);
  file_.write(out.data(), out.size());  // at once: a reader that follows sees whole records
}

void EventFile::write(const nlohmann::json& line) {
  Message summary;
  for (const auto& [name, value] : line.items()) {
    if (name == "step") continue;
    add_scalar(summary, name, value);
    if (value.is_array())
      for (size_t i = 0; i < value.size(); ++i) add_scalar(summary, fmt::format("{}/{:02}", name, i), value[i]);
    if (value.is_object())
      for (const auto& [key, part] : value.items()) add_scalar(summary, name + "/" + key, part);
  }
  Message whole = event(line.value("step", int64_t{0}));
  whole.bytes(kSummary, summary.text());
  record(whole.text());
}

}  // namespace hyscale
