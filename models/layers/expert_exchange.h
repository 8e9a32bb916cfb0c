// Rows to the ranks that hold their experts and back: dropless, whatever the router chose. Rank r of R holds experts
// [r E / R, (r + 1) E / R). Counts differ from step to step, so the host waits for them once per exchange.
#pragma once
#include <vector>

#include "kernels/moe_permute/moe_permute.h"
#include "models/context.h"

namespace hyscale {

// One exchange: which rows go where. Rows are sorted by expert on both sides.
struct ExpertExchange {
  std::vector<int64_t> send_rows, receive_rows;  // to and from each rank
  int64_t received = 0;
  ExpertOrder order;  // of the received rows: by sender in, by expert out
};

// order: of the own tokens over all experts. The result's tensors are in the saved arena. Collective.
ExpertExchange make_expert_exchange(Context&, const ExpertOrder& order, int64_t slots);
// rows [slots, C] in expert order -> out [received, C] in the order of this rank's experts. Collective.
void dispatch_rows(Context&, const ExpertExchange&, const Tensor& rows, const Tensor& out);
// The way back. Collective.
void collect_rows(Context&, const ExpertExchange&, const Tensor& rows, const Tensor& out);

}  // namespace hyscale
