#include "kernels/embedding/embedding.h"

#include "tests/support/tensors.h"

namespace hyscale {
namespace {

using test::HostTensor;

TEST(Embedding, GathersRowsAndAddsGradientsOfRepeatedTokens) {
  const HostTensor tokens = test::ints({6}, {3, 0, 3, -1, 4, 3}), w = test::random({5, 70}, 1), dy = test::random({6, 70}, 2);
  HostTensor y({6, 70}), dw = test::filled({5, 70}, 0);
  embedding({tokens, w, y, {}});
  embedding_backward({tokens, dy, dw, {}, {}});
  std::vector<double> ey(420), edw(350);
  for (size_t t = 0; t < 6; ++t)
    for (size_t c = 0; c < 70; ++c) {
      const int32_t id = tokens.i32()[t];
      if (id < 0) continue;
      ey[t * 70 + c] = w[id * 70 + static_cast<int64_t>(c)];
      edw[static_cast<size_t>(id) * 70 + c] += dy[static_cast<int64_t>(t * 70 + c)];
    }
  EXPECT_CLOSE(y, ey, 0);
  EXPECT_CLOSE(dw, edw, 1e-6);
}

TEST(Embedding, StridedOutputAndNoTokens) {
  const HostTensor w = test::random({5, 8}, 1);
  HostTensor wide = test::filled({2, 16}, 7);
  embedding({test::ints({2}, {1, 2}), w, wide.t().slice(1, 8, 16), {}});
  EXPECT_EQ(wide[0], 7);
  EXPECT_EQ(wide[8], w[8]);
  HostTensor none({0, 8});
  embedding({HostTensor(DType::i32, {0}), w, none, {}});
}

TEST(Embedding, TokenBeyondTheVocabularyIsNamed) {
  HostTensor y({1, 8});
  try {
    embedding({test::ints({1}, {5}), test::random({5, 8}, 1), y, {}});
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("token 5 at 0, vocabulary 5"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace hyscale
