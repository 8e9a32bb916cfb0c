// Step: forward and backward of the micro-batches of one optimizer step, and evaluation; owns the working memory.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "comm/groups.h"
#include "models/model.h"
#include "models/packed_sequence.h"
#include "models/selection_health.h"
#include "models/selection_store.h"

namespace hyscale {

// Most bytes that each part of the working memory has in use at once; reserved whole, so that memory is what the plan says.
struct StepMemory {
  size_t saved = 0, scratch = 0, selections = 0, inputs = 0;
};

struct StepOptions {
  Device device;
  DType activation = DType::f32;
  bool f32_residual = false;  // streams between layers and their gradients in f32, whatever the activation's dtype
  Stage stage = Stage::sparse;
  Recompute recompute = Recompute::none;
  bool replay = true;
  bool deterministic = false;
  SelectionStorage storage = SelectionStorage::int32;
  double index_coefficient = 0, balance_coefficient = 0, mtp_coefficient = 0;
  ProcessGroups* groups = nullptr;  // the ranks of the job; null: this one alone
  ContextOrder context_order = ContextOrder::zigzag;
  ContextTransport context_transport = ContextTransport::ring;
  StepMemory reserve;  // from a plan; zeroes: memory grows by need
};

// What the averaged losses of a step are divided by: all micro-batches, all ranks.
struct StepTotals {
  int64_t labels = 0, mtp_labels = 0, queries = 0, documents = 0;
  void add(const HostSequence&, int mtp_depths);
};

// Averages of a step. Each was summed on the device and is divided here, in one place.
struct StepLosses {
  double lm = 0;       // mean over labels
  double mtp = 0;      // mean over MTP labels of all depths
  double index = 0;    // mean over queries, summed over selecting layers
  double balance = 0;  // mean over documents, summed over MoE layers
  std::vector<double> index_of_layer;
};

class Step {
 public:
  Step(Model&, const StepOptions&);

  // Zeroes gradients and sums.
  void begin(const StepTotals&);
  // Does not wait: the sequence stays until losses() returns. The ranks of a context group get the same sequence and work on
  // their parts. last: of this rank in this step.
  void micro_batch(const HostSequence&, bool last);
  // Sums gradients, loss sums and expert counts over the ranks. Once, after the last micro-batch.
  void reduce();
  // Synchronises. Throws nothing for non-finite values: the caller judges.
  StepLosses losses();

  // Mean cross entropy over the sequences' labels (and over MTP labels), forward only. The ranks share the sequences and have
  // the same result.
  // stop: asked before each round of sequences, with the same answer on all ranks; true: nothing is returned.
  std::optional<StepLosses> evaluate(const std::vector<HostSequence>&, const std::function<bool()>& stop = {});
  // f32 [T, V] on the host; for tests and small models on one rank.
  std::vector<float> logits(const HostSequence&);

  // Milliseconds that transfers between context ranks took, and those for which the work waited; since the last call.
  Ring::Times take_context_times() { return ring_ ? ring_->take_times() : Ring::Times{}; }

  // Of the step that runs or ran last, on the device: f64 [3 + selecting layers]: lm, mtp, balance, index of each layer.
  Tensor sums() const { return sums_; }
  SelectionStore& selections() { return selections_; }
  // Expert choices to record into or replay from, for every pass from now on; null: neither.
  void use_routing(RoutingStore* routing) { routing_ = routing; }
  Stage stage() const { return options_.stage; }
  // Samples selections in the first micro-batch of every step from now on; null: none.
  void watch(SelectionHealth* health) { health_ = health; }
  Stream stream() const { return {}; }
  StepMemory memory() const { return {saved_.peak_bytes(), scratch_.peak_bytes(), selections_.peak_bytes(), inputs_.peak_bytes()}; }

 private:
  Context context(const PackedSequence&, LossSums&);
  PackedSequence upload(const HostSequence&);
  void set_ring(int64_t sequence_tokens);
  LossSums slots();
  StepLosses read(const StepTotals&);

  Model& model_;
  StepOptions options_;
  Arena saved_, scratch_, inputs_;
  SelectionStore selections_;
  RoutingStore* routing_ = nullptr;
  SelectionHealth* health_ = nullptr;
  bool first_micro_batch_ = true;
  std::unique_ptr<Ring> ring_;  // of the context group, for sequences of its length; none for one rank
  Buffer sums_memory_;
  Tensor sums_;
  StepTotals totals_;
};

}  // namespace hyscale
