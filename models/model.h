// A model: an ordered list of layers, its parameters, and one pair of functions.
#pragma once
#include <memory>

#include "models/context.h"
#include "models/parameter.h"

namespace hyscale {

enum class Recompute : uint8_t {
  none,   // every layer keeps what its backward needs
  layer,  // a layer keeps its input (and its selection); the rest is computed again in backward
};

class Model {
 public:
  virtual ~Model() = default;
  virtual ParameterStore& parameters() = 0;
  virtual int num_selecting_layers() const = 0;

  // Forward and backward of one micro-batch. Gradients and loss sums accumulate.
  virtual void train_step(Context&, Recompute) = 0;
  // Forward only: accumulates sums.lm (and sums.mtp).
  virtual void evaluate(Context&) = 0;
  // Logits of every token, f32 [T, V]; for tests and small models.
  virtual Tensor logits(Context&, Arena& out) = 0;

  // After the optimizer's step: updates that no gradient drives (router bias from expert counts).
  virtual void after_step(Stream) = 0;
};

}  // namespace hyscale
