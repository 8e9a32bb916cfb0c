// How fast a step was: model FLOPs of packed documents, and their share of what the devices could do (MFU).
//
//   sparse stage    3 (products + attention over selected keys) + index scores of visible keys
//   warm-up stage   products + attention over visible keys + 3 index scores      (the trunk has no backward)
// per token, each document by its own length, so neither masked nor unselected pairs count, nor does recomputed work. Multi-token
// prediction and the index loss over selected keys are left out: MFU is never too high by them. Term by term: ForwardFlops.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "models/model.h"
#include "models/packed_sequence.h"

namespace hyscale {

class FlopCounter {
 public:
  explicit FlopCounter(const Model& model) : model_(model) {}
  double sequence(const HostSequence&, Stage);

 private:
  const Model& model_;
  std::map<int64_t, ForwardFlops> forward_;  // of a document, by its tokens
};
double document_flops(const ForwardFlops&, Stage, int64_t document_tokens);

// Dense bf16 FLOP/s of a device by its name ("NVIDIA H200"). Nothing for names that are not known, the CPU, slices of a GPU (MIG), and
// PCIe and NVL cards, whose clocks are others: an unknown peak is never guessed.
std::optional<double> peak_flops(const std::string& device_name);

// flops / (seconds x ranks x peak).
std::optional<double> model_flops_utilization(double flops, double seconds, int ranks, std::optional<double> peak);
std::string mfu_text(std::optional<double>);  // "41.3%", "n/a"

}  // namespace hyscale
