// The loader: documents of weighted data sets, shuffled, packed into sequences of a fixed number of tokens.
//
// A sequence is filled with documents one after the other. A document that does not fit is cut; its rest opens the next
// sequence as a document of its own (its first label is known, since the tokens are). Which data set the next document
// comes from is the one furthest behind its share of tokens. Every epoch of a data set has its own order, a function of
// (seed, data set, epoch). The cursor is small and complete: a loader restored from it continues with the same bits.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace hyscale {

struct DatasetShare {
  std::string prefix;
  double weight = 1;
};

struct LoadedSequence {
  std::vector<int32_t> tokens, labels;   // [sequence_tokens]; label: next token of the document, -1 at its end
  std::vector<int32_t> document_starts;  // first 0, last sequence_tokens
  std::string describe;                  // which documents, for reports: "prefix:document+first ..."
};

class Loader {
 public:
  struct Options {
    std::vector<DatasetShare> datasets;
    int64_t sequence_tokens = 0, vocabulary_size = 0;
    uint64_t seed = 0;
    bool shuffle = true;
  };
  // Throws UserError: unreadable data sets, no tokens at all, weights that are not positive.
  explicit Loader(const Options&);

  LoadedSequence next();

  nlohmann::json cursor() const;
  // Throws UserError when the cursor belongs to other data sets (number, size).
  void restore(const nlohmann::json&);

  int64_t num_tokens() const;       // of one epoch of every data set
  int64_t sequences_drawn() const { return sequences_; }

 private:
  struct Source {
    std::unique_ptr<IndexedDataset> data;
    double weight;
    int64_t epoch = 0, position = 0, offset = 0, drawn = 0;  // place in `order`; tokens into that document; tokens drawn
    std::vector<int64_t> order;
  };
  void shuffle(size_t source);
  void skip_empty(size_t source);
  size_t furthest_behind() const;

  Options options_;
  std::vector<Source> sources_;
  int current_ = -1;  // data set of a document that was cut
  int64_t sequences_ = 0;
};

}  // namespace hyscale
