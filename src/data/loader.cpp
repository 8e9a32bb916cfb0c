#include "data/loader.h"

#include <algorithm>
#include <cmath>

#include "core/json.h"

namespace hyscale {
namespace {

// Shares of data sets are whole numbers of this, so that which is behind depends on no rounding.
constexpr int64_t kWhole = int64_t{1} << 32;

int64_t share_of(double weight, double sum) { return std::max<int64_t>(1, std::llround(weight / sum * static_cast<double>(kWhole))); }

// Whether any token has a next one to predict.
bool predicts(const IndexedDataset& data) {
  for (int64_t d = 0; d < data.num_documents(); ++d)
    if (data.document_tokens(d) > 1) return true;
  return false;
}

}  // namespace

Loader::Loader(const Options& o) : options_(o) {
  HYSCALE_CHECK(o.sequence_tokens > 0, "sequences of ", o.sequence_tokens, " tokens");
  if (!o.skip.empty()) skip_ = SkipList(o.skip);
  double sum = 0;
  for (const DatasetShare& d : o.datasets) {
    if (!(d.weight > 0) || !std::isfinite(d.weight)) throw UserError(concat(d.prefix, ": weight ", d.weight, "; expected a positive number"));
    sum += d.weight;
  }
  for (const DatasetShare& d : o.datasets) {
    auto data = std::make_unique<IndexedDataset>(d.prefix);
    if (data->num_tokens() == 0) throw UserError(d.prefix + ".bin: holds no tokens");
    if (!predicts(*data)) throw UserError(d.prefix + ".idx: no document has more than one token, so there is nothing to predict; expected documents of two tokens or more");
    std::string digest = data->index_digest();
    sources_.push_back({std::move(data), std::move(digest), share_of(d.weight, sum)});
    start_epoch(sources_.size() - 1, 0);
    skip_empty(sources_.size() - 1);
  }
  if (sources_.empty()) throw UserError("no data sets are given");
}

void Loader::start_epoch(size_t source, int64_t epoch) {
  Source& s = sources_[source];
  s.epoch = epoch;
  s.position = 0;
  if (options_.shuffle) s.order.emplace(s.data->num_documents(), options_.seed, (static_cast<uint64_t>(source) << 32) + static_cast<uint64_t>(epoch));
}

// Moves to the next document that has tokens, into the next epoch where this one ends.
void Loader::skip_empty(size_t source) {
  Source& s = sources_[source];
  while (true) {
    if (s.position == s.data->num_documents()) start_epoch(source, s.epoch + 1);
    if (s.data->document_tokens(s.document()) > 0) return;
    ++s.position;
  }
}

size_t Loader::furthest_behind() const {
  __extension__ using Wide = __int128;
  Wide total = 0, shares = 0;
  for (const Source& s : sources_) total += s.drawn, shares += s.share;
  size_t best = 0;
  Wide most = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    // One token more than were drawn: before the first, the largest share begins.
    const Wide behind = sources_[i].share * (total + 1) - sources_[i].drawn * shares;
    if (i == 0 || behind > most) most = behind, best = i;
  }
  return best;
}

LoadedSequence Loader::next() {
  while (skip_.contains(sequences_)) draw(nullptr);
  LoadedSequence out;
  draw(&out);
  return out;
}

void Loader::draw(LoadedSequence* out) {
  const int64_t wanted = options_.sequence_tokens;
  if (out) {
    out->tokens.resize(static_cast<size_t>(wanted));
    out->labels.resize(static_cast<size_t>(wanted));
    out->document_starts.push_back(0);
    out->number = sequences_;
  }
  for (int64_t filled = 0; filled < wanted;) {
    const size_t at = current_ >= 0 ? static_cast<size_t>(current_) : furthest_behind();
    Source& s = sources_[at];
    const int64_t document = s.document(), length = s.data->document_tokens(document), count = std::min(wanted - filled, length - s.offset);
    if (out) take(s, document, count, filled, *out);
    filled += count;
    s.drawn += count;
    s.offset += count;
    current_ = static_cast<int>(at);
    if (s.offset < length) continue;
    ++s.position;
    s.offset = 0;
    current_ = -1;
    skip_empty(at);
  }
  ++sequences_;
}

void Loader::take(const Source& s, int64_t document, int64_t count, int64_t filled, LoadedSequence& out) const {
  // One token more than is taken, where there is one: the label of the last.
  const bool ends = s.offset + count == s.data->document_tokens(document);
  std::vector<int32_t> ids(static_cast<size_t>(count + !ends));
  s.data->read(document, s.offset, static_cast<int64_t>(ids.size()), options_.vocabulary_size, ids.data());
  for (int64_t i = 0; i < count; ++i) {
    out.tokens[static_cast<size_t>(filled + i)] = ids[static_cast<size_t>(i)];
    out.labels[static_cast<size_t>(filled + i)] = i + 1 < static_cast<int64_t>(ids.size()) ? ids[static_cast<size_t>(i + 1)] : -1;
  }
  out.describe += concat(out.describe.empty() ? "" : " ", s.data->prefix(), ":", document, "+", s.offset);
  out.document_starts.push_back(static_cast<int32_t>(filled + count));
}

nlohmann::json Loader::cursor() const {
  nlohmann::json j{{"seed", options_.seed}, {"shuffle", options_.shuffle}, {"current", current_}, {"sequences", sequences_}, {"sources", nlohmann::json::array()}};
  for (const Source& s : sources_)
    j["sources"].push_back({{"prefix", s.data->prefix()}, {"documents", s.data->num_documents()}, {"tokens", s.data->num_tokens()}, {"index", s.digest},
                            {"epoch", s.epoch}, {"position", s.position}, {"offset", s.offset}, {"drawn", s.drawn}});
  return j;
}

void Loader::restore_source(size_t source, const nlohmann::json& saved) {
  Source& s = sources_[source];
  const JsonReader r(saved, concat("the checkpoint's place in ", s.data->prefix()));
  const int64_t documents = r.integer("documents", 0, INT64_MAX), tokens = r.integer("tokens", 0, INT64_MAX);
  const std::string prefix = r.text("prefix"), digest = r.text("index");
  if (documents != s.data->num_documents() || tokens != s.data->num_tokens() || digest != s.digest)
    throw UserError(concat(s.data->prefix(), ": has ", s.data->num_documents(), " documents and ", s.data->num_tokens(), " tokens, index ", s.digest,
                           "; the checkpoint's data set ", prefix, " had ", documents, " and ", tokens, ", index ", digest));
  start_epoch(source, r.integer("epoch", 0, int64_t{1} << 31));
  s.position = r.integer("position", 0, s.data->num_documents() - 1);
  s.offset = r.integer("offset", 0, s.data->document_tokens(s.document()) - 1);
  s.drawn = r.integer("drawn", 0, JsonReader::kMostCount);
}

// A place counts documents in the order of the run that saved it: in another order some would come twice and others never.
void Loader::check_same_order(const JsonReader& saved) const {
  const auto check = [&](const char* key, const nlohmann::json& now) {
    const nlohmann::json& then = saved.raw(key);
    if (then != now)
      throw UserError(concat("data.", key, ": is ", now.dump(), ", the checkpoint's documents are in the order of ", then.dump(), "; expected ", then.dump(), ", or a new run that starts from model.weights"));
  };
  check("seed", options_.seed);
  check("shuffle", options_.shuffle);
}

void Loader::restore(const nlohmann::json& j) {
  const JsonReader r(j, "the checkpoint's place in the data");
  check_same_order(r);
  const nlohmann::json& saved = r.raw("sources");
  if (!saved.is_array() || saved.size() != sources_.size())
    throw UserError(concat("the checkpoint was trained on ", saved.size(), " data sets, the config names ", sources_.size(), "; resume with the same data sets"));
  for (size_t i = 0; i < sources_.size(); ++i) restore_source(i, saved[i]);
  current_ = static_cast<int>(r.integer("current", -1, static_cast<int64_t>(sources_.size()) - 1));
  sequences_ = r.integer("sequences", 0, JsonReader::kMostCount);
}

int64_t Loader::num_tokens() const {
  int64_t n = 0;
  for (const Source& s : sources_) n += s.data->num_tokens();
  return n;
}

}  // namespace hyscale
