#include "train/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace hyscale {
namespace {

// Fractions of the dense bf16 peak (989 TFLOP/s) that an H200 sustained, docs/benchmarks.md. On a GPU with less peak and as
// much memory bandwidth (H20) the parts that memory holds back do better than this.
constexpr double kProducts = 687.0 / 989;            // cuBLAS over 0.3 s
constexpr double kFlashTopK = 489.0 / 989;           // 1M keys
constexpr double kTable = 87.0 / 989;                // 1M keys
constexpr double kAttentionForward = 462.0 / 989;    // random ids, 1M rows
constexpr double kAttentionBackward = 172.0 / 989;   // the same
// Backward of latent attention over forward: (3 Dk + 2 Dv) / (Dk + Dv) with 576 and 512.
constexpr double kBackwardWork = (3 * 576.0 + 2 * 512) / (576 + 512);
// The index loss as a share of attention backward.
constexpr double kIndexLoss = 0.35;

const Cluster kKnown[] = {{"h20", 148e12, 96e9, 450e9, 50e9}, {"h800", 989e12, 80e9, 200e9, 50e9}, {"h100", 989e12, 80e9, 450e9, 50e9}, {"h200", 989e12, 141e9, 450e9, 50e9}};

// Transfers of a group run over the host's links as far as the group lies inside a host.
double transfer_seconds(double bytes, int64_t group, const Cluster& c) {
  return bytes / (group <= c.gpus_per_host ? c.link_bytes_per_second : c.network_bytes_per_second);
}

}  // namespace

Cluster parse_cluster(const std::string& text) {
  const size_t x = text.rfind('x');
  const std::string kind = text.substr(0, x == std::string::npos ? text.size() : x);
  for (const Cluster& known : kKnown) {
    if (known.name != kind || x == std::string::npos) continue;
    Cluster c = known;
    const char *begin = text.data() + x + 1, *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, c.gpus);
    if (error != std::errc() || stop != end || c.gpus < 1) break;
    c.name = text;
    return c;
  }
  throw UserError(concat("--cluster ", text, ": expected KINDxCOUNT with KIND one of h20, h800, h100, h200, as in h20x512"));
}

StepEstimate estimate_step(const Plan& p, const Config& c, const Cluster& cluster, Selecting selecting) {
  const int64_t ranks = c.parallel.data * c.parallel.context;
  if (ranks != cluster.gpus)
    throw UserError(concat("--cluster ", cluster.name, " has ", cluster.gpus, " GPUs, but parallel.data ", c.parallel.data, " x parallel.context ", c.parallel.context, " = ", ranks));
  const double tokens = static_cast<double>(c.data.sequence_tokens) * static_cast<double>(c.train.micro_batches) / static_cast<double>(ranks);
  const bool recompute = c.train.recompute == "layer", table = selecting == Selecting::table;
  const double peak = cluster.peak_flops;
  StepEstimate e;
  e.products = tokens * p.forward.linear * (recompute ? 4 : 3) / (kProducts * peak);
  e.selector = tokens * p.forward.selector * (table && recompute ? 2 : 1) / ((table ? kTable : kFlashTopK) * peak);
  const double backward = tokens * p.forward.attention * kBackwardWork / (kAttentionBackward * peak);
  e.attention = tokens * p.forward.attention * (recompute ? 2 : 1) / (kAttentionForward * peak) + backward;
  e.index_loss = c.loss.index_coefficient > 0 ? kIndexLoss * backward : 0;
  // A third of the context traffic is the forward ring, which scoring covers; gathering again and the sums are exposed.
  const double context = transfer_seconds(static_cast<double>(p.sent.context), c.parallel.context, cluster);
  e.context = context - std::min(context / 3, e.selector);
  e.experts = transfer_seconds(static_cast<double>(p.sent.experts), c.parallel.expert, cluster);
  const double parameters = transfer_seconds(static_cast<double>(p.sent.parameters), ranks, cluster);
  e.parameters = std::max(0.0, parameters - (e.products + e.attention) / 2);  // beside the backward half
  return e;
}

std::string cluster_text(const Plan& p, const Config& c, const Cluster& cluster) {
  const StepEstimate ours = estimate_step(p, c, cluster, Selecting::flash_topk), table = estimate_step(p, c, cluster, Selecting::table);
  std::string t = fmt::format("Estimate for {} (not measured there; rates of an H200, docs/benchmarks.md), seconds of one step\n", cluster.name);
  t += fmt::format("  {:<34}{:>14}{:>28}\n", "", "HyScale", "materialise and recompute");
  const auto row = [&](const char* name, double a, double b) { t += fmt::format("  {:<34}{:>14.1f}{:>28.1f}\n", name, a, b); };
  row("products", ours.products, table.products);
  row("selection", ours.selector, table.selector);
  row("sparse attention", ours.attention, table.attention);
  row("index loss", ours.index_loss, table.index_loss);
  row("context transfers, exposed", ours.context, table.context);
  row("expert transfers, exposed", ours.experts, table.experts);
  row("parameter transfers, exposed", ours.parameters, table.parameters);
  row("step", ours.total(), table.total());
  const double tokens = static_cast<double>(c.data.sequence_tokens) * static_cast<double>(c.train.micro_batches);
  row("tokens per second and GPU", tokens / ours.total() / cluster.gpus, tokens / table.total() / cluster.gpus);
  t += fmt::format("  HyScale is {:.2f} times as fast\n", table.total() / ours.total());
  return t;
}

}  // namespace hyscale
