#include "train/rates.h"

#include <fmt/format.h>

#include <cctype>
#include <set>

namespace hyscale {

double document_flops(const ForwardFlops& f, Stage stage, int64_t tokens) {
  const double per_token = stage == Stage::warmup ? f.linear + f.dense_attention + 3 * f.selector : 3 * (f.linear + f.attention) + f.selector;
  return per_token * static_cast<double>(tokens);
}

double FlopCounter::sequence(const HostSequence& s, Stage stage) {
  double flops = 0;
  for (size_t d = 0; d + 1 < s.document_starts.size(); ++d) {
    const int64_t tokens = s.document_starts[d + 1] - s.document_starts[d];
    if (tokens == 0) continue;
    const auto [entry, is_new] = forward_.try_emplace(tokens);
    if (is_new) entry->second = model_.forward_flops(tokens);
    flops += document_flops(entry->second, stage, tokens);
  }
  return flops;
}

std::optional<double> peak_flops(const std::string& name) {
  std::set<std::string> words;
  std::string word;
  for (const char c : name + " ") {
    if (std::isalnum(static_cast<unsigned char>(c))) word += c;
    else words.insert(std::exchange(word, ""));
  }
  for (const char* slower : {"PCIe", "NVL", "MIG"})
    if (words.count(slower)) return std::nullopt;
  for (const auto& [gpu, flops] : {std::pair{"H20", 148e12}, {"H800", 989e12}, {"H100", 989e12}, {"H200", 989e12}})
    if (words.count(gpu)) return flops;
  return std::nullopt;
}

std::optional<double> model_flops_utilization(double flops, double seconds, int ranks, std::optional<double> peak) {
  if (!peak || !(seconds > 0)) return std::nullopt;
  return flops / (seconds * ranks * *peak);
}

std::string mfu_text(std::optional<double> mfu) { return mfu ? fmt::format("{:.1f}%", 100 * *mfu) : "n/a"; }

}  // namespace hyscale
