#include "models/parameter_store.h"

#include <xxhash.h>

#include <algorithm>

#include "core/rng.h"
#include "kernels/elementwise/elementwise.h"

namespace hyscale {
namespace {

constexpr int64_t kAlign = 128;  // elements: 256 bytes of bf16

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Elements [first_element, first_element + shape) of the whole parameter.
void fill(const Parameter& p, uint64_t seed, float range, float* out) {
  const Rng rng(seed, XXH3_64bits(p.name.data(), p.name.size()));
  const int64_t n = p.shape.elements();
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i)
    switch (const int64_t element = p.first_element + i; p.init) {
      case Init::normal: out[i] = range * rng.normal(static_cast<uint64_t>(element)); break;
      case Init::ones: out[i] = 1; break;
      case Init::zeros: out[i] = 0; break;
      case Init::formula: out[i] = p.formula(element); break;
    }
}

void write_values(const Tensor& to, const float* values) {
  const size_t n = static_cast<size_t>(to.elements());
  if (to.dtype() == DType::f32) {
    copy_bytes(to.raw(), to.device(), values, Device{}, n * 4, {});
  } else {
    std::vector<uint16_t> rounded(n);
    std::transform(values, values + n, rounded.begin(), float_to_bf16);
    copy_bytes(to.raw(), to.device(), rounded.data(), Device{}, n * 2, {});
  }
  synchronize(to.device(), {});
}

char* offset(char* base, size_t bytes) { return base ? base + bytes : nullptr; }

Tensor part(const Tensor& flat, int64_t first, int64_t count) { return flat.slice(0, first, first + count); }

}  // namespace

const char* role_name(ParameterRole role) {
  switch (role) {
    case ParameterRole::dense: return "dense";
    case ParameterRole::embedding: return "embedding";
    case ParameterRole::head: return "head";
    case ParameterRole::router: return "router";
    case ParameterRole::experts: return "experts";
    case ParameterRole::indexer: return "indexer";
    case ParameterRole::vectors: return "vectors";
  }
  HYSCALE_CHECK(false, "role ", static_cast<int>(role));
}

ParameterRole Parameter::role() const {
  if (group == ParameterGroup::indexer) return ParameterRole::indexer;
  if (cut == Cut::experts) return ParameterRole::experts;
  return is_matrix() ? kind : ParameterRole::vectors;
}

bool Parameter::is_matrix() const {
  return std::all_of(hf.begin(), hf.end(), [](const HfTensor& piece) { return piece.shape.rank() == 2 && piece.shape[0] > 1 && piece.shape[1] > 1; });
}

Parameter norm_weight(const std::string& name, int64_t size) { return {.name = name, .shape = {size}, .init = Init::ones, .weight_decay = false}; }

int ParameterStore::begin_unit(bool layer) {
  units_.push_back({layer, layer ? num_layers_++ : 0});
  return num_units() - 1;
}

Parameter& ParameterStore::add(Parameter p) {
  if (units_.empty()) begin_unit(false);
  HYSCALE_CHECK(!find(p.name), "parameter ", p.name, " exists already");
  int64_t covered = 0;
  if (p.hf.empty()) p.hf = {{p.name, p.shape, 0}};
  for (const HfTensor& piece : p.hf) {
    HYSCALE_CHECK(piece.offset == covered, "piece ", piece.name, " of ", p.name, " starts at ", piece.offset, ", not ", covered);
    covered += piece.shape.elements();
  }
  HYSCALE_CHECK(p.cut == Cut::none ? covered == p.shape.elements() : p.end_element() <= covered, "pieces of ", p.name, " hold ", covered,
                " elements of ", p.shape.elements());
  by_name_[p.name] = parameters_.size();
  p.unit = num_units() - 1;
  return parameters_.emplace_back(std::move(p));
}

Parameter* ParameterStore::find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

// Which flats there are, what is in them and who shares them.
void ParameterStore::lay_out(DType compute, const Sharding& sharding) {
  for (Parameter& p : parameters_) {
    if (p.group == ParameterGroup::buffer) continue;
    const DType dtype = p.fp32 ? DType::f32 : compute;
    auto flat = std::find_if(flats_.begin(), flats_.end(), [&](const Flat& f) { return f.unit == p.unit && f.cut == p.cut && f.dtype == dtype; });
    if (flat == flats_.end()) {
      Flat f;
      f.unit = p.unit;
      f.cut = p.cut;
      f.dtype = dtype;
      f.sharded = sharded(p.unit) && p.cut != Cut::ranks;
      f.ranks = p.cut == Cut::none ? sharding.world : p.cut == Cut::experts ? sharding.expert_replicas : nullptr;
      if (f.ranks && f.ranks->size() == 1) f.ranks = nullptr;
      if (f.ranks) f.rank = f.ranks->rank(), f.size = f.ranks->size();
      flat = flats_.insert(flats_.end(), f);
    }
    flat->parameters.emplace_back(&p, flat->elements);
    flat->elements += round_up(p.shape.elements(), kAlign);
  }
  for (Flat& f : flats_) f.elements = round_up(f.elements, kAlign * f.size);
}

void ParameterStore::allocate(Device device, DType compute, const Sharding& sharding) {
  device_ = device;
  shard_weights_ = sharding.weights && sharding.world && sharding.world->size() > 1;
  flats_.clear();
  lay_out(compute, sharding);

  // Sizes: what stays, then two slots for opened units.
  size_t value_bytes = 0, gradient_bytes = 0, slot_values = 0, slot_gradients = 0;
  for (int unit = 0; unit < num_units(); ++unit) {
    size_t in_slot = 0, gradients_in_slot = 0;
    for_each_flat(unit, [&](Flat& f) {
      const size_t whole = static_cast<size_t>(f.elements), own = static_cast<size_t>(f.shard());
      value_bytes += round_up(static_cast<int64_t>((f.sharded ? own : whole) * dtype_bytes(f.dtype)), 256);
      gradient_bytes += (f.sharded ? own : whole) * 4;
      if (!f.sharded) return;
      f.value_offset = in_slot;
      f.gradient_offset = gradients_in_slot;
      in_slot += static_cast<size_t>(round_up(static_cast<int64_t>(whole * dtype_bytes(f.dtype)), 256));
      gradients_in_slot += whole * 4;
    });
    slot_values = std::max(slot_values, in_slot);
    slot_gradients = std::max(slot_gradients, gradients_in_slot);
  }
  size_t buffer_bytes = 0;
  for (const Parameter& p : parameters_)
    if (p.group == ParameterGroup::buffer) buffer_bytes += static_cast<size_t>(round_up(p.shape.elements(), 64)) * 4;

  values_ = Buffer(device, value_bytes + buffer_bytes + 2 * slot_values, "weights");
  gradients_ = Buffer(device, gradient_bytes + 2 * slot_gradients, "gradients");
  zero(Tensor(values_.data(), DType::u8, device, {static_cast<int64_t>(values_.bytes())}), {});
  char *value = static_cast<char*>(values_.data()), *gradient = static_cast<char*>(gradients_.data());
  for (Flat& f : flats_) {
    const int64_t kept = f.sharded ? f.shard() : f.elements;
    const Tensor values(value, f.dtype, device, {kept}), gradients(gradient, DType::f32, device, {kept});
    value = offset(value, static_cast<size_t>(round_up(static_cast<int64_t>(values.bytes()), 256)));
    gradient = offset(gradient, gradients.bytes());
    f.own_values = f.sharded ? values : part(values, f.rank * f.shard(), f.shard());
    f.own_gradients = f.sharded ? gradients : part(gradients, f.rank * f.shard(), f.shard());
    for (auto& [p, at] : f.parameters) {  // shapes are known even where the values are not here
      p->value = Tensor(nullptr, f.dtype, device, p->shape);
      p->grad = Tensor(nullptr, DType::f32, device, p->shape);
    }
    if (!f.sharded) bind_values(f, static_cast<char*>(values.raw())), bind_gradients(f, static_cast<char*>(gradients.raw()));
  }
  for (Parameter& p : parameters_) {
    if (p.group != ParameterGroup::buffer) continue;
    p.value = Tensor(value, DType::f32, device, p.shape);
    value = offset(value, static_cast<size_t>(round_up(p.shape.elements(), 64)) * 4);
  }
  transfer_ = std::make_unique<OwnedStream>(device);
  ready_ = std::make_unique<Event>(device);
  done_ = std::make_unique<Event>(device);
  for (Slot& slot : slots_) {
    slot = {-1, value, gradient, slot_gradients, std::make_unique<Event>(device), std::make_unique<Event>(device)};
    value = offset(value, slot_values);
    gradient = offset(gradient, slot_gradients);
  }
  list_own_pieces();
  zero_gradients({});
}

void ParameterStore::list_own_pieces() {
  own_pieces_.clear();
  for (Flat& f : flats_) {
    const int64_t shard_begin = f.rank * f.shard(), shard_end = shard_begin + f.shard();
    for (auto& [p, at] : f.parameters) {
      const int64_t begin = std::max(at, shard_begin), end = std::min(at + p->shape.elements(), shard_end);
      if (begin >= end) continue;
      own_pieces_.push_back({p, p->first_element + begin - at, part(f.own_values, begin - shard_begin, end - begin),
                             part(f.own_gradients, begin - shard_begin, end - begin)});
    }
  }
}

void ParameterStore::bind_values(Flat& f, char* memory) {
  f.values = Tensor(memory, f.dtype, device_, {f.elements});
  for (auto& [p, at] : f.parameters) p->value = Tensor(part(f.values, at, p->shape.elements()).raw(), f.dtype, device_, p->shape);
}

void ParameterStore::bind_gradients(Flat& f, char* memory) {
  f.gradients = Tensor(memory, DType::f32, device_, {f.elements});
  for (auto& [p, at] : f.parameters) p->grad = Tensor(part(f.gradients, at, p->shape.elements()).raw(), DType::f32, device_, p->shape);
}

void ParameterStore::initialize(uint64_t seed, float initializer_range) {
  std::vector<float> host;
  for (Parameter& p : parameters_) {
    if (device_.is_meta()) return;
    host.resize(static_cast<size_t>(p.shape.elements()));
    fill(p, seed, initializer_range, host.data());
    write_value(p, host.data());
  }
}

void ParameterStore::write_value(Parameter& p, const float* values) {
  if (!sharded(p.unit) || p.group == ParameterGroup::buffer || p.cut == Cut::ranks) return write_values(p.value, values);
  for (const ShardPiece& piece : own_pieces_)
    if (piece.parameter == &p) write_values(piece.value, values + (piece.first_element - p.first_element));
  for (Slot& slot : slots_) slot.unit = -1;
}

void ParameterStore::gather(int unit, Stream compute) {
  Slot& slot = slot_of(unit);
  if (slot.unit == unit) return;
  // What was in the slot has been used by work enqueued before, and the shards are up to date.
  ready_->record(compute);
  ready_->hold(transfer_->get());
  for_each_flat(unit, [&](Flat& f) {
    if (!f.sharded) return;
    const Tensor whole(offset(slot.values, f.value_offset), f.dtype, device_, {f.elements});
    if (f.ranks) f.ranks->all_gather(f.own_values, whole, transfer_->get());
    else copy(whole, f.own_values, transfer_->get());
  });
  slot.gathered->record(transfer_->get());
  slot.unit = unit;
}

void ParameterStore::open(int unit, int next, Stream compute) {
  if (!sharded(unit)) return;
  gather(unit, compute);
  slot_of(unit).gathered->hold(compute);
  for_each_flat(unit, [&](Flat& f) {
    if (f.sharded) bind_values(f, offset(slot_of(unit).values, f.value_offset));
  });
  if (next >= 0 && sharded(next) && &slot_of(next) != &slot_of(unit)) gather(next, compute);
}

void ParameterStore::close(int unit) {
  if (!sharded(unit)) return;
  for_each_flat(unit, [&](Flat& f) {
    if (!f.sharded) return;
    f.values = {};
    for (auto& [p, at] : f.parameters) p->value = Tensor(nullptr, f.dtype, device_, p->shape);
  });
}

void ParameterStore::open_for_backward(int unit, int next, Stream compute) {
  open(unit, next, compute);
  if (!sharded(unit)) return;
  Slot& slot = slot_of(unit);
  slot.reduced->hold(compute);
  zero(Tensor(slot.gradients, DType::u8, device_, {static_cast<int64_t>(slot.gradient_bytes)}), compute);
  for_each_flat(unit, [&](Flat& f) {
    if (f.sharded) bind_gradients(f, offset(slot.gradients, f.gradient_offset));
  });
}

// Sums a flat's gradients over its ranks into own_gradients, beside the work on `compute`.
void ParameterStore::reduce(Flat& f, Stream compute) {
  if (!f.ranks && !f.sharded) return;
  ready_->record(compute);
  ready_->hold(transfer_->get());
  const Tensor own = part(f.gradients, f.rank * f.shard(), f.shard());
  if (f.ranks) f.ranks->reduce_scatter(f.gradients, own, transfer_->get());
  if (f.sharded) hyscale::add(f.own_gradients, f.own_gradients, own, transfer_->get());
}

void ParameterStore::close_after_backward(int unit, bool last_micro_batch, Stream compute) {
  if (sharded(unit)) {
    for_each_flat(unit, [&](Flat& f) { reduce(f, compute); });
    slot_of(unit).reduced->record(transfer_->get());
    for_each_flat(unit, [&](Flat& f) {
      if (f.sharded) f.gradients = {};
    });
    close(unit);
  } else if (last_micro_batch) {
    for_each_flat(unit, [&](Flat& f) {
      reduce(f, compute);
      f.reduced = true;
    });
  }
}

void ParameterStore::finish_gradients(Stream compute) {
  for (Flat& f : flats_)
    if (!f.sharded && !f.reduced) reduce(f, compute);
  done_->record(transfer_->get());
  done_->hold(compute);
}

void ParameterStore::zero_gradients(Stream stream) {
  for (Flat& f : flats_) f.reduced = false;
  zero(Tensor(gradients_.data(), DType::u8, device_, {static_cast<int64_t>(gradients_.bytes())}), stream);
}

void ParameterStore::share_values(Stream stream) {
  for (Flat& f : flats_)
    if (!f.sharded && f.ranks) f.ranks->all_gather(f.own_values, f.values, stream);
  for (Slot& slot : slots_) slot.unit = -1;
}

int64_t ParameterStore::num_elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.whole_elements();
  for (const HfConstant& c : constants_) n += static_cast<int64_t>(c.values.size());
  return n;
}

int64_t ParameterStore::num_hf_tensors() const {
  int64_t n = static_cast<int64_t>(constants_.size());
  for (const Parameter& p : parameters_) n += static_cast<int64_t>(p.hf.size());
  return n;
}

int64_t ParameterStore::sent_bytes() const {
  std::vector<const Communicator*> seen;
  int64_t n = 0;
  for (const Flat& f : flats_) {
    if (!f.ranks || std::find(seen.begin(), seen.end(), f.ranks) != seen.end()) continue;
    seen.push_back(f.ranks);
    n += f.ranks->sent_bytes();
  }
  return n;
}

}  // namespace hyscale
