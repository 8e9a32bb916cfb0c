#include "train/trainer.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "train/plan.h"
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

std::string clock_text(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string checkpoint_dtype(const Config& c, Device device) {
  return c.checkpoint.dtype != "auto" ? c.checkpoint.dtype : device.is_cuda() ? "bfloat16" : "float32";
}

}  // namespace

Trainer::Trainer(const Config& config, const std::string& resume, Device device, Communicator& data)
    : config_(config), device_(device), data_(data), model_(make_model(config)), schedule_(make_schedule(config)) {
  const std::string& directory = config_.checkpoint.directory;
  const std::string checkpoint = resume.empty() ? "" : find_checkpoint(directory, resume);
  if (resume.empty() && !list_checkpoints(directory).empty())
    throw UserError(concat(directory, ": already holds ", list_checkpoints(directory).back().second, "; continue it with --resume latest, or set checkpoint.directory to a new folder"));
  if (config_.model.stage == "warmup" && !device_.is_cuda() && checkpoint_dtype(config_, device_) == "bfloat16")
    throw UserError("checkpoint.dtype: bfloat16 would round the frozen weights of model.stage warmup; expected auto or float32");
  const Plan plan = make_plan(config_);
  if (!plan.fits())
    throw UserError(concat("the run needs ", plan.total_bytes() >> 20, " MiB on ", to_string(device_), ", available are ", plan.limit >> 20,
                           " MiB; --plan shows by class what takes them"));
  set_memory_plan(plan_line(plan));
  loader_ = std::make_unique<Loader>(loader_options(config_, config_.data.train, *model_, config_.data.shuffle));
  load_validation();
  ParameterStore& store = model_->parameters();
  store.allocate(device_, compute_dtype(device_));
  if (!checkpoint.empty()) {
    verify_checkpoint(checkpoint, false);
    check_same_model(checkpoint);
    load_weights(store, HfFolderReader(checkpoint + "/model"));
  } else if (!config_.model.weights.empty()) {
    const std::string mtp_layer = model_->mtp_depths() == 0 ? concat("model.layers.", model_->hf_config().value("num_hidden_layers", 0), ".") : "";
    const int64_t skipped = load_weights(store, HfFolderReader(config_.model.weights), mtp_layer);
    if (skipped > 0) spdlog::warn("{} tensors of the MTP layer in {} are not used: model.mtp is false", skipped, config_.model.weights);
  } else {
    store.initialize(static_cast<uint64_t>(config_.train.seed), model_->initializer_range());
  }
  StepOptions options = step_options(config_, device_, compute_dtype(device_));
  options.reserve = plan.step;
  options.data = &data_;
  step_ = std::make_unique<Step>(*model_, options);
  optimizer_ = std::make_unique<Optimizer>(store, optimizer_options(config_), device_, data_.rank(), data_.size(), &data_);
  if (!checkpoint.empty()) restore(checkpoint);
  first_step_ = step_number_;
  data_.barrier();  // every rank has read what it resumes from
  if (!leads()) return;
  fs::create_directories(directory);
  write_text_file(directory + "/config.yaml", config_yaml(config_));
  metrics_.emplace(directory + "/metrics.jsonl", step_number_);
  if (!checkpoint.empty()) spdlog::info("resumed from {} at step {}", checkpoint, step_number_);
  if (checkpoint.empty() && !resume.empty()) spdlog::info("no checkpoint in {} yet: starting anew", directory);
}

void Trainer::load_validation() {
  if (config_.data.validation.empty()) return;
  Loader loader(loader_options(config_, config_.data.validation, *model_, false));
  for (int64_t i = 0; i < config_.train.evaluate_sequences; ++i) validation_.push_back(to_host_sequence(loader.next()));
}

void Trainer::check_same_model(const std::string& path) const {
  const nlohmann::json saved_config = read_hf_config(path + "/model/config.json");
  for (const auto& [key, value] : model_->hf_config().items())
    if (key != "dtype" && key != "torch_dtype" && saved_config.value(key, nlohmann::json()) != value)
      throw UserError(concat(path, ": was trained with \"", key, "\" ", saved_config.value(key, nlohmann::json()).dump(), ", ", hf_config_path(config_), " has ", value.dump()));
}

void Trainer::restore(const std::string& path) {
  const nlohmann::json j = nlohmann::json::parse(read_text_file(path + "/trainer.json"), nullptr, false);
  if (!j.is_object()) throw UserError(path + "/trainer.json: is damaged");
  if (j.at("stage") != config_.model.stage)
    throw UserError(concat(path, ": was trained in stage ", j.at("stage").get<std::string>(), ", model.stage is ", config_.model.stage,
                           "; to change stages start a new run with model.weights: ", path, "/model"));
  step_number_ = j.at("step");
  tokens_ = j.at("tokens");
  not_finite_in_row_ = j.at("not_finite_in_row");
  saved_step_ = step_number_;
  loader_->restore(j.at("loader"));
  optimizer_->restore(path + "/optimizer", j.at("updates"));
}

Trainer::Outcome Trainer::train_one() {
  const auto start = std::chrono::steady_clock::now();
  Outcome o;
  std::vector<LoadedSequence> loaded;
  std::vector<HostSequence> sequences;
  StepTotals totals;
  for (int64_t i = 0; i < config_.train.micro_batches; ++i) {
    loaded.push_back(loader_->next());
    sequences.push_back(to_host_sequence(loaded.back()));
    totals.add(sequences.back(), model_->mtp_depths());
  }
  const int64_t calls_before = step_->selections().selector_calls();
  step_->begin(totals);
  for (size_t i = static_cast<size_t>(data_.rank()); i < sequences.size(); i += static_cast<size_t>(data_.size())) step_->micro_batch(sequences[i]);
  step_->reduce();
  optimizer_->update(schedule_.rate(step_number_ + 1), step_->sums(), step_->stream());
  o.update = optimizer_->result(step_->stream());
  o.losses = step_->losses();
  model_->after_step(o.update.applied, step_->stream());
  o.tokens = totals.queries;
  o.labels = totals.labels;
  o.selector_calls = step_->selections().selector_calls() - calls_before;
  o.seconds = seconds_since(start);
  ++step_number_;
  tokens_ += o.tokens;
  not_finite_in_row_ = o.update.applied ? 0 : not_finite_in_row_ + 1;
  if (!o.update.applied && leads()) report_not_finite(o, loaded);
  return o;
}

void Trainer::report_not_finite(const Outcome& o, const std::vector<LoadedSequence>& sequences) {
  const std::string path = fmt::format("{}/not-finite-step-{:08}.json", config_.checkpoint.directory, step_number_);
  nlohmann::json report{{"step", step_number_}, {"lm_loss", fmt::format("{}", o.losses.lm)}, {"grad_norm", fmt::format("{}", o.update.norm)},
                        {"indexer_grad_norm", fmt::format("{}", o.update.indexer_norm)}, {"sequences", nlohmann::json::array()}};
  if (const auto nan = step_->selections().find_nan(step_->stream()))
    report["nan_index_score"] = {{"selecting_layer", nan->slot}, {"query", nan->query}};
  for (const LoadedSequence& s : sequences) report["sequences"].push_back({{"documents", s.describe}, {"tokens", s.tokens}});
  write_text_file(path, report.dump() + "\n");
  spdlog::error("step {}: loss or gradient is not finite (loss {}, gradient norm {}); the step is not applied, its tokens are in {}", step_number_, o.losses.lm,
                o.update.norm, path);
}

void Trainer::record(const Outcome& o, double lr) {
  const auto number = [](double v) { return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr); };
  nlohmann::json line{{"step", step_number_}, {"loss", number(o.losses.lm)}, {"index_loss", number(o.losses.index)}, {"balance_loss", number(o.losses.balance)},
                      {"lr", lr}, {"grad_norm", number(o.update.norm)}, {"indexer_grad_norm", number(o.update.indexer_norm)}, {"applied", o.update.applied},
                      {"tokens", tokens_}, {"labels", o.labels}, {"seconds", o.seconds}, {"tokens_per_second", static_cast<double>(o.tokens) / o.seconds},
                      {"selector_calls", o.selector_calls}, {"peak_bytes", peak_bytes(device_)}};
  for (double v : o.losses.index_of_layer) line["index_loss_of_layer"].push_back(number(v));
  if (model_->mtp_depths() > 0) line["mtp_loss"] = number(o.losses.mtp);
  metrics_->write(line);
}

void Trainer::progress(const Outcome& o, double lr) const {
  const double per_step = seconds_since(started_) / static_cast<double>(step_number_ - first_step_);
  spdlog::info("step {}/{}  loss {:.4f}  index {:.4f}{}  grad {:.3f}  lr {:.2e}  {:.0f} tokens/s  ETA {}", step_number_, config_.train.steps, o.losses.lm,
               o.losses.index, model_->mtp_depths() > 0 ? fmt::format("  mtp {:.4f}", o.losses.mtp) : "", o.update.norm, lr,
               static_cast<double>(o.tokens) / o.seconds, clock_text(per_step * static_cast<double>(config_.train.steps - step_number_)));
}

double Trainer::evaluate() { return step_->evaluate(validation_).lm; }

void Trainer::evaluate_and_record() {
  const auto start = std::chrono::steady_clock::now();
  const double loss = evaluate();
  if (!leads()) return;
  metrics_->write({{"step", step_number_}, {"validation_loss", loss}, {"seconds", seconds_since(start)}});
  spdlog::info("step {}: validation loss {:.4f} over {} sequences", step_number_, loss, validation_.size());
}

void Trainer::save() {
  saved_step_ = step_number_;
  const auto start = std::chrono::steady_clock::now();
  const std::string& directory = config_.checkpoint.directory;
  // The leader makes the folder and its parts; then every rank adds its optimizer state; then the leader commits.
  std::optional<CheckpointWriter> writer;
  if (leads()) {
    writer.emplace(directory, step_number_);
    save_weights(*model_, model_->parameters(), writer->path() + "/model", checkpoint_dtype(config_, device_));
    fs::create_directories(writer->path() + "/optimizer");
    const nlohmann::json trainer{{"step", step_number_}, {"tokens", tokens_}, {"updates", optimizer_->updates()}, {"not_finite_in_row", not_finite_in_row_},
                                 {"stage", config_.model.stage}, {"loader", loader_->cursor()}, {"config", config_yaml(config_)}};
    write_text_file(writer->path() + "/trainer.json", trainer.dump(1) + "\n");
  }
  data_.barrier();
  optimizer_->save(CheckpointWriter::partial_path(directory, step_number_) + "/optimizer");
  data_.barrier();
  if (leads()) {
    const std::string path = writer->commit();
    remove_old_checkpoints(directory, config_.checkpoint.keep, config_.checkpoint.milestone_every);
    spdlog::info("saved {} in {:.1f} s", path, seconds_since(start));
  }
  data_.barrier();
}

// The ranks stop after the same step: whichever has a signal, all have it.
int Trainer::agreed_signal() {
  if (data_.size() == 1) return stop_signal();
  int32_t signal = stop_signal();
  data_.all_reduce(Tensor(&signal, DType::i32, Device{}, {1}), ReduceOp::max, {});
  return signal;
}

ExitCode Trainer::run() {
  started_ = std::chrono::steady_clock::now();
  const auto due = [&](int64_t every) { return every > 0 && step_number_ % every == 0; };
  while (step_number_ < config_.train.steps) {
    const double lr = schedule_.rate(step_number_ + 1);
    const Outcome o = train_one();
    if (leads()) record(o, lr);
    if (leads() && (due(config_.run.log_every) || step_number_ == config_.train.steps)) progress(o, lr);
    if (not_finite_in_row_ >= config_.train.nonfinite_limit) {
      if (leads()) spdlog::error("{} steps in a row were not finite (train.nonfinite_limit): the run ends; the last checkpoint is unharmed", not_finite_in_row_);
      return ExitCode::not_finite;
    }
    const bool last = step_number_ == config_.train.steps;
    const int signal = agreed_signal();
    if (!validation_.empty() && (due(config_.train.evaluate_every) || last) && config_.model.stage == "sparse") evaluate_and_record();
    if (due(config_.checkpoint.every) || last || signal) save();
    if (signal && !last) {
      if (leads()) spdlog::info("stopped by {} after step {}; continue with --resume latest", signal_name(signal), step_number_);
      return ExitCode::stopped;
    }
  }
  return ExitCode::done;
}

}  // namespace hyscale
