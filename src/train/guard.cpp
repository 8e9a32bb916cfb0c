#include "train/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"

namespace hyscale {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
constexpr const char* kNames[] = {"loss", "grad_norm", "indexer_grad_norm"};

double median(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::array<double, 3> in_order(const GuardedValues& v) { return {v.loss, v.norm, v.indexer_norm}; }

}  // namespace

double Guard::limit(const std::deque<double>& seen, double factor) const {
  if (factor == 0 || static_cast<int64_t>(seen.size()) < options_.min_steps) return kNone;
  const double middle = median(seen);
  return middle > 0 ? factor * middle : kNone;
}

GuardedValues Guard::limits() const {
  return {limit(seen_[0], options_.loss_factor), limit(seen_[1], options_.grad_norm_factor), limit(seen_[2], options_.grad_norm_factor)};
}

void Guard::remember(const GuardedValues& values) {
  const std::array<double, 3> all = in_order(values);
  for (size_t i = 0; i < all.size(); ++i) {
    seen_[i].push_back(all[i]);
    if (static_cast<int64_t>(seen_[i].size()) > options_.window) seen_[i].pop_front();
  }
}

nlohmann::json Guard::state() const {
  nlohmann::json state;
  for (size_t i = 0; i < seen_.size(); ++i) state[kNames[i]] = seen_[i];
  return state;
}

void Guard::restore(const nlohmann::json& state) {
  for (size_t i = 0; i < seen_.size(); ++i) {
    if (!state.is_object() || !state.contains(kNames[i]) || !state[kNames[i]].is_array())
      throw UserError(concat("state of the guard: ", state.dump(), "; expected lists \"loss\", \"grad_norm\" and \"indexer_grad_norm\""));
    seen_[i] = state[kNames[i]].get<std::deque<double>>();
    while (static_cast<int64_t>(seen_[i].size()) > options_.window) seen_[i].pop_front();
  }
}

std::string spike_text(const GuardedValues& values, const GuardedValues& limits) {
  const std::array<double, 3> value = in_order(values), most = in_order(limits);
  std::string text;
  for (size_t i = 0; i < value.size(); ++i)
    if (value[i] > most[i]) text += fmt::format("{}{} {:.4g} above {:.4g}", text.empty() ? "" : ", ", kNames[i], value[i], most[i]);
  return text;
}

}  // namespace hyscale
