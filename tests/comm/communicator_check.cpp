// Every collective against its definition, on whatever world it is launched in. Exit code 1 names the failed check.
#include <cstdio>
#include <vector>

#include "comm/communicator.h"

using namespace hyscale;

namespace {

Tensor view(std::vector<float>& v) { return Tensor(v.data(), DType::f32, {}, {static_cast<int64_t>(v.size())}); }

void check_collectives(Communicator& c) {
  const int n = c.size(), r = c.rank();
  std::vector<float> a(1000);
  for (int i = 0; i < 1000; ++i) a[i] = static_cast<float>(i + r);
  c.all_reduce(view(a), ReduceOp::sum, {});
  for (int i = 0; i < 1000; ++i) HYSCALE_CHECK(a[i] == n * i + n * (n - 1) / 2, "all_reduce[", i, "] = ", a[i]);

  std::vector<float> mine(7, static_cast<float>(r)), all(7 * n);
  c.all_gather(view(mine), view(all), {});
  for (int i = 0; i < 7 * n; ++i) HYSCALE_CHECK(all[i] == i / 7, "all_gather[", i, "] = ", all[i]);

  std::vector<float> parts(5 * n), sum(5);
  for (int i = 0; i < 5 * n; ++i) parts[i] = static_cast<float>(i);
  c.reduce_scatter(view(parts), view(sum), {});
  for (int i = 0; i < 5; ++i) HYSCALE_CHECK(sum[i] == n * (5 * r + i), "reduce_scatter[", i, "] = ", sum[i]);

  std::vector<float> word{r == n - 1 ? 3.5f : 0.0f};
  c.broadcast(view(word), n - 1, {});
  HYSCALE_CHECK(word[0] == 3.5f, "broadcast gave ", word[0]);

  // Rank s sends (s + t) % 3 rows to rank t: some runs are empty.
  std::vector<int64_t> out_rows(n), in_rows(n);
  int64_t out_total = 0, in_total = 0;
  for (int t = 0; t < n; ++t) {
    out_total += out_rows[t] = (r + t) % 3;
    in_total += in_rows[t] = (t + r) % 3;
  }
  std::vector<float> out(2 * out_total, static_cast<float>(r)), in(2 * in_total, -1);
  c.all_to_all(Tensor(out.data(), DType::f32, {}, {out_total, 2}), out_rows, Tensor(in.data(), DType::f32, {}, {in_total, 2}), in_rows, {});
  int64_t at = 0;
  for (int t = 0; t < n; ++t)
    for (int64_t i = 0; i < 2 * in_rows[t]; ++i) HYSCALE_CHECK(in[at++] == t, "all_to_all from ", t, " gave ", in[at - 1]);

  std::vector<float> send(300, static_cast<float>(r)), receive(300, -1);
  c.begin_exchange(view(send), (r + 1) % n, view(receive), (r + n - 1) % n, {});
  c.finish_exchange({});
  for (float x : receive) HYSCALE_CHECK(x == (r + n - 1) % n, "exchange gave ", x);
  c.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  MpiEnvironment mpi(&argc, &argv);
  try {
    auto world = mpi.world();
    check_collectives(*world);
    auto half = world->split(world->rank() % 2, -world->rank());
    check_collectives(*half);
    auto single = make_single_communicator();
    check_collectives(*single);
    HYSCALE_CHECK(mpi.local_size() == world->size() && mpi.local_rank() == world->rank(), "local rank ", mpi.local_rank());
    if (world->rank() == 0) std::printf("%d ranks: every collective is right\n", world->size());
  } catch (const std::exception& e) {
    MpiEnvironment::abort(e.what(), 1);
  }
}
