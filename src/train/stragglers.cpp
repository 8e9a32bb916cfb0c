#include "train/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace hyscale {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int slow_rank(const std::vector<double>& rank_seconds, double factor) {
  if (rank_seconds.empty()) return -1;
  const auto slowest = std::max_element(rank_seconds.begin(), rank_seconds.end());
  return *slowest > factor * median(rank_seconds) ? static_cast<int>(slowest - rank_seconds.begin()) : -1;
}

Stragglers::Stragglers(ProcessGroups& groups, Device device, double factor) : groups_(groups), factor_(factor), began_(device), ended_(device) {
  using Name = std::array<char, 64>;
  Name mine{};
  std::string_view(host_name()).copy(mine.data(), mine.size() - 1);
  std::vector<Name> all(static_cast<size_t>(groups.hosts->size()));
  groups.hosts->all_gather(Tensor(mine.data(), DType::u8, Device{}, {sizeof mine}), Tensor(all.data(), DType::u8, Device{}, {static_cast<int64_t>(all.size() * sizeof mine)}), {});
  for (const Name& name : all) hosts_.emplace_back(name.data());
}

double Stragglers::waited_seconds() const {
  double sum = 0;
  for (const auto* c : {&groups_.world, &groups_.data, &groups_.context, &groups_.expert, &groups_.expert_replicas}) sum += (*c)->waited_seconds();
  return sum;
}

void Stragglers::begin(Stream stream) {
  waited_before_ = waited_seconds();
  began_.record(stream);
}

void Stragglers::end(Stream stream) {
  ended_.record(stream);
  waited_ = waited_seconds() - waited_before_;
}

std::vector<double> Stragglers::rank_seconds(const Ring::Times& context) {
  const bool over_nccl = std::string_view(groups_.world->transport()) == "nccl";
  double mine = ended_.milliseconds_since(began_) / 1000 - waited_ - (over_nccl ? context.wait_ms / 1000 : 0);
  std::vector<double> all(static_cast<size_t>(groups_.hosts->size()));
  groups_.hosts->all_gather(Tensor(&mine, DType::f64, Device{}, {1}), Tensor(all.data(), DType::f64, Device{}, {groups_.hosts->size()}), {});
  return all;
}

void Stragglers::record(const std::vector<double>& rank_seconds, nlohmann::json& line) const {
  line["rank_compute_seconds"] = rank_seconds;
  const int slowest = slow_rank(rank_seconds, factor_);
  if (slowest < 0) return;
  line["slowest_rank"] = slowest;
  line["slowest_host"] = hosts_[static_cast<size_t>(slowest)];
}

std::string Stragglers::slowest_text(const std::vector<double>& rank_seconds) const {
  const int slowest = slow_rank(rank_seconds, factor_);
  if (slowest < 0) return "";
  const size_t at = static_cast<size_t>(slowest);
  return fmt::format("rank {} on {} computed for {:.3f} s, the median of the ranks is {:.3f} s", slowest, hosts_[at], rank_seconds[at], median(rank_seconds));
}

}  // namespace hyscale
