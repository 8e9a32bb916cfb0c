// The group of one rank: collectives are copies.
#include "comm/communicator.h"
#include "core/memory.h"

namespace hyscale {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* transport() const override { return "single"; }
  void barrier() override {}
  void broadcast(const Tensor&, int root, Stream) override { HYSCALE_CHECK(root == 0, "root ", root, " of 1 rank"); }
  void all_reduce(const Tensor&, ReduceOp, Stream) override {}
  void all_gather(const Tensor& send, const Tensor& receive, Stream s) override { move(send, receive, s); }
  void reduce_scatter(const Tensor& send, const Tensor& receive, Stream s) override { move(send, receive, s); }
  void all_to_all(const Tensor& send, std::span<const int64_t> send_rows, const Tensor& receive,
                  std::span<const int64_t> receive_rows, Stream s) override {
    HYSCALE_CHECK(send_rows.size() == 1 && receive_rows.size() == 1 && send_rows[0] == receive_rows[0],
                  "all_to_all over one rank with ", send_rows.size(), " and ", receive_rows.size(), " runs");
    move(send.slice(0, 0, send_rows[0]), receive.slice(0, 0, send_rows[0]), s);
  }
  void begin_exchange(const Tensor& send, int to, const Tensor& receive, int from, Stream s) override {
    HYSCALE_CHECK(to == 0 && from == 0, "exchange with ranks ", to, " and ", from, " of 1");
    move(send, receive, s);
  }
  void finish_exchange(Stream) override {}
  std::unique_ptr<Communicator> split(int, int) override { return make_single_communicator(); }

 private:
  static void move(const Tensor& send, const Tensor& receive, Stream s) {
    HYSCALE_CHECK(send.bytes() == receive.bytes(), to_string(send), " to ", to_string(receive));
    if (send.raw() != receive.raw()) copy_bytes(receive.raw(), receive.device(), send.raw(), send.device(), send.bytes(), s);
  }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() { return std::make_unique<SingleCommunicator>(); }

}  // namespace hyscale
