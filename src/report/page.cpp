#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace hyscale {
namespace {

constexpr size_t kMostLines = 8;  // that are told apart

double median(std::vector<double> v) {
  if (v.empty()) return NAN;
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

Series named(Series s, const std::string& name) {
  s.name = name;
  return s;
}

double sum_of(const std::vector<Series>& family, double (*of)(const Series&)) {
  double sum = 0;
  for (const Series& s : family) sum += of(s);
  return sum;
}

double total(const Series& s) {
  double sum = 0;
  for (const double v : s.numbers()) sum += v;
  return sum;
}

std::string percent(double share) { return std::isfinite(share) ? fmt::format("{:.1f}%", 100 * share) : "n/a"; }

std::string duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  const int64_t s = std::llround(seconds);
  if (s >= 48 * 3600) return fmt::format("{} d {} h", s / 86400, s / 3600 % 24);
  return s < 7200 ? fmt::format("{} min {} s", s / 60, s % 60) : fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

std::string grouped(double count) {
  if (!std::isfinite(count)) return "n/a";
  std::string digits = fmt::format("{:.0f}", count);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string memory_text(double bytes) {
  if (!std::isfinite(bytes)) return "n/a";
  return bytes < (1 << 30) ? fmt::format("{:.0f} MiB", bytes / (1 << 20)) : fmt::format("{:.1f} GiB", bytes / (1 << 30));
}

// Share of each part in the time of the steps that were measured, in the order of the shares.
std::vector<Series> parts_with_shares(const RunHistory& run, const std::string& key) {
  std::vector<Series> parts = run.family(key);
  const double all = sum_of(parts, total);
  std::stable_sort(parts.begin(), parts.end(), [](const Series& a, const Series& b) { return (a.name == "the rest") < (b.name == "the rest") || ((a.name == "the rest") == (b.name == "the rest") && total(a) > total(b)); });
  for (Series& s : parts) s.name += fmt::format(" {}", percent(total(s) / all));
  return parts;
}

// Selection's share of each measured step, in percent.
Series selection_share(const RunHistory& run) {
  Series share{"selection", {}, {}};
  for (const auto& [step, line] : run.steps()) {
    const auto parts = line.find("seconds_of_part");
    if (parts == line.end() || !parts->is_object()) continue;
    double all = 0, selection = 0;
    for (const auto& [name, value] : parts->items()) {
      if (!value.is_number()) continue;
      all += value.get<double>();
      if (name == "selection") selection = value.get<double>();
    }
    share.steps.push_back(static_cast<double>(step));
    share.values.push_back(all > 0 ? 100 * selection / all : NAN);
  }
  return share;
}

// Lines for a few layers or ranks, a heat map for many.
Chart of_many(Chart c) {
  std::erase_if(c.series, [](const Series& s) { return s.empty(); });
  if (c.series.size() > kMostLines) {
    double low = INFINITY, high = -INFINITY;
    for (const Series& s : c.series)
      for (const double v : s.numbers()) low = std::min(low, v), high = std::max(high, v);
    c.kind = Chart::Kind::heat;
    if (!c.note.empty()) c.note += " ";
    c.note += low < high ? fmt::format("From {} (pale) to {}.", short_number(low), short_number(high)) : fmt::format("Every value is {}.", short_number(low));
  }
  return c;
}

Chart of_layers(const RunHistory& run, const std::string& id, const std::string& key, const std::string& title, const std::string& note) {
  return of_many({id, title, "per selecting layer", note, Chart::Kind::lines, run.family(key), {}, Chart::Values::wide});
}

bool is_multi_rank(const RunHistory& run) { return !run.series("sent_bytes").empty(); }

// " of 300", or nothing where the configuration does not say.
std::string planned_steps(const RunHistory& run) {
  const std::string steps = run.setting("train", "steps");
  return steps.empty() ? "" : " of " + steps;
}

std::string tile(const std::string& name, const std::string& value, const std::string& below) {
  return fmt::format("<div class=\"tile\"><span>{}</span><strong>{}</strong><small>{}</small></div>\n", escaped(name), escaped(value), escaped(below));
}

std::string tiles(const RunHistory& run) {
  const Series loss = run.series("loss"), validation = run.evaluations("validation_loss"), rate = run.series("tokens_per_second"), mfu = run.series("mfu");
  const std::vector<Series> recall = run.family("selection_recall");
  const double last_step = loss.steps.empty() ? 0 : loss.steps.back();
  std::string t = "<section class=\"tiles\">\n";
  t += tile("Step", grouped(last_step), planned_steps(run));
  t += tile("Loss", short_number(loss.last()), "last step");
  t += tile("Validation loss", short_number(validation.last()), validation.empty() ? "none yet" : fmt::format("step {:.0f}", validation.steps.back()));
  t += tile("Tokens/s", rate.empty() ? "n/a" : grouped(median(rate.numbers())), "median");
  t += tile("MFU", percent(median(mfu.numbers())), mfu.empty() ? "peak not known" : "median");
  t += tile("Peak memory", memory_text(run.series("peak_bytes").last()), is_multi_rank(run) ? "first rank" : "");
  t += tile("Selection", percent(median(selection_share(run).numbers()) / 100), "of a step's time");
  if (!recall.empty()) t += tile("Recall", percent(sum_of(recall, [](const Series& s) { return s.last(); }) / static_cast<double>(recall.size())), "of attention mass");
  return t + "</section>\n";
}

}  // namespace

std::vector<Chart> run_charts(const RunHistory& run) {
  using Kind = Chart::Kind;
  using Values = Chart::Values;
  std::vector<Chart> all;
  const auto add = [&](Chart c) { all.push_back(std::move(c)); };
  const auto loss = [&](const char* key, const char* name) { return named(run.series(key), name); };
  add({"loss", "Loss", "nats per label", "", Kind::lines, {loss("loss", "training"), loss("mtp_loss", "multi-token prediction")}, {named(run.evaluations("validation_loss"), "validation")}, Values::any});
  add({"grad-norm", "Gradient norm", "before clipping", "", Kind::lines, {loss("grad_norm", "all but indexers"), loss("indexer_grad_norm", "indexers")}, {}, Values::wide});
  add({"lr", "Learning rate", "", "", Kind::lines, {loss("lr", "learning rate")}});
  add({"balance-loss", "Balance loss of the experts", "", "", Kind::lines, {loss("balance_loss", "balance loss")}, {}, Values::any});
  add({"tokens-per-second", "Throughput", "tokens per second", "", Kind::lines, {loss("tokens_per_second", "tokens per second")}});
  add({"seconds", "Time of a step", "seconds", "", Kind::lines, {loss("seconds", "seconds")}});
  add({"mfu", "Model FLOPs utilization", "% of dense bf16 peak", "Attention counted over selected keys only; recomputed work not at all.", Kind::lines, {named(run.series("mfu", 100), "MFU")}, {}, Values::from_zero, "The peak of this device is not known."});
  add({"memory", "Peak memory", is_multi_rank(run) ? "GiB, first rank" : "GiB", "", Kind::lines, {named(run.series("peak_bytes", 1.0 / (1 << 30)), "peak memory")}});
  add({"time-by-part", "Time by part", "seconds of a step", "", Kind::stacked, parts_with_shares(run, "seconds_of_part")});
  add({"time-by-phase", "Time by phase", "seconds of a step", "Backward includes recomputation.", Kind::stacked, parts_with_shares(run, "seconds_of_phase")});
  add({"selection-share", "Selection's share of a step", "% of its time", "", Kind::lines, {selection_share(run)}});
  add({"index-loss", "Index loss of all layers", "summed", "", Kind::lines, {loss("index_loss", "index loss")}, {}, Values::wide});
  add(of_layers(run, "index-loss-of-layer", "index_loss_of_layer", "Index loss of each layer", ""));
  add(of_layers(run, "recall", "selection_recall", "Recall of attention mass", "Mass of dense attention that lies in the selection."));
  add(of_layers(run, "neighbours", "selection_shared_by_neighbours", "Keys shared by neighbouring queries", "Share of a query's selected keys that the next query selects too."));
  add(of_layers(run, "below", "selection_shared_with_layer_below", "Keys shared with the layer below", "Share of a query's selected keys that the selecting layer below selects too."));
  add(of_layers(run, "tied", "selection_tied", "Ties at the last place", "Share of queries whose k-th and next best scores are equal."));
  if (is_multi_rank(run)) {
    add({"sent", "Sent by the first rank", "GiB per step", "", Kind::lines, {named(run.series("sent_bytes", 1.0 / (1 << 30)), "sent")}});
    add({"context", "Context transfers", "seconds of a step", "", Kind::lines, {loss("context_transfer_seconds", "in transfer"), loss("context_wait_seconds", "work waited")}});
  }
  if (std::vector<Series> ranks = run.family("rank_compute_seconds", "rank"); !ranks.empty())
    add(of_many({"ranks", "Computing time of each rank", "seconds of a step", "Without waiting for others.", Kind::lines, std::move(ranks)}));
  return all;
}

std::vector<std::string> run_summary(const RunHistory& run) {
  std::vector<std::string> out;
  if (run.steps().empty()) return {"No training step is recorded yet."};
  const Series loss = run.series("loss"), validation = run.evaluations("validation_loss"), tokens = run.series("tokens"), seconds = run.series("seconds");
  out.push_back(fmt::format("Step {}{}, {} tokens, {} in steps.", grouped(loss.steps.back()), planned_steps(run), grouped(tokens.last()), duration(total(seconds))));
  const std::vector<double> losses = loss.numbers();
  if (!losses.empty()) out.push_back(fmt::format("The loss went from {:.4f} to {:.4f}; its lowest was {:.4f}.", losses.front(), losses.back(), *std::min_element(losses.begin(), losses.end())));
  if (!validation.empty()) {
    const std::vector<double> values = validation.numbers();
    out.push_back(fmt::format("Validation loss: {:.4f} last, {:.4f} best of {} evaluations.", values.back(), *std::min_element(values.begin(), values.end()), values.size()));
  }
  const auto not_applied = std::count_if(run.steps().begin(), run.steps().end(), [](const auto& s) { return s.second.value("applied", nlohmann::json(true)) == false; });
  out.push_back(not_applied ? fmt::format("Not applied, since they were not finite or spikes: {} of the steps.", not_applied) : "Every step was applied.");
  const Series mfu = run.series("mfu");
  out.push_back(fmt::format("Median throughput: {} tokens per second, MFU {}.", grouped(median(run.series("tokens_per_second").numbers())),
                            mfu.empty() ? "n/a (the device's peak is not known)" : percent(median(mfu.numbers()))));
  const std::vector<Series> recall = run.family("selection_recall");
  double least = INFINITY, most = -INFINITY;
  for (const Series& s : recall)
    if (!s.empty()) least = std::min(least, s.last()), most = std::max(most, s.last());
  if (least <= most) out.push_back(fmt::format("Selections hold {} to {} of the attention mass of their layers (last measurement, queries with more than k keys).", percent(least), percent(most)));
  if (run.replaced_steps()) out.push_back(fmt::format("The run was resumed; recorded twice, of which the later counts: {} steps.", run.replaced_steps()));
  if (run.damaged_lines()) out.push_back(fmt::format("Damaged lines of metrics.jsonl, left out: {}.", run.damaged_lines()));
  return out;
}

std::string report_page(const RunHistory& run) {
  const std::filesystem::path folder = std::filesystem::absolute(run.folder()).lexically_normal();
  const std::string name = escaped(folder.has_filename() ? folder.filename() : folder.parent_path().filename());
  std::string t = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  t += fmt::format("<title>{} - HyScale</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n", name, kPageStyle);
  t += fmt::format("<header><h1>{}</h1><p>{}</p></header>\n{}", name, escaped(folder), tiles(run));
  t += "<section class=\"summary\"><h2>Summary</h2><ul>\n";
  for (const std::string& sentence : run_summary(run)) t += fmt::format("<li>{}</li>\n", escaped(sentence));
  t += "</ul></section>\n<section class=\"charts\">\n";
  for (const Chart& c : run_charts(run)) t += chart_html(c);
  t += "</section>\n";
  if (!run.config_text().empty()) t += fmt::format("<details><summary>Configuration</summary><pre>{}</pre></details>\n", escaped(run.config_text()));
  return t + fmt::format("</main>\n<script>\n{}</script>\n</body>\n</html>\n", kPageScript);
}

}  // namespace hyscale
