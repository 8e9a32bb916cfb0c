#include "kernels/gemm/grouped_gemm.h"

#include "kernels/common/op.h"
#include "kernels/gemm/gemm.h"

namespace hyscale {

void grouped_gemm_forward_cuda(const GroupedGemm&);
void grouped_gemm_dgrad_cuda(const GroupedGemm&);
void grouped_gemm_wgrad_cuda(const GroupedGemm&);

namespace {

void check(const GroupedGemm& g) {
  HYSCALE_CHECK(g.x.rank() == 2 && g.w.rank() == 3 && g.y.rank() == 2 && g.x.size(0) == g.y.size(0) && g.w.size(1) == g.y.size(1) &&
                    g.w.size(2) == g.x.size(1),
                "x ", to_string(g.x), ", w ", to_string(g.w), ", y ", to_string(g.y));
  check_tensor(g.offsets, "offsets", DType::i32, {g.w.size(0) + 1});
}

// Calls product(x rows, w of the expert, y rows) for each expert with rows.
template <typename Product>
void for_each_group(const GroupedGemm& g, Product product) {
  const int32_t* offsets = g.offsets.i32();
  for (int64_t e = 0; e < g.w.size(0); ++e) {
    const int64_t begin = offsets[e], end = offsets[e + 1];
    HYSCALE_CHECK(0 <= begin && begin <= end && end <= g.x.size(0), "expert ", e, " has rows ", begin, " to ", end, " of ", g.x.size(0));
    if (begin < end) product(g.x.slice(0, begin, end), g.w.select(0, e), g.y.slice(0, begin, end));
  }
}

void forward_ref(const GroupedGemm& g) {
  for_each_group(g, [](const Tensor& x, const Tensor& w, const Tensor& y) { gemm({.a = x, .b = w, .c = y, .transpose_b = true}); });
}
void dgrad_ref(const GroupedGemm& g) {
  for_each_group(g, [](const Tensor& x, const Tensor& w, const Tensor& y) { gemm({.a = y, .b = w, .c = x}); });
}
void wgrad_ref(const GroupedGemm& g) {
  for_each_group(g, [](const Tensor& x, const Tensor& w, const Tensor& y) { gemm({.a = y, .b = x, .c = w, .transpose_a = true, .beta = 1}); });
}

}  // namespace

void grouped_gemm_forward(const GroupedGemm& g) {
  check(g);
  HYSCALE_DISPATCH("grouped_gemm_forward", g.x.device(), forward_ref(g), grouped_gemm_forward_cuda(g));
}
void grouped_gemm_dgrad(const GroupedGemm& g) {
  check(g);
  HYSCALE_DISPATCH("grouped_gemm_dgrad", g.x.device(), dgrad_ref(g), grouped_gemm_dgrad_cuda(g));
}
void grouped_gemm_wgrad(const GroupedGemm& g) {
  check(g);
  HYSCALE_CHECK(g.w.dtype() == DType::f32, "weight gradients are f32, not ", dtype_name(g.w.dtype()));
  HYSCALE_DISPATCH("grouped_gemm_wgrad", g.x.device(), wgrad_ref(g), grouped_gemm_wgrad_cuda(g));
}

}  // namespace hyscale
