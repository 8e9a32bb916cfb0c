#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <map>
#include <numeric>
#include <sstream>

#include "checkpoint/safetensors.h"
#include "kernels/adamw/adamw.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"

namespace hyscale {
namespace {

size_t padded(int64_t elements) { return (static_cast<size_t>(elements) * 4 + 255) / 256 * 256; }

Tensor flat(const Tensor& t) { return t.view({t.elements()}); }

// Owners of the parameters: the largest first, each to the rank that has least so far.
std::vector<int> owners(const std::vector<Parameter*>& parameters, int ranks) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return parameters[a]->shape.elements() > parameters[b]->shape.elements(); });
  std::vector<int> owner(parameters.size());
  std::vector<int64_t> load(static_cast<size_t>(ranks));
  for (size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owner[i] = static_cast<int>(least - load.begin());
    *least += parameters[i]->shape.elements();
  }
  return owner;
}

}  // namespace

Optimizer::Optimizer(ParameterStore& store, const OptimizerOptions& options, Device device, int rank, int ranks, Communicator* data)
    : options_(options), device_(device), rank_(rank), data_(data) {
  std::vector<Parameter*> parameters;
  for (Parameter& p : store.all())
    if (p.group == ParameterGroup::indexer || (p.group == ParameterGroup::trunk && !options.indexer_only)) parameters.push_back(&p);
  const std::vector<int> owner = owners(parameters, ranks);
  size_t bytes = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    trained_.emplace_back(parameters[i], owner[i]);
    if (owner[i] == rank) bytes += padded(parameters[i]->shape.elements()) * (parameters[i]->value.dtype() == DType::f32 ? 2 : 3);
  }
  memory_ = Buffer(device, bytes, "optimizer state");
  char* next = static_cast<char*>(memory_.data());
  const auto take = [&](int64_t n) {
    const Tensor t(next, DType::f32, device, {n});
    if (next) next += padded(n);
    return t;
  };
  for (const auto& [parameter, owner_rank] : trained_) {
    if (owner_rank != rank) continue;
    Parameter& p = *parameter;
    const int64_t n = p.shape.elements();
    State s{&p, p.value.dtype() == DType::f32 ? flat(p.value) : take(n), take(n), take(n)};
    if (p.value.dtype() != DType::f32) cast(s.master, flat(p.value), {});
    zero(s.m, {});
    zero(s.v, {});
    states_.push_back(s);
  }
  scalars_ = Buffer(device, 1024, "gradient norms");
  char* scalars = static_cast<char*>(scalars_.data());
  const auto at = [&](size_t offset) { return scalars ? scalars + offset : nullptr; };
  norm_sums_ = Tensor(at(0), DType::f64, device, {2});
  gates_ = Tensor(at(256), DType::f32, device, {2, 2});
  workspace_ = Buffer(device, sum_of_squares_workspace_bytes({Tensor(nullptr, DType::f32, device, {1}), norm_sums_, {}, {}}), "gradient norms");
}

void Optimizer::update(double lr, const Tensor& sums, Stream stream) {
  const Tensor space(workspace_.data(), DType::u8, device_, {static_cast<int64_t>(workspace_.bytes())});
  zero(norm_sums_, stream);
  for (const auto& [parameter, owner] : trained_) {
    const int64_t group = parameter->group == ParameterGroup::indexer;
    sum_of_squares({flat(parameter->grad), norm_sums_.slice(0, group, group + 1), space, stream});
  }
  // Both gates look at everything: a step is applied whole or not at all.
  for (int64_t group = 0; group < 2; ++group)
    clip_gate({norm_sums_.slice(0, group, group + 1), {norm_sums_, sums}, static_cast<float>(group ? options_.indexer_clip_norm : options_.clip_norm),
               gates_.select(0, group), stream});
  for (const State& s : states_) {
    const bool indexer = s.parameter->group == ParameterGroup::indexer;
    adamw({s.master, s.m, s.v, flat(s.parameter->grad), flat(s.parameter->value), gates_.select(0, indexer),
           static_cast<float>(indexer ? lr * options_.indexer_lr_scale : lr), static_cast<float>(options_.beta1), static_cast<float>(options_.beta2),
           static_cast<float>(options_.eps), s.parameter->weight_decay ? static_cast<float>(options_.weight_decay) : 0.0f, updates_ + 1, stream});
  }
  share_values(stream);
}

void Optimizer::share_values(Stream stream) {
  if (!data_ || data_->size() == 1) return;
  for (const auto& [parameter, owner] : trained_) data_->broadcast(parameter->value, owner, stream);
}

Optimizer::Result Optimizer::result(Stream stream) {
  double sums[2];
  float gate[2];
  copy_bytes(sums, Device{}, norm_sums_.raw(), device_, sizeof sums, stream);
  copy_bytes(gate, Device{}, gates_.raw(), device_, sizeof gate, stream);
  synchronize(device_, stream);
  const bool applied = gate[1] != 0;
  updates_ += applied;
  return {applied, std::sqrt(sums[0]), std::sqrt(sums[1])};
}

void Optimizer::save(const std::string& folder) const {
  std::ostringstream path;
  path << folder << "/rank-" << std::setfill('0') << std::setw(5) << rank_ << ".safetensors";
  std::vector<SafetensorsWriter::Entry> entries;
  for (const State& s : states_)
    for (const char* part : {"master", "m", "v"}) entries.push_back({s.parameter->name + "." + part, "F32", {s.parameter->shape.elements()}});
  SafetensorsWriter writer(path.str(), entries);
  std::vector<float> host;
  for (const State& s : states_)
    for (const Tensor* t : {&s.master, &s.m, &s.v}) {
      host.resize(static_cast<size_t>(t->elements()));
      copy_bytes(host.data(), Device{}, t->raw(), device_, t->bytes(), {});
      synchronize(device_, {});
      writer.append(host.data(), t->bytes());
    }
  writer.finish();
}

void Optimizer::restore(const std::string& folder, int64_t updates) {
  std::vector<SafetensorsReader> readers;
  std::map<std::string, const SafetensorsReader*> reader_of;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) readers.emplace_back(path);
  for (const SafetensorsReader& reader : readers)
    for (const auto& [name, info] : reader.tensors()) reader_of[name] = &reader;
  std::vector<float> host;
  for (const State& s : states_)
    for (const auto& [part, t] : {std::pair{"master", s.master}, {"m", s.m}, {"v", s.v}}) {
      const std::string name = s.parameter->name + "." + part;
      if (!reader_of.count(name)) throw UserError(concat(folder, ": has no tensor \"", name, '"'));
      const SafetensorsReader& reader = *reader_of[name];
      const SafetensorInfo& info = reader.info(name);
      if (info.dtype != "F32" || info.elements() != t.elements())
        throw UserError(concat(reader.path(), ": tensor \"", name, "\" has ", info.elements(), " elements of ", info.dtype, "; expected ", t.elements(), " of F32"));
      host.resize(static_cast<size_t>(t.elements()));
      reader.read(name, host.data());
      copy_bytes(t.raw(), device_, host.data(), Device{}, t.bytes(), {});
      synchronize(device_, {});
    }
  for (const State& s : states_)
    if (s.master.raw() != s.parameter->value.raw()) cast(flat(s.parameter->value), s.master, {});
  share_values({});
  updates_ = updates;
}

}  // namespace hyscale
