// Mixture of experts: sigmoid router with selection bias, dropless experts as grouped products, shared experts.
//   y = sum over chosen e of g_e F_e(x) + F_shared(x)
#pragma once
#include <optional>

#include "kernels/router/router.h"
#include "models/layers/expert_exchange.h"
#include "models/layers/mlp.h"

namespace hyscale {

struct MoeConfig {
  int64_t hidden_size = 0, intermediate_size = 0;  // of one expert
  int64_t num_experts = 0, num_shared_experts = 0;
  RouterRule rule;
  int expert_rank = 0, expert_ranks = 1;  // this rank's place among those that share out the experts
  int64_t local_experts() const { return num_experts / expert_ranks; }
};

class Moe {
 public:
  // Throws UserError when expert_ranks does not divide num_experts. Hugging Face names: prefix + gate.weight, gate.e_score_correction_bias, experts.E.{gate,up,down}_proj.weight,
  // shared_experts.*. Experts are packed: gate and up as one [E, 2 I, C], down as [E, C, I].
  Moe(ParameterStore&, const std::string& prefix, const MoeConfig&);

  // This layer's number among the model's MoE layers, and where its expert loads are counted, i64 [E] (training forwards only).
  void bind(size_t number, const Tensor& counts) { number_ = number, counts_ = counts; }
  void update_bias(float rate, Stream stream) { router_bias_update(bias_.value, counts_, rate, stream); }

  struct Saved {
    Tensor x, logits, experts, weights;  // [T, C], f32 [T, E], i32 [T, K], f32 [T, K]
    ExpertOrder order;
    ExpertExchange exchange;             // where experts are shared out
    Tensor expert_offsets;               // i32: rows of the experts here, R of them (T K where all experts are here)
    Tensor gate_up, rows_out;            // [R, 2 I], [T K, C]
    Mlp::Saved shared;
  };
  void forward(Context&, Pass, const Tensor& x, const Tensor& y, Saved&);
  void backward(Context&, const Tensor& dy, const Tensor& dx, const Saved&);

 private:
  bool shared_out() const { return config_.expert_ranks > 1; }
  Tensor expert_rows(Context&, const Tensor& rows, const ExpertExchange&) const;
  void route(Context&, Pass, Saved&);
  void backward_router(Context&, const Tensor& dweights, const Tensor& dx, const Saved&);

  MoeConfig config_;
  Parameter &gate_, &bias_, &gate_up_, &down_;
  std::optional<Mlp> shared_;
  size_t number_ = 0;
  Tensor counts_;
};

}  // namespace hyscale
