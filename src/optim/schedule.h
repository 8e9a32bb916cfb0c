// Learning rate as a function of the step.
#pragma once
#include <cstdint>

namespace hyscale {

struct Schedule {
  enum class Kind : uint8_t { constant, linear, cosine, wsd } kind = Kind::constant;
  double peak = 0, lowest = 0;
  int64_t steps = 1, warmup_steps = 0, decay_steps = 0;  // decay_steps: wsd

  // Rate of step `step`, counted from 1. It rises linearly from 0 (before step 1) to the peak at step warmup_steps;
  // decay begins after that and reaches `lowest` at the last step, where it stays.
  double rate(int64_t step) const;
};

}  // namespace hyscale
