// One row per series, one column per measurement or run of them; the stronger the colour, the larger the value.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/chart.h"

namespace hyscale::chart {
namespace {

constexpr size_t kMostColumns = 80;
constexpr int kShades = 12;

// As it is printed, so that neighbours meet.
double tenths(double v) { return std::round(10 * v) / 10; }

}  // namespace

std::string heat_svg(const Chart& c, nlohmann::json& plotted) {
  const Axis x = step_axis(c.series);
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Series& s : c.series)
    for (const double v : s.numbers()) low = std::min(low, v), high = std::max(high, v);
  const double height = (kHeight - kTop - kBottom) / static_cast<double>(c.series.size());
  std::string t;
  for (size_t row = 0; row < c.series.size(); ++row) {
    const Columns columns = in_columns(c.series[row], x, kMostColumns);
    const double top = tenths(kTop + height * static_cast<double>(row)), bottom = tenths(kTop + height * static_cast<double>(row + 1));
    // A cell reaches half way to its neighbours.
    const auto edge = [&](size_t i) { return i == 0 ? x.from : tenths(i == columns.steps.size() ? x.to : x.place((columns.steps[i - 1] + columns.steps[i]) / 2)); };
    nlohmann::json values = nlohmann::json::array();
    for (size_t i = 0; i < columns.steps.size(); ++i) {
      const double v = columns.mean[i];
      values.push_back(std::isfinite(v) ? nlohmann::json(std::stod(fmt::format("{:.5g}", v))) : nlohmann::json(nullptr));
      if (!std::isfinite(v)) continue;
      const int shade = high > low ? std::min(kShades - 1, static_cast<int>(kShades * (v - low) / (high - low))) : kShades / 2;
      t += fmt::format("<rect class=\"h{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>", shade, edge(i), top, edge(i + 1) - edge(i), bottom - top);
    }
    // Names of rows that are high enough, of every so many otherwise.
    const size_t every = std::max<size_t>(1, static_cast<size_t>(std::ceil(13 / height)));
    if (row % every == 0) t += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 7, top + height / 2 + 3.5, escaped(c.series[row].name));
    plotted["series"].push_back({{"name", c.series[row].name}, {"x", columns.steps}, {"y", values}});
  }
  plotted["top"] = kTop, plotted["bottom"] = kHeight - kBottom, plotted["low"] = x.low, plotted["high"] = x.high;
  return t + frame(x, nullptr);
}

}  // namespace hyscale::chart
