// One training step of a configuration, timed whole: forward, backward, reduction and optimizer, on made-up tokens; on any device.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/plan.h"
#include "train/step_profile.h"

namespace hyscale::bench {

struct StepTimes {
  std::string device;           // "NVIDIA H200", "cpu"
  std::vector<double> seconds;  // of each timed step
  StepProfile::Seconds mean;    // of one step
  int64_t tokens = 0;           // of one step
  double flops = 0;             // of one step (train/rates.h)
  std::optional<double> mfu;
  size_t peak_bytes = 0;        // most that was held at once, weights included
  Plan plan;
  std::string check;            // "losses are finite", or what is wrong

  double median_seconds() const;
};

// Runs `unmeasured` steps and then `steps` timed ones. Sequences are one document of random tokens, so every query sees as many keys as
// it can. Reads no data; weights are random. Throws UserError for a configuration of several ranks and for one that does not fit.
StepTimes step_benchmark(const Config&, int unmeasured, int steps);

std::string step_table(const StepTimes&);
nlohmann::json to_json(const StepTimes&);

}  // namespace hyscale::bench
