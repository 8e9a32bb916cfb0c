#include "models/packed_sequence.h"

#include <algorithm>

namespace hyscale {
namespace {

// The label one place further, where there is a label here.
std::vector<int32_t> further_labels(const std::vector<int32_t>& labels) {
  std::vector<int32_t> out(labels.size(), -1);
  for (size_t t = 0; t + 1 < labels.size(); ++t)
    if (labels[t] >= 0) out[t] = labels[t + 1];
  return out;
}

// Entries of the whole sequence, in the order of their last tokens.
struct HostEntries {
  std::vector<int32_t> begin, end;             // [S]
  std::vector<int32_t> first_token, positions; // [all]
  int64_t most_visible = 0;
};

HostEntries make_entries(const HostSequence& s, int64_t ratio) {
  HostEntries e;
  e.begin.resize(s.tokens.size());
  e.end.resize(s.tokens.size());
  for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) {
    const int32_t first = s.document_starts[d], last = s.document_starts[d + 1], entry = static_cast<int32_t>(e.positions.size());
    for (int32_t t = first; t < last; ++t) {
      const int32_t visible = static_cast<int32_t>((t - first + 1) / ratio);
      e.begin[static_cast<size_t>(t)] = entry;
      e.end[static_cast<size_t>(t)] = entry + visible;
      e.most_visible = std::max<int64_t>(e.most_visible, visible);
    }
    for (int64_t i = 0; i < (last - first) / ratio; ++i) {
      e.first_token.push_back(static_cast<int32_t>(first + i * ratio));
      e.positions.push_back(static_cast<int32_t>(i * ratio));
    }
  }
  return e;
}

// The entries whose last token lies in `tokens`.
TokenRange entries_of(const HostEntries& e, int64_t ratio, const TokenRange& tokens) {
  const auto first_at = [&](int64_t token) {
    return std::lower_bound(e.first_token.begin(), e.first_token.end(), token, [&](int32_t first, int64_t t) { return first + ratio - 1 < t; }) - e.first_token.begin();
  };
  return {first_at(tokens.begin), first_at(tokens.end)};
}

// Row of a token in the reach: segments' halos and tokens one after the other.
int64_t reach_row(const std::vector<TokenRange>& segments, const TokenReach& reach, size_t segment, int64_t token) {
  int64_t row = 0;
  for (size_t i = 0; i < segment; ++i) row += reach.pieces[i].halo_rows + reach.pieces[i].own_rows;
  return row + reach.pieces[segment].halo_rows + token - segments[segment].begin;
}

template <typename Upload>
TokenReach make_reach(const HostSequence& s, const ContextLayout& layout, int rank, int64_t width, const PackedSequence& p, Upload upload) {
  TokenReach reach{width, p.positions, p.key_begin, p.key_end, p.tokens, p.positions, {}};
  if (width == 0 || layout.size() == 1) return reach;
  std::vector<int32_t> positions, begin, end, tokens, history;
  for (const TokenRange& r : layout.segments(rank)) {
    const int64_t halo = r.size() > 0 ? std::min(width, r.begin) : 0, first_row = static_cast<int64_t>(positions.size());
    reach.pieces.push_back({halo, r.size()});
    for (int64_t t = r.begin - halo; t < r.end; ++t) {
      positions.push_back(s.positions[static_cast<size_t>(t)]);
      tokens.push_back(s.tokens[static_cast<size_t>(t)]);
      history.push_back(static_cast<int32_t>(std::min<int64_t>(positions.back(), t - (r.begin - halo))));
    }
    for (int64_t t = r.begin; t < r.end; ++t) {
      const int64_t here = first_row + halo + t - r.begin;
      end.push_back(static_cast<int32_t>(here + 1));
      begin.push_back(static_cast<int32_t>(std::max(first_row, here - s.positions[static_cast<size_t>(t)])));
    }
  }
  reach.positions = upload(positions);
  reach.begin = upload(begin);
  reach.end = upload(end);
  reach.tokens = upload(tokens);
  reach.history = upload(history);
  return reach;
}

template <typename Upload, typename UploadPart>
CompressedEntries make_compressed(const HostSequence& s, const ContextLayout& layout, int rank, int64_t ratio, const TokenReach& reach, Upload upload, UploadPart upload_part) {
  const HostEntries e = make_entries(s, ratio);
  CompressedEntries c;
  c.ratio = ratio;
  c.begin = upload_part(e.begin);
  c.end = upload_part(e.end);
  c.most_visible = e.most_visible;
  for (int r = 0; r < layout.size(); ++r) {
    c.shards.of_rank.emplace_back();
    for (const TokenRange& segment : layout.segments(r)) c.shards.of_rank.back().push_back(entries_of(e, ratio, segment));
  }
  const std::vector<TokenRange> segments = layout.segments(rank), &own = c.shards.of_rank[static_cast<size_t>(rank)];
  std::vector<int32_t> first_token, positions;
  for (size_t i = 0; i < own.size(); ++i)
    for (int64_t n = own[i].begin; n < own[i].end; ++n) {
      const int32_t token = e.first_token[static_cast<size_t>(n)];
      first_token.push_back(reach.pieces.empty() ? token : static_cast<int32_t>(reach_row(segments, reach, i, token)));
      positions.push_back(e.positions[static_cast<size_t>(n)]);
    }
  c.first_token = upload(first_token);
  c.all_first_tokens = layout.size() == 1 ? c.first_token : upload(e.first_token);
  c.positions = upload(positions);
  return c;
}

// Of a segment whose tokens are the local ones from `local` on; its runs begin at starts[first_run ..].
SegmentRuns runs_of_segment(const HostSequence& s, const TokenRange& segment, int64_t local, size_t first_run, const std::vector<int32_t>& starts) {
  if (segment.size() == 0) return {{local, local}, {local, local}, false};
  const int64_t end = local + segment.size();
  return {{local, first_run + 1 < starts.size() ? starts[first_run + 1] : end}, {starts.back(), end}, s.positions[static_cast<size_t>(segment.begin)] > 0};
}

}  // namespace

HostSequence make_host_sequence(std::vector<int32_t> tokens, std::vector<int32_t> labels, std::vector<int32_t> document_starts) {
  const size_t n = tokens.size();
  HYSCALE_CHECK(labels.size() == n && document_starts.size() >= 1 && document_starts.front() == 0 && document_starts.back() == static_cast<int32_t>(n),
                n, " tokens, ", labels.size(), " labels, ", document_starts.size(), " document starts");
  HostSequence s{std::move(tokens), std::move(labels), {}, {}, {}, std::move(document_starts)};
  s.positions.resize(n);
  s.key_begin.resize(n);
  s.key_end.resize(n);
  for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) {
    const int32_t first = s.document_starts[d], last = s.document_starts[d + 1];
    HYSCALE_CHECK(first <= last, "document ", d, " ends before it starts");
    for (int32_t t = first; t < last; ++t) {
      const size_t i = static_cast<size_t>(t);
      s.positions[i] = t - first;
      s.key_begin[i] = first;
      s.key_end[i] = t + 1;
    }
  }
  return s;
}

PackedSequence to_device(const HostSequence& s, const SequenceNeeds& needs, Arena& arena, Stream stream) {
  return to_device(s, ContextLayout(static_cast<int64_t>(s.tokens.size()), 1, ContextOrder::contiguous), 0, needs, arena, stream);
}

PackedSequence to_device(const HostSequence& s, const ContextLayout& layout, int rank, const SequenceNeeds& needs, Arena& arena, Stream stream) {
  const std::vector<TokenRange> segments = layout.segments(rank);
  const auto upload = [&](const std::vector<int32_t>& values) {
    const Tensor t = arena.allocate(DType::i32, {static_cast<int64_t>(values.size())});
    copy_bytes(t.raw(), t.device(), values.data(), Device{}, values.size() * sizeof(int32_t), stream);
    return t;
  };
  const auto upload_part = [&](const std::vector<int32_t>& whole) {
    std::vector<int32_t> values;
    for (const TokenRange& r : segments) values.insert(values.end(), whole.begin() + r.begin, whole.begin() + r.end);
    return upload(values);
  };
  PackedSequence p;
  p.tokens = upload_part(s.tokens);
  p.labels = upload_part(s.labels);
  p.positions = upload_part(s.positions);
  p.key_begin = upload_part(s.key_begin);
  p.key_end = upload_part(s.key_end);
  std::vector<int32_t> labels = s.labels;
  for (int d = 0; d < needs.mtp_depths; ++d) p.mtp_labels.push_back(upload_part(labels = further_labels(labels)));
  p.reach = make_reach(s, layout, rank, needs.reach, p, upload);
  for (int64_t ratio : needs.compression_ratios) p.compressed.push_back(make_compressed(s, layout, rank, ratio, p.reach, upload, upload_part));

  std::vector<int32_t> starts, ids, tokens, before, behind;
  int64_t local = 0;
  for (const TokenRange& r : segments) {
    const size_t first_run = starts.size();
    for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) {
      const int64_t begin = std::max<int64_t>(r.begin, s.document_starts[d]), end = std::min<int64_t>(r.end, s.document_starts[d + 1]);
      if (begin >= end) continue;
      starts.push_back(static_cast<int32_t>(local + begin - r.begin));
      ids.push_back(static_cast<int32_t>(d));
    }
    p.segment_runs.push_back(runs_of_segment(s, r, local, first_run, starts));
    before.resize(starts.size(), -1);
    behind.resize(starts.size(), -1);
    if (r.size() > 0) behind.back() = static_cast<int32_t>(p.segment_runs.size() - 1);
    if (p.segment_runs.back().continues) before[first_run] = behind.back();
    local += r.size();
  }
  starts.push_back(static_cast<int32_t>(local));
  if (layout.size() > 1) p.segment_before = upload(before), p.segment_behind = upload(behind);
  for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) tokens.push_back(s.document_starts[d + 1] - s.document_starts[d]);
  p.document_starts = upload(starts);
  p.document_ids = upload(ids);
  p.document_tokens = upload(tokens);
  return p;
}

int64_t num_labels(const HostSequence& s) {
  int64_t n = 0;
  for (int32_t label : s.labels) n += label >= 0;
  return n;
}

int64_t num_mtp_labels(const HostSequence& s, int depths) {
  std::vector<int32_t> labels = s.labels;
  int64_t n = 0;
  for (int d = 0; d < depths; ++d) {
    labels = further_labels(labels);
    for (int32_t label : labels) n += label >= 0;
  }
  return n;
}

int64_t num_documents(const HostSequence& s) {
  int64_t n = 0;
  for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) n += s.document_starts[d] < s.document_starts[d + 1];
  return n;
}

}  // namespace hyscale
