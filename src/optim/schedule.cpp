#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hyscale {

double Schedule::rate(int64_t step) const {
  if (step <= warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  const int64_t length = kind == Kind::wsd ? decay_steps : steps - warmup_steps;
  const int64_t into = step - (steps - length);
  if (kind == Kind::constant || into <= 0) return peak;
  const double part = length > 0 ? std::min(1.0, static_cast<double>(into) / static_cast<double>(length)) : 1;
  const double fall = kind == Kind::cosine ? (1 - std::cos(std::numbers::pi * part)) / 2 : part;
  return peak + (lowest - peak) * fall;
}

}  // namespace hyscale
