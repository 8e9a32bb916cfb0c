// GEMM through cuBLASLt: f32 accumulation, algorithms chosen once per problem and kept. cuBLASLt is column-major, so the
// row-major product c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T on the same memory.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "kernels/common/cuda.cuh"
#include "kernels/gemm/gemm.h"

namespace hyscale {
namespace {

void check_cublas(cublasStatus_t status, const char* call, const Gemm& g) {
  HYSCALE_CHECK(status == CUBLAS_STATUS_SUCCESS, call, ": ", cublasLtGetStatusString(status), "; a ", to_string(g.a), ", b ",
                to_string(g.b), ", c ", to_string(g.c));
}

cudaDataType_t cuda_type(DType t) {
  switch (t) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    default: throw InternalError(concat("gemm of ", dtype_name(t)));
  }
}

// One operand as cuBLASLt sees it: rows x columns, column-major, and the batch step.
struct Operand {
  const Tensor& t;
  int64_t rows, columns, leading, step;
  explicit Operand(const Tensor& tensor)
      : t(tensor), rows(tensor.size(-1)), columns(tensor.size(tensor.rank() - 2)),
        leading(std::max(tensor.stride(tensor.rank() - 2), rows)), step(tensor.rank() == 3 ? tensor.stride(0) : 0) {}
  // Bytes that every matrix of the batch is aligned to, at most 256.
  uint32_t alignment() const {
    const uint64_t width = dtype_bytes(t.dtype());
    const uint64_t bits = reinterpret_cast<uint64_t>(t.raw()) | leading * width | step * width | 256;
    return static_cast<uint32_t>(bits & -bits);
  }
};

class Layout {
 public:
  Layout(const Operand& o, int batch, const Gemm& g) {
    check_cublas(cublasLtMatrixLayoutCreate(&layout_, cuda_type(o.t.dtype()), o.rows, o.columns, o.leading), "layout", g);
    if (batch == 1) return;
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch, g);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, o.step, g);
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  template <typename T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value, const Gemm& g) {
    check_cublas(cublasLtMatrixLayoutSetAttribute(layout_, attribute, &value, sizeof value), "layout attribute", g);
  }
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Description {
 public:
  explicit Description(const Gemm& g) {
    check_cublas(cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description", g);
    const cublasOperation_t first = g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, second = g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_cublas(cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first), "transpose", g);
    check_cublas(cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second), "transpose", g);
  }
  ~Description() { cublasLtMatmulDescDestroy(description_); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  cublasLtMatmulDesc_t get() const { return description_; }

 private:
  cublasLtMatmulDesc_t description_ = nullptr;
};

// What an algorithm depends on.
using Key = std::array<int64_t, 20>;

struct Handle {
  cublasLtHandle_t lt = nullptr;
  std::mutex mutex;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;
  Handle() { HYSCALE_CHECK(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS, "cublasLtCreate"); }
};
// One per device, never destroyed: the driver may be gone before static destructors run.
Handle& handle_of(int device) {
  static std::mutex mutex;
  static std::map<int, Handle*> handles;
  std::lock_guard lock(mutex);
  Handle*& h = handles[device];
  if (!h) h = new Handle;
  return *h;
}

cublasLtMatmulAlgo_t choose(Handle& h, const Gemm& g, const Description& d, const std::array<const Operand*, 3>& operands,
                            const std::array<const Layout*, 3>& layouts, size_t workspace_bytes) {
  cublasLtMatmulPreference_t preference;
  check_cublas(cublasLtMatmulPreferenceCreate(&preference), "preference", g);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "preference", g);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, operands[0]->alignment());
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, operands[1]->alignment());
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, operands[2]->alignment());
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, operands[2]->alignment());
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(h.lt, d.get(), layouts[0]->get(), layouts[1]->get(), layouts[2]->get(),
                                                              layouts[2]->get(), preference, 1, &best, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  check_cublas(status, "no algorithm", g);
  HYSCALE_CHECK(found == 1, "cuBLASLt has no algorithm for a ", to_string(g.a), ", b ", to_string(g.b), ", c ", to_string(g.c));
  return best.algo;
}

// c = beta c, what a product without terms leaves; cuBLASLt refuses such sizes.
template <typename T>
__global__ void scale_rows_kernel(T* c, int64_t batch_step, int64_t row_step, int64_t rows, int64_t columns, int64_t count, float beta) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    T& x = c[i / columns / rows * batch_step + i / columns % rows * row_step + i % columns];
    x = from_f32<T>(beta == 0 ? 0 : beta * to_f32(x));
  }
}

void scale_rows(const Gemm& g) {
  const Tensor& c = g.c;
  const int64_t rows = c.size(-2), columns = c.size(-1);
  with_float_type(c.dtype(), "gemm", [&](auto type) {
    using T = decltype(type);
    scale_rows_kernel<T><<<grid_for(c.elements(), 256, 132 * 16), 256, 0, stream_of(g.stream)>>>(c.data<T>(), c.rank() == 3 ? c.stride(0) : 0, c.stride(c.rank() - 2), rows,
                                                                                              columns, c.elements(), g.beta);
  });
  check_launch("gemm");
}

}  // namespace

void gemm_cuda(const Gemm& g) {
  if (g.a.elements() == 0) return scale_rows(g);
  const Operand first(g.b), second(g.a), result(g.c);
  const int batch = g.c.rank() == 3 ? static_cast<int>(g.c.size(0)) : 1;
  const size_t workspace_bytes = g.workspace.defined() ? g.workspace.bytes() : 0;
  const Description description(g);
  const Layout first_layout(first, batch, g), second_layout(second, batch, g), result_layout(result, batch, g);

  Handle& h = handle_of(g.c.device().index);
  Key key{};
  size_t n = 0;
  for (const Operand* o : {&first, &second, &result})
    for (int64_t x : {o->rows, o->columns, o->leading, o->step, static_cast<int64_t>(o->alignment()), static_cast<int64_t>(o->t.dtype())})
      key[n++] = x;
  key[n++] = (static_cast<int64_t>(batch) << 2) | g.transpose_a << 1 | g.transpose_b;
  key[n++] = static_cast<int64_t>(workspace_bytes);

  cublasLtMatmulAlgo_t algorithm;
  {
    std::lock_guard lock(h.mutex);
    const auto known = h.algorithms.find(key);
    algorithm = known != h.algorithms.end()
                    ? known->second
                    : h.algorithms.emplace(key, choose(h, g, description, {&first, &second, &result},
                                                       {&first_layout, &second_layout, &result_layout}, workspace_bytes))
                          .first->second;
  }
  check_cublas(cublasLtMatmul(h.lt, description.get(), &g.alpha, g.b.raw(), first_layout.get(), g.a.raw(), second_layout.get(), &g.beta,
                              g.c.raw(), result_layout.get(), g.c.raw(), result_layout.get(), &algorithm,
                              g.workspace.defined() ? g.workspace.raw() : nullptr, workspace_bytes,
                              static_cast<cudaStream_t>(g.stream.handle)),
               "cublasLtMatmul", g);
}

}  // namespace hyscale
