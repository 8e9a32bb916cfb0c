#include "checkpoint/dequantize.h"

#include <cmath>
#include <limits>

namespace hyscale {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t d : shape) text += concat(text.empty() ? "" : ", ", d);
  return "[" + text + "]";
}

std::vector<uint8_t> read_bytes(const SafetensorsReader& reader, const std::string& name) {
  const SafetensorInfo& info = reader.info(name);
  std::vector<uint8_t> bytes(static_cast<size_t>(info.end - info.begin));
  reader.read(name, bytes.data());
  return bytes;
}

std::vector<float> read_scales(const HfFolderReader& folder, const std::string& name, const std::vector<int64_t>& shape) {
  const std::string scales = scale_name(folder, name);
  if (scales.empty()) throw UserError(concat(folder.reader(name).path(), ": tensor \"", name, "\" is quantised (", folder.reader(name).info(name).dtype, ") and has no scales beside it"));
  const SafetensorsReader& reader = folder.reader(scales);
  if (reader.info(scales).shape != shape)
    throw UserError(concat(reader.path(), ": tensor \"", scales, "\" has shape ", shape_text(reader.info(scales).shape), "; \"", name, "\" needs ", shape_text(shape)));
  const std::string& dtype = reader.info(scales).dtype;
  if (dtype != "F8_E8M0" && dtype != "U8") return reader.read_f32(scales);
  std::vector<float> values;
  for (uint8_t b : read_bytes(reader, scales)) values.push_back(e8m0_to_float(b));
  return values;
}

std::vector<float> read_fp8(const HfFolderReader& folder, const std::string& name, int64_t rows, int64_t columns) {
  constexpr int64_t kBlock = 128;
  const int64_t across = (columns + kBlock - 1) / kBlock;
  const std::vector<float> scales = read_scales(folder, name, {(rows + kBlock - 1) / kBlock, across});
  const std::vector<uint8_t> bytes = read_bytes(folder.reader(name), name);
  std::vector<float> values(bytes.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) values[static_cast<size_t>(r * columns + c)] = e4m3_to_float(bytes[static_cast<size_t>(r * columns + c)]) * scales[static_cast<size_t>(r / kBlock * across + c / kBlock)];
  return values;
}

std::vector<float> read_mxfp4(const HfFolderReader& folder, const std::string& name, int64_t rows, int64_t columns) {
  constexpr int64_t kBlock = 32;
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const std::vector<float> scales = read_scales(folder, name, {rows, columns / kBlock});
  const std::vector<uint8_t> bytes = read_bytes(folder.reader(name), name);
  std::vector<float> values(2 * bytes.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = kValues[i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4] * scales[i / kBlock];
  return values;
}

}  // namespace

float e8m0_to_float(uint8_t bits) { return bits == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, static_cast<int>(bits) - 127); }

std::string scale_name(const HfFolderReader& folder, const std::string& name) {
  const std::string end = ".weight";
  if (!name.ends_with(end)) return "";
  for (const std::string& candidate : {name.substr(0, name.size() - end.size()) + ".scale", name + "_scale_inv"})
    if (folder.has(candidate)) return candidate;
  return "";
}

std::vector<float> read_as_f32(const HfFolderReader& folder, const std::string& name, const std::vector<int64_t>& shape) {
  const SafetensorsReader& reader = folder.reader(name);
  const SafetensorInfo& info = reader.info(name);
  const auto expect_shape = [&](const std::vector<int64_t>& stored) {
    if (info.shape != stored)
      throw UserError(concat(reader.path(), ": tensor \"", name, "\" has shape ", shape_text(info.shape), info.shape.size() == 2 && stored != shape ? concat(" of ", info.dtype) : "",
                             "; config.json asks for ", shape_text(stored)));
  };
  const bool packed = info.dtype == "I8" || info.dtype == "U8";
  if (shape.size() == 2 && packed && shape[1] % 32 == 0) {
    expect_shape({shape[0], shape[1] / 2});
    return read_mxfp4(folder, name, shape[0], shape[1]);
  }
  expect_shape(shape);
  return shape.size() == 2 && info.dtype == "F8_E4M3" ? read_fp8(folder, name, shape[0], shape[1]) : reader.read_f32(name);
}

}  // namespace hyscale
