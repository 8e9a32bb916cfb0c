// Tokens to expert order and back. A slot is one (token, choice) pair, t * k + j; a row is a slot's place in expert order.
// Rows of one expert keep the order of their slots, so the result is a function of the routing alone.
#pragma once
#include "core/tensor.h"

namespace hyscale {

struct ExpertOrder {
  Tensor offsets;      // i32 [E + 1]: rows of expert e are offsets[e] .. offsets[e + 1]
  Tensor row_of_slot;  // i32 [T k]
  Tensor slot_of_row;  // i32 [T k]
};

struct MakeExpertOrder {
  Tensor experts;  // i32 [T, k], each in [0, E)
  ExpertOrder order;
  Tensor workspace;
  Stream stream;
};
void make_expert_order(const MakeExpertOrder&);
size_t make_expert_order_workspace_bytes(const MakeExpertOrder&);

// rows[r] = x[token of r];   x [T, C], rows [T k, C]
void gather_rows(const Tensor& rows, const Tensor& x, const ExpertOrder&, Stream);
// Its backward: dx[t] = sum over the token's slots, in slot order, of drows (added to dx when accumulate).
void gather_rows_backward(const Tensor& dx, const Tensor& drows, const ExpertOrder&, bool accumulate, Stream);

// y[t] = sum_j weights[t, j] * rows[row of slot (t, j)]  (added to y when accumulate);  weights f32 [T, k]; y of the rows' dtype, or f32 beside
// bf16 rows (CUDA)
void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& weights, const ExpertOrder&, bool accumulate, Stream);
// drows[r] = weights[slot] * dy[t];  dweights[t, j] = dy[t] . rows[r], f32
struct CombineRowsBackward {
  Tensor rows, weights, dy;
  ExpertOrder order;
  Tensor drows;     // [T k, C], overwritten; may be the memory of rows
  Tensor dweights;  // f32 [T, k], overwritten
  Stream stream;
};
void combine_rows_backward(const CombineRowsBackward&);

}  // namespace hyscale
