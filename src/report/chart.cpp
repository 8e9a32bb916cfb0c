#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace hyscale {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

std::string short_number(double v) {
  const double size = std::fabs(v);
  if (!std::isfinite(v)) return "n/a";
  if (size >= 1e15 || size < 1) return fmt::format("{:.3g}", v);
  for (const auto& [unit, name] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}})
    if (size >= unit) return fmt::format("{:.4g}{}", v / (unit == 1e4 ? 1e3 : unit), name);
  return fmt::format("{:.4g}", v);
}

namespace chart {
namespace {

constexpr size_t kLineColors = 8, kAreaColors = 12;  // .c0, .c1, ... of page.css

double decade(double v) { return std::pow(10, std::floor(std::log10(v))); }

}  // namespace

double Axis::place(double v) const {
  const double share = logarithmic ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
  return from + (to - from) * share;
}

std::vector<double> Axis::ticks(int about) const {
  std::vector<double> out;
  if (logarithmic) {
    const bool few = high / low < 1000;
    for (double d = decade(low); d <= high; d *= 10)
      for (const double m : {1.0, 2.0, 5.0})
        if ((m == 1 || few) && d * m >= low * 0.999 && d * m <= high * 1.001) out.push_back(d * m);
    for (; out.size() > 2 * static_cast<size_t>(about);)  // many decades: every other
      for (size_t i = out.size(); i-- > 0;)
        if (i % 2) out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
    return out;
  }
  const double rough = (high - low) / about, unit = decade(rough), ratio = rough / unit;
  const double step = unit * (ratio < 1.5 ? 1 : ratio < 3.5 ? 2 : ratio < 7.5 ? 5 : 10);
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) out.push_back(k == 0 ? 0 : k * step);  // no -0
  return out;
}

Axis step_axis(const std::vector<Series>& all) {
  Axis a{std::numeric_limits<double>::infinity(), 0, kLeft, kWidth - kRight};
  for (const Series& s : all)
    if (!s.steps.empty()) a.low = std::min(a.low, s.steps.front()), a.high = std::max(a.high, s.steps.back());
  if (!(a.low < a.high)) a.low = a.high - 1;
  return a;
}

Columns in_columns(const Series& s, const Axis& axis, size_t most) {
  Columns c;
  const double width = (axis.high - axis.low) / static_cast<double>(most);
  for (size_t i = 0; i < s.steps.size();) {
    // Few steps: a column each.
    const double end = s.steps.size() <= most ? s.steps[i] : axis.low + width * (std::floor((s.steps[i] - axis.low) / width) + 1);
    double steps = 0, sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
    size_t count = 0, all = 0;
    do {
      steps += s.steps[i], ++all;
      if (const double v = s.values[i]; std::isfinite(v)) sum += v, low = std::min(low, v), high = std::max(high, v), ++count;
    } while (++i < s.steps.size() && s.steps[i] < end);
    const double none = std::numeric_limits<double>::quiet_NaN();
    c.steps.push_back(steps / static_cast<double>(all));
    c.mean.push_back(count ? sum / static_cast<double>(count) : none);
    c.low.push_back(count ? low : none);
    c.high.push_back(count ? high : none);
  }
  return c;
}

std::string frame(const Axis& steps, const Axis* values) {
  std::string t;
  if (values)
    for (const double v : values->ticks(5))
      t += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                       kLeft, kWidth - kRight, values->place(v), values->place(v), kLeft - 7, values->place(v) + 3.5, short_number(v));
  for (const double v : steps.ticks(7))
    if (v == std::floor(v))
      t += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", steps.place(v), kHeight - kBottom + 17, short_number(v));
  return t + fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, kWidth - kRight, kHeight - kBottom, kHeight - kBottom);
}

namespace {

nlohmann::json numbers(const std::vector<double>& values) {
  nlohmann::json out = nlohmann::json::array();
  for (const double v : values) out.push_back(std::isfinite(v) ? nlohmann::json(std::stod(fmt::format("{:.6g}", v))) : nlohmann::json(nullptr));
  return out;
}

// The parts of a line between gaps; a value that a logarithm cannot show is a gap too.
std::string path(const std::vector<double>& steps, const std::vector<double>& values, const Axis& x, const Axis& y) {
  std::string d;
  bool down = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool shown = std::isfinite(values[i]) && (!y.logarithmic || values[i] > 0);
    if (shown) d += fmt::format("{}{:.1f},{:.1f}", down ? "L" : "M", x.place(steps[i]), y.place(values[i]));
    if (shown && !down && (i + 1 == steps.size() || !std::isfinite(values[i + 1]))) d += "h0.01";  // alone: a point
    down = shown;
  }
  return d;
}

std::string band(const Columns& c, const Axis& x, const Axis& y) {
  std::string d;
  for (size_t begin = 0, end; begin < c.steps.size(); begin = end + 1) {
    for (end = begin; end < c.steps.size() && std::isfinite(c.mean[end]) && (!y.logarithmic || c.low[end] > 0);) ++end;
    for (size_t i = begin; i < end; ++i) d += fmt::format("{}{:.1f},{:.1f}", i == begin ? "M" : "L", x.place(c.steps[i]), y.place(c.high[i]));
    for (size_t i = end; i-- > begin;) d += fmt::format("L{:.1f},{:.1f}", x.place(c.steps[i]), y.place(c.low[i]));
    if (end > begin) d += "Z";
  }
  return d;
}

Axis value_axis(const std::vector<Series>& all, Chart::Values kind) {
  Axis a{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), kHeight - kBottom, kTop};
  for (const Series& s : all)
    for (const double v : s.numbers()) a.low = std::min(a.low, v), a.high = std::max(a.high, v);
  a.logarithmic = kind == Chart::Values::wide && a.low > 0 && a.high > 100 * a.low;
  const double room = std::max(a.high - a.low, 1e-3 * std::fabs(a.high)) * 0.06;
  if (a.logarithmic) {
    a.low /= 1.2, a.high *= 1.2;
    return a;
  }
  a.high += room > 0 ? room : 1;
  a.low = kind != Chart::Values::any && a.low >= 0 ? 0 : a.low - room;
  return a;
}

std::string lines_svg(const Chart& c, nlohmann::json& plotted) {
  std::vector<Series> all = c.series;
  all.insert(all.end(), c.dots.begin(), c.dots.end());
  const Axis x = step_axis(all), y = value_axis(all, c.values);
  std::string t = frame(x, &y);
  for (size_t i = 0; i < all.size(); ++i) {
    const Columns columns = in_columns(all[i], x);
    const bool dots = i >= c.series.size(), many = all[i].steps.size() > kColumns;
    if (many && !dots) t += fmt::format("<path class=\"band c{}\" d=\"{}\"/>", i % kLineColors, band(columns, x, y));
    t += fmt::format("<path class=\"{} c{}\" d=\"{}\"/>", dots ? "thin" : "line", i % kLineColors, path(columns.steps, columns.mean, x, y));
    if (dots)
      for (size_t j = 0; j < columns.steps.size(); ++j)
        if (std::isfinite(columns.mean[j])) t += fmt::format("<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", i % kLineColors, x.place(columns.steps[j]), y.place(columns.mean[j]));
    plotted["series"].push_back({{"name", all[i].name}, {"color", i % kLineColors}, {"x", numbers(columns.steps)}, {"y", numbers(columns.mean)}});
  }
  plotted["low"] = x.low, plotted["high"] = x.high;
  return t;
}

std::string stacked_svg(const Chart& c, nlohmann::json& plotted) {
  const Axis x = step_axis(c.series);
  std::vector<Columns> layers;
  for (const Series& s : c.series) layers.push_back(in_columns(s, x));
  const std::vector<double>& steps = layers.front().steps;
  std::vector<double> below(steps.size()), above = below;
  Series total{"", steps, below};
  const auto value = [&](size_t layer, size_t i) { return i < layers[layer].mean.size() && std::isfinite(layers[layer].mean[i]) ? layers[layer].mean[i] : 0; };
  for (size_t l = 0; l < layers.size(); ++l)
    for (size_t i = 0; i < steps.size(); ++i) total.values[i] += value(l, i);
  const Axis y = value_axis({total}, Chart::Values::from_zero);
  std::string areas;
  for (size_t l = 0; l < layers.size(); ++l) {
    std::string d;
    for (size_t i = 0; i < steps.size(); ++i) above[i] = below[i] + value(l, i);
    for (size_t i = 0; i < steps.size(); ++i) d += fmt::format("{}{:.1f},{:.1f}", i ? "L" : "M", x.place(steps[i]), y.place(above[i]));
    for (size_t i = steps.size(); i-- > 0;) d += fmt::format("L{:.1f},{:.1f}", x.place(steps[i]), y.place(below[i]));
    areas += fmt::format("<path class=\"area c{}\" d=\"{}Z\"/>", l % kAreaColors, d);
    plotted["series"].push_back({{"name", c.series[l].name}, {"color", l % kAreaColors}, {"x", numbers(steps)}, {"y", numbers(layers[l].mean)}});
    below = above;
  }
  plotted["low"] = x.low, plotted["high"] = x.high;
  return areas + frame(x, &y);
}

std::string legend(const Chart& c) {
  std::vector<Series> all = c.series;
  all.insert(all.end(), c.dots.begin(), c.dots.end());
  if (c.kind == Chart::Kind::heat || (all.size() == 1 && c.dots.empty())) return "";
  std::string t = "<ul class=\"legend\">";
  for (size_t i = 0; i < all.size(); ++i) t += fmt::format("<li><i class=\"k{}\"></i>{}</li>", i % (c.kind == Chart::Kind::stacked ? kAreaColors : kLineColors), escaped(all[i].name));
  return t + "</ul>";
}

}  // namespace
}  // namespace chart

std::string chart_html(const Chart& c) {
  const auto is_empty = [](const Series& s) { return s.empty(); };
  Chart shown = c;
  std::erase_if(shown.series, is_empty);
  std::erase_if(shown.dots, is_empty);
  std::string t = fmt::format("<figure id=\"{}\"><figcaption><b>{}</b>{}</figcaption>", escaped(c.id), escaped(c.title),
                              c.unit.empty() ? "" : fmt::format(" <span class=\"unit\">{}</span>", escaped(c.unit)));
  if (!c.note.empty()) t += fmt::format("<p class=\"note\">{}</p>", escaped(c.note));
  if (shown.series.empty() && shown.dots.empty()) return t + fmt::format("<p class=\"none\">{}</p></figure>\n", escaped(c.absent));
  nlohmann::json plotted{{"kind", c.kind == Chart::Kind::heat ? "heat" : "lines"}, {"left", chart::kLeft}, {"right", chart::kWidth - chart::kRight}, {"series", nlohmann::json::array()}};
  const std::string drawing = c.kind == Chart::Kind::heat      ? chart::heat_svg(shown, plotted)
                              : c.kind == Chart::Kind::stacked ? chart::stacked_svg(shown, plotted)
                                                               : chart::lines_svg(shown, plotted);
  std::string data = plotted.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  for (size_t at = 0; (at = data.find('<', at)) != std::string::npos;) data.replace(at, 1, "\\u003c");  // nothing in it ends the script element
  t += chart::legend(shown);
  t += fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{} over steps\">{}<line class=\"cursor\" y1=\"{:.0f}\" y2=\"{:.0f}\" visibility=\"hidden\"/></svg>",
                   chart::kWidth, chart::kHeight, escaped(c.title), drawing, chart::kTop, chart::kHeight - chart::kBottom);
  return t + fmt::format("<script type=\"application/json\">{}</script></figure>\n", data);
}

}  // namespace hyscale
