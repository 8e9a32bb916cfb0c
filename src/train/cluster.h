// An estimate of the time of a step on a cluster that need not be at hand, from a plan and kernel rates measured on an H200
// (docs/benchmarks.md). An estimate: nothing of it was run on the cluster.
#pragma once
#include <string>

#include "train/plan.h"

namespace hyscale {

struct Cluster {
  std::string name;       // "h20x512"
  double peak_flops = 0;  // dense bf16
  double memory_bytes = 0;
  double link_bytes_per_second = 0;     // one GPU to others of its host
  double network_bytes_per_second = 0;  // one GPU to other hosts
  int gpus_per_host = 8, gpus = 0;
};
// "h20x512", "h800x64", "h100x8", "h200x32". Throws UserError naming what is known.
Cluster parse_cluster(const std::string&);

// Seconds of one step of one rank, and what could not be hidden.
struct StepEstimate {
  double products = 0, selector = 0, attention = 0, index_loss = 0;  // recomputation included
  double context = 0, experts = 0, parameters = 0;                   // transfers that compute does not cover
  double total() const { return products + selector + attention + index_loss + context + experts + parameters; }
};
enum class Selecting : uint8_t {
  flash_topk,  // scores are never stored; selections are replayed
  table,       // a score table is written and selected from, again in recomputation
};
// Throws UserError when the layout does not have the cluster's number of ranks.
StepEstimate estimate_step(const Plan&, const Config&, const Cluster&, Selecting);

// Both ways side by side.
std::string cluster_text(const Plan&, const Config&, const Cluster&);

}  // namespace hyscale
