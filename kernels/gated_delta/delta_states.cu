// A run of tokens as the one document of the gated delta rule.
#include "kernels/common/cuda.cuh"
#include "kernels/common/op.h"
#include "kernels/gated_delta/gated_delta_cuda.h"

namespace hyscale {
namespace {

constexpr size_t kStartsBytes = aligned_bytes(2 * sizeof(int32_t));

__global__ void one_document_kernel(int32_t* starts, int32_t tokens) { starts[0] = 0, starts[1] = tokens; }

Tensor starts_in(void* memory, Device device) { return Tensor(memory, DType::i32, device, {2}); }

// Without its document starts and its workspace.
GatedDelta run_of(const DeltaMap& g) { return {g.k, g.k, g.v, g.log_decay, g.beta, starts_in(nullptr, g.k.device()), 1, g.chunk, {}, {}, g.stream}; }
GatedDeltaBackward run_of(const DeltaMapBackward& g) {
  return {g.q, g.k, g.dout, g.log_decay, g.beta, starts_in(nullptr, g.k.device()), g.scale, g.chunk, g.dout, {}, {}, {}, {}, {}, {}, g.stream};
}

template <typename Op>
auto filled_run(const Op& g) {
  auto run = run_of(g);
  run.document_starts = starts_in(g.workspace.raw(), g.k.device());
  run.workspace = g.workspace.slice(0, static_cast<int64_t>(kStartsBytes), g.workspace.size(0));
  one_document_kernel<<<1, 1, 0, stream_of(g.stream)>>>(run.document_starts.i32(), static_cast<int32_t>(g.k.size(0)));
  return run;
}

}  // namespace

void delta_map_cuda(const DeltaMap& g) {
  if (g.state.elements() == 0) return;
  const GatedDelta run = filled_run(g);
  gated_delta_chunks_fit(run) ? delta_map_chunks(run, g.map, g.state) : delta_map_plain(run, g.map, g.state);
}

size_t delta_map_cuda_workspace_bytes(const DeltaMap& g) {
  const GatedDelta run = run_of(g);
  return kStartsBytes + (gated_delta_chunks_fit(run) ? gated_delta_chunks_workspace_bytes(run) : 0);
}

void delta_map_backward_cuda(const DeltaMapBackward& g) {
  if (g.dstate.elements() == 0) return;
  const GatedDeltaBackward run = filled_run(g);
  gated_delta_chunks_fit(run) ? delta_map_backward_chunks(run, g.dstate) : delta_map_backward_plain(run, g.dstate);
}

size_t delta_map_backward_cuda_workspace_bytes(const DeltaMapBackward& g) {
  const GatedDeltaBackward run = run_of(g);
  return kStartsBytes + (gated_delta_chunks_fit(run) ? gated_delta_chunks_workspace_bytes(run) : 0);
}

}  // namespace hyscale
