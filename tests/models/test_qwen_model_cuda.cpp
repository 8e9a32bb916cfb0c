// Gradients of a whole Qwen3.8 model on CUDA against the CPU, in f32 and bf16, from the same weights and with the CPU's choices of keys and experts:
// a model that chooses otherwise computes another function.
#include "models/routing_store.h"
#include "tests/support/model_runs.h"
#include "tests/support/on_both.h"
#include "train/weights.h"

namespace hyscale {
namespace {

using namespace test;

const std::vector<int32_t> kDocuments{70, 1, 64, 33};

nlohmann::json plain_config() { return read_hf_config("tests/goldens/qwen_qsa/config.json"); }
nlohmann::json ngram_config() { return read_hf_config("tests/goldens/qwen_qsa_ple/config.json"); }

std::unique_ptr<Model> empty_model(const nlohmann::json& config, Device device, DType dtype) {
  std::unique_ptr<Model> model = make_model(config, "config.json", {});
  model->parameters().allocate(device, dtype);
  return model;
}

// No parameter is zero everywhere, or what lies behind it would get no gradient.
std::unique_ptr<Model> random_model(const nlohmann::json& config) {
  std::unique_ptr<Model> model = make_random(config);
  uint64_t seed = 100;
  for (Parameter& p : model->parameters().all())
    if (p.group != ParameterGroup::buffer && p.init == Init::zeros) model->parameters().write_value(p, random(p.shape, seed++, 0.2f).f32());
  return model;
}

// The CPU's values as `dtype` keeps them, on both sides.
std::unique_ptr<Model> on_cuda(Model& cpu, const nlohmann::json& config, DType dtype) {
  std::unique_ptr<Model> model = empty_model(config, kCuda, dtype);
  for (Parameter& p : cpu.parameters().all()) {
    Parameter& other = *model->parameters().find(p.name);
    for (int64_t i = 0; other.value.dtype() == DType::bf16 && i < p.value.elements(); ++i) p.value.f32()[i] = bf16_to_float(float_to_bf16(p.value.f32()[i]));
    model->parameters().write_value(other, p.value.f32());
  }
  synchronize(kCuda, {});
  return model;
}

Tensor copied(Arena& arena, const Tensor& t) {
  const Tensor other = arena.allocate(t.dtype(), t.shape());
  copy_bytes(other.raw(), kCuda, t.raw(), {}, t.bytes(), {});
  return other;
}

std::vector<float> gradient(const Parameter& p) {
  std::vector<float> g(static_cast<size_t>(p.grad.elements()));
  copy_bytes(g.data(), {}, p.grad.raw(), p.grad.device(), p.grad.bytes(), {});
  synchronize(p.grad.device(), {});
  return g;
}

StepLosses train(Step& step, const HostSequence& s) {
  StepTotals totals;
  totals.add(s, 0);
  step.begin(totals);
  step.micro_batch(s, true);
  return step.losses();
}

// Relative to the CPU's gradients.
struct Bounds {
  double each, all;  // of every parameter, and of all as one vector
};

void expect_gradients_as_on_cpu(Model& cpu, Model& cuda, const Bounds& bounds) {
  std::vector<float> all, of_all;
  for (const Parameter& p : cpu.parameters().all()) {
    if (!p.grad.defined()) continue;
    const std::vector<float> expected = gradient(p), found = gradient(*cuda.parameters().find(p.name));
    all.insert(all.end(), found.begin(), found.end());
    of_all.insert(of_all.end(), expected.begin(), expected.end());
    if (std::ranges::all_of(expected, [](float x) { return x == 0; })) {
      EXPECT_TRUE(found == expected) << p.name << " has a gradient that is 0 on the CPU";
      continue;
    }
    EXPECT_LE(relative_difference(found, expected), bounds.each) << p.name;
  }
  EXPECT_LE(relative_difference(all, of_all), bounds.all);
}

void expect_as_on_cpu(Model& cpu, const nlohmann::json& config, DType dtype, const Bounds& bounds, Recompute recompute = Recompute::none) {
  SCOPED_TRACE(concat(dtype_name(dtype), recompute == Recompute::none ? "" : ", recomputed", !config["ple_layer_ids"].empty() ? ", n-gram memory" : ""));
  const std::unique_ptr<Model> cuda = on_cuda(cpu, config, dtype);
  const HostSequence s = sequence(kDocuments);
  // The index loss takes bf16 on CUDA; its own parameters alone depend on it.
  StepOptions o{.index_coefficient = dtype == DType::bf16 ? 1.0 : 0.0, .balance_coefficient = 0.01};
  Arena host(Device{}, "expert choices of the CPU"), device(kCuda, "choices on CUDA");
  const int64_t tokens = static_cast<int64_t>(s.tokens.size()), k = config["num_experts_per_tok"];
  RoutingStore recorded, given{true, {}};
  for (size_t i = 0; i < config["layer_types"].size(); ++i) recorded.experts.push_back(host.allocate_zeroed(DType::i32, {tokens, k}, {}));
  Step reference(cpu, o);
  reference.use_routing(&recorded);
  const StepLosses expected = train(reference, s);

  o.device = kCuda;
  o.activation = dtype;
  o.recompute = recompute;
  Step step(*cuda, o);
  for (const Tensor& t : recorded.experts) given.experts.push_back(copied(device, t));
  step.use_routing(&given);
  for (int slot = 0; slot < cpu.num_selecting_layers(); ++slot) {
    const Selection& chosen = reference.selections().get(slot, {});
    step.selections().fix(slot, {copied(device, chosen.indices), copied(device, chosen.counts)});
  }
  const StepLosses found = train(step, s);
  const double bound = dtype == DType::bf16 ? 1e-2 : 1e-5;
  EXPECT_NEAR(found.lm, expected.lm, bound * expected.lm);
  EXPECT_NEAR(found.index, expected.index, bound * expected.index);
  EXPECT_NEAR(found.balance, expected.balance, bound * expected.balance);
  expect_gradients_as_on_cpu(cpu, *cuda, bounds);
}

TEST(QwenModelCuda, GradientsInF32AreThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (Recompute recompute : {Recompute::none, Recompute::layer}) expect_as_on_cpu(*random_model(plain_config()), plain_config(), DType::f32, {2e-5, 1e-5}, recompute);
}

// The gate of an n-gram memory is a root, steep near 0: behind it the last bits of f32 are worth up to 6e-4.
TEST(QwenModelCuda, GradientsOfNgramMemoryInF32AreThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (Recompute recompute : {Recompute::none, Recompute::layer}) expect_as_on_cpu(*random_model(ngram_config()), ngram_config(), DType::f32, {2e-3, 5e-5}, recompute);
}

// The weights of the reference case: rounding its activations to bf16 moves gradients by tens of percent.
TEST(QwenModelCuda, GradientsOfTheReferenceCaseInF32AreThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  const std::unique_ptr<Model> cpu = empty_model(ngram_config(), Device{}, DType::f32);
  load_weights(cpu->parameters(), HfFolderReader("tests/goldens/qwen_qsa_ple"));
  expect_as_on_cpu(*cpu, ngram_config(), DType::f32, {1e-3, 2e-4});
}

// Rounding alone: 8e-2 as one vector, 0.14 in the worst parameter; of what is behind the gate of an n-gram memory 0.8.
TEST(QwenModelCuda, GradientsInBf16AreCloseToThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  expect_as_on_cpu(*random_model(plain_config()), plain_config(), DType::bf16, {0.2, 0.12});
  expect_as_on_cpu(*random_model(ngram_config()), ngram_config(), DType::bf16, {1.0, 0.12});
}

}  // namespace
}  // namespace hyscale
