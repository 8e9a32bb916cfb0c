// A run as one HTML page that needs nothing else: style, script, charts and numbers are inside it.
#pragma once
#include <string>
#include <vector>

#include "report/chart.h"

namespace hyscale {

std::vector<Chart> run_charts(const RunHistory&);
// What happened, in sentences, as plain text.
std::vector<std::string> run_summary(const RunHistory&);
std::string report_page(const RunHistory&);

extern const char kPageStyle[], kPageScript[];  // page.css, page.js

}  // namespace hyscale
