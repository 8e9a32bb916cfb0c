#include "optim/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/muon/muon.h"

namespace hyscale {
namespace {

// Matrices are orthogonalised together as long as that takes no more working memory than this.
constexpr size_t kBatchBytes = size_t{256} << 20;

size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }

// A run of a flat tensor that starts at element `begin` of the flat.
Tensor run(const Tensor& tensor, int64_t begin, int64_t from, int64_t to) { return tensor.slice(0, from - begin, to - begin); }

}  // namespace

std::vector<NewtonSchulzStep> quintic_steps(int64_t count, int64_t polish) {
  std::vector<NewtonSchulzStep> steps(static_cast<size_t>(count), {3.4445f, -4.7750f, 2.0315f});
  steps.resize(static_cast<size_t>(count + polish), {2, -1.5f, 0.5f});
  return steps;
}

std::vector<NewtonSchulzStep> polar_express_steps(int64_t count) {
  constexpr double kTable[][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},  {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                  {3.9486908534822946, -2.908902115962949, 0.5518191394370137}, {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                  {2.300652019954817, -1.6689039845747493, 0.4188073119525673}, {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                  {1.8750014808534479, -1.2500016453999487, 0.3750001645474248}, {1.875, -1.25, 0.375}};
  // All but the last read x / 1.01: rounding must not lift a singular value out of the range that they were made for.
  constexpr double kMargin = 1.01;
  std::vector<NewtonSchulzStep> steps;
  for (int64_t i = 0; i < count; ++i) {
    const auto& [a, b, c] = kTable[std::min<size_t>(static_cast<size_t>(i), std::size(kTable) - 1)];
    const double m = i + 1 < static_cast<int64_t>(std::size(kTable)) ? kMargin : 1;
    steps.push_back({static_cast<float>(a / m), static_cast<float>(b / std::pow(m, 3)), static_cast<float>(c / std::pow(m, 5))});
  }
  return steps;
}

std::vector<MatrixBlock> matrix_blocks(const Parameter& p, int64_t at, bool split_heads) {
  std::vector<MatrixBlock> blocks;
  const int64_t head = std::accumulate(p.head_rows.begin(), p.head_rows.end(), int64_t{0});
  for (const HfTensor& piece : p.hf) {
    if (!p.holds(piece)) continue;
    const int64_t begin = at + piece.offset - p.first_element, rows = piece.shape[0], columns = piece.shape[1];
    if (!split_heads || head == 0) {
      blocks.push_back({begin, rows, columns});
      continue;
    }
    HYSCALE_CHECK(rows % head == 0, piece.name, " has ", rows, " rows; heads have ", head);
    int64_t first_row = 0;
    for (int64_t part : p.head_rows) {
      for (int64_t row = first_row; row < rows; row += head) blocks.push_back({begin + row * columns, part, columns});
      first_row += part;
    }
  }
  return blocks;
}

ShardReach shard_reach(const std::vector<MatrixBlock>& blocks, int64_t shard_begin, int64_t shard_end) {
  ShardReach reach{shard_begin, shard_end};
  for (const MatrixBlock& b : blocks) {
    if (b.begin < shard_begin && b.end() > shard_begin) reach.begin = b.begin;
    if (b.begin < shard_end && b.end() > shard_end) reach.end = b.end();
  }
  return reach;
}

Muon::Muon(const ParameterStore& store, std::vector<Piece> pieces, const std::function<bool(const Parameter&)>& trains, const MuonOptions& options, Device device)
    : options_(options), device_(device), dtype_(DType::f32), pieces_(std::move(pieces)) {
  for (const ParameterStore::Flat& flat : store.flats()) {
    if (flat.dtype == DType::bf16) dtype_ = DType::bf16;
    std::vector<MatrixBlock> blocks;
    for (const auto& [p, at] : flat.parameters)
      if (trains(*p)) std::ranges::copy(matrix_blocks(*p, at, options_.split_heads), std::back_inserter(blocks));
    if (blocks.empty()) continue;
    Work& work = work_.emplace_back();
    work.flat = &flat;
    plan_exchange(work, blocks);
  }
  int64_t most_sent = 0, most_received = 0;
  size_t most_bytes = 0;
  for (Work& work : work_) {
    for (const auto& [p, at] : work.flat->parameters)
      for (const Piece& piece : pieces_)
        if (piece.shard.parameter == p) add_batches(work, matrix_blocks(*p, at, options_.split_heads), piece, at + piece.shard.first_element - p->first_element);
    most_sent = std::max(most_sent, std::accumulate(work.send_counts.begin(), work.send_counts.end(), int64_t{0}));
    most_received = std::max(most_received, work.reach.end - work.reach.begin - work.flat->shard());
    for (const Batch& batch : work.batches) most_bytes = std::max(most_bytes, batch_bytes(batch));
  }
  const size_t sent_bytes = padded(static_cast<size_t>(most_sent) * 4);
  exchange_memory_ = Buffer(device, sent_bytes + static_cast<size_t>(most_received) * 4, "parts of matrices");
  char* memory = static_cast<char*>(exchange_memory_.data());
  sent_ = Tensor(memory, DType::f32, device, {most_sent});
  received_ = Tensor(memory ? memory + sent_bytes : nullptr, DType::f32, device, {most_received});
  batch_memory_ = Buffer(device, most_bytes, "orthogonalisation");
}

// Every rank knows every shard, so it knows what the others lack.
void Muon::plan_exchange(Work& work, const std::vector<MatrixBlock>& blocks) const {
  const ParameterStore::Flat& flat = *work.flat;
  const int64_t begin = work.shard_begin(), end = work.shard_end();
  work.reach = shard_reach(blocks, begin, end);
  for (int64_t r = 0; r < flat.size; ++r) {
    const int64_t other_begin = r * flat.shard(), other_end = other_begin + flat.shard();
    const ShardReach other = shard_reach(blocks, other_begin, other_end);
    // What lies in both ranges; nothing for itself.
    const auto common = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
      const int64_t from = std::max(a, c), to = std::min(b, d);
      return from < to && r != flat.rank ? std::pair{from, to} : std::pair{a, a};
    };
    const auto send = common(begin, end, other.begin, other.end), receive = common(other_begin, other_end, work.reach.begin, work.reach.end);
    work.sends.push_back(send);
    work.send_counts.push_back(send.second - send.first);
    work.receive_counts.push_back(receive.second - receive.first);
    work.exchanges = work.exchanges || other.begin != other_begin || other.end != other_end;
  }
}

void Muon::add_batches(Work& work, const std::vector<MatrixBlock>& blocks, const Piece& piece, int64_t piece_begin) const {
  bool open = false;  // the last batch may grow
  for (const MatrixBlock& b : blocks) {
    if (b.end() <= work.shard_begin() || b.begin >= work.shard_end()) continue;
    const bool cut = b.begin < work.shard_begin() || b.end() > work.shard_end();
    if (open && !cut) {
      Batch& last = work.batches.back();
      const MatrixBlock &front = last.blocks.front(), &back = last.blocks.back();
      const bool regular = last.blocks.size() == 1 ? b.begin > front.begin : b.begin - back.begin == back.begin - last.blocks[last.blocks.size() - 2].begin;
      const bool fits = batch_bytes(last) / last.blocks.size() * (last.blocks.size() + 1) <= kBatchBytes;
      if (front.rows == b.rows && front.columns == b.columns && regular && fits) {
        last.blocks.push_back(b);
        continue;
      }
    }
    work.batches.push_back({{b}, &piece, piece_begin, cut});
    open = !cut;
  }
}

size_t Muon::batch_bytes(const Batch& batch) const {
  const Shape shape{static_cast<int64_t>(batch.blocks.size()), batch.blocks[0].rows, batch.blocks[0].columns};
  const Tensor g(nullptr, DType::f32, device_, shape), x(nullptr, dtype_, device_, shape);
  return padded(x.bytes()) + padded(batch.cut ? g.bytes() : 0) + newton_schulz_workspace_bytes({g, x, options_.steps, {}, {}});
}

void Muon::update(double lr, Stream stream) {
  for (const Piece& p : pieces_) muon_momentum({p.momentum, p.shard.grad, p.gate, static_cast<float>(options_.momentum), stream});
  for (const Work& work : work_) {
    if (work.exchanges) exchange(work, stream);
    for (const Batch& batch : work.batches) update(work, batch, lr, stream);
  }
}

void Muon::exchange(const Work& work, Stream stream) {
  int64_t at = 0;
  for (const auto& [from, to] : work.sends) {
    copy(sent_.slice(0, at, at + to - from), run(work.flat->own_gradients, work.shard_begin(), from, to), stream);
    at += to - from;
  }
  const int64_t lacking = work.reach.end - work.reach.begin - work.flat->shard();
  work.flat->ranks->all_to_all(sent_.slice(0, 0, at), work.send_counts, received_.slice(0, 0, lacking), work.receive_counts, stream);
}

// f32 [B, rows, columns]: in the gradients themselves, or put together where the shard has only a part.
Tensor Muon::gradients(const Work& work, const Batch& batch, Stream stream) {
  const MatrixBlock& first = batch.blocks[0];
  const Shape shape{static_cast<int64_t>(batch.blocks.size()), first.rows, first.columns};
  const Tensor& own = work.flat->own_gradients;
  if (!batch.cut) {
    const int64_t step = batch.blocks.size() > 1 ? batch.blocks[1].begin - first.begin : first.rows * first.columns;
    return Tensor(run(own, work.shard_begin(), first.begin, first.end()).raw(), DType::f32, device_, shape, {step, first.columns, 1});
  }
  const Tensor whole(batch_memory_.data(), DType::f32, device_, {first.rows * first.columns});
  const int64_t head = work.shard_begin() - work.reach.begin;
  const auto fill = [&](const Tensor& source, int64_t source_begin) {
    const int64_t from = std::max(first.begin, source_begin), to = std::min(first.end(), source_begin + source.size(0));
    if (from < to) copy(run(whole, first.begin, from, to), run(source, source_begin, from, to), stream);
  };
  fill(received_.slice(0, 0, head), work.reach.begin);
  fill(own, work.shard_begin());
  fill(received_.slice(0, head, head + work.reach.end - work.shard_end()), work.shard_end());
  return whole.view(shape);
}

void Muon::update(const Work& work, const Batch& batch, double lr, Stream stream) {
  const Tensor g = gradients(work, batch, stream);
  char* memory = static_cast<char*>(batch_memory_.data());
  const size_t before_x = padded(batch.cut ? static_cast<size_t>(g.elements()) * 4 : 0);
  const Tensor x(memory ? memory + before_x : nullptr, dtype_, device_, g.shape());
  const size_t before_space = before_x + padded(x.bytes());
  const Tensor space(memory ? memory + before_space : nullptr, DType::u8, device_, {static_cast<int64_t>(batch_memory_.bytes() - before_space)});
  newton_schulz({g, x, options_.steps, space, stream});
  const Piece& p = *batch.piece;
  const double scale = options_.update_rms * std::sqrt(static_cast<double>(std::max(g.size(1), g.size(2))));
  for (size_t i = 0; i < batch.blocks.size(); ++i) {
    const MatrixBlock& b = batch.blocks[i];
    const int64_t from = std::max(b.begin, batch.piece_begin), to = std::min(b.end(), batch.piece_begin + p.master.elements());
    const Tensor direction = x.select(0, static_cast<int64_t>(i)).view({-1});
    muon_apply({run(p.master, batch.piece_begin, from, to), run(direction, b.begin, from, to), run(p.shard.value, batch.piece_begin, from, to), p.gate,
                static_cast<float>(lr * p.lr_scale), static_cast<float>(scale), static_cast<float>(p.weight_decay), stream});
  }
}

}  // namespace hyscale
