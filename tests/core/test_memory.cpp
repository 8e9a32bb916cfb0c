#include "core/arena.h"
#include "core/rng.h"
#include "tests/support/errors.h"

namespace hyscale {
namespace {

using test::error_of;

TEST(Buffer, CountsWhatIsHeldAndThePeak) {
  const Device meta{DeviceType::meta};
  const size_t before = allocated_bytes(meta);
  reset_peak(meta);
  {
    Buffer a(meta, size_t{1} << 40, "weights");
    Buffer b = std::move(a);
    EXPECT_EQ(allocated_bytes(meta), before + (size_t{1} << 40));
    EXPECT_EQ(b.data(), nullptr);
  }
  EXPECT_EQ(allocated_bytes(meta), before);
  EXPECT_EQ(peak_bytes(meta), before + (size_t{1} << 40));
}

// Nothing that earlier tests of the process left holds memory of this device.
const Device kFresh{DeviceType::meta, 7};

TEST(Buffer, OutOfMemoryNamesTheRequestTheHoldersAndThePlan) {
  const Device d = kFresh;
  const size_t mebibyte = 1 << 20;
  const Buffer weights(d, 40 * mebibyte, "weights"), saved(d, 20 * mebibyte, "saved activations"), more(d, 25 * mebibyte, "saved activations");
  const Buffer elsewhere({DeviceType::meta, 8}, 500 * mebibyte, "another device");
  limit_memory(d, 100 * mebibyte);
  const std::string held = "out of memory on meta: 16 MiB for workspace while 85 MiB are held of at most 100 MiB; largest: saved activations 45 MiB, weights 40 MiB";
  EXPECT_EQ(error_of([&] { Buffer(d, 16 * mebibyte, "workspace"); }), held);
  set_memory_plan("weights 40 MiB, saved activations 30 MiB, total 70 MiB");
  EXPECT_EQ(error_of([&] { Buffer(d, 16 * mebibyte, "workspace"); }), held + "; planned: weights 40 MiB, saved activations 30 MiB, total 70 MiB");
  set_memory_plan("");
  EXPECT_EQ(error_of([&] { Buffer(d, 15 * mebibyte, "workspace"); }), "accepted");
  EXPECT_EQ(allocated_bytes(d), 85 * mebibyte);
  limit_memory(d, 0);
  EXPECT_EQ(error_of([&] { Buffer(d, 16 * mebibyte, "workspace"); }), "accepted");
}

TEST(Buffer, ARequestBeyondTheMachineIsAnErrorToo) {
  EXPECT_NE(error_of([] { Buffer({}, size_t{1} << 60, "activations"); }).find("for activations while"), std::string::npos);
}

TEST(BufferCuda, ARequestBeyondTheDeviceNamesTheHolders) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const Device d{DeviceType::cuda, 0};
  const Buffer held(d, 3 << 20, "embedding");
  const std::string error = error_of([&] { Buffer(d, size_t{1} << 50, "activations"); });
  EXPECT_NE(error.find("out of memory on cuda:0: 1073741824 MiB for activations while 3 MiB are held"), std::string::npos) << error;
  EXPECT_NE(error.find("largest: embedding 3 MiB"), std::string::npos) << error;
  EXPECT_EQ(error_of([&] { Buffer(d, 1 << 20, "after the error"); }), "accepted");
}

TEST(Arena, RewindsAndReusesBlocks) {
  Arena arena({}, "test");
  Tensor first = arena.allocate(DType::f32, {100});
  const Arena::Mark mark = arena.mark();
  Tensor big = arena.allocate(DType::f32, {int64_t{1} << 22});
  const size_t reserved = arena.reserved_bytes();
  arena.rewind(mark);
  EXPECT_EQ(arena.allocate(DType::f32, {int64_t{1} << 22}).raw(), big.raw());
  EXPECT_EQ(arena.reserved_bytes(), reserved);
  EXPECT_NE(first.raw(), big.raw());
}

TEST(Arena, ScopesNest) {
  Arena arena({DeviceType::meta}, "test");
  {
    ArenaScope outer(arena);
    arena.allocate(DType::f32, {64});
    {
      ArenaScope inner(arena);
      arena.allocate(DType::f32, {1024});
    }
    EXPECT_EQ(arena.used_bytes(), 256u);
  }
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_EQ(arena.peak_bytes(), 256u + 4096u);
}

TEST(Rng, DependsOnlyOnSeedStreamAndCounter) {
  Rng a(7, 1), b(7, 1), c(7, 2);
  EXPECT_EQ(a.bits(5), b.bits(5));
  EXPECT_NE(a.bits(5), c.bits(5));
  double mean = 0, square = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = a.normal(i);
    mean += x;
    square += x * x;
  }
  EXPECT_NEAR(mean / 100000, 0, 0.02);
  EXPECT_NEAR(square / 100000, 1, 0.02);
}

}  // namespace
}  // namespace hyscale
