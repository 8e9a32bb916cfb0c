// A training step of one model on the CPU, in f32, and on CUDA, from the same weights and with the CPU's choices of keys and experts: a model
// that chooses otherwise computes another function.
#pragma once
#include <utility>

#include "models/routing_store.h"
#include "tests/support/model_runs.h"
#include "tests/support/on_both.h"

namespace hyscale::test {

// No parameter is zero everywhere, or what lies behind it would get no gradient.
inline std::unique_ptr<Model> make_random_without_zeros(const nlohmann::json& config, const ModelOptions& options = {}) {
  std::unique_ptr<Model> model = make_random(config, options);
  uint64_t seed = 100;
  for (Parameter& p : model->parameters().all())
    if (p.group != ParameterGroup::buffer && p.init == Init::zeros) model->parameters().write_value(p, random(p.shape, seed++, 0.2f).f32());
  return model;
}

// The CPU's values as `dtype` keeps them, on both sides.
inline std::unique_ptr<Model> on_cuda(Model& cpu, const nlohmann::json& config, DType dtype, const ModelOptions& options = {}) {
  std::unique_ptr<Model> model = make_model(config, "config.json", options);
  model->parameters().allocate(kCuda, dtype);
  for (Parameter& p : cpu.parameters().all()) {
    Parameter& other = *model->parameters().find(p.name);
    for (int64_t i = 0; other.value.dtype() == DType::bf16 && i < p.value.elements(); ++i) p.value.f32()[i] = bf16_to_float(float_to_bf16(p.value.f32()[i]));
    model->parameters().write_value(other, p.value.f32());
  }
  synchronize(kCuda, {});
  return model;
}

inline StepLosses losses_of_step(Step& step, Model& model, const HostSequence& s) {
  StepTotals totals;
  totals.add(s, model.mtp_depths());
  step.begin(totals);
  step.micro_batch(s, true);
  return step.losses();
}

// o: of the step on CUDA; what concerns dtypes, recompute and the device is left out on the CPU. At most one MTP depth. The CPU's
// losses, then CUDA's; gradients are in the models.
inline std::pair<StepLosses, StepLosses> train_on_both(Model& cpu, Model& cuda, StepOptions o, const HostSequence& s) {
  Arena host(Device{}, "expert choices of the CPU"), device(kCuda, "choices on CUDA");
  const auto copied = [&](const Tensor& t) {
    const Tensor other = device.allocate(t.dtype(), t.shape());
    copy_bytes(other.raw(), kCuda, t.raw(), {}, t.bytes(), {});
    return other;
  };
  const nlohmann::json& config = cpu.hf_config();
  const int64_t tokens = static_cast<int64_t>(s.tokens.size()), k = config["num_experts_per_tok"], layers = config["num_hidden_layers"];
  RoutingStore recorded, given{true, {}};
  for (int64_t i = 0; i <= layers; ++i) recorded.experts.push_back(host.allocate_zeroed(DType::i32, {tokens, k}, {}));
  Step reference(cpu, {.index_coefficient = o.index_coefficient, .balance_coefficient = o.balance_coefficient, .mtp_coefficient = o.mtp_coefficient});
  reference.use_routing(&recorded);
  const StepLosses expected = losses_of_step(reference, cpu, s);

  o.device = kCuda;
  Step step(cuda, o);
  for (const Tensor& t : recorded.experts) given.experts.push_back(copied(t));
  step.use_routing(&given);
  for (int slot = 0; slot < cpu.num_selecting_layers(); ++slot) {
    const Selection& chosen = reference.selections().get(slot, {});
    step.selections().fix(slot, {copied(chosen.indices), copied(chosen.counts)});
  }
  return {expected, losses_of_step(step, cuda, s)};
}

inline std::vector<float> gradient_on_host(const Parameter& p) {
  std::vector<float> g(static_cast<size_t>(p.grad.elements()));
  copy_bytes(g.data(), {}, p.grad.raw(), p.grad.device(), p.grad.bytes(), {});
  synchronize(p.grad.device(), {});
  return g;
}

// Of all gradients as one vector, relative to the CPU's.
inline double gradient_difference(Model& cpu, Model& cuda) {
  std::vector<float> found, expected;
  for (const Parameter& p : cpu.parameters().all()) {
    if (!p.grad.defined()) continue;
    const std::vector<float> a = gradient_on_host(*cuda.parameters().find(p.name)), b = gradient_on_host(p);
    found.insert(found.end(), a.begin(), a.end());
    expected.insert(expected.end(), b.begin(), b.end());
  }
  return relative_difference(found, expected);
}

}  // namespace hyscale::test
