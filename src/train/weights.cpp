#include "train/weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <tuple>

namespace hyscale {
namespace {

std::vector<int64_t> dims_of(const Shape& s) { return {s.dims().begin(), s.dims().end()}; }

// Of a file, which may have more dimensions than tensors here do.
std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t d : shape) text += concat(text.empty() ? "" : ", ", d);
  return "[" + text + "]";
}

void load_parameter(ParameterStore& store, Parameter& p, const HfFolderReader& folder, std::vector<float>& host) {
  host.resize(static_cast<size_t>(p.shape.elements()));
  for (const HfTensor& piece : p.hf) {
    if (!p.holds(piece)) continue;
    const SafetensorsReader& reader = folder.reader(piece.name);
    const SafetensorInfo& info = reader.info(piece.name);
    if (info.shape != dims_of(piece.shape))
      throw UserError(concat(reader.path(), ": tensor \"", piece.name, "\" has shape ", shape_text(info.shape), "; config.json asks for ", to_string(piece.shape)));
    const std::vector<float> values = reader.read_f32(piece.name);
    std::copy(values.begin(), values.end(), host.begin() + (piece.offset - p.first_element));
  }
  store.write_value(p, host.data());
}

}  // namespace

std::vector<float> values_on_host(const Tensor& value) {
  const size_t n = static_cast<size_t>(value.elements());
  std::vector<float> values(n);
  if (value.dtype() == DType::f32) {
    copy_bytes(values.data(), Device{}, value.raw(), value.device(), n * 4, {});
    synchronize(value.device(), {});
    return values;
  }
  std::vector<uint16_t> stored(n);
  copy_bytes(stored.data(), Device{}, value.raw(), value.device(), n * 2, {});
  synchronize(value.device(), {});
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

namespace {

// The bytes of a contiguous tensor in the file's dtype, in host memory that stays theirs until they are written.
std::shared_ptr<PinnedBuffer> copy_encoded(const Tensor& t, bool bf16, WriteQueue& queue) {
  const size_t n = static_cast<size_t>(t.elements());
  const std::shared_ptr<PinnedBuffer> bytes = queue.buffer(n * (bf16 ? 2 : 4));
  if ((t.dtype() == DType::bf16) == bf16) {
    copy_bytes(bytes->data(), Device{}, t.raw(), t.device(), t.bytes(), {});
    synchronize(t.device(), {});
    return bytes;
  }
  const std::vector<float> values = values_on_host(t);
  if (bf16) std::transform(values.begin(), values.end(), static_cast<uint16_t*>(bytes->data()), float_to_bf16);
  else std::copy(values.begin(), values.end(), static_cast<float*>(bytes->data()));
  return bytes;
}

// The shards of one rank among those of all ranks.
void number_shards(HfShardWriter& writer, Communicator& hosts) {
  int64_t mine = writer.num_shards();
  std::vector<int64_t> all(static_cast<size_t>(hosts.size()));
  hosts.all_gather(Tensor(&mine, DType::i64, Device{}, {1}), Tensor(all.data(), DType::i64, Device{}, {hosts.size()}), {});
  const auto here = all.begin() + hosts.rank();
  writer.number(std::accumulate(all.begin(), here, int64_t{0}), std::accumulate(all.begin(), all.end(), int64_t{0}));
}

}  // namespace

void save_weights(Model& model, ProcessGroups& groups, const std::string& folder, const std::string& dtype, WriteQueue& queue, std::shared_ptr<FileDigests> digests) {
  HYSCALE_CHECK(dtype == "float32" || dtype == "bfloat16", "dtype ", dtype);
  ParameterStore& store = model.parameters();
  const int rank = groups.hosts->rank();
  struct Piece {
    const Parameter* parameter;
    const HfTensor* tensor;
    bool bf16;
    int unit;  // where weights are gathered for the purpose; they are written in this order then
    auto key() const { return std::tie(bf16, unit, tensor->name); }
  };
  // As the safetensors library orders them: the widest dtype first, then by name.
  std::vector<Piece> pieces;
  for (const Parameter& p : store.all()) {
    if (groups.place.expert_replica != 0 || (!p.expert && rank != 0)) continue;
    for (const HfTensor& t : p.hf)
      if (p.holds(t)) pieces.push_back({&p, &t, dtype == "bfloat16" && p.group != ParameterGroup::buffer, store.gathers_weights() ? p.unit : 0});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.key() < b.key(); });
  std::vector<SafetensorsWriter::Entry> entries;
  for (const Piece& p : pieces) entries.push_back({p.tensor->name, p.bf16 ? "BF16" : "F32", dims_of(p.tensor->shape)});
  const auto writer = std::make_shared<HfShardWriter>(folder, std::move(entries));
  number_shards(*writer, *groups.hosts);
  size_t next = 0;
  for (const bool bf16 : {false, true})
    for (int unit = 0; unit < store.num_units(); ++unit) {
      store.open(unit, -1, {});
      for (; next < pieces.size() && pieces[next].bf16 == bf16 && pieces[next].unit == unit; ++next) {
        const Piece& p = pieces[next];
        const int64_t at = p.tensor->offset - p.parameter->first_element, n = p.tensor->shape.elements();
        const auto bytes = copy_encoded(p.parameter->value.view({-1}).slice(0, at, at + n), bf16, queue);
        queue.push([writer, bytes, count = static_cast<size_t>(n) * (bf16 ? 2 : 4)] { writer->append(bytes->data(), count); });
      }
      store.close(unit);
    }
  queue.push([writer, digests] {
    writer->finish();
    if (!digests) return;
    for (const auto& [file, digest] : writer->digests()) (*digests)["model/" + file] = digest;
  });
}

nlohmann::json saved_hf_config(const Model& model, const std::string& dtype) {
  nlohmann::json config = model.hf_config();
  config["dtype"] = dtype;
  config.erase("torch_dtype");
  return config;
}

}  // namespace hyscale
