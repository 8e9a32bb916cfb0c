// Two runs never write into one folder.
#include "train/run_lock.h"

#include <thread>

#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::run;
using test::TinyRun;

TEST(RunLock, IsFreeAgainWhenItsHolderIsGone) {
  const test::TemporaryFolder folder;
  {
    const RunLock lock(folder / "run");
    const std::string error = test::error_of([&] { RunLock(folder / "run"); });
    EXPECT_CONTAINS(error, "belongs to a run that is still going (pid " + std::to_string(getpid()) + " on ");
    EXPECT_CONTAINS(error, "set checkpoint.directory to another folder");
  }
  const RunLock third(folder / "run");
  RunLock moved;
  moved = RunLock(folder / "other");
  EXPECT_THROW(RunLock(folder / "other"), UserError);
}

TEST(RunLock, AFolderThatCannotBeIsNamed) {
  try {
    const RunLock lock("/proc/nowhere/run");
    FAIL() << "a folder in /proc";
  } catch (const UserError& e) {
    EXPECT_CONTAINS(std::string(e.what()), "checkpoint.directory: cannot create /proc/nowhere/run: No such file or directory");
  }
}

TEST(RunLock, ASecondRunIsRefusedAndAKilledOneLeavesNoLock) {
  const TinyRun t;
  const test::TemporaryFolder logs;
  test::Child first(t.into("a", {"--set", "train.steps=100000", "--set", "checkpoint.every=2"}), logs / "first");
  while (first.running() && !std::filesystem::exists(t / "a/latest")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(first.running()) << first.output();
  const auto second = run(t.into("a", {"--resume", "latest"}));
  EXPECT_EQ(second.code, 2) << second.output;
  EXPECT_CONTAINS(second.output, "belongs to a run that is still going (pid ");
  EXPECT_TRUE(first.running()) << first.output();
  first.send(SIGKILL);
  first.wait();
  const auto third = run(t.into("a", {"--resume", "latest", "--set", "run.time_limit_seconds=1", "--set", "train.steps=100000"}));
  EXPECT_EQ(third.code, 75) << third.output;
}

}  // namespace
}  // namespace hyscale
