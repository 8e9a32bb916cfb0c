// Pieces of Hopper's asynchronous machinery that attention kernels are made of: barriers in shared memory, gathers of rows
// into 128-byte-swizzled tiles, and the descriptors of such tiles that warpgroup matrix products (wgmma.cuh) read.
//
// A tile is [rows][64] bf16 or [rows][128] e4m3: 128 bytes per row, 16-byte pieces permuted by (piece ^ row % 8); tiles start at multiples of 1024.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/wgmma.cuh"

namespace hyscale::hopper {

constexpr int kTileBytes = 64 * 128;  // 64 rows

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nwait_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done_%=;\nbra wait_%=;\ndone_%=:\n}" ::"r"(
          shared_address(b)),
      "r"(parity)
      : "memory");
}
// Barrier `id` of `threads` threads of the block.
__device__ __forceinline__ void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Orders this thread's ordinary writes to shared memory before reads by the tensor cores that a later barrier releases.
__device__ __forceinline__ void fence_to_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// 16 bytes from global to shared memory; zeros where !valid (`from` must still be a legal address).
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all but the last kPending groups.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Byte offset of 16-byte piece `piece` of row `row` in a tile.
__device__ __forceinline__ uint32_t tile_offset(int row, int piece) { return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) << 4)); }

// Descriptor of a tile whose rows are M or N (contraction along the row); the next 16 of the contraction: + 2.
__device__ __forceinline__ uint64_t row_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}
// Descriptor of a tile whose rows are the contraction; columns beyond 64 continue in the next tile. The next 16 rows: + 128.
__device__ __forceinline__ uint64_t column_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{kTileBytes / 16} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// 2^x within 2 ulp; numbers below 2^-126 are 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Keeps the compiler from moving uses of an accumulator across the asynchronous products that write it.
template <int n>
__device__ __forceinline__ void pin(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A warp's 16 rows of 64 columns as wgmma leaves them: register bits are column 0, row 3, columns 3-5; lane bits columns 1-2,
// rows 0-2. To be added to rows in memory, trades bring whole 128-byte lines into one instruction: smaller pieces cost up to
// half of the rate at which L2 takes reductions.

// Trades a bit of the register index for a bit of the lane index: the number at (lane bit l, register bit r) moves to (r, l).
template <int kRegisterBit, int kLaneBit, typename T, int n>
__device__ __forceinline__ void trade(T (&d)[n], int lane) {
  const bool upper = lane & kLaneBit;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (i & kRegisterBit) continue;
    const T received = __shfl_xor_sync(~0u, upper ? d[i] : d[i + kRegisterBit], kLaneBit);
    if (upper) d[i] = received;
    else d[i + kRegisterBit] = received;
  }
}
// add(row, column, x): a warp's calls at a time cover 32 columns of a row.
template <typename Add>
__device__ __forceinline__ void for_each_line(float (&d)[32], int lane, Add add) {
  trade<1, 4>(d, lane);
  trade<4, 8>(d, lane);
  const int column = (lane >> 2 & 1) + (lane & 3) * 2 + (lane >> 3 & 1) * 8;
#pragma unroll
  for (int i = 0; i < 32; ++i) add((lane >> 4) * 4 + (i >> 2 & 1) * 2 + (i & 1) + (i >> 1 & 1) * 8, column + (i >> 3) * 16, d[i]);
}
// Adds to four numbers where id >= 0.
__device__ __forceinline__ void add_four_if(int32_t id, float* to, float x, float y, float z, float w) {
  asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %5, 0;\n@p red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w), "r"(id) : "memory");
}
// Adds the 16 rows of n * 2 columns to rows ids[0..15] of `to`, `stride` numbers apart, those of id >= 0. A lane adds to four rows, each address
// computed once and no branches: arithmetic and branches for every addition took as long as the additions.
template <int n>
__device__ __forceinline__ void add_rows(float (&d)[n], float* to, uint32_t stride, const int32_t* ids, int lane) {
  trade<4, 1>(d, lane);
  trade<8, 4>(d, lane);
  float* at = to + (lane & 1) * 8 + (lane >> 1 & 1) * 4 + (lane >> 2 & 1) * 16;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int2 two = *reinterpret_cast<const int2*>(ids + lane / 8 * 2 + 8 * high);
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const int32_t id = low ? two.y : two.x;
      float* row = at + static_cast<uint64_t>(static_cast<uint32_t>(id)) * stride;
#pragma unroll
      for (int i = 8 * low + 2 * high; i < n; i += 16) add_four_if(id, row + 2 * (i & 16), d[i], d[i + 1], d[i + 4], d[i + 5]);
    }
  }
}
// store(row, column, eight): eight columns from `column` on in bf16; a warp's calls at a time cover 64 bytes of eight rows each.
template <int n, typename Store>
__device__ __forceinline__ void for_each_eight_rounded(const float (&d)[n], int lane, Store store) {
  uint32_t pairs[n / 2];  // register bits: row 3, columns 3-5; lane bits: columns 1-2, rows 0-2
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(d[2 * i], d[2 * i + 1]);
    pairs[i] = reinterpret_cast<const uint32_t&>(pair);
  }
  trade<2, 1>(pairs, lane);
  trade<4, 2>(pairs, lane);
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int i = half; i < n / 2; i += 8) store(lane / 4 + 8 * half, lane % 4 * 8 + i / 8 * 32, make_uint4(pairs[i], pairs[i + 2], pairs[i + 4], pairs[i + 6]));
}
__device__ __forceinline__ void add_four(float* to, float x, float y, float z, float w) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

}  // namespace hyscale::hopper
