// Plan: what a run needs, known before it starts. One training step is walked on the `meta` device, which has shapes but
// no storage, so every byte is counted by the very code that will ask for it.
#pragma once
#include <string>

#include "config/config.h"
#include "models/model.h"
#include "train/step.h"

namespace hyscale {

struct Plan {
  std::string device;  // what the plan is for: "cpu" or "cuda"
  int64_t total_elements = 0, hf_tensors = 0, active_elements = 0;
  int ranks = 1;
  size_t weights = 0, gradients = 0, optimizer = 0;
  StepMemory step;
  size_t total_bytes() const { return weights + gradients + optimizer + step.saved + step.scratch + step.selections + step.inputs; }
  // Bytes that the rank sends in a step of micro_batches / data sequences, by what they serve.
  struct Sent {
    int64_t parameters = 0, context = 0, experts = 0;
  } sent;
  ForwardFlops forward;  // per token
  double train_flops_per_token = 0;
  size_t limit = 0;      // bytes of one rank; 0: unknown
  bool fits() const { return limit == 0 || total_bytes() <= limit; }
};

// The tokens of a sequence lie in host memory before a rank takes its own of them. Throws UserError where `memory` bytes are too few.
void check_host_memory(size_t tokens, size_t memory);

// Of one rank of the job; with train.stages the most that any stage takes. Needs no data and no GPU. Throws UserError for a model configuration that cannot be used.
Plan make_plan(const Config&, int rank = 0);
std::string plan_text(const Plan&, const Config&);
std::string plan_line(const Plan&);  // the classes in MiB, for messages about memory that ran out

// FLOPs of one training step per token: three times the forward of products and attention, plus the selector once, plus
// its repetition when recomputation does not replay selections. Recomputed work is not counted: it trains nothing.
double train_flops(const ForwardFlops&, const Config&);

}  // namespace hyscale
