// The states with which scans over documents begin and those with which they end.
#pragma once
#include "kernels/gated_delta/delta_states.h"

namespace hyscale {

struct ScanEnds {
  const float* states = nullptr;         // carried ones, [N, Hv, Dk, Dv]; absent: zeros
  const int32_t* of_document = nullptr;  // which of them is a document's; -1: zeros
  float* last = nullptr;                 // [P, Hv, Dk, Dv]: the last states, or absent
  float* map = nullptr;                  // [P, Hv, Dk, Dk]: M, or absent
  ScanEnds() = default;
  explicit ScanEnds(const CarriedStates& c) : states(c.states.defined() ? c.states.f32() : nullptr), of_document(c.states.defined() ? c.of_document.i32() : nullptr) {}
#ifdef __CUDACC__
  // The carried state [Dk, Dv] of one head, or null: zeros.
  __device__ const float* carried(int64_t document, int64_t head, int64_t heads, int64_t state) const {
    const int64_t from = states ? of_document[document] : -1;
    return from < 0 ? nullptr : states + (from * heads + head) * state;
  }
#endif
};

}  // namespace hyscale
