// The form for plans: ranks that do not exist, operations that only count.
#include "comm/communicator.h"

namespace hyscale {
namespace {

class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(int rank, int size) : rank_(rank), size_(size) { HYSCALE_CHECK(0 <= rank && rank < size, "rank ", rank, " of ", size); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* transport() const override { return "meta"; }

  void barrier() override {}
  void broadcast(const Tensor& data, int root, Stream) override { sent_bytes_ += rank_ == root ? bytes(data) * (size_ - 1) : 0; }
  void all_reduce(const Tensor& data, ReduceOp, Stream) override { sent_bytes_ += 2 * bytes(data) * (size_ - 1) / size_; }
  void all_gather(const Tensor& send, const Tensor&, Stream) override { sent_bytes_ += bytes(send) * (size_ - 1); }
  void reduce_scatter(const Tensor&, const Tensor& receive, Stream) override { sent_bytes_ += bytes(receive) * (size_ - 1); }
  void all_to_all(const Tensor& send, std::span<const int64_t> send_rows, const Tensor&, std::span<const int64_t>, Stream) override {
    const int64_t row = send.size(0) ? bytes(send) / send.size(0) : 0;
    for (int r = 0; r < size_; ++r)
      if (r != rank_) sent_bytes_ += send_rows[static_cast<size_t>(r)] * row;
  }
  void begin_exchange(const Tensor& send, int to, const Tensor&, int, Stream) override { sent_bytes_ += to == rank_ ? 0 : bytes(send); }
  void finish_exchange(Stream) override {}
  std::unique_ptr<Communicator> split(int, int) override { HYSCALE_CHECK(false, "ranks that do not exist have no colors to compare"); }

 private:
  static int64_t bytes(const Tensor& t) { return static_cast<int64_t>(t.bytes()); }
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Communicator> make_meta_communicator(int rank, int size) { return std::make_unique<MetaCommunicator>(rank, size); }

}  // namespace hyscale
