// A decoder layer at its real width as one rank of a context group runs it (GLM-5.1; DeepSeek-V4's CSA layer; Qwen3.8's QSA layer): its two
// segments' queries against the keys of the whole sequence; forward, recomputation from the saved input, backward with index
// loss. The other ranks are not there: a loopback hands the own rows on in their place, so every rank's work is done and its
// traffic becomes copies. Experts: 8 of 256 (16 of 512 in Qwen3.8), and every token goes to as many of them as it would to all (8; 6 in DeepSeek-V4;
// 10 in Qwen3.8): what a rank of 32 gets from 32 ranks' tokens under even load.
//
// Two ways, everything else equal: FlashTopK with selection replay, and scores in a table, selected from again in
// recomputation; there the layer reads a given selection and the table's cost is added in the same run. Random keys and queries choose
// unlike their neighbours, so both ways are also timed on given choices that neighbours share, with the selections' costs of the same run.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "bench/bench.h"
#include "core/rng.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/rope/rope.h"
#include "models/deepseek_v4/decoder_layer.h"
#include "models/glm/decoder_layer.h"
#include "models/packed_sequence.h"
#include "models/qwen/decoder_layer.h"
#include "models/registry.h"

namespace hyscale::bench {
namespace {

class Loopback final : public Communicator {
 public:
  Loopback(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* transport() const override { return "loopback"; }
  void barrier() override {}
  void broadcast(const Tensor&, int, Stream) override { refuse("broadcast"); }
  void all_reduce(const Tensor&, ReduceOp, Stream) override {}
  void all_gather(const Tensor&, const Tensor&, Stream) override { refuse("all_gather"); }
  void reduce_scatter(const Tensor&, const Tensor&, Stream) override { refuse("reduce_scatter"); }
  void all_to_all(const Tensor& send, std::span<const int64_t>, const Tensor& receive, std::span<const int64_t>, Stream s) override {
    const int64_t rows = std::min(send.size(0), receive.size(0));
    copy(receive.slice(0, 0, rows), send.slice(0, 0, rows), s);
  }
  void begin_exchange(const Tensor& send, int, const Tensor& receive, int, Stream s) override { copy(receive, send, s); }
  void finish_exchange(Stream) override {}
  std::unique_ptr<Communicator> split(int, int) override { refuse("split"); }

 private:
  [[noreturn]] static void refuse(const char* operation) { throw InternalError(concat("the loopback of the layer benchmark has no ", operation)); }
  int rank_, size_;
};

// The layer that is measured.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual SequenceNeeds needs() const = 0;
  virtual Shape shape(int64_t tokens) const = 0;  // of its input
  virtual void forward(Context&, Pass, const Tensor& x, const Tensor& y) = 0;
  virtual void backward(Context&, const Tensor& d) = 0;
  virtual Tensor visible_keys(const PackedSequence&) const = 0;  // i32 [T]: a query sees the keys below this
  ParameterStore store;
  int64_t index_heads = 0, index_dims = 0, k = 0, tokens_per_key = 1;
  bool weighted = true;  // index heads have weights
};

Tensor device_frequencies(const std::vector<float>& host, Memory& memory) {
  const Tensor t = memory.make(DType::f32, {static_cast<int64_t>(host.size())}, "rope");
  copy_bytes(t.raw(), kCuda, host.data(), {}, t.bytes(), {});
  return t;
}

class GlmSubject final : public Subject {
 public:
  explicit GlmSubject(Memory& memory) : config_(config()), layer_(store, "model.layers.0.", config_, true, false) {
    index_heads = config_.indexer.num_heads, index_dims = config_.indexer.head_dim, k = config_.indexer.k;
    inv_freq_ = device_frequencies(rope_inverse_frequencies(config_.attention.rope_theta, config_.attention.rope_dim), memory);
  }
  SequenceNeeds needs() const override { return {}; }
  Shape shape(int64_t tokens) const override { return {tokens, config_.attention.hidden_size}; }
  void forward(Context& ctx, Pass pass, const Tensor& x, const Tensor& y) override { layer_.forward(ctx, pass, 0, x, y, inv_freq_, use_); }
  void backward(Context& ctx, const Tensor& d) override { layer_.backward(ctx, 0, d, inv_freq_, use_); }
  Tensor visible_keys(const PackedSequence& s) const override { return s.key_end; }

 private:
  static GlmConfig config() {
    nlohmann::json c = read_hf_config("configs/models/glm-5.1.json");
    c["num_hidden_layers"] = 1;
    c["first_k_dense_replace"] = 0;
    c["n_routed_experts"] = 8;
    for (const char* list : {"mlp_layer_types", "indexer_types", "layer_types"}) c.erase(list);
    return parse_glm_config(c, "configs/models/glm-5.1.json");
  }
  GlmConfig config_;
  GlmLayer layer_;
  GlmLayer::Saved use_;
  Tensor inv_freq_;
};

class V4Subject final : public Subject {
 public:
  explicit V4Subject(Memory& memory) : config_(config()), layer_(store, "model.layers.0.", config_, Compression::selected, 4, false) {
    index_heads = config_.index_heads, index_dims = config_.index_dim, k = config_.index_k, tokens_per_key = 4;
    rope_.compressed = device_frequencies(yarn_inverse_frequencies(config_.compressed_rope_theta, config_.rope_dim, config_.yarn), memory);
  }
  SequenceNeeds needs() const override { return {0, {4}, config_.window - 1}; }
  Shape shape(int64_t tokens) const override { return {tokens, config_.hyper.streams, config_.hidden_size}; }
  void forward(Context& ctx, Pass pass, const Tensor& x, const Tensor& y) override { layer_.forward(ctx, pass, 0, x, y, rope_, use_); }
  void backward(Context& ctx, const Tensor& d) override { layer_.backward(ctx, 0, d, rope_, use_); }
  Tensor visible_keys(const PackedSequence& s) const override { return s.compressed[0].end; }

 private:
  static V4Config config() {
    nlohmann::json c = read_hf_config("configs/models/deepseek-v4-flash.json");
    c["n_routed_experts"] = 8;
    return parse_v4_config(c, "configs/models/deepseek-v4-flash.json");
  }
  V4Config config_;
  V4Layer layer_;
  V4Layer::Saved use_;
  V4Rope rope_;
};

class QwenSubject final : public Subject {
 public:
  explicit QwenSubject(Memory& memory) : config_(config()), layer_(store, "model.layers.0.", config_, true, -1) {
    const BlockIndexerConfig& c = config_.attention.indexer;
    index_heads = c.num_heads, index_dims = c.head_dim, k = c.k, tokens_per_key = c.ratio, weighted = false;
    inv_freq_ = device_frequencies(rope_inverse_frequencies(config_.rope_theta, config_.attention.rope_dim), memory);
  }
  SequenceNeeds needs() const override { return {0, {config_.attention.indexer.ratio}, 0}; }
  Shape shape(int64_t tokens) const override { return {tokens, config_.residual.streams, config_.hidden_size}; }
  void forward(Context& ctx, Pass pass, const Tensor& x, const Tensor& y) override { layer_.forward(ctx, pass, 0, x, y, inv_freq_, use_); }
  void backward(Context& ctx, const Tensor& d) override { layer_.backward(ctx, 0, d, inv_freq_, use_); }
  Tensor visible_keys(const PackedSequence& s) const override { return s.compressed[0].end; }

 private:
  static QwenConfig config() {
    nlohmann::json c = read_hf_config("configs/models/qwen3.8-flash-next.json");
    c["text_config"]["num_experts"] = 16;
    return parse_qwen_config(c, "configs/models/qwen3.8-flash-next.json");
  }
  QwenConfig config_;
  QwenLayer layer_;
  QwenLayer::Saved use_;
  Tensor inv_freq_;
};

std::unique_ptr<Subject> make_subject(const std::string& family, Memory& memory) {
  if (family == "deepseek_v4") return std::make_unique<V4Subject>(memory);
  if (family == "qwen") return std::make_unique<QwenSubject>(memory);
  return std::make_unique<GlmSubject>(memory);
}

class LayerProblem {
 public:
  LayerProblem(const std::string& family, int64_t tokens, int ranks)
      : group_(0, ranks), ring_(group_, ContextLayout(tokens, ranks, ContextOrder::zigzag), kCuda), subject_(make_subject(family, memory_)),
        saved_(kCuda, "saved activations"), scratch_(kCuda, "workspace"), inputs_(kCuda, "inputs"), selections_(kCuda, 1) {
    subject_->store.allocate(kCuda, DType::bf16);
    subject_->store.initialize(1, 0.02f);
    const HostSequence host = make_host_sequence(std::vector<int32_t>(static_cast<size_t>(tokens)), std::vector<int32_t>(static_cast<size_t>(tokens), -1),
                                                 {0, static_cast<int32_t>(tokens)});
    sequence_ = to_device(host, ring_.layout(), 0, subject_->needs(), inputs_, {});
    const Tensor visible = subject_->visible_keys(sequence_);
    visible_.resize(static_cast<size_t>(visible.size(0)));
    copy_bytes(visible_.data(), {}, visible.raw(), kCuda, visible.bytes(), {});
    sums_ = {memory_.make(DType::f64, {1}, "losses"), memory_.make(DType::f64, {1}, "losses"), memory_.make(DType::f64, {1}, "losses"), memory_.make(DType::f64, {1}, "losses")};
    for (const Tensor& t : {sums_.lm, sums_.index, sums_.balance, sums_.mtp}) zero(t, {});
    ctx_.device = kCuda;
    ctx_.activation = DType::bf16;
    ctx_.sequence = &sequence_;
    ctx_.scales.index = 1e-3 / static_cast<double>(tokens);
    ctx_.sums = &sums_;
    ctx_.selections = &selections_;
    ctx_.ring = ranks > 1 ? &ring_ : nullptr;
    ctx_.saved = &saved_;
    ctx_.scratch = &scratch_;
    const Shape shape = subject_->shape(local_tokens());
    x_ = memory_.normal(shape, 2);
    y_ = memory_.make(DType::bf16, shape, "output");
    dy_ = memory_.normal(shape, 3);
    synchronize(kCuda, {});
  }

  int64_t local_tokens() const { return sequence_.num_tokens(); }
  const Subject& subject() const { return *subject_; }
  const std::vector<int32_t>& visible() const { return visible_; }
  const PackedSequence& sequence() const { return sequence_; }
  SelectionStore& selections() { return selections_; }
  Selection selection() { return selections_.get(0, {}); }
  const Tensor& output() const { return y_; }

  void begin() { selections_.begin(); }
  void forward(Pass pass) {
    saved_.reset();
    subject_->forward(ctx_, pass, x_, y_);
  }
  void backward() {
    copy(dx_.defined() ? dx_ : dx_ = memory_.make(DType::bf16, dy_.shape(), "gradient"), dy_, {});
    subject_->backward(ctx_, dx_);
  }
  double index_loss() const {
    double sum = 0;
    copy_bytes(&sum, {}, sums_.index.raw(), kCuda, 8, {});
    synchronize(kCuda, {});
    return sum;
  }

 private:
  Memory memory_;
  Loopback group_;
  Ring ring_;
  std::unique_ptr<Subject> subject_;
  Arena saved_, scratch_, inputs_;
  SelectionStore selections_;
  PackedSequence sequence_;
  std::vector<int32_t> visible_;
  LossSums sums_;
  Context ctx_;
  Tensor x_, y_, dy_, dx_;
};

// Every selected key is visible, selections ascend and hold min(k, visible) keys; on sampled queries.
std::string check_selection(const Selection& s, const std::vector<int32_t>& visible) {
  const int64_t k = s.indices.size(1);
  for (const size_t t : {size_t{0}, size_t{5}, visible.size() / 2, visible.size() - 1}) {
    std::vector<int32_t> row(static_cast<size_t>(k));
    int32_t count = 0;
    copy_bytes(row.data(), {}, s.indices.i32() + static_cast<int64_t>(t) * k, kCuda, row.size() * 4, {});
    copy_bytes(&count, {}, s.counts.i32() + t, kCuda, 4, {});
    synchronize(kCuda, {});
    if (count != std::min<int64_t>(k, visible[t])) return concat("WRONG: query ", t, " has ", count, " keys");
    for (int32_t j = 0; j < count; ++j)
      if (row[static_cast<size_t>(j)] < 0 || row[static_cast<size_t>(j)] >= visible[t] || (j && row[static_cast<size_t>(j)] <= row[static_cast<size_t>(j - 1)]))
        return concat("WRONG: query ", t, " slot ", j, " is ", row[static_cast<size_t>(j)]);
  }
  return "selections in order";
}

template <typename T>
std::vector<T> download(const Tensor& t) {
  std::vector<T> to(static_cast<size_t>(t.elements()));
  copy_bytes(to.data(), {}, t.raw(), kCuda, t.bytes(), {});
  synchronize(kCuda, {});
  return to;
}
template <typename T>
void upload(const Tensor& t, const std::vector<T>& from) {
  copy_bytes(t.raw(), kCuda, from.data(), {}, t.bytes(), {});
  synchronize(kCuda, {});
}

// How much of its choice a query has in common with the one before, on average over the later half of the queries.
std::string overlap_of(const Selection& s) {
  const std::vector<int32_t> ids = download<int32_t>(s.indices), counts = download<int32_t>(s.counts);
  const int64_t k = s.indices.size(1), queries = s.indices.size(0);
  double sum = 0;
  for (int64_t t = queries / 2; t < queries; ++t) {
    std::vector<int32_t> common;
    const auto row = [&](int64_t q) { return ids.begin() + q * k; };
    const auto end = [&](int64_t q) { return row(q) + counts[static_cast<size_t>(q)]; };
    std::set_intersection(row(t - 1), end(t - 1), row(t), end(t), std::back_inserter(common));
    sum += static_cast<double>(common.size()) / std::max(1, counts[static_cast<size_t>(t)]);
  }
  char text[64];
  std::snprintf(text, sizeof text, "neighbours share %.1f%%", 100 * sum / static_cast<double>(queries - queries / 2));
  return text;
}

// One key from each of k equal ranges of what a query sees; the part `overlap` of the ranges draws alike for 64 neighbours.
void choose_alike(const Selection& s, const std::vector<int32_t>& visible, double overlap) {
  const int64_t k = s.indices.size(1), queries = s.indices.size(0);
  std::vector<int32_t> ids(static_cast<size_t>(queries * k)), counts(static_cast<size_t>(queries));
  const Rng alike(8), apart(9);
  for (int64_t t = 0; t < queries; ++t) {
    const int64_t sees = visible[static_cast<size_t>(t)], keys = std::max<int64_t>(k, visible[static_cast<size_t>(t / 64 * 64)]);
    counts[static_cast<size_t>(t)] = static_cast<int32_t>(std::min(k, sees));
    for (int64_t j = 0; j < std::min(k, sees); ++j) {
      const int64_t begin = j * keys / k, width = (j + 1) * keys / k - begin;
      const bool shared = static_cast<double>(j * 37 % 100) < 100 * overlap;
      const uint64_t drawn = shared ? alike.below(static_cast<uint64_t>(t / 64 * k + j), static_cast<uint64_t>(width)) : apart.below(static_cast<uint64_t>(t * k + j), static_cast<uint64_t>(width));
      ids[static_cast<size_t>(t * k + j)] = static_cast<int32_t>(begin + static_cast<int64_t>(drawn));
    }
  }
  upload(s.indices, ids);
  upload(s.counts, counts);
}

// The ops of a profile by what they serve; those of no part that take a hundredth of the whole stand for themselves.
std::map<std::string, double> by_part(const std::map<std::string, double>& ops) {
  std::map<std::string, double> parts;
  double all = 0;
  for (const auto& [op, ms] : ops) all += ms;
  for (const auto& [op, ms] : ops) {
    const char* part = op.starts_with("flash_topk") ? "selection" : op.starts_with("sparse_attention_f") || op.starts_with("block_attention_f") ? "attention forward" : op.starts_with("sparse_attention_b") || op.starts_with("block_attention_b") ? "attention backward"
                       : op.starts_with("index_loss") ? "index loss" : op.starts_with("grouped") ? "experts" : op.starts_with("hc_") ? "hyper-connections" : op.starts_with("streams_") ? "gated residual" : op.starts_with("compressor") ? "compressor" : op == "gemm" ? "projections" : ms >= 0.01 * all ? op.c_str() : "the rest";
    parts[part] += ms;
  }
  return parts;
}

}  // namespace

std::vector<Row> layer_benchmark(const std::string& family, int64_t tokens, int ranks, double overlap) {
  LayerProblem p(family, tokens, ranks);
  std::vector<Row> rows;
  const auto row = [&](const std::string& name, double ms, const std::string& check = "") { rows.push_back({name, check, ms}); };
  // HyScale.
  double forward = 0, recompute = 0, backward = 0;
  std::map<std::string, double> ops;
  for (int run = 0; run < 2; ++run) {  // the first one grows the arenas
    p.begin();
    ops.clear();
    const auto phase = [&](double& ms, const std::function<void()>& work) {
      ms = 0;
      for (const auto& [op, part] : profile(work)) ops[op] += part, ms += part;
    };
    phase(forward, [&] { p.forward(Pass::forward); });
    phase(recompute, [&] { p.forward(Pass::recompute); });
    phase(backward, [&] { p.backward(); });
  }
  const std::string checked = concat(check_selection(p.selection(), p.visible()), ", ", overlap_of(p.selection()));
  const double ours = forward + recompute + backward;
  row("forward", forward, checked);
  row("recompute", recompute);
  row("backward", backward, std::isfinite(p.index_loss()) ? "index loss is finite" : "WRONG: index loss");
  row("HyScale: forward + recompute + backward", ours);
  const std::map<std::string, double> parts = by_part(ops);
  for (const auto& [part, ms] : parts) row("  of which " + part, ms);

  // The table: selects for the same number of queries and keys, twice; the layer reads a given selection.
  const Subject& x = p.subject();
  Memory memory;
  TableSelect t{memory.normal({p.local_tokens(), x.index_heads, x.index_dims}, 5), memory.normal({tokens / x.tokens_per_key, x.index_dims}, 6),
                x.weighted ? memory.uniform({p.local_tokens(), x.index_heads}, 7, -0.05f, 0.15f) : Tensor(), x.visible_keys(p.sequence()), p.visible(),
                memory.make(DType::i32, {p.local_tokens(), x.k}, "selection"), 64, {}, {}, {}};
  make_table(t, memory);
  const double select = median_ms([&] { table_select(t); }, 1);
  const Selection given{memory.make(DType::i32, {p.local_tokens(), x.k}, "selection"), memory.make(DType::i32, {p.local_tokens()}, "selection")};
  copy(given.indices, p.selection().indices, {});
  copy(given.counts, p.selection().counts, {});
  p.selections().fix(0, given);
  std::map<std::string, double> given_ops;
  const auto layer_on_given = [&] {
    double layer = 0;
    for (int run = 0; run < 2; ++run) {
      layer = 0;
      given_ops.clear();
      for (const std::function<void()>& work : {std::function<void()>([&] { p.forward(Pass::forward); }), {[&] { p.forward(Pass::recompute); }}, {[&] { p.backward(); }}})
        for (const auto& [op, ms] : profile(work)) given_ops[op] += ms, layer += ms;
    }
    return layer;
  };
  const auto compare = [&](const std::string& what, double ours_ms, double table_ms) {
    char text[64];
    std::snprintf(text, sizeof text, "HyScale is %.2f times as fast", table_ms / ours_ms);
    row(what, table_ms, text);
  };
  const double layer = layer_on_given();
  row("table: selection, once", select);
  row("table: the layer without selection", layer);
  compare("table: forward + recompute + backward", ours, layer + 2 * select);

  // Neighbours that share.
  choose_alike(given, p.visible(), overlap);
  const std::string alike = concat(check_selection(given, p.visible()), ", ", overlap_of(given));
  const double shared = layer_on_given(), ours_shared = shared + parts.at("selection");
  row("shared choices: the layer without selection", shared, alike);
  for (const auto& [part, ms] : by_part(given_ops))
    if (part.starts_with("attention") || part == "index loss") row("  of which " + part, ms);
  row("shared choices: HyScale", ours_shared, "selection as above");
  compare("shared choices: table", ours_shared, shared + 2 * select);
  return rows;
}

}  // namespace hyscale::bench
