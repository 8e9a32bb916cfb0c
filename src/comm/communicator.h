// Communicator: a group of ranks and the collectives over them. Forms: single rank (nothing moves), MPI (CPU buffers;
// CUDA buffers staged through pinned memory, so ranks may share a GPU), NCCL (one GPU per rank). One interface, one test.
//
// Every rank of the group makes the same calls in the same order. Tensors are contiguous. Counts are 64-bit: what an
// underlying library cannot count is sent in pieces. Errors are InternalError naming the operation, rank and host.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "core/tensor.h"

namespace hyscale {

enum class ReduceOp : uint8_t { sum, max, min };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* transport() const = 0;  // "single", "mpi", "nccl"

  virtual void barrier() = 0;
  virtual void broadcast(const Tensor& data, int root, Stream) = 0;
  // In place. f32, f64, i32, i64; NCCL also bf16.
  virtual void all_reduce(const Tensor& data, ReduceOp, Stream) = 0;
  // receive has size() times the elements of send, in rank order; send may be this rank's part of receive.
  virtual void all_gather(const Tensor& send, const Tensor& receive, Stream) = 0;
  // send has size() times the elements of receive; rank r receives the sum of everyone's r-th part. f32, f64. receive may be
  // this rank's part of send; the other parts of send are then lost.
  virtual void reduce_scatter(const Tensor& send, const Tensor& receive, Stream) = 0;
  // Rows (dimension 0) of send go to rank 0, 1, ... in runs of send_rows[r]; receive gets runs of receive_rows[r].
  virtual void all_to_all(const Tensor& send, std::span<const int64_t> send_rows, const Tensor& receive,
                          std::span<const int64_t> receive_rows, Stream) = 0;

  // Starts a transfer to rank `to` and one from rank `from`; both tensors stay untouched until finish(). Empty tensors
  // move nothing. One transfer may be under way at a time.
  virtual void begin_exchange(const Tensor& send, int to, const Tensor& receive, int from, Stream) = 0;
  virtual void finish_exchange(Stream) = 0;

  // Ranks with equal color form a group, ordered by key.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Bytes this rank has sent through this communicator.
  int64_t sent_bytes() const { return sent_bytes_; }
  // Seconds that the host stood in messages and collectives; NCCL makes the device wait instead, and counts none.
  double waited_seconds() const { return waited_seconds_; }

 protected:
  int64_t sent_bytes_ = 0;
  double waited_seconds_ = 0;
};

std::unique_ptr<Communicator> make_single_communicator();
// One of `size` ranks that do not exist: takes meta tensors, moves nothing and counts the bytes that would be sent.
std::unique_ptr<Communicator> make_meta_communicator(int rank, int size);
// Only in builds with CUDA. `hosts` is an MPI communicator of the same ranks; `device` is this rank's own GPU.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> hosts, Device device);

// The MPI environment of the process: initialised by the first object, finalised by the last. `world()` is all ranks.
// MPI is asked for MPI_THREAD_SERIALIZED. Launched without mpirun it is a world of one.
class MpiEnvironment {
 public:
  MpiEnvironment(int* argc, char*** argv);
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  std::unique_ptr<Communicator> world() const;
  int local_rank() const;  // among the ranks of this host
  int local_size() const;
  // Ends every rank's process: prints "rank R on HOST: reason" and stops the job with this exit code.
  [[noreturn]] static void abort(const std::string& reason, int exit_code);
};
std::string host_name();

}  // namespace hyscale
