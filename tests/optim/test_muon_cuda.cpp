// An update of Muon and AdamW on the device against the same on the CPU.
#include "optim/optimizer.h"
#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::HostTensor;
using test::kCuda;

struct Trained {
  ParameterStore store;
  std::vector<double> values(const char* name, Device device) {
    const Tensor value = store.find(name)->value;
    HostTensor host(value.dtype(), value.shape());
    copy_bytes(host.t().raw(), {}, value.raw(), device, value.bytes(), {});
    synchronize(device, {});
    std::vector<double> out;
    for (int64_t i = 0; i < host.size(); ++i) out.push_back(value.dtype() == DType::bf16 ? bf16_to_float(host.t().data<uint16_t>()[i]) : host[i]);
    return out;
  }
};

void train(Trained& t, Device device) {
  t.store.add({.name = "heads", .shape = {4 * 24, 40}, .head_rows = {8, 16}});
  t.store.add({.name = "odd", .shape = {33, 7}});
  t.store.add(norm_weight("norm", 40));
  t.store.allocate(device, device.is_cuda() ? DType::bf16 : DType::f32);
  t.store.initialize(1, 0.1f);
  OptimizerOptions options{.weight_decay = 0.1, .clip_norm = 1};
  options.roles[static_cast<size_t>(ParameterRole::dense)].muon = true;
  options.muon.steps = quintic_steps(5, 0);
  Optimizer optimizer(t.store, options, device);
  const Buffer losses(device, sizeof(double), "test");
  const Tensor sums(losses.data(), DType::f64, device, {1});
  zero(sums, {});
  for (uint64_t step = 1; step <= 3; ++step) {
    for (const ShardPiece& p : t.store.own_pieces()) {
      const HostTensor g = test::random({p.grad.elements()}, step + std::hash<std::string>{}(p.parameter->name));
      copy_bytes(p.grad.raw(), device, g.t().raw(), {}, p.grad.bytes(), {});
      synchronize(device, {});
    }
    optimizer.update(0.5, sums, {});
    ASSERT_TRUE(optimizer.result({}).applied);
  }
}

TEST(MuonOptimizerCuda, ThreeUpdatesAreAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  Trained host, device;
  train(host, Device{});
  train(device, kCuda);
  for (const char* name : {"heads", "odd", "norm"}) {
    const std::vector<double> expected = host.values(name, Device{}), got = device.values(name, kCuda);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) difference += std::pow(got[i] - expected[i], 2), norm += std::pow(expected[i], 2);
    // Most of a value is updates by now; their directions come from products of bf16, each step of which may triple a rounding.
    EXPECT_LT(std::sqrt(difference / norm), 5e-2) << name;
  }
}

}  // namespace
}  // namespace hyscale
