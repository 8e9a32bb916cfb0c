#include "checkpoint/safetensors.h"

#include "core/range.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/json.h"

namespace hyscale {
namespace {

constexpr int64_t kMaxHeader = 100 << 20;  // the format's own limit

[[noreturn]] void bad(const std::string& path, const std::string& what) { throw UserError(concat(path, ": not a valid safetensors file: ", what)); }

int64_t read_integer(const std::string& path, const std::string& name, const nlohmann::json& value) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0) bad(path, concat("tensor \"", name, "\": ", value.dump(), " is no size"));
  return value.get<int64_t>();
}

// Elements of a shape, or -1 when they exceed `most`.
int64_t checked_elements(const std::vector<int64_t>& shape, int64_t most) {
  int64_t n = 1;
  for (int64_t d : shape) {
    if (d == 0) return 0;
    if (n > most / d) return -1;
    n *= d;
  }
  return n;
}

SafetensorInfo parse_entry(const std::string& path, const std::string& name, const nlohmann::json& entry, int64_t data_start, int64_t file_size) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") || !entry["shape"].is_array() ||
      !entry.contains("data_offsets") || !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2)
    bad(path, concat("tensor \"", name, "\" needs dtype, shape and data_offsets"));
  SafetensorInfo info;
  info.dtype = entry["dtype"].get<std::string>();
  const int64_t width = safetensors_dtype_bytes(info.dtype);
  if (width == 0) bad(path, concat("tensor \"", name, "\" has unknown dtype \"", info.dtype, '"'));
  for (const nlohmann::json& d : entry["shape"]) info.shape.push_back(read_integer(path, name, d));
  const int64_t begin = read_integer(path, name, entry["data_offsets"][0]), end = read_integer(path, name, entry["data_offsets"][1]);
  const int64_t available = file_size - data_start;
  if (begin > end || end > available)
    bad(path, concat("tensor \"", name, "\" lies at bytes ", begin, " to ", end, " of ", available, ": the file is truncated or its header is wrong"));
  const int64_t elements = checked_elements(info.shape, available / width);
  if (elements < 0 || elements * width != end - begin)
    bad(path, concat("tensor \"", name, "\" of shape ", entry["shape"].dump(), " ", info.dtype, " has ", end - begin, " bytes"));
  info.begin = data_start + begin;
  info.end = data_start + end;
  return info;
}

// Tensors cover the data without overlap or gap.
void check_cover(const std::string& path, const std::map<std::string, SafetensorInfo>& tensors, int64_t data_start, int64_t file_size) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, info] : tensors) ranges.emplace_back(info.begin, info.end);
  std::sort(ranges.begin(), ranges.end());
  int64_t at = data_start;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) bad(path, concat("tensors overlap or leave a gap at byte ", at));
    at = end;
  }
  if (at != file_size) bad(path, concat(file_size - at, " bytes belong to no tensor"));
}

float half_to_float(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const float sign = h >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24) : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25));
}

template <typename Stored, typename Convert>
std::vector<float> convert(const std::vector<char>& bytes, Convert convert_one) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    values[i] = convert_one(stored);
  }
  return values;
}

}  // namespace

int64_t SafetensorInfo::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

int64_t safetensors_dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> kBytes = {{"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4}, {"U32", 4},     {"F16", 2},
                                                        {"BF16", 2}, {"I16", 2}, {"U16", 2}, {"I8", 1}, {"U8", 1}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(File::open_to_read(path)) {
  const int64_t size = file_.size();
  uint64_t header_size = 0;
  if (size < 8) bad(path, concat("only ", size, " bytes"));
  file_.read_at(0, &header_size, 8);
  if (header_size > static_cast<uint64_t>(kMaxHeader) || static_cast<int64_t>(header_size) > size - 8)
    bad(path, concat("header of ", header_size, " bytes in a file of ", size));
  std::string text(header_size, '\0');
  file_.read_at(8, text.data(), text.size());
  const nlohmann::json header = parse_json(text, path + ": header");
  if (!header.is_object()) bad(path, "the header is no JSON object");
  const int64_t data_start = 8 + static_cast<int64_t>(header_size);
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__") tensors_[name] = parse_entry(path, name, entry, data_start, size);
  check_cover(path, tensors_, data_start, size);
}

const SafetensorInfo& SafetensorsReader::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw UserError(concat(path(), ": has no tensor \"", name, '"'));
  return found->second;
}

void SafetensorsReader::read(const std::string& name, void* to) const {
  const Range range("read tensor");
  const SafetensorInfo& i = info(name);
  file_.read_at(i.begin, to, static_cast<size_t>(i.end - i.begin));
}

std::vector<float> SafetensorsReader::read_f32(const std::string& name) const {
  const SafetensorInfo& i = info(name);
  std::vector<char> bytes(static_cast<size_t>(i.end - i.begin));
  read(name, bytes.data());
  if (i.dtype == "F32") return convert<float>(bytes, [](float v) { return v; });
  if (i.dtype == "BF16") return convert<uint16_t>(bytes, bf16_to_float);
  if (i.dtype == "F16") return convert<uint16_t>(bytes, half_to_float);
  if (i.dtype == "F64") return convert<double>(bytes, [](double v) { return static_cast<float>(v); });
  throw UserError(concat(path(), ": tensor \"", name, "\" has dtype ", i.dtype, "; expected F32, BF16, F16 or F64"));
}

std::vector<int64_t> SafetensorsReader::read_i64(const std::string& name) const {
  const SafetensorInfo& i = info(name);
  std::vector<int64_t> values(static_cast<size_t>(i.elements()));
  if (i.dtype == "I64") return read(name, values.data()), values;
  if (i.dtype != "I32") throw UserError(concat(path(), ": tensor \"", name, "\" has dtype ", i.dtype, "; expected I64 or I32"));
  std::vector<int32_t> narrow(values.size());
  read(name, narrow.data());
  std::copy(narrow.begin(), narrow.end(), values.begin());
  return values;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Entry>& entries) : file_(File::create(path)) {
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";
  for (const Entry& e : entries) {
    int64_t bytes = safetensors_dtype_bytes(e.dtype);
    HYSCALE_CHECK(bytes > 0 && !header.contains(e.name), "tensor ", e.name, " ", e.dtype);
    for (int64_t d : e.shape) bytes *= d;
    header[e.name] = {{"dtype", e.dtype}, {"shape", e.shape}, {"data_offsets", {expected_, expected_ + bytes}}};
    expected_ += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  write(&size, 8);
  write(text.data(), text.size());
}

void SafetensorsWriter::write(const void* bytes, size_t count) {
  digest_.add(bytes, count);
  file_.write(bytes, count);
}

std::string SafetensorsWriter::digest() const { return digest_.text(); }

void SafetensorsWriter::append(const void* bytes, size_t count) {
  const Range range("write tensor");
  written_ += static_cast<int64_t>(count);
  HYSCALE_CHECK(written_ <= expected_, file_.path(), ": ", written_, " bytes written, ", expected_, " announced");
  write(bytes, count);
}

void SafetensorsWriter::finish() {
  HYSCALE_CHECK(written_ == expected_, file_.path(), ": ", written_, " bytes written, ", expected_, " announced");
  file_.sync();
  file_.close();
}

}  // namespace hyscale
