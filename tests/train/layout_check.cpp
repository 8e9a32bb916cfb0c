// Every way to lay a step out over ranks against the same step on one rank: loss, gradient norm, every gradient, selections,
// expert loads and bytes sent. Runs on whatever world it is launched in; exit code 1 names what differs.
//   layout_check [--family deepseek_v4|qwen_qsa_ple] [--device cuda] [--losses 1e-6] [--gradients 1e-5] [--total-gradient 1e-5] [--own-selections] [--smooth] [--wide]
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

#include "core/rng.h"
#include "models/registry.h"
#include "optim/optimizer.h"
#include "train/step.h"
#include "train/weights.h"

using namespace hyscale;

namespace {

struct Tolerances {
  double losses = 1e-6, gradients = 1e-5, total_gradient = 1e-5;
  bool same_selections = true;
};

struct Layout {
  const char* name;
  ParallelSizes sizes;
  bool shard_weights = false;
  ContextOrder order = ContextOrder::zigzag;
  ContextTransport transport = ContextTransport::ring;
  Recompute recompute = Recompute::layer;
  Stage stage = Stage::sparse;
};

const Layout kLayouts[] = {
    {"one", {1, 1, 1}},
    {"dp2", {2, 1, 1}},
    {"cp2", {1, 2, 1}},
    {"cp2, nothing recomputed", {1, 2, 1}, false, ContextOrder::zigzag, ContextTransport::ring, Recompute::none},
    {"cp2 contiguous", {1, 2, 1}, false, ContextOrder::contiguous},
    {"cp2 all-gather", {1, 2, 1}, false, ContextOrder::zigzag, ContextTransport::all_gather},
    {"cp2 warm-up", {1, 2, 1}, false, ContextOrder::zigzag, ContextTransport::ring, Recompute::none, Stage::warmup},
    {"ep2", {2, 1, 2}},
    {"cp2 x ep2", {1, 2, 2}},
    {"zero3", {2, 1, 1}, true},
    {"zero3, cp2 x ep2", {1, 2, 2}, true},
    {"zero3 warm-up", {2, 1, 1}, true, ContextOrder::zigzag, ContextTransport::ring, Recompute::none, Stage::warmup},
    {"cp4", {1, 4, 1}},
    {"dp2 x cp2", {2, 2, 1}},
    {"dp2 x cp2 x ep2", {2, 2, 2}},
    {"dp2 x cp2 x ep2, data ranks are neighbours", {2, 2, 2, false}},
    {"ep4", {4, 1, 4}},
    {"zero3, dp2 x cp2 x ep2", {2, 2, 2}, true},
};

struct Case {
  const char* name;
  std::vector<std::vector<int32_t>> sequences;  // document lengths of each
  std::vector<int64_t> without_labels = {};     // tokens from here on have none
};

const Case kCases[] = {
    {"one long document", {{900}, {900}, {900}, {900}}},
    // Segment edges of 2 x 2 segments lie at multiples of 128 (7 blocks: 0, 128, 384, 640, end).
    {"edges inside, at and one past a segment edge", {{100, 28, 1, 255, 257, 190}, {128, 256, 256, 191}, {129, 256, 256, 190}, {1, 1, 1, 828}}},
    {"no multiple of anything, and ranks without tokens", {{37}, {101}, {3, 2}, {129}}},
    {"a rank without labels", {{600}, {600}, {600}, {600}}, {128}},
};

HostSequence make_sequence(const std::vector<int32_t>& lengths, uint64_t seed, int64_t first_without_label) {
  std::vector<int32_t> tokens, labels, starts{0};
  const Rng rng(seed);
  for (int32_t n : lengths) {
    for (int32_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(rng.below(tokens.size(), 160)));
    starts.push_back(static_cast<int32_t>(tokens.size()));
  }
  labels.assign(tokens.size(), -1);
  for (size_t d = 0; d + 1 < starts.size(); ++d)
    for (int32_t t = starts[d]; t + 1 < starts[d + 1] && t + 1 < first_without_label; ++t) labels[static_cast<size_t>(t)] = tokens[static_cast<size_t>(t + 1)];
  return make_host_sequence(tokens, labels, starts);
}

// What a step leaves behind.
struct Outcome {
  StepLosses losses, evaluated;
  double norm = 0, indexer_norm = 0;
  std::map<std::string, std::vector<std::pair<int64_t, std::vector<float>>>> gradients;  // by parameter: pieces and where they begin
  std::map<std::string, std::vector<std::pair<int64_t, std::vector<float>>>> values;     // after the update
  std::vector<std::vector<int32_t>> selections;  // of the last micro-batch, by layer: this rank's rows
  std::vector<TokenRange> segments;              // the tokens that they are of
  std::vector<int64_t> expert_loads;
};

struct Subject {
  nlohmann::json config;
  int mtp_depths = 1;
  bool warms_up = false;  // has a warm-up stage
};
Subject subject(const std::string& family) {
  Subject s{read_hf_config(concat("tests/goldens/", family, "/config.json"))};
  s.config["num_nextn_predict_layers"] = 1;
  if (s.config.contains("swiglu_limit")) s.config["swiglu_limit"] = 100;  // a gate within rounding of its limit would make gradients jump
  s.config["mtp_num_hidden_layers"] = 1;  // as Qwen3.8 calls it
  s.warms_up = s.config.contains("num_experts");  // Qwen3.8
  if (family != "glm51") return s;
  s.config["index_share_for_mtp_iteration"] = false;
  s.mtp_depths = 2;
  s.warms_up = true;
  return s;
}

Outcome run_step(const Subject& subject, ProcessGroups& groups, const Layout& layout, const std::vector<HostSequence>& sequences, Device device) {
  ModelOptions options{.mtp = true, .mtp_depths = subject.mtp_depths, .router_bias_update_rate = layout.stage == Stage::warmup ? 0.0f : 1e-3f};
  options.expert_rank = groups.place.expert;
  options.expert_ranks = groups.sizes.expert;
  options.rank = groups.world->rank();
  options.ranks = groups.world->size();
  const std::unique_ptr<Model> model = make_model(subject.config, "config.json", options);
  ParameterStore& store = model->parameters();
  const DType dtype = device.is_cuda() ? DType::bf16 : DType::f32;
  store.allocate(device, dtype, {groups.world.get(), groups.expert_replicas.get(), layout.shard_weights});
  store.initialize(3, 0.1f);
  // Streams of a new model are nearly equal, and so the gradients of what tells them apart nearly cancel: relative errors would
  // measure nothing.
  for (Parameter& p : store.all())
    if (p.name.ends_with("_scale")) store.write_value(p, std::vector<float>(static_cast<size_t>(p.shape.elements()), 1.0f).data());
  for (Parameter& p : store.all()) {
    std::vector<float> values(static_cast<size_t>(p.shape.elements()));
    const Rng rng(5);
    // States of a new model decay within a few tokens and would not live to see the next segment; and a convolution of zeros hands nothing back.
    const bool decay = p.name.ends_with("A_log"), taps = p.name.ends_with("ple.conv1d.weight");
    for (size_t i = 0; i < values.size(); ++i) values[i] = decay ? -5.0f - static_cast<float>(i) : 0.1f * static_cast<float>(rng.normal(i));
    if (decay || taps) store.write_value(p, values.data());
  }
  StepOptions o{.device = device, .activation = dtype, .stage = layout.stage, .recompute = layout.recompute, .deterministic = true, .index_coefficient = 1,
                .balance_coefficient = 0.01, .mtp_coefficient = layout.stage == Stage::warmup ? 0 : 0.3};
  o.groups = &groups;
  o.context_order = layout.order;
  o.context_transport = layout.transport;
  Step step(*model, o);
  Optimizer optimizer(store, {.weight_decay = 0.1, .clip_norm = 1, .indexer_clip_norm = 1, .indexer_only = layout.stage == Stage::warmup}, device, groups.world.get());
  Outcome out;
  // Three sequences over two or four data ranks: some have none in the last round.
  out.evaluated = *step.evaluate({sequences[0], sequences[1], sequences[2]});
  StepTotals totals;
  for (const HostSequence& s : sequences) totals.add(s, model->mtp_depths());
  step.begin(totals);
  const size_t data = static_cast<size_t>(groups.sizes.data);
  for (size_t i = static_cast<size_t>(groups.place.data); i < sequences.size(); i += data) step.micro_batch(sequences[i], i + data >= sequences.size());
  for (int slot = 0; layout.stage == Stage::sparse && slot < model->num_selecting_layers(); ++slot) {
    const Tensor indices = step.selections().get(slot, step.stream()).indices;
    std::vector<int32_t> rows(static_cast<size_t>(indices.elements()));
    copy_bytes(rows.data(), Device{}, indices.raw(), device, indices.bytes(), step.stream());
    synchronize(device, step.stream());
    out.selections.push_back(rows);
  }
  const int64_t tokens = static_cast<int64_t>(sequences.back().tokens.size());
  out.segments = groups.sizes.context > 1 ? ContextLayout(tokens, groups.sizes.context, layout.order).segments(groups.place.context) : std::vector<TokenRange>{{0, tokens}};
  step.reduce();
  const Tensor counts = model->expert_counts();
  out.expert_loads.resize(static_cast<size_t>(counts.elements()));
  copy_bytes(out.expert_loads.data(), Device{}, counts.raw(), device, counts.bytes(), step.stream());
  synchronize(device, step.stream());
  for (const ShardPiece& p : store.own_pieces()) out.gradients[p.parameter->name].emplace_back(p.first_element, values_on_host(p.grad));
  optimizer.update(1e-2, step.sums(), step.stream());
  const Optimizer::Result result = optimizer.result(step.stream());
  HYSCALE_CHECK(result.applied, "the update of layout ", layout.name, " was not applied");
  out.norm = result.norm;
  out.indexer_norm = result.indexer_norm;
  out.losses = step.losses();
  model->after_step(true, step.stream());
  for (const ShardPiece& p : store.own_pieces()) out.values[p.parameter->name].emplace_back(p.first_element, values_on_host(p.value));
  return out;
}

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-12); }

// Relative L2 differences: the worst of any parameter's pieces, and of all together, with the squares that these come from.
struct Difference {
  double worst = 0, squares = 0, reference_squares = 0;
  std::string name = "none";
  double total() const { return reference_squares > 0 ? std::sqrt(squares / reference_squares) : std::sqrt(squares); }
};
Difference difference_of(const decltype(Outcome::gradients)& pieces, const decltype(Outcome::gradients)& whole) {
  Difference d;
  for (const auto& [name, parts] : pieces) {
    const std::vector<float>& reference = whole.at(name).front().second;
    double norm = 0, difference = 0;
    for (float x : reference) norm += double{x} * x;
    for (const auto& [first, values] : parts)
      for (size_t i = 0; i < values.size(); ++i) {
        const double x = double{values[i]} - reference[static_cast<size_t>(first) + i];
        difference += x * x;
      }
    d.squares += difference;
    d.reference_squares += norm;
    const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    if (!(error <= d.worst)) d.worst = error, d.name = name;
  }
  return d;
}

// Throws where this rank's part differs; returns by how much its gradients do.
Difference compare(const Layout& layout, const char* what, const Outcome& got, const Outcome& one, const Tolerances& t) {
  const auto check = [&](double error, double limit, const std::string& quantity) {
    HYSCALE_CHECK(error <= limit, what, " in layout ", layout.name, ": ", quantity, " differs by ", error, ", allowed ", limit);
  };
  for (const auto& [name, a, b] : {std::tuple{"LM loss", got.losses.lm, one.losses.lm}, {"index loss", got.losses.index, one.losses.index},
                                   {"balance loss", got.losses.balance, one.losses.balance}, {"MTP loss", got.losses.mtp, one.losses.mtp},
                                   {"evaluation loss", got.evaluated.lm, one.evaluated.lm}, {"gradient norm", got.norm, one.norm},
                                   {"indexer gradient norm", got.indexer_norm, one.indexer_norm}})
    check(relative(a, b), name == std::string("gradient norm") || name == std::string("indexer gradient norm") ? 10 * t.losses : t.losses, concat(name, " ", a, " and ", b));
  const Difference gradients = difference_of(got.gradients, one.gradients);
  // The warm-up stage takes all products of queries and keys, tens of millions here: a few lie within rounding of the relu's kink
  // in any sequence, and each moves a gradient of the indexer by some 1e-5.
  check(gradients.worst, layout.stage == Stage::warmup ? 10 * t.gradients : t.gradients, "the gradient of " + gradients.name);
  check(gradients.total(), layout.stage == Stage::warmup ? 10 * t.total_gradient : t.total_gradient, "the gradient as a whole");
  if (t.same_selections) {
    HYSCALE_CHECK(got.expert_loads == one.expert_loads, what, " in layout ", layout.name, ": expert loads differ");
    // The last micro-batch of a data rank differs from that of one rank; of context ranks it is the same.
    for (size_t slot = 0; layout.sizes.data == 1 && slot < got.selections.size(); ++slot) {
      int64_t local = 0;
      for (const TokenRange& r : got.segments) {
        const int64_t k = r.size() ? static_cast<int64_t>(one.selections[slot].size()) / one.segments[0].size() : 0;
        HYSCALE_CHECK(std::equal(one.selections[slot].begin() + r.begin * k, one.selections[slot].begin() + r.end * k, got.selections[slot].begin() + local * k), what,
                      " in layout ", layout.name, ": the selection of slot ", slot, " differs between tokens ", r.begin, " and ", r.end);
        local += r.size();
      }
    }
  }
  return gradients;
}

double over_ranks(Communicator& world, double value, ReduceOp op) {
  world.all_reduce(Tensor(&value, DType::f64, Device{}, {1}), op, {});
  return value;
}

// One line for all ranks, from the first of those that saw the worst difference.
void report(Communicator& world, const Layout& layout, const char* what, const Outcome& got, const Outcome& one, const Difference& gradients) {
  Difference all = gradients;
  all.worst = over_ranks(world, gradients.worst, ReduceOp::max);
  all.squares = over_ranks(world, gradients.squares, ReduceOp::sum), all.reference_squares = over_ranks(world, gradients.reference_squares, ReduceOp::sum);
  const double weights = over_ranks(world, difference_of(got.values, one.values).worst, ReduceOp::max);
  const double last = world.size() - 1, reporter = last - over_ranks(world, gradients.worst == all.worst ? last - world.rank() : -1, ReduceOp::max);
  if (world.rank() == static_cast<int>(reporter))
    std::printf("%-28s %-50s loss %.1e  norm %.1e  gradient %.1e, worst %.1e (%s)  weights %.1e\n", layout.name, what, relative(got.losses.lm, one.losses.lm),
                relative(got.norm, one.norm), all.total(), all.worst, all.name.c_str(), weights);
  std::fflush(stdout);
}

// An index product within rounding of the relu's kink, or a tie within rounding at the k-th score, makes losses or gradients
// jump in any layout, and rounding differs between them. Such a sequence says nothing: others take its place, a bounded number
// of times. An error of a layout shows with all of them.
constexpr uint64_t kDraws = 10;

std::vector<HostSequence> draw(const Case& c, uint64_t number) {
  std::vector<HostSequence> sequences;
  for (size_t i = 0; i < c.sequences.size(); ++i)
    sequences.push_back(make_sequence(c.sequences[i], 7 + 100 * number + i, c.without_labels.empty() ? int64_t{1} << 40 : c.without_labels[0]));
  return sequences;
}

// Whether any rank saw a difference; the same on all.
bool any_rank(Communicator& world, bool here) {
  int32_t flag = here;
  world.all_reduce(Tensor(&flag, DType::i32, Device{}, {1}), ReduceOp::max, {});
  return flag != 0;
}

int check_layouts(const MpiEnvironment& mpi, const Subject& subject, Device device, const Tolerances& tolerances) {
  const int ranks = mpi.world()->size();
  const bool leads = mpi.world()->rank() == 0;
  for (const Case& c : kCases) {
    std::map<std::tuple<uint64_t, Stage, bool>, Outcome> references;
    for (const Layout& layout : kLayouts) {
      if (layout.sizes.world() != ranks || (layout.stage == Stage::warmup && !subject.warms_up)) continue;
      for (uint64_t number = 0;; ++number) {
        const std::vector<HostSequence> sequences = draw(c, number);
        const auto key = std::tuple{number, layout.stage, layout.recompute == Recompute::layer};
        if (!references.count(key)) {
          ProcessGroups alone = make_single_process_group();
          references[key] = run_step(subject, alone, {"one", {}, false, layout.order, layout.transport, layout.recompute, layout.stage}, sequences, device);
        }
        std::unique_ptr<Communicator> world = mpi.world(), hosts = world->split(0, world->rank());
        ProcessGroups groups = make_process_groups(std::move(world), std::move(hosts), layout.sizes);
        const Outcome outcome = run_step(subject, groups, layout, sequences, device);
        std::string difference;
        Difference gradients;
        try {
          gradients = compare(layout, c.name, outcome, references[key], tolerances);
        } catch (const InternalError& e) {
          difference = e.what();
        }
        if (!any_rank(*groups.hosts, !difference.empty())) {
          report(*groups.hosts, layout, c.name, outcome, references[key], gradients);
          break;
        }
        if (number + 1 == kDraws) throw InternalError(difference.empty() ? concat(c.name, " in layout ", layout.name, ": another rank saw a difference") : difference);
        if (leads) std::printf("%-28s %-50s drawn again (%s)\n", layout.name, c.name, difference.empty() ? "another rank" : difference.substr(0, 160).c_str());
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  CLI::App app{"Compares layouts of ranks."};
  std::string device = "cpu", family = "glm51";
  bool smooth = false, wide = false;
  Tolerances tolerances;
  bool own_selections = false;
  app.add_option("--device", device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--family", family, "a folder of tests/goldens whose config.json is the model");
  app.add_flag("--smooth", smooth, "everything is selected and every expert chosen: no choice can fall otherwise in another layout");
  app.add_flag("--wide", wide, "linear attention with heads of 128, which tensor cores take");
  app.add_option("--losses", tolerances.losses);
  app.add_option("--gradients", tolerances.gradients, "of every parameter");
  app.add_option("--total-gradient", tolerances.total_gradient, "of all parameters together");
  app.add_flag("--own-selections", own_selections, "selections and expert loads need not be equal");
  CLI11_PARSE(app, argc, argv);
  tolerances.same_selections = !own_selections;
  try {
    Subject s = subject(family);
    if (wide) s.config["linear_key_head_dim"] = s.config["linear_value_head_dim"] = 128;
    if (smooth) {
      const bool qwen = s.config.contains("num_experts");  // which counts selected tokens, not blocks
      s.config[qwen ? "indexer_budget" : "index_topk"] = 1024;
      s.config["num_experts_per_tok"] = s.config.at(qwen ? "num_experts" : "n_routed_experts");
    }
    return check_layouts(mpi, s, device == "cuda" ? Device{DeviceType::cuda, 0} : Device{}, tolerances);
  } catch (const std::exception& e) {
    MpiEnvironment::abort(e.what(), 1);
  }
}
