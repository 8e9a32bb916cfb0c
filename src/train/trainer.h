// Trainer: the loop. Data -> Step (forward, backward) -> Optimizer -> metrics, evaluation, checkpoints.
#pragma once
#include <chrono>
#include <memory>
#include <optional>

#include "config/config.h"
#include "data/loader.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/write_queue.h"
#include "train/guard.h"
#include "train/instruments.h"
#include "train/metrics.h"
#include "train/run_lock.h"
#include "train/setup.h"
#include "train/stragglers.h"
#include "train/watchdog.h"

namespace hyscale {

// Exit codes of hyscale-train.
enum class ExitCode : int {
  done = 0,
  internal_error = 1,
  user_error = 2,       // configuration, files, data
  does_not_fit = 3,     // --plan: more memory than there is
  not_finite = 4,       // too many steps in a row with a non-finite loss or gradient
  spike = 5,            // guard: a spike with action stop, or too many in a row
  not_learned = 6,      // train.overfit_loss was not reached
  stopped = 75,         // a signal; a checkpoint was saved, `--resume latest` continues
};

class Trainer {
 public:
  // resume: "", "latest" or the path of a checkpoint. "latest" without any checkpoint starts anew.
  // Every rank of the groups constructs one and calls run().
  // Throws UserError: data, weights or checkpoint that do not fit the configuration; a run directory that already holds
  // checkpoints when resume is empty.
  Trainer(const Config&, const std::string& resume, Device, ProcessGroups&);
  ExitCode run();

 private:
  struct Outcome {
    StepLosses losses;
    GuardedValues limits;
    bool finite = true;
    std::string spike;  // what was above its limit
    std::vector<double> rank_seconds;  // of computing; empty where ranks are not timed
    Optimizer::Result update;
    int64_t tokens = 0, labels = 0, selector_calls = 0;
    double seconds = 0;
    Ring::Times context;
    int64_t sent_bytes = 0;
  };
  void report_resume(const std::string& checkpoint) const;
  void load_validation();
  void begin_stage(size_t stage);
  void check_same_model(const std::string& checkpoint) const;
  void restore(const std::string& path);
  std::vector<LoadedSequence> next_sequences();
  Outcome train_one(double lr);
  void judge(Outcome&);
  std::optional<ExitCode> failure(const Outcome&) const;
  ExitCode overfit_result(bool learned, double loss) const;
  void record(const Outcome&, double lr);
  void progress(const Outcome&, double lr) const;
  void report_skipped(const Outcome&, const std::vector<LoadedSequence>&);
  void evaluate_and_record();
  void begin_save();
  void renew_folder();
  void commit_save();
  void continue_save(bool everyone);
  void finish_save();

  bool leads() const { return groups_.hosts->rank() == 0; }  // speaks, and writes what is written once
  int64_t sent_bytes() const;
  int agreed_stop();

  Config config_, stage_config_;  // of the run, and of the stage it is in
  size_t stage_ = 0;
  Device device_;
  ProcessGroups& groups_;
  std::unique_ptr<Model> model_;
  Schedule schedule_;
  std::unique_ptr<Loader> loader_;
  std::vector<HostSequence> validation_;
  std::unique_ptr<Step> step_;
  std::unique_ptr<Optimizer> optimizer_;
  Guard guard_;
  std::optional<Stragglers> stragglers_;
  std::vector<LoadedSequence> overfit_;  // what every step trains on
  Instruments instruments_;
  std::optional<Metrics> metrics_;
  // A checkpoint that is being written.
  struct Save {
    int64_t step = 0;
    std::shared_ptr<CheckpointWriter> writer;  // the leader's
    std::chrono::steady_clock::time_point start;
    double blocked_seconds = 0;
    bool committing = false;
  };
  std::optional<Save> save_;
  RunLock lock_;      // of rank 0
  WriteQueue queue_;  // ends before what it writes for
  Watchdog watchdog_;
  int64_t step_number_ = 0, first_step_ = 0, tokens_ = 0, not_finite_in_row_ = 0, spikes_in_row_ = 0;
  int stop_ = 0;  // why the run ends early: a signal's number, or the time limit
  std::chrono::steady_clock::time_point started_;
};

}  // namespace hyscale
