// ContextLayout: which rank of a context group owns which tokens of a sequence, and who sends what to whom. Pure
// arithmetic: no rank runs, no message moves.
//
// zigzag: 2 x size segments; rank r owns segments r and 2 size - 1 - r, so that causal work is even.
// contiguous: rank r owns segment r of `size`.
// Boundaries are multiples of `multiple`, but for the end of the sequence; segments of a short sequence may be empty.
#pragma once
#include "comm/row_shards.h"

namespace hyscale {

enum class ContextOrder : uint8_t { zigzag, contiguous };

class ContextLayout {
 public:
  ContextLayout(int64_t sequence_tokens, int size, ContextOrder order, int64_t multiple = 128);

  int size() const { return size_; }
  int64_t sequence_tokens() const { return tokens_; }
  ContextOrder order() const { return order_; }
  // A rank's segments in ascending order: two, or one when contiguous. Its local tokens are these, one after the other.
  std::vector<TokenRange> segments(int rank) const;
  RowShards shards() const;  // of the tokens
  int64_t local_tokens(int rank) const;
  int64_t max_local_tokens() const;
  int owner(int64_t token) const;
  int64_t to_global(int rank, int64_t local_token) const;
  int64_t to_local(int64_t token) const;  // in its owner

  // What reaches over an edge: the up to `width` tokens left of each of the rank's segments, cut where the owner changes.
  struct Halo {
    int segment = 0;    // index into segments(rank)
    int from = 0;       // owner; may be the rank itself
    TokenRange tokens;  // ascending within a segment
  };
  std::vector<Halo> left_halo(int rank, int64_t width) const;
  // The other side: which tokens `rank` sends for others' halos, in the order (receiver, segment, tokens).
  struct HaloSend {
    int to = 0;
    TokenRange tokens;
  };
  std::vector<HaloSend> halo_sends(int rank, int64_t width) const;

  // Ring: at step s a rank works on the shard of this rank, having sent the one before on to its right neighbour.
  int ring_shard(int rank, int step) const { return ((rank - step) % size_ + size_) % size_; }
  // Rows a rank sends while shards go once around: every shard but its right neighbour's own.
  int64_t ring_sent_rows(int rank) const;

 private:
  TokenRange segment(int index) const;
  int num_segments() const { return order_ == ContextOrder::zigzag ? 2 * size_ : size_; }
  int segment_owner(int index) const;

  int64_t tokens_, multiple_;
  int size_;
  ContextOrder order_;
};

}  // namespace hyscale
