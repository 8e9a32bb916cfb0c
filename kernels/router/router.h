// Expert router with a selection bias ("noaux_tc"; DeepSeek-V3, GLM-4.5 and later).
//   s = sigmoid(logits), sqrt(log(1 + exp(logits))) (DeepSeek-V4) or exp(logits) (softmax; Qwen3, normalized alone);  chosen = the k largest of s + bias (ties: lower expert), within the best groups where groups exist
//   weight_e = scaling * s_e / (sum over chosen of s + 1e-20)          (normalize), else scaling * s_e
// A group's score is the sum of its two best biased scores; experts outside the kept groups are not eligible.
// Backward, s^_e = s_e / sum: ds_e = scaling / sum * (dweight_e - sum over chosen of dweight * s^) for chosen e; dz = ds times the
// slope of the score: s (1 - s), sigmoid(z) / (2 s), or s.
#pragma once
#include "core/tensor.h"

namespace hyscale {

enum class RouterScore : uint8_t { sigmoid, sqrt_softplus, softmax };

struct RouterRule {
  int64_t k = 1;
  int64_t num_groups = 1, kept_groups = 1;
  bool normalize = true;
  float scaling = 1;
  RouterScore score = RouterScore::sigmoid;
};

struct Router {
  RouterRule rule;
  Tensor logits;   // f32 [T, E]
  Tensor bias;     // f32 [E]; absent with softmax, or where the experts are given
  Tensor experts;  // i32 [T, k], by biased score descending; with `given`, read instead of written
  Tensor weights;  // f32 [T, k]
  Tensor counts;   // i64 [E], accumulated into: tokens of each expert; or absent
  Stream stream;
  bool given = false;
};
void router(const Router&);

struct RouterBackward {
  RouterRule rule;
  Tensor logits, experts;
  Tensor dweights;  // f32 [T, k]
  Tensor dlogits;   // f32 [T, E], overwritten
  Stream stream;
};
void router_backward(const RouterBackward&);

// Experts by a table of the tokens (DeepSeek-V4's first layers): experts[t] = table[tokens[t]].
struct HashRoute {
  Tensor tokens;   // i32 [T]
  Tensor table;    // f32 [V, k], whole numbers
  Tensor experts;  // i32 [T, k], overwritten
  Stream stream;
};
void hash_route(const HashRoute&);

// Sequence balance loss of each document of T tokens (GLM-4.5, DeepSeek-V3), in two parts since a document may lie on
// several ranks, whose counts are summed in between:
//   s~ = s / sum over experts of s;  c_e = tokens of the document that have e among the k largest s (no bias, no groups)
//   loss_sum += sum over documents of E / (k T^2) * sum_e c_e sum_t s~[t, e]
//   dlogits += grad_scale * gradient (c_e counts as constant)
// The tokens here are P runs of one document each: run p is tokens run_starts[p] .. run_starts[p + 1] of document run_documents[p].
struct BalanceCounts {
  int64_t k = 1;
  Tensor logits;         // f32 [T, E]
  Tensor run_starts;     // i32 [P + 1]
  Tensor run_documents;  // i32 [P]
  Tensor counts;         // i64 [D, E], accumulated into: c_e of each document
  Stream stream;
  RouterScore score = RouterScore::sigmoid;
};
void balance_counts(const BalanceCounts&);

struct BalanceLoss {
  int64_t k = 1;
  Tensor logits, run_starts, run_documents;
  Tensor document_tokens;  // i32 [D]
  Tensor counts;           // i64 [D, E], of all tokens of the documents
  float grad_scale = 0;
  Tensor loss_sum;         // f64 [1], accumulated into
  Tensor dlogits;          // f32 [T, E], accumulated into
  Tensor workspace;
  Stream stream;
  RouterScore score = RouterScore::sigmoid;
};
void balance_loss(const BalanceLoss&);
size_t balance_loss_workspace_bytes(const BalanceLoss&);

// bias_e += rate * sign(mean(counts) - counts_e), then counts = 0. Source: DeepSeek-V3 (auxiliary-loss-free balancing).
void router_bias_update(const Tensor& bias, const Tensor& counts, float rate, Stream);

}  // namespace hyscale
