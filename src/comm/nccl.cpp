// The NCCL form: one GPU per rank, everything enqueued on the caller's stream. An MPI communicator of the same ranks
// carries the unique id, and what concerns hosts (barriers).
#include <nccl.h>

#include <utility>

#include "comm/communicator.h"
#include "core/memory.h"
#include "core/range.h"

namespace hyscale {
namespace {

ncclDataType_t nccl_type(DType t, const char* operation) {
  switch (t) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    default: throw InternalError(concat(operation, " over NCCL does not reduce ", dtype_name(t)));
  }
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::min: return ncclMin;
  }
  HYSCALE_CHECK(false, "reduce op ", static_cast<int>(op));
}

cudaStream_t native(Stream s) { return static_cast<cudaStream_t>(s.handle); }

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> hosts, Device device) : hosts_(std::move(hosts)), device_(device) {
    ncclUniqueId id{};
    if (rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    hosts_->broadcast(Tensor(&id, DType::u8, {}, {static_cast<int64_t>(sizeof id)}), 0, {});
    check(ncclCommInitRank(&comm_, size(), id, rank()), "ncclCommInitRank");
  }
  // Aborted, not destroyed: destroy waits for peers, and one that has failed never comes.
  ~NcclCommunicator() override {
    if (comm_) ncclCommAbort(comm_);
  }
  int rank() const override { return hosts_->rank(); }
  int size() const override { return hosts_->size(); }
  const char* transport() const override { return "nccl"; }

  void barrier() override { hosts_->barrier(); }

  void broadcast(const Tensor& data, int root, Stream s) override {
    const Range range("broadcast");
    expect_here(data, "broadcast");
    check(ncclBroadcast(data.raw(), data.raw(), data.bytes(), ncclUint8, root, comm_, native(s)), "broadcast");
    sent_bytes_ += rank() == root ? data.bytes() * (size() - 1) : 0;
  }
  void all_reduce(const Tensor& data, ReduceOp op, Stream s) override {
    const Range range("all_reduce");
    expect_here(data, "all_reduce");
    check(ncclAllReduce(data.raw(), data.raw(), data.elements(), nccl_type(data.dtype(), "all_reduce"), nccl_op(op), comm_, native(s)),
          "all_reduce");
    sent_bytes_ += 2 * data.bytes() * (size() - 1) / size();
  }
  void all_gather(const Tensor& send, const Tensor& receive, Stream s) override {
    const Range range("all_gather");
    expect_here(send, "all_gather");
    expect_here(receive, "all_gather");
    HYSCALE_CHECK(receive.bytes() == send.bytes() * size(), "all_gather of ", to_string(send), " into ", to_string(receive));
    check(ncclAllGather(send.raw(), receive.raw(), send.bytes(), ncclUint8, comm_, native(s)), "all_gather");
    sent_bytes_ += send.bytes() * (size() - 1);
  }
  void reduce_scatter(const Tensor& send, const Tensor& receive, Stream s) override {
    const Range range("reduce_scatter");
    expect_here(send, "reduce_scatter");
    expect_here(receive, "reduce_scatter");
    HYSCALE_CHECK(send.bytes() == receive.bytes() * size() && send.dtype() == receive.dtype(), "reduce_scatter of ",
                  to_string(send), " into ", to_string(receive));
    check(ncclReduceScatter(send.raw(), receive.raw(), receive.elements(), nccl_type(send.dtype(), "reduce_scatter"), ncclSum, comm_,
                            native(s)),
          "reduce_scatter");
    sent_bytes_ += receive.bytes() * (size() - 1);
  }
  void all_to_all(const Tensor& send, std::span<const int64_t> send_rows, const Tensor& receive,
                  std::span<const int64_t> receive_rows, Stream s) override {
    const Range range("all_to_all");
    expect_here(send, "all_to_all");
    expect_here(receive, "all_to_all");
    HYSCALE_CHECK(static_cast<int>(send_rows.size()) == size() && static_cast<int>(receive_rows.size()) == size(),
                  "all_to_all over ", size(), " ranks with ", send_rows.size(), " and ", receive_rows.size(), " runs");
    check(ncclGroupStart(), "all_to_all");
    int64_t out = 0, in = 0;
    for (int r = 0; r < size(); ++r) {
      transfer(send.slice(0, out, out + send_rows[r]), r, receive.slice(0, in, in + receive_rows[r]), r, s, "all_to_all");
      out += send_rows[r];
      in += receive_rows[r];
    }
    check(ncclGroupEnd(), "all_to_all");
  }
  void begin_exchange(const Tensor& send, int to, const Tensor& receive, int from, Stream s) override {
    const Range range("exchange");
    expect_here(send, "exchange");
    expect_here(receive, "exchange");
    check(ncclGroupStart(), "exchange");
    transfer(send, to, receive, from, s, "exchange");
    check(ncclGroupEnd(), "exchange");
  }
  // The exchange was enqueued on its stream: whoever uses the data orders behind that stream.
  void finish_exchange(Stream) override {}

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<NcclCommunicator>(hosts_->split(color, key), device_);
  }

 private:
  void check(ncclResult_t status, const char* operation) const {
    if (status != ncclSuccess)
      throw InternalError(concat(operation, " failed on rank ", rank(), " (", host_name(), "): ", ncclGetErrorString(status)));
  }
  void expect_here(const Tensor& t, const char* operation) const {
    HYSCALE_CHECK(t.device() == device_ && t.is_contiguous(), operation, " of ", to_string(t), " by a communicator of ", to_string(device_));
  }
  void transfer(const Tensor& send, int to, const Tensor& receive, int from, Stream s, const char* operation) {
    if (send.bytes()) check(ncclSend(send.raw(), send.bytes(), ncclUint8, to, comm_, native(s)), operation);
    if (receive.bytes()) check(ncclRecv(receive.raw(), receive.bytes(), ncclUint8, from, comm_, native(s)), operation);
    if (to != rank()) sent_bytes_ += send.bytes();
  }

  std::unique_ptr<Communicator> hosts_;
  Device device_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> hosts, Device device) {
  HYSCALE_CHECK(device.is_cuda(), "NCCL on ", to_string(device));
  return std::make_unique<NcclCommunicator>(std::move(hosts), device);
}

}  // namespace hyscale
