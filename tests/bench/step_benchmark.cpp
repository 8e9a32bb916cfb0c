// One training step (forward and backward, no optimizer) of a small GLM on the CPU. Arguments: tokens; recompute (0, 1).
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "core/rng.h"
#include "models/registry.h"
#include "train/step.h"

namespace hyscale {
namespace {

HostSequence random_sequence(int64_t tokens, int64_t vocabulary) {
  const Rng rng(7);
  std::vector<int32_t> ids(static_cast<size_t>(tokens)), labels(ids.size(), -1);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(rng.below(i, static_cast<uint64_t>(vocabulary)));
  std::copy(ids.begin() + 1, ids.end(), labels.begin());
  return make_host_sequence(std::move(ids), std::move(labels), {0, static_cast<int32_t>(tokens)});
}

void step(benchmark::State& state) {
  const char* path = std::getenv("MODEL_CONFIG");
  const std::string config = path ? path : "configs/models/glm-tiny.json";
  const std::unique_ptr<Model> model = make_model(read_hf_config(config), config, {});
  model->parameters().allocate(Device{}, DType::f32);
  model->parameters().initialize(1, 0.02f);
  Step step(*model, {.recompute = state.range(1) ? Recompute::layer : Recompute::none, .index_coefficient = 1});
  const HostSequence sequence = random_sequence(state.range(0), model->vocabulary_size());
  StepTotals totals;
  totals.add(sequence, 0);
  for (auto _ : state) {
    step.begin(totals);
    step.micro_batch(sequence, true);
    benchmark::DoNotOptimize(step.losses().lm);
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.range(0) * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(step)->Args({1024, 0})->Args({4096, 0})->Args({4096, 1})->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();

}  // namespace
}  // namespace hyscale

BENCHMARK_MAIN();
