// golden-check: runs reference cases (Hugging Face transformers in f64) and prints, per folder, the worst relative L2 error
// of logits, losses and gradients and how many queries select other keys. A folder holds config.json, model.safetensors,
// gradients.safetensors and reference.safetensors (input_ids [B, S], logits [B, S, V], loss_lm, loss_index.<layer> [1],
// topk.<layer> [B, S, k] ascending, -1 padded). With the reference's selections replayed, the overlap of each layer's own is
// printed, made from what the replayed layers below give. B rows become B documents of one packed sequence; the index loss has
// coefficient 1 and is a mean over all B * S queries, summed over layers. Exits with 1 above the tolerance.
// The cases' weights are no bf16 values, and rounding them alone makes another function: --round-weights gives both sides the
// rounded ones. The reference is then our f32 run on the CPU, which without the flag equals the file's to 1e-4.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <map>

#include "kernels/elementwise/elementwise.h"
#include "models/registry.h"
#include "models/routing_store.h"
#include "train/step.h"
#include "train/weights.h"

namespace hyscale {
namespace {

struct Options {
  std::string recompute = "none", device = "cpu";
  bool replay_golden_selections = false, round_weights = false, list_gradients = false, f32_residual = false;
  double tolerance = 0, gradient_tolerance = 0;
  std::vector<std::string> folders;
};

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  HYSCALE_CHECK(a.size() == b.size(), a.size(), " values against ", b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

// Parameters take the values that bf16 keeps.
void round_to_bf16(ParameterStore& store) {
  for (const Parameter& p : store.all()) {
    if (p.group == ParameterGroup::buffer || p.value.dtype() == DType::bf16) continue;
    const Buffer narrow(p.value.device(), static_cast<size_t>(p.value.elements()) * 2, "rounded weights");
    const Tensor t(narrow.data(), DType::bf16, p.value.device(), p.value.shape());
    cast(t, p.value, {});
    cast(p.value, t, {});
    synchronize(p.value.device(), {});
  }
}

struct Case {
  SafetensorsReader reference;
  std::unique_ptr<Model> model;
  HostSequence sequence;
  int64_t batch, tokens;  // of one row
  std::vector<int64_t> golden_layers;  // decoder layer of each selection slot
};

Case load_case(const std::string& folder, Device device) {
  Case c{SafetensorsReader(folder + "/reference.safetensors"), make_model(read_hf_config(folder + "/config.json"), folder + "/config.json", {}), {}, 0, 0, {}};
  c.model->parameters().allocate(device, device.is_cuda() ? DType::bf16 : DType::f32);
  load_weights(c.model->parameters(), HfFolderReader(folder));
  const std::vector<int64_t>& shape = c.reference.info("input_ids").shape;
  c.batch = shape.at(0);
  c.tokens = shape.at(1);
  const std::vector<int64_t> ids = c.reference.read_i64("input_ids");
  std::vector<int32_t> tokens(ids.begin(), ids.end()), labels(ids.size()), starts{0};
  for (size_t i = 0; i < ids.size(); ++i) labels[i] = (static_cast<int64_t>(i) + 1) % c.tokens == 0 ? -1 : tokens[i + 1];
  for (int64_t b = 1; b <= c.batch; ++b) starts.push_back(static_cast<int32_t>(b * c.tokens));
  c.sequence = make_host_sequence(std::move(tokens), std::move(labels), std::move(starts));
  for (const auto& [name, info] : c.reference.tensors())
    if (name.starts_with("topk.")) c.golden_layers.push_back(std::stoll(name.substr(5)));
  std::sort(c.golden_layers.begin(), c.golden_layers.end());
  return c;
}

// The golden's selection of a slot in key indices of the packed sequence.
std::vector<int32_t> golden_selection(const Case& c, size_t slot, int64_t& k) {
  const std::string name = concat("topk.", c.golden_layers[slot]);
  k = c.reference.info(name).shape.at(2);
  const std::vector<int64_t> stored = c.reference.read_i64(name);
  // Keys of one row: tokens, or entries or blocks of several.
  const int64_t keys = c.reference.info(concat("scores.", c.golden_layers[slot])).shape.at(2);
  std::vector<int32_t> indices(stored.size(), -1);
  for (int64_t q = 0; q < c.batch * c.tokens; ++q) {
    int64_t next = q * k;
    for (int64_t j = 0; j < k; ++j)
      if (stored[static_cast<size_t>(q * k + j)] >= 0)
        indices[static_cast<size_t>(next++)] = static_cast<int32_t>(stored[static_cast<size_t>(q * k + j)] + q / c.tokens * keys);
  }
  return indices;
}

// Of the first `slots`.
void fix_selections(const Case& c, SelectionStore& store, Arena& arena, size_t slots) {
  for (size_t slot = 0; slot < slots; ++slot) {
    int64_t k = 0;
    const std::vector<int32_t> indices = golden_selection(c, slot, k);
    std::vector<int32_t> counts(indices.size() / static_cast<size_t>(k), 0);
    for (size_t i = 0; i < indices.size(); ++i) counts[i / static_cast<size_t>(k)] += indices[i] >= 0;
    const int64_t queries = static_cast<int64_t>(counts.size());
    const Selection s{arena.allocate(DType::i32, {queries, k}), arena.allocate(DType::i32, {queries})};
    copy_bytes(s.indices.raw(), arena.device(), indices.data(), Device{}, s.indices.bytes(), {});
    copy_bytes(s.counts.raw(), arena.device(), counts.data(), Device{}, s.counts.bytes(), {});
    synchronize(arena.device(), {});
    store.fix(static_cast<int>(slot), s);
  }
}

// Expert choices of the reference: those of an f32 run on the CPU, which matches it to rounding. A bf16 run that sends one
// token to another expert computes another function, as one that selects another key does.
RoutingStore reference_routing(const std::string& folder, Arena& arena) {
  Case c = load_case(folder, Device{});
  const nlohmann::json& config = c.model->hf_config();
  const int64_t queries = c.batch * c.tokens, k = config.value("num_experts_per_tok", 1);
  RoutingStore recorded, given{true, {}};
  Arena host(Device{}, "expert choices");
  for (int64_t i = 0; i < config.value("num_hidden_layers", 0); ++i) recorded.experts.push_back(host.allocate_zeroed(DType::i32, {queries, k}, {}));
  Step step(*c.model, {});
  step.use_routing(&recorded);
  step.logits(c.sequence);
  for (const Tensor& t : recorded.experts) {
    given.experts.push_back(arena.allocate(DType::i32, t.shape()));
    copy(given.experts.back(), t, {});
  }
  synchronize(arena.device(), {});
  return given;
}

// Each query's keys, ascending.
using Keys = std::vector<std::vector<int32_t>>;

Keys keys_of_rows(const std::vector<int32_t>& indices, int64_t k) {
  Keys keys;
  for (auto row = indices.begin(); row != indices.end(); row += k) keys.emplace_back(row, std::find(row, row + k, -1));
  return keys;
}

Keys selected_keys(SelectionStore& store, size_t slot) {
  const Tensor& indices = store.get(static_cast<int>(slot), {}).indices;
  std::vector<int32_t> host(static_cast<size_t>(indices.elements()));
  copy_bytes(host.data(), Device{}, indices.raw(), indices.device(), indices.bytes(), {});
  synchronize(indices.device(), {});
  return keys_of_rows(host, indices.size(1));
}

Keys golden_keys(const Case& c, size_t slot) {
  int64_t k = 0;
  const std::vector<int32_t> indices = golden_selection(c, slot, k);
  return keys_of_rows(indices, k);
}

// Queries that differ, keys that both have, keys that were expected.
struct Mismatch {
  int64_t queries = 0, shared = 0, all = 0;
  double overlap() const { return all > 0 ? static_cast<double>(shared) / static_cast<double>(all) : 1; }
  void add(const Keys& found, const Keys& expected) {
    HYSCALE_CHECK(found.size() == expected.size(), found.size(), " queries against ", expected.size());
    for (size_t q = 0; q < found.size(); ++q) {
      std::vector<int32_t> both;
      std::set_intersection(found[q].begin(), found[q].end(), expected[q].begin(), expected[q].end(), std::back_inserter(both));
      queries += found[q] != expected[q];
      shared += static_cast<int64_t>(both.size());
      all += static_cast<int64_t>(expected[q].size());
    }
  }
};

Mismatch compare_selections(const Case& c, SelectionStore& store) {
  Mismatch m;
  for (size_t slot = 0; slot < c.golden_layers.size(); ++slot) m.add(selected_keys(store, slot), golden_keys(c, slot));
  return m;
}

std::vector<float> gradient_on_host(const Parameter& p) {
  std::vector<float> g(static_cast<size_t>(p.shape.elements()));
  copy_bytes(g.data(), Device{}, p.grad.raw(), p.grad.device(), p.grad.bytes(), {});
  synchronize(p.grad.device(), {});
  return g;
}

// What a run or the files say of a case; gradients by Hugging Face names.
struct Outcome {
  std::vector<float> logits;
  double loss_lm = 0;
  std::vector<double> index_losses;  // by slot
  std::map<std::string, std::vector<float>> gradients;
};

Outcome outcome_of_files(const Case& c, const std::string& folder) {
  Outcome o{c.reference.read_f32("logits"), c.reference.read_f32("loss_lm").at(0), {}, {}};
  for (const int64_t layer : c.golden_layers) o.index_losses.push_back(c.reference.read_f32(concat("loss_index.", layer)).at(0));
  const SafetensorsReader gradients(folder + "/gradients.safetensors");
  for (const auto& [name, info] : gradients.tensors())
    if (info.dtype != "I64") o.gradients.emplace(name, gradients.read_f32(name));
  return o;
}

Outcome run_case(Case& c, Step& step) {
  Outcome o;
  o.logits = step.logits(c.sequence);
  StepTotals totals;
  totals.add(c.sequence, 0);
  step.begin(totals);
  step.micro_batch(c.sequence, true);
  const StepLosses losses = step.losses();
  o.loss_lm = losses.lm;
  for (size_t slot = 0; slot < c.golden_layers.size(); ++slot) o.index_losses.push_back(losses.index_of_layer.at(slot));
  for (const Parameter& p : c.model->parameters().all()) {
    if (p.group == ParameterGroup::buffer) continue;
    const std::vector<float> g = gradient_on_host(p);
    for (const HfTensor& piece : p.hf) o.gradients.emplace(piece.name, std::vector<float>(g.begin() + piece.offset, g.begin() + piece.offset + piece.shape.elements()));
  }
  return o;
}

Outcome outcome_of_cpu(const std::string& folder) {
  Case c = load_case(folder, Device{});
  round_to_bf16(c.model->parameters());
  Arena arena(Device{}, "golden selections");
  Step step(*c.model, {.index_coefficient = 1});
  fix_selections(c, step.selections(), arena, c.golden_layers.size());
  RoutingStore routing = reference_routing(folder, arena);
  step.use_routing(&routing);
  return run_case(c, step);
}

struct Errors {
  double logits = 0, losses = 0, all_gradients = 0;
  std::vector<std::pair<double, std::string>> gradients;  // largest first
};

Errors compare(const Outcome& found, const Outcome& expected) {
  Errors e;
  e.logits = relative_l2(found.logits, expected.logits);
  e.losses = std::abs(found.loss_lm / expected.loss_lm - 1);
  for (size_t i = 0; i < expected.index_losses.size(); ++i) e.losses = std::max(e.losses, std::abs(found.index_losses[i] / expected.index_losses[i] - 1));
  std::vector<float> a, b;
  for (const auto& [name, gradient] : found.gradients) {
    const std::vector<float>& reference = expected.gradients.at(name);
    e.gradients.emplace_back(relative_l2(gradient, reference), name);
    a.insert(a.end(), gradient.begin(), gradient.end());
    b.insert(b.end(), reference.begin(), reference.end());
  }
  std::sort(e.gradients.rbegin(), e.gradients.rend());
  e.all_gradients = relative_l2(a, b);
  return e;
}

// Each slot's own selection where the layers below read the golden's: one that differs is then the doing of this layer's scores, and
// does not come from another selection before it.
std::vector<Keys> own_selections(Case& c, const StepOptions& o, RoutingStore* routing) {
  std::vector<Keys> own;
  for (size_t slot = 0; slot < c.golden_layers.size(); ++slot) {
    Arena golden(o.device, "golden selections");
    Step step(*c.model, o);
    fix_selections(c, step.selections(), golden, slot);
    step.use_routing(routing);
    step.logits(c.sequence);
    own.push_back(selected_keys(step.selections(), slot));
  }
  return own;
}

// The golden's, or with rounded weights those of our f32 run on the CPU.
std::vector<Keys> expected_selections(const Case& c, const std::string& folder, bool round_weights) {
  std::vector<Keys> expected;
  if (!round_weights) {
    for (size_t slot = 0; slot < c.golden_layers.size(); ++slot) expected.push_back(golden_keys(c, slot));
    return expected;
  }
  Case cpu = load_case(folder, Device{});
  round_to_bf16(cpu.model->parameters());
  Arena arena(Device{}, "expert choices");
  RoutingStore routing = reference_routing(folder, arena);
  return own_selections(cpu, {}, &routing);
}

bool check_folder(const std::string& folder, const Options& o) {
  const Device device{o.device == "cuda" ? DeviceType::cuda : DeviceType::cpu};
  const bool on_cuda = device.is_cuda();
  Case c = load_case(folder, device);
  if (o.round_weights) round_to_bf16(c.model->parameters());
  const StepOptions options{.device = device,
                            .activation = on_cuda ? DType::bf16 : DType::f32,
                            .f32_residual = o.f32_residual,
                            .recompute = o.recompute == "layer" ? Recompute::layer : Recompute::none,
                            .index_coefficient = 1};
  Step step(*c.model, options);
  Arena golden(device, "golden selections");
  RoutingStore routing;
  if (o.replay_golden_selections) {
    fix_selections(c, step.selections(), golden, c.golden_layers.size());
    if (device.is_cuda() || o.round_weights) {
      routing = reference_routing(folder, golden);
      step.use_routing(&routing);
    }
  }
  const Errors errors = compare(run_case(c, step), o.round_weights ? outcome_of_cpu(folder) : outcome_of_files(c, folder));
  const Mismatch selections = o.replay_golden_selections ? Mismatch{} : compare_selections(c, step.selections());
  const double limit = o.tolerance > 0 ? o.tolerance : on_cuda ? 2e-2 : 1e-4;
  const double gradient_limit = o.gradient_tolerance > 0 ? o.gradient_tolerance : on_cuda ? 3e-2 : limit;
  const bool selections_pass = on_cuda ? selections.overlap() >= 0.99 : selections.queries == 0;
  // With its own selections a bf16 run computes another function wherever one key differs: only the overlap is judged.
  const bool values_judged = !on_cuda || o.replay_golden_selections;
  const auto& [worst, worst_name] = errors.gradients.front();
  const bool pass = selections_pass && (!values_judged || (errors.logits <= limit && errors.losses <= limit && worst <= gradient_limit));
  std::printf("%s %s: logits %.2e, losses %.2e, gradients %.2e together, worst %.2e (%s), ", pass ? "ok  " : "FAIL", folder.c_str(), errors.logits, errors.losses,
              errors.all_gradients, worst, worst_name.c_str());
  if (o.replay_golden_selections) {
    std::printf("selections replayed; own overlap");
    const std::vector<Keys> own = own_selections(c, options, routing.experts.empty() ? nullptr : &routing), expected = expected_selections(c, folder, o.round_weights);
    for (size_t slot = 0; slot < own.size(); ++slot) {
      Mismatch m;
      m.add(own[slot], expected[slot]);
      std::printf("%s layer %lld %.3f%%", slot == 0 ? "" : ",", static_cast<long long>(c.golden_layers[slot]), 100 * m.overlap());
    }
    std::printf("\n");
  } else {
    std::printf("other selections %lld of %lld, overlap %.4f%%\n", static_cast<long long>(selections.queries),
                static_cast<long long>(c.batch * c.tokens * static_cast<int64_t>(c.golden_layers.size())), 100 * selections.overlap());
  }
  if (o.list_gradients)
    for (const auto& [error, name] : errors.gradients) std::printf("  %.2e %s\n", error, name.c_str());
  return pass;
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app{"Compares HyScale with reference cases."};
  app.add_option("--recompute", o.recompute, "none or layer")->check(CLI::IsMember({"none", "layer"}));
  app.add_option("--device", o.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option_function<std::string>("--residual", [&o](const std::string& dtype) { o.f32_residual = dtype == "float32"; },
                                       "activation (default) or float32, of the streams between layers")->check(CLI::IsMember({"activation", "float32"}));
  CLI::Option* replay = app.add_flag("--replay-golden-selections", o.replay_golden_selections, "attention reads the reference's selections");
  app.add_flag("--round-weights", o.round_weights, "weights as bf16 keeps them, on both sides; needs --replay-golden-selections")->needs(replay);
  app.add_flag("--list-gradients", o.list_gradients, "the error of every gradient, largest first");
  app.add_option("--tolerance", o.tolerance, "relative L2 for all (default 1e-4 in f32, 2e-2 for logits and losses in bf16)");
  app.add_option("--gradient-tolerance", o.gradient_tolerance, "relative L2 for gradients (default 3e-2 in bf16)");
  app.add_option("folders", o.folders, "reference cases")->required();
  CLI11_PARSE(app, argc, argv);
  bool pass = true;
  for (const std::string& folder : o.folders) pass = check_folder(folder, o) && pass;
  return pass ? 0 : 1;
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  try {
    return hyscale::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "golden-check: %s\n", e.what());
    return 2;
  }
}
