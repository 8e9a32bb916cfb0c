#include "kernels/elementwise/elementwise.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

TEST(ElementwiseCuda, AddAndScale) {
  SKIP_WITHOUT_CUDA();
  for (DType type : {DType::f32, DType::bf16})
    for (int64_t n : {0, 1, 7, 8, 4099}) {
      const Both a(test::random({n}, 1), type), b(test::random({n}, 2), type), y(HostTensor({n}), type), in_place(a.host(), type), scaled(a.host(), type);
      test::on_both([&](Device d) {
        add(y[d], a[d], b[d], {});
        add(in_place[d], in_place[d], b[d], {});
        scale(scaled[d], 0.3f, {});
      });
      EXPECT_AS_ON_CPU(y, type == DType::f32 ? 0 : test::kBf16);
      EXPECT_TRUE(test::same_bits(in_place.download(), y.download()));
      EXPECT_AS_ON_CPU(scaled, type == DType::f32 ? 0 : test::kBf16);
    }
}

TEST(ElementwiseCuda, AddToAnF32StreamRoundsNothing) {
  SKIP_WITHOUT_CUDA();
  for (int64_t n : {0, 1, 7, 8, 4099}) {
    const Both a = test::as_is(test::random({n}, 1)), b = test::in_bf16(test::random({n}, 2)), y = test::f32_out({n}), in_place = test::as_is(a.host());
    test::on_both([&](Device d) {
      add(y[d], a[d], b[d], {});
      add(in_place[d], in_place[d], b[d], {});
    });
    EXPECT_SAME_AS_ON_CPU(y);
    EXPECT_SAME_AS_ON_CPU(in_place);
  }
}

TEST(ElementwiseCuda, CastsOfStridedViewsRoundToNearestEven) {
  SKIP_WITHOUT_CUDA();
  for (int64_t rows : {0, 1, 5})
    for (int64_t columns : {1, 8, 17}) {
      const Both wide = test::as_is(test::random({rows, 3, columns + 4}, 1)), half = test::as_is(HostTensor(DType::bf16, {rows, 3, columns})), back = test::f32_out({rows, 3, columns + 2});
      test::on_both([&](Device d) {
        fill_bytes(back[d], 0, {});
        cast(half[d], wide[d].slice(2, 4, 4 + columns), {});
        cast(back[d].slice(2, 2, 2 + columns), half[d], {});
      });
      EXPECT_SAME_AS_ON_CPU(back);
    }
}

}  // namespace
}  // namespace hyscale
