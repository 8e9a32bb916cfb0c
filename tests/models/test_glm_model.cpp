// The GLM model beyond its goldens: recompute, replay, stages, MTP, census, memory.
#include <algorithm>
#include <numeric>

#include "models/registry.h"
#include "tests/support/tensors.h"
#include "train/step.h"

namespace hyscale {
namespace {

nlohmann::json tiny_config() { return read_hf_config("tests/goldens/glm51/config.json"); }

nlohmann::json shared_config() { return read_hf_config("tests/goldens/glm52_shared/config.json"); }

nlohmann::json mtp_config() {
  nlohmann::json c = tiny_config();
  c["num_nextn_predict_layers"] = 1;
  return c;
}

std::unique_ptr<Model> make(const nlohmann::json& config, const ModelOptions& options = {}, uint64_t seed = 3) {
  std::unique_ptr<Model> model = make_model(config, "config.json", options);
  model->parameters().allocate(Device{}, DType::f32);
  model->parameters().initialize(seed, 0.1f);
  return model;
}

HostSequence sequence(const std::vector<int32_t>& lengths, uint64_t seed = 1, int64_t vocabulary = 160) {
  std::vector<int32_t> tokens, labels, starts{0};
  const Rng rng(seed);
  for (int32_t n : lengths) {
    for (int32_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(rng.below(tokens.size(), static_cast<uint64_t>(vocabulary))));
    starts.push_back(static_cast<int32_t>(tokens.size()));
  }
  labels.assign(tokens.size(), -1);
  for (size_t d = 0; d + 1 < starts.size(); ++d)
    for (int32_t t = starts[d]; t + 1 < starts[d + 1]; ++t) labels[static_cast<size_t>(t)] = tokens[static_cast<size_t>(t + 1)];
  return make_host_sequence(tokens, labels, starts);
}

StepOptions options(Recompute recompute = Recompute::none) {
  return {.recompute = recompute, .index_coefficient = 1, .balance_coefficient = 0.01, .mtp_coefficient = 0.3};
}

struct TrainResult {
  StepLosses losses;
  int64_t selector_calls;
};
TrainResult train(Model& model, const StepOptions& o, const std::vector<HostSequence>& sequences) {
  Step step(model, o);
  StepTotals totals;
  for (const HostSequence& s : sequences) totals.add(s, model.mtp_depths());
  step.begin(totals);
  for (const HostSequence& s : sequences) step.micro_batch(s, &s == &sequences.back());
  return {step.losses(), step.selections().selector_calls()};
}

std::vector<float> gradients(Model& model) {
  std::vector<float> all;
  for (const Parameter& p : model.parameters().all())
    if (p.grad.defined()) all.insert(all.end(), p.grad.f32(), p.grad.f32() + p.grad.elements());
  return all;
}

void expect_same_run(const nlohmann::json& config, const StepOptions& a, const StepOptions& b, const ModelOptions& m = {}) {
  const auto x = make(config, m), y = make(config, m);
  const std::vector<HostSequence> s{sequence({37, 1, 26, 70})};
  const TrainResult rx = train(*x, a, s), ry = train(*y, b, s);
  EXPECT_EQ(rx.losses.lm, ry.losses.lm);
  EXPECT_EQ(rx.losses.index, ry.losses.index);
  EXPECT_EQ(rx.losses.mtp, ry.losses.mtp);
  EXPECT_TRUE(gradients(*x) == gradients(*y));
}

TEST(GlmModel, RecomputeChangesNoBit) {
  expect_same_run(tiny_config(), options(), options(Recompute::layer));
  expect_same_run(shared_config(), options(), options(Recompute::layer));
  expect_same_run(mtp_config(), options(), options(Recompute::layer), {.mtp = true, .mtp_depths = 2});
}

TEST(GlmModel, ReplayRunsTheSelectorOncePerLayerAndChangesNoBit) {
  StepOptions again = options(Recompute::layer);
  again.replay = false;
  expect_same_run(tiny_config(), options(Recompute::layer), again);
  expect_same_run(shared_config(), options(Recompute::layer), again);
  const auto x = make(tiny_config()), y = make(tiny_config());
  const std::vector<HostSequence> s{sequence({40}), sequence({30})};
  EXPECT_EQ(train(*x, options(Recompute::layer), s).selector_calls, 3 * 2);
  EXPECT_EQ(train(*y, again, s).selector_calls, 2 * 3 * 2);
  // A layer without an indexer of its own never selects.
  const auto shared = make(shared_config());
  EXPECT_EQ(train(*shared, options(Recompute::layer), s).selector_calls, 2 * 2);
}

// Working memory that holds NaN everywhere gives the bits of fresh memory.
TEST(GlmModel, GarbageInWorkingMemoryChangesNoBit) {
  const ModelOptions m{.mtp = true, .mtp_depths = 2};
  const auto clean = make(mtp_config(), m), dirty = make(mtp_config(), m);
  const HostSequence host = sequence({37, 1, 26});
  const StepOptions o = options(Recompute::layer);
  const TrainResult expected = train(*clean, o, {host});

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
  const PackedSequence packed = to_device(host, {{0, static_cast<int64_t>(host.tokens.size())}}, {2, {}}, inputs, {});
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
  EXPECT_TRUE(gradients(*dirty) == gradients(*clean));
}

TEST(GlmModel, ASharedLayerReadsTheNearestEarlierSelection) {
  nlohmann::json c = tiny_config();
  const auto full = make(c);
  c["indexer_types"] = {"full", "full", "shared"};
  const auto shared = make(c);
  const HostSequence s = sequence({64});
  Step a(*shared, options()), b(*full, options());
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
  const auto with = make(tiny_config()), without = make(tiny_config());
  const TrainResult a = train(*with, options(), {sequence({0, 21, 0, 8, 0})}), b = train(*without, options(), {sequence({21, 8})});
  EXPECT_EQ(a.losses.lm, b.losses.lm);
  EXPECT_EQ(a.losses.index, b.losses.index);
  EXPECT_EQ(a.losses.balance, b.losses.balance);
  EXPECT_TRUE(gradients(*with) == gradients(*without));
}

TEST(GlmModel, ExpertLoadsAreCountedOncePerForwardAndMoveTheRouterBias) {
  const auto model = make(tiny_config(), {.router_bias_update_rate = 0.125f});
  const HostSequence s = sequence({30, 11});
  train(*model, options(Recompute::layer), {s, s});
  Step(*model, options()).evaluate({s});
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
  train(*model, options(), {s});
  model->after_step(false, {});
  EXPECT_EQ(test::doubles(model->parameters().find("model.layers.1.mlp.gate.e_score_correction_bias")->value), before);
  for (int64_t i = 0; i < counts.elements(); ++i) EXPECT_EQ(counts.data<int64_t>()[i], 0);
}

TEST(GlmModel, PackedSelectionsChangeNoBitAndTakeLess) {
  StepOptions packed = options(Recompute::layer);
  packed.storage = SelectionStorage::packed;
  expect_same_run(tiny_config(), options(Recompute::layer), packed);
  expect_same_run(shared_config(), options(Recompute::layer), packed);
  expect_same_run(tiny_config(), options(Recompute::none), packed);
  nlohmann::json c = tiny_config();
  c["index_topk"] = 64;
  const auto bytes = [&](SelectionStorage storage) {
    const auto model = make(c);
    StepOptions o = options(Recompute::layer);
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
}

TEST(GlmModel, MicroBatchesWeighEveryLabelOnce) {
  const auto whole = make(tiny_config()), parts = make(tiny_config());
  StepOptions o = options();
  const TrainResult a = train(*whole, o, {sequence({50, 7, 21})});
  // The same three documents as three micro-batches of other sizes.
  const HostSequence all = sequence({50, 7, 21});
  std::vector<HostSequence> pieces;
  for (size_t d = 0; d < 3; ++d) {
    const auto first = all.document_starts[d], last = all.document_starts[d + 1];
    pieces.push_back(make_host_sequence({all.tokens.begin() + first, all.tokens.begin() + last}, {all.labels.begin() + first, all.labels.begin() + last}, {0, last - first}));
  }
  const TrainResult b = train(*parts, o, pieces);
  EXPECT_NEAR(a.losses.lm, b.losses.lm, 1e-6 * a.losses.lm);
  EXPECT_NEAR(a.losses.index, b.losses.index, 1e-5 * a.losses.index);
  EXPECT_NEAR(a.losses.balance, b.losses.balance, 1e-6 * a.losses.balance);
  const std::vector<float> g = gradients(*whole), h = gradients(*parts);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < g.size(); ++i) difference += (double{g[i]} - h[i]) * (double{g[i]} - h[i]), norm += double{g[i]} * g[i];
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
}

TEST(GlmModel, CoefficientZeroLeavesIndexersWithoutGradientAndLmLossNeverReachesThem) {
  const auto model = make(tiny_config());
  StepOptions o = options();
  o.index_coefficient = 0;
  train(*model, o, {sequence({60})});
  for (const Parameter& p : model->parameters().all())
    for (int64_t i = 0; p.group == ParameterGroup::indexer && i < p.grad.elements(); ++i) ASSERT_EQ(p.grad.f32()[i], 0) << p.name;
}

TEST(GlmModel, IndexLossNeverReachesTheTrunk) {
  const auto with = make(tiny_config()), without = make(tiny_config());
  StepOptions o = options();
  train(*with, o, {sequence({60})});
  o.index_coefficient = 0;
  train(*without, o, {sequence({60})});
  for (const Parameter& p : with->parameters().all()) {
    if (p.group != ParameterGroup::trunk) continue;
    EXPECT_TRUE(test::same_bits(p.grad, without->parameters().find(p.name)->grad)) << p.name;
  }
}

TEST(GlmModel, WarmupTrainsIndexersOnly) {
  const auto model = make(mtp_config(), {.mtp = true});
  StepOptions o = options();
  o.stage = Stage::warmup;
  const TrainResult r = train(*model, o, {sequence({33, 20})});
  EXPECT_GT(r.losses.index, 0);
  EXPECT_EQ(r.selector_calls, 0);
  for (const Parameter& p : model->parameters().all()) {
    if (!p.grad.defined()) continue;
    double norm = 0;
    for (int64_t i = 0; i < p.grad.elements(); ++i) norm += double{p.grad.f32()[i]} * p.grad.f32()[i];
    EXPECT_EQ(norm > 0, p.group == ParameterGroup::indexer) << p.name;
  }
}

TEST(GlmModel, WarmupEqualsTheSparseStageWhenEverythingIsSelected) {
  nlohmann::json c = tiny_config();
  c["index_topk"] = 64;  // documents are shorter
  const auto dense = make(c), sparse = make(c);
  StepOptions o = options();
  const std::vector<HostSequence> s{sequence({50, 14})};
  const TrainResult b = train(*sparse, o, s);
  o.stage = Stage::warmup;
  const TrainResult a = train(*dense, o, s);
  EXPECT_NEAR(a.losses.lm, b.losses.lm, 1e-5 * b.losses.lm);
  EXPECT_NEAR(a.losses.index, b.losses.index, 1e-5 * b.losses.index);
  for (const Parameter& p : dense->parameters().all())
    if (p.group == ParameterGroup::indexer) {
      EXPECT_CLOSE(p.grad, test::doubles(sparse->parameters().find(p.name)->grad), 1e-4);
    }
}

// Loss of the whole model at one changed weight. The indexer is left alone, so the selection cannot jump.
double lm_plus_mtp(Model& model, const HostSequence& s) {
  Step step(model, options());
  const StepLosses l = *step.evaluate({s});
  return l.lm + 0.3 * l.mtp;
}

TEST(GlmModel, MtpGradientsMatchCentralDifferences) {
  nlohmann::json c = mtp_config();
  c["index_topk"] = 64;        // everything visible is selected: the loss is smooth
  c["num_experts_per_tok"] = 8;  // and so is the routing
  const auto model = make(c, {.mtp = true, .mtp_depths = 2});
  const HostSequence s = sequence({9, 1, 14});
  StepOptions o = options();
  o.balance_coefficient = 0;
  train(*model, o, {s});
  for (const char* name : {"model.layers.3.eh_proj.weight", "model.layers.3.enorm.weight", "model.layers.3.hnorm.weight", "model.layers.3.shared_head.norm.weight",
                           "model.layers.3.self_attn.q_b_proj.weight", "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
                           "model.layers.1.self_attn.kv_b_proj.weight"}) {
    Parameter& p = *model->parameters().find(name);
    // Along one random direction; f32 losses allow a step of 1e-2 and a relative error of 2e-3.
    const test::HostTensor direction = test::random({p.shape.elements()}, 11);
    double analytic = 0, norm = 0;
    for (int64_t i = 0; i < p.grad.elements(); ++i) analytic += double{p.grad.f32()[i]} * direction[i], norm += double{direction[i]} * direction[i];
    const float h = static_cast<float>(3e-2 / std::sqrt(norm));
    const std::vector<float> before(p.value.f32(), p.value.f32() + p.value.elements());
    const auto moved = [&](float by) {
      for (int64_t i = 0; i < p.value.elements(); ++i) p.value.f32()[i] = before[static_cast<size_t>(i)] + by * direction[i];
      return lm_plus_mtp(*model, s);
    };
    const double numeric = (moved(h) - moved(-h)) / (2.0 * h);
    moved(0);
    EXPECT_NEAR(analytic, numeric, 2e-3 * std::abs(numeric) + 1e-6) << name << ", directional derivative " << numeric;
  }
}

TEST(GlmModel, ADocumentIsTheSameAloneAndPacked) {
  const auto model = make(tiny_config());
  Step step(*model, options());
  const HostSequence packed = sequence({20, 1, 43});
  const std::vector<float> all = step.logits(packed);
  const HostSequence alone = make_host_sequence({packed.tokens.begin() + 21, packed.tokens.end()}, {packed.labels.begin() + 21, packed.labels.end()}, {0, 43});
  const std::vector<float> part = step.logits(alone);
  double worst = 0;
  for (size_t i = 0; i < part.size(); ++i) worst = std::max(worst, std::abs(double{part[i]} - all[21 * 160 + i]));
  EXPECT_LT(worst, 1e-4);
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
  const auto model = make(tiny_config());
  HostSequence s = sequence({1, 1, 1});
  StepOptions o = options();
  o.index_coefficient = 0;
  o.balance_coefficient = 0;
  const TrainResult r = train(*model, o, {s});
  EXPECT_EQ(r.losses.lm, 0);
  for (float g : gradients(*model)) ASSERT_EQ(g, 0);
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
  const auto model = make(c);
  reset_peak(Device{});
  const size_t before = allocated_bytes(Device{});
  train(*model, options(Recompute::layer), {sequence({static_cast<int32_t>(tokens)})});
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
