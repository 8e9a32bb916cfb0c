// Deterministic index loss on Hopper in two halves: walks over queries give the loss, dq, dweights and the gradients of scores, then rows
// of dkeys are added to in fixed point, 1 KiB each, once for a few neighbouring queries. A launch runs the first half of some queries together with
// the second half of those before them.
#include "kernels/common/op.h"
#include "kernels/index_loss/query_walk.cuh"
#include "kernels/index_loss/united_rows.cuh"

namespace hyscale {
namespace {

using namespace index_halves;

// Blocks: of every kQueries + segments, kQueries walk over a query each and the others add a segment of a group of as many queries. Groups come in
// the order of their segments, so that the sums being added to at a time fit the L2 cache.
template <int kHeads>
__global__ void __launch_bounds__((kHeads / 32 + 1) * kGroup, kHeads == 32 ? 2 : 1) two_halves(const IndexLossArguments a, Queries walked, Queries added, int segments) {
  extern __shared__ unsigned char raw[];
  unsigned char* shared = raw + (1024 - shared_address(raw) % 1024) % 1024;
  constexpr int kQueries = UnitedShared<kHeads>::kQueries;
  const int period = kQueries + segments, number = static_cast<int>(blockIdx.x) / period, place = static_cast<int>(blockIdx.x) % period;
  if (place < kQueries) {
    const int64_t t = walked.first + number * kQueries + place;
    if (t < walked.last) walk_query<kHeads / 32>(shared, a, walked, t);
  } else {
    const int groups = static_cast<int>((added.last - added.first + kQueries - 1) / kQueries), at = number * segments + place - kQueries;
    if (at < groups * segments) add_united<kHeads>(shared, a, added, added.first + at % groups * kQueries, at / groups, segments);
  }
}

// Queries of a launch. Where dkeys is large every launch brings it into the L2 cache once, so there are fewer.
int64_t queries_at_a_time(int64_t queries, int segments) { return std::min<int64_t>(queries, segments <= 2 ? 1024 : 4096); }

// Sums of dkeys of a segment, 16 MiB, stay in the L2 cache; a segment has at least 64 selected keys of a query.
int key_segments(int64_t rows, int64_t k) {
  const int64_t bytes = rows * kDims * 8, most = std::max<int64_t>(1, k / 64);
  return static_cast<int>(std::min(most, (bytes + (int64_t{1} << 24) - 1) >> 24));
}

template <int kHeads>
void launch(const IndexLossArguments& a, int64_t queries, int64_t rows, Workspace workspace, cudaStream_t stream) {
  constexpr int kQueries = UnitedShared<kHeads>::kQueries;
  const size_t shared = std::max(walk_shared_bytes<kHeads / 32>(a.k), sizeof(UnitedShared<kHeads>)) + 1024;
  const auto kernel = two_halves<kHeads>;
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  HYSCALE_CHECK(status == cudaSuccess, "index loss needs ", shared, " bytes of shared memory: ", cudaGetErrorString(status));
  const int segments = key_segments(rows, a.k);
  const int64_t at_a_time = queries_at_a_time(queries, segments);
  Queries walked{}, added{};
  const auto take = [&] { return Queries{0, 0, workspace.take<float>(at_a_time * a.k), workspace.take<uint8_t>(at_a_time * a.k * kHeads / 8)}; };
  walked = take(), added = take();
  for (int64_t first = 0; first < queries + at_a_time; first += at_a_time) {
    walked.first = std::min(first, queries), walked.last = std::min(first + at_a_time, queries);
    const int64_t groups = (std::max(walked.last - walked.first, added.last - added.first) + kQueries - 1) / kQueries;
    if (groups > 0) kernel<<<static_cast<unsigned>(groups * (kQueries + segments)), (kHeads / 32 + 1) * kGroup, shared, stream>>>(a, walked, added, segments);
    std::swap(walked, added);
  }
}

}  // namespace

size_t index_loss_two_halves_workspace_bytes(const IndexLoss& l) {
  const int64_t k = l.selection.indices.size(1), queries = queries_at_a_time(l.q.size(0), key_segments(l.keys.size(0), k));
  const size_t pairs = static_cast<size_t>(queries * k);
  return 2 * (aligned_bytes(pairs * sizeof(float)) + aligned_bytes(pairs * static_cast<size_t>(l.q.size(1)) / 8));
}

void index_loss_two_halves(const IndexLossArguments& a, int64_t queries, int64_t rows, const Workspace& workspace, cudaStream_t stream) {
  (a.heads == 32 ? launch<32> : launch<64>)(a, queries, rows, workspace, stream);
}

}  // namespace hyscale
