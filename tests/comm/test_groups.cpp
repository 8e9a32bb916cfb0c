#include "comm/groups.h"

#include <set>

#include "tests/support/errors.h"

namespace hyscale {
namespace {

TEST(Groups, EveryRankHasItsOwnPlace) {
  for (const ParallelSizes s : {ParallelSizes{1, 1, 1}, {2, 4, 2}, {4, 2, 8}, {16, 64, 32}, {4, 8, 16, false}}) {
    std::set<std::pair<int, int>> places, expert_places;
    for (int r = 0; r < s.world(); ++r) {
      const RankPlace p = place_of(r, s);
      places.insert({p.data, p.context});
      expert_places.insert({p.expert, p.expert_replica});
      EXPECT_LT(p.expert, s.expert);
      EXPECT_LT(p.expert_replica, s.world() / s.expert);
    }
    EXPECT_EQ(static_cast<int>(places.size()), s.world());
    EXPECT_EQ(static_cast<int>(expert_places.size()), s.world());
  }
}

TEST(Groups, SizesThatDoNotFitAreNamed) {
  EXPECT_THROW(check_parallel_sizes({2, 2, 3}, 4), UserError);
  EXPECT_CONTAINS(test::error_of([] { check_parallel_sizes({2, 2, 1}, 8); }), "the job has 8 ranks");
}

}  // namespace
}  // namespace hyscale
