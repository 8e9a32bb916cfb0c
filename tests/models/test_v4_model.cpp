// DeepSeek-V4 beyond its golden: recompute, replay, packed documents, MTP, configuration.
#include "models/registry.h"
#include "tests/support/model_runs.h"

namespace hyscale {
namespace {

using namespace test;

nlohmann::json tiny_config() { return read_hf_config("tests/goldens/deepseek_v4/config.json"); }

TEST(V4Model, RecomputeReplayAndStorageChangeNoBit) {
  StepOptions again = run_options(Recompute::layer), packed = again, host = again;
  host.storage = SelectionStorage::host;
  again.replay = false;
  packed.storage = SelectionStorage::packed;
  for (const StepOptions& o : {run_options(Recompute::layer), again, packed, host}) expect_same_run(tiny_config(), run_options(), o, {.mtp = true});
}

TEST(V4Model, F32StreamsBesideF32ActivationsChangeNoBit) { expect_f32_residual_changes_no_bit(tiny_config(), {.mtp = true}); }

TEST(V4Model, ReplayRunsTheSelectorOncePerSelectingLayer) {
  const auto model = make_random(tiny_config());
  EXPECT_EQ(model->num_selecting_layers(), 2);
  EXPECT_EQ(train_once(*model, run_options(Recompute::layer), {sequence({40}), sequence({30})}).selector_calls, 2 * 2);
}

// Lengths below a group, a window and a compressed group; at their edges; no multiple of anything.
TEST(V4Model, DocumentsAreTheSamePackedAndAlone) { expect_same_packed_and_alone(tiny_config(), {3, 4, 5, 7, 8, 9, 15, 16, 17, 1, 0, 64, 33}, {.mtp = true}); }

// A micro-batch without one complete group: the compressor and the indexer get zeros, not nothing.
TEST(V4Model, WithoutACompleteGroupCompressorsGetZeroGradients) {
  const auto model = make_random(tiny_config());
  const TrainResult r = train_once(*model, run_options(Recompute::layer), {sequence({3, 2, 1, 3})});
  EXPECT_TRUE(std::isfinite(r.losses.lm));
  EXPECT_EQ(r.losses.index, 0);
  for (const Parameter& p : model->parameters().all())
    if (contains(p.name, "compressor") || contains(p.name, "indexer")) expect_zero_gradient(p);
}

TEST(V4Model, LmAndIndexLossReachTheirOwnParametersOnly) { expect_losses_reach_their_own_parameters(tiny_config()); }

TEST(V4Model, MtpGradientsMatchCentralDifferences) {
  nlohmann::json c = tiny_config();
  c["index_topk"] = 64;          // every visible entry is selected: the loss is smooth
  c["num_experts_per_tok"] = 8;  // and so is the routing
  c["swiglu_limit"] = 100;
  const auto model = make_random(c, {.mtp = true});
  for (Parameter& p : model->parameters().all())
    if (p.name.ends_with("_scale")) std::fill_n(p.value.f32(), p.value.elements(), 1.0f);  // so that the streams' weights matter
  const HostSequence s = sequence({9, 1, 14});
  StepOptions o = run_options();
  o.balance_coefficient = 0;
  train_once(*model, o, {s});
  for (const char* name : {"mtp.0.e_proj.weight", "mtp.0.h_proj.weight", "mtp.0.enorm.weight", "mtp.0.hnorm.weight", "mtp.0.norm.weight", "mtp.0.hc_head_fn", "mtp.0.hc_attn_fn",
                           "mtp.0.hc_ffn_base", "mtp.0.attn.attn_sink", "mtp.0.attn.wq_b.weight", "model.embed_tokens.weight", "head.weight"})
    expect_directional_derivative(*model, o, s, name);
}

TEST(V4Model, ExpertLoadsMoveTheBiasOfRoutedLayersOnly) {
  const auto model = make_random(tiny_config(), {.router_bias_update_rate = 0.125f});
  train_once(*model, run_options(), {sequence({30, 11})});
  model->after_step(true, {});
  EXPECT_EQ(model->parameters().find("model.layers.0.ffn.gate.bias"), nullptr);
  const Tensor bias = model->parameters().find("model.layers.1.ffn.gate.bias")->value;
  double moved = 0;
  for (int64_t i = 0; i < bias.elements(); ++i) moved += std::abs(bias.f32()[i]);
  EXPECT_GT(moved, 0);
  const Tensor counts = model->expert_counts();
  for (int64_t i = 0; i < counts.elements(); ++i) EXPECT_EQ(counts.data<int64_t>()[i], 0);
}

TEST(V4Model, ANewHashTableGivesEveryTokenDistinctExperts) {
  const auto model = make_random(tiny_config());
  const Parameter& table = *model->parameters().find("model.layers.0.ffn.gate.tid2eid");
  std::vector<int64_t> loads(8, 0);
  for (int64_t v = 0; v < 160; ++v) {
    EXPECT_NE(table.value.f32()[2 * v], table.value.f32()[2 * v + 1]);
    for (int64_t j = 0; j < 2; ++j) ++loads.at(static_cast<size_t>(table.value.f32()[2 * v + j]));
  }
  EXPECT_EQ(loads, std::vector<int64_t>(8, 40));
}

// Released form of the configuration: compress_ratios with MTP's entry behind, rope_scaling, num_hash_layers.
nlohmann::json released_form() {
  nlohmann::json c = tiny_config();
  for (const char* key : {"layer_types", "mlp_layer_types", "compress_rates", "rope_parameters"}) c.erase(key);
  c["compress_ratios"] = {0, 4, 16, 4, 0};
  c["num_hash_layers"] = 1;
  c["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}, {"beta_fast", 32}, {"beta_slow", 1}};
  return c;
}

TEST(V4Config, BothFormsAreTheSameModel) {
  const auto a = make_random(tiny_config()), b = make_random(released_form());
  const HostSequence s = sequence({70, 9});
  EXPECT_TRUE(Step(*a, run_options()).logits(s) == Step(*b, run_options()).logits(s));
}

TEST(V4Config, CensusOfTheReleasedModel) {
  const char* path = "configs/models/deepseek-v4-flash.json";
  const auto trunk = make_model(read_hf_config(path), path, {}), all = make_model(read_hf_config(path), path, {.mtp = true});
  EXPECT_NEAR(static_cast<double>(trunk->parameters().num_elements()), 284.33e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(all->parameters().num_elements() - trunk->parameters().num_elements()), 6.61e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(trunk->num_active_elements()), 13.27e9, 0.005e9);
  EXPECT_EQ(all->num_active_elements(), trunk->num_active_elements());
}

TEST(V4Config, RefusesWhatItDoesNotCompute) {
  const auto refused = [](const char* key, const nlohmann::json& value, const char* message) { EXPECT_CONTAINS(config_error(tiny_config(), key, value), message); };
  refused("scoring_func", "sigmoid", "sqrtsoftplus");
  refused("tie_word_embeddings", true, "tie_word_embeddings");
  refused("layer_types", {"sliding_attention"}, "a list of 4 entries");
  refused("layer_types", {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"}, "layer_types[1]");
  refused("o_groups", 3, "a divisor of num_attention_heads");
  refused("swiglu_limit", -1, "a positive number");
  refused("mlp_layer_types", {"moe", "moe", "dense", "moe"}, "mlp_layer_types[2]");
  refused("layer_types", nullptr, "dir/config.json: \"layer_types\" is null; expected the type of every layer, or compress_ratios");
  refused("compress_rates", nlohmann::json::object(), "dir/config.json: compress_rates: \"compressed_sparse_attention\" is missing");
  nlohmann::json c = tiny_config();
  c["rope_parameters"]["compress"]["rope_type"] = "linear";
  EXPECT_THROW(make_model(c, "config.json", {}), UserError);
  EXPECT_THROW(make_model(tiny_config(), "config.json", {.mtp = true, .mtp_depths = 2}), UserError);
  StepOptions warmup = run_options();
  warmup.stage = Stage::warmup;
  const auto model = make_random(tiny_config());
  EXPECT_THROW(train_once(*model, warmup, {sequence({8})}), UserError);
}

}  // namespace
}  // namespace hyscale
