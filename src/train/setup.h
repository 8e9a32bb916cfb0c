// From a configuration to the objects of a run.
#pragma once
#include <memory>

#include "config/config.h"
#include "models/registry.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/step.h"

namespace hyscale {

// "auto" is cuda where a device is usable; ranks of a host take its devices in turn. Throws UserError when cuda is asked for and there is none.
Device choose_device(const std::string& name, int local_rank = 0);
DType compute_dtype(Device);

// model.config is a config.json or a folder that holds one.
std::string hf_config_path(const Config&);
// With the share of the experts that this rank of the groups holds.
std::unique_ptr<Model> make_model(const Config&, const ProcessGroups* = nullptr);
ParallelSizes parallel_sizes(const Config&);
Sharding sharding(const Config&, const ProcessGroups&);
StepOptions step_options(const Config&, Device, DType activation, ProcessGroups* = nullptr);
// Both for the configuration of one stage (stage_config).
OptimizerOptions optimizer_options(const Config&);
Schedule make_schedule(const Config&);
// Throws UserError for a group of optimizer.groups that no parameter of the model belongs to.
void check_groups(const Config&, const ParameterStore&);

}  // namespace hyscale
