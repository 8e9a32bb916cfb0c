#include "kernels/flash_topk/flash_topk.h"

#include "core/memory.h"
#include "kernels/common/op.h"
#include "kernels/flash_topk/flash_topk_cuda.h"
#include "kernels/flash_topk/flash_topk_ref.h"

namespace hyscale {

void flash_topk_begin_cuda(FlashTopKState&, Stream);
void flash_topk_update_cuda(FlashTopKState&, const FlashTopKUpdate&);
void flash_topk_finish_cuda(const FlashTopKState&, const Selection& out, Stream);

namespace {

void check_state(const FlashTopKState& s) {
  HYSCALE_CHECK(s.k >= 1, "k is ", s.k);
  check_tensor(s.scores, "scores", DType::f32, {-1, s.k});
  check_tensor(s.indices, "indices", DType::i32, s.scores.shape());
  check_tensor(s.counts, "counts", DType::i32, {s.scores.size(0)});
  check_tensor(s.nan_query, "nan_query", DType::i32, {1});
}

void check_update(const FlashTopKState& s, const FlashTopKUpdate& u) {
  check_state(s);
  const int64_t queries = s.counts.size(0);
  HYSCALE_CHECK(u.q.rank() == 3 && u.q.size(0) == queries && u.q.is_contiguous(), "q is ", to_string(u.q), " for ", queries, " queries");
  HYSCALE_CHECK(u.keys.rank() == 2 && u.keys.size(1) == u.q.size(2) && u.keys.stride(1) == 1 && u.keys.dtype() == u.q.dtype(), "keys are ", to_string(u.keys), ", q ",
                to_string(u.q));
  const bool scaled = u.q.dtype() == DType::f8e4m3;
  HYSCALE_CHECK(scaled == u.q_scales.defined() && scaled == u.key_scales.defined(), "q is ", to_string(u.q), u.q_scales.defined() ? " with" : " without", " q_scales and",
                u.key_scales.defined() ? " with" : " without", " key_scales; f8e4m3 has both, others have none");
  if (scaled) {
    check_tensor(u.q_scales, "q_scales", DType::f32, {queries, u.q.size(1)});
    check_tensor(u.key_scales, "key_scales", DType::f32, {u.keys.size(0)});
    HYSCALE_CHECK(u.q_scales.is_contiguous() && u.key_scales.is_contiguous(), "q_scales and key_scales are contiguous");
  }
  if (u.weights.defined()) check_tensor(u.weights, "weights", DType::f32, {queries, u.q.size(1)});
  check_tensor(u.begin, "begin", DType::i32, {queries});
  check_tensor(u.end, "end", DType::i32, {queries});
  HYSCALE_CHECK(u.first_key >= 0 && u.first_key + u.keys.size(0) <= INT32_MAX, "keys ", u.first_key, " to ", u.first_key + u.keys.size(0));
}

void begin_ref(const FlashTopKState& s) {
  zero(s.counts, {});
  s.nan_query.i32()[0] = static_cast<int32_t>(s.counts.size(0));
}

}  // namespace

void flash_topk_begin(FlashTopKState& s, Stream stream) {
  check_state(s);
  (void)stream;
  HYSCALE_DISPATCH("flash_topk", s.counts.device(), begin_ref(s), flash_topk_begin_cuda(s, stream));
}

void flash_topk_update(FlashTopKState& s, const FlashTopKUpdate& u) {
  check_update(s, u);
  if (s.counts.size(0) == 0 || u.keys.size(0) == 0) return;
  HYSCALE_DISPATCH("flash_topk", s.counts.device(), flash_topk_update_ref(s, u), flash_topk_update_cuda(s, u));
}

size_t flash_topk_update_workspace_bytes(const FlashTopKState& s, const FlashTopKUpdate& u) {
  if (u.q.dtype() == DType::f32 || (u.q.dtype() == DType::f8e4m3 && u.q.device().is_cpu())) return flash_topk_update_ref_workspace_bytes(s, u);
  return aligned_bytes(sizeof(int32_t)) + aligned_bytes(static_cast<size_t>(topk::list_bytes(u, s.k)));
}

void flash_topk_finish(const FlashTopKState& s, const Selection& out, Stream stream) {
  check_state(s);
  check_tensor(out.indices, "indices", DType::i32, s.indices.shape());
  check_tensor(out.counts, "counts", DType::i32, s.counts.shape());
  (void)stream;
  HYSCALE_DISPATCH("flash_topk", s.counts.device(), flash_topk_finish_ref(s, out), flash_topk_finish_cuda(s, out, stream));
}

int64_t flash_topk_nan_query(const FlashTopKState& s, Stream stream) {
  if (s.counts.device().is_meta()) return -1;
  int32_t query = 0;
  copy_bytes(&query, Device{}, s.nan_query.raw(), s.nan_query.device(), sizeof query, stream);
  synchronize(s.nan_query.device(), stream);
  return query == s.counts.size(0) ? -1 : query;
}

}  // namespace hyscale
