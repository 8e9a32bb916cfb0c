// The loader: documents of weighted data sets, shuffled, packed into sequences of a fixed number of tokens.
//
// A sequence is filled with documents one after the other. A document that does not fit is cut; its rest opens the next
// sequence as a document of its own (its first label is known, since the tokens are). Which data set the next document
// comes from is the one furthest behind its share of tokens, in whole numbers. Every epoch of a data set has its own order, a
// function of (seed, data set, epoch) that is computed, not stored. The cursor is small and complete, and knows nothing of
// ranks: a loader restored from it continues with the same bits, whatever ranks then share out the sequences.
//
// Sequences are numbered from 0 as they are drawn. Those of the skip list are drawn without being read, and count.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/permutation.h"
#include "data/skip_list.h"

namespace hyscale {

class JsonReader;

struct DatasetShare {
  std::string prefix;
  double weight = 1;
};

struct LoadedSequence {
  std::vector<int32_t> tokens, labels;   // [sequence_tokens]; label: next token of the document, -1 at its end
  std::vector<int32_t> document_starts;  // first 0, last sequence_tokens
  int64_t number = 0;                    // counted from the beginning of training, skipped ones included
  std::string describe;                  // which documents, for reports: "prefix:document+first ..."
};

class Loader {
 public:
  struct Options {
    std::vector<DatasetShare> datasets;
    int64_t sequence_tokens = 0, vocabulary_size = 0;
    uint64_t seed = 0;
    bool shuffle = true;
    std::string skip;  // path of a skip list, or empty
  };
  // Throws UserError: unreadable data sets or skip list, no tokens at all, weights that are not positive.
  explicit Loader(const Options&);

  LoadedSequence next();

  nlohmann::json cursor() const;
  // Throws UserError for a cursor of another order (seed, shuffle) or of other data sets (number, documents, tokens, digest of
  // the index), or one that points to no place in them.
  void restore(const nlohmann::json&);

  int64_t num_tokens() const;       // of one epoch of every data set
  int64_t sequences_drawn() const { return sequences_; }

 private:
  struct Source {
    std::unique_ptr<IndexedDataset> data;
    std::string digest;  // of its index
    int64_t share;       // of kWhole
    int64_t epoch = 0, position = 0, offset = 0, drawn = 0;  // place in the epoch's order; tokens into that document; tokens drawn
    std::optional<Permutation> order;                        // none: as they lie
    int64_t document() const { return order ? (*order)(position) : position; }
  };
  void start_epoch(size_t source, int64_t epoch);
  void skip_empty(size_t source);
  size_t furthest_behind() const;
  void draw(LoadedSequence* out);  // null: moves on without reading
  void take(const Source&, int64_t document, int64_t count, int64_t filled, LoadedSequence& out) const;
  void check_same_order(const JsonReader& saved) const;
  void restore_source(size_t source, const nlohmann::json& saved);

  Options options_;
  SkipList skip_;
  std::vector<Source> sources_;
  int current_ = -1;  // data set of a document that was cut
  int64_t sequences_ = 0;
};

}  // namespace hyscale
