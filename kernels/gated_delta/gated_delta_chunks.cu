// The chunk form on tensor cores, for bf16, heads of 128 and chunks of 64. Chunks are prepared in parallel; one pass over a head's chunks
// makes the states, which stay f32 in registers, with the columns split over two blocks; outputs are again parallel.
//
// Backward needs neither U nor W beyond that: with Y = T^T dV', T = (I + A)^-1 and f = -strict_lower(Y V'^T), F = f D,
//   X = T^T dW = -Y S^T,   dA = f,   Z = E (Q K^T) and H = dA A meet dG only in row and column sums, which are rows of products already made:
//   dQ = scale diag(g) dO S^T + E K,   dK = (diag(beta g) X + diag(beta) F K) + (E^T Q + diag(r) V' dS^T + F^T diag(beta) K) = plus + minus
//   dG = rowsum(Q dQ) + rowsum(K plus) - rowsum(K minus), and for the last token g_last <dS, S> + sum of rowsum(K (diag(r) V' dS^T)).
// Tokens beyond a document's end count as zeros with beta 0 and no decay.
#include "kernels/gated_delta/delta_chunks.cuh"

namespace hyscale {
namespace {

using delta_chunks::Inputs;
using delta_chunks::Memory;
using delta_chunks::Sizes;
using delta_chunks::memory_bytes;
using delta_chunks::take_memory;

bool in_pieces(const Tensor& x) {
  return !x.defined() || (x.dtype() == DType::bf16 && x.stride(0) % 8 == 0 && x.stride(1) % 8 == 0 && (x.device().is_meta() || reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0));
}

template <typename Op>
bool fits(const Op& g, std::initializer_list<Tensor> others) {
  return g.chunk == delta_chunks::kChunk && g.q.size(2) == delta_chunks::kDim && g.v.size(2) == delta_chunks::kDim && in_pieces(g.q) && in_pieces(g.k) && in_pieces(g.v) && std::all_of(others.begin(), others.end(), in_pieces);
}

}  // namespace

bool gated_delta_chunks_fit(const GatedDelta& g) { return fits(g, {g.o}); }
bool gated_delta_chunks_fit(const GatedDeltaBackward& g) { return fits(g, {g.dout, g.dq, g.dk, g.dv}); }
size_t gated_delta_chunks_workspace_bytes(const GatedDelta& g) { return memory_bytes(Sizes(g), false); }
size_t gated_delta_chunks_workspace_bytes(const GatedDeltaBackward& g) { return memory_bytes(Sizes(g), true); }

void gated_delta_chunks(const GatedDelta& g, const CarriedStates& before) {
  const Sizes n(g);
  if (n.tokens == 0) return;
  const cudaStream_t stream = stream_of(g.stream);
  const Inputs x(g);
  const Memory m = take_memory(g.workspace, n, false);
  delta_chunks::prepare(x, m, n, stream);
  delta_chunks::scan(x, m, ScanEnds(before), n, stream);
  delta_chunks::outputs(x, HeadRows<bf16>(g.o), m, n, stream);
  check_launch("gated_delta");
}

void gated_delta_chunks(const GatedDeltaBackward& g, const CarriedStates& before, const CarriedStates& dbehind) {
  const Sizes n(g);
  if (n.tokens == 0) return;
  const cudaStream_t stream = stream_of(g.stream);
  const Inputs x(g);
  const Memory m = take_memory(g.workspace, n, true);
  const HeadRows<bf16> dout(g.dout);
  delta_chunks::prepare(x, m, n, stream);
  delta_chunks::scan(x, m, ScanEnds(before), n, stream);
  delta_chunks::local_gradients(x, dout, m, n, stream);
  delta_chunks::reverse_scan(x, dout, m, ScanEnds(dbehind), n, stream);
  delta_chunks::gradients(x, {dout, HeadRows<bf16>(g.dq), HeadRows<bf16>(g.dk), HeadRows<bf16>(g.dv), g.dlog_decay.f32(), g.dbeta.f32()}, m, n, stream);
  check_launch("gated_delta_backward");
}

void delta_map_chunks(const GatedDelta& run, const Tensor& map, const Tensor& state) {
  const Sizes n(run);
  const cudaStream_t stream = stream_of(run.stream);
  const Inputs x(run);
  const Memory m = take_memory(run.workspace, n, false);
  ScanEnds ends;
  ends.last = state.f32();
  if (map.defined()) ends.map = map.f32();
  delta_chunks::prepare(x, m, n, stream);
  delta_chunks::scan(x, m, ends, n, stream);
  check_launch("delta_map");
}

void delta_map_backward_chunks(const GatedDeltaBackward& run, const Tensor& dstate) {
  const Sizes n(run);
  const cudaStream_t stream = stream_of(run.stream);
  const Inputs x(run);
  const Memory m = take_memory(run.workspace, n, true);
  const HeadRows<bf16> dout(run.dout);
  ScanEnds ends;
  ends.last = dstate.f32();
  delta_chunks::prepare(x, m, n, stream);
  delta_chunks::local_gradients(x, dout, m, n, stream);
  delta_chunks::reverse_scan(x, dout, m, ends, n, stream);
  check_launch("delta_map_backward");
}

}  // namespace hyscale
