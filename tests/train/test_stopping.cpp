// How a run is stopped from outside, by keys, terminals, launchers and logs that end: it saves, or what it had saved stays.
#include <functional>

#include "checkpoint/checkpoint.h"
#include "tests/train/tiny_run.h"

namespace hyscale {
namespace {

using test::Child;
using test::TinyRun;
using Words = std::vector<std::string>;

const Words kEndless{"--set", "train.steps=100000", "--set", "checkpoint.every=0"};

void wait_until(Child& child, const std::function<bool()>& reached) {
  while (child.running() && !reached()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Stopping, TheFirstInterruptIsAnsweredAndSaves) {
  const TinyRun t;
  Child child(t.into("a", kEndless), t / "log");
  wait_until(child, [&] { return test::contains(child.output(), "step 2/"); });
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), 75) << child.output();
  EXPECT_CONTAINS(child.output(), "SIGINT: the run saves and stops after this step; a second one ends it at once");
  EXPECT_CONTAINS(child.output(), "stopped by SIGINT after step");
  EXPECT_EQ(list_checkpoints(t / "a").size(), 1u);
}

TEST(Stopping, TheSecondInterruptEndsTheStepToo) {
  const TinyRun t;
  Child child(t.into("a", joined(kEndless, {"--set", "train.micro_batches=20000"})), t / "log");
  wait_until(child, [&] { return std::filesystem::exists(t / "a/metrics.jsonl"); });
  child.send(SIGINT);
  wait_until(child, [&] { return test::contains(child.output(), "SIGINT: the run saves"); });
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), -SIGINT) << child.output();
  EXPECT_TRUE(list_checkpoints(t / "a").empty());
}

TEST(Stopping, ATerminalThatClosesSavesUnlessNohup) {
  const TinyRun t;
  Child child(t.into("a", kEndless), t / "log");
  wait_until(child, [&] { return test::contains(child.output(), "step 2/"); });
  child.send(SIGHUP);
  EXPECT_EQ(child.wait(), 75) << child.output();
  EXPECT_CONTAINS(child.output(), "stopped by SIGHUP after step");
  Child ignoring(joined({"/usr/bin/env", "nohup"}, t.into("b", {"--set", "train.steps=60"})), t / "nohup.log");
  wait_until(ignoring, [&] { return test::contains(ignoring.output(), "step 2/"); });
  ignoring.send(SIGHUP);
  EXPECT_EQ(ignoring.wait(), 0) << ignoring.output();
}

TEST(Stopping, ALogThatNobodyReadsEndsNothing) {
  const TinyRun t;
  std::string command;
  for (const std::string& word : t.into("a")) command += "'" + word + "' ";
  const auto piped = test::run({"/bin/sh", "-c", command + "2>&1 | head -n 1"});
  EXPECT_EQ(piped.output, "# effective configuration\n");
  EXPECT_EQ(find_checkpoint(t / "a", "latest"), t / "a/step-00000010");
}

// The signal that Open MPI's mpirun hands on; after others it kills the ranks.
TEST(Stopping, TheLauncherHandsSigusr1ToTheRanks) {
  const TinyRun t;
  Child job(t.with_ranks(2, "a", joined(kEndless, {"--set", "parallel.context=2"})), t / "log");
  wait_until(job, [&] { return test::contains(job.output(), "step 2/"); });
  job.send(SIGUSR1);
  EXPECT_EQ(job.wait(), 75) << job.output();
  EXPECT_CONTAINS(job.output(), "stopped by SIGUSR1 after step");
  EXPECT_NO_THROW(verify_checkpoint(find_checkpoint(t / "a", "latest"), true));
}

}  // namespace
}  // namespace hyscale
