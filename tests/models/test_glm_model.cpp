// The GLM model beyond its goldens: recompute, replay, stages, MTP, census, memory.
#include <algorithm>
#include <numeric>

#include "tests/support/model_runs.h"

namespace hyscale {
namespace {

using namespace test;

nlohmann::json tiny_config() { return read_hf_config("tests/goldens/glm51/config.json"); }

nlohmann::json shared_config() { return read_hf_config("tests/goldens/glm52_shared/config.json"); }

nlohmann::json mtp_config() {
  nlohmann::json c = tiny_config();
  c["num_nextn_predict_layers"] = 1;
  return c;
}

TEST(GlmModel, RecomputeChangesNoBit) {
  expect_same_run(tiny_config(), run_options(), run_options(Recompute::layer));
  expect_same_run(shared_config(), run_options(), run_options(Recompute::layer));
  expect_same_run(mtp_config(), run_options(), run_options(Recompute::layer), {.mtp = true, .mtp_depths = 2});
}

TEST(GlmModel, F32StreamsBesideF32ActivationsChangeNoBit) { expect_f32_residual_changes_no_bit(mtp_config(), {.mtp = true, .mtp_depths = 2}); }

TEST(GlmModel, ReplayRunsTheSelectorOncePerLayerAndChangesNoBit) {
  StepOptions again = run_options(Recompute::layer);
  again.replay = false;
  expect_same_run(tiny_config(), run_options(Recompute::layer), again);
  expect_same_run(shared_config(), run_options(Recompute::layer), again);
  const auto x = make_random(tiny_config()), y = make_random(tiny_config());
  const std::vector<HostSequence> s{sequence({40}), sequence({30})};
  EXPECT_EQ(train_once(*x, run_options(Recompute::layer), s).selector_calls, 3 * 2);
  EXPECT_EQ(train_once(*y, again, s).selector_calls, 2 * 3 * 2);
  // A layer without an indexer of its own never selects.
  const auto shared = make_random(shared_config());
  EXPECT_EQ(train_once(*shared, run_options(Recompute::layer), s).selector_calls, 2 * 2);
}

// Working memory that holds NaN everywhere gives the bits of fresh memory.
TEST(GlmModel, GarbageInWorkingMemoryChangesNoBit) {
  const ModelOptions m{.mtp = true, .mtp_depths = 2};
  const auto clean = make_random(mtp_config(), m), dirty = make_random(mtp_config(), m);
  const HostSequence host = sequence({37, 1, 26});
  const StepOptions o = run_options(Recompute::layer);
  const TrainResult expected = train_once(*clean, o, {host});

  Arena saved(Device{}, "saved"), scratch(Device{}, "scratch"), inputs(Device{}, "inputs");
  for (Arena* arena : {&saved, &scratch}) {
    fill_bytes(arena->allocate(DType::u8, {int64_t{1} << 24}), 0xFF, {});
    arena->reset();
  }
  const int slots = dirty->num_selecting_layers();
  SelectionStore selections(Device{}, slots);
  fill_bytes(selections.open(0, 4096, 64, {}).indices, 0xFF, {});
  selections.begin();
  LossSums sums{inputs.allocate_zeroed(DType::f64, {1}, {}), inputs.allocate_zeroed(DType::f64, {slots}, {}), inputs.allocate_zeroed(DType::f64, {1}, {}),
                inputs.allocate_zeroed(DType::f64, {1}, {})};
  const PackedSequence packed = to_device(host, {2, {}}, inputs, {});
  StepTotals totals;
  totals.add(host, 2);
  Context ctx;
  ctx.sequence = &packed;
  ctx.scales = {1 / static_cast<double>(totals.labels), o.index_coefficient / static_cast<double>(totals.queries),
                o.balance_coefficient / static_cast<double>(totals.documents), o.mtp_coefficient / static_cast<double>(totals.mtp_labels)};
  ctx.sums = &sums;
  ctx.selections = &selections;
  ctx.saved = &saved;
  ctx.scratch = &scratch;
  dirty->train_step(ctx, Recompute::layer);
  EXPECT_EQ(saved.peak_bytes(), size_t{1} << 24);  // the step stayed inside the filled block
  EXPECT_EQ(scratch.peak_bytes(), size_t{1} << 24);
  EXPECT_EQ(sums.lm.data<double>()[0] / static_cast<double>(totals.labels), expected.losses.lm);
  EXPECT_EQ(sums.mtp.data<double>()[0] / static_cast<double>(totals.mtp_labels), expected.losses.mtp);
  EXPECT_TRUE(gradients_of(*dirty) == gradients_of(*clean));
}

TEST(GlmModel, ASharedLayerReadsTheNearestEarlierSelection) {
  nlohmann::json c = tiny_config();
  const auto full = make_random(c);
  c["indexer_types"] = {"full", "full", "shared"};
  const auto shared = make_random(c);
  const HostSequence s = sequence({64});
  Step a(*shared, run_options()), b(*full, run_options());
  const std::vector<float> expected = a.logits(s);
  Arena kept(Device{}, "selection");
  const Selection& second = a.selections().get(1, {});
  const Selection copied{kept.allocate(DType::i32, second.indices.shape()), kept.allocate(DType::i32, second.counts.shape())};
  copy(copied.indices, second.indices, {});
  copy(copied.counts, second.counts, {});
  EXPECT_FALSE(b.logits(s) == expected);  // the third layer's own choice is another
  b.selections().fix(2, copied);
  EXPECT_TRUE(b.logits(s) == expected);
}

TEST(GlmModel, AnEmptyDocumentChangesNothing) {
  const auto with = make_random(tiny_config()), without = make_random(tiny_config());
  const TrainResult a = train_once(*with, run_options(), {sequence({0, 21, 0, 8, 0})}), b = train_once(*without, run_options(), {sequence({21, 8})});
  EXPECT_EQ(a.losses.lm, b.losses.lm);
  EXPECT_EQ(a.losses.index, b.losses.index);
  EXPECT_EQ(a.losses.balance, b.losses.balance);
  EXPECT_TRUE(gradients_of(*with) == gradients_of(*without));
}

TEST(GlmModel, ExpertLoadsAreCountedOncePerForwardAndMoveTheRouterBias) {
  const auto model = make_random(tiny_config(), {.router_bias_update_rate = 0.125f});
  const HostSequence s = sequence({30, 11});
  train_once(*model, run_options(Recompute::layer), {s, s});
  Step(*model, run_options()).evaluate({s});
  const Tensor counts = model->expert_counts();
  ASSERT_EQ(counts.shape(), (Shape{2, 8}));
  const std::vector<int64_t> n(counts.data<int64_t>(), counts.data<int64_t>() + counts.elements());
  for (size_t layer = 0; layer < 2; ++layer) EXPECT_EQ(std::accumulate(n.begin() + layer * 8, n.begin() + (layer + 1) * 8, int64_t{0}), 2 * 41 * 2);
  model->after_step(true, {});
  for (size_t layer = 0; layer < 2; ++layer) {
    const Parameter& bias = *model->parameters().find(concat("model.layers.", layer + 1, ".mlp.gate.e_score_correction_bias"));
    for (size_t e = 0; e < 8; ++e) {
      const double above = static_cast<double>(n[layer * 8 + e]) - 2 * 41 * 2 / 8.0;
      EXPECT_EQ(bias.value.f32()[e], above > 0 ? -0.125f : 0.125f) << "layer " << layer << " expert " << e;  // the mean, 20.5, is no count
    }
  }
  const std::vector<double> before = test::doubles(model->parameters().find("model.layers.1.mlp.gate.e_score_correction_bias")->value);
  train_once(*model, run_options(), {s});
  model->after_step(false, {});
  EXPECT_EQ(test::doubles(model->parameters().find("model.layers.1.mlp.gate.e_score_correction_bias")->value), before);
  for (int64_t i = 0; i < counts.elements(); ++i) EXPECT_EQ(counts.data<int64_t>()[i], 0);
}

TEST(GlmModel, PackedSelectionsChangeNoBitAndTakeLess) {
  StepOptions packed = run_options(Recompute::layer);
  packed.storage = SelectionStorage::host;
  expect_same_run(tiny_config(), run_options(Recompute::layer), packed);
  expect_same_run(shared_config(), run_options(Recompute::layer), packed);
  expect_same_run(tiny_config(), run_options(Recompute::none), packed);
  packed.storage = SelectionStorage::packed;
  expect_same_run(tiny_config(), run_options(Recompute::layer), packed);
  expect_same_run(shared_config(), run_options(Recompute::layer), packed);
  expect_same_run(tiny_config(), run_options(Recompute::none), packed);
  nlohmann::json c = tiny_config();
  c["index_topk"] = 64;
  const auto bytes = [&](SelectionStorage storage) {
    const auto model = make_random(c);
    StepOptions o = run_options(Recompute::layer);
    o.storage = storage;
    Step step(*model, o);
    StepTotals totals;
    const HostSequence s = sequence({512});
    totals.add(s, 0);
    step.begin(totals);
    step.micro_batch(s, true);
    return static_cast<double>(step.selections().peak_bytes());
  };
  // Three packed slots and one working selection against three of int32: (3 / 2 + 1) / 3.
  EXPECT_NEAR(bytes(SelectionStorage::packed) / bytes(SelectionStorage::int32), 2.5 / 3, 0.03);
  // Two packed ones on their way and the working one, however many slots there are.
  EXPECT_NEAR(bytes(SelectionStorage::host) / bytes(SelectionStorage::int32), 2.0 / 3, 0.03);
}

TEST(GlmModel, DocumentsAreTheSamePackedAndAlone) {
  expect_same_packed_and_alone(tiny_config(), {50, 7, 21});
  expect_same_packed_and_alone(mtp_config(), {20, 1, 43}, {.mtp = true});
}

TEST(GlmModel, LmAndIndexLossReachTheirOwnParametersOnly) { expect_losses_reach_their_own_parameters(mtp_config(), {.mtp = true}); }

TEST(GlmModel, WarmupTrainsIndexersOnly) { expect_warmup_trains_indexers_only(mtp_config(), {33, 20}, {.mtp = true}); }

TEST(GlmModel, WarmupEqualsTheSparseStageWhenEverythingIsSelected) {
  nlohmann::json c = tiny_config();
  c["index_topk"] = 64;  // documents are shorter
  expect_warmup_as_sparse(c, {50, 14});
}

TEST(GlmModel, MtpGradientsMatchCentralDifferences) {
  nlohmann::json c = mtp_config();
  c["index_topk"] = 64;        // everything visible is selected: the loss is smooth
  c["num_experts_per_tok"] = 8;  // and so is the routing
  const auto model = make_random(c, {.mtp = true, .mtp_depths = 2});
  const HostSequence s = sequence({9, 1, 14});
  StepOptions o = run_options();
  o.balance_coefficient = 0;
  train_once(*model, o, {s});
  for (const char* name : {"model.layers.3.eh_proj.weight", "model.layers.3.enorm.weight", "model.layers.3.hnorm.weight", "model.layers.3.shared_head.norm.weight",
                           "model.layers.3.self_attn.q_b_proj.weight", "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
                           "model.layers.1.self_attn.kv_b_proj.weight"})
    expect_directional_derivative(*model, o, s, name);
}

TEST(GlmModel, PositionsRestartAndLabelsEndWithTheirDocument) {
  const HostSequence s = sequence({3, 1, 2});
  EXPECT_EQ(s.positions, (std::vector<int32_t>{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(s.key_begin, (std::vector<int32_t>{0, 0, 0, 3, 4, 4}));
  EXPECT_EQ(s.labels[2], -1);
  EXPECT_EQ(s.labels[3], -1);
  EXPECT_EQ(s.labels[5], -1);
  EXPECT_EQ(num_labels(s), 3);
  EXPECT_EQ(num_mtp_labels(s, 2), 1);  // only the first document has a token two places on
}

TEST(GlmModel, NoLabelAnywhereGivesZeroLossAndGradients) {
  const auto model = make_random(tiny_config());
  HostSequence s = sequence({1, 1, 1});
  StepOptions o = run_options();
  o.index_coefficient = 0;
  o.balance_coefficient = 0;
  const TrainResult r = train_once(*model, o, {s});
  EXPECT_EQ(r.losses.lm, 0);
  for (float g : gradients_of(*model)) ASSERT_EQ(g, 0);
}

TEST(GlmModel, FlopsOfAShortDocumentByHand) {
  const std::unique_ptr<Model> model = make_model(tiny_config(), "config.json", {});
  // 20 tokens, k = 12: queries see 1 .. 20 keys (10.5 on average) and read 1 .. 12, 12, ... (8.7 on average).
  const ForwardFlops f = model->forward_flops(20);
  EXPECT_DOUBLE_EQ(f.selector, 3 * 2.0 * 8 * 16 * 10.5);
  EXPECT_DOUBLE_EQ(f.attention, 3 * 2.0 * 4 * (32 + 8 + 32) * 8.7);
  EXPECT_DOUBLE_EQ(f.linear, 2.0 * static_cast<double>(model->num_active_elements()));
}

size_t peak_of_step(int64_t tokens) {
  nlohmann::json c = tiny_config();
  c["num_hidden_layers"] = 2;
  c["indexer_types"] = {"full", "shared"};
  c["mlp_layer_types"] = {"dense", "sparse"};
  const auto model = make_random(c);
  reset_peak(Device{});
  const size_t before = allocated_bytes(Device{});
  train_once(*model, run_options(Recompute::layer), {sequence({static_cast<int32_t>(tokens)})});
  return peak_bytes(Device{}) - before;
}

TEST(GlmModel, MemoryIsLinearInTokens) {
  const size_t half = peak_of_step(32768), whole = peak_of_step(65536);
  EXPECT_LT(static_cast<double>(whole), 2.2 * static_cast<double>(half)) << half << " bytes at 32,768 tokens, " << whole << " at 65,536";
  // A table of tokens x tokens alone would be 16 GiB in f32, 4 GiB in bytes.
  EXPECT_LT(whole, size_t{2} << 30);
}

}  // namespace
}  // namespace hyscale
