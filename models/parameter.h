// A parameter: a named tensor with its gradient, its place in Hugging Face files, and what this rank holds of it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace hyscale {

// Which optimizer group a parameter belongs to.
enum class ParameterGroup : uint8_t {
  trunk,    // trained by the language-model loss
  indexer,  // trained by the index loss alone
  buffer,   // not trained by gradient (router bias); has no gradient
};

enum class Init : uint8_t { normal, ones, zeros, formula };  // normal: initializer_range * N(0, 1); formula: Parameter::formula

// A contiguous piece of a parameter that is a tensor of its own in Hugging Face files.
struct HfTensor {
  std::string name;   // "model.layers.3.mlp.experts.7.up_proj.weight"
  Shape shape;
  int64_t offset = 0;  // elements from the start of the whole parameter
};

struct Parameter {
  std::string name;  // as in Hugging Face where the parameter is one tensor there
  Shape shape;       // of what this rank holds: all of it, or its experts
  ParameterGroup group = ParameterGroup::trunk;
  Init init = Init::normal;
  bool fp32 = false;          // kept in f32 on every device (router bias, weights that decide a selection)
  bool weight_decay = true;   // false for norms, biases
  bool expert = false;        // sharded over the expert group
  int64_t first_element = 0;  // of the whole parameter, where this rank's part begins
  std::vector<HfTensor> hf;   // pieces in order, covering the whole parameter
  Tensor value;               // compute dtype, or f32 when fp32; see ParameterStore::open
  Tensor grad;                // f32, same shape; absent for buffers

  bool integer = false;       // whole numbers, stored as I64 in files
  std::function<float(int64_t element)> formula;  // starting values, with Init::formula
  int unit = 0;              // of the ParameterStore
  int64_t whole_elements() const { return hf.back().offset + hf.back().shape.elements(); }
  // Pieces that this rank holds: an expert is on one rank as a whole.
  bool holds(const HfTensor& piece) const { return piece.offset >= first_element && piece.offset < first_element + shape.elements(); }
};

// The weight of a norm: ones, without weight decay.
Parameter norm_weight(const std::string& name, int64_t size);

}  // namespace hyscale
