#include "comm/context_layout.h"

#include <algorithm>

#include "core/error.h"

namespace hyscale {

ContextLayout::ContextLayout(int64_t sequence_tokens, int size, ContextOrder order, int64_t multiple)
    : tokens_(sequence_tokens), multiple_(multiple), size_(size), order_(order) {
  HYSCALE_CHECK(tokens_ >= 0 && size_ >= 1 && multiple_ >= 1, tokens_, " tokens over ", size_, " ranks, multiple ", multiple_);
}

TokenRange ContextLayout::segment(int index) const {
  const int64_t blocks = (tokens_ + multiple_ - 1) / multiple_, n = num_segments();
  const auto edge = [&](int64_t i) { return std::min(tokens_, blocks * i / n * multiple_); };
  return {edge(index), edge(index + 1)};
}

int ContextLayout::segment_owner(int index) const { return index < size_ ? index : 2 * size_ - 1 - index; }

std::vector<TokenRange> ContextLayout::segments(int rank) const {
  HYSCALE_CHECK(0 <= rank && rank < size_, "rank ", rank, " of ", size_);
  if (order_ == ContextOrder::contiguous) return {segment(rank)};
  return {segment(rank), segment(2 * size_ - 1 - rank)};
}

int64_t ContextLayout::local_tokens(int rank) const {
  int64_t n = 0;
  for (const TokenRange& s : segments(rank)) n += s.size();
  return n;
}

int64_t ContextLayout::max_local_tokens() const {
  int64_t most = 0;
  for (int r = 0; r < size_; ++r) most = std::max(most, local_tokens(r));
  return most;
}

int ContextLayout::owner(int64_t token) const {
  HYSCALE_CHECK(0 <= token && token < tokens_, "token ", token, " of ", tokens_);
  const int64_t blocks = (tokens_ + multiple_ - 1) / multiple_, n = num_segments();
  // The last segment whose first block is not beyond the token's; empty segments before it start at the same block.
  int64_t index = ((token / multiple_ + 1) * n - 1) / blocks;
  return segment_owner(static_cast<int>(index));
}

int64_t ContextLayout::to_global(int rank, int64_t local_token) const {
  int64_t left = local_token;
  for (const TokenRange& s : segments(rank)) {
    if (left < s.size()) return s.begin + left;
    left -= s.size();
  }
  HYSCALE_CHECK(false, "local token ", local_token, " of rank ", rank, " with ", local_tokens(rank));
}

int64_t ContextLayout::to_local(int64_t token) const {
  int64_t before = 0;
  for (const TokenRange& s : segments(owner(token))) {
    if (s.begin <= token && token < s.end) return before + token - s.begin;
    before += s.size();
  }
  HYSCALE_CHECK(false, "token ", token, " is in no segment");
}

std::vector<ContextLayout::Halo> ContextLayout::left_halo(int rank, int64_t width) const {
  std::vector<Halo> out;
  const std::vector<TokenRange> own = segments(rank);
  for (int i = 0; i < static_cast<int>(own.size()); ++i) {
    if (own[i].size() == 0) continue;
    int64_t at = std::max<int64_t>(0, own[i].begin - width);
    while (at < own[i].begin) {
      const int from = owner(at);
      int64_t end = own[i].begin;
      for (const TokenRange& s : segments(from))
        if (s.begin <= at && at < s.end) end = std::min(end, s.end);
      out.push_back({i, from, {at, end}});
      at = end;
    }
  }
  return out;
}

std::vector<ContextLayout::HaloSend> ContextLayout::halo_sends(int rank, int64_t width) const {
  std::vector<HaloSend> out;
  for (int to = 0; to < size_; ++to)
    for (const Halo& h : left_halo(to, width))
      if (h.from == rank) out.push_back({to, h.tokens});
  return out;
}

RowShards ContextLayout::shards() const {
  RowShards s;
  for (int r = 0; r < size_; ++r) s.of_rank.push_back(segments(r));
  return s;
}

int64_t ContextLayout::ring_sent_rows(int rank) const {
  if (size_ == 1) return 0;
  return tokens_ - local_tokens((rank + 1) % size_);
}

}  // namespace hyscale
