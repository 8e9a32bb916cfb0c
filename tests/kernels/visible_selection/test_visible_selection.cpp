#include "kernels/visible_selection/visible_selection.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

TEST(VisibleSelection, HoldsWhatEachQuerySees) {
  const test::HostTensor begin = test::ints({4}, {0, 2, 5, 7}), end = test::ints({4}, {3, 3, 5, 6}), indices = test::ints({4, 3}, std::vector<int32_t>(12, 9)), counts = test::ints({4}, {9, 9, 9, 9});
  visible_selection({begin, end, {indices, counts}});
  EXPECT_TRUE(test::same_bits(indices, test::ints({4, 3}, {0, 1, 2, 2, -1, -1, -1, -1, -1, -1, -1, -1})));
  EXPECT_TRUE(test::same_bits(counts, test::ints({4}, {3, 1, 0, 0})));
}

TEST(VisibleSelection, NamesAQueryWithoutRoom) {
  const test::HostTensor begin = test::ints({1}, {0}), end = test::ints({1}, {3}), indices = test::ints({1, 2}, {0, 0}), counts = test::ints({1}, {0});
  try {
    visible_selection({begin, end, {indices, counts}});
    ADD_FAILURE() << "three keys went into two slots";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("query 0 sees 3 keys; there is room for 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace hyscale
