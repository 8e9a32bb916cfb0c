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

// What a parameter is in its model: optimizers and learning rates go by it.
enum class ParameterRole : uint8_t {
  dense,      // matrices of attention, MLPs and shared experts
  embedding,  // input embedding
  head,       // LM head
  router,     // scores of experts
  experts,
  indexer,
  vectors,    // norm weights, biases and whatever else is no matrix
};
inline constexpr int kNumParameterRoles = 7;
const char* role_name(ParameterRole);

// Over which ranks a parameter's first dimension is cut; each holds a part of its own, and copies are parts of equal place.
enum class Cut : uint8_t {
  none,     // every rank holds all of it
  experts,  // ranks of the expert group hold equally many experts each
  ranks,    // every rank of the job holds rows_of_rank(): a looked-up table too large to copy. Never gathered
};

// Rows [begin, end) of rank r of R: begin = floor(r rows / R).
struct RowRange {
  int64_t begin = 0, end = 0;
};
inline RowRange rows_of_rank(int64_t rows, int rank, int ranks) { return {rows * rank / ranks, rows * (rank + 1) / ranks}; }
// The rank that holds a row.
inline int rank_of_row(int64_t row, int64_t rows, int ranks) { return static_cast<int>(((row + 1) * ranks - 1) / rows); }

enum class Init : uint8_t { normal, ones, zeros, formula };  // normal: initializer_range * N(0, 1); formula: Parameter::formula

// A contiguous piece of a parameter that is a tensor of its own in Hugging Face files.
struct HfTensor {
  std::string name;   // "model.layers.3.mlp.experts.7.up_proj.weight"
  Shape shape;
  int64_t offset = 0;  // elements from the start of the whole parameter
};

// Whole numbers that follow from the configuration: a tensor in Hugging Face files, held against them when they are read.
struct HfConstant {
  std::string name;
  std::vector<int64_t> values;
};

struct Parameter {
  std::string name;  // as in Hugging Face where the parameter is one tensor there
  Shape shape;       // of what this rank holds: all of it, or its part
  ParameterGroup group = ParameterGroup::trunk;
  Init init = Init::normal;
  bool fp32 = false;          // kept in f32 on every device (router bias, weights that decide a selection)
  bool weight_decay = true;   // false for norms, biases
  Cut cut = Cut::none;
  bool integer = false;       // whole numbers, stored as I64 in files
  ParameterRole kind = ParameterRole::dense;  // embedding, head and router say so here; role() knows the rest
  std::vector<int64_t> head_rows = {};        // rows of one attention head by what they make, where heads lie one after the other
  int64_t first_element = 0;  // of the whole parameter, where this rank's part begins
  std::vector<HfTensor> hf;   // pieces in order, covering the whole parameter
  std::function<float(int64_t element)> formula = {};  // starting values, with Init::formula
  Tensor value;               // compute dtype, or f32 when fp32; see ParameterStore::open
  Tensor grad;                // f32, same shape; absent for buffers

  int unit = 0;              // of the ParameterStore
  int64_t whole_elements() const { return hf.back().offset + hf.back().shape.elements(); }
  ParameterRole role() const;
  // Every piece is a matrix of more than one row and column.
  bool is_matrix() const;
  int64_t end_element() const { return first_element + shape.elements(); }
  // This rank holds at least a part of the piece.
  bool holds(const HfTensor& piece) const { return piece.offset < end_element() && piece.offset + piece.shape.elements() > first_element; }
  // It holds all of it.
  bool holds_whole(const HfTensor& piece) const { return piece.offset >= first_element && piece.offset + piece.shape.elements() <= end_element(); }
};

// The weight of a norm: ones, without weight decay.
Parameter norm_weight(const std::string& name, int64_t size);

}  // namespace hyscale
