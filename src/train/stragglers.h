// Stragglers: how long each rank computes for a step, without its waiting for others, and which one holds up the rest.
// A rank computes from the start of a step until its gradients are complete. Over MPI all that it waits in collectives is
// taken off; over NCCL what the context ring waits. Ranks that share experts over NCCL wait for each other on the device and
// show the time of the slowest of them.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/groups.h"
#include "comm/ring.h"
#include "core/stream.h"

namespace hyscale {

class Stragglers {
 public:
  // Collective, as rank_seconds. factor: a rank is slow when it computes this many times as long as the median of all.
  Stragglers(ProcessGroups&, Device, double factor);

  void begin(Stream);
  void end(Stream);
  // Of every rank, for the step between begin and end, after the device has been waited for. context: the step's.
  std::vector<double> rank_seconds(const Ring::Times& context);

  // Adds rank_compute_seconds, and slowest_rank and slowest_host where that rank is slow.
  void record(const std::vector<double>& rank_seconds, nlohmann::json& line) const;
  // "" when none is slow.
  std::string slowest_text(const std::vector<double>& rank_seconds) const;

 private:
  double waited_seconds() const;

  ProcessGroups& groups_;
  double factor_;
  std::vector<std::string> hosts_;
  Event began_, ended_;
  double waited_before_ = 0, waited_ = 0;
};

// The slowest of them when it takes more than `factor` times the median, else -1.
int slow_rank(const std::vector<double>& rank_seconds, double factor);

}  // namespace hyscale
