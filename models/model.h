// A model: an ordered list of layers, its parameters, and one pair of functions.
#pragma once
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "models/context.h"
#include "models/packed_sequence.h"
#include "models/parameter_store.h"

namespace hyscale {

enum class Recompute : uint8_t {
  none,   // every layer keeps what its backward needs
  layer,  // a layer keeps its input (and its selection); the rest is computed again in backward
};

// Forward FLOPs of one token in a document of `document_tokens`, averaged over its positions, by part. A training step
// costs three times the forward (backward twice), the selector once: it has no backward over unselected keys.
struct ForwardFlops {
  double linear = 0;     // matrix products with the active weights, LM head included
  double attention = 0;  // attention over the selected keys
  double selector = 0;   // index scores of every visible key
  double dense_attention = 0;  // attention over every visible key, as the warm-up stage computes it
};

// Of `positions` queries that see 1, 2, ... keys: how many they read on average when none reads more than `limit`.
inline double mean_keys_read(double positions, double limit) {
  const double k = std::min(positions, limit);
  return (k * (k + 1) / 2 + (positions - k) * k) / positions;
}

class Model {
 public:
  virtual ~Model() = default;
  virtual ParameterStore& parameters() = 0;
  virtual int num_selecting_layers() const = 0;
  virtual int64_t vocabulary_size() const = 0;
  // Labels of MTP depths (none without MTP), compressed entries.
  virtual SequenceNeeds sequence_needs() const = 0;
  int mtp_depths() const { return sequence_needs().mtp_depths; }
  // Names of the MTP layer's tensors in Hugging Face files begin with this.
  virtual std::string mtp_prefix() const = 0;
  // Elements that take part in one token's forward, without the input embedding (and without MTP).
  virtual int64_t num_active_elements() const = 0;
  virtual ForwardFlops forward_flops(int64_t document_tokens) const = 0;
  virtual float initializer_range() const = 0;  // standard deviation of random starting weights
  // config.json of this model, as read, for checkpoints.
  virtual const nlohmann::json& hf_config() const = 0;

  // Forward and backward of one micro-batch. Gradients and loss sums accumulate.
  virtual void train_step(Context&, Recompute) = 0;
  // Forward only: accumulates sums.lm (and sums.mtp).
  virtual void evaluate(Context&) = 0;
  // Logits of every token, f32 [T, V]; for tests and small models.
  virtual Tensor logits(Context&, Arena& out) = 0;

  // Expert loads since the last step, i64 [MoE layers, E]; summed over ranks by the caller before after_step. Undefined without experts.
  virtual Tensor expert_counts() = 0;
  // After the optimizer's step: updates that no gradient drives (router bias from expert counts); counts restart at 0.
  // `applied` false (the step was not applied, or the trunk is frozen): only the counts restart.
  virtual void after_step(bool applied, Stream) = 0;
};

}  // namespace hyscale
