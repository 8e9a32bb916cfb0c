// FlashTopK on Hopper. Keys are the rows and 256 (query, head) pairs the columns of a matrix product. Four kinds of warps share
// a persistent block, each a loop over the block's tasks (a task is the queries of 256 pairs):
//
//   loader     1 warp         fetches tasks, feeds queries and key tiles through TMA
//   scorers    2 warpgroups   take turns on the tensor cores, one multiplying while the other adds up heads; scores of 64
//                             keys go to a slot in shared memory
//   keepers    1 to 4 warps   append what beats a query's threshold to its list
//   selectors  the rest of 8  cut lists to their k best (select.cuh) and raise thresholds, while scoring goes on
//
// Lists lie in global memory (they stay in L2): what the last selection kept, and a ring of what came since. A stale
// threshold only lets too much in, so keepers wait for selectors just when a ring is full, and one task's last selection
// runs under the next task's scoring.
//
// Columns are ordered so that all heads of a query lie in one thread: column 8 j + 2 c + e of lane c in a quad is head
// 2 (j % (H/2)) + e of query 4 (j / (H/2)) + c. A score is (sum of even heads) + (sum of odd heads), each in order, so its
// bits depend on the rows of q, w and keys alone.
#include "kernels/common/op.h"
#include "kernels/flash_topk/keeper.cuh"
#include "kernels/flash_topk/loader.cuh"
#include "kernels/flash_topk/scorer.cuh"
#include "kernels/flash_topk/selector.cuh"

namespace hyscale {

void flash_topk_update_plain_cuda(FlashTopKState&, const FlashTopKUpdate&, void* lists);

namespace {

using namespace hopper;
using topk::Candidate;
using topk::kKeyTile;
using topk::Problem;

constexpr int kThreads = 512;  // warps 0: loader, then keepers, selectors to 7, 8-15: scorers

template <typename Form>
__global__ void __launch_bounds__(kThreads, 1) flash_topk_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap key_map, const __grid_constant__ Problem p) {
  using SharedMemory = topk::Shared<Form>;
  extern __shared__ __align__(1024) char raw[];
  auto& s = *reinterpret_cast<SharedMemory*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Form::kStages; ++i) barrier_init(&s.full[i], 1), barrier_init(&s.empty[i], 2);
    for (int i = 0; i < Form::kSlots; ++i) barrier_init(&s.slot_full[i], Form::kByColumns ? 8 : 4), barrier_init(&s.slot_empty[i], Form::kKeepers);
    for (int i = 0; i < 2; ++i) barrier_init(&s.task_full[i], 1), barrier_init(&s.task_empty[i], 15);
    barrier_init(&s.q_full, 1);
    barrier_init(&s.q_empty, 2);
    fence_to_async();
  }
  for (int q = threadIdx.x; q < SharedMemory::kQueries; q += kThreads) {
    s.progress[0][q] = s.progress[1][q] = 0;
    s.tail[q] = s.head[q] = s.finished[q] = 0;
  }
  __syncthreads();
  constexpr int kFirstBranch = Form::kByColumns ? 128 : 256;
  if (threadIdx.x < kFirstBranch) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Form::kFirstRegisters));
    if (threadIdx.x < 32)
      topk::Loader<Form>{s, p, &q_map, &key_map}.run();
    else if (Form::kByColumns || threadIdx.x < 32 + 32 * Form::kKeepers)
      topk::Keeper<Form>{s, p}.run();
    else
      topk::Selector<Form>{s, p}.run();
  } else if (threadIdx.x < 256) {  // where the first warps have few registers; selectors need more
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Form::kSecondRegisters));
    if (threadIdx.x < 32 + 32 * Form::kKeepers)
      topk::Keeper<Form>{s, p}.run();
    else
      topk::Selector<Form>{s, p}.run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Form::kScorerRegisters));
    topk::Scorer<Form>{s, p}.run();
  }
}

// Boxes of four queries: dimensions, odd or even head, query, pair of heads. Maps count in elements of two bytes; what these hold is up to the products.
CUtensorMap map_of_queries(const Tensor& q) {
  const auto queries = static_cast<cuuint64_t>(q.size(0)), heads = static_cast<cuuint64_t>(q.size(1)), bytes = static_cast<cuuint64_t>(q.size(2)) * dtype_bytes(q.dtype());
  const cuuint64_t sizes[] = {bytes / 2, 2, queries, heads / 2}, steps[] = {bytes, heads * bytes, bytes * 2};
  const cuuint32_t box[] = {64, 2, 4, static_cast<cuuint32_t>(heads / 2)};
  return make_tensor_map(q.raw(), 4, sizes, steps, box);
}

int num_blocks() {
  int device = 0, processors = 0;
  check_cuda(cudaGetDevice(&device), "flash_topk");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "flash_topk");
  return std::min(processors, topk::kMostBlocks);
}

template <typename Number, int kHeads, int kDims, bool kWeighted>
void launch(const FlashTopKUpdate& u, const Problem& p) {
  using Form = topk::Form<Number, kHeads, kDims, kWeighted>;
  const auto kernel = flash_topk_kernel<Form>;
  constexpr int kBytes = sizeof(topk::Shared<Form>);
  static_assert(kBytes <= 232448);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "flash_topk");

  const CUtensorMap q_map = map_of_queries(u.q), key_map = map_of_rows(u.keys.raw(), u.keys.size(0), Form::kRowBytes / 2, u.keys.stride(0) * static_cast<int64_t>(dtype_bytes(u.keys.dtype())) / 2, kKeyTile);
  const int64_t tasks = (p.queries + Form::kQueries - 1) / Form::kQueries;
  kernel<<<static_cast<unsigned>(std::min<int64_t>(num_blocks(), tasks)), kThreads, kBytes, stream_of(u.stream)>>>(q_map, key_map, p);
  check_launch("flash_topk");
}

template <int kHeads, int kDims>
void launch_weighted(const FlashTopKUpdate& u, const Problem& p) {
  if constexpr (kHeads >= 8)
    u.weights.defined() ? launch<bf16, kHeads, kDims, true>(u, p) : launch<bf16, kHeads, kDims, false>(u, p);
  else
    launch<bf16, kHeads, kDims, false>(u, p);
}

void launch_shape(const FlashTopKUpdate& u, const Problem& p) {
  const int64_t heads = u.q.size(1), dims = u.q.size(2);
  if (u.q.dtype() == DType::f8e4m3) return heads == 32 ? launch<e4m3, 32, 128, true>(u, p) : launch<e4m3, 64, 128, true>(u, p);
  if (dims == 128 && heads == 32) return launch_weighted<32, 128>(u, p);
  if (dims == 128 && heads == 64) return launch_weighted<64, 128>(u, p);
  if (dims == 128 && heads == 4) return launch_weighted<4, 128>(u, p);
  if (dims == 64 && heads == 32) return launch_weighted<32, 64>(u, p);
  if (dims == 64 && heads == 64) return launch_weighted<64, 64>(u, p);
  if (dims == 64 && heads == 4) return launch_weighted<4, 64>(u, p);
  throw InternalError(concat("flash_topk has no tensor-core form for ", heads, " heads of ", dims));
}

}  // namespace

void flash_topk_update_cuda(FlashTopKState& s, const FlashTopKUpdate& u) {
  HYSCALE_CHECK(u.q.dtype() == DType::bf16 || u.q.dtype() == DType::f8e4m3, "q is ", to_string(u.q), "; expected bf16 or f8e4m3");
  HYSCALE_CHECK(s.k <= 4096, "k is ", s.k, ", at most 4096 on CUDA");
  Workspace workspace(u.workspace);
  Problem p{};
  p.weights = u.weights.defined() ? u.weights.f32() : nullptr;
  p.q_scales = u.q_scales.defined() ? u.q_scales.f32() : nullptr;
  p.key_scales = u.key_scales.defined() ? u.key_scales.f32() : nullptr;
  p.begin = u.begin.i32();
  p.end = u.end.i32();
  p.queries = u.q.size(0);
  p.num_keys = u.keys.size(0);
  p.first_key = u.first_key;
  p.k = static_cast<int>(s.k);
  p.ring = topk::ring_entries(s.k);
  p.list_entries = topk::list_entries(s.k);
  p.select_at = topk::select_at(s.k);
  p.state_scores = s.scores.f32();
  p.state_indices = s.indices.i32();
  p.state_counts = s.counts.i32();
  p.nan_query = s.nan_query.i32();
  p.next_task = workspace.take<int32_t>(1);
  p.lists = workspace.take<Candidate>(topk::list_bytes(u, s.k) / int64_t{sizeof(Candidate)});
  if (!topk::has_tensor_core_form(u)) return flash_topk_update_plain_cuda(s, u, p.lists);
  HYSCALE_CHECK(u.keys.stride(0) * static_cast<int64_t>(dtype_bytes(u.keys.dtype())) % 16 == 0 && reinterpret_cast<uintptr_t>(u.keys.raw()) % 16 == 0, "keys ", to_string(u.keys), " with rows of ", u.keys.stride(0),
                " elements: rows start at multiples of 16 bytes");
  check_cuda(cudaMemsetAsync(p.next_task, 0, sizeof(int32_t), stream_of(u.stream)), "flash_topk");
  launch_shape(u, p);
}

}  // namespace hyscale
