#include "train/trainer.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "core/json.h"
#include "core/range.h"
#include "train/finish_writes.h"
#include "train/plan.h"
#include "train/replica_check.h"
#include "train/signals.h"
#include "train/weights.h"

namespace hyscale {
namespace fs = std::filesystem;
namespace {

std::vector<DatasetShare> shares(const std::vector<DatasetEntry>& entries) {
  std::vector<DatasetShare> out;
  for (const DatasetEntry& e : entries) out.push_back({e.path, e.weight});
  return out;
}

Loader::Options loader_options(const Config& c, const std::vector<DatasetEntry>& datasets, const Model& model, bool shuffle) {
  return {shares(datasets), c.data.sequence_tokens, model.vocabulary_size(), static_cast<uint64_t>(c.data.seed), shuffle};
}

HostSequence to_host_sequence(const LoadedSequence& s) { return make_host_sequence(s.tokens, s.labels, s.document_starts); }

// Legal, and of use in tests; in a run it is mostly a mistake.
void warn_of_uneven_ranks(const Config& c) {
  const int ranks = static_cast<int>(c.parallel.context);
  const bool zigzag = c.parallel.context_order == "zigzag";
  const ContextLayout layout(c.data.sequence_tokens, ranks, zigzag ? ContextOrder::zigzag : ContextOrder::contiguous);
  int64_t least = layout.max_local_tokens();
  for (int r = 0; r < ranks; ++r) least = std::min(least, layout.local_tokens(r));
  if (2 * least < layout.max_local_tokens())
    spdlog::warn("data.sequence_tokens {} over parallel.context {}: ranks have from {} to {} tokens each; multiples of {} divide evenly", c.data.sequence_tokens, ranks, least,
                 layout.max_local_tokens(), 128 * ranks * (zigzag ? 2 : 1));
}

std::string clock_text(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr int kTimeLimit = 1000;  // as a reason to stop, beside the numbers of signals

std::string stop_name(int stop) { return stop == kTimeLimit ? "run.time_limit_seconds" : signal_name(stop); }

std::string checkpoint_dtype(const Config& c, Device device) {
  return c.checkpoint.dtype != "auto" ? c.checkpoint.dtype : device.is_cuda() ? "bfloat16" : "float32";
}

}  // namespace

Trainer::Trainer(const Config& config, const std::string& resume, Device device, ProcessGroups& groups)
    : config_(config), device_(device), groups_(groups), model_(make_model(config, &groups)), guard_(config.guard), instruments_(config, *model_, device, groups), queue_(config.checkpoint.asynchronous),
      watchdog_(config.run.hang_seconds, groups.hosts->rank()) {
  started_ = std::chrono::steady_clock::now();
  const std::string& directory = config_.checkpoint.directory;
  const std::string checkpoint = resume.empty() ? "" : find_checkpoint(directory, resume);
  if (resume.empty() && !list_checkpoints(directory).empty())
    throw UserError(concat(directory, ": already holds ", list_checkpoints(directory).back().second, "; continue it with --resume latest, or set checkpoint.directory to a new folder"));
  if (stage_config(config_, 0).model.stage == "warmup" && !device_.is_cuda() && checkpoint_dtype(config_, device_) == "bfloat16")
    throw UserError("checkpoint.dtype: bfloat16 would round the frozen weights of model.stage warmup; expected auto or float32");
  const Plan plan = make_plan(config_, groups_.hosts->rank());
  if (!plan.fits())
    throw UserError(concat("the run needs ", plan.total_bytes() >> 20, " MiB on ", to_string(device_), ", available are ", plan.limit >> 20,
                           " MiB; --plan shows by class what takes them"));
  set_memory_plan(plan_line(plan));
  if (leads()) lock_ = RunLock(directory);
  Loader::Options training = loader_options(config_, config_.data.train, *model_, config_.data.shuffle);
  training.skip = config_.data.skip;
  loader_ = std::make_unique<Loader>(training);
  load_validation();
  ParameterStore& store = model_->parameters();
  check_groups(config_, store);
  store.allocate(device_, compute_dtype(device_), sharding(config_, groups_));
  if (!checkpoint.empty()) {
    verify_checkpoint(checkpoint, true, groups_.hosts->rank(), groups_.hosts->size());
    check_same_model(checkpoint);
    load_weights(store, HfFolderReader(checkpoint + "/model"));
  } else if (!config_.model.weights.empty()) {
    const std::string mtp_layer = model_->mtp_depths() == 0 ? model_->mtp_prefix() : "";
    const int64_t skipped = load_weights(store, HfFolderReader(config_.model.weights), mtp_layer);
    if (skipped > 0) spdlog::warn("{} tensors of the MTP layer in {} are not used: model.mtp is false", skipped, config_.model.weights);
  } else {
    store.initialize(static_cast<uint64_t>(config_.train.seed), model_->initializer_range());
  }
  if (config_.train.overfit_loss > 0) overfit_ = next_sequences();
  if (checkpoint.empty()) begin_stage(0);
  else restore(checkpoint);
  if (groups_.sizes.world() > 1 && config_.run.straggler_factor > 0) stragglers_.emplace(groups_, device_, config_.run.straggler_factor);
  first_step_ = step_number_;
  groups_.hosts->barrier();  // every rank has read what it resumes from
  if (!leads()) return;
  warn_of_uneven_ranks(config_);
  write_text_file(directory + "/config.yaml", config_yaml(config_));
  metrics_.emplace(directory + "/metrics.jsonl", step_number_, config_.run.tensorboard ? directory + "/tensorboard" : "");
  if (!checkpoint.empty()) report_resume(checkpoint);
  if (checkpoint.empty() && !resume.empty()) spdlog::info("no checkpoint in {} yet: starting anew", directory);
}

void Trainer::report_resume(const std::string& path) const {
  spdlog::info("resumed from {} at step {}", path, step_number_);
  const std::string file = path + "/trainer.json";
  const nlohmann::json saved = read_json_file(file);
  std::string changes;
  for (const std::string& change : config_changes(JsonReader(saved, file).text("config"), file, config_)) changes += (changes.empty() ? "" : ", ") + change;
  if (!changes.empty()) spdlog::info("other than in the run that saved it: {}", changes);
  if (step_number_ >= config_.train.steps) spdlog::warn("train.steps is {}: nothing is left to train", config_.train.steps);
}

void Trainer::load_validation() {
  if (config_.data.validation.empty()) return;
  Loader loader(loader_options(config_, config_.data.validation, *model_, false));
  for (int64_t i = 0; i < config_.train.evaluate_sequences; ++i) validation_.push_back(to_host_sequence(loader.next()));
}

void Trainer::check_same_model(const std::string& path) const {
  const nlohmann::json saved_config = read_hf_config(path + "/model/config.json");
  // As a checkpoint has it: how the weights that training began with were stored is not part of the model.
  const nlohmann::json own_config = saved_hf_config(*model_, checkpoint_dtype(config_, device_));
  for (const auto& [key, value] : own_config.items())
    if (key != "dtype" && saved_config.value(key, nlohmann::json()) != value)
      throw UserError(concat(path, ": was trained with \"", key, "\" ", saved_config.value(key, nlohmann::json()).dump(), ", ", hf_config_path(config_), " has ", value.dump()));
}

// What depends on the stage: losses, what trains, the learning rate. The optimizer's state goes on.
void Trainer::begin_stage(size_t stage) {
  stage_ = stage;
  stage_config_ = stage_config(config_, stage);
  schedule_ = make_schedule(stage_config_);
  guard_.forget();
  StepOptions options = step_options(stage_config_, device_, compute_dtype(device_), &groups_);
  options.reserve = make_plan(stage_config_, groups_.hosts->rank()).step;
  step_.reset();  // makes room for two optimizers at once, and then for the next step
  optimizer_ = std::make_unique<Optimizer>(model_->parameters(), optimizer_options(stage_config_), device_, groups_.world.get(), optimizer_.get());
  step_ = std::make_unique<Step>(*model_, options);
  if (leads() && num_stages(config_) > 1) spdlog::info("stage {} of {}: {}, {} steps", stage + 1, num_stages(config_), stage_config_.model.stage, stage_config_.train.steps);
}

// In the stage that saved, also where the next step belongs to another.
void Trainer::restore(const std::string& path) {
  const nlohmann::json saved = read_json_file(path + "/trainer.json");
  const JsonReader j(saved, path + "/trainer.json");
  const auto count = [&](const char* key) { return j.integer(key, 0, JsonReader::kMostCount); };
  step_number_ = count("step");
  begin_stage(stage_of_step(config_, step_number_).stage);
  if (j.text("stage") != stage_config_.model.stage)
    throw UserError(concat(path, ": was trained in stage ", j.text("stage"), ", ", config_.train.stages.empty() ? "model.stage" : concat("train.stages at step ", step_number_),
                           " is ", stage_config_.model.stage, "; to change stages start a new run with model.weights: ", path, "/model, or give both as train.stages"));
  tokens_ = count("tokens");
  not_finite_in_row_ = count("not_finite_in_row");
  spikes_in_row_ = j.has("spikes_in_row") ? count("spikes_in_row") : 0;
  if (j.has("guard")) guard_.restore(j.raw("guard"));
  loader_->restore(j.raw("loader"));
  const int64_t updates = count("updates");
  optimizer_->restore(path + "/optimizer", {j.has("trunk_updates") ? count("trunk_updates") : updates, updates});
}

std::vector<LoadedSequence> Trainer::next_sequences() {
  if (!overfit_.empty()) return overfit_;
  std::vector<LoadedSequence> loaded;
  for (int64_t i = 0; i < config_.train.micro_batches; ++i) loaded.push_back(loader_->next());
  return loaded;
}

Trainer::Outcome Trainer::train_one(double lr) {
  const auto start = std::chrono::steady_clock::now();
  Outcome o;
  instruments_.begin_step(step_number_ + 1, *step_);
  const std::vector<LoadedSequence> loaded = next_sequences();
  std::vector<HostSequence> sequences;
  StepTotals totals;
  for (const LoadedSequence& l : loaded) {
    sequences.push_back(to_host_sequence(l));
    totals.add(sequences.back(), model_->mtp_depths());
    instruments_.count(sequences.back());
  }
  const int64_t calls_before = step_->selections().selector_calls(), sent_before = sent_bytes();
  if (stragglers_) stragglers_->begin(step_->stream());
  step_->begin(totals);
  const size_t data_ranks = static_cast<size_t>(groups_.sizes.data);
  for (size_t i = static_cast<size_t>(groups_.place.data); i < sequences.size(); i += data_ranks) step_->micro_batch(sequences[i], i + data_ranks >= sequences.size());
  if (stragglers_) stragglers_->end(step_->stream());
  step_->reduce();
  o.limits = guard_.limits();
  // The loss of a frozen trunk says nothing of the training.
  if (stage_config_.model.stage == "warmup") o.limits.loss = kNoBound;
  optimizer_->update(lr, step_->sums(), step_->stream(), {o.limits.norm, o.limits.indexer_norm, o.limits.loss * static_cast<double>(totals.labels)});
  o.update = optimizer_->result(step_->stream());
  o.losses = step_->losses();
  model_->after_step(o.update.applied && stage_config_.model.stage == "sparse", step_->stream());
  o.tokens = totals.queries;
  o.labels = totals.labels;
  o.selector_calls = step_->selections().selector_calls() - calls_before;
  o.context = step_->take_context_times();
  o.sent_bytes = sent_bytes() - sent_before;
  if (stragglers_) o.rank_seconds = stragglers_->rank_seconds(o.context);
  instruments_.end_step();
  o.seconds = seconds_since(start);
  ++step_number_;
  tokens_ += o.tokens;
  judge(o);
  if (!o.update.applied && leads()) report_skipped(o, loaded);
  return o;
}

// Why a step was not applied, and what that makes of the next ones. The same on every rank.
void Trainer::judge(Outcome& o) {
  const GuardedValues values{o.losses.lm, o.update.norm, o.update.indexer_norm};
  const StepLosses& l = o.losses;
  o.finite = o.update.applied || std::isfinite(l.lm + l.mtp + l.index + l.balance + values.norm + values.indexer_norm);
  if (o.finite && !o.update.applied) o.spike = spike_text(values, o.limits);
  not_finite_in_row_ = o.finite ? 0 : not_finite_in_row_ + 1;
  spikes_in_row_ = o.finite && !o.update.applied ? spikes_in_row_ + 1 : 0;
  if (o.finite) guard_.remember(values);
}

// What ends the run beside its last step.
std::optional<ExitCode> Trainer::failure(const Outcome& o) const {
  if (not_finite_in_row_ >= config_.train.nonfinite_limit) {
    if (leads()) spdlog::error("{} steps in a row were not finite (train.nonfinite_limit): the run ends; the last checkpoint is unharmed", not_finite_in_row_);
    return ExitCode::not_finite;
  }
  const bool stops = config_.guard.action == "stop";
  if (o.spike.empty() || (!stops && spikes_in_row_ < config_.guard.skip_limit)) return std::nullopt;
  if (leads()) spdlog::error("{} ({}): the run ends; the last checkpoint is unharmed", stops ? "a spike (guard.action stop)" : fmt::format("{} spikes in a row (guard.skip_limit)", spikes_in_row_), o.spike);
  return ExitCode::spike;
}

void Trainer::report_skipped(const Outcome& o, const std::vector<LoadedSequence>& sequences) {
  const std::string path = fmt::format("{}/{}-step-{:08}.json", config_.checkpoint.directory, o.finite ? "spike" : "not-finite", step_number_);
  nlohmann::json report{{"step", step_number_}, {"lm_loss", fmt::format("{}", o.losses.lm)}, {"grad_norm", fmt::format("{}", o.update.norm)},
                        {"indexer_grad_norm", fmt::format("{}", o.update.indexer_norm)}, {"sequences", nlohmann::json::array()}};
  if (o.finite) report["spike"] = o.spike;
  if (const auto nan = step_->selections().find_nan(step_->stream()))
    report["nan_index_score"] = {{"selecting_layer", nan->slot}, {"query", nan->query}};
  for (const LoadedSequence& s : sequences) report["sequences"].push_back({{"sequence", s.number}, {"documents", s.describe}, {"tokens", s.tokens}});
  write_text_file(path, report.dump() + "\n");
  if (o.finite) return spdlog::warn("step {}: {}; the step is not applied, its tokens are in {}", step_number_, o.spike, path);
  spdlog::error("step {}: loss or gradient is not finite (loss {}, gradient norm {}); the step is not applied, its tokens are in {}", step_number_, o.losses.lm,
                o.update.norm, path);
}

void Trainer::record(const Outcome& o, double lr) {
  const auto number = [](double v) { return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr); };
  nlohmann::json line{{"step", step_number_}, {"loss", number(o.losses.lm)}, {"index_loss", number(o.losses.index)}, {"balance_loss", number(o.losses.balance)},
                      {"lr", lr}, {"grad_norm", number(o.update.norm)}, {"indexer_grad_norm", number(o.update.indexer_norm)}, {"applied", o.update.applied},
                      {"tokens", tokens_}, {"labels", o.labels}, {"seconds", o.seconds}, {"tokens_per_second", static_cast<double>(o.tokens) / o.seconds},
                      {"selector_calls", o.selector_calls}, {"peak_bytes", peak_bytes(device_)}};
  instruments_.record(o.seconds, line);
  if (groups_.sizes.world() > 1) line["sent_bytes"] = o.sent_bytes;
  if (groups_.sizes.context > 1) {
    line["context_transfer_seconds"] = o.context.transfer_ms / 1000;
    line["context_wait_seconds"] = o.context.wait_ms / 1000;
  }
  if (!o.spike.empty()) line["spike"] = o.spike;
  if (num_stages(config_) > 1) line["stage"] = stage_config_.model.stage;
  if (stragglers_) stragglers_->record(o.rank_seconds, line);
  for (double v : o.losses.index_of_layer) line["index_loss_of_layer"].push_back(number(v));
  if (model_->mtp_depths() > 0) line["mtp_loss"] = number(o.losses.mtp);
  metrics_->write(line);
}

void Trainer::progress(const Outcome& o, double lr) const {
  const double per_step = seconds_since(started_) / static_cast<double>(step_number_ - first_step_);
  if (stragglers_)
    if (const std::string slow = stragglers_->slowest_text(o.rank_seconds); !slow.empty()) spdlog::warn("step {}: {}", step_number_, slow);
  spdlog::info("step {}/{}  loss {:.4f}  index {:.4f}{}  grad {:.3f}  lr {:.2e}  {:.0f} tokens/s  MFU {}  ETA {}", step_number_, config_.train.steps, o.losses.lm,
               o.losses.index, model_->mtp_depths() > 0 ? fmt::format("  mtp {:.4f}", o.losses.mtp) : "", o.update.norm, lr,
               static_cast<double>(o.tokens) / o.seconds, mfu_text(instruments_.mfu(o.seconds)), clock_text(per_step * static_cast<double>(config_.train.steps - step_number_)));
}

void Trainer::evaluate_and_record() {
  const auto start = std::chrono::steady_clock::now();
  if (leads()) spdlog::info("step {}: evaluating {} sequences", step_number_, validation_.size());
  const std::optional<StepLosses> losses = step_->evaluate(validation_, [&] { return agreed_stop() != 0; });
  if (!leads()) return;
  if (!losses) return spdlog::info("step {}: evaluation cut short by {}", step_number_, stop_name(stop_));
  metrics_->write({{"step", step_number_}, {"validation_loss", losses->lm}, {"seconds", seconds_since(start)}});
  spdlog::info("step {}: validation loss {:.4f} over {} sequences", step_number_, losses->lm, validation_.size());
}

int64_t Trainer::sent_bytes() const {
  int64_t n = 0;
  for (const auto& c : {&groups_.world, &groups_.context, &groups_.expert, &groups_.expert_replicas}) n += (*c)->sent_bytes();
  return n;
}

// Copies everything that makes up the checkpoint and returns; files are written beside the steps that follow.
void Trainer::begin_save() {
  finish_save();
  const auto start = std::chrono::steady_clock::now();
  const Range range("save");
  const std::string &directory = config_.checkpoint.directory, partial = CheckpointWriter::partial_path(directory, step_number_);
  save_.emplace();
  save_->step = step_number_;
  save_->start = start;
  // The leader makes the folder; then every rank adds its weights and optimizer state; then the leader commits.
  if (leads()) {
    renew_folder();
    save_->writer = std::make_shared<CheckpointWriter>(directory, step_number_);
    make_folder(partial + "/model");
    make_folder(partial + "/optimizer");
    const nlohmann::json trainer{{"step", step_number_}, {"tokens", tokens_}, {"updates", optimizer_->updates().indexer}, {"trunk_updates", optimizer_->updates().trunk},
                                 {"not_finite_in_row", not_finite_in_row_}, {"spikes_in_row", spikes_in_row_}, {"guard", guard_.state()},
                                 {"stage", stage_config_.model.stage}, {"loader", loader_->cursor()}, {"config", config_yaml(config_)}};
    write_text_file(partial + "/trainer.json", trainer.dump(1) + "\n");
  }
  groups_.hosts->barrier();
  const auto digests = std::make_shared<FileDigests>();
  save_weights(*model_, groups_, partial + "/model", checkpoint_dtype(config_, device_), queue_, digests);
  optimizer_->save(partial + "/optimizer", queue_, digests);
  queue_.push([partial, digests, rank = groups_.hosts->rank()] { leave_digests(partial, rank, *digests); });
  save_->blocked_seconds = seconds_since(start);
}

// The run's folder may be moved or removed under the run, which then goes on in a new one: what it still learns is worth keeping.
void Trainer::renew_folder() {
  const std::string& directory = config_.checkpoint.directory;
  if (fs::exists(directory + "/metrics.jsonl")) return;
  spdlog::warn("{}: metrics.jsonl is gone, as if the folder was moved or removed; it is begun anew after step {}", directory, step_number_);
  lock_ = RunLock(directory);
  write_text_file(directory + "/config.yaml", config_yaml(config_));
  metrics_.emplace(directory + "/metrics.jsonl", step_number_, config_.run.tensorboard ? directory + "/tensorboard" : "");
}

// Every rank's files are on the disk: the leader makes them a checkpoint, also beside the steps.
void Trainer::commit_save() {
  save_->committing = true;
  if (!leads()) return;
  queue_.push([save = *save_, config = saved_hf_config(*model_, checkpoint_dtype(config_, device_)), c = config_.checkpoint] {
    finish_hf_folder(CheckpointWriter::partial_path(c.directory, save.step) + "/model", config);
    const std::string path = save.writer->commit();
    remove_old_checkpoints(c.directory, c.keep, c.milestone_every);
    spdlog::info("saved {} in {:.1f} s, of which training waited {:.1f} s", path, seconds_since(save.start), save.blocked_seconds);
  });
}

// `everyone`: all ranks' queues are done, as agreed.
void Trainer::continue_save(bool everyone) {
  if (!save_ || !everyone) return;
  if (save_->committing) save_.reset();
  else commit_save();
}

void Trainer::finish_save() {
  if (!save_) return;
  const Range range("finish save");
  if (!save_->committing) {
    finish_writes(queue_, *groups_.hosts, config_.run.hang_seconds);
    commit_save();
  }
  finish_writes(queue_, *groups_.hosts, config_.run.hang_seconds);
  save_.reset();
}

// The ranks stop after the same step: whichever has a reason, all have it. The same message tells how far a save is.
int Trainer::agreed_stop() {
  const bool late = config_.run.time_limit_seconds > 0 && seconds_since(started_) > config_.run.time_limit_seconds;
  int32_t mine[2] = {std::max(stop_signal(), late ? kTimeLimit : 0), save_ && !queue_.idle()};
  groups_.hosts->all_reduce(Tensor(mine, DType::i32, Device{}, {2}), ReduceOp::max, {});
  continue_save(!mine[1]);
  return stop_ = std::max(stop_, static_cast<int>(mine[0]));
}

ExitCode Trainer::run() {
  const auto due = [&](int64_t every) { return every > 0 && step_number_ % every == 0; };
  while (step_number_ < config_.train.steps) {
    const StagePlace place = stage_of_step(config_, step_number_ + 1);
    if (place.stage != stage_) begin_stage(place.stage);
    const double lr = schedule_.rate(place.step);
    const Outcome o = train_one(lr);
    watchdog_.started();
    const bool learned = !overfit_.empty() && o.losses.lm <= config_.train.overfit_loss;
    const bool last = step_number_ == config_.train.steps || learned;
    if (leads()) record(o, lr);
    if (leads() && (due(config_.run.log_every) || last)) progress(o, lr);
    if (const std::optional<ExitCode> code = failure(o)) {
      finish_save();
      return *code;
    }
    if (due(config_.run.replica_check_every)) check_replicas(model_->parameters(), groups_, step_number_);
    agreed_stop();
    if (!stop_ && !validation_.empty() && (due(config_.train.evaluate_every) || last) && stage_config_.model.stage == "sparse") evaluate_and_record();
    if (due(config_.checkpoint.every) || last || stop_) begin_save();
    if (!last && !stop_) continue;
    finish_save();
    if (last) return overfit_.empty() ? ExitCode::done : overfit_result(learned, o.losses.lm);
    if (leads()) spdlog::info("stopped by {} after step {}; continue with --resume latest", stop_name(stop_), step_number_);
    return ExitCode::stopped;
  }
  return ExitCode::done;
}

ExitCode Trainer::overfit_result(bool learned, double loss) const {
  if (leads() && learned) spdlog::info("overfit check: loss {:.4f} after {} steps, at most {} (train.overfit_loss) was asked for", loss, step_number_, config_.train.overfit_loss);
  if (leads() && !learned) spdlog::error("overfit check: loss {:.4f} after {} steps is above {} (train.overfit_loss): one batch was not learned", loss, step_number_, config_.train.overfit_loss);
  return learned ? ExitCode::done : ExitCode::not_learned;
}

}  // namespace hyscale
