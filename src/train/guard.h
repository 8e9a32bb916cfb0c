// Guard: finds spikes of the loss and of the gradient norms by the median of the last steps. Every finite value is remembered,
// spikes too, so that a level that lasts becomes the normal one. What it remembers is part of a checkpoint: a resumed run
// judges as one that was never interrupted.
#pragma once
#include <array>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"

namespace hyscale {

// What is watched of a step.
struct GuardedValues {
  double loss = 0, norm = 0, indexer_norm = 0;
};

class Guard {
 public:
  explicit Guard(const Config::Guard& options) : options_(options) {}

  // The most that the next step may have; infinite for what is not watched, was seen too few times or has been 0 all along.
  GuardedValues limits() const;
  void remember(const GuardedValues&);
  void forget() { seen_ = {}; }  // the next steps are of another kind

  nlohmann::json state() const;
  void restore(const nlohmann::json&);  // throws UserError for a state that is none

 private:
  double limit(const std::deque<double>&, double factor) const;

  Config::Guard options_;
  std::array<std::deque<double>, 3> seen_;  // loss, norm, indexer_norm; the oldest first
};

// Which value is above its limit: "loss 9.1 above 2 (...)", for people; "" when none is.
std::string spike_text(const GuardedValues&, const GuardedValues& limits);

}  // namespace hyscale
