// Gradients of a whole Qwen3.8 model on CUDA against the CPU, in f32 and bf16.
#include "tests/support/model_on_both.h"
#include "train/weights.h"

namespace hyscale {
namespace {

using namespace test;

const std::vector<int32_t> kDocuments{70, 1, 64, 33};

nlohmann::json plain_config() { return read_hf_config("tests/goldens/qwen_qsa/config.json"); }
nlohmann::json ngram_config() { return read_hf_config("tests/goldens/qwen_qsa_ple/config.json"); }

// Relative to the CPU's gradients.
struct Bounds {
  double each, all;  // of every parameter, and of all as one vector
};

void expect_gradients_as_on_cpu(Model& cpu, Model& cuda, const Bounds& bounds) {
  for (const Parameter& p : cpu.parameters().all()) {
    if (!p.grad.defined()) continue;
    const std::vector<float> expected = gradient_on_host(p), found = gradient_on_host(*cuda.parameters().find(p.name));
    if (std::ranges::all_of(expected, [](float x) { return x == 0; })) {
      EXPECT_TRUE(found == expected) << p.name << " has a gradient that is 0 on the CPU";
      continue;
    }
    EXPECT_LE(relative_difference(found, expected), bounds.each) << p.name;
  }
  EXPECT_LE(gradient_difference(cpu, cuda), bounds.all);
}

void expect_as_on_cpu(Model& cpu, const nlohmann::json& config, DType dtype, const Bounds& bounds, Recompute recompute = Recompute::none) {
  SCOPED_TRACE(concat(dtype_name(dtype), recompute == Recompute::none ? "" : ", recomputed", !config["ple_layer_ids"].empty() ? ", n-gram memory" : ""));
  const std::unique_ptr<Model> cuda = on_cuda(cpu, config, dtype);
  // The index loss takes bf16 on CUDA; its own parameters alone depend on it.
  const StepOptions o{.activation = dtype, .recompute = recompute, .index_coefficient = dtype == DType::bf16 ? 1.0 : 0.0, .balance_coefficient = 0.01};
  const auto [expected, found] = train_on_both(cpu, *cuda, o, sequence(kDocuments));
  const double bound = dtype == DType::bf16 ? 1e-2 : 1e-5;
  EXPECT_NEAR(found.lm, expected.lm, bound * expected.lm);
  EXPECT_NEAR(found.index, expected.index, bound * expected.index);
  EXPECT_NEAR(found.balance, expected.balance, bound * expected.balance);
  expect_gradients_as_on_cpu(cpu, *cuda, bounds);
}

TEST(QwenModelCuda, GradientsInF32AreThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (Recompute recompute : {Recompute::none, Recompute::layer}) expect_as_on_cpu(*make_random_without_zeros(plain_config()), plain_config(), DType::f32, {2e-5, 1e-5}, recompute);
}

// The gate of an n-gram memory is a root, steep near 0: behind it the last bits of f32 are worth up to 6e-4.
TEST(QwenModelCuda, GradientsOfNgramMemoryInF32AreThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (Recompute recompute : {Recompute::none, Recompute::layer}) expect_as_on_cpu(*make_random_without_zeros(ngram_config()), ngram_config(), DType::f32, {2e-3, 5e-5}, recompute);
}

// The weights of the reference case: rounding its activations to bf16 moves gradients by tens of percent.
TEST(QwenModelCuda, GradientsOfTheReferenceCaseInF32AreThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  const std::unique_ptr<Model> cpu = make_random(ngram_config());
  load_weights(cpu->parameters(), HfFolderReader("tests/goldens/qwen_qsa_ple"));
  expect_as_on_cpu(*cpu, ngram_config(), DType::f32, {1e-3, 2e-4});
}

// Rounding alone: 8e-2 as one vector, 0.14 in the worst parameter; of what is behind the gate of an n-gram memory 0.8.
TEST(QwenModelCuda, GradientsInBf16AreCloseToThoseOfTheCpu) {
  SKIP_WITHOUT_CUDA();
  expect_as_on_cpu(*make_random_without_zeros(plain_config()), plain_config(), DType::bf16, {0.2, 0.12});
  expect_as_on_cpu(*make_random_without_zeros(ngram_config()), ngram_config(), DType::bf16, {1.0, 0.12});
}

}  // namespace
}  // namespace hyscale
