#include "models/parameter.h"

#include <xxhash.h>

#include <algorithm>

#include "core/rng.h"

namespace hyscale {
namespace {

size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

void fill(const Parameter& p, uint64_t seed, float range, float* out) {
  const Rng rng(seed, XXH3_64bits(p.name.data(), p.name.size()));
  const int64_t n = p.shape.elements();
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i)
    out[i] = p.init == Init::ones ? 1 : p.init == Init::zeros ? 0 : range * rng.normal(static_cast<uint64_t>(i));
}

}  // namespace

Parameter norm_weight(const std::string& name, int64_t size) { return {.name = name, .shape = {size}, .init = Init::ones, .weight_decay = false}; }

Parameter& ParameterStore::add(Parameter p) {
  HYSCALE_CHECK(!find(p.name), "parameter ", p.name, " exists already");
  int64_t covered = 0;
  if (p.hf.empty()) p.hf = {{p.name, p.shape, 0}};
  for (const HfTensor& piece : p.hf) {
    HYSCALE_CHECK(piece.offset == covered, "piece ", piece.name, " of ", p.name, " starts at ", piece.offset, ", not ", covered);
    covered += piece.shape.elements();
  }
  HYSCALE_CHECK(covered == p.shape.elements(), "pieces of ", p.name, " hold ", covered, " elements of ", p.shape.elements());
  by_name_[p.name] = parameters_.size();
  return parameters_.emplace_back(std::move(p));
}

Parameter* ParameterStore::find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

void ParameterStore::allocate(Device device, DType compute) {
  size_t value_bytes = 0, gradient_bytes = 0;
  for (const Parameter& p : parameters_) {
    value_bytes += padded(static_cast<size_t>(p.shape.elements()) * (p.fp32 ? 4 : dtype_bytes(compute)));
    if (p.group != ParameterGroup::buffer) gradient_bytes += padded(static_cast<size_t>(p.shape.elements()) * 4);
  }
  values_ = Buffer(device, value_bytes, "weights");
  gradients_ = Buffer(device, gradient_bytes, "gradients");
  char *value = static_cast<char*>(values_.data()), *gradient = static_cast<char*>(gradients_.data());
  for (Parameter& p : parameters_) {
    p.value = Tensor(value, p.fp32 ? DType::f32 : compute, device, p.shape);
    if (value) value += padded(p.value.bytes());
    if (p.group == ParameterGroup::buffer) continue;
    p.grad = Tensor(gradient, DType::f32, device, p.shape);
    if (gradient) gradient += padded(p.grad.bytes());
  }
  zero_gradients({});
}

void ParameterStore::initialize(uint64_t seed, float initializer_range) {
  std::vector<float> host;
  for (Parameter& p : parameters_) {
    if (p.value.device().is_meta()) return;
    host.resize(static_cast<size_t>(p.shape.elements()));
    fill(p, seed, initializer_range, host.data());
    write_value(p, host.data());
  }
}

void ParameterStore::write_value(Parameter& p, const float* values) {
  const size_t n = static_cast<size_t>(p.shape.elements());
  if (p.value.dtype() == DType::f32) {
    copy_bytes(p.value.raw(), p.value.device(), values, Device{}, n * 4, {});
  } else {
    std::vector<uint16_t> rounded(n);
    std::transform(values, values + n, rounded.begin(), float_to_bf16);
    copy_bytes(p.value.raw(), p.value.device(), rounded.data(), Device{}, n * 2, {});
  }
  synchronize(p.value.device(), {});
}

void ParameterStore::zero_gradients(Stream stream) {
  zero(Tensor(gradients_.data(), DType::u8, gradients_.device(), {static_cast<int64_t>(gradients_.bytes())}), stream);
}

Tensor ParameterStore::flat_gradients() const {
  return Tensor(gradients_.data(), DType::f32, gradients_.device(), {static_cast<int64_t>(gradients_.bytes() / sizeof(float))});
}

int64_t ParameterStore::num_elements() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.shape.elements();
  return n;
}

int64_t ParameterStore::num_hf_tensors() const {
  int64_t n = 0;
  for (const Parameter& p : parameters_) n += static_cast<int64_t>(p.hf.size());
  return n;
}

}  // namespace hyscale
