// Charts as SVG, made here and not in the browser: a page shows them without scripts. Colours are CSS variables of the page.
#pragma once
#include <string>
#include <vector>

#include "report/run_history.h"

namespace hyscale {

struct Chart {
  enum class Kind {
    lines,    // with more steps than columns: means, and the range of a column as a band
    stacked,  // areas one on the other; series of equal steps
    heat,     // a row per series
  };
  std::string id, title, unit, note;  // note: one line below the title
  Kind kind = Kind::lines;
  std::vector<Series> series;
  std::vector<Series> dots;  // sparse measurements, drawn as points joined by a thin line
  enum class Values {
    from_zero,  // the value axis begins at 0 where no value is below
    any,        // it shows the range of the values
    wide,       // it is logarithmic for positive values that differ by more than 100 times, else from 0
  } values = Values::from_zero;
  std::string absent = "no values";  // said where the chart would be
};

// <figure> with title, legend, SVG, and the plotted numbers as JSON for the page's script. Without any number: a sentence in their place.
std::string chart_html(const Chart&);

// Text with &, <, >, " and ' as entities.
std::string escaped(const std::string&);
std::string short_number(double);  // "1.2k", "3e-4", "0.25"

// What the kinds of charts share.
namespace chart {

inline constexpr double kWidth = 560, kHeight = 240, kLeft = 52, kRight = 12, kTop = 10, kBottom = 30;
inline constexpr size_t kColumns = 400;

// A value axis or the axis of steps.
struct Axis {
  double low = 0, high = 1, from = 0, to = 1;  // values, and where they lie in the drawing
  bool logarithmic = false;
  double place(double value) const;
  std::vector<double> ticks(int about) const;
};
Axis step_axis(const std::vector<Series>&);
// Mean, lowest and highest of each of at most kColumns columns of equal width; columns without a number are gaps (NaN).
struct Columns {
  std::vector<double> steps, mean, low, high;
};
Columns in_columns(const Series&, const Axis& steps, size_t most = kColumns);
std::string frame(const Axis& steps, const Axis* values);
std::string heat_svg(const Chart&, nlohmann::json& plotted);

}  // namespace chart
}  // namespace hyscale
