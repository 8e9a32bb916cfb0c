#include "kernels/gemm/gemm.h"
#include "kernels/gemm/grouped_gemm.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::as_is;
using test::Both;
using test::HostTensor;

size_t workspace_bytes(Device d) { return d.is_cuda() ? kGemmWorkspaceBytes : 0; }

void expect_as_on_cpu(DType in, DType out, Shape a_shape, Shape b_shape, Shape c_shape, bool ta, bool tb, float beta) {
  SCOPED_TRACE(concat(dtype_name(in), " to ", dtype_name(out), ", a ", to_string(a_shape), ta ? "^T" : "", ", b ", to_string(b_shape), tb ? "^T" : "", ", beta ", beta));
  const Both a(test::random(a_shape, 1), in), b(test::random(b_shape, 2), in), c(beta == 0 ? HostTensor(c_shape) : test::random(c_shape, 3), out);
  test::on_both(workspace_bytes, [&](Device d, const Tensor& space) {
    gemm({.a = a[d], .b = b[d], .c = c[d], .transpose_a = ta, .transpose_b = tb, .alpha = 0.5f, .beta = beta, .workspace = space});
  });
  EXPECT_AS_ON_CPU(c, out == DType::bf16 ? test::kBf16 : test::kF32);
}

TEST(GemmCuda, EveryTranspositionTypeAndSize) {
  SKIP_WITHOUT_CUDA();
  for (const auto& [in, out] : {std::pair{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f32, DType::f32}})
    for (int64_t m : {0, 1, 7, 129})
      for (int64_t n : {1, 65, 128})
        for (int64_t k : {0, 1, 3, 128})
          for (int form = 0; form < 4; ++form) {
            const bool ta = form & 1, tb = form & 2;
            expect_as_on_cpu(in, out, ta ? Shape{k, m} : Shape{m, k}, tb ? Shape{n, k} : Shape{k, n}, {m, n}, ta, tb, form == 1 ? 0.0f : 2.0f);
          }
}

TEST(GemmCuda, BatchesOfStridedHeadsAndASharedOperand) {
  SKIP_WITHOUT_CUDA();
  const int64_t tokens = 9, heads = 3, wide = 24, from = 16, to = 8;
  const Both x = test::in_bf16(test::random({tokens, heads, wide}, 1)), w = test::in_bf16(test::random({heads, from, to}, 2)), shared = test::in_bf16(test::random({tokens, from}, 3));
  const Both y = test::bf16_out({tokens, heads, to}), z = test::bf16_out({tokens, heads, to});
  test::on_both(workspace_bytes, [&](Device d, const Tensor& space) {
    const auto heads_first = [&](const Tensor& t, int64_t width) { return Tensor(t.raw(), t.dtype(), d, {heads, tokens, width}, {t.stride(1), t.stride(0), 1}); };
    gemm({.a = heads_first(x[d].slice(2, 8, 24), from), .b = w[d], .c = heads_first(y[d], to), .workspace = space});
    const Tensor same(shared[d].raw(), shared[d].dtype(), d, {heads, tokens, from}, {0, from, 1});
    gemm({.a = same, .b = w[d], .c = heads_first(z[d], to), .workspace = space});
  });
  EXPECT_AS_ON_CPU(y, test::kBf16);
  EXPECT_AS_ON_CPU(z, test::kBf16);
}

void expect_groups_as_on_cpu(DType type, int64_t n, int64_t k, std::vector<int32_t> offsets, int64_t rows) {
  SCOPED_TRACE(concat(dtype_name(type), ", n ", n, ", k ", k, ", ", rows, " rows"));
  const int64_t experts = static_cast<int64_t>(offsets.size()) - 1, used = offsets.back();
  const Both at = as_is(test::ints({experts + 1}, offsets)), x(test::random({rows, k}, 1), type), w(test::random({experts, n, k}, 2), type);
  const Both dy(test::random({rows, n}, 3), type), y(test::filled({rows, n}, 7), type), dx(test::filled({rows, k}, 7), type);
  const Both dw = as_is(test::filled({experts, n, k}, 1));
  test::on_both([&](Device d) {
    grouped_gemm_forward({x[d], w[d], y[d], at[d], {}});
    grouped_gemm_dgrad({dx[d], w[d], dy[d], at[d], {}});
    grouped_gemm_wgrad({x[d], dw[d], dy[d], at[d], {}});
  });
  const double tolerance = type == DType::bf16 ? test::kBf16 : test::kF32;
  EXPECT_AS_ON_CPU(y, tolerance);
  EXPECT_AS_ON_CPU(dx, tolerance);
  EXPECT_AS_ON_CPU(dw, test::kF32);
  const HostTensor left_alone = y.download();
  for (int64_t i = used * n; i < rows * n; ++i) ASSERT_EQ(left_alone[i], 7) << "row " << i / n << " of " << used;
}

TEST(GroupedGemmCuda, GroupsOfEverySize) {
  SKIP_WITHOUT_CUDA();
  for (DType type : {DType::bf16, DType::f32})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 8}, {136, 72}, {128, 256}, {256, 256}, {520, 328}}) {
      expect_groups_as_on_cpu(type, n, k, {0, 0, 0}, 0);
      expect_groups_as_on_cpu(type, n, k, {0, 1}, 1);
      expect_groups_as_on_cpu(type, n, k, {0, 0, 6, 7, 11}, 13);
      expect_groups_as_on_cpu(type, n, k, {0, 128, 128, 257, 300}, 300);
    }
  expect_groups_as_on_cpu(DType::f32, 9, 5, {0, 3, 7}, 8);
}

TEST(GroupedGemmCuda, WidthsThatDoNotFitAreNamed) {
  SKIP_WITHOUT_CUDA();
  const Both at = as_is(test::ints({2}, {0, 1})), x = test::in_bf16(test::random({1, 12}, 1)), w = test::in_bf16(test::random({1, 8, 12}, 2)), y = test::bf16_out({1, 8});
  EXPECT_THROW(grouped_gemm_forward({x[test::kCuda], w[test::kCuda], y[test::kCuda], at[test::kCuda], {}}), InternalError);
}

}  // namespace
}  // namespace hyscale
