// The MPI form. CUDA tensors pass through pinned host memory. Open MPI 4 counts in int, so large messages go in pieces.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "comm/communicator.h"
#include "core/memory.h"
#include "core/range.h"

namespace hyscale {
namespace {

constexpr int64_t kMaxPiece = int64_t{1} << 30;  // bytes of one MPI message

void check_mpi(int status, const char* operation) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, rank = 0;
  MPI_Error_string(status, text, &length);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  throw InternalError(concat(operation, " failed on rank ", rank, " (", host_name(), "): ", std::string(text, length)));
}

MPI_Datatype mpi_type(DType t, const char* operation) {
  switch (t) {
    case DType::f32: return MPI_FLOAT;
    case DType::f64: return MPI_DOUBLE;
    case DType::i32: return MPI_INT32_T;
    case DType::i64: return MPI_INT64_T;
    default: throw InternalError(concat(operation, " over MPI does not reduce ", dtype_name(t)));
  }
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return MPI_SUM;
    case ReduceOp::max: return MPI_MAX;
    case ReduceOp::min: return MPI_MIN;
  }
  HYSCALE_CHECK(false, "reduce op ", static_cast<int>(op));
}

// Host memory that stands in for a tensor: the tensor's own on the CPU, a pinned copy otherwise.
class Staged {
 public:
  Staged(const Tensor& t, bool load, PinnedBuffer& memory, Stream stream) : tensor_(t), stream_(stream) {
    HYSCALE_CHECK(t.is_contiguous(), "communication of a strided tensor ", to_string(t));
    HYSCALE_CHECK(!t.device().is_meta(), "communication of a meta tensor");
    if (t.device().is_cpu()) {
      data_ = t.data<char>();
      return;
    }
    memory.reserve(t.bytes());
    data_ = static_cast<char*>(memory.data());
    if (load) {
      copy_bytes(data_, {}, t.raw(), t.device(), t.bytes(), stream);
      synchronize(t.device(), stream);
    }
  }
  char* data() const { return data_; }
  // Waits, so that the pinned memory may serve the next operation.
  void store() const {
    if (tensor_.device().is_cpu()) return;
    copy_bytes(tensor_.raw(), tensor_.device(), data_, {}, tensor_.bytes(), stream_);
    synchronize(tensor_.device(), stream_);
  }

 private:
  Tensor tensor_;
  Stream stream_;
  char* data_ = nullptr;
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiCommunicator() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (comm_ != MPI_COMM_WORLD && !finalized) MPI_Comm_free(&comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* transport() const override { return "mpi"; }

  void barrier() override {
    const Range range("barrier");
    blocking("barrier", [&] { return MPI_Barrier(comm_); });
  }

  void broadcast(const Tensor& data, int root, Stream stream) override {
    const Range range("broadcast");
    Staged host(data, rank_ == root, stage_a_, stream);
    in_pieces(data.bytes(), [&](int64_t at, int n) { blocking("broadcast", [&] { return MPI_Bcast(host.data() + at, n, MPI_BYTE, root, comm_); }); });
    if (rank_ != root) host.store();
    sent_bytes_ += rank_ == root ? data.bytes() * (size_ - 1) : 0;
  }

  void all_reduce(const Tensor& data, ReduceOp op, Stream stream) override {
    const Range range("all_reduce");
    const MPI_Datatype type = mpi_type(data.dtype(), "all_reduce");
    const int64_t width = dtype_bytes(data.dtype());
    Staged host(data, true, stage_a_, stream);
    in_pieces(data.bytes(), [&](int64_t at, int n) {
      blocking("all_reduce", [&] { return MPI_Allreduce(MPI_IN_PLACE, host.data() + at, n / width, type, mpi_op(op), comm_); });
    });
    host.store();
    sent_bytes_ += 2 * data.bytes() * (size_ - 1) / size_;
  }

  void all_gather(const Tensor& send, const Tensor& receive, Stream stream) override {
    const Range range("all_gather");
    HYSCALE_CHECK(receive.bytes() == send.bytes() * size_, "all_gather of ", to_string(send), " into ", to_string(receive));
    Staged from(send, true, stage_a_, stream), to(receive, false, stage_b_, stream);
    exchange_all([&](int) { return Run{from.data(), static_cast<int64_t>(send.bytes())}; },
                 [&](int r) { return Run{to.data() + r * send.bytes(), static_cast<int64_t>(send.bytes())}; }, "all_gather");
    to.store();
  }

  void reduce_scatter(const Tensor& send, const Tensor& receive, Stream stream) override {
    const Range range("reduce_scatter");
    HYSCALE_CHECK(send.bytes() == receive.bytes() * size_ && send.dtype() == receive.dtype(), "reduce_scatter of ",
                  to_string(send), " into ", to_string(receive));
    const MPI_Datatype type = mpi_type(send.dtype(), "reduce_scatter");
    Staged from(send, true, stage_a_, stream), to(receive, false, stage_b_, stream);
    const int64_t width = dtype_bytes(send.dtype()), part = receive.bytes();
    // A piece of every part at a time: MPI_Reduce_scatter_block wants the parts adjacent, so each part is its own reduce.
    for (int root = 0; root < size_; ++root)
      in_pieces(part, [&](int64_t at, int n) {
        char *in = from.data() + root * part + at, *out = to.data() + at;
        blocking("reduce_scatter", [&] { return MPI_Reduce(rank_ == root && in == out ? MPI_IN_PLACE : in, out, n / width, type, MPI_SUM, root, comm_); });
      });
    to.store();
    sent_bytes_ += part * (size_ - 1);
  }

  void all_to_all(const Tensor& send, std::span<const int64_t> send_rows, const Tensor& receive,
                  std::span<const int64_t> receive_rows, Stream stream) override {
    const Range range("all_to_all");
    HYSCALE_CHECK(static_cast<int>(send_rows.size()) == size_ && static_cast<int>(receive_rows.size()) == size_,
                  "all_to_all over ", size_, " ranks with ", send_rows.size(), " and ", receive_rows.size(), " runs");
    const std::vector<int64_t> from_at = starts(send, send_rows), to_at = starts(receive, receive_rows);
    Staged from(send, true, stage_a_, stream), to(receive, false, stage_b_, stream);
    exchange_all([&](int r) { return Run{from.data() + from_at[r], from_at[r + 1] - from_at[r]}; },
                 [&](int r) { return Run{to.data() + to_at[r], to_at[r + 1] - to_at[r]}; }, "all_to_all");
    to.store();
  }

  void begin_exchange(const Tensor& send, int to, const Tensor& receive, int from, Stream stream) override {
    HYSCALE_CHECK(!incoming_, "an exchange is already under way");
    Staged out(send, true, stage_c_, stream);
    incoming_ = std::make_unique<Staged>(receive, false, stage_d_, stream);
    post_receive(incoming_->data(), receive.bytes(), from);
    post_send(out.data(), send.bytes(), to);
  }

  void finish_exchange(Stream) override {
    const Range range("exchange");
    HYSCALE_CHECK(incoming_ != nullptr, "no exchange is under way");
    wait_all("exchange");
    incoming_->store();
    incoming_.reset();
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm comm;
    check_mpi(MPI_Comm_split(comm_, color, key, &comm), "split");
    return std::make_unique<MpiCommunicator>(comm);
  }

 private:
  struct Run {
    char* data;
    int64_t bytes;
  };

  template <typename F>
  void blocking(const char* operation, F&& call) {
    const auto start = std::chrono::steady_clock::now();
    const int status = call();
    waited_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    check_mpi(status, operation);
  }

  template <typename F>
  static void in_pieces(int64_t bytes, F&& move) {
    for (int64_t at = 0; at < bytes; at += kMaxPiece) move(at, static_cast<int>(std::min(kMaxPiece, bytes - at)));
  }

  std::vector<int64_t> starts(const Tensor& t, std::span<const int64_t> rows) const {
    const int64_t row_bytes = t.size(0) ? static_cast<int64_t>(t.bytes()) / t.size(0) : 0;
    std::vector<int64_t> at{0};
    for (int64_t n : rows) at.push_back(at.back() + n * row_bytes);
    HYSCALE_CHECK(at.back() <= static_cast<int64_t>(t.bytes()), "runs of ", at.back(), " bytes in ", to_string(t));
    return at;
  }

  template <typename Out, typename In>
  void exchange_all(Out&& out, In&& in, const char* operation) {
    for (int i = 0; i < size_; ++i) {
      const int to = (rank_ + i) % size_, from = (rank_ - i + size_) % size_;
      const Run send = out(to), receive = in(from);
      if (i == 0) {
        HYSCALE_CHECK(send.bytes == receive.bytes, operation, ": own run has ", send.bytes, " and ", receive.bytes, " bytes");
        if (send.bytes && send.data != receive.data) std::copy_n(send.data, send.bytes, receive.data);
        continue;
      }
      post_receive(receive.data, receive.bytes, from);
      post_send(send.data, send.bytes, to);
      wait_all(operation);
    }
  }

  void post_send(char* data, int64_t bytes, int to) {
    in_pieces(bytes, [&](int64_t at, int n) {
      check_mpi(MPI_Isend(data + at, n, MPI_BYTE, to, 0, comm_, &requests_.emplace_back()), "send");
    });
    if (to != rank_) sent_bytes_ += bytes;
  }
  void post_receive(char* data, int64_t bytes, int from) {
    in_pieces(bytes, [&](int64_t at, int n) {
      check_mpi(MPI_Irecv(data + at, n, MPI_BYTE, from, 0, comm_, &requests_.emplace_back()), "receive");
    });
  }
  void wait_all(const char* operation) {
    blocking(operation, [&] { return MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE); });
    requests_.clear();
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  PinnedBuffer stage_a_, stage_b_, stage_c_, stage_d_;
  std::unique_ptr<Staged> incoming_;
  std::vector<MPI_Request> requests_;
};

int local(bool size) {
  MPI_Comm host;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host), "host group");
  int n = 0;
  size ? MPI_Comm_size(host, &n) : MPI_Comm_rank(host, &n);
  MPI_Comm_free(&host);
  return n;
}

}  // namespace

MpiEnvironment::MpiEnvironment(int* argc, char*** argv) {
  int initialized = 0, provided = 0;
  MPI_Initialized(&initialized);
  HYSCALE_CHECK(!initialized, "MPI is already initialised in this process");
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  HYSCALE_CHECK(provided >= MPI_THREAD_SERIALIZED, "MPI offers thread level ", provided, ", MPI_THREAD_SERIALIZED is needed");
}

MpiEnvironment::~MpiEnvironment() { MPI_Finalize(); }

std::unique_ptr<Communicator> MpiEnvironment::world() const { return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD); }
int MpiEnvironment::local_rank() const { return local(false); }
int MpiEnvironment::local_size() const { return local(true); }

void MpiEnvironment::abort(const std::string& reason, int exit_code) {
  int initialized = 0, finalized = 0, rank = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  const bool running = initialized && !finalized;
  if (running) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "rank %d on %s: %s\n", rank, host_name().c_str(), reason.c_str());
  std::fflush(stderr);
  if (running) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace hyscale
