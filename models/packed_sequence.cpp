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

struct HostEntries {
  std::vector<int32_t> begin, end, first_token, positions;
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

PackedSequence to_device(const HostSequence& s, const std::vector<TokenRange>& segments, const SequenceNeeds& needs, Arena& arena, Stream stream) {
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
  if (!needs.compression_ratios.empty() && (segments.size() != 1 || segments[0].size() != static_cast<int64_t>(s.tokens.size())))
    throw UserError("parallel.context: models with compressed entries need the whole sequence on each rank; set it to 1");
  for (int64_t ratio : needs.compression_ratios) {
    const HostEntries e = make_entries(s, ratio);
    p.compressed.push_back({ratio, upload(e.begin), upload(e.end), upload(e.first_token), upload(e.positions), e.most_visible});
  }

  std::vector<int32_t> starts, ids, tokens;
  int64_t local = 0;
  for (const TokenRange& r : segments) {
    for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) {
      const int64_t begin = std::max<int64_t>(r.begin, s.document_starts[d]), end = std::min<int64_t>(r.end, s.document_starts[d + 1]);
      if (begin >= end) continue;
      starts.push_back(static_cast<int32_t>(local + begin - r.begin));
      ids.push_back(static_cast<int32_t>(d));
    }
    local += r.size();
  }
  starts.push_back(static_cast<int32_t>(local));
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
