// What a layer needs to know of the step it runs in.
#pragma once
#include <cstdint>
#include <vector>

#include "comm/ring.h"
#include "core/arena.h"
#include "kernels/flash_topk/selection.h"

namespace hyscale {

// Groups of `ratio` neighbouring tokens of a document, one entry each; a shorter last group has none. A query sees the
// entries whose tokens have all been read: floor((position + 1) / ratio) of its document.
// With context parallelism an entry belongs to the rank that holds the last token of its group.
struct CompressedEntries {
  int64_t ratio = 1;
  Tensor begin, end;   // i32 [T]  entries of the whole sequence that a query sees
  Tensor first_token;  // i32 [E]  of an own entry's group: its row in the reach
  Tensor all_first_tokens;  // i32 [entries of the whole sequence]: that token of every entry's group, in the whole sequence
  Tensor positions;    // i32 [E]  of that token in its document
  RowShards shards;    // of the entries of the whole sequence
  int64_t most_visible = 0;  // entries of one query
  int64_t own() const { return positions.size(0); }
  int64_t all() const { return shards.total(); }
};

// The own tokens with those to the left of each segment that layers read beside them (windows, groups that straddle an edge):
// X rows, for each segment its halo and then its tokens. Without context parallelism these are the own tokens.
struct TokenReach {
  int64_t width = 0;  // most tokens to the left
  Tensor positions;   // i32 [X]
  Tensor begin, end;  // i32 [T]  a query's own document in the reach, up to itself: rows [begin, end)
  Tensor tokens;      // i32 [X]
  Tensor history;     // i32 [X]  rows before it that are earlier tokens of its document, up to the width at own tokens at least
  struct Piece {
    int64_t halo_rows, own_rows;
  };
  std::vector<Piece> pieces;  // of each segment
};

// What a recurrence over the documents of a segment takes over and hands on: the runs at its ends, of local tokens, each of one
// document; they are the same where the segment holds no more. Empty in an empty segment.
struct SegmentRuns {
  TokenRange first, last;
  bool continues = false;  // the first run's document began before the segment
  bool passes() const { return continues && first == last; }  // a state from before the segment reaches what is behind it
};

// What a rank holds of one packed sequence: documents one after the other, without a batch axis. With context parallelism
// these are the rank's segments (comm/context_layout.h); what speaks of keys counts tokens of the whole sequence.
struct PackedSequence {
  Tensor tokens;     // i32 [T]
  Tensor labels;     // i32 [T]  the next token of the same document; -1: no label (document end, padding)
  std::vector<Tensor> mtp_labels;  // i32 [T] of each MTP depth: the label one place further
  Tensor positions;  // i32 [T]  restart at 0 in each document
  Tensor key_begin;  // i32 [T]  first token of the same document, in the whole sequence
  Tensor key_end;    // i32 [T]  own index in the whole sequence + 1
  TokenReach reach;
  std::vector<CompressedEntries> compressed;  // of each ratio that the model asks for
  Tensor document_starts;  // i32 [P + 1]  runs of local tokens of one document each; first is 0, last is T
  Tensor document_ids;     // i32 [P]  which document of the sequence a run belongs to
  std::vector<SegmentRuns> segment_runs;     // of each own segment, where the sequence is spread over ranks
  Tensor segment_before, segment_behind;     // i32 [P]  the segment that a run is the first of and continues a document in, or is the last of; -1: none
  Tensor document_tokens;  // i32 [D]  tokens of every document of the sequence, on all ranks together
  int64_t num_tokens() const { return tokens.size(0); }
};

enum class Pass : uint8_t {
  forward,    // of a training step: saves what backward needs; the selector runs and its selection is stored
  recompute,  // of a training step: saves again; the selection is read from the store
  evaluate,   // no backward follows
};

enum class Stage : uint8_t {
  sparse,  // attention reads the selection; the trunk trains on the LM loss, the indexer on the sparse index loss
  warmup,  // dense attention, trunk frozen, the indexer trains on the index loss over all visible keys
};

// Divisors of the step are known before it runs, so gradients need no later scaling.
struct LossScales {
  double lm = 1;           // 1 / labels of the step, over all micro-batches and ranks
  double index = 0;        // coefficient / queries of the step
  double balance = 0;      // coefficient / sequences (documents) of the step
  double mtp = 0;          // coefficient / (depths * MTP labels of the step)
};

// Sums of a step, on the device, without scales. One f64 slot each; read once, at the end of the step.
struct LossSums {
  Tensor lm;       // f64 [1]
  Tensor index;    // f64 [selecting layers]
  Tensor balance;  // f64 [1]
  Tensor mtp;      // f64 [1]
};

// Selections of one micro-batch, one per selecting layer: written in forward, read in recompute and by shared layers.
class SelectionStore;
struct RoutingStore;
class SelectionHealth;

struct Context {
  Device device;
  Stream stream;
  DType activation = DType::f32;  // f32 on the CPU, bf16 on CUDA
  bool f32_residual = false;      // hidden streams between layers and their gradients are f32 beside bf16 activations
  DType residual() const { return f32_residual ? DType::f32 : activation; }
  Stage stage = Stage::sparse;
  bool replay = true;             // false: recompute selects again (for comparison only)
  const PackedSequence* sequence = nullptr;
  LossScales scales;
  LossSums* sums = nullptr;
  SelectionStore* selections = nullptr;
  RoutingStore* routing = nullptr;  // absent: experts are chosen and not recorded
  SelectionHealth* health = nullptr;  // present: it samples each indexer's selection in this pass
  Ring* ring = nullptr;  // of the ranks that hold parts of this sequence; null: it is whole here
  Communicator* experts = nullptr;  // ranks that share out the experts; null: all are here
  Communicator* world = nullptr;    // all ranks, among which Cut::ranks shares out rows; null: this one alone
  bool last_micro_batch = true;  // of this rank in this step: gradients are complete behind it
  Arena* saved = nullptr;    // what backward needs; rewound by the owner
  Arena* scratch = nullptr;  // temporaries; rewound by whoever allocates (ArenaScope)
  bool deterministic = false;  // bit-equal results across runs where a faster way exists (the CPU always is)
};

// Scratch memory for an op's workspace, until the caller's ArenaScope ends.
inline Tensor workspace(Context& ctx, size_t bytes) { return ctx.scratch->allocate(DType::u8, {static_cast<int64_t>(bytes)}); }

}  // namespace hyscale
