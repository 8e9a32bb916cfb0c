#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include "checkpoint/safetensors.h"
#include "kernels/adamw/adamw.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"

namespace hyscale {
namespace {

size_t padded(int64_t elements) { return (static_cast<size_t>(elements) * 4 + 255) / 256 * 256; }

std::string rank_file(int rank) {
  std::string digits = std::to_string(rank);
  return "rank-" + std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits + ".safetensors";
}

// What the files of a checkpoint hold of one state tensor: pieces by their first element.
struct StoredPiece {
  const SafetensorsReader* reader;
  std::string name;
  int64_t elements;
};
using StoredState = std::map<std::string, std::map<int64_t, StoredPiece>>;  // by "NAME.m"

StoredState stored_state(const std::vector<SafetensorsReader>& readers) {
  StoredState out;
  for (const SafetensorsReader& reader : readers)
    for (const auto& [name, info] : reader.tensors()) {
      const size_t at = name.rfind('@'), dot = name.find('.', at == std::string::npos ? 0 : at);
      if (at == std::string::npos || dot == std::string::npos || info.dtype != "F32" || name.find_first_not_of("0123456789", at + 1) != dot || dot == at + 1 || dot - at > 16)
        throw UserError(concat(reader.path(), ": tensor \"", name, "\" of ", info.dtype, " is no optimizer state; expected NAME@FIRST.PART of F32"));
      out[name.substr(0, at) + name.substr(dot)][std::stoll(name.substr(at + 1, dot - at - 1))] = {&reader, name, info.elements()};
    }
  return out;
}

// Elements [first, first + out.size()) of one state tensor, put together from the pieces that hold them.
void collect(const std::map<int64_t, StoredPiece>& pieces, const std::string& what, int64_t first, std::vector<float>& out) {
  std::vector<float> values;
  int64_t at = first;
  const int64_t end = first + static_cast<int64_t>(out.size());
  while (at < end) {
    auto piece = pieces.upper_bound(at);
    const bool covered = piece != pieces.begin() && (--piece, piece->first + piece->second.elements > at);
    if (!covered) throw UserError(concat(what, ": the files hold no value of element ", at));
    values.resize(static_cast<size_t>(piece->second.elements));
    piece->second.reader->read(piece->second.name, values.data());
    const int64_t upto = std::min(end, piece->first + piece->second.elements);
    std::copy(values.begin() + (at - piece->first), values.begin() + (upto - piece->first), out.begin() + (at - first));
    at = upto;
  }
}

}  // namespace

std::vector<std::pair<const char*, Tensor>> Optimizer::State::parts() const {
  if (muon) return {{"master", master}, {"momentum", m}};
  return {{"master", master}, {"m", m}, {"v", v}};
}

Optimizer::Optimizer(ParameterStore& store, const OptimizerOptions& options, Device device, Communicator* world, const Optimizer* before)
    : store_(store), options_(options), device_(device), world_(world) {
  allocate();
  if (before) take_over(*before);
  start_muon();
}

void Optimizer::allocate() {
  size_t bytes = 0;
  for (const ShardPiece& p : store_.own_pieces()) {
    if (options_.indexer_only && p.parameter->group != ParameterGroup::indexer) continue;
    State& s = states_.emplace_back();
    s.piece = p;
    s.muon = options_.uses_muon(*p.parameter);
    bytes += padded(p.value.elements()) * ((p.value.dtype() == DType::f32 ? 1 : 2) + (s.muon ? 0 : 1));
  }
  memory_ = Buffer(device_, bytes, "optimizer state");
  char* next = static_cast<char*>(memory_.data());
  const auto take = [&](int64_t n) {
    const Tensor t(next, DType::f32, device_, {n});
    if (next) next += padded(n);
    return t;
  };
  for (State& s : states_) {
    const Tensor& value = s.piece.value;
    s.master = value.dtype() == DType::f32 ? value : take(value.elements());
    if (value.dtype() != DType::f32) cast(s.master, value, {});
    s.m = take(value.elements());
    zero(s.m, {});
    if (s.muon) continue;
    s.v = take(value.elements());
    zero(s.v, {});
  }
  scalars_ = Buffer(device_, 1024, "gradient norms");
  char* scalars = static_cast<char*>(scalars_.data());
  const auto at = [&](size_t offset) { return scalars ? scalars + offset : nullptr; };
  norm_sums_ = Tensor(at(0), DType::f64, device_, {2});
  gates_ = Tensor(at(256), DType::f32, device_, {2, 2});
  workspace_ = Buffer(device_, sum_of_squares_workspace_bytes({Tensor(nullptr, DType::f32, device_, {1}), norm_sums_, {}, {}}), "gradient norms");
}

void Optimizer::start_muon() {
  std::vector<Muon::Piece> pieces;
  for (const State& s : states_)
    if (s.muon)
      pieces.push_back({s.piece, s.master, s.m, gates_.select(0, s.indexer()), options_.of(*s.piece.parameter).lr_scale, s.piece.parameter->weight_decay ? options_.weight_decay : 0});
  const auto trains = [this](const Parameter& p) { return options_.uses_muon(p); };
  // A rank without a piece of any matrix still sends what others lack.
  if (std::ranges::any_of(store_.all(), trains)) muon_.emplace(store_, std::move(pieces), trains, options_.muon, device_);
}

void Optimizer::take_over(const Optimizer& before) {
  updates_ = before.updates_;
  for (const State& s : states_) {
    const auto old = std::ranges::find_if(before.states_, [&](const State& o) { return o.piece.parameter == s.piece.parameter; });
    if (old == before.states_.end()) continue;
    HYSCALE_CHECK(old->muon == s.muon, s.piece.parameter->name, " goes on with another optimizer");
    const auto from = old->parts(), to = s.parts();
    for (size_t i = 0; i < to.size(); ++i)
      if (to[i].second.raw() != from[i].second.raw()) copy(to[i].second, from[i].second, {});
  }
}

void Optimizer::update(double lr, const Tensor& sums, Stream stream, const UpdateBounds& bounds) {
  const Tensor space(workspace_.data(), DType::u8, device_, {static_cast<int64_t>(workspace_.bytes())});
  zero(norm_sums_, stream);
  // A shard lies on one rank only, so every element is counted once, in any layout.
  for (const ShardPiece& p : store_.own_pieces()) {
    const int64_t group = p.parameter->group == ParameterGroup::indexer;
    sum_of_squares({p.grad, norm_sums_.slice(0, group, group + 1), space, stream});
  }
  if (world_) world_->all_reduce(norm_sums_, ReduceOp::sum, stream);
  // Both gates look at everything: a step is applied whole or not at all.
  for (int64_t group = 0; group < 2; ++group)
    clip_gate({norm_sums_.slice(0, group, group + 1), {norm_sums_, sums}, static_cast<float>(group ? options_.indexer_clip_norm : options_.clip_norm),
               gates_.select(0, group), stream, {{{norm_sums_.slice(0, 0, 1), bounds.norm * bounds.norm}, {norm_sums_.slice(0, 1, 2), bounds.indexer_norm * bounds.indexer_norm},
                                                  {sums.slice(0, 0, 1), bounds.first_sum}}}});
  for (const State& s : states_)
    if (!s.muon)
      adamw({s.master, s.m, s.v, s.piece.grad, s.piece.value, gates_.select(0, s.indexer()), static_cast<float>(lr * options_.of(*s.piece.parameter).lr_scale),
             static_cast<float>(options_.beta1), static_cast<float>(options_.beta2), static_cast<float>(options_.eps),
             s.piece.parameter->weight_decay ? static_cast<float>(options_.weight_decay) : 0.0f, (s.indexer() ? updates_.indexer : updates_.trunk) + 1, stream});
  if (muon_) muon_->update(lr, stream);
  store_.share_values(stream);
}

Optimizer::Result Optimizer::result(Stream stream) {
  double sums[2];
  float gate[2];
  copy_bytes(sums, Device{}, norm_sums_.raw(), device_, sizeof sums, stream);
  copy_bytes(gate, Device{}, gates_.raw(), device_, sizeof gate, stream);
  synchronize(device_, stream);
  const bool applied = gate[1] != 0;
  updates_.indexer += applied;
  updates_.trunk += applied && !options_.indexer_only;
  return {applied, std::sqrt(sums[0]), std::sqrt(sums[1])};
}

void Optimizer::save(const std::string& folder, WriteQueue& queue, std::shared_ptr<FileDigests> digests) const {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const State& s : states_)
    for (const auto& [part, t] : s.parts()) entries.push_back({concat(s.piece.parameter->name, "@", s.piece.first_element, ".", part), "F32", {t.elements()}});
  const std::string name = rank_file(world_ ? world_->rank() : 0);
  const auto writer = std::make_shared<std::optional<SafetensorsWriter>>();
  queue.push([writer, path = folder + "/" + name, entries] { writer->emplace(path, entries); });
  for (const State& s : states_)
    for (const auto& [part, t] : s.parts()) {
      const std::shared_ptr<PinnedBuffer> copy = queue.buffer(t.bytes());
      copy_bytes(copy->data(), Device{}, t.raw(), device_, t.bytes(), {});
      synchronize(device_, {});
      queue.push([writer, copy, bytes = t.bytes()] { (*writer)->append(copy->data(), bytes); });
    }
  queue.push([writer, digests, name] {
    (*writer)->finish();
    (*digests)["optimizer/" + name] = (*writer)->digest();
  });
}

void Optimizer::restore(const std::string& folder, Updates updates) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::vector<SafetensorsReader> readers;
  for (const std::string& path : paths) readers.emplace_back(path);
  const StoredState stored = stored_state(readers);
  std::vector<float> host;
  for (const State& s : states_) {
    for (const auto& [part, t] : s.parts()) {
      const std::string name = s.piece.parameter->name + "." + part;
      const auto found = stored.find(name);
      if (found == stored.end())
        throw UserError(concat(folder, ": has no tensor \"", name, "\"; a run goes on with the optimizer (", s.muon ? "Muon" : "AdamW", " here) that each parameter began with"));
      const auto& [last, piece] = *found->second.rbegin();
      if (last + piece.elements != s.piece.parameter->whole_elements())
        throw UserError(concat(piece.reader->path(), ": tensor \"", name, "\" has ", last + piece.elements, " elements; expected ", s.piece.parameter->whole_elements()));
      host.resize(static_cast<size_t>(t.elements()));
      collect(found->second, concat(folder, ": \"", name, '"'), s.piece.first_element, host);
      copy_bytes(t.raw(), device_, host.data(), Device{}, t.bytes(), {});
      synchronize(device_, {});
    }
    if (s.master.raw() != s.piece.value.raw()) cast(s.piece.value, s.master, {});
  }
  store_.share_values({});
  updates_ = updates;
}

}  // namespace hyscale
