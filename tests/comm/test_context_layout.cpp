#include <gtest/gtest.h>

#include <map>
#include <set>

#include "comm/context_layout.h"

namespace hyscale {
namespace {

struct Case {
  int64_t tokens;
  int size;
  ContextOrder order;
};
std::vector<Case> cases() {
  std::vector<Case> out;
  for (ContextOrder order : {ContextOrder::zigzag, ContextOrder::contiguous})
    for (int size : {1, 2, 3, 4, 7, 8, 32, 512, 1024})
      for (int64_t tokens : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{129}, int64_t{1000}, int64_t{65536},
                             int64_t{1048576}, int64_t{1048577}})
        out.push_back({tokens, size, order});
  return out;
}

TEST(ContextLayout, EveryTokenHasOneOwner) {
  for (const Case& c : cases()) {
    const ContextLayout layout(c.tokens, c.size, c.order);
    std::map<int64_t, int64_t> ranges;  // begin -> end
    int64_t total = 0;
    for (int r = 0; r < c.size; ++r) {
      int64_t local = 0;
      for (const TokenRange& s : layout.segments(r)) {
        if (s.size() == 0) continue;
        EXPECT_TRUE(ranges.emplace(s.begin, s.end).second);
        for (int64_t t : {s.begin, s.begin + s.size() / 2, s.end - 1}) {
          EXPECT_EQ(layout.owner(t), r) << "token " << t << " of " << c.tokens << " over " << c.size;
          EXPECT_EQ(layout.to_global(r, layout.to_local(t)), t);
        }
        EXPECT_TRUE(s.begin % 128 == 0);
        local += s.size();
      }
      EXPECT_EQ(local, layout.local_tokens(r));
      total += local;
    }
    EXPECT_EQ(total, c.tokens);
    int64_t at = 0;
    for (auto [begin, end] : ranges) {
      EXPECT_EQ(begin, at);
      at = end;
    }
  }
}

TEST(ContextLayout, ZigzagBalancesCausalWork) {
  const ContextLayout layout(1 << 20, 32, ContextOrder::zigzag);
  for (int r = 0; r < 32; ++r) {
    double pairs = 0;
    for (const TokenRange& s : layout.segments(r)) pairs += 0.5 * (double(s.end) * s.end - double(s.begin) * s.begin);
    EXPECT_NEAR(pairs / (0.5 * (1 << 20) * (1 << 20) / 32), 1, 1e-6);
  }
}

TEST(ContextLayout, HalosAreWhatOthersSend) {
  for (const Case& c : cases()) {
    if (c.size > 64) continue;  // halo_sends asks every rank
    const ContextLayout layout(c.tokens, c.size, c.order);
    for (int64_t width : {1, 7, 128, 300}) {
      std::multiset<std::tuple<int, int, int64_t, int64_t>> wanted, sent;
      for (int r = 0; r < c.size; ++r) {
        std::map<int, int64_t> covered;
        for (const auto& h : layout.left_halo(r, width)) {
          wanted.insert({h.from, r, h.tokens.begin, h.tokens.end});
          covered[h.segment] += h.tokens.size();
          for (int64_t t : {h.tokens.begin, h.tokens.end - 1}) EXPECT_EQ(layout.owner(t), h.from);
        }
        const auto own = layout.segments(r);
        for (size_t i = 0; i < own.size(); ++i)
          EXPECT_EQ(covered[i], own[i].size() ? std::min(width, own[i].begin) : 0);
        for (const auto& s : layout.halo_sends(r, width)) sent.insert({r, s.to, s.tokens.begin, s.tokens.end});
      }
      EXPECT_EQ(wanted, sent);
    }
  }
}

TEST(ContextLayout, RingShowsEveryShardToEveryRank) {
  for (int size : {1, 2, 3, 8, 1024}) {
    const ContextLayout layout(131072, size, ContextOrder::zigzag);
    for (int r : {0, size / 2, size - 1}) {
      std::set<int> seen;
      int64_t sent = 0;
      for (int step = 0; step < size; ++step) {
        const int shard = layout.ring_shard(r, step);
        seen.insert(shard);
        if (step) {  // arrived from the left
          EXPECT_EQ(shard, layout.ring_shard((r + size - 1) % size, step - 1));
        }
        if (step + 1 < size) sent += layout.local_tokens(shard);
      }
      EXPECT_EQ(static_cast<int>(seen.size()), size);
      EXPECT_EQ(sent, layout.ring_sent_rows(r));
    }
  }
}

}  // namespace
}  // namespace hyscale
