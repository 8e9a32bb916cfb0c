#include "train/weights.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace hyscale {
namespace {

std::vector<int64_t> dims_of(const Shape& s) { return {s.dims().begin(), s.dims().end()}; }

std::string shape_text(const std::vector<int64_t>& shape) { return to_string(Shape(std::span<const int64_t>(shape))); }

void load_parameter(ParameterStore& store, Parameter& p, const HfFolderReader& folder, std::vector<float>& host) {
  host.resize(static_cast<size_t>(p.shape.elements()));
  for (const HfTensor& piece : p.hf) {
    const SafetensorsReader& reader = folder.reader(piece.name);
    const SafetensorInfo& info = reader.info(piece.name);
    if (info.shape != dims_of(piece.shape))
      throw UserError(concat(reader.path(), ": tensor \"", piece.name, "\" has shape ", shape_text(info.shape), "; config.json asks for ", to_string(piece.shape)));
    const std::vector<float> values = reader.read_f32(piece.name);
    std::copy(values.begin(), values.end(), host.begin() + piece.offset);
  }
  store.write_value(p, host.data());
}

std::vector<char> encode(const float* values, int64_t count, bool bf16) {
  std::vector<char> bytes(static_cast<size_t>(count) * (bf16 ? 2 : 4));
  if (!bf16) return std::memcpy(bytes.data(), values, bytes.size()), bytes;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t rounded = float_to_bf16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &rounded, 2);
  }
  return bytes;
}

}  // namespace

std::vector<float> values_on_host(const Parameter& p) {
  const size_t n = static_cast<size_t>(p.shape.elements());
  std::vector<float> values(n);
  if (p.value.dtype() == DType::f32) {
    copy_bytes(values.data(), Device{}, p.value.raw(), p.value.device(), n * 4, {});
    synchronize(p.value.device(), {});
    return values;
  }
  std::vector<uint16_t> stored(n);
  copy_bytes(stored.data(), Device{}, p.value.raw(), p.value.device(), n * 2, {});
  synchronize(p.value.device(), {});
  std::transform(stored.begin(), stored.end(), values.begin(), bf16_to_float);
  return values;
}

int64_t load_weights(ParameterStore& store, const HfFolderReader& folder, const std::string& skipped_prefix) {
  std::set<std::string> known;
  for (const Parameter& p : store.all())
    for (const HfTensor& piece : p.hf) known.insert(piece.name);
  int64_t skipped = 0;
  for (const std::string& name : folder.names()) {
    if (known.count(name)) continue;
    if (skipped_prefix.empty() || !name.starts_with(skipped_prefix))
      throw UserError(concat(folder.folder(), ": tensor \"", name, "\" is not part of the model that config.json describes"));
    ++skipped;
  }
  std::vector<float> host;
  for (Parameter& p : store.all()) load_parameter(store, p, folder, host);
  return skipped;
}

void save_weights(const Model& model, const ParameterStore& store, const std::string& folder, const std::string& dtype) {
  HYSCALE_CHECK(dtype == "float32" || dtype == "bfloat16", "dtype ", dtype);
  // Pieces of one parameter follow each other in most orders, so its values are fetched once for many pieces.
  auto fetched = std::make_shared<std::pair<const Parameter*, std::vector<float>>>();
  std::vector<HfTensorSource> tensors;
  for (const Parameter& p : store.all()) {
    const bool bf16 = dtype == "bfloat16" && p.group != ParameterGroup::buffer;
    for (const HfTensor& piece : p.hf)
      tensors.push_back({piece.name, bf16 ? "BF16" : "F32", dims_of(piece.shape), [&p, piece, bf16, fetched] {
                           if (fetched->first != &p) *fetched = {&p, values_on_host(p)};
                           return encode(fetched->second.data() + piece.offset, piece.shape.elements(), bf16);
                         }});
  }
  nlohmann::json config = model.hf_config();
  config["dtype"] = dtype;
  config.erase("torch_dtype");
  write_hf_folder(folder, config, std::move(tensors));
}

}  // namespace hyscale
