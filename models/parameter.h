// Parameters of a model: named tensors in flat buffers, each with its gradient and its place in Hugging Face files.
#pragma once
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory.h"

namespace hyscale {

// Which optimizer group a parameter belongs to.
enum class ParameterGroup : uint8_t {
  trunk,    // trained by the language-model loss
  indexer,  // trained by the index loss alone
  buffer,   // not trained by gradient (router bias); has no gradient
};

enum class Init : uint8_t { normal, ones, zeros };  // normal: initializer_range * N(0, 1)

// A contiguous piece of a parameter that is a tensor of its own in Hugging Face files.
struct HfTensor {
  std::string name;   // "model.layers.3.mlp.experts.7.up_proj.weight"
  Shape shape;
  int64_t offset = 0;  // elements from the parameter's start
};

struct Parameter {
  std::string name;  // as in Hugging Face where the parameter is one tensor there
  Shape shape;
  ParameterGroup group = ParameterGroup::trunk;
  Init init = Init::normal;
  bool fp32 = false;          // kept in f32 on every device (router bias, weights that decide a selection)
  bool weight_decay = true;   // false for norms, biases
  bool expert = false;        // sharded over the expert group
  std::vector<HfTensor> hf;   // pieces in order, covering the parameter
  Tensor value;               // compute dtype, or f32 when fp32
  Tensor grad;                // f32, same shape; absent for buffers
};

// The weight of a norm: ones, without weight decay.
Parameter norm_weight(const std::string& name, int64_t size);

class ParameterStore {
 public:
  // References stay valid. Throws InternalError on a second parameter of the same name, or when `hf` does not cover it.
  Parameter& add(Parameter);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter* find(const std::string& name);

  // Gives every parameter its value and gradient memory. compute: f32 on the CPU, bf16 on CUDA, either on meta.
  void allocate(Device, DType compute);
  // Random initial values, a function of (seed, parameter name, element) alone: the same on every device and layout.
  void initialize(uint64_t seed, float initializer_range);
  void zero_gradients(Stream);
  // All gradients as one f32 tensor (with the padding between them), for reductions over ranks.
  Tensor flat_gradients() const;
  // Sets a parameter's value from f32 on the host, rounding to its dtype.
  void write_value(Parameter&, const float* values);

  int64_t num_elements() const;       // all parameters, buffers included
  int64_t num_hf_tensors() const;

 private:
  std::deque<Parameter> parameters_;
  std::unordered_map<std::string, size_t> by_name_;
  Buffer values_, gradients_;
};

}  // namespace hyscale
