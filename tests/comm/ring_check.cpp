// Ring and halo against their definitions, on whatever world it is launched in. Exit code 1 names the failed check.
#include <cstdio>
#include <vector>

#include "comm/ring.h"

using namespace hyscale;

namespace {

constexpr int64_t kColumns = 3;

Tensor rows(std::vector<float>& v) { return Tensor(v.data(), DType::f32, {}, {static_cast<int64_t>(v.size()) / kColumns, kColumns}); }

void add(const Tensor& into, const Tensor& from) {
  for (int64_t i = 0; i < into.elements(); ++i) into.f32()[i] += from.f32()[i];
}

// Row t holds t in every column.
std::vector<float> own_rows(const ContextLayout& layout, int rank) {
  std::vector<float> own;
  for (int64_t i = 0; i < layout.local_tokens(rank); ++i) own.insert(own.end(), kColumns, static_cast<float>(layout.to_global(rank, i)));
  return own;
}

void check_ring(Communicator& c, const ContextLayout& layout, ContextTransport transport) {
  const int64_t tokens = layout.sequence_tokens();
  Ring ring(c, layout, {}, transport);
  Arena scratch({}, "ring check");
  std::vector<float> own = own_rows(layout, c.rank());
  std::vector<float> all(tokens * kColumns, -1);
  int visits = 0;
  const int64_t sent_before = c.sent_bytes();
  ring.for_each_shard(rows(own), scratch, {}, [&](int rank, const Tensor& shard) {
    if (visits++ == 0) HYSCALE_CHECK(rank == c.rank(), "the first shard is of rank ", rank);
    place_shard(ring.tokens(), rank, shard, rows(all), {});
  });
  const int64_t sent = c.sent_bytes() - sent_before;
  if (transport == ContextTransport::ring) HYSCALE_CHECK(sent == layout.ring_sent_rows(c.rank()) * kColumns * 4, "sent ", sent, " bytes");
  HYSCALE_CHECK(visits == c.size(), visits, " visits");
  for (int64_t i = 0; i < tokens * kColumns; ++i) HYSCALE_CHECK(all[i] == i / kColumns, "row ", i / kColumns, " is ", all[i]);

  // Every rank contributes (rank + 1) * t to row t, on top of 1 at the owner.
  for (auto& x : all) x *= static_cast<float>(c.rank() + 1);
  std::vector<float> sum(own.size(), 1);
  ring.reduce_into_owners(rows(all), rows(sum), scratch, {}, add);
  const float times = static_cast<float>(c.size() * (c.size() + 1) / 2);
  for (size_t i = 0; i < sum.size(); ++i) HYSCALE_CHECK(sum[i] == 1 + times * own[i], "sum ", sum[i], " at row ", own[i]);

  for (int64_t width : {1, 5, 200}) {
    const Tensor halo = ring.left_halo(rows(own), width, scratch, {});
    int64_t at = 0;
    for (const auto& h : layout.left_halo(c.rank(), width))
      for (int64_t t = h.tokens.begin; t < h.tokens.end; ++t, ++at)
        HYSCALE_CHECK(halo.f32()[at * kColumns] == t, "halo row ", at, " is ", halo.f32()[at * kColumns], ", not ", t);
    HYSCALE_CHECK(at == halo.size(0), "halo has ", halo.size(0), " rows, not ", at);
    // Every halo row goes back to its owner: each token is in as many halos as there are segments that reach it.
    const int64_t local = layout.local_tokens(c.rank());
    std::vector<float> back(own.size(), 0.0f);
    ring.return_halo(halo, width, rows(back), scratch, {}, add);
    std::vector<int64_t> reached(static_cast<size_t>(layout.sequence_tokens()), 0);
    for (int r = 0; r < c.size(); ++r)
      for (const auto& h : layout.left_halo(r, width))
        for (int64_t t = h.tokens.begin; t < h.tokens.end; ++t) ++reached[static_cast<size_t>(t)];
    for (int64_t i = 0; i < local; ++i) {
      const int64_t t = layout.to_global(c.rank(), i);
      HYSCALE_CHECK(back[static_cast<size_t>(i * kColumns)] == static_cast<float>(t * reached[static_cast<size_t>(t)]), "token ", t, " got ", back[static_cast<size_t>(i * kColumns)],
                    " from ", reached[static_cast<size_t>(t)], " halos");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  try {
    auto world = mpi.world();
    for (ContextOrder order : {ContextOrder::zigzag, ContextOrder::contiguous})
      for (ContextTransport transport : {ContextTransport::ring, ContextTransport::all_gather})
        for (int64_t tokens : {0, 1, 37, 128, 300, 1000, 4096}) check_ring(*world, ContextLayout(tokens, world->size(), order), transport);
    if (world->rank() == 0) std::printf("%d ranks: ring and halo are right\n", world->size());
  } catch (const std::exception& e) {
    MpiEnvironment::abort(e.what(), 1);
  }
}
