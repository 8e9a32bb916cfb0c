#include "models/qwen/ngram_memory.h"

#include "core/memory.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/ngram_gate/ngram_gate.h"
#include "models/layers/linear.h"
#include "models/layers/token_reach.h"
#include "models/qwen/causal_conv.h"
#include "models/qwen/zero_centred_norm.h"

namespace hyscale {
namespace {

Parameter table_parameter(const std::string& prefix, const NgramConfig& c, const NgramTable& table) {
  const int64_t width = c.embed_dim / table.heads(), rows = table.num_rows / c.parts;
  if (table.num_rows % c.parts != 0)
    throw UserError(concat("config.json: \"split_ngram_parts\" is ", c.parts, "; expected a divisor of the ", table.num_rows, " rows of the n-gram table"));
  Parameter p{.name = prefix + "weight", .shape = {table.num_rows, width}, .weight_decay = false};
  for (int64_t i = 0; i < c.parts; ++i) p.hf.push_back({concat(prefix, "shard_", i, ".weight"), {rows, width}, i * rows * width});
  return p;
}

}  // namespace

NgramMemory::NgramMemory(ParameterStore& store, const std::string& prefix, const NgramConfig& c, const GatedResidualConfig& streams, int number)
    : config_(c),
      streams_(streams),
      hash_(make_ngram_table(c.rule, number)),
      table_(store.add(table_parameter(prefix + "ple_embedding.ngram_embedding.", c, hash_))),
      key_(store.add({.name = prefix + "key_proj.weight", .shape = {streams.width(), c.embed_dim}})),
      value_(store.add({.name = prefix + "value_proj.weight", .shape = {streams.hidden_size, c.embed_dim}})),
      norm_key_(store.add(zero_centred_weight(prefix + "norm_key.weight", streams.width()))),
      norm_query_(store.add(zero_centred_weight(prefix + "norm_query.weight", streams.width()))),
      norm_conv_(store.add(zero_centred_weight(prefix + "norm_conv.weight", streams.width()))),
      conv_(store.add({.name = prefix + "conv1d.weight", .shape = {streams.width(), 1, c.taps}, .init = Init::zeros})) {
  store.add_constant({prefix + "ple_embedding.layer_multipliers", hash_.multipliers});
  store.add_constant({prefix + "ple_embedding.ngram_heads_vocab_sizes", hash_.sizes});
  store.add_constant({prefix + "ple_embedding.ngram_heads_offsets", hash_.offsets});
}

// i32 [T, heads], for which the reach holds the tokens before.
void NgramMemory::hash(Context& ctx, const Tensor& rows) const {
  const ArenaScope scope(*ctx.scratch);
  const TokenReach& reach = ctx.sequence->reach;
  const Tensor all = reaches_over(ctx) ? ctx.scratch->allocate(DType::i32, {reach.tokens.size(0), rows.size(1)}) : rows;
  ngram_hash({hash_, reach.tokens, reach.history, config_.eos, all, ctx.stream});
  if (reaches_over(ctx)) take_own_rows(ctx, all, rows);
}

void NgramMemory::forward(Context& ctx, const Tensor& streams, const Tensor& out, Saved& s) {
  const int64_t tokens = streams.size(0), heads = hash_.heads();
  s.streams = streams;
  s.rows = ctx.saved->allocate(DType::i32, {tokens, heads});
  s.e = ctx.saved->allocate(ctx.activation, {tokens, config_.embed_dim});
  s.values = ctx.saved->allocate(ctx.activation, {tokens, streams.size(2)});
  s.scores = ctx.saved->allocate(DType::f32, {tokens, streams_.streams});
  const Tensor m_normed = ctx.saved->allocate(ctx.activation, {tokens, streams_.width()});
  for (Tensor* t : {&s.keys_raw, &s.keys, &s.queries, &s.m}) *t = ctx.saved->allocate(ctx.activation, streams.shape());
  for (Tensor* t : {&s.keys_rstd, &s.queries_rstd, &s.m_rstd}) *t = ctx.saved->allocate(DType::f32, {streams_.streams, tokens});

  hash(ctx, s.rows);
  embedding({s.rows.view({tokens * heads}), table_.value, s.e.view({tokens * heads, row_width()}), ctx.stream});
  linear(ctx, s.e, key_, s.keys_raw.as_matrix());
  linear(ctx, s.e, value_, s.values);
  group_norm(ctx, s.keys_raw.as_matrix(), norm_key_, streams_.eps, s.keys.as_matrix(), s.keys_rstd);
  group_norm(ctx, streams.as_matrix(), norm_query_, streams_.eps, s.queries.as_matrix(), s.queries_rstd);
  ngram_gate({s.keys, s.queries, s.values, s.scores, s.m, ctx.stream});
  group_norm(ctx, s.m.as_matrix(), norm_conv_, streams_.eps, m_normed, s.m_rstd);
  const ArenaScope scope(*ctx.scratch);
  const Tensor mixed = ctx.residual() == ctx.activation ? out : ctx.scratch->allocate(ctx.activation, out.shape());
  s.m_normed = causal_conv(ctx, m_normed, taps(conv_.value), config_.dilation, mixed.as_matrix());
  add(mixed, mixed, s.m, ctx.stream);
  add(out, streams, mixed, ctx.stream);
}

void NgramMemory::backward(Context& ctx, const Tensor& d, const Saved& s) {
  const ArenaScope scope(*ctx.scratch);
  const int64_t tokens = d.size(0), heads = hash_.heads();
  const Tensor dm = ctx.scratch->allocate(ctx.activation, d.shape()), dnormed = ctx.scratch->allocate(ctx.activation, d.shape());
  cast(dm, d, ctx.stream);
  causal_conv_backward(ctx, s.m_normed, taps(conv_.value), config_.dilation, dm.as_matrix(), dnormed.as_matrix(), taps(conv_.grad));
  group_norm_backward(ctx, s.m.as_matrix(), norm_conv_, s.m_rstd, dnormed.as_matrix(), dm.as_matrix(), true);
  const Tensor dkeys = dnormed, dqueries = ctx.scratch->allocate(ctx.activation, d.shape()), dvalues = ctx.scratch->allocate(ctx.activation, s.values.shape());
  ngram_gate_backward({s.keys, s.queries, s.values, s.scores, dm, dkeys, dqueries, dvalues, ctx.stream});
  group_norm_backward(ctx, s.streams.as_matrix(), norm_query_, s.queries_rstd, dqueries.as_matrix(), d.as_matrix(), true);
  group_norm_backward(ctx, s.keys_raw.as_matrix(), norm_key_, s.keys_rstd, dkeys.as_matrix(), dkeys.as_matrix());
  const Tensor de = ctx.scratch->allocate(ctx.activation, s.e.shape());
  linear_wgrad(ctx, dkeys.as_matrix(), s.e, key_);
  linear_wgrad(ctx, dvalues, s.e, value_);
  linear_dgrad(ctx, dkeys.as_matrix(), key_, de);
  linear_dgrad(ctx, dvalues, value_, de, true);
  EmbeddingBackward e{s.rows.view({tokens * heads}), de.view({tokens * heads, row_width()}), table_.grad, {}, ctx.stream};
  e.workspace = workspace(ctx, embedding_backward_workspace_bytes(e));
  embedding_backward(e);
}

}  // namespace hyscale
