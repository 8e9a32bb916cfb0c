#include "train/step.h"

#include <utility>

namespace hyscale {
namespace {

constexpr int64_t kLm = 0, kMtp = 1, kBalance = 2, kIndex = 3;

double per(double sum, int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0; }
double scale_of(double coefficient, int64_t count) { return count > 0 ? coefficient / static_cast<double>(count) : 0; }

}  // namespace

void StepTotals::add(const HostSequence& s, int mtp_depths) {
  labels += num_labels(s);
  mtp_labels += num_mtp_labels(s, mtp_depths);
  queries += static_cast<int64_t>(s.tokens.size());
  documents += num_documents(s);
}

Step::Step(Model& model, const StepOptions& options)
    : model_(model),
      options_(options),
      saved_(options.device, "saved activations", options.reserve.saved),
      scratch_(options.device, "workspace", options.reserve.scratch),
      inputs_(options.device, "token ids", options.reserve.inputs),
      selections_(options.device, model.num_selecting_layers(), options.storage, options.reserve.selections),
      sums_memory_(options.device, static_cast<size_t>(kIndex + model.num_selecting_layers()) * sizeof(double), "loss sums"),
      sums_(sums_memory_.data(), DType::f64, options.device, {kIndex + model.num_selecting_layers()}) {}

LossSums Step::slots() {
  return {sums_.slice(0, kLm, kLm + 1), sums_.slice(0, kIndex, sums_.size(0)), sums_.slice(0, kBalance, kBalance + 1), sums_.slice(0, kMtp, kMtp + 1)};
}

Context Step::context(const PackedSequence& sequence, LossSums& sums) {
  Context ctx;
  ctx.device = options_.device;
  ctx.stream = stream();
  ctx.activation = options_.activation;
  ctx.f32_residual = options_.f32_residual;
  ctx.stage = options_.stage;
  ctx.replay = options_.replay;
  ctx.deterministic = options_.deterministic;
  ctx.sequence = &sequence;
  ctx.scales = {scale_of(1, totals_.labels), scale_of(options_.index_coefficient, totals_.queries), scale_of(options_.balance_coefficient, totals_.documents),
                scale_of(options_.mtp_coefficient, totals_.mtp_labels)};
  ctx.sums = &sums;
  ctx.selections = &selections_;
  ctx.routing = routing_;
  ctx.ring = ring_.get();
  if (options_.groups && options_.groups->expert->size() > 1) ctx.experts = options_.groups->expert.get();
  if (options_.groups && options_.groups->world->size() > 1) ctx.world = options_.groups->world.get();
  ctx.saved = &saved_;
  ctx.scratch = &scratch_;
  return ctx;
}

void Step::begin(const StepTotals& totals) {
  totals_ = totals;
  first_micro_batch_ = true;
  model_.parameters().zero_gradients(stream());
  zero(sums_, stream());
}

void Step::set_ring(int64_t sequence_tokens) {
  if (!options_.groups || options_.groups->context->size() == 1) return;
  if (ring_ && ring_->layout().sequence_tokens() == sequence_tokens) return;
  Communicator& group = *options_.groups->context;
  ring_ = std::make_unique<Ring>(group, ContextLayout(sequence_tokens, group.size(), options_.context_order), options_.device, options_.context_transport);
}

// This rank's part of a sequence.
PackedSequence Step::upload(const HostSequence& host) {
  const int64_t tokens = static_cast<int64_t>(host.tokens.size());
  set_ring(tokens);
  if (!ring_) return to_device(host, model_.sequence_needs(), inputs_, stream());
  return to_device(host, ring_->layout(), ring_->group().rank(), model_.sequence_needs(), inputs_, stream());
}

void Step::micro_batch(const HostSequence& host, bool last) {
  const ArenaScope scope(inputs_);
  const PackedSequence sequence = upload(host);
  LossSums sums = slots();
  Context ctx = context(sequence, sums);
  ctx.last_micro_batch = last;
  if (std::exchange(first_micro_batch_, false)) ctx.health = health_;
  selections_.begin();
  model_.train_step(ctx, options_.recompute);
}

void Step::reduce() {
  model_.parameters().finish_gradients(stream());
  if (!options_.groups || options_.groups->world->size() == 1) return;
  options_.groups->world->all_reduce(sums_, ReduceOp::sum, stream());
  if (const Tensor counts = model_.expert_counts(); counts.defined()) options_.groups->world->all_reduce(counts, ReduceOp::sum, stream());
}

StepLosses Step::losses() { return read(totals_); }

StepLosses Step::read(const StepTotals& totals) {
  std::vector<double> host(static_cast<size_t>(sums_.size(0)));
  copy_bytes(host.data(), Device{}, sums_.raw(), sums_.device(), sums_.bytes(), stream());
  synchronize(options_.device, stream());
  StepLosses l;
  l.lm = per(host[kLm], totals.labels);
  l.mtp = per(host[kMtp], totals.mtp_labels);
  l.balance = per(host[kBalance], totals.documents);
  for (size_t i = kIndex; i < host.size(); ++i) {
    l.index_of_layer.push_back(per(host[i], totals.queries));
    l.index += l.index_of_layer.back();
  }
  return l;
}

std::optional<StepLosses> Step::evaluate(const std::vector<HostSequence>& sequences, const std::function<bool()>& stop) {
  StepTotals totals;
  zero(sums_, stream());
  LossSums sums = slots();
  for (const HostSequence& s : sequences) totals.add(s, model_.mtp_depths());
  // Every data rank takes part in every round, if only with a token that has no label: others may wait for its experts.
  const HostSequence nothing = make_host_sequence({0}, {-1}, {0, 1});
  const size_t ranks = options_.groups ? static_cast<size_t>(options_.groups->sizes.data) : 1, rank = options_.groups ? static_cast<size_t>(options_.groups->place.data) : 0;
  for (size_t first = 0; first < sequences.size(); first += ranks) {
    if (stop && stop()) return std::nullopt;
    const ArenaScope scope(inputs_);
    const PackedSequence sequence = upload(first + rank < sequences.size() ? sequences[first + rank] : nothing);
    Context ctx = context(sequence, sums);
    ctx.stage = Stage::sparse;
    selections_.begin();
    model_.evaluate(ctx);
    synchronize(options_.device, stream());
  }
  if (options_.groups) options_.groups->world->all_reduce(sums_, ReduceOp::sum, stream());
  return read(totals);
}

std::vector<float> Step::logits(const HostSequence& host) {
  const ArenaScope scope(inputs_);
  const PackedSequence sequence = upload(host);
  LossSums sums = slots();
  Context ctx = context(sequence, sums);
  ctx.stage = Stage::sparse;
  selections_.begin();
  const Tensor logits = model_.logits(ctx, inputs_);
  std::vector<float> values(static_cast<size_t>(logits.elements()));
  copy_bytes(values.data(), Device{}, logits.raw(), options_.device, logits.bytes(), stream());
  synchronize(options_.device, stream());
  return values;
}

}  // namespace hyscale
