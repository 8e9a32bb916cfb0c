// Mixture of experts: a router with selection bias, or experts by a table of the tokens (hash routing, whose gate gives the
// weights alone); dropless experts as grouped products; shared experts.
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
  float limit = kNoLimit;         // of the experts' SwiGLU
  MlpNames names;
  std::string bias_name = "e_score_correction_bias";
  int64_t hash_vocabulary = 0;    // above 0: experts by token, from gate.tid2eid [hash_vocabulary, K]
  bool fused_experts = false;     // experts.gate_up_proj and experts.down_proj are one tensor each in files
  int expert_rank = 0, expert_ranks = 1;  // this rank's place among those that share out the experts
  int64_t local_experts() const { return num_experts / expert_ranks; }
};

class Moe {
 public:
  // Throws UserError when expert_ranks does not divide num_experts, or is above 1 for fused experts. Hugging Face names: prefix + gate.weight,
  // gate.BIAS_NAME (none with softmax scores) or gate.tid2eid,
  // experts.E.{gate,up,down}.weight by `names`, shared_experts.*. Experts are packed: gate and up as one [E, 2 I, C], down as [E, C, I].
  Moe(ParameterStore&, const std::string& prefix, const MoeConfig&);

  // This layer's number among the model's MoE layers, and where its expert loads are counted, i64 [E] (training forwards only).
  void bind(size_t number, const Tensor& counts) { number_ = number, counts_ = counts; }
  // After a step; counts restart at 0. Without a bias only that.
  void update_bias(float rate, Stream);

  struct Saved {
    Tensor x, logits, experts, weights;  // [T, C], f32 [T, E], i32 [T, K], f32 [T, K]
    ExpertOrder order;
    ExpertExchange exchange;             // where experts are shared out
    Tensor expert_offsets;               // i32: rows of the experts here, R of them (T K where all experts are here)
    Tensor gate_up, rows_out;            // [R, 2 I], [T K, C]
    Mlp::Saved shared;
  };
  // y and d, its gradient, [T, C], are of the activation's or the residual's dtype.
  void forward(Context&, Pass, const Tensor& x, const Tensor& y, Saved&);
  void backward(Context&, const Tensor& d, const Tensor& dx, const Saved&);

 private:
  bool hashed() const { return config_.hash_vocabulary > 0; }
  bool shared_out() const { return config_.expert_ranks > 1; }
  Tensor expert_rows(Context&, const Tensor& rows, const ExpertExchange&) const;
  void route(Context&, Pass, Saved&);
  void backward_router(Context&, const Tensor& dweights, const Tensor& dx, const Saved&);

  MoeConfig config_;
  Parameter& gate_;
  Parameter* selector_;  // the bias, or the table of tokens; null: neither
  Parameter &gate_up_, &down_;
  std::optional<Mlp> shared_;
  size_t number_ = 0;
  Tensor counts_;
};

}  // namespace hyscale
