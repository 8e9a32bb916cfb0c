// Inputs of the gated delta rule for packed documents: unit rows for q and k, decays below zero, beta between 0 and 1.
#pragma once
#include <numeric>

#include "tests/support/tensors.h"

namespace hyscale::test {

struct DeltaCase {
  std::vector<int32_t> starts;
  int64_t key_heads, value_heads, dk, dv;
  HostTensor q, k, v, log_decay, beta;
  int64_t tokens() const { return starts.back(); }
  DeltaCase(const std::vector<int32_t>& lengths, int64_t hk, int64_t hv, int64_t k_dims, int64_t v_dims, float decay = 0.3f)
      : starts{0}, key_heads(hk), value_heads(hv), dk(k_dims), dv(v_dims) {
    for (int32_t n : lengths) starts.push_back(starts.back() + n);
    q = unit_rows(1), k = unit_rows(2), v = random({tokens(), hv, dv}, 3);
    log_decay = random({tokens(), hv}, 4), beta = random({tokens(), hv}, 5);
    for (int64_t i = 0; i < beta.size(); ++i) log_decay[i] = -decay * std::abs(log_decay[i]), beta[i] = 1 / (1 + std::exp(-beta[i]));
  }
  HostTensor unit_rows(uint64_t seed) const {
    HostTensor x = random({tokens(), key_heads, dk}, seed);
    for (int64_t row = 0; row < tokens() * key_heads; ++row) {
      float* r = x.f32() + row * dk;
      const float norm = std::sqrt(std::inner_product(r, r + dk, r, 1e-6f));
      for (int64_t d = 0; d < dk; ++d) r[d] /= norm;
    }
    return x;
  }
  HostTensor document_starts() const { return ints({static_cast<int64_t>(starts.size())}, starts); }
};

}  // namespace hyscale::test
