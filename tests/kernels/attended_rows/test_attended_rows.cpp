#include "kernels/attended_rows/attended_rows.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

// Two documents of 5 and 3 tokens behind 4 entries; groups of 2 give entries {0, 1} and {2}.
struct Problem {
  HostTensor key_begin = test::ints({8}, {0, 0, 0, 0, 0, 5, 5, 5}), key_end = test::ints({8}, {1, 2, 3, 4, 5, 6, 7, 8});
  HostTensor entry_begin = test::ints({8}, {0, 0, 0, 0, 0, 2, 2, 2}), entry_end = test::ints({8}, {0, 1, 1, 2, 2, 2, 3, 3});
};

std::vector<int32_t> row(const HostTensor& rows, int64_t t) { return {rows.i32() + t * rows.t().size(1), rows.i32() + (t + 1) * rows.t().size(1)}; }

TEST(AttendedRows, AllVisibleEntriesThenTheWindow) {
  const Problem p;
  HostTensor rows(DType::i32, {8, 5}), counts(DType::i32, {8});
  attended_rows({{}, p.entry_begin, p.entry_end, p.key_begin, p.key_end, 3, 4, {rows, counts}, {}});
  EXPECT_EQ(row(rows, 0), (std::vector<int32_t>{4, -1, -1, -1, -1}));
  EXPECT_EQ(row(rows, 4), (std::vector<int32_t>{0, 1, 6, 7, 8}));  // window of 3, itself included
  EXPECT_EQ(row(rows, 5), (std::vector<int32_t>{9, -1, -1, -1, -1}));  // the next document starts anew
  EXPECT_EQ(row(rows, 7), (std::vector<int32_t>{2, 9, 10, 11, -1}));
  EXPECT_EQ(counts.i32()[7], 4);
}

TEST(AttendedRows, ChosenEntriesOrNone) {
  const Problem p;
  HostTensor rows(DType::i32, {8, 4}), counts(DType::i32, {8}), chosen = test::filled({1}, 0), chosen_counts(DType::i32, {8});
  chosen = HostTensor(DType::i32, {8, 2});
  for (int64_t t = 0; t < 8; ++t) chosen_counts.i32()[t] = t == 4 ? 2 : 0, chosen.i32()[2 * t] = t == 4 ? 0 : -1, chosen.i32()[2 * t + 1] = t == 4 ? 3 : -1;
  attended_rows({{chosen, chosen_counts}, {}, {}, p.key_begin, p.key_end, 2, 4, {rows, counts}, {}});
  EXPECT_EQ(row(rows, 4), (std::vector<int32_t>{0, 3, 7, 8}));
  EXPECT_EQ(row(rows, 2), (std::vector<int32_t>{5, 6, -1, -1}));
  attended_rows({{}, {}, {}, p.key_begin, p.key_end, 100, 0, {HostTensor(DType::i32, {8, 8}), counts}, {}});
  EXPECT_EQ(counts.i32()[4], 5);  // a window longer than the document
}

TEST(AttendedRows, TooNarrowListsAreRefused) {
  const Problem p;
  HostTensor rows(DType::i32, {8, 2}), counts(DType::i32, {8}), chosen(DType::i32, {8, 2});
  EXPECT_THROW(attended_rows({{chosen, counts}, {}, {}, p.key_begin, p.key_end, 1, 0, {rows, counts}, {}}), InternalError);
}

}  // namespace
}  // namespace hyscale
