#include "train/step_profile.h"

#include <string_view>

#include "core/range.h"

namespace hyscale {
namespace {

constexpr const char kRest[] = "the rest";

// The outermost range of an op decides: a product inside the LM head is the head's. kRest: does not say.
const char* part_of(std::string_view name) {
  struct Part {
    const char *prefix, *part;
  };
  constexpr Part known[] = {
      {"flash_topk", "selection"}, {"sparse_attention", "attention"}, {"dense_attention", "attention"}, {"index_loss", "index loss"}, {"dense_index_loss", "index loss"},
      {"gemm", "products"}, {"grouped_gemm", "experts"}, {"router", "experts"}, {"make_expert_order", "experts"}, {"gather_rows", "experts"},
      {"combine_rows", "experts"}, {"balance", "experts"}, {"lm_head_loss", "head and loss"}, {"adamw", "optimizer"}, {"sum_of_squares", "optimizer"},
      {"clip_gate", "optimizer"}, {"barrier", "communication"}, {"broadcast", "communication"}, {"all_", "communication"}, {"reduce_scatter", "communication"},
      {"exchange", "communication"}};
  for (const Part& p : known)
    if (name.starts_with(p.prefix)) return p.part;
  return kRest;
}

const char* phase_of(std::string_view name) {
  if (name.starts_with("forward layer")) return "forward layers";
  if (name.starts_with("backward layer")) return "backward layers";
  const std::string_view part = part_of(name);
  return part == "head and loss" || part == "optimizer" ? part.data() : kRest;
}

}  // namespace

StepProfile::~StepProfile() {
  if (running_) observe_ranges({});
}

void StepProfile::begin() {
  marks_.clear();
  stack_ = {{kRest, kRest}};
  mark(stack_.back());
  running_ = true;
  observe_ranges([this](const char* name, bool enters) { observe(name, enters); });
}

void StepProfile::observe(const char* name, bool enters) {
  if (enters) {
    const Place outer = stack_.back();
    stack_.push_back({std::string_view(outer.phase) == kRest ? phase_of(name) : outer.phase, std::string_view(outer.part) == kRest ? part_of(name) : outer.part});
  } else if (stack_.size() > 1) {  // a range entered before begin() leaves no entry
    stack_.pop_back();
  }
  if (marks_.back().place != stack_.back()) mark(stack_.back());
}

void StepProfile::mark(Place place) {
  const size_t at = marks_.size();
  if (at == events_.size()) events_.push_back(std::make_unique<Event>(device_));
  events_[at]->record({});
  marks_.push_back({at, place});
}

StepProfile::Seconds StepProfile::finish() {
  observe_ranges({});
  running_ = false;
  mark({kRest, kRest});
  events_[marks_.back().event]->synchronize();
  Seconds s;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    const double seconds = events_[marks_[i + 1].event]->milliseconds_since(*events_[marks_[i].event]) / 1000;
    s.phases[marks_[i].place.phase] += seconds;
    s.parts[marks_[i].place.part] += seconds;
  }
  return s;
}

}  // namespace hyscale
