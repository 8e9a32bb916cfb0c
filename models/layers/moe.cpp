#include "models/layers/moe.h"

#include "kernels/gemm/grouped_gemm.h"
#include "core/memory.h"
#include "models/layers/linear.h"
#include "models/routing_store.h"

namespace hyscale {
namespace {

// The experts of this rank, with the places of all experts in files.
Parameter experts(const std::string& name, const MoeConfig& c, int64_t rows, int64_t columns) {
  const int64_t here = c.local_experts();
  return {.name = name, .shape = {here, rows, columns}, .cut = Cut::experts, .first_element = c.expert_rank * here * rows * columns};
}

Parameter expert_gate_up(const std::string& prefix, const MoeConfig& c) {
  const int64_t i = c.intermediate_size, h = c.hidden_size;
  Parameter p = experts(prefix + "experts.gate_up_proj", c, 2 * i, h);
  if (c.fused_experts) return p;
  for (int64_t n = 0; n < c.num_experts; ++n) {
    const std::string name = concat(prefix, "experts.", n, ".");
    p.hf.push_back({name + c.names.gate + ".weight", {i, h}, 2 * n * i * h});
    p.hf.push_back({name + c.names.up + ".weight", {i, h}, (2 * n + 1) * i * h});
  }
  return p;
}

Parameter expert_down(const std::string& prefix, const MoeConfig& c) {
  const int64_t i = c.intermediate_size, h = c.hidden_size;
  Parameter p = experts(prefix + "experts.down_proj", c, h, i);
  if (c.fused_experts) return p;
  for (int64_t n = 0; n < c.num_experts; ++n) p.hf.push_back({concat(prefix, "experts.", n, ".", c.names.down, ".weight"), {h, i}, n * i * h});
  return p;
}

Parameter expert_bias(const std::string& prefix, const MoeConfig& c) {
  return {.name = prefix + "gate." + c.bias_name, .shape = {c.num_experts}, .group = ParameterGroup::buffer, .init = Init::zeros, .fp32 = true, .weight_decay = false};
}

// The experts of every token; a new model spreads them evenly, K neighbours each.
Parameter expert_table(const std::string& prefix, const MoeConfig& c) {
  const auto spread = [k = c.rule.k, experts = c.num_experts](int64_t element) {
    return static_cast<float>((element / k * k + element % k) % experts);
  };
  return {.name = prefix + "gate.tid2eid", .shape = {c.hash_vocabulary, c.rule.k}, .group = ParameterGroup::buffer, .init = Init::formula, .fp32 = true,
          .weight_decay = false, .integer = true, .formula = spread};
}

const MoeConfig& checked(const MoeConfig& c) {
  if (c.num_experts % c.expert_ranks != 0)
    throw UserError(concat("parallel.expert: ", c.expert_ranks, " does not divide the ", c.num_experts, " experts of the model"));
  if (c.fused_experts && c.expert_ranks > 1)
    throw UserError(concat("parallel.expert: ", c.expert_ranks, "; the experts of this model are fused in its files, which needs 1"));
  return c;
}

Parameter* add_selector(ParameterStore& store, const std::string& prefix, const MoeConfig& c) {
  if (c.hash_vocabulary > 0) return &store.add(expert_table(prefix, c));
  return c.rule.score == RouterScore::softmax ? nullptr : &store.add(expert_bias(prefix, c));
}

}  // namespace

Moe::Moe(ParameterStore& store, const std::string& prefix, const MoeConfig& c)
    : config_(checked(c)),
      gate_(store.add({.name = prefix + "gate.weight", .shape = {c.num_experts, c.hidden_size}, .fp32 = true, .kind = ParameterRole::router})),
      selector_(add_selector(store, prefix, c)),
      gate_up_(store.add(expert_gate_up(prefix, c))),
      down_(store.add(expert_down(prefix, c))) {
  if (c.num_shared_experts > 0) shared_.emplace(store, prefix + "shared_experts.", c.hidden_size, c.num_shared_experts * c.intermediate_size, c.names, c.limit);
}

void Moe::update_bias(float rate, Stream stream) {
  if (selector_ && !hashed())
    router_bias_update(selector_->value, counts_, rate, stream);
  else
    zero(counts_, stream);
}

void Moe::route(Context& ctx, Pass pass, Saved& s) {
  const bool replayed = ctx.routing && ctx.routing->replay;
  if (replayed)
    copy(s.experts, ctx.routing->experts.at(number_), ctx.stream);
  else if (hashed())
    hash_route({ctx.sequence->tokens, selector_->value, s.experts, ctx.stream});
  // Loads are counted once per real forward: recompute and evaluation do not count.
  router({config_.rule, s.logits, selector_ && !hashed() ? selector_->value : Tensor(), s.experts, s.weights, pass == Pass::forward ? counts_ : Tensor(), ctx.stream, replayed || hashed()});
  if (ctx.routing && !replayed && pass != Pass::recompute) copy(ctx.routing->experts.at(number_), s.experts, ctx.stream);
}

void Moe::forward(Context& ctx, Pass pass, const Tensor& x, const Tensor& y, Saved& s) {
  const int64_t tokens = x.size(0), k = config_.rule.k, slots = tokens * k;
  s.x = x;
  s.logits = ctx.saved->allocate(DType::f32, {tokens, config_.num_experts});
  s.experts = ctx.saved->allocate(DType::i32, {tokens, k});
  s.weights = ctx.saved->allocate(DType::f32, {tokens, k});
  s.order = {ctx.saved->allocate(DType::i32, {config_.num_experts + 1}), ctx.saved->allocate(DType::i32, {slots}),
             ctx.saved->allocate(DType::i32, {slots})};
  s.rows_out = ctx.saved->allocate(ctx.activation, {slots, config_.hidden_size});

  linear(ctx, x, gate_, s.logits);
  route(ctx, pass, s);
  const ArenaScope scope(*ctx.scratch);
  MakeExpertOrder make{s.experts, s.order, {}, ctx.stream};
  make.workspace = workspace(ctx, make_expert_order_workspace_bytes(make));
  make_expert_order(make);
  if (shared_out()) s.exchange = make_expert_exchange(ctx, s.order, slots);
  s.expert_offsets = shared_out() ? s.exchange.order.offsets : s.order.offsets;
  const Tensor sorted = ctx.scratch->allocate(ctx.activation, {slots, config_.hidden_size});
  gather_rows(sorted, x, s.order, ctx.stream);
  const Tensor rows = expert_rows(ctx, sorted, s.exchange);
  s.gate_up = ctx.saved->allocate(ctx.activation, {rows.size(0), gate_up_.shape[1]});
  grouped_gemm_forward({rows, gate_up_.value, s.gate_up, s.expert_offsets, ctx.stream});
  const Tensor act = ctx.scratch->allocate(ctx.activation, {rows.size(0), config_.intermediate_size});
  swiglu({s.gate_up, act, ctx.stream, config_.limit});
  const Tensor out = shared_out() ? ctx.scratch->allocate(ctx.activation, rows.shape()) : s.rows_out;
  grouped_gemm_forward({act, down_.value, out, s.expert_offsets, ctx.stream});
  if (shared_out()) collect_rows(ctx, s.exchange, out, s.rows_out);
  if (shared_) shared_->forward(ctx, x, y, s.shared);
  combine_rows(y, s.rows_out, s.weights, s.order, shared_.has_value(), ctx.stream);
}

// Rows sorted by expert [slots, C], or those that came here for this rank's experts.
Tensor Moe::expert_rows(Context& ctx, const Tensor& sorted, const ExpertExchange& x) const {
  if (!shared_out()) return sorted;
  const Tensor rows = ctx.scratch->allocate(sorted.dtype(), {x.received, sorted.size(1)});
  dispatch_rows(ctx, x, sorted, rows);
  return rows;
}

void Moe::backward(Context& ctx, const Tensor& d, const Tensor& dx, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dy = narrowed(ctx, d);
  const Tensor dweights = ctx.scratch->allocate(DType::f32, s.weights.shape());
  const Tensor sorted = ctx.scratch->allocate(ctx.activation, s.rows_out.shape());
  combine_rows_backward({s.rows_out, s.weights, dy, s.order, sorted, dweights, ctx.stream});
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor drows = expert_rows(ctx, sorted, s.exchange);
    const Tensor act = ctx.scratch->allocate(ctx.activation, {s.gate_up.size(0), config_.intermediate_size});
    swiglu({s.gate_up, act, ctx.stream, config_.limit});
    grouped_gemm_wgrad({act, down_.grad, drows, s.expert_offsets, ctx.stream});
    grouped_gemm_dgrad({act, down_.value, drows, s.expert_offsets, ctx.stream});
    const Tensor dgate_up = ctx.scratch->allocate(ctx.activation, s.gate_up.shape());
    swiglu_backward({s.gate_up, act, dgate_up, ctx.stream, config_.limit});
    gather_rows(sorted, s.x, s.order, ctx.stream);  // the experts' inputs once more; their gradients have been used
    const Tensor rows = expert_rows(ctx, sorted, s.exchange);
    grouped_gemm_wgrad({rows, gate_up_.grad, dgate_up, s.expert_offsets, ctx.stream});
    grouped_gemm_dgrad({rows, gate_up_.value, dgate_up, s.expert_offsets, ctx.stream});
    if (shared_out()) collect_rows(ctx, s.exchange, rows, sorted);
  }
  if (shared_) shared_->backward(ctx, dy, dx, s.shared);
  gather_rows_backward(dx, sorted, s.order, shared_.has_value(), ctx.stream);
  backward_router(ctx, dweights, dx, s);
}

void Moe::backward_router(Context& ctx, const Tensor& dweights, const Tensor& dx, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const Tensor dlogits = ctx.scratch->allocate(DType::f32, s.logits.shape());
  router_backward({config_.rule, s.logits, s.experts, dweights, dlogits, ctx.stream});
  if (ctx.scales.balance > 0) {
    const PackedSequence& q = *ctx.sequence;
    const Tensor counts = ctx.scratch->allocate_zeroed(DType::i64, {q.document_tokens.size(0), config_.num_experts}, ctx.stream);
    balance_counts({config_.rule.k, s.logits, q.document_starts, q.document_ids, counts, ctx.stream, config_.rule.score});
    if (ctx.ring) ctx.ring->group().all_reduce(counts, ReduceOp::sum, ctx.stream);
    BalanceLoss balance{config_.rule.k, s.logits, q.document_starts, q.document_ids, q.document_tokens, counts, static_cast<float>(ctx.scales.balance), ctx.sums->balance, dlogits,
                        {}, ctx.stream, config_.rule.score};
    balance.workspace = workspace(ctx, balance_loss_workspace_bytes(balance));
    balance_loss(balance);
  }
  linear_wgrad(ctx, dlogits, s.x, gate_);
  linear_dgrad(ctx, dlogits, gate_, dx, true);
}

}  // namespace hyscale
