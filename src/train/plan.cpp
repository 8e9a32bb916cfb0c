#include "train/plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "train/setup.h"

namespace hyscale {
namespace {

std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string gib(size_t bytes) { return fmt::format("{:>12.3f} GiB", static_cast<double>(bytes) / (1 << 30)); }

size_t host_memory() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE)); }

// Of a sequence: tokens and labels as they are loaded, and the five arrays of a HostSequence, 4 bytes each.
constexpr size_t kHostBytesPerToken = (2 + 5) * 4;

std::array<std::pair<const char*, size_t>, 8> classes(const Plan& p) {
  return {{{"weights", p.weights}, {"gradients", p.gradients}, {"optimizer", p.optimizer}, {"saved activations", p.step.saved},
           {"selections", p.step.selections}, {"workspace", p.step.scratch}, {"token ids", p.step.inputs}, {"total", p.total_bytes()}}};
}

}  // namespace

void check_host_memory(size_t tokens, size_t memory) {
  const size_t taken = tokens * kHostBytesPerToken;
  if (taken > memory)
    throw UserError(concat("data.sequence_tokens: ", tokens, " tokens take ", taken >> 20, " MiB of host memory, whatever the device; this machine has ", memory >> 20,
                           " MiB, enough for ", memory / kHostBytesPerToken));
}

double train_flops(const ForwardFlops& f, const Config& c) {
  const bool selects_twice = c.train.recompute == "layer" && !c.train.selection_replay;
  return 3 * (f.linear + f.attention) + (selects_twice ? 2 : 1) * f.selector;
}

namespace {

// The most that any stage takes of each class; the rest as in the last.
Plan plan_of_stages(const Config& c, int rank) {
  Plan most;
  for (size_t stage = 0; stage < num_stages(c); ++stage) {
    Plan p = make_plan(stage_config(c, stage), rank);
    p.optimizer = std::max(p.optimizer, most.optimizer);
    p.step = {std::max(p.step.saved, most.step.saved), std::max(p.step.scratch, most.step.scratch), std::max(p.step.selections, most.step.selections),
              std::max(p.step.inputs, most.step.inputs)};
    most = p;
  }
  return most;
}

}  // namespace

Plan make_plan(const Config& c, int rank) {
  if (!c.train.stages.empty()) return plan_of_stages(c, rank);
  Plan p;
  const bool cuda = c.run.device == "cuda" || (c.run.device == "auto" && cuda_device_count() > 0);
  p.device = cuda ? "cuda" : "cpu";
  const DType dtype = cuda ? DType::bf16 : DType::f32;
  const Device meta{DeviceType::meta};
  ProcessGroups groups = make_meta_process_groups(rank, parallel_sizes(c));
  p.ranks = groups.sizes.world();
  const std::unique_ptr<Model> model = make_model(c, &groups);
  ParameterStore& store = model->parameters();
  check_groups(c, store);
  store.allocate(meta, dtype, sharding(c, groups));
  p.weights = store.value_bytes();
  p.gradients = store.gradient_bytes();
  p.total_elements = store.num_elements();
  p.hf_tensors = store.num_hf_tensors();
  p.active_elements = model->num_active_elements();

  const size_t before = allocated_bytes(meta);
  Optimizer optimizer(store, optimizer_options(c), meta, groups.world.get());
  p.optimizer = allocated_bytes(meta) - before;

  Step step(*model, step_options(c, meta, dtype, &groups));
  const size_t tokens = static_cast<size_t>(c.data.sequence_tokens);
  check_host_memory(tokens, host_memory());
  const HostSequence sequence =
      make_host_sequence(std::vector<int32_t>(tokens), std::vector<int32_t>(tokens), {0, static_cast<int32_t>(c.data.sequence_tokens)});
  SelectionHealth health(model->num_selecting_layers());
  if (c.run.selection_health_every > 0) step.watch(&health);
  StepTotals totals;
  totals.add(sequence, model->mtp_depths());
  step.begin(totals);
  const int64_t micro_batches = c.train.micro_batches / c.parallel.data;
  for (int64_t i = 0; i < micro_batches; ++i) step.micro_batch(sequence, i + 1 == micro_batches);
  step.reduce();
  optimizer.update(0, step.sums(), {});
  p.step = step.memory();
  p.sent = {groups.world->sent_bytes() + groups.expert_replicas->sent_bytes(), groups.context->sent_bytes(), groups.expert->sent_bytes()};
  p.forward = model->forward_flops(c.data.sequence_tokens);
  p.train_flops_per_token = train_flops(p.forward, c);
  p.limit = c.plan.memory_bytes > 0 ? static_cast<size_t>(c.plan.memory_bytes) : cuda ? cuda_memory_bytes() : host_memory();
  return p;
}

std::string plan_text(const Plan& p, const Config& c) {
  std::string t = fmt::format("Plan for one of {} ranks on {}, {} tokens per sequence\n", p.ranks, p.device, grouped(c.data.sequence_tokens));
  t += fmt::format("  parameters          {:>20} in {} tensors of a Hugging Face checkpoint\n", grouped(p.total_elements), grouped(p.hf_tensors));
  t += fmt::format("  active per token    {:>20} without the input embedding\n", grouped(p.active_elements));
  for (const auto& [name, bytes] : classes(p)) t += fmt::format("  {:<20}{}\n", name, gib(bytes));
  if (p.limit > 0) t += fmt::format("  {:<20}{}   {}\n", "available", gib(p.limit), p.fits() ? "fits" : "DOES NOT FIT");
  if (p.ranks > 1)
    for (const auto& [name, bytes] : {std::pair{"parameters", p.sent.parameters}, {"context", p.sent.context}, {"experts", p.sent.experts}})
      t += fmt::format("  sent for {:<11}{}  per step\n", name, gib(static_cast<size_t>(bytes)));
  t += fmt::format("  forward FLOPs per token: products {:.3e}, attention over selected keys {:.3e}, selector {:.3e}\n", p.forward.linear, p.forward.attention,
                   p.forward.selector);
  t += fmt::format("  training FLOPs per token: {:.3e} (recomputed work not counted)\n", p.train_flops_per_token);
  return t;
}

std::string plan_line(const Plan& p) {
  std::string t;
  for (const auto& [name, bytes] : classes(p)) t += fmt::format("{}{} {} MiB", t.empty() ? "" : ", ", name, bytes >> 20);
  return t;
}

}  // namespace hyscale
