// The configuration of a run: one struct per section, every key declared once in config.cpp.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hyscale {

struct DatasetEntry {
  std::string path;
  double weight = 1;
};

// A part of a run with steps, losses and learning rates of its own.
struct StageEntry {
  std::string stage = "sparse", schedule = "constant";
  int64_t steps = 0, warmup_steps = 0, decay_steps = 0;
  double lr = 0, min_lr = 0;
};

// What differs for the parameters of one role.
struct OptimizerGroup {
  std::string name = "inherit";
  double lr = 0, lr_scale = 1;  // lr 0: lr_scale decides
};

struct Config {
  struct Model {
    std::string config, weights, stage = "sparse", indexer_dtype = "activation";
    double latent_norm_eps = 1e-6;
    bool mtp = false;
    int64_t mtp_depths = 1;
  } model;
  struct Data {
    std::vector<DatasetEntry> train, validation;
    int64_t sequence_tokens = 0, seed = 0;
    bool shuffle = true;
    std::string skip;
  } data;
  struct Train {
    int64_t steps = 0, micro_batches = 1, seed = 0;
    std::string recompute = "none", residual_dtype = "activation", selection_storage = "int32";
    bool selection_replay = true, deterministic = false;
    int64_t evaluate_every = 0, evaluate_sequences = 8, nonfinite_limit = 3;
    double overfit_loss = 0;
    std::vector<StageEntry> stages;
  } train;
  struct Loss {
    double index_coefficient = 1e-3, balance_coefficient = 1e-4, mtp_coefficient = 0.1, router_bias_update_rate = 1e-3;
  } loss;
  struct Optimizer {
    std::string name = "adamw", newton_schulz = "quintic";
    double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip_norm = 1, indexer_clip_norm = 1;
    double momentum = 0.95, update_rms = 0.2;
    int64_t newton_schulz_steps = 5, polish_steps = 0;
    bool split_heads = true;
    std::map<std::string, OptimizerGroup> groups;  // by role
    bool uses_muon() const;
  } optimizer;
  struct Schedule {
    std::string kind = "cosine";
    int64_t warmup_steps = 0, decay_steps = 0;
    double min_lr = 0;
  } schedule;
  struct Guard {
    double loss_factor = 0, grad_norm_factor = 0;
    int64_t window = 64, min_steps = 16, skip_limit = 8;
    std::string action = "skip";
    bool acts() const { return loss_factor > 0 || grad_norm_factor > 0; }
  } guard;
  struct Checkpoint {
    std::string directory = "runs/default", dtype = "auto";
    int64_t every = 0, keep = 3, milestone_every = 0;
    bool asynchronous = true;
  } checkpoint;
  struct Run {
    std::string device = "auto";
    int64_t log_every = 1, replica_check_every = 0;
    double hang_seconds = 600, time_limit_seconds = 0, straggler_factor = 2;
    bool tensorboard = false;
    int64_t parts_every = 10, selection_health_every = 0, profile_start = 1, profile_steps = 0;
  } run;
  struct Parallel {
    int64_t data = 1, context = 1, expert = 1;
    std::string neighbours = "context", context_order = "zigzag", context_transport = "ring", sharding = "optimizer";
  } parallel;
  struct Plan {
    int64_t memory_bytes = 0;
  } plan;
};

// The configuration of one stage of train.stages as that of a run: its steps, stage, learning rate and schedule take the places
// of the run's own. A configuration without stages is its only stage.
Config stage_config(const Config&, size_t stage);
size_t num_stages(const Config&);
struct StagePlace {
  size_t stage;
  int64_t step;  // within it, counted from 1
};
StagePlace stage_of_step(const Config&, int64_t step);  // steps are counted from 1

// Which of the files that a configuration names must exist: none, the model's config.json, or all that a run reads.
enum class Inputs { named, model, all };

// Reads a YAML file strictly and applies overrides "a.b=value" on top. Throws UserError "file:line: key: ..." (or naming the
// override) for unknown, duplicate, missing and mistyped keys, values out of range, combinations that cannot work, and inputs
// that do not exist.
Config read_config(const std::string& path, const std::vector<std::string>& overrides = {}, Inputs inputs = Inputs::named);

// The effective configuration as YAML that read_config accepts.
std::string config_yaml(const Config&);

// The keys at which a configuration differs from an earlier effective one (config_yaml), each as "key now (was then)". Throws
// UserError naming `file` where the earlier one is no YAML.
std::vector<std::string> config_changes(const std::string& earlier, const std::string& file, const Config&);

// Reference of all keys, as Markdown.
std::string config_reference();

}  // namespace hyscale
