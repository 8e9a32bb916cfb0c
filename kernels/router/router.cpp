#include "kernels/router/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/common/op.h"
#include "kernels/router/score.h"

namespace hyscale {

void router_cuda(const Router&);
void router_backward_cuda(const RouterBackward&);
void hash_route_cuda(const HashRoute&);
void balance_counts_cuda(const BalanceCounts&);
void balance_loss_cuda(const BalanceLoss&);
void router_bias_update_cuda(const Tensor& bias, const Tensor& counts, float rate, Stream);

namespace {

// What is taken from a token's logits before they are scored: for softmax the largest, so that no score overflows.
float logit_shift(RouterScore score, const float* logits, int64_t num_experts) {
  return score == RouterScore::softmax ? *std::max_element(logits, logits + num_experts) : 0;
}

// Indices of the k largest values, largest first, ties to the lower index.
void top_k(const std::vector<float>& values, int64_t k, std::vector<int32_t>& order) {
  order.resize(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), better);
}

// Takes experts of all but the best groups out of the running.
void drop_groups(const RouterRule& rule, std::vector<float>& biased) {
  const size_t groups = static_cast<size_t>(rule.num_groups), size = biased.size() / groups;
  std::vector<float> group_scores(groups);
  for (size_t g = 0; g < groups; ++g) {
    std::vector<float> members(biased.begin() + static_cast<ptrdiff_t>(g * size), biased.begin() + static_cast<ptrdiff_t>((g + 1) * size));
    std::partial_sort(members.begin(), members.begin() + std::min<ptrdiff_t>(2, static_cast<ptrdiff_t>(size)), members.end(), std::greater<>());
    group_scores[g] = members[0] + (size > 1 ? members[1] : 0);
  }
  std::vector<int32_t> order;
  top_k(group_scores, rule.kept_groups, order);
  for (size_t i = static_cast<size_t>(rule.kept_groups); i < groups; ++i)
    std::fill_n(biased.begin() + order[i] * static_cast<ptrdiff_t>(size), size, -std::numeric_limits<float>::infinity());
}

void router_ref(const Router& r) {
  const int64_t tokens = r.logits.size(0), num_experts = r.logits.size(1), k = r.rule.k;
#pragma omp parallel
  {
    std::vector<float> scores(static_cast<size_t>(num_experts)), biased(scores.size());
    std::vector<int32_t> order;
#pragma omp for
    for (int64_t t = 0; t < tokens; ++t) {
      const float* z = r.logits.f32() + t * num_experts;
      const float shift = logit_shift(r.rule.score, z, num_experts);
      for (size_t e = 0; e < scores.size(); ++e) {
        scores[e] = router_score(r.rule.score, z[e] - shift);
        biased[e] = scores[e] + (r.bias.defined() && !r.given ? r.bias.f32()[e] : 0);
      }
      if (r.given) {
        order.assign(r.experts.i32() + t * k, r.experts.i32() + (t + 1) * k);
      } else {
        if (r.rule.num_groups > 1) drop_groups(r.rule, biased);
        top_k(biased, k, order);
      }
      float sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += scores[static_cast<size_t>(order[static_cast<size_t>(j)])];
      for (int64_t j = 0; j < k; ++j) {
        const int32_t e = order[static_cast<size_t>(j)];
        r.experts.i32()[t * k + j] = e;
        r.weights.f32()[t * k + j] = r.rule.scaling * (r.rule.normalize ? scores[static_cast<size_t>(e)] / (sum + 1e-20f) : scores[static_cast<size_t>(e)]);
      }
    }
  }
  if (r.counts.defined())
    for (int64_t i = 0; i < tokens * k; ++i) ++r.counts.data<int64_t>()[r.experts.i32()[i]];
}

void router_backward_ref(const RouterBackward& r) {
  const int64_t tokens = r.logits.size(0), num_experts = r.logits.size(1), k = r.rule.k;
#pragma omp parallel for
  for (int64_t t = 0; t < tokens; ++t) {
    const float *z = r.logits.f32() + t * num_experts, *dw = r.dweights.f32() + t * k;
    const int32_t* chosen = r.experts.i32() + t * k;
    float* dz = r.dlogits.f32() + t * num_experts;
    std::fill_n(dz, num_experts, 0.0f);
    const float shift = logit_shift(r.rule.score, z, num_experts);
    double sum = 1e-20, dot = 0;
    for (int64_t j = 0; j < k; ++j) sum += router_score(r.rule.score, z[chosen[j]] - shift);
    for (int64_t j = 0; j < k; ++j) dot += dw[j] * router_score(r.rule.score, z[chosen[j]] - shift) / sum;
    for (int64_t j = 0; j < k; ++j) {
      const double ds = r.rule.normalize ? r.rule.scaling / sum * (dw[j] - dot) : r.rule.scaling * dw[j];
      dz[chosen[j]] = static_cast<float>(ds * router_slope(r.rule.score, z[chosen[j]] - shift));
    }
  }
}

void hash_route_ref(const HashRoute& r) {
  const int64_t k = r.experts.size(1);
  for (int64_t t = 0; t < r.tokens.size(0); ++t)
    for (int64_t j = 0; j < k; ++j) r.experts.i32()[t * k + j] = static_cast<int32_t>(r.table.f32()[r.tokens.i32()[t] * k + j]);
}

void balance_counts_ref(const BalanceCounts& b) {
  const int64_t num_experts = b.logits.size(1);
  std::vector<float> scores(static_cast<size_t>(num_experts));
  std::vector<int32_t> order;
  for (int64_t run = 0; run < b.run_documents.size(0); ++run) {
    int64_t* counts = b.counts.data<int64_t>() + b.run_documents.i32()[run] * num_experts;
    for (int64_t t = b.run_starts.i32()[run]; t < b.run_starts.i32()[run + 1]; ++t) {
      const float* z = b.logits.f32() + t * num_experts;
      const float shift = logit_shift(b.score, z, num_experts);
      for (size_t e = 0; e < scores.size(); ++e) scores[e] = router_score(b.score, z[e] - shift);
      top_k(scores, b.k, order);
      for (int64_t j = 0; j < b.k; ++j) ++counts[order[static_cast<size_t>(j)]];
    }
  }
}

void balance_loss_run(const BalanceLoss& b, int64_t run) {
  const int64_t num_experts = b.logits.size(1), document = b.run_documents.i32()[run], first = b.run_starts.i32()[run], last = b.run_starts.i32()[run + 1];
  const int64_t* counts = b.counts.data<int64_t>() + document * num_experts;
  const double tokens = b.document_tokens.i32()[document], unit = static_cast<double>(num_experts) / (static_cast<double>(b.k) * tokens * tokens);
  for (int64_t t = first; t < last; ++t) {
    const float* z = b.logits.f32() + t * num_experts;
    const float shift = logit_shift(b.score, z, num_experts);
    double sum = 0;
    for (int64_t e = 0; e < num_experts; ++e) sum += router_score(b.score, z[e] - shift);
    for (int64_t e = 0; e < num_experts; ++e) b.loss_sum.data<double>()[0] += unit * static_cast<double>(counts[e]) * router_score(b.score, z[e] - shift) / sum;
  }
#pragma omp parallel for
  for (int64_t t = first; t < last; ++t) {
    const float* z = b.logits.f32() + t * num_experts;
    float* dz = b.dlogits.f32() + t * num_experts;
    const float shift = logit_shift(b.score, z, num_experts);
    double sum = 0, mean = 0;
    for (int64_t e = 0; e < num_experts; ++e) sum += router_score(b.score, z[e] - shift);
    for (int64_t e = 0; e < num_experts; ++e) mean += unit * static_cast<double>(counts[e]) * router_score(b.score, z[e] - shift) / sum;
    for (int64_t e = 0; e < num_experts; ++e)
      dz[e] += static_cast<float>(b.grad_scale * (unit * static_cast<double>(counts[e]) - mean) / sum * router_slope(b.score, z[e] - shift));
  }
}

void balance_loss_ref(const BalanceLoss& b) {
  for (int64_t run = 0; run < b.run_documents.size(0); ++run) balance_loss_run(b, run);
}

void router_bias_update_ref(const Tensor& bias, const Tensor& counts, float rate) {
  const int64_t num_experts = bias.size(0);
  int64_t total = 0, *n = counts.data<int64_t>();
  for (int64_t e = 0; e < num_experts; ++e) total += n[e];
  for (int64_t e = 0; e < num_experts; ++e) {
    const int64_t above = n[e] * num_experts - total;  // sign(n - mean) without rounding
    bias.f32()[e] += above > 0 ? -rate : above < 0 ? rate : 0;
    n[e] = 0;
  }
}

void check_rule(const RouterRule& rule, const Tensor& logits) {
  const int64_t num_experts = logits.size(1);
  HYSCALE_CHECK(rule.score != RouterScore::softmax || rule.normalize, "softmax scores are normalized over the chosen experts");
  HYSCALE_CHECK(rule.k >= 1 && rule.k <= num_experts, "k is ", rule.k, " of ", num_experts, " experts");
  HYSCALE_CHECK(rule.num_groups >= 1 && num_experts % rule.num_groups == 0 && rule.kept_groups >= 1 && rule.kept_groups <= rule.num_groups &&
                    rule.k <= rule.kept_groups * (num_experts / rule.num_groups),
                rule.kept_groups, " of ", rule.num_groups, " groups of ", num_experts, " experts, k ", rule.k);
}

}  // namespace

void router(const Router& r) {
  const int64_t tokens = r.logits.size(0), num_experts = r.logits.size(1);
  check_rule(r.rule, r.logits);
  check_tensor(r.logits, "logits", DType::f32, {-1, -1});
  if (!r.given && r.rule.score != RouterScore::softmax) check_tensor(r.bias, "bias", DType::f32, {num_experts});
  check_tensor(r.experts, "experts", DType::i32, {tokens, r.rule.k});
  check_tensor(r.weights, "weights", DType::f32, {tokens, r.rule.k});
  if (r.counts.defined()) check_tensor(r.counts, "counts", DType::i64, {num_experts});
  HYSCALE_DISPATCH("router", r.logits.device(), router_ref(r), router_cuda(r));
}

void router_backward(const RouterBackward& r) {
  check_rule(r.rule, r.logits);
  check_tensor(r.experts, "experts", DType::i32, {r.logits.size(0), r.rule.k});
  check_tensor(r.dweights, "dweights", DType::f32, {r.logits.size(0), r.rule.k});
  check_tensor(r.dlogits, "dlogits", DType::f32, r.logits.shape());
  HYSCALE_DISPATCH("router_backward", r.logits.device(), router_backward_ref(r), router_backward_cuda(r));
}

void hash_route(const HashRoute& r) {
  check_tensor(r.tokens, "tokens", DType::i32, {-1});
  check_tensor(r.experts, "experts", DType::i32, {r.tokens.size(0), -1});
  check_tensor(r.table, "table", DType::f32, {-1, r.experts.size(1)});
  HYSCALE_DISPATCH("hash_route", r.tokens.device(), hash_route_ref(r), hash_route_cuda(r));
}

namespace {

template <typename Op>
void check_balance(const Op& b) {
  check_tensor(b.logits, "logits", DType::f32, {-1, -1});
  check_tensor(b.run_documents, "run_documents", DType::i32, {-1});
  check_tensor(b.run_starts, "run_starts", DType::i32, {b.run_documents.size(0) + 1});
  check_tensor(b.counts, "counts", DType::i64, {-1, b.logits.size(1)});
  HYSCALE_CHECK(b.k >= 1 && b.k <= b.logits.size(1), "k is ", b.k, " of ", b.logits.size(1), " experts");
}

}  // namespace

void balance_counts(const BalanceCounts& b) {
  check_balance(b);
  HYSCALE_DISPATCH("balance_counts", b.logits.device(), balance_counts_ref(b), balance_counts_cuda(b));
}

void balance_loss(const BalanceLoss& b) {
  check_balance(b);
  check_tensor(b.document_tokens, "document_tokens", DType::i32, {b.counts.size(0)});
  check_tensor(b.dlogits, "dlogits", DType::f32, b.logits.shape());
  check_tensor(b.loss_sum, "loss_sum", DType::f64, {1});
  HYSCALE_DISPATCH("balance_loss", b.logits.device(), balance_loss_ref(b), balance_loss_cuda(b));
}

size_t balance_loss_workspace_bytes(const BalanceLoss& b) {
  // The mass of each document and expert.
  return b.logits.device().is_cpu() ? 0 : aligned_bytes(static_cast<size_t>(b.counts.elements()) * 8);
}

void router_bias_update(const Tensor& bias, const Tensor& counts, float rate, Stream stream) {
  check_tensor(bias, "bias", DType::f32, {-1});
  check_tensor(counts, "counts", DType::i64, bias.shape());
  (void)stream;
  HYSCALE_DISPATCH("router_bias_update", bias.device(), router_bias_update_ref(bias, counts, rate), router_bias_update_cuda(bias, counts, rate, stream));
}

}  // namespace hyscale
