#include "models/packed_sequence.h"

namespace hyscale {

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

PackedSequence to_device(const HostSequence& s, Arena& arena, Stream stream) {
  const auto upload = [&](const std::vector<int32_t>& values) {
    const Tensor t = arena.allocate(DType::i32, {static_cast<int64_t>(values.size())});
    copy_bytes(t.raw(), t.device(), values.data(), Device{}, values.size() * sizeof(int32_t), stream);
    return t;
  };
  PackedSequence p;
  p.tokens = upload(s.tokens);
  p.labels = upload(s.labels);
  p.positions = upload(s.positions);
  p.key_begin = upload(s.key_begin);
  p.key_end = upload(s.key_end);
  p.document_starts = upload(s.document_starts);
  p.num_labels = num_labels(s);
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
    for (size_t t = 0; t < labels.size(); ++t) labels[t] = labels[t] < 0 || t + 1 == labels.size() ? -1 : labels[t + 1];
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
