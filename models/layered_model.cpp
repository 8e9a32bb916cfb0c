#include "models/layered_model.h"

#include "core/memory.h"

namespace hyscale {

void LayeredModel::after_step(bool applied, Stream stream) {
  if (!counts_.defined()) return;
  if (applied && router_bias_update_rate_ != 0)
    for (Moe* moe : moe_layers_) moe->update_bias(router_bias_update_rate_, stream);
  else
    zero(counts_, stream);
}

int64_t LayeredModel::num_active_elements() const {
  int64_t active = 0;
  for (const Parameter& p : store_.all()) {
    if (&p == embedding_ || p.integer || is_looked_up(p) || p.name.starts_with(mtp_prefix())) continue;
    const int64_t n = p.whole_elements();
    active += p.cut == Cut::experts ? n / experts().num_experts * experts().rule.k : n;
  }
  return active;
}

std::vector<Tensor> LayeredModel::make_constants(Context& ctx, std::span<const std::vector<float>> frequencies) {
  size_t bytes = 0;
  for (const std::vector<float>& f : frequencies) bytes += (f.size() * sizeof(float) + 255) / 256 * 256;
  const int64_t layers = static_cast<int64_t>(moe_layers_.size());
  constants_ = Buffer(ctx.device, bytes + static_cast<size_t>(layers * experts().num_experts) * sizeof(int64_t), "rope frequencies and expert counters");
  const auto at = [&](size_t offset) { return ctx.device.is_meta() ? nullptr : static_cast<char*>(constants_.data()) + offset; };
  std::vector<Tensor> placed;
  bytes = 0;
  for (const std::vector<float>& f : frequencies) {
    placed.emplace_back(at(bytes), DType::f32, ctx.device, Shape{static_cast<int64_t>(f.size())});
    copy_bytes(placed.back().raw(), ctx.device, f.data(), Device{}, f.size() * sizeof(float), ctx.stream);
    bytes += (f.size() * sizeof(float) + 255) / 256 * 256;
  }
  synchronize(ctx.device, ctx.stream);
  if (layers == 0) return placed;
  counts_ = Tensor(at(bytes), DType::i64, ctx.device, {layers, experts().num_experts});
  zero(counts_, ctx.stream);
  for (int64_t i = 0; i < layers; ++i) moe_layers_[static_cast<size_t>(i)]->bind(static_cast<size_t>(i), counts_.select(0, i));
  return placed;
}

}  // namespace hyscale
