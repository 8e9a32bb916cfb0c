#include "optim/schedule.h"

#include <gtest/gtest.h>

namespace hyscale {
namespace {

using Kind = Schedule::Kind;

TEST(Schedule, WarmupRisesToThePeak) {
  const Schedule s{Kind::constant, 2, 0, 100, 4};
  EXPECT_EQ(s.rate(1), 0.5);
  EXPECT_EQ(s.rate(4), 2);
  EXPECT_EQ(s.rate(5), 2);
  EXPECT_EQ(s.rate(100), 2);
}

TEST(Schedule, LinearAndCosineFallToTheLowestAtTheEnd) {
  const Schedule linear{Kind::linear, 2, 1, 104, 4}, cosine{Kind::cosine, 2, 1, 104, 4};
  EXPECT_EQ(linear.rate(54), 1.5);
  EXPECT_EQ(linear.rate(104), 1);
  EXPECT_NEAR(cosine.rate(54), 1.5, 1e-12);
  EXPECT_NEAR(cosine.rate(104), 1, 1e-12);
  EXPECT_EQ(linear.rate(1000), 1);
  EXPECT_GT(cosine.rate(30), linear.rate(30));
}

TEST(Schedule, WsdHoldsThenFalls) {
  const Schedule s{Kind::wsd, 2, 0, 100, 10, 20};
  EXPECT_EQ(s.rate(80), 2);
  EXPECT_EQ(s.rate(90), 1);
  EXPECT_EQ(s.rate(100), 0);
}

}  // namespace
}  // namespace hyscale
