#include <gtest/gtest.h>

#include "core/arena.h"
#include "core/rng.h"

namespace hyscale {
namespace {

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

TEST(Buffer, OutOfMemoryNamesTheRequest) {
  Buffer held({}, 1 << 20, "embedding");
  try {
    Buffer b({}, size_t{1} << 60, "activations");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("activations"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("embedding"), std::string::npos);
  }
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
