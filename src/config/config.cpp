#include "config/config.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "config/yaml_reader.h"
#include "core/error.h"

namespace hyscale {
namespace {

using Fail = std::function<void(const std::string& key, const std::string& message)>;

// The first key that is not at its default; null when all are.
const char* changed(std::initializer_list<std::pair<const char*, bool>> keys) {
  for (const auto& [key, differs] : keys)
    if (differs) return key;
  return nullptr;
}

void check_schedule(const Config& c, const Fail& fail) {
  if (c.schedule.warmup_steps > c.train.steps) fail("schedule.warmup_steps", concat(c.schedule.warmup_steps, " is more than train.steps, ", c.train.steps));
  if (c.schedule.kind == "wsd" && (c.schedule.decay_steps == 0 || c.schedule.decay_steps > c.train.steps - c.schedule.warmup_steps))
    fail("schedule.decay_steps", concat(c.schedule.decay_steps, "; wsd needs from 1 to ", c.train.steps - c.schedule.warmup_steps, " steps of decay"));
  if (c.schedule.kind != "wsd" && c.schedule.decay_steps != 0) fail("schedule.decay_steps", concat("acts only with schedule.kind wsd, which is ", c.schedule.kind));
  if (c.schedule.kind == "constant" && c.schedule.min_lr != 0) fail("schedule.min_lr", "does not act with schedule.kind constant");
  if (c.schedule.min_lr > c.optimizer.lr) fail("schedule.min_lr", concat(c.schedule.min_lr, " is above optimizer.lr, ", c.optimizer.lr));
}

void check_stages(const Config& c, const YamlReader& r) {
  if (c.train.stages.empty()) return check_schedule(c, [&](const std::string& key, const std::string& message) { r.fail(key, message); });
  const int64_t steps = std::accumulate(c.train.stages.begin(), c.train.stages.end(), int64_t{0}, [](int64_t sum, const StageEntry& s) { return sum + s.steps; });
  if (steps != c.train.steps) r.fail("train.stages", concat("have ", steps, " steps together; train.steps is ", c.train.steps));
  const Config defaults;
  const Config::Schedule &s = c.schedule, &d = defaults.schedule;
  if (const char* replaced = changed({{"model.stage", c.model.stage != defaults.model.stage}, {"optimizer.lr", c.optimizer.lr != defaults.optimizer.lr}, {"schedule.kind", s.kind != d.kind},
                                      {"schedule.warmup_steps", s.warmup_steps != d.warmup_steps}, {"schedule.decay_steps", s.decay_steps != d.decay_steps}, {"schedule.min_lr", s.min_lr != d.min_lr}}))
    r.fail(replaced, "does not act with train.stages, each of which has its own");
  for (size_t i = 0; i < c.train.stages.size(); ++i) {
    check_schedule(stage_config(c, i), [&](const std::string& key, const std::string& message) { r.fail("train.stages", concat("stage ", i + 1, ", ", key, ": ", message)); });
    if (i > 0 && c.train.stages[i].stage == "warmup" && c.train.stages[i - 1].stage == "sparse")
      r.fail("train.stages", concat("stage ", i + 1, ": warmup after sparse would lose the optimizer state of the trunk; expected warmup first"));
  }
}

void check_warmup(const Config& c, const YamlReader& r) {
  bool any = false, all = true;
  for (size_t i = 0; i < num_stages(c); ++i) {
    const bool warmup = stage_config(c, i).model.stage == "warmup";
    any = any || warmup;
    all = all && warmup;
  }
  if (any && c.loss.index_coefficient == 0) r.fail("loss.index_coefficient", "0 with model.stage warmup leaves nothing to train");
  if (all && c.train.recompute != "none") r.fail("train.recompute", "does not act with model.stage warmup, which keeps no activations");
  for (const auto& [role, group] : c.optimizer.groups)
    if (all && role != "indexer") r.fail("optimizer.groups", concat(role, " does not act with model.stage warmup, which trains the indexers alone"));
  if (all && c.guard.loss_factor > 0) r.fail("guard.loss_factor", "does not act with model.stage warmup, whose trunk is frozen");
  if (c.train.overfit_loss > 0 && (any || !c.train.stages.empty())) r.fail("train.overfit_loss", "acts only with model.stage sparse and without train.stages");
}

void check_optimizer(const Config& c, const YamlReader& r) {
  const Config::Optimizer &o = c.optimizer, defaults;
  for (const auto& [role, g] : o.groups) {
    const auto fail = [&, key = role](const std::string& message) { r.fail("optimizer.groups", concat(key, ": ", message)); };
    if (g.name == "inherit" && g.lr == 0 && g.lr_scale == 1) fail("says nothing; expected name, lr or lr_scale");
    if (g.name == "muon" && role == "vectors") fail("Muon is for matrices; expected adamw");
    if (g.lr > 0 && g.lr_scale != 1) fail(concat("lr ", g.lr, " and lr_scale ", g.lr_scale, " exclude each other"));
    for (size_t i = 0; i < num_stages(c); ++i)
      if (g.lr > 0 && stage_config(c, i).optimizer.lr == 0) fail(concat("lr ", g.lr, " follows the schedule, which is 0 throughout"));
  }
  const char* idle = changed({{"momentum", o.momentum != defaults.momentum}, {"update_rms", o.update_rms != defaults.update_rms}, {"newton_schulz", o.newton_schulz != defaults.newton_schulz},
                              {"newton_schulz_steps", o.newton_schulz_steps != defaults.newton_schulz_steps}, {"polish_steps", o.polish_steps != defaults.polish_steps},
                              {"split_heads", o.split_heads != defaults.split_heads}});
  if (idle && !o.uses_muon()) r.fail(concat("optimizer.", idle), "acts only with optimizer.name muon, or with a group that has it");
  if (o.polish_steps > 0 && o.newton_schulz != "quintic") r.fail("optimizer.polish_steps", concat("acts only with newton_schulz quintic, which is ", o.newton_schulz));
}

void check_guard(const Config& c, const YamlReader& r) {
  const Config::Guard &g = c.guard, defaults;
  for (const auto& [key, factor] : {std::pair{"guard.loss_factor", g.loss_factor}, {"guard.grad_norm_factor", g.grad_norm_factor}})
    if (factor > 0 && factor <= 1) r.fail(key, concat(factor, "; expected 0 (not watched) or a number above 1"));
  const char* idle = changed({{"guard.window", g.window != defaults.window}, {"guard.min_steps", g.min_steps != defaults.min_steps}, {"guard.action", g.action != defaults.action},
                              {"guard.skip_limit", g.skip_limit != defaults.skip_limit}});
  if (idle && !g.acts()) r.fail(idle, "acts only with guard.loss_factor or guard.grad_norm_factor");
  if (g.min_steps > g.window) r.fail("guard.min_steps", concat(g.min_steps, " is more than guard.window, ", g.window));
  if (g.action == "stop" && g.skip_limit != defaults.skip_limit) r.fail("guard.skip_limit", "acts only with guard.action skip");
}

// Paths in a configuration are taken as they are.
std::string path_hint(const std::string& path) {
  return path.find('$') != std::string::npos || path.starts_with("~") ? "; $ and ~ are not replaced here, but in the shell by --set" : "";
}

void check_dataset(const char* key, const DatasetEntry& d, const YamlReader& r) {
  if (std::filesystem::exists(d.path + ".bin")) return;
  const bool has_ending = d.path.ends_with(".bin") || d.path.ends_with(".idx");
  r.fail(key, concat(d.path, ".bin: cannot open: No such file; expected the path of a data set ", has_ending ? concat("without ", d.path.substr(d.path.size() - 4)) : "as hyscale-data build --output had it", path_hint(d.path)));
}

// What the run reads exists; whether it can be used shows where it is read.
void check_inputs(const Config& c, Inputs inputs, const YamlReader& r) {
  const auto check = [&](const char* key, const std::string& path, const char* expected) {
    if (!std::filesystem::exists(path)) r.fail(key, concat(path, ": cannot be read: No such file; expected ", expected, path_hint(path)));
  };
  if (inputs == Inputs::named) return;
  check("model.config", c.model.config, "a Hugging Face config.json or a folder that holds one");
  if (inputs == Inputs::model) return;
  if (!c.model.weights.empty()) check("model.weights", c.model.weights, "a Hugging Face model folder");
  for (const DatasetEntry& d : c.data.train) check_dataset("data.train", d, r);
  for (const DatasetEntry& d : c.data.validation) check_dataset("data.validation", d, r);
  if (!c.data.skip.empty()) check("data.skip", c.data.skip, "a list of sequences");
}

// What single keys cannot show.
void check_combinations(const Config& c, const YamlReader& r) {
  if (c.checkpoint.directory.empty()) r.fail("checkpoint.directory", "is empty; expected a folder");
  check_stages(c, r);
  if (c.train.evaluate_every > 0 && c.data.validation.empty()) r.fail("train.evaluate_every", "needs data.validation");
  if (!c.model.mtp && c.model.mtp_depths != 1) r.fail("model.mtp_depths", "acts only with model.mtp true");
  check_warmup(c, r);
  check_optimizer(c, r);
  check_guard(c, r);
  if (c.run.profile_steps == 0 && c.run.profile_start != 1) r.fail("run.profile_start", "acts only with run.profile_steps above 0");
  if (c.run.profile_steps > 0 && c.run.device == "cpu") r.fail("run.profile_steps", "captures what runs on a GPU, and run.device is cpu");
  if ((c.parallel.data * c.parallel.context) % c.parallel.expert != 0)
    r.fail("parallel.expert", concat(c.parallel.expert, " does not divide the ", c.parallel.data * c.parallel.context, " ranks of the job, parallel.data x parallel.context"));
  if (c.parallel.context == 1 && (c.parallel.context_order != "zigzag" || c.parallel.context_transport != "ring"))
    r.fail(c.parallel.context_order != "zigzag" ? "parallel.context_order" : "parallel.context_transport", "acts only with parallel.context above 1");
  if (c.train.micro_batches % c.parallel.data != 0)
    r.fail("parallel.data", concat(c.parallel.data, " does not divide train.micro_batches, ", c.train.micro_batches, ": every rank takes equally many sequences of a step"));
  const char* of_ranks = changed({{"run.replica_check_every", c.run.replica_check_every > 0}, {"run.straggler_factor", c.run.straggler_factor != Config{}.run.straggler_factor}});
  if (of_ranks && c.parallel.data * c.parallel.context == 1) r.fail(of_ranks, "acts only with several ranks, parallel.data or parallel.context above 1");
  if (c.run.straggler_factor > 0 && c.run.straggler_factor <= 1) r.fail("run.straggler_factor", concat(c.run.straggler_factor, "; expected 0 (not timed) or a number above 1"));
}

}  // namespace

bool Config::Optimizer::uses_muon() const {
  return name == "muon" || std::any_of(groups.begin(), groups.end(), [](const auto& g) { return g.second.name == "muon"; });
}

size_t num_stages(const Config& c) { return std::max<size_t>(1, c.train.stages.size()); }

Config stage_config(const Config& c, size_t stage) {
  if (c.train.stages.empty()) return c;
  Config out = c;
  const StageEntry& s = c.train.stages.at(stage);
  out.train.stages.clear();
  out.train.steps = s.steps;
  out.model.stage = s.stage;
  if (s.stage == "warmup") out.train.recompute = "none";
  out.optimizer.lr = s.lr;
  out.schedule = {s.schedule, s.warmup_steps, s.decay_steps, s.min_lr};
  return out;
}

StagePlace stage_of_step(const Config& c, int64_t step) {
  size_t stage = 0;
  for (; stage + 1 < num_stages(c) && step > c.train.stages[stage].steps; ++stage) step -= c.train.stages[stage].steps;
  return {stage, step};
}

Config read_config(const std::string& path, const std::vector<std::string>& overrides, Inputs inputs) {
  YamlReader reader(path, overrides);
  Config config;
  visit_config(reader, config);
  reader.finish();
  check_combinations(config, reader);
  check_inputs(config, inputs, reader);
  return config;
}

}  // namespace hyscale
