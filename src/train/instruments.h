// What a step is measured by beside its losses: model FLOPs and MFU, time by part, health of selection, and the window that a
// profiler captures. Which steps: run.parts_every, run.selection_health_every, run.profile_start and profile_steps.
#pragma once
#include <optional>

#include "config/config.h"
#include "train/rates.h"
#include "train/step.h"
#include "train/step_profile.h"

namespace hyscale {

class Instruments {
 public:
  // Throws UserError when a profiler is to capture steps that do not run on CUDA. Every rank constructs one and calls the same.
  Instruments(const Config&, const Model&, Device, ProcessGroups&);

  // Before anything of the step is done.
  void begin_step(int64_t step_number, Step&);
  // Every sequence of the step, of all ranks.
  void count(const HostSequence& s) { flops_ += counter_.sequence(s, stage_); }
  // After the step's results have been waited for. Collective in steps that measure selections.
  void end_step();

  // Of the step that ended last, which took `seconds`.
  void record(double seconds, nlohmann::json& line) const;
  std::optional<double> mfu(double seconds) const { return model_flops_utilization(flops_, seconds, groups_.sizes.world(), peak_flops_); }

 private:
  Config::Run run_;
  ProcessGroups& groups_;
  FlopCounter counter_;
  std::optional<double> peak_flops_;  // of one rank's device
  StepProfile profile_;
  SelectionHealth health_;
  Stage stage_ = Stage::sparse;
  int64_t step_number_ = 0;
  double flops_ = 0;
  bool timed_ = false, samples_selections_ = false;
  StepProfile::Seconds parts_;
};

}  // namespace hyscale
