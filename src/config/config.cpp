#include "config/config.h"

#include "config/yaml_reader.h"
#include "core/error.h"

namespace hyscale {
namespace {

// What single keys cannot show.
void check_combinations(const Config& c, const YamlReader& r) {
  if (c.schedule.warmup_steps > c.train.steps) r.fail("schedule.warmup_steps", concat(c.schedule.warmup_steps, " is more than train.steps, ", c.train.steps));
  if (c.schedule.kind == "wsd" && (c.schedule.decay_steps == 0 || c.schedule.decay_steps + c.schedule.warmup_steps > c.train.steps))
    r.fail("schedule.decay_steps", concat(c.schedule.decay_steps, "; wsd needs from 1 to ", c.train.steps - c.schedule.warmup_steps, " steps of decay"));
  if (c.schedule.kind != "wsd" && c.schedule.decay_steps != 0)
    r.fail("schedule.decay_steps", concat("acts only with schedule.kind wsd, which is ", c.schedule.kind));
  if (c.schedule.kind == "constant" && c.schedule.min_lr != 0) r.fail("schedule.min_lr", "does not act with schedule.kind constant");
  if (c.schedule.min_lr > c.optimizer.lr) r.fail("schedule.min_lr", concat(c.schedule.min_lr, " is above optimizer.lr, ", c.optimizer.lr));
  if (c.train.evaluate_every > 0 && c.data.validation.empty()) r.fail("train.evaluate_every", "needs data.validation");
  if (!c.model.mtp && c.model.mtp_depths != 1) r.fail("model.mtp_depths", "acts only with model.mtp true");
  if (c.model.stage == "warmup" && c.loss.index_coefficient == 0) r.fail("loss.index_coefficient", "0 with model.stage warmup leaves nothing to train");
  if (c.model.stage == "warmup" && c.train.recompute != "none") r.fail("train.recompute", "does not act with model.stage warmup, which keeps no activations");
  if (c.run.profile_steps == 0 && c.run.profile_start != 1) r.fail("run.profile_start", "acts only with run.profile_steps above 0");
  if (c.run.profile_steps > 0 && c.run.device == "cpu") r.fail("run.profile_steps", "captures what runs on a GPU, and run.device is cpu");
  if ((c.parallel.data * c.parallel.context) % c.parallel.expert != 0)
    r.fail("parallel.expert", concat(c.parallel.expert, " does not divide the ", c.parallel.data * c.parallel.context, " ranks of the job, parallel.data x parallel.context"));
  if (c.parallel.context == 1 && (c.parallel.context_order != "zigzag" || c.parallel.context_transport != "ring"))
    r.fail(c.parallel.context_order != "zigzag" ? "parallel.context_order" : "parallel.context_transport", "acts only with parallel.context above 1");
  if (c.train.micro_batches % c.parallel.data != 0)
    r.fail("parallel.data", concat(c.parallel.data, " does not divide train.micro_batches, ", c.train.micro_batches, ": every rank takes equally many sequences of a step"));
}

}  // namespace

Config read_config(const std::string& path, const std::vector<std::string>& overrides) {
  YamlReader reader(path, overrides);
  Config config;
  visit_config(reader, config);
  reader.finish();
  check_combinations(config, reader);
  return config;
}

}  // namespace hyscale
