// The same op on the CPU and on a CUDA device, on the same inputs: what a test of a CUDA form is made of.
#pragma once
#include <vector>

#include "tests/support/device_tensors.h"

#define SKIP_WITHOUT_CUDA() \
  if (::hyscale::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device"

namespace hyscale::test {

// A host tensor and its copy on the device. f32 values that the device holds as bf16 are rounded on the host too, so both forms
// read the same numbers.
class Both {
 public:
  Both(HostTensor host, DType on_device) : host_(on_device == DType::bf16 && host.t().dtype() == DType::f32 ? rounded(std::move(host)) : std::move(host)), device_(host_, on_device) {}
  const Tensor& operator[](Device d) const { return d.is_cuda() ? static_cast<const Tensor&>(device_) : host_.t(); }
  const HostTensor& host() const { return host_; }
  HostTensor download() const { return device_.download(); }

 private:
  HostTensor host_;
  DeviceTensor device_;
};
inline Both in_bf16(HostTensor x) { return {std::move(x), DType::bf16}; }
inline Both as_is(HostTensor x) {
  const DType type = x.t().dtype();
  return {std::move(x), type};
}
// Outputs: NaN on both sides until written.
inline Both bf16_out(Shape shape) { return in_bf16(HostTensor(shape)); }
inline Both f32_out(Shape shape) { return as_is(HostTensor(shape)); }

// Calls op(device, workspace), workspace_bytes(device) bytes full of NaN, for each device in turn.
template <typename Bytes, typename Op>
void on_both(Bytes workspace_bytes, Op op) {
  const HostTensor host = workspace(workspace_bytes(Device{}));
  op(Device{}, host.t());
  const DeviceTensor device(DType::u8, {static_cast<int64_t>(workspace_bytes(kCuda))});
  op(kCuda, static_cast<const Tensor&>(device));
  synchronize(kCuda, {});
}
// Runs an op with workspace on the tensors of make(device).
template <typename Make, typename Params>
void on_both(Make make, size_t (*workspace_bytes)(const Params&), void (*run)(const Params&)) {
  on_both([&](Device d) { return workspace_bytes(make(d)); },
          [&](Device d, const Tensor& space) {
            Params params = make(d);
            params.workspace = space;
            run(params);
          });
}
template <typename Op>
void on_both(Op op) {
  op(Device{});
  op(kCuda);
  synchronize(kCuda, {});
}

// Half an ulp of bf16 is 2^-9 relative, 1.1e-3 in the mean square; a difference on the way may move a value to its neighbour.
inline constexpr double kBf16 = 3e-3;
inline constexpr double kF32 = 1e-5;

}  // namespace hyscale::test

#define EXPECT_AS_ON_CPU(both, tolerance) EXPECT_CLOSE((both).download(), ::hyscale::test::doubles((both).host()), tolerance) << #both
#define EXPECT_SAME_AS_ON_CPU(both) EXPECT_TRUE(::hyscale::test::same_bits((both).download(), (both).host())) << #both
