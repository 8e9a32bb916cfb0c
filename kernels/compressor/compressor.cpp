#include "kernels/compressor/compressor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/op.h"
#include "kernels/common/rows.h"

namespace hyscale {

void compressor_cuda(const Compressor&);
void compressor_backward_cuda(const CompressorBackward&);
size_t compressor_backward_cuda_workspace_bytes(const CompressorBackward&);

namespace {

// The slots of one channel of one entry: which token and which column each reads, and its weight.
class Slots {
 public:
  Slots(const Tensor& gates, const Tensor& ape, int64_t dims) : gates_(gates), ape_(ape), dims_(dims), group_(ape.size(0)), overlap_(ape.size(1) == 2 * dims) {
    p_.resize(static_cast<size_t>(2 * group_));
  }

  void read(int64_t first_token, bool has_previous, int64_t channel) {
    count_ = 0;
    own_column_ = overlap_ ? dims_ + channel : channel;
    previous_column_ = channel;
    first_ = first_token - (overlap_ && has_previous ? group_ : 0);
    own_first_ = first_token;
    double most = -INFINITY, sum = 0;
    for (int64_t t = first_; t < first_token + group_; ++t) {
      const float z = row_of(gates_, t)[column(t)] + ape_.f32()[(t - first_) % group_ * ape_.size(1) + column(t)];
      p_[static_cast<size_t>(count_++)] = z;
      most = std::max(most, double{z});
    }
    for (int64_t i = 0; i < count_; ++i) sum += p_[static_cast<size_t>(i)] = std::exp(p_[static_cast<size_t>(i)] - most);
    for (int64_t i = 0; i < count_; ++i) p_[static_cast<size_t>(i)] /= sum;
  }

  int64_t first() const { return first_; }
  int64_t count() const { return count_; }
  double weight(int64_t t) const { return p_[static_cast<size_t>(t - first_)]; }
  int64_t column(int64_t t) const { return t < own_first_ ? previous_column_ : own_column_; }

 private:
  const Tensor &gates_, &ape_;
  int64_t dims_, group_, first_ = 0, own_first_ = 0, count_ = 0, own_column_ = 0, previous_column_ = 0;
  bool overlap_;
  std::vector<double> p_;
};

double pooled(const Slots& slots, const Tensor& keys) {
  double entry = 0;
  for (int64_t t = slots.first(); t < slots.first() + slots.count(); ++t) entry += slots.weight(t) * row_of(keys, t)[slots.column(t)];
  return entry;
}

void compressor_ref(const Compressor& c) {
  const int64_t entries = c.entries.size(0), dims = c.entries.size(1);
#pragma omp parallel
  {
    Slots slots(c.gates, c.ape, dims);
#pragma omp for
    for (int64_t e = 0; e < entries; ++e)
      for (int64_t d = 0; d < dims; ++d) {
        slots.read(c.first_token.i32()[e], c.positions.i32()[e] > 0, d);
        row_of(c.entries, e)[d] = static_cast<float>(pooled(slots, c.keys));
      }
  }
}

// Channels are independent, and each token's channel belongs to one entry: threads share out channels.
void compressor_backward_ref(const CompressorBackward& c) {
  const int64_t entries = c.dentries.size(0), dims = c.dentries.size(1), group = c.ape.size(0), channels = c.ape.size(1);
  for (int64_t t = 0; t < c.dkeys.size(0); ++t) {
    std::fill_n(row_of(c.dkeys, t), channels, 0.0f);
    std::fill_n(row_of(c.dgates, t), channels, 0.0f);
  }
#pragma omp parallel
  {
    Slots slots(c.gates, c.ape, dims);
    std::vector<double> dape(static_cast<size_t>(2 * group));  // [previous | own]
#pragma omp for
    for (int64_t d = 0; d < dims; ++d) {
      std::fill(dape.begin(), dape.end(), 0.0);
      for (int64_t e = 0; e < entries; ++e) {
        const int64_t own_first = c.first_token.i32()[e];
        slots.read(own_first, c.positions.i32()[e] > 0, d);
        const double entry = pooled(slots, c.keys), dentry = row_of(c.dentries, e)[d];
        for (int64_t t = slots.first(); t < slots.first() + slots.count(); ++t) {
          const int64_t column = slots.column(t);
          const double dgate = slots.weight(t) * dentry * (row_of(c.keys, t)[column] - entry);
          row_of(c.dkeys, t)[column] = static_cast<float>(slots.weight(t) * dentry);
          row_of(c.dgates, t)[column] = static_cast<float>(dgate);
          dape[static_cast<size_t>(t - own_first + group)] += dgate;
        }
      }
      for (int64_t r = 0; r < group; ++r) {
        if (channels == 2 * dims) c.dape.f32()[r * channels + d] += static_cast<float>(dape[static_cast<size_t>(r)]);
        c.dape.f32()[r * channels + (channels - dims) + d] += static_cast<float>(dape[static_cast<size_t>(group + r)]);
      }
    }
  }
}

void check(const Tensor& keys, const Tensor& gates, const Tensor& ape, const Tensor& first_token, const Tensor& positions, const Tensor& entries) {
  check_tensor(ape, "ape", DType::f32, {-1, -1});
  const int64_t channels = ape.size(1), dims = entries.size(1);
  HYSCALE_CHECK(channels == dims || channels == 2 * dims, channels, " channels for entries of ", dims);
  for (const Tensor* t : {&keys, &gates}) HYSCALE_CHECK(t->dtype() == DType::f32 && t->rank() == 2 && t->size(1) == channels, "keys or gates ", to_string(*t));
  HYSCALE_CHECK(keys.size(0) == gates.size(0), "keys ", to_string(keys), ", gates ", to_string(gates));
  check_tensor(first_token, "first_token", DType::i32, {entries.size(0)});
  check_tensor(positions, "positions", DType::i32, {entries.size(0)});
}

}  // namespace

void compressor(const Compressor& c) {
  check(c.keys, c.gates, c.ape, c.first_token, c.positions, c.entries);
  HYSCALE_DISPATCH("compressor", c.keys.device(), compressor_ref(c), compressor_cuda(c));
}

void compressor_backward(const CompressorBackward& c) {
  check(c.keys, c.gates, c.ape, c.first_token, c.positions, c.dentries);
  check_shape(c.dkeys, "dkeys", c.keys.shape());
  check_shape(c.dgates, "dgates", c.gates.shape());
  check_tensor(c.dape, "dape", DType::f32, c.ape.shape());
  HYSCALE_DISPATCH("compressor_backward", c.keys.device(), compressor_backward_ref(c), compressor_backward_cuda(c));
}

size_t compressor_backward_workspace_bytes(const CompressorBackward& c) {
#ifdef HYSCALE_HAS_CUDA
  if (!c.keys.device().is_cpu()) return compressor_backward_cuda_workspace_bytes(c);
#endif
  (void)c;
  return 0;
}

}  // namespace hyscale
