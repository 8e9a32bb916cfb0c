#include "kernels/moe_permute/moe_permute.h"

#include <algorithm>
#include <vector>

#include "kernels/common/op.h"
#include "kernels/common/residual_types.h"

namespace hyscale {

void make_expert_order_cuda(const MakeExpertOrder&);
void gather_rows_cuda(const Tensor& rows, const Tensor& x, const ExpertOrder&, Stream);
void gather_rows_backward_cuda(const Tensor& dx, const Tensor& drows, const ExpertOrder&, bool accumulate, Stream);
void combine_rows_cuda(const Tensor& y, const Tensor& rows, const Tensor& weights, const ExpertOrder&, bool accumulate, Stream);
void combine_rows_backward_cuda(const CombineRowsBackward&);

namespace {

void make_expert_order_ref(const MakeExpertOrder& m) {
  const int64_t slots = m.experts.elements(), num_experts = m.order.offsets.size(0) - 1;
  int32_t* offsets = m.order.offsets.i32();
  std::fill_n(offsets, num_experts + 1, 0);
  for (int64_t s = 0; s < slots; ++s) {
    const int32_t e = m.experts.i32()[s];
    HYSCALE_CHECK(e >= 0 && e < num_experts, "slot ", s, " chose expert ", e, " of ", num_experts);
    ++offsets[e + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<int32_t> next(offsets, offsets + num_experts);
  for (int64_t s = 0; s < slots; ++s) {
    const int32_t row = next[static_cast<size_t>(m.experts.i32()[s])]++;
    m.order.row_of_slot.i32()[s] = row;
    m.order.slot_of_row.i32()[row] = static_cast<int32_t>(s);
  }
}

int64_t choices(const Tensor& x, const Tensor& rows) { return x.size(0) == 0 ? 1 : rows.size(0) / x.size(0); }

void gather_rows_ref(const Tensor& rows, const Tensor& x, const ExpertOrder& order) {
  const int64_t k = choices(x, rows), columns = x.size(1);
#pragma omp parallel for
  for (int64_t r = 0; r < rows.size(0); ++r)
    std::copy_n(x.f32() + order.slot_of_row.i32()[r] / k * columns, columns, rows.f32() + r * columns);
}

// out[t] (+)= sum_j factor(slot) * rows[row of slot]
template <typename Factor>
void sum_slots(const Tensor& out, const Tensor& rows, const ExpertOrder& order, bool accumulate, Factor factor) {
  const int64_t k = choices(out, rows), columns = out.size(1);
#pragma omp parallel for
  for (int64_t t = 0; t < out.size(0); ++t) {
    float* y = out.f32() + t * columns;
    if (!accumulate) std::fill_n(y, columns, 0.0f);
    for (int64_t slot = t * k; slot < (t + 1) * k; ++slot) {
      const float* row = rows.f32() + order.row_of_slot.i32()[slot] * columns;
      const float f = factor(slot);
      for (int64_t c = 0; c < columns; ++c) y[c] += f * row[c];
    }
  }
}

void combine_rows_backward_ref(const CombineRowsBackward& b) {
  const int64_t k = choices(b.dy, b.rows), columns = b.dy.size(1);
#pragma omp parallel for
  for (int64_t r = 0; r < b.rows.size(0); ++r) {
    const int32_t slot = b.order.slot_of_row.i32()[r];
    const float *dy = b.dy.f32() + slot / k * columns, *row = b.rows.f32() + r * columns, weight = b.weights.f32()[slot];
    float* drow = b.drows.f32() + r * columns;
    double dot = 0;
    for (int64_t c = 0; c < columns; ++c) {
      dot += double{dy[c]} * row[c];
      drow[c] = weight * dy[c];
    }
    b.dweights.f32()[slot] = static_cast<float>(dot);
  }
}

void check_order(const ExpertOrder& o, int64_t slots) {
  check_tensor(o.offsets, "offsets", DType::i32, {-1});
  check_tensor(o.row_of_slot, "row_of_slot", DType::i32, {slots});
  check_tensor(o.slot_of_row, "slot_of_row", DType::i32, {slots});
}

void check_rows(const Tensor& x, const Tensor& rows, const ExpertOrder& order) {
  check_order(order, rows.size(0));
  HYSCALE_CHECK(x.size(1) == rows.size(1) && x.is_contiguous() && rows.is_contiguous() &&
                    (x.size(0) == 0 ? rows.size(0) == 0 : rows.size(0) % x.size(0) == 0),
                "tokens ", to_string(x), ", rows ", to_string(rows));
}

void check_pair(const Tensor& x, const Tensor& rows, const ExpertOrder& order) {
  check_rows(x, rows, order);
  HYSCALE_CHECK(x.dtype() == rows.dtype(), "tokens ", to_string(x), ", rows ", to_string(rows));
}

}  // namespace

void make_expert_order(const MakeExpertOrder& m) {
  check_tensor(m.experts, "experts", DType::i32, {-1, -1});
  check_order(m.order, m.experts.elements());
  HYSCALE_DISPATCH("make_expert_order", m.experts.device(), make_expert_order_ref(m), make_expert_order_cuda(m));
}

size_t make_expert_order_workspace_bytes(const MakeExpertOrder& m) {
  // CUDA sorts (expert, slot) pairs: slots, sorted keys, and the sort's own memory, a copy of keys and values and counters.
  const size_t n = static_cast<size_t>(m.experts.elements());
  return m.experts.device().is_cpu() ? 0 : 2 * aligned_bytes(4 * n) + aligned_bytes((size_t{2} << 20) + 9 * n);
}

void gather_rows(const Tensor& rows, const Tensor& x, const ExpertOrder& order, Stream stream) {
  check_pair(x, rows, order);
  (void)stream;
  HYSCALE_DISPATCH("gather_rows", x.device(), gather_rows_ref(rows, x, order), gather_rows_cuda(rows, x, order, stream));
}

void gather_rows_backward(const Tensor& dx, const Tensor& drows, const ExpertOrder& order, bool accumulate, Stream stream) {
  check_pair(dx, drows, order);
  (void)stream;
  HYSCALE_DISPATCH("gather_rows_backward", dx.device(), sum_slots(dx, drows, order, accumulate, [](int64_t) { return 1.0f; }),
                   gather_rows_backward_cuda(dx, drows, order, accumulate, stream));
}

void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& weights, const ExpertOrder& order, bool accumulate, Stream stream) {
  check_rows(y, rows, order);
  check_residual_types("combine_rows", y, rows);
  check_tensor(weights, "weights", DType::f32, {y.size(0), -1});
  HYSCALE_CHECK(weights.elements() == rows.size(0), "weights ", to_string(weights), " for rows ", to_string(rows));
  (void)stream;
  HYSCALE_DISPATCH("combine_rows", y.device(), sum_slots(y, rows, order, accumulate, [&](int64_t slot) { return weights.f32()[slot]; }),
                   combine_rows_cuda(y, rows, weights, order, accumulate, stream));
}

void combine_rows_backward(const CombineRowsBackward& b) {
  check_pair(b.dy, b.rows, b.order);
  check_shape(b.drows, "drows", b.rows.shape());
  check_tensor(b.dweights, "dweights", DType::f32, b.weights.shape());
  HYSCALE_DISPATCH("combine_rows_backward", b.dy.device(), combine_rows_backward_ref(b), combine_rows_backward_cuda(b));
}

}  // namespace hyscale
