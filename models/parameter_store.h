// The parameters of a model, how they lie in memory and how ranks share them.
//
// Parameters form units (the embedding, each decoder layer, the head), and in a unit those of equal dtype and equal ranks
// lie one after the other: a Flat. A Flat is cut into one shard per rank that holds the same parameters. Each rank gets the
// summed gradients of its shard, keeps its optimizer state and updates it (ZeRO-1); then all shards are gathered again.
// With sharded weights (ZeRO-3) decoder layers keep nothing but their shard and are gathered for use, one layer ahead.
// What is cut over all ranks has no copies: a rank's part is its shard, and stays as it is.
//
//   forward of unit u:   open(u, next) ... close(u)
//   backward of unit u:  open_for_backward(u, next) ... close_after_backward(u, last micro-batch)
// For units that are whole the first three do nothing.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>

#include "comm/communicator.h"
#include "core/memory.h"
#include "core/stream.h"
#include "models/parameter.h"

namespace hyscale {

struct Sharding {
  Communicator* world = nullptr;            // ranks that hold the same dense parameters; null: this one alone
  Communicator* expert_replicas = nullptr;  // ranks that hold the same experts; null: this one alone
  bool weights = false;                     // ZeRO-3 for units of layers
};

// The part of one parameter that lies in this rank's shard.
struct ShardPiece {
  Parameter* parameter;
  int64_t first_element;  // of the whole parameter
  Tensor value, grad;     // flat
};

class ParameterStore {
 public:
  struct Flat {
    int unit = 0;
    Cut cut = Cut::none;
    bool sharded = false, reduced = false;
    DType dtype = DType::f32;
    std::vector<std::pair<Parameter*, int64_t>> parameters;  // and where they start
    int64_t elements = 0;     // padded to a multiple of the ranks
    Communicator* ranks = nullptr;  // null: this one alone
    int rank = 0, size = 1;
    size_t value_offset = 0, gradient_offset = 0;  // of a sharded flat, in a slot
    Tensor values, gradients;          // whole; while a sharded unit is closed they are absent
    Tensor own_values, own_gradients;  // [elements / size]
    int64_t shard() const { return elements / size; }
  };
  // Parameters added from now on form a new unit. `layer`: its weights may be sharded; layers are used in their order.
  // Returns the unit's number. What is added before the first call forms a unit too.
  int begin_unit(bool layer);
  // References stay valid. Throws InternalError on a second parameter of the same name, or when `hf` does not cover it.
  Parameter& add(Parameter);
  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter* find(const std::string& name);
  // Tensors of this prefix in Hugging Face files belong to a part that is neither read, trained nor written.
  void leave_out(const std::string& prefix) { left_out_ = prefix; }
  const std::string& left_out() const { return left_out_; }
  void add_constant(HfConstant constant) { constants_.push_back(std::move(constant)); }
  const std::vector<HfConstant>& constants() const { return constants_; }
  // Names that a family's own releases give to tensors where they differ from transformers'.
  void set_released_names(std::function<std::string(const std::string&)> f) { released_names_ = std::move(f); }
  std::string released_name(const std::string& name) const { return released_names_ ? released_names_(name) : name; }
  int num_units() const { return static_cast<int>(units_.size()); }

  // Gives every parameter its value and gradient memory. compute: f32 on the CPU, bf16 or f32 on CUDA, either on meta.
  // The communicators stay valid as long as the store.
  void allocate(Device, DType compute, const Sharding& = {});
  // Random initial values, a function of (seed, parameter name, element) alone: the same on every device and layout.
  void initialize(uint64_t seed, float initializer_range);
  // Sets what this rank holds of a parameter from f32 on the host [shape], rounding to its dtype.
  void write_value(Parameter&, const float* values);

  // A unit's values are whole between open and close; `next` (-1: none) is the unit that will be opened next.
  void open(int unit, int next, Stream);
  void close(int unit);
  void open_for_backward(int unit, int next, Stream);
  void close_after_backward(int unit, bool last_micro_batch, Stream);

  bool gathers_weights() const { return shard_weights_; }

  void zero_gradients(Stream);
  // After the last backward: the gradients of own_pieces() are summed over the ranks that hold the same parameters.
  void finish_gradients(Stream);
  // Trained parameters of this rank's shards; valid after allocate().
  const std::vector<ShardPiece>& own_pieces() const { return own_pieces_; }
  // In the order of own_pieces(); for work on parameters that shards cut.
  const std::vector<Flat>& flats() const { return flats_; }
  // After own_pieces() have new values: everyone gets them.
  void share_values(Stream);

  int64_t num_elements() const;    // of the whole model, buffers and constants included
  int64_t num_hf_tensors() const;
  size_t value_bytes() const { return values_.bytes(); }
  size_t gradient_bytes() const { return gradients_.bytes(); }
  int64_t sent_bytes() const;      // by this rank, for parameters

 private:
  struct Unit {
    bool layer = false;
    int layer_number = 0;  // among layers
  };
  // Memory of an opened unit with sharded weights.
  struct Slot {
    int unit = -1;
    char *values = nullptr, *gradients = nullptr;
    size_t gradient_bytes = 0;
    std::unique_ptr<Event> gathered, reduced;
  };

  void lay_out(DType compute, const Sharding&);
  void list_own_pieces();
  Slot& slot_of(int unit) { return slots_[static_cast<size_t>(units_[static_cast<size_t>(unit)].layer_number) % 2]; }
  bool sharded(int unit) const { return shard_weights_ && units_[static_cast<size_t>(unit)].layer; }
  void gather(int unit, Stream compute);
  void bind_values(Flat&, char* memory);
  void bind_gradients(Flat&, char* memory);
  void reduce(Flat&, Stream compute);
  template <typename F>
  void for_each_flat(int unit, F&& f) {
    for (Flat& flat : flats_)
      if (flat.unit == unit) f(flat);
  }

  std::function<std::string(const std::string&)> released_names_;
  std::deque<Parameter> parameters_;
  std::vector<HfConstant> constants_;
  std::string left_out_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<Unit> units_;
  std::vector<Flat> flats_;
  std::vector<ShardPiece> own_pieces_;
  Device device_;
  bool shard_weights_ = false;
  int num_layers_ = 0;
  Buffer values_, gradients_;
  std::array<Slot, 2> slots_;
  std::unique_ptr<OwnedStream> transfer_;
  std::unique_ptr<Event> ready_, done_;
};

}  // namespace hyscale
