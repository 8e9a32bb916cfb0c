// Tensor maps and the bulk copies that read boxes of them into 128-byte-swizzled tiles (kernels/common/hopper.cuh).
#pragma once
#include <cuda.h>

#include "kernels/common/cuda.cuh"
#include "kernels/common/hopper.cuh"

namespace hyscale::hopper {

// Of bf16 memory, swizzled by 128 bytes. sizes and box: innermost dimension first; byte_steps: of all dimensions but the innermost.
// What a box reads outside of the sizes is zero.
inline CUtensorMap make_tensor_map(const void* base, int rank, const cuuint64_t* sizes, const cuuint64_t* byte_steps, const cuuint32_t* box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result), "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint32_t unit[4] = {1, 1, 1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(rank), const_cast<void*>(base), sizes, byte_steps, box, unit, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HYSCALE_CHECK(result == CUDA_SUCCESS, "tensor map at ", base, ": error ", static_cast<int>(result));
  return map;
}

// Of rows [n, columns], `step` elements apart: boxes of box_rows rows and 64 columns.
inline CUtensorMap map_of_rows(const void* base, int64_t n, int64_t columns, int64_t step, int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(n)}, steps[] = {static_cast<cuuint64_t>(step * 2)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
  return make_tensor_map(base, 2, sizes, steps, box);
}

__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void load_box(void* to, const CUtensorMap* map, uint64_t* barrier, int column, int64_t row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map),
               "r"(shared_address(barrier)), "r"(column), "r"(static_cast<int>(row))
               : "memory");
}

}  // namespace hyscale::hopper
