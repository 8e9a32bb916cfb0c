// A save that takes longer than run.hang_seconds is no hang; one that stands still is.
#include "train/finish_writes.h"

#include <chrono>

#include "comm/groups.h"
#include "tests/support/errors.h"
#include "train/watchdog.h"

namespace hyscale {
namespace {

using std::chrono::milliseconds;

TEST(FinishWrites, ALongSaveThatGetsOnIsNoHang) {
  ProcessGroups alone = make_single_process_group();
  WriteQueue queue(true);
  Watchdog watchdog(0.3, 0);  // would end the process
  watchdog.started();
  int written = 0;
  for (int i = 0; i < 6; ++i) queue.push([&written] { std::this_thread::sleep_for(milliseconds(150)), ++written; });
  finish_writes(queue, *alone.hosts, 0.3);
  EXPECT_EQ(written, 6);
}

void save_that_stands_still() {
  ProcessGroups alone = make_single_process_group();
  WriteQueue queue(true);
  Watchdog watchdog(0.2, 0);
  watchdog.started();
  queue.push([] { std::this_thread::sleep_for(std::chrono::minutes(1)); });
  finish_writes(queue, *alone.hosts, 0.2);
}

TEST(FinishWrites, ASaveThatStandsStillEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(save_that_stands_still(), testing::ExitedWithCode(1), "no progress for .* in: finish writes");
}

TEST(FinishWrites, AnErrorOfWritingIsThrown) {
  ProcessGroups alone = make_single_process_group();
  WriteQueue queue(true);
  queue.push([] { throw UserError("model.safetensors: cannot write"); });
  EXPECT_EQ(test::error_of([&] { finish_writes(queue, *alone.hosts, 1); }), "model.safetensors: cannot write");
}

}  // namespace
}  // namespace hyscale
