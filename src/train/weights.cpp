#include "train/weights.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <tuple>

#include "checkpoint/dequantize.h"
#include "core/range.h"

namespace hyscale {
namespace {

std::vector<int64_t> dims_of(const Shape& s) { return {s.dims().begin(), s.dims().end()}; }

// Of a file, which may have more dimensions than tensors here do.
std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t d : shape) text += concat(text.empty() ? "" : ", ", d);
  return "[" + text + "]";
}

// What a tensor is called in this folder: as transformers writes it, or as the family's own release does.
std::string name_in(const HfFolderReader& folder, const ParameterStore& store, const std::string& name) {
  const std::string released = store.released_name(name);
  return !folder.has(name) && folder.has(released) ? released : name;
}

std::vector<float> read_piece(const ParameterStore& store, const Parameter& p, const HfTensor& piece, const HfFolderReader& folder) {
  const std::string name = name_in(folder, store, piece.name);
  if (!p.integer) return read_as_f32(folder, name, dims_of(piece.shape));
  const SafetensorsReader& reader = folder.reader(name);
  if (reader.info(name).shape != dims_of(piece.shape))
    throw UserError(concat(reader.path(), ": tensor \"", name, "\" has shape ", shape_text(reader.info(name).shape), "; config.json asks for ", to_string(piece.shape)));
  const std::vector<int64_t> values = reader.read_i64(name);
  return {values.begin(), values.end()};
}

void load_parameter(ParameterStore& store, Parameter& p, const HfFolderReader& folder, std::vector<float>& host) {
  const Range range("load weights");  // each is progress: reading all of them may take longer than run.hang_seconds
  host.resize(static_cast<size_t>(p.shape.elements()));
  for (const HfTensor& piece : p.hf) {
    if (!p.holds(piece)) continue;
    const std::vector<float> values = read_piece(store, p, piece, folder);
    std::copy(values.begin(), values.end(), host.begin() + (piece.offset - p.first_element));
  }
  store.write_value(p, host.data());
}

// The folder holds what the configuration gives.
void check_constant(const HfConstant& c, const HfFolderReader& folder) {
  const std::vector<int64_t> stored = folder.reader(c.name).read_i64(c.name);
  if (stored.size() != c.values.size())
    throw UserError(concat(folder.folder(), ": tensor \"", c.name, "\" has ", stored.size(), " numbers; config.json gives ", c.values.size()));
  const auto [at, expected] = std::mismatch(stored.begin(), stored.end(), c.values.begin());
  if (at != stored.end())
    throw UserError(concat(folder.folder(), ": tensor \"", c.name, "\" has ", *at, " at ", at - stored.begin(), "; config.json gives ", *expected));
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

namespace {

// Throws where the folder holds what the model does not know; returns how many tensors of `skipped_prefix` it holds.
int64_t check_names(const ParameterStore& store, const HfFolderReader& folder, const std::string& skipped_prefix) {
  std::set<std::string> known;
  for (const Parameter& p : store.all())
    for (const HfTensor& piece : p.hf) {
      const std::string name = name_in(folder, store, piece.name);
      known.insert({name, scale_name(folder, name)});
    }
  for (const HfConstant& c : store.constants()) known.insert(c.name);
  int64_t skipped = 0, left_out = 0;
  for (const std::string& name : folder.names()) {
    if (known.count(name)) continue;
    if (!store.left_out().empty() && name.starts_with(store.left_out())) {
      ++left_out;
      continue;
    }
    if (skipped_prefix.empty() || !name.starts_with(skipped_prefix))
      throw UserError(concat(folder.folder(), ": tensor \"", name, "\" is not part of the model that config.json describes"));
    ++skipped;
  }
  if (left_out > 0) spdlog::warn("{} tensors {}* in {} are left out: checkpoints will not hold them", left_out, store.left_out(), folder.folder());
  return skipped;
}

}  // namespace

int64_t load_weights(ParameterStore& store, const HfFolderReader& folder, const std::string& skipped_prefix) {
  const int64_t skipped = check_names(store, folder, skipped_prefix);
  std::vector<float> host;
  for (Parameter& p : store.all()) load_parameter(store, p, folder, host);
  for (const HfConstant& c : store.constants()) check_constant(c, folder);
  return skipped;
}

namespace {

// Types in files, the widest first, as the safetensors library orders tensors.
enum class FileType : uint8_t { i64, f32, bf16 };
constexpr FileType kFileTypes[] = {FileType::i64, FileType::f32, FileType::bf16};
const char* name_of(FileType t) { return t == FileType::i64 ? "I64" : t == FileType::f32 ? "F32" : "BF16"; }
size_t bytes_of(FileType t) { return t == FileType::i64 ? 8 : t == FileType::f32 ? 4 : 2; }

FileType file_type(const Parameter& p, const std::string& dtype) {
  if (p.integer) return FileType::i64;
  return dtype == "bfloat16" && p.group != ParameterGroup::buffer ? FileType::bf16 : FileType::f32;
}

void encode(const std::vector<float>& values, FileType type, void* bytes) {
  switch (type) {
    case FileType::i64: std::copy(values.begin(), values.end(), static_cast<int64_t*>(bytes)); break;
    case FileType::f32: std::copy(values.begin(), values.end(), static_cast<float*>(bytes)); break;
    case FileType::bf16: std::transform(values.begin(), values.end(), static_cast<uint16_t*>(bytes), float_to_bf16); break;
  }
}

// The bytes of a contiguous tensor in the file's type, in host memory that stays theirs until they are written.
std::shared_ptr<PinnedBuffer> copy_encoded(const Tensor& t, FileType type, WriteQueue& queue) {
  const size_t n = static_cast<size_t>(t.elements());
  const std::shared_ptr<PinnedBuffer> bytes = queue.buffer(n * bytes_of(type));
  if (type != FileType::i64 && (t.dtype() == DType::bf16) == (type == FileType::bf16)) {
    copy_bytes(bytes->data(), Device{}, t.raw(), t.device(), t.bytes(), {});
    synchronize(t.device(), {});
    return bytes;
  }
  encode(values_on_host(t), type, bytes->data());
  return bytes;
}

// A tensor of a folder that is to be written.
struct Piece {
  const Parameter* parameter;
  const HfTensor* tensor;
  FileType type;
  int unit;  // where weights are gathered for the purpose; they are written in this order then
  auto key() const { return std::tie(type, unit, tensor->name); }
};

std::vector<HfConstant> sorted_constants(const ParameterStore& store) {
  std::vector<HfConstant> constants = store.constants();
  std::sort(constants.begin(), constants.end(), [](const HfConstant& a, const HfConstant& b) { return a.name < b.name; });
  return constants;
}

std::vector<SafetensorsWriter::Entry> entries_of(const std::vector<HfConstant>& constants, const std::vector<Piece>& pieces) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const HfConstant& c : constants) entries.push_back({c.name, "I64", {static_cast<int64_t>(c.values.size())}});
  for (const Piece& p : pieces) entries.push_back({p.tensor->name, name_of(p.type), dims_of(p.tensor->shape)});
  return entries;
}

bool before(const Piece& a, const Piece& b) { return a.key() < b.key(); }

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
  std::vector<Piece> pieces;
  for (const Parameter& p : store.all()) {
    if (groups.place.expert_replica != 0 || (p.cut == Cut::none && rank != 0)) continue;
    for (const HfTensor& t : p.hf)
      if (p.holds(t)) pieces.push_back({&p, &t, file_type(p, dtype), store.gathers_weights() ? p.unit : 0});
  }
  std::sort(pieces.begin(), pieces.end(), before);
  const std::vector<HfConstant> constants = rank == 0 ? sorted_constants(store) : std::vector<HfConstant>();
  const auto writer = std::make_shared<HfShardWriter>(folder, entries_of(constants, pieces));
  number_shards(*writer, *groups.hosts);
  for (const HfConstant& c : constants) queue.push([writer, values = c.values] { writer->append(values.data(), values.size() * sizeof(int64_t)); });
  size_t next = 0;
  for (const FileType type : kFileTypes)
    for (int unit = 0; unit < store.num_units(); ++unit) {
      store.open(unit, -1, {});
      for (; next < pieces.size() && pieces[next].type == type && pieces[next].unit == unit; ++next) {
        const Piece& p = pieces[next];
        const int64_t at = p.tensor->offset - p.parameter->first_element, n = p.tensor->shape.elements();
        const auto bytes = copy_encoded(p.parameter->value.view({-1}).slice(0, at, at + n), type, queue);
        queue.push([writer, bytes, count = static_cast<size_t>(n) * bytes_of(type)] { writer->append(bytes->data(), count); });
      }
      store.close(unit);
    }
  queue.push([writer, digests] {
    writer->finish();
    if (!digests) return;
    for (const auto& [file, digest] : writer->digests()) (*digests)["model/" + file] = digest;
  });
}

void convert_weights(Model& model, const HfFolderReader& from, const std::string& folder, const std::string& dtype) {
  const ParameterStore& store = model.parameters();
  check_names(store, from, "");
  std::vector<Piece> pieces;
  for (const Parameter& p : store.all())
    for (const HfTensor& t : p.hf) pieces.push_back({&p, &t, file_type(p, dtype), 0});
  std::sort(pieces.begin(), pieces.end(), before);
  const std::vector<HfConstant> constants = sorted_constants(store);
  HfShardWriter writer(folder, entries_of(constants, pieces));
  for (const HfConstant& c : constants) {
    check_constant(c, from);
    writer.append(c.values.data(), c.values.size() * sizeof(int64_t));
  }
  std::vector<uint8_t> bytes;
  for (const Piece& p : pieces) {
    const std::vector<float> values = read_piece(store, *p.parameter, *p.tensor, from);
    bytes.resize(values.size() * bytes_of(p.type));
    encode(values, p.type, bytes.data());
    writer.append(bytes.data(), bytes.size());
  }
  writer.finish();
}

nlohmann::json saved_hf_config(const Model& model, const std::string& dtype) {
  nlohmann::json config = model.hf_config();
  config["dtype"] = dtype;
  for (const char* stored_otherwise : {"torch_dtype", "quantization_config", "expert_dtype"}) config.erase(stored_otherwise);
  return config;
}

}  // namespace hyscale
