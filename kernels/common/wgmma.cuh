// Products of a warpgroup: d (+)= a b with M = 64 rows, f32 accumulators in registers and both operands in shared memory, given by
// descriptors (hopper.cuh). Asynchronous: between wgmma_begin and wgmma_commit.
#pragma once
#include <cstdint>

namespace hyscale::hopper {

// PTX names an operand by its place: the accumulators first, then what follows them.
#define HYSCALE_PLACES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define HYSCALE_PLACES_16 HYSCALE_PLACES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define HYSCALE_PLACES_32 \
  HYSCALE_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HYSCALE_PLACES_64 \
  HYSCALE_PLACES_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HYSCALE_PLACES_128 \
  HYSCALE_PLACES_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// Accumulators d[i], d[i + 1], ... with the constraint "+f" (read and written) or "=f" (written).
#define HYSCALE_NUMBERS_8(constraint, i) \
  constraint(d[i]), constraint(d[i + 1]), constraint(d[i + 2]), constraint(d[i + 3]), constraint(d[i + 4]), constraint(d[i + 5]), constraint(d[i + 6]), constraint(d[i + 7])
#define HYSCALE_NUMBERS_16(constraint, i) HYSCALE_NUMBERS_8(constraint, i), HYSCALE_NUMBERS_8(constraint, i + 8)
#define HYSCALE_NUMBERS_32(constraint, i) HYSCALE_NUMBERS_16(constraint, i), HYSCALE_NUMBERS_16(constraint, i + 16)
#define HYSCALE_NUMBERS_64(constraint, i) HYSCALE_NUMBERS_32(constraint, i), HYSCALE_NUMBERS_32(constraint, i + 32)
#define HYSCALE_NUMBERS_128(constraint, i) HYSCALE_NUMBERS_64(constraint, i), HYSCALE_NUMBERS_64(constraint, i + 64)
// transposes: "" for types that have none.
#define HYSCALE_WGMMA(shape_and_types, accumulators, a, b, accumulate, transposes) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate ", 0;\nwgmma.mma_async.sync.aligned." shape_and_types " {" accumulators "}, " a ", " b ", p, 1, 1" transposes ";\n}\n"

// bf16, K = 16; kTransA/kTransB: the operand's M (N) dimension is the contiguous one. Without `accumulate` d is overwritten.
template <int kTransA, int kTransB>
__device__ __forceinline__ void wgmma_n16(float (&d)[8], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(HYSCALE_WGMMA("m64n16k16.f32.bf16.bf16", HYSCALE_PLACES_8, "%8", "%9", "%10", ", %11, %12")
               : HYSCALE_NUMBERS_8("+f", 0)
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB));
}
template <int kTransA, int kTransB>
__device__ __forceinline__ void wgmma_n32(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(HYSCALE_WGMMA("m64n32k16.f32.bf16.bf16", HYSCALE_PLACES_16, "%16", "%17", "%18", ", %19, %20")
               : HYSCALE_NUMBERS_16("+f", 0)
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB));
}
template <int kTransA, int kTransB>
__device__ __forceinline__ void wgmma_n64(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(HYSCALE_WGMMA("m64n64k16.f32.bf16.bf16", HYSCALE_PLACES_32, "%32", "%33", "%34", ", %35, %36")
               : HYSCALE_NUMBERS_32("+f", 0)
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB));
}
// The same with a in registers, as mma.sync m16n8k16 has it.
template <int kTransB>
__device__ __forceinline__ void wgmma_n64_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(HYSCALE_WGMMA("m64n64k16.f32.bf16.bf16", HYSCALE_PLACES_32, "{%32, %33, %34, %35}", "%36", "%37", ", %38")
               : HYSCALE_NUMBERS_32("+f", 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB));
}
template <int kTransA, int kTransB>
__device__ __forceinline__ void wgmma_n128(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(HYSCALE_WGMMA("m64n128k16.f32.bf16.bf16", HYSCALE_PLACES_64, "%64", "%65", "%66", ", %67, %68")
               : HYSCALE_NUMBERS_64("+f", 0)
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB));
}
template <int kTransA, int kTransB>
__device__ __forceinline__ void wgmma_n256(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(HYSCALE_WGMMA("m64n256k16.f32.bf16.bf16", HYSCALE_PLACES_128, "%128", "%129", "%130", ", %131, %132")
               : HYSCALE_NUMBERS_128("+f", 0)
               : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB));
}

// The first product of a chain: d = a b in bf16, K = 16, both operands with their contraction along the row. The accumulators are
// outputs only, so they hold no registers before it; the chain goes on with the products above.
__device__ __forceinline__ void wgmma_n128_first(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(HYSCALE_WGMMA("m64n128k16.f32.bf16.bf16", HYSCALE_PLACES_64, "%64", "%65", "0", ", 0, 0") : HYSCALE_NUMBERS_64("=f", 0) : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_n256_first(float (&d)[128], uint64_t a, uint64_t b) {
  asm volatile(HYSCALE_WGMMA("m64n256k16.f32.bf16.bf16", HYSCALE_PLACES_128, "%128", "%129", "0", ", 0, 0") : HYSCALE_NUMBERS_128("=f", 0) : "l"(a), "l"(b));
}

// e4m3, K = 32, both operands with their contraction along the row: d = a b, then d += a b.
__device__ __forceinline__ void wgmma_n128_e4m3_first(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(HYSCALE_WGMMA("m64n128k32.f32.e4m3.e4m3", HYSCALE_PLACES_64, "%64", "%65", "0", "") : HYSCALE_NUMBERS_64("=f", 0) : "l"(a), "l"(b));
}
__device__ __forceinline__ void wgmma_n128_e4m3(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile(HYSCALE_WGMMA("m64n128k32.f32.e4m3.e4m3", HYSCALE_PLACES_64, "%64", "%65", "1", "") : HYSCALE_NUMBERS_64("+f", 0) : "l"(a), "l"(b));
}

#undef HYSCALE_PLACES_8
#undef HYSCALE_PLACES_16
#undef HYSCALE_PLACES_32
#undef HYSCALE_PLACES_64
#undef HYSCALE_PLACES_128
#undef HYSCALE_NUMBERS_8
#undef HYSCALE_NUMBERS_16
#undef HYSCALE_NUMBERS_32
#undef HYSCALE_NUMBERS_64
#undef HYSCALE_NUMBERS_128
#undef HYSCALE_WGMMA

}  // namespace hyscale::hopper
