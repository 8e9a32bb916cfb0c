#include "train/instruments.h"

#include <cmath>

#include "core/range.h"

namespace hyscale {

Instruments::Instruments(const Config& c, const Model& model, Device device, ProcessGroups& groups)
    : run_(c.run), groups_(groups), counter_(model), peak_flops_(peak_flops(device_name(device))), profile_(device), health_(model.num_selecting_layers()) {
  if (run_.profile_steps > 0 && !device.is_cuda())
    throw UserError(concat("run.profile_steps: ", run_.profile_steps, ", but the run is on ", to_string(device), "; a profiler captures steps on cuda only"));
}

void Instruments::begin_step(int64_t step_number, Step& step) {
  const auto due = [&](int64_t every) { return every > 0 && step_number % every == 0; };
  step_number_ = step_number;
  stage_ = step.stage();
  flops_ = 0;
  samples_selections_ = due(run_.selection_health_every);
  step.watch(samples_selections_ ? &health_ : nullptr);
  if (samples_selections_) health_.begin();
  if (run_.profile_steps > 0 && step_number == run_.profile_start) start_capture();
  timed_ = due(run_.parts_every);
  if (timed_) profile_.begin();
}

void Instruments::end_step() {
  if (timed_) parts_ = profile_.finish();
  // A run that ends inside the window needs no stop: a profiler writes its report at the end of the process as well.
  if (run_.profile_steps > 0 && step_number_ + 1 == run_.profile_start + run_.profile_steps) stop_capture();
  const std::span<double> sums = health_.sums();
  if (samples_selections_) groups_.hosts->all_reduce(Tensor(sums.data(), DType::f64, Device{}, {static_cast<int64_t>(sums.size())}), ReduceOp::sum, {});
}

void Instruments::record(double seconds, nlohmann::json& line) const {
  const auto number = [](double v) { return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr); };
  const std::optional<double> used = mfu(seconds);
  line["model_flops"] = flops_;
  line["mfu"] = used ? nlohmann::json(*used) : nlohmann::json(nullptr);
  if (timed_) line["seconds_of_phase"] = parts_.phases, line["seconds_of_part"] = parts_.parts;
  if (!samples_selections_) return;
  for (const SelectionHealth::Means& m : health_.means()) {
    line["selection_recall"].push_back(number(m.recall));
    line["selection_shared_by_neighbours"].push_back(number(m.neighbours));
    line["selection_shared_with_layer_below"].push_back(number(m.below));
    line["selection_tied"].push_back(number(m.tied));
  }
}

}  // namespace hyscale
