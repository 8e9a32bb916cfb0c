#include "models/layers/context_rows.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"

namespace hyscale {
namespace {

// rows [T, C + D]: kv and keys side by side.
Tensor join_columns(Context& ctx, const Tensor& kv, const Tensor& keys) {
  const int64_t width = kv.size(1);
  const Tensor rows = ctx.scratch->allocate(kv.dtype(), {kv.size(0), width + keys.size(1)});
  cast(rows.slice(1, 0, width), kv, ctx.stream);
  cast(rows.slice(1, width, rows.size(1)), keys, ctx.stream);
  return rows;
}

// FlashTopK takes up and lays down every query's candidates with each update, so shards of many ranks are scored several at
// a time: at most about this many updates.
constexpr int64_t kUpdates = 8;

// Tokens that have arrived and are not scored yet, as runs without gaps.
class ArrivedRuns {
 public:
  explicit ArrivedRuns(int64_t fewest) : fewest_(fewest) {}
  void add(TokenRange r) {
    const auto before = std::find_if(runs_.begin(), runs_.end(), [&](const TokenRange& x) { return x.end == r.begin; });
    if (before != runs_.end()) r.begin = before->begin, runs_.erase(before);
    const auto after = std::find_if(runs_.begin(), runs_.end(), [&](const TokenRange& x) { return x.begin == r.end; });
    if (after != runs_.end()) r.end = after->end, runs_.erase(after);
    runs_.push_back(r);
  }
  // Those that are long enough, or all.
  std::vector<TokenRange> take(bool all) {
    const auto rest = std::stable_partition(runs_.begin(), runs_.end(), [&](const TokenRange& r) { return !all && r.size() < fewest_; });
    const std::vector<TokenRange> taken(rest, runs_.end());
    runs_.erase(rest, runs_.end());
    return taken;
  }

 private:
  int64_t fewest_;
  std::vector<TokenRange> runs_;
};

}  // namespace

ContextRows gather_context_rows(Context& ctx, const Tensor& kv, const Tensor& keys, const ScoreKeys& score, const RowShards* rows_of) {
  if (!ctx.ring) {
    if (score) score(0, keys);
    return {kv, keys};
  }
  const RowShards& shards = rows_of ? *rows_of : ctx.ring->tokens();
  const int64_t width = kv.defined() ? kv.size(1) : 0, total = shards.total();
  const auto of_all = [&](const Tensor& own) { return own.defined() ? ctx.saved->allocate(own.dtype(), {total, own.size(1)}) : Tensor(); };
  const ContextRows all{of_all(kv), of_all(keys)};
  const ArenaScope scope(*ctx.scratch);
  const Tensor own = !kv.defined() ? keys : keys.defined() ? join_columns(ctx, kv, keys) : kv;
  ArrivedRuns runs(std::max<int64_t>(1, total / kUpdates));
  const auto score_runs = [&](bool all_of_them) {
    for (const TokenRange& r : runs.take(all_of_them)) score(r.begin, all.keys.slice(0, r.begin, r.end));
  };
  ctx.ring->for_each_shard(shards, own, *ctx.scratch, ctx.stream, [&](int rank, const Tensor& shard) {
    int64_t at = 0;
    for (const TokenRange& s : shards.of_rank[static_cast<size_t>(rank)]) {
      const Tensor rows = shard.slice(0, at, at + s.size());
      at += s.size();
      if (s.size() == 0) continue;
      if (kv.defined()) cast(all.kv.slice(0, s.begin, s.end), rows.slice(1, 0, width), ctx.stream);
      if (!keys.defined()) continue;
      cast(all.keys.slice(0, s.begin, s.end), rows.slice(1, width, rows.size(1)), ctx.stream);
      runs.add(s);
    }
    if (score) score_runs(false);
  });
  if (score) score_runs(true);
  return all;
}

Tensor reduce_context_rows(Context& ctx, const Tensor& all_rows, const RowShards* rows_of) {
  if (!ctx.ring) return all_rows;
  const RowShards& shards = rows_of ? *rows_of : ctx.ring->tokens();
  const Tensor own = ctx.scratch->allocate_zeroed(DType::f32, {shards.local(ctx.ring->group().rank()), all_rows.size(1)}, ctx.stream);
  ctx.ring->reduce_into_owners(shards, all_rows, own, *ctx.scratch, ctx.stream,
                               [&](const Tensor& into, const Tensor& from) { add(into, into, from, ctx.stream); });
  return own;
}

}  // namespace hyscale
