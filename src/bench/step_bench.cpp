#include "bench/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/rng.h"
#include "train/rates.h"
#include "train/setup.h"

namespace hyscale::bench {
namespace {

HostSequence random_document(int64_t tokens, int64_t vocabulary, uint64_t seed) {
  const Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(tokens)), labels(ids.size(), -1);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(rng.below(i, static_cast<uint64_t>(vocabulary)));
  std::copy(ids.begin() + 1, ids.end(), labels.begin());
  return make_host_sequence(std::move(ids), std::move(labels), {0, static_cast<int32_t>(tokens)});
}

double seconds_between(std::chrono::steady_clock::time_point start, std::chrono::steady_clock::time_point end) { return std::chrono::duration<double>(end - start).count(); }

}  // namespace

double StepTimes::median_seconds() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

StepTimes step_benchmark(const Config& c, int unmeasured, int steps) {
  if (parallel_sizes(c).world() != 1)
    throw UserError(concat("parallel.data ", c.parallel.data, " x parallel.context ", c.parallel.context, ": the step benchmark runs one rank; set both to 1"));
  const Device device = choose_device(c.run.device);
  StepTimes t;
  t.plan = make_plan(c);
  if (!t.plan.fits()) throw UserError(concat("a step needs ", t.plan.total_bytes() >> 20, " MiB on ", to_string(device), ", available are ", t.plan.limit >> 20, " MiB"));
  t.device = device_name(device);
  reset_peak(device);
  ProcessGroups groups = make_single_process_group();
  const std::unique_ptr<Model> model = make_model(c, &groups);
  ParameterStore& store = model->parameters();
  store.allocate(device, compute_dtype(device), sharding(c, groups));
  store.initialize(static_cast<uint64_t>(c.train.seed), model->initializer_range());
  StepOptions options = step_options(c, device, compute_dtype(device), &groups);
  options.reserve = t.plan.step;
  Step step(*model, options);
  Optimizer optimizer(store, optimizer_options(c), device, groups.world.get());
  FlopCounter flops(*model);
  std::vector<HostSequence> sequences;
  StepTotals totals;
  for (int64_t i = 0; i < c.train.micro_batches; ++i) {
    sequences.push_back(random_document(c.data.sequence_tokens, model->vocabulary_size(), static_cast<uint64_t>(i)));
    totals.add(sequences.back(), model->mtp_depths());
    t.flops += flops.sequence(sequences.back(), options.stage);
  }
  t.tokens = totals.queries;
  t.check = "losses are finite";
  StepProfile profile(device);
  for (int i = 0; i < unmeasured + steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    profile.begin();
    step.begin(totals);
    for (const HostSequence& s : sequences) step.micro_batch(s, &s == &sequences.back());
    step.reduce();
    optimizer.update(c.optimizer.lr, step.sums(), step.stream());
    const Optimizer::Result update = optimizer.result(step.stream());
    const StepLosses losses = step.losses();
    model->after_step(update.applied, step.stream());
    const StepProfile::Seconds parts = profile.finish();
    if (!update.applied || !std::isfinite(losses.lm)) t.check = fmt::format("WRONG: step {} has loss {}, gradient norm {}", i + 1, losses.lm, update.norm);
    if (i < unmeasured) continue;
    t.seconds.push_back(seconds_between(start, std::chrono::steady_clock::now()));
    for (const auto& [name, seconds] : parts.phases) t.mean.phases[name] += seconds / steps;
    for (const auto& [name, seconds] : parts.parts) t.mean.parts[name] += seconds / steps;
  }
  t.peak_bytes = peak_bytes(device);
  t.mfu = model_flops_utilization(t.flops, t.median_seconds(), 1, peak_flops(t.device));
  return t;
}

std::string step_table(const StepTimes& t) {
  const auto [least, most] = std::minmax_element(t.seconds.begin(), t.seconds.end());
  const double seconds = t.median_seconds();
  std::string text = fmt::format("One training step on {}, {} tokens\n  {:<26}{:>10} {:>8}\n", t.device, t.tokens, "", "seconds", "share");
  text += fmt::format("  {:<26}{:>10.4f} {:>8}  median of {}; {:.4f} to {:.4f}\n", "step", seconds, "", t.seconds.size(), *least, *most);
  const auto rows = [&](const std::map<std::string, double>& times) {
    double all = 0;
    for (const auto& entry : times) all += entry.second;
    for (const auto& [name, s] : times) text += fmt::format("    {:<24}{:>10.4f} {:>7.1f}%\n", name, s, 100 * s / all);
  };
  text += "  by phase, mean\n";
  rows(t.mean.phases);
  text += "  by part, mean\n";
  rows(t.mean.parts);
  text += fmt::format("  {:<26}{:>10.0f}\n  {:<26}{:>10.3e}\n  {:<26}{:>10}\n", "tokens per second", static_cast<double>(t.tokens) / seconds, "model FLOPs", t.flops, "MFU", mfu_text(t.mfu));
  text += fmt::format("  {:<26}{:>10.1f}   planned {:.1f}\n", "peak memory, MiB", static_cast<double>(t.peak_bytes) / (1 << 20), static_cast<double>(t.plan.total_bytes()) / (1 << 20));
  return text + fmt::format("  {}\n", t.check);
}

nlohmann::json to_json(const StepTimes& t) {
  return {{"device", t.device}, {"tokens", t.tokens}, {"seconds", t.median_seconds()}, {"seconds_of_steps", t.seconds}, {"seconds_of_phase", t.mean.phases},
          {"seconds_of_part", t.mean.parts}, {"tokens_per_second", static_cast<double>(t.tokens) / t.median_seconds()}, {"model_flops", t.flops},
          {"mfu", t.mfu ? nlohmann::json(*t.mfu) : nlohmann::json(nullptr)}, {"peak_bytes", t.peak_bytes}, {"planned_bytes", t.plan.total_bytes()}, {"check", t.check}};
}

}  // namespace hyscale::bench
