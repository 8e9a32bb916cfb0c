// The schema: every key with its range and meaning, visited by the reader, the printer and the reference.
// A visitor has section(name, meaning, function), field(...) for each type, and list(...) and map(...) of structs with fields.
#pragma once
#include <initializer_list>
#include <limits>

#include "config/config.h"

namespace hyscale {

// Bounds of a number; `required` keys have no default.
struct Limits {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool low_excluded = false, required = false;
};
using Choices = std::initializer_list<const char*>;

template <typename Visitor>
void visit_model(Visitor& v, Config::Model& m) {
  v.text("config", m.config, true, "Hugging Face config.json of the model, or a folder that holds one.");
  v.text("weights", m.weights, false, "Hugging Face folder with starting weights; empty: random weights from train.seed.");
  v.choice("stage", m.stage, Choices{"sparse", "warmup"}, "sparse: everything trains on selected keys. warmup: dense attention, only the indexers train.");
  v.choice("indexer_dtype", m.indexer_dtype, Choices{"activation", "e4m3"},
           "e4m3: index queries and keys are rounded to 8 bits (a power-of-two scale per row) to select by; the index loss takes them as they were. GLM only, for indexers that serve in FP8.");
  v.field("latent_norm_eps", m.latent_norm_eps, Limits{0, 1, true}, "Epsilon of the two latent norms of attention.");
  v.field("mtp", m.mtp, "Train the multi-token-prediction layer (its tensors are part of checkpoints).");
  v.field("mtp_depths", m.mtp_depths, Limits{1, 16}, "Uses of the MTP layer, each predicting one token further.");
}

template <typename Visitor>
void visit_data(Visitor& v, Config::Data& d) {
  v.datasets("train", d.train, true, "Training data sets, path prefixes of .bin/.idx files with weights (tokens drawn in proportion).");
  v.datasets("validation", d.validation, false, "Data sets for evaluation.");
  v.field("sequence_tokens", d.sequence_tokens, Limits{1, 1 << 30, false, true}, "Tokens of one packed sequence.");
  v.field("seed", d.seed, Limits{0}, "Seed of the order of documents.");
  v.field("shuffle", d.shuffle, "Shuffle documents in every epoch.");
  v.text("skip", d.skip, false, "File of training sequences to leave out: per line the number of a sequence, or a range FIRST-LAST; empty: none.");
}

template <typename Visitor>
void visit_stage(Visitor& v, StageEntry& s) {
  v.choice("stage", s.stage, Choices{"sparse", "warmup"}, "As model.stage.");
  v.field("steps", s.steps, Limits{1, 1e12, false, true}, "Steps of the stage.");
  v.field("lr", s.lr, Limits{0, std::numeric_limits<double>::infinity(), false, true}, "Peak learning rate.");
  v.choice("schedule", s.schedule, Choices{"constant", "linear", "cosine", "wsd"}, "As schedule.kind, over the stage's steps.");
  v.field("warmup_steps", s.warmup_steps, Limits{0}, "Steps of linear rise from 0.");
  v.field("decay_steps", s.decay_steps, Limits{0}, "wsd only: steps of the final decay.");
  v.field("min_lr", s.min_lr, Limits{0}, "Learning rate at the end of decay.");
}

template <typename Visitor>
void visit_train(Visitor& v, Config::Train& t) {
  v.field("steps", t.steps, Limits{1, 1e12, false, true}, "Optimizer steps of the whole run, resumed parts included.");
  v.field("micro_batches", t.micro_batches, Limits{1, 1e6}, "Sequences per step, over all data-parallel ranks; gradients are summed, each label counts once.");
  v.choice("recompute", t.recompute, Choices{"none", "layer"}, "layer: keep only each layer's input and recompute the rest in backward.");
  v.choice("residual_dtype", t.residual_dtype, Choices{"activation", "float32"},
           "float32: the hidden streams between layers and their gradients are stored and added in f32, and so are MLA's latents before their norms; products compute in the run's dtype as before.");
  v.field("selection_replay", t.selection_replay, "Recomputation reads the stored selections; false selects again (same result, for comparison).");
  v.choice("selection_storage", t.selection_storage, Choices{"int32", "packed", "host"},
           "packed: stored selections take half the bytes; one is unpacked at a time. host: packed, in pinned host memory; copies run beside the work.");
  v.field("deterministic", t.deterministic, "Bit-equal results across runs, also where a faster way exists.");
  v.field("seed", t.seed, Limits{0}, "Seed of random starting weights.");
  v.field("evaluate_every", t.evaluate_every, Limits{0}, "Steps between evaluations; 0: only after the last step. Without validation data there are none.");
  v.field("evaluate_sequences", t.evaluate_sequences, Limits{1, 1e6}, "Sequences of one evaluation, always the same ones.");
  v.field("nonfinite_limit", t.nonfinite_limit, Limits{1, 1e6}, "Steps in a row with a non-finite loss or gradient that end the run; each is skipped and reported.");
  v.field("overfit_loss", t.overfit_loss, Limits{0}, "A check: every step trains on the first step's sequences, and the run must reach this loss, else it ends with exit code 6; 0: no check.");
  v.list("stages", t.stages, "Stages one after the other, in place of model.stage, optimizer.lr and schedule; optimizer state and data go on.",
         [](auto& s, StageEntry& e) { visit_stage(s, e); });
}

template <typename Visitor>
void visit_loss(Visitor& v, Config::Loss& l) {
  v.field("index_coefficient", l.index_coefficient, Limits{0}, "Factor of the index loss; 0: indexers stay as they are.");
  v.field("balance_coefficient", l.balance_coefficient, Limits{0}, "Factor of the sequence balance loss of the experts.");
  v.field("mtp_coefficient", l.mtp_coefficient, Limits{0}, "Factor of the mean MTP loss.");
  v.field("router_bias_update_rate", l.router_bias_update_rate, Limits{0}, "Step of the router's selection bias toward even load; 0: fixed.");
}

template <typename Visitor>
void visit_group(Visitor& v, OptimizerGroup& g) {
  v.choice("name", g.name, Choices{"inherit", "adamw", "muon"}, "Optimizer of these parameters; inherit: what optimizer.name gives them.");
  v.field("lr", g.lr, Limits{0}, "Peak learning rate of these parameters, which follows the schedule; 0: lr_scale decides.");
  v.field("lr_scale", g.lr_scale, Limits{0}, "Learning rate relative to that of all.");
}

template <typename Visitor>
void visit_optimizer(Visitor& v, Config::Optimizer& o) {
  v.choice("name", o.name, Choices{"adamw", "muon"}, "muon: Muon for the matrices of dense, experts and indexer (see groups), AdamW for the rest.");
  v.field("lr", o.lr, Limits{0}, "Peak learning rate.");
  v.field("beta1", o.beta1, Limits{0, 0.999999}, "AdamW: decay of the first moment.");
  v.field("beta2", o.beta2, Limits{0, 0.999999}, "AdamW: decay of the second moment.");
  v.field("eps", o.eps, Limits{0, 1, true}, "AdamW: epsilon.");
  v.field("momentum", o.momentum, Limits{0, 0.999999}, "Muon: decay of the momentum (Nesterov).");
  v.field("update_rms", o.update_rms, Limits{0, 10, true}, "Muon: root mean square of an update before the learning rate.");
  v.choice("newton_schulz", o.newton_schulz, Choices{"quintic", "polar_express"}, "Muon: polynomials that orthogonalise; quintic: always the same one; polar_express: the best one for each step.");
  v.field("newton_schulz_steps", o.newton_schulz_steps, Limits{1, 32}, "Muon: uses of them.");
  v.field("polish_steps", o.polish_steps, Limits{0, 32}, "Muon: further steps that bring all singular values to 1; quintic only.");
  v.field("split_heads", o.split_heads, "Muon: each head's part of an up-projection of attention (q, keys, values, index queries) is a matrix of its own.");
  v.field("weight_decay", o.weight_decay, Limits{0}, "Decoupled weight decay; norms and biases have none.");
  v.field("clip_norm", o.clip_norm, Limits{0}, "Largest gradient norm of everything but the indexers; 0: no clipping.");
  v.field("indexer_clip_norm", o.indexer_clip_norm, Limits{0}, "Largest gradient norm of the indexers; 0: no clipping.");
  v.map("groups", o.groups, Choices{"dense", "embedding", "head", "router", "experts", "indexer", "vectors"},
        "What differs for parameters of a role; dense: matrices of attention and MLPs; vectors: norm weights and biases of all but the indexers.", [](auto& s, OptimizerGroup& g) { visit_group(s, g); });
}

template <typename Visitor>
void visit_schedule(Visitor& v, Config::Schedule& s) {
  v.choice("kind", s.kind, Choices{"constant", "linear", "cosine", "wsd"},
           "After warm-up: constant; linear or cosine decay to the end; wsd: constant, then linear decay over the last decay_steps.");
  v.field("warmup_steps", s.warmup_steps, Limits{0}, "Steps of linear rise from 0.");
  v.field("decay_steps", s.decay_steps, Limits{0}, "wsd only: steps of the final decay.");
  v.field("min_lr", s.min_lr, Limits{0}, "Learning rate at the end of decay.");
}

template <typename Visitor>
void visit_guard(Visitor& v, Config::Guard& g) {
  v.field("loss_factor", g.loss_factor, Limits{0}, "A loss above this many times the median of the last steps is a spike; 0: not watched.");
  v.field("grad_norm_factor", g.grad_norm_factor, Limits{0}, "The same for the gradient norms of the trunk and of the indexers.");
  v.field("window", g.window, Limits{1, 1e6}, "Steps that the median ranges over.");
  v.field("min_steps", g.min_steps, Limits{1, 1e6}, "Steps that must have been seen before one can be a spike.");
  v.choice("action", g.action, Choices{"skip", "stop"}, "skip: a spike changes no weight and its tokens are reported. stop: it ends the run too, with exit code 5.");
  v.field("skip_limit", g.skip_limit, Limits{1, 1e6}, "skip: spikes in a row that end the run.");
}

template <typename Visitor>
void visit_rest(Visitor& v, Config& c) {
  v.section("checkpoint", "Checkpoints.", [&](auto& s) {
    s.text("directory", c.checkpoint.directory, false, "Folder of the run: checkpoints, metrics.jsonl, the effective config.");
    s.field("every", c.checkpoint.every, Limits{0}, "Steps between checkpoints; 0: only at the end and on a signal.");
    s.field("keep", c.checkpoint.keep, Limits{1, 1e6}, "Newest checkpoints to keep.");
    s.field("milestone_every", c.checkpoint.milestone_every, Limits{0}, "Checkpoints of these steps are kept for good; 0: none.");
    s.field("asynchronous", c.checkpoint.asynchronous, "Files are written beside the steps that follow, from a copy in host memory; false: training waits.");
    s.choice("dtype", c.checkpoint.dtype, Choices{"auto", "float32", "bfloat16"}, "Dtype of model/ weights; auto: what the run computes in. Resuming is exact with any.");
  });
  v.section("run", "This run.", [&](auto& s) {
    s.choice("device", c.run.device, Choices{"auto", "cpu", "cuda"}, "auto: cuda where a device is usable.");
    s.field("hang_seconds", c.run.hang_seconds, Limits{0, 1e6},
            "Seconds without any progress of a rank that end the job, naming rank, host and operation; five times as many until the first step is done. 0: no watch.");
    s.field("time_limit_seconds", c.run.time_limit_seconds, Limits{0}, "Time after which the run saves and ends with exit code 75, as after a signal; 0: none.");
    s.field("log_every", c.run.log_every, Limits{1, 1e9}, "Steps between progress lines; metrics.jsonl has every step.");
    s.field("replica_check_every", c.run.replica_check_every, Limits{0}, "Steps between checks that the weights which ranks share are equal, bit for bit; a difference ends the run. 0: no checks.");
    s.field("straggler_factor", c.run.straggler_factor, Limits{0},
            "The slowest rank is named when its computing took this many times the median of all; 0: no ranks are timed.");
    s.field("parts_every", c.run.parts_every, Limits{0, 1e9}, "Steps between measurements of how a step's time divides among its parts; 0: none.");
    s.field("selection_health_every", c.run.selection_health_every, Limits{0, 1e9},
            "Steps between measurements of each indexer's selection on a few queries: recall of attention mass, overlaps, ties. 0: none.");
    s.field("tensorboard", c.run.tensorboard, "Also write what metrics.jsonl holds as TensorBoard event files, into tensorboard/ of the run's folder.");
    s.field("profile_start", c.run.profile_start, Limits{1, 1e12}, "First step that a profiler captures.");
    s.field("profile_steps", c.run.profile_steps, Limits{0, 1e6}, "Steps that a profiler captures (cudaProfilerStart and cudaProfilerStop around them); 0: none. Needs device cuda.");
  });
  v.section("parallel", "Ranks, started with mpirun.", [&](auto& s) {
    s.field("data", c.parallel.data, Limits{1, 1e6}, "Ranks that work on different sequences of a step. data x context is the number of ranks of the job.");
    s.field("context", c.parallel.context, Limits{1, 1e6}, "Ranks that work on different parts of one sequence.");
    s.field("expert", c.parallel.expert, Limits{1, 1e6}, "Neighbouring ranks that share out the experts; divides both the ranks of the job and the experts.");
    s.choice("neighbours", c.parallel.neighbours, Choices{"context", "data"}, "Which of the two groups is made of neighbouring ranks, and so lies on one host where it can.");
    s.choice("context_order", c.parallel.context_order, Choices{"zigzag", "contiguous"}, "zigzag: each rank has an early and a late segment, so that causal work is even.");
    s.choice("context_transport", c.parallel.context_transport, Choices{"ring", "all_gather"}, "ring: rows of other ranks arrive while those at hand are scored. all_gather: all at once.");
    s.choice("sharding", c.parallel.sharding, Choices{"optimizer", "weights"},
             "optimizer: ranks share the optimizer state (ZeRO-1). weights: also the weights and gradients of the decoder layers, gathered for use (ZeRO-3).");
  });
  v.section("plan", "Limits that --plan and the start of a run check.", [&](auto& s) {
    s.field("memory_bytes", c.plan.memory_bytes, Limits{0}, "Memory of one rank; 0: what the device has (with --plan on a machine without one: no limit).");
  });
}

template <typename Visitor>
void visit_config(Visitor& v, Config& c) {
  v.section("model", "The model.", [&](auto& s) { visit_model(s, c.model); });
  v.section("data", "Token data sets (see hyscale-data).", [&](auto& s) { visit_data(s, c.data); });
  v.section("train", "The loop.", [&](auto& s) { visit_train(s, c.train); });
  v.section("loss", "Losses beside the language-model loss.", [&](auto& s) { visit_loss(s, c.loss); });
  v.section("optimizer", "AdamW and Muon.", [&](auto& s) { visit_optimizer(s, c.optimizer); });
  v.section("schedule", "Learning rate over steps.", [&](auto& s) { visit_schedule(s, c.schedule); });
  v.section("guard", "Against spikes of loss and gradient.", [&](auto& s) { visit_guard(s, c.guard); });
  visit_rest(v, c);
}

}  // namespace hyscale
