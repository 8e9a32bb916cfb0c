// Rows as e4m3 on CUDA against the CPU form, bit for bit.
#include "kernels/quantize_rows/quantize_rows.h"
#include "tests/support/device_tensors.h"

namespace hyscale {
namespace {

using test::DeviceTensor;
using test::HostTensor;

TEST(QuantizeRowsCuda, EqualsTheReferenceBitForBit) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const auto& [rows, dims] : std::vector<std::pair<int64_t, int64_t>>{{0, 128}, {1, 1}, {65, 128}, {1000, 37}, {70000, 128}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      HostTensor x = test::random({rows, dims}, static_cast<uint64_t>(rows)), q(DType::f8e4m3, {rows, dims}), scales({rows});
      for (int64_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i / dims % 60) - 30);
      for (int64_t d = 0; rows > 1 && d < dims; ++d) x[d] = d % 2 ? 448 : 0, x[dims + d] = d == dims / 2 ? NAN : 1;
      if (dtype == DType::bf16) x = test::rounded(x);
      quantize_rows({x, q, scales, {}});
      const DeviceTensor on_device(x, dtype), device_q(DType::f8e4m3, {rows, dims}), device_scales(DType::f32, {rows});
      quantize_rows({on_device, device_q, device_scales, {}});
      const HostTensor got_q = device_q.download(), got_scales = device_scales.download();
      for (int64_t i = 0; i < rows; ++i) {
        ASSERT_TRUE(got_scales[i] == scales[i] || (std::isnan(got_scales[i]) && std::isnan(scales[i]))) << rows << " rows of " << dims << ", row " << i;
        for (int64_t d = 0; d < dims && !std::isnan(scales[i]); ++d)
          ASSERT_EQ(got_q.t().data<uint8_t>()[i * dims + d], q.t().data<uint8_t>()[i * dims + d]) << rows << " rows of " << dims << ", row " << i << ", column " << d;
      }
    }
}

}  // namespace
}  // namespace hyscale
