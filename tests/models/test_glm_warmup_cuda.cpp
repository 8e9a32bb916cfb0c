// The warm-up stage of a whole model on CUDA, bf16, against the CPU, f32, from the same starting values.
#include "models/registry.h"
#include "tests/support/on_both.h"
#include "train/step.h"

namespace hyscale {
namespace {

struct Trained {
  std::unique_ptr<Model> model;
  StepLosses losses;
};

Trained warm_up(Device device, const nlohmann::json& config) {
  const DType dtype = device.is_cuda() ? DType::bf16 : DType::f32;
  Trained r{make_model(config, "config.json", {}), {}};
  r.model->parameters().allocate(device, dtype);
  r.model->parameters().initialize(3, 0.1f);
  // The CPU gets the weights that CUDA holds.
  for (const Parameter& p : r.model->parameters().all())
    for (int64_t i = 0; device.is_cpu() && !p.fp32 && i < p.value.elements(); ++i) p.value.f32()[i] = bf16_to_float(float_to_bf16(p.value.f32()[i]));
  std::vector<int32_t> tokens(150), labels(150, -1);
  for (size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<int32_t>(t * 37 % 160);
  for (size_t t = 0; t + 1 < tokens.size(); ++t) labels[t] = tokens[t + 1];
  const HostSequence sequence = make_host_sequence(tokens, labels, {0, 70, 71, 150});
  Step step(*r.model, {.device = device, .activation = dtype, .stage = Stage::warmup, .index_coefficient = 1});
  StepTotals totals;
  totals.add(sequence, 0);
  step.begin(totals);
  step.micro_batch(sequence, true);
  r.losses = step.losses();
  return r;
}

std::vector<float> gradient(const Parameter& p) {
  std::vector<float> g(static_cast<size_t>(p.grad.elements()));
  copy_bytes(g.data(), {}, p.grad.raw(), p.grad.device(), p.grad.bytes(), {});
  synchronize(p.grad.device(), {});
  return g;
}

TEST(GlmModelCuda, WarmupIsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  const nlohmann::json config = read_hf_config("tests/goldens/glm51/config.json");
  const Trained cpu = warm_up({}, config), cuda = warm_up(test::kCuda, config);
  // Weights and activations of every layer are rounded to bf16, 2^-9; the bounds of golden-check on CUDA.
  EXPECT_NEAR(cuda.losses.lm, cpu.losses.lm, 2e-2 * cpu.losses.lm);
  EXPECT_NEAR(cuda.losses.index, cpu.losses.index, 2e-2 * cpu.losses.index);
  for (const Parameter& p : cuda.model->parameters().all()) {
    if (!p.grad.defined()) continue;
    const std::vector<float> a = gradient(p), b = gradient(*cpu.model->parameters().find(p.name));
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) difference += std::pow(double{a[i]} - b[i], 2), norm += double{b[i]} * b[i];
    EXPECT_EQ(norm > 0, p.group == ParameterGroup::indexer) << p.name;
    // r - p loses digits where they nearly agree; 5.4e-2 was seen. An error of the wiring would be of order one.
    EXPECT_LE(std::sqrt(difference), 8e-2 * std::sqrt(norm)) << p.name << ", relative " << std::sqrt(difference / norm);
  }
}

}  // namespace
}  // namespace hyscale
