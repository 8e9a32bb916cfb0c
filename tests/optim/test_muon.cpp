// The parts of Muon that need no ranks: which matrices there are, what shards lack, what the polynomials do, and one update.
#include "optim/muon.h"

#include "optim/optimizer.h"
#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

std::vector<std::array<int64_t, 3>> numbers(const std::vector<MatrixBlock>& blocks) {
  std::vector<std::array<int64_t, 3>> out;
  for (const MatrixBlock& b : blocks) out.push_back({b.begin, b.rows, b.columns});
  return out;
}
using Numbers = std::vector<std::array<int64_t, 3>>;

TEST(MatrixBlocks, TensorsOfTheFilesAreMatricesAndHeadsArePartsOfThem) {
  const Parameter gate_up{.name = "gate_up", .shape = {6, 5}, .hf = {{"gate", {3, 5}, 0}, {"up", {3, 5}, 15}}};
  EXPECT_EQ(numbers(matrix_blocks(gate_up, 100, true)), (Numbers{{100, 3, 5}, {115, 3, 5}}));
  // Two heads of two rows that make keys and three that make values; equal shapes follow each other.
  const Parameter kv_b{.name = "kv_b", .shape = {10, 4}, .head_rows = {2, 3}, .hf = {{"kv_b", {10, 4}, 0}}};
  EXPECT_EQ(numbers(matrix_blocks(kv_b, 0, true)), (Numbers{{0, 2, 4}, {20, 2, 4}, {8, 3, 4}, {28, 3, 4}}));
  EXPECT_EQ(numbers(matrix_blocks(kv_b, 0, false)), (Numbers{{0, 10, 4}}));
}

TEST(MatrixBlocks, ARankHasItsExpertsOnly) {
  const Parameter experts{.name = "experts", .shape = {2, 3, 5}, .cut = Cut::experts, .first_element = 30,
                          .hf = {{"0", {3, 5}, 0}, {"1", {3, 5}, 15}, {"2", {3, 5}, 30}, {"3", {3, 5}, 45}}};
  EXPECT_EQ(numbers(matrix_blocks(experts, 8, true)), (Numbers{{8, 3, 5}, {23, 3, 5}}));
}

TEST(ShardReach, CoversEveryMatrixThatAShardTouchesForAnyNumberOfRanks) {
  const std::vector<MatrixBlock> blocks{{0, 7, 9}, {128, 50, 20}, {1152, 3, 3}, {1161, 2, 500}};  // gaps: parameters that are none, padding
  for (int64_t ranks : {1, 2, 3, 8, 64, 300}) {
    const int64_t shard = (2304 + ranks - 1) / ranks;
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t begin = r * shard, end = begin + shard;
      const ShardReach reach = shard_reach(blocks, begin, end);
      EXPECT_TRUE(reach.begin <= begin && reach.end >= end);
      int64_t first = begin, last = end;
      for (const MatrixBlock& b : blocks)
        if (b.begin < end && b.end() > begin) first = std::min(first, b.begin), last = std::max(last, b.end());
      EXPECT_EQ(reach.begin, first) << ranks << " ranks, rank " << r;
      EXPECT_EQ(reach.end, last) << ranks << " ranks, rank " << r;
    }
  }
}

// Where a singular value goes.
double moved(double s, const std::vector<NewtonSchulzStep>& steps) {
  for (const NewtonSchulzStep& p : steps) s = double{p.a} * s + double{p.b} * s * s * s + double{p.c} * s * s * s * s * s;
  return s;
}

TEST(NewtonSchulzSteps, BringSingularValuesToOne) {
  for (double s = 0.01; s <= 1; s += 0.001) {
    EXPECT_NEAR(moved(s, quintic_steps(5, 0)), 0.95, 0.3) << s;
    EXPECT_NEAR(moved(s, quintic_steps(8, 2)), 1, 0.01) << s;
    EXPECT_NEAR(moved(s, polar_express_steps(8)), 1, 1e-4) << s;
    EXPECT_NEAR(moved(s, polar_express_steps(9)), 1, 1e-4) << s;
  }
}

TEST(MuonUpdate, IsTheFormulaAndLeavesTheRestToAdamW) {
  ParameterStore store;
  store.add({.name = "matrix", .shape = {6, 4}});
  store.add({.name = "embedding", .shape = {8, 4}, .kind = ParameterRole::embedding});
  store.add(norm_weight("norm", 4));
  store.allocate(Device{}, DType::f32);
  store.initialize(1, 0.5f);
  OptimizerOptions options{.weight_decay = 0.1};
  options.roles[static_cast<size_t>(ParameterRole::dense)] = {.muon = true, .lr_scale = 2};
  options.muon.steps = quintic_steps(5, 0);
  Optimizer optimizer(store, options, Device{});
  const std::vector<double> weights = test::doubles(store.find("matrix")->value), embedding = test::doubles(store.find("embedding")->value);
  std::vector<double> momentum(24), expected = weights;
  const HostTensor losses = test::zeros(DType::f64, {1});
  for (uint64_t step = 1; step <= 3; ++step) {
    store.zero_gradients({});
    HostTensor g = test::random({1, 6, 4}, step), u({1, 6, 4}), x({1, 6, 4});
    copy(store.find("matrix")->grad, g.t().view({6, 4}), {});
    for (int64_t i = 0; i < 24; ++i) {
      momentum[static_cast<size_t>(i)] = 0.95 * momentum[static_cast<size_t>(i)] + g[i];
      u[i] = static_cast<float>(g[i] + 0.95 * momentum[static_cast<size_t>(i)]);
    }
    NewtonSchulz n{u, x, options.muon.steps, {}, {}};
    const HostTensor space = test::workspace(newton_schulz_workspace_bytes(n));
    n.workspace = space;
    newton_schulz(n);
    for (int64_t i = 0; i < 24; ++i) expected[static_cast<size_t>(i)] -= 0.02 * (0.2 * std::sqrt(6.0) * x[i] + 0.1 * expected[static_cast<size_t>(i)]);
    optimizer.update(0.01, losses, {});
    EXPECT_TRUE(optimizer.result({}).applied);
  }
  EXPECT_CLOSE(store.find("matrix")->value, expected, 1e-5);
  // Without a gradient AdamW only decays.
  std::vector<double> decayed = embedding;
  for (double& v : decayed) v *= std::pow(1 - 0.01 * 0.1, 3);
  EXPECT_CLOSE(store.find("embedding")->value, decayed, 1e-6);
}

TEST(ParameterRoles, FollowFromWhatAParameterIs) {
  ParameterStore store;
  EXPECT_EQ(store.add({.name = "a", .shape = {6, 4}}).role(), ParameterRole::dense);
  EXPECT_EQ(store.add({.name = "b", .shape = {6, 4}, .kind = ParameterRole::router}).role(), ParameterRole::router);
  EXPECT_EQ(store.add({.name = "c", .shape = {6}, .kind = ParameterRole::router}).role(), ParameterRole::vectors);
  EXPECT_EQ(store.add({.name = "d", .shape = {1, 6}}).role(), ParameterRole::vectors);
  EXPECT_EQ(store.add({.name = "e", .shape = {6}, .group = ParameterGroup::indexer}).role(), ParameterRole::indexer);
  EXPECT_EQ(store.add({.name = "f", .shape = {2, 3, 4}, .cut = Cut::experts, .hf = {{"f.0", {3, 4}, 0}, {"f.1", {3, 4}, 12}}}).role(), ParameterRole::experts);
}

}  // namespace
}  // namespace hyscale
