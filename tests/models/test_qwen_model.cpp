// Qwen3.8 beyond its goldens: census, recompute, replay, packed documents, MTP, training, files, configuration.
#include "checkpoint/hf_folder.h"
#include "models/registry.h"
#include "optim/optimizer.h"
#include "tests/support/model_runs.h"
#include "tests/support/processes.h"
#include "train/weights.h"

namespace hyscale {
namespace {

using namespace test;

nlohmann::json plain_config() { return read_hf_config("tests/goldens/qwen_qsa/config.json"); }
nlohmann::json ngram_config() { return read_hf_config("tests/goldens/qwen_qsa_ple/config.json"); }
nlohmann::json mtp_config() {
  nlohmann::json c = ngram_config();
  c["mtp_num_hidden_layers"] = 1;
  return c;
}

// Elements and tensors of the vision tower that released files hold beside the text model.
std::pair<int64_t, int64_t> vision_tower(const nlohmann::json& v) {
  const int64_t width = v["hidden_size"], inner = v["intermediate_size"], out = v["out_hidden_size"], depth = v["depth"];
  const int64_t merge = v["spatial_merge_size"].get<int64_t>() * v["spatial_merge_size"].get<int64_t>() * width;
  const int64_t patch = v["patch_size"].get<int64_t>() * v["patch_size"].get<int64_t>() * v["temporal_patch_size"].get<int64_t>() * v["in_channels"].get<int64_t>();
  const int64_t block = 4 * width + 3 * width * (width + 1) + width * (width + 1) + inner * (width + 1) + width * (inner + 1);
  return {width * (patch + 1) + v["num_position_embeddings"].get<int64_t>() * width + depth * block + 2 * width + merge * (merge + 1) + out * (merge + 1), 12 * depth + 9};
}

TEST(QwenConfig, CensusOfTheReleasedModel) {
  const nlohmann::json config = read_hf_config("configs/models/qwen3.8-flash-next.json");
  const std::unique_ptr<Model> model = make_model(config, "config.json", {.mtp = true});
  const auto [elements, tensors] = vision_tower(config["vision_config"]);
  EXPECT_EQ(model->parameters().num_elements() + elements, 179999981459);
  EXPECT_EQ(model->parameters().num_hf_tensors() + tensors, 1658);
  EXPECT_EQ(model->num_selecting_layers(), 12 + 1);
  EXPECT_NE(model->parameters().find("model.language_model.layers.47.mlp.experts.gate_up_proj"), nullptr);
  EXPECT_NE(model->parameters().find("mtp.layers.0.self_attn.indexer.index_qk_proj.weight"), nullptr);
}

// Released files: the text model inside another, experts of a layer as one tensor.
TEST(QwenConfig, TheReleasedFormIsTheSameModel) {
  nlohmann::json text = ngram_config();
  for (nlohmann::json& type : text["layer_types"])
    if (type == "qwen_sparse_attention") type = "full_attention";
  const auto plain = make_random(ngram_config()), released = make_random({{"model_type", "qwen4_exp"}, {"text_config", text}});
  for (const Parameter& p : plain->parameters().all()) {
    const std::string name = p.name.starts_with("model.") ? "model.language_model." + p.name.substr(6) : p.name;
    Parameter* other = released->parameters().find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(other->hf.size(), p.cut == Cut::experts ? 1u : p.hf.size()) << name;
    std::copy_n(p.value.f32(), p.value.elements(), other->value.f32());
  }
  const HostSequence s = sequence({70, 9});
  EXPECT_TRUE(Step(*plain, run_options()).logits(s) == Step(*released, run_options()).logits(s));
  EXPECT_THROW(make_model({{"model_type", "qwen4_exp"}, {"text_config", text}}, "config.json", {.expert_rank = 0, .expert_ranks = 2}), UserError);
}

TEST(QwenConfig, RefusesWhatItDoesNotCompute) {
  const auto refused = [](const char* key, const nlohmann::json& value, const char* message) { EXPECT_CONTAINS(config_error(ngram_config(), key, value), message); };
  refused("hidden_act", "gelu", "dir/config.json: \"hidden_act\" is \"gelu\"; expected supported is \"silu\"");
  refused("norm_topk_prob", false, "norm_topk_prob");
  refused("indexer_kv_heads", 2, "indexer_kv_heads");
  refused("indexer_budget", 18, "a multiple of indexer_compress_ratio, 4");
  refused("output_gate_type", "tanh", "\"sigmoid\" or \"silu\"");
  refused("num_key_value_heads", 3, "a divisor of num_attention_heads, 4");
  refused("layer_types", {"linear_attention"}, "a list of 4 entries");
  refused("ple_layer_ids", {5}, "different layers from 1 to 4");
  refused("split_ngram_parts", 3, "a divisor of the 512 rows");
  refused("rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}, "rope_type");
  refused("eos_token_id", nullptr, "\"eos_token_id\" is missing");
  EXPECT_THROW(make_model(ngram_config(), "config.json", {.mtp = true}), UserError);
}

TEST(QwenModel, WarmupTrainsIndexersOnly) { expect_warmup_trains_indexers_only(mtp_config(), {133, 20}, {.mtp = true}); }

// Documents of more queries than are listed at a time, and with tails behind their last block.
TEST(QwenModel, WarmupEqualsTheSparseStageWhenEverythingIsSelected) {
  nlohmann::json c = ngram_config();
  c["indexer_budget"] = 256;  // tokens; documents are shorter
  expect_warmup_as_sparse(c, {150, 14, 3});
}

TEST(QwenModel, RecomputeReplayAndStorageChangeNoBit) {
  StepOptions again = run_options(Recompute::layer), packed = again;
  again.replay = false;
  packed.storage = SelectionStorage::packed;
  for (const StepOptions& o : {run_options(Recompute::layer), again, packed}) expect_same_run(mtp_config(), run_options(), o, {.mtp = true, .mtp_depths = 2});
}

TEST(QwenModel, F32StreamsBesideF32ActivationsChangeNoBit) {
  expect_f32_residual_changes_no_bit(mtp_config(), {.mtp = true, .mtp_depths = 2});
  expect_f32_residual_changes_no_bit(ngram_config());
}

TEST(QwenModel, ReplayRunsTheSelectorOncePerSelectingLayer) {
  const auto model = make_random(mtp_config(), {.mtp = true});
  EXPECT_EQ(model->num_selecting_layers(), 2);
  EXPECT_EQ(train_once(*model, run_options(Recompute::layer), {sequence({40}), sequence({30})}).selector_calls, 2 * 2);
}

// Lengths below a block, at its edges, of a chunk and beyond it; documents without an end-of-sequence token.
TEST(QwenModel, DocumentsAreTheSamePackedAndAlone) { expect_same_packed_and_alone(mtp_config(), {3, 4, 5, 7, 8, 1, 0, 64, 65, 33}, {.mtp = true}); }

TEST(QwenModel, WithoutACompleteBlockTheIndexerGetsZeroGradients) {
  const auto model = make_random(plain_config());
  const TrainResult r = train_once(*model, run_options(Recompute::layer), {sequence({3, 2, 1, 3})});
  EXPECT_TRUE(std::isfinite(r.losses.lm));
  EXPECT_EQ(r.losses.index, 0);
  for (const Parameter& p : model->parameters().all())
    if (p.group == ParameterGroup::indexer) expect_zero_gradient(p);
}

TEST(QwenModel, LmAndIndexLossReachTheirOwnParametersOnly) { expect_losses_reach_their_own_parameters(mtp_config(), {.mtp = true}); }

TEST(QwenModel, MtpGradientsMatchCentralDifferences) {
  nlohmann::json c = plain_config();  // without the steep roots of an n-gram memory
  c["mtp_num_hidden_layers"] = 1;
  c["indexer_budget"] = 64;      // every visible block is selected: the loss is smooth
  c["num_experts_per_tok"] = 8;  // and so is the routing
  const auto model = make_random(c, {.mtp = true, .mtp_depths = 2});
  const HostSequence s = sequence({9, 1, 14});
  StepOptions o = run_options();
  o.balance_coefficient = 0;
  train_once(*model, o, {s});
  for (const char* name : {"mtp.fc_embedding.weight", "mtp.fc_hidden.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight",
                           "mtp.hyper_connection_mixer.input_mix_weight_up.weight", "mtp.layers.0.self_attn.q_proj.weight", "mtp.layers.0.attn_hyper_connection.hc_norm.weight",
                           "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.linear_attn.in_proj_qkv.weight",
                           "model.layers.0.linear_attn.A_log", "model.layers.3.self_attn.o_proj.weight"})
    expect_directional_derivative(*model, o, s, name, 1e-2);
}

// The same batch again and again.
TEST(QwenModel, TheTinyConfigurationLearns) {
  const auto model = make_model(read_hf_config("configs/models/qwen3.8-tiny.json"), "config.json", {.mtp = true});
  model->parameters().allocate(Device{}, DType::f32);
  model->parameters().initialize(3, model->initializer_range());
  Optimizer optimizer(model->parameters(), {}, Device{}, nullptr);
  const HostSequence batch = sequence({50, 1, 77}, 1, 264);
  StepTotals totals;
  totals.add(batch, model->mtp_depths());
  Step step(*model, run_options(Recompute::layer));
  double first = 0, last = 0;
  for (int i = 0; i < 12; ++i) {
    step.begin(totals);
    step.micro_batch(batch, true);
    step.reduce();
    optimizer.update(3e-3, step.sums(), {});
    ASSERT_TRUE(optimizer.result({}).applied);
    model->after_step(true, {});
    last = step.losses().lm;
    if (i == 0) first = last;
  }
  EXPECT_NEAR(first, std::log(264.0), 0.3);
  EXPECT_LT(last, 0.7 * first);
}

// What a folder holds beside parameters is checked against the configuration.
TEST(QwenModel, HashConstantsOfAnotherSeedAreRefused) {
  nlohmann::json c = ngram_config();
  c["seed"] = 4321;
  const auto model = make_random(c);
  EXPECT_CONTAINS(error_of([&] { load_weights(model->parameters(), HfFolderReader("tests/goldens/qwen_qsa_ple")); }),
                  "tensor \"model.layers.1.ple.ple_embedding.layer_multipliers\" has");
}

}  // namespace
}  // namespace hyscale
