// What tests of whole models share: random models, packed sequences, one training step, and what holds for every family.
#pragma once
#include <gtest/gtest.h>

#include "models/registry.h"
#include "tests/support/errors.h"
#include "tests/support/tensors.h"
#include "train/step.h"

namespace hyscale::test {

inline std::unique_ptr<Model> make_random(const nlohmann::json& config, const ModelOptions& options = {}, uint64_t seed = 3) {
  std::unique_ptr<Model> model = make_model(config, "config.json", options);
  model->parameters().allocate(Device{}, DType::f32);
  model->parameters().initialize(seed, 0.1f);
  return model;
}

// Documents of these lengths with random tokens.
inline HostSequence sequence(const std::vector<int32_t>& lengths, uint64_t seed = 1, int64_t vocabulary = 160) {
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

// Its documents, each in a sequence of its own; those without tokens are left out.
inline std::vector<HostSequence> documents_of(const HostSequence& s) {
  std::vector<HostSequence> documents;
  for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) {
    const auto first = s.document_starts[d], last = s.document_starts[d + 1];
    if (first == last) continue;
    documents.push_back(make_host_sequence({s.tokens.begin() + first, s.tokens.begin() + last}, {s.labels.begin() + first, s.labels.begin() + last}, {0, last - first}));
  }
  return documents;
}

inline StepOptions run_options(Recompute recompute = Recompute::none) {
  return {.recompute = recompute, .index_coefficient = 1, .balance_coefficient = 0.01, .mtp_coefficient = 0.3};
}

struct TrainResult {
  StepLosses losses;
  int64_t selector_calls;
};
inline TrainResult train_once(Model& model, const StepOptions& o, const std::vector<HostSequence>& sequences) {
  Step step(model, o);
  StepTotals totals;
  for (const HostSequence& s : sequences) totals.add(s, model.mtp_depths());
  step.begin(totals);
  for (const HostSequence& s : sequences) step.micro_batch(s, &s == &sequences.back());
  return {step.losses(), step.selections().selector_calls()};
}

inline std::vector<float> gradients_of(Model& model) {
  std::vector<float> all;
  for (const Parameter& p : model.parameters().all())
    if (p.grad.defined()) all.insert(all.end(), p.grad.f32(), p.grad.f32() + p.grad.elements());
  return all;
}

inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  HYSCALE_CHECK(a.size() == b.size(), a.size(), " values against ", b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]), norm += double{b[i]} * b[i];
  return std::sqrt(difference / norm);
}

// Two random models of one seed, trained for a step with different options: equal losses and gradients, bit for bit.
inline void expect_same_run(const nlohmann::json& config, const StepOptions& a, const StepOptions& b, const ModelOptions& m = {}) {
  const std::vector<HostSequence> s{sequence({37, 1, 26, 70, 3})};
  const auto x = make_random(config, m), y = make_random(config, m);
  const TrainResult rx = train_once(*x, a, s), ry = train_once(*y, b, s);
  EXPECT_EQ(rx.losses.lm, ry.losses.lm);
  EXPECT_EQ(rx.losses.index, ry.losses.index);
  EXPECT_EQ(rx.losses.mtp, ry.losses.mtp);
  EXPECT_TRUE(gradients_of(*x) == gradients_of(*y));
}

// Where activations are f32, streams in f32 are what they are anyway.
inline void expect_f32_residual_changes_no_bit(const nlohmann::json& config, const ModelOptions& m = {}) {
  for (Recompute recompute : {Recompute::none, Recompute::layer}) {
    StepOptions o = run_options(recompute);
    o.f32_residual = true;
    expect_same_run(config, run_options(recompute), o, m);
  }
}

// Documents packed into one sequence are what they are as micro-batches of their own: losses, gradients, logits.
inline void expect_same_packed_and_alone(const nlohmann::json& config, const std::vector<int32_t>& lengths, const ModelOptions& m = {}) {
  const auto packed = make_random(config, m), alone = make_random(config, m);
  const HostSequence all = sequence(lengths);
  const std::vector<HostSequence> documents = documents_of(all);
  const TrainResult a = train_once(*packed, run_options(), {all}), b = train_once(*alone, run_options(), documents);
  EXPECT_NEAR(a.losses.lm, b.losses.lm, 1e-6 * a.losses.lm);
  EXPECT_NEAR(a.losses.index, b.losses.index, 1e-5 * a.losses.index);
  EXPECT_NEAR(a.losses.balance, b.losses.balance, 1e-6 * a.losses.balance);
  EXPECT_NEAR(a.losses.mtp, b.losses.mtp, 1e-6 * a.losses.mtp);
  EXPECT_LT(relative_difference(gradients_of(*packed), gradients_of(*alone)), 1e-5);
  Step step(*packed, run_options());
  const std::vector<float> logits = step.logits(all);
  auto at = logits.begin();
  for (const HostSequence& document : documents) {
    const std::vector<float> part = step.logits(document);
    const auto end = at + static_cast<int64_t>(part.size());
    EXPECT_LT(relative_difference({at, end}, part), 1e-5) << "from logit " << at - logits.begin();
    at = end;
  }
}

inline void expect_zero_gradient(const Parameter& p) {
  for (int64_t i = 0; i < p.grad.elements(); ++i) ASSERT_EQ(p.grad.f32()[i], 0) << p.name;
}

// The index loss changes no bit of the trunk's gradients, and without it indexers have none.
inline void expect_losses_reach_their_own_parameters(const nlohmann::json& config, const ModelOptions& m = {}) {
  const auto with = make_random(config, m), without = make_random(config, m);
  StepOptions none = run_options();
  none.index_coefficient = 0;
  train_once(*with, run_options(), {sequence({60, 21})});
  train_once(*without, none, {sequence({60, 21})});
  for (const Parameter& p : with->parameters().all()) {
    if (!p.grad.defined()) continue;
    const Parameter& other = *without->parameters().find(p.name);
    if (p.group == ParameterGroup::trunk) {
      EXPECT_TRUE(same_bits(p.grad, other.grad)) << p.name;
    } else {
      expect_zero_gradient(other);
    }
  }
}

inline void expect_warmup_trains_indexers_only(const nlohmann::json& config, const std::vector<int32_t>& lengths, const ModelOptions& m = {}) {
  const auto model = make_random(config, m);
  StepOptions o = run_options();
  o.stage = Stage::warmup;
  const TrainResult r = train_once(*model, o, {sequence(lengths)});
  EXPECT_GT(r.losses.index, 0);
  EXPECT_EQ(r.selector_calls, 0);
  for (const Parameter& p : model->parameters().all()) {
    if (!p.grad.defined()) continue;
    const std::vector<double> g = doubles(p.grad);
    EXPECT_EQ(std::ranges::any_of(g, [](double x) { return x != 0; }), p.group == ParameterGroup::indexer) << p.name;
  }
}

// Where every visible key is selected, the warm-up stage computes the sparse stage's losses and gradients of indexers.
inline void expect_warmup_as_sparse(const nlohmann::json& config, const std::vector<int32_t>& lengths) {
  const auto dense = make_random(config), sparse = make_random(config);
  StepOptions o = run_options();
  const std::vector<HostSequence> s{sequence(lengths)};
  const TrainResult b = train_once(*sparse, o, s);
  o.stage = Stage::warmup;
  const TrainResult a = train_once(*dense, o, s);
  EXPECT_NEAR(a.losses.lm, b.losses.lm, 1e-5 * b.losses.lm);
  EXPECT_NEAR(a.losses.index, b.losses.index, 1e-5 * b.losses.index);
  for (const Parameter& p : dense->parameters().all())
    if (p.group == ParameterGroup::indexer) {
      EXPECT_CLOSE(p.grad, doubles(sparse->parameters().find(p.name)->grad), 1e-4);
    }
}

// What make_model says of the configuration with another value for `key`; "accepted" if nothing.
inline std::string config_error(nlohmann::json config, const std::string& key, const nlohmann::json& value) {
  config[key] = value;
  return error_of([&] { make_model(config, "dir/config.json", {}); });
}

// The parameter's gradient along one random direction against the loss at two points; f32 losses allow a relative error of 2e-3.
// The model must be smooth there: everything selected, all experts chosen. Its gradients are those of a train_once before.
// distance: of each point; smaller for models that bend more.
inline void expect_directional_derivative(Model& model, const StepOptions& o, const HostSequence& s, const std::string& name, double distance = 3e-2) {
  Parameter& p = *model.parameters().find(name);
  const HostTensor direction = random({p.shape.elements()}, 11);
  double analytic = 0, norm = 0;
  for (int64_t i = 0; i < p.grad.elements(); ++i) analytic += double{p.grad.f32()[i]} * direction[i], norm += double{direction[i]} * direction[i];
  const float h = static_cast<float>(distance / std::sqrt(norm));
  const std::vector<float> before(p.value.f32(), p.value.f32() + p.value.elements());
  const auto moved = [&](float by) {
    for (int64_t i = 0; i < p.value.elements(); ++i) p.value.f32()[i] = before[static_cast<size_t>(i)] + by * direction[i];
    Step step(model, o);
    const StepLosses l = *step.evaluate({s});
    return l.lm + o.mtp_coefficient * l.mtp;
  };
  const double numeric = (moved(h) - moved(-h)) / (2.0 * h);
  moved(0);
  EXPECT_NEAR(analytic, numeric, 2e-3 * std::abs(numeric) + 1e-6) << name << ", directional derivative " << numeric;
}

}  // namespace hyscale::test
