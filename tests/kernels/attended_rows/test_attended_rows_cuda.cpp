#include "kernels/attended_rows/attended_rows.h"

#include "tests/support/on_both.h"

namespace hyscale {
namespace {

using test::Both;
using test::HostTensor;

TEST(AttendedRowsCuda, IsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  for (int64_t tokens : {0, 1, 700})
    for (int64_t window : {1, 128}) {
      std::vector<int32_t> begin, end, first_entry, last_entry, chosen, chosen_counts;
      for (int32_t t = 0; t < tokens; ++t) {
        const int32_t document = t / 300 * 300;
        begin.push_back(document), end.push_back(t + 1);
        first_entry.push_back(document / 4), last_entry.push_back(document / 4 + (t - document + 1) / 4);
        const int32_t count = std::min(last_entry.back() - first_entry.back(), 16);
        chosen_counts.push_back(count);
        for (int32_t j = 0; j < 16; ++j) chosen.push_back(j < count ? first_entry.back() + j : -1);
      }
      const Both key_begin = test::as_is(test::ints({tokens}, begin)), key_end = test::as_is(test::ints({tokens}, end));
      const Both entry_begin = test::as_is(test::ints({tokens}, first_entry)), entry_end = test::as_is(test::ints({tokens}, last_entry));
      const Both ids = test::as_is(test::ints({tokens, 16}, chosen)), numbers = test::as_is(test::ints({tokens}, chosen_counts));
      const Both all = test::as_is(HostTensor(DType::i32, {tokens, 75 + window})), some = test::as_is(HostTensor(DType::i32, {tokens, 16 + window}));
      const Both counts = test::as_is(HostTensor(DType::i32, {tokens})), fewer = test::as_is(HostTensor(DType::i32, {tokens}));
      test::on_both([&](Device d) {
        attended_rows({{}, entry_begin[d], entry_end[d], key_begin[d], key_end[d], window, 175, {all[d], counts[d]}, {}});
        attended_rows({{ids[d], numbers[d]}, {}, {}, key_begin[d], key_end[d], window, 175, {some[d], fewer[d]}, {}});
      });
      for (const Both* b : {&all, &some, &counts, &fewer}) EXPECT_SAME_AS_ON_CPU(*b);
    }
}

}  // namespace
}  // namespace hyscale
