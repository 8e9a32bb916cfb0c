// Muon over this rank's shards of a model's matrices. Momentum stays with the shard. A matrix is orthogonalised by every rank
// that holds a part of it, and the rank updates its part: what it lacks of the matrices at the two ends of its shard comes from
// the ranks that have it, all the rest is at hand. So work and traffic fall with the number of ranks, nobody waits for an
// owner, and a matrix's update is the same in every layout.
//
//   momentum = mu momentum + g;  direction = orthogonalised(g + mu momentum)
//   weight  -= lr (update_rms sqrt(max(rows, columns)) direction + weight_decay weight)
// Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; the scale as in Liu et al., "Muon is
// scalable for LLM training", arXiv:2502.16982: an update has the root mean square update_rms whatever the matrix's shape.
#pragma once
#include <functional>
#include <vector>

#include "kernels/newton_schulz/newton_schulz.h"
#include "models/parameter_store.h"

namespace hyscale {

struct MuonOptions {
  double momentum = 0.95, update_rms = 0.2;
  bool split_heads = true;  // the up-projections of attention heads are matrices of their own
  std::vector<NewtonSchulzStep> steps;
};

// `count` steps that move singular values fast and end near 1 (Jordan et al.), then `polish` steps that converge to 1.
std::vector<NewtonSchulzStep> quintic_steps(int64_t count, int64_t polish);
// The best polynomial for each step: Amsel et al., "The Polar Express", arXiv:2505.16932; converged after 8.
std::vector<NewtonSchulzStep> polar_express_steps(int64_t count);

// A logical matrix in a flat: a tensor of the Hugging Face files (so each expert, and gate and up apart), or a head's part of one.
struct MatrixBlock {
  int64_t begin = 0, rows = 0, columns = 0;  // begin: first element, in the flat
  int64_t end() const { return begin + rows * columns; }
};
// Of a parameter that starts at element `at` of its flat; equal shapes follow each other.
std::vector<MatrixBlock> matrix_blocks(const Parameter&, int64_t at, bool split_heads);

// [begin, end): a shard and what it lacks of the matrices that its ends cut.
struct ShardReach {
  int64_t begin, end;
};
ShardReach shard_reach(const std::vector<MatrixBlock>&, int64_t shard_begin, int64_t shard_end);

class Muon {
 public:
  // A piece of a matrix in this rank's shards and its f32 state.
  struct Piece {
    ShardPiece shard;
    Tensor master, momentum, gate;
    double lr_scale = 1, weight_decay = 0;
  };
  // `trains`: which parameters of the store are Muon's; `pieces` are this rank's of them.
  Muon(const ParameterStore&, std::vector<Piece> pieces, const std::function<bool(const Parameter&)>& trains, const MuonOptions&, Device);

  // Gradients of the pieces are spent. Collective over the ranks of every flat.
  void update(double lr, Stream);

 private:
  // Matrices of one shape at equal distances, orthogonalised together; a matrix that the shard's ends cut is alone.
  struct Batch {
    std::vector<MatrixBlock> blocks;
    const Piece* piece;
    int64_t piece_begin;  // in the flat
    bool cut;
  };
  struct Work {
    const ParameterStore::Flat* flat;
    ShardReach reach;
    std::vector<Batch> batches;
    bool exchanges = false;
    std::vector<std::pair<int64_t, int64_t>> sends;  // elements of the flat, by receiving rank
    std::vector<int64_t> send_counts, receive_counts;
    int64_t shard_begin() const { return flat->rank * flat->shard(); }
    int64_t shard_end() const { return shard_begin() + flat->shard(); }
  };
  void plan_exchange(Work&, const std::vector<MatrixBlock>&) const;
  void add_batches(Work&, const std::vector<MatrixBlock>&, const Piece&, int64_t piece_begin) const;
  size_t batch_bytes(const Batch&) const;
  void exchange(const Work&, Stream);
  Tensor gradients(const Work&, const Batch&, Stream);
  void update(const Work&, const Batch&, double lr, Stream);

  MuonOptions options_;
  Device device_;
  DType dtype_;  // of products
  std::vector<Piece> pieces_;
  std::vector<Work> work_;
  Buffer exchange_memory_, batch_memory_;
  Tensor sent_, received_;  // f32, of the flat at work
};

}  // namespace hyscale
