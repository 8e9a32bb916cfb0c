#include "data/loader.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace hyscale {

Loader::Loader(const Options& o) : options_(o) {
  HYSCALE_CHECK(o.sequence_tokens > 0, "sequences of ", o.sequence_tokens, " tokens");
  double sum = 0;
  for (const DatasetShare& d : o.datasets) {
    if (!(d.weight > 0) || !std::isfinite(d.weight)) throw UserError(concat(d.prefix, ": weight ", d.weight, "; expected a positive number"));
    sum += d.weight;
  }
  for (const DatasetShare& d : o.datasets) {
    sources_.push_back({std::make_unique<IndexedDataset>(d.prefix), d.weight / sum});
    if (sources_.back().data->num_tokens() == 0) throw UserError(d.prefix + ".bin: holds no tokens");
    shuffle(sources_.size() - 1);
    skip_empty(sources_.size() - 1);
  }
  if (sources_.empty()) throw UserError("no data sets are given");
}

void Loader::shuffle(size_t source) {
  Source& s = sources_[source];
  s.order.resize(static_cast<size_t>(s.data->num_documents()));
  std::iota(s.order.begin(), s.order.end(), 0);
  if (!options_.shuffle) return;
  const Rng rng(options_.seed, (static_cast<uint64_t>(source) << 32) + static_cast<uint64_t>(s.epoch));
  for (size_t i = s.order.size(); i > 1; --i) std::swap(s.order[i - 1], s.order[rng.below(i, i)]);
}

// Moves to the next document that has tokens, into the next epoch where this one ends.
void Loader::skip_empty(size_t source) {
  Source& s = sources_[source];
  while (true) {
    if (s.position == static_cast<int64_t>(s.order.size())) {
      ++s.epoch;
      s.position = 0;
      shuffle(source);
    }
    if (s.data->document_tokens(s.order[static_cast<size_t>(s.position)]) > 0) return;
    ++s.position;
  }
}

size_t Loader::furthest_behind() const {
  double total = 0;
  for (const Source& s : sources_) total += static_cast<double>(s.drawn);
  size_t best = 0;
  double most = -INFINITY;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const double behind = sources_[i].weight * total - static_cast<double>(sources_[i].drawn) + sources_[i].weight;
    if (behind > most) most = behind, best = i;
  }
  return best;
}

LoadedSequence Loader::next() {
  LoadedSequence out;
  const int64_t wanted = options_.sequence_tokens;
  out.tokens.resize(static_cast<size_t>(wanted));
  out.labels.resize(static_cast<size_t>(wanted));
  out.document_starts.push_back(0);
  for (int64_t filled = 0; filled < wanted;) {
    const size_t at = current_ >= 0 ? static_cast<size_t>(current_) : furthest_behind();
    Source& s = sources_[at];
    const int64_t document = s.order[static_cast<size_t>(s.position)], length = s.data->document_tokens(document);
    const int64_t take = std::min(wanted - filled, length - s.offset);
    const bool ends = s.offset + take == length;
    // One token more than is taken, where there is one: the label of the last.
    std::vector<int32_t> ids(static_cast<size_t>(take + !ends));
    s.data->read(document, s.offset, static_cast<int64_t>(ids.size()), options_.vocabulary_size, ids.data());
    for (int64_t i = 0; i < take; ++i) {
      out.tokens[static_cast<size_t>(filled + i)] = ids[static_cast<size_t>(i)];
      out.labels[static_cast<size_t>(filled + i)] = i + 1 < static_cast<int64_t>(ids.size()) ? ids[static_cast<size_t>(i + 1)] : -1;
    }
    out.describe += concat(out.describe.empty() ? "" : " ", s.data->prefix(), ":", document, "+", s.offset);
    filled += take;
    s.drawn += take;
    out.document_starts.push_back(static_cast<int32_t>(filled));
    if (ends) {
      ++s.position;
      s.offset = 0;
      current_ = -1;
      skip_empty(at);
    } else {
      s.offset += take;
      current_ = static_cast<int>(at);
    }
  }
  ++sequences_;
  return out;
}

nlohmann::json Loader::cursor() const {
  nlohmann::json j{{"current", current_}, {"sequences", sequences_}, {"sources", nlohmann::json::array()}};
  for (const Source& s : sources_)
    j["sources"].push_back({{"prefix", s.data->prefix()}, {"documents", s.data->num_documents()}, {"tokens", s.data->num_tokens()}, {"epoch", s.epoch},
                            {"position", s.position}, {"offset", s.offset}, {"drawn", s.drawn}});
  return j;
}

void Loader::restore(const nlohmann::json& j) {
  const nlohmann::json& saved = j.at("sources");
  if (saved.size() != sources_.size())
    throw UserError(concat("the checkpoint was trained on ", saved.size(), " data sets, the config names ", sources_.size(), "; resume with the same data sets"));
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& s = sources_[i];
    if (saved[i].at("documents") != s.data->num_documents() || saved[i].at("tokens") != s.data->num_tokens())
      throw UserError(concat(s.data->prefix(), ": has ", s.data->num_documents(), " documents and ", s.data->num_tokens(), " tokens; the checkpoint's data set ",
                             saved[i].at("prefix").get<std::string>(), " had ", saved[i].at("documents").dump(), " and ", saved[i].at("tokens").dump()));
    s.epoch = saved[i].at("epoch");
    s.position = saved[i].at("position");
    s.offset = saved[i].at("offset");
    s.drawn = saved[i].at("drawn");
    shuffle(i);
  }
  current_ = j.at("current");
  sequences_ = j.at("sequences");
}

int64_t Loader::num_tokens() const {
  int64_t n = 0;
  for (const Source& s : sources_) n += s.data->num_tokens();
  return n;
}

}  // namespace hyscale
