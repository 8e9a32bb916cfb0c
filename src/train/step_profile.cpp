#include "train/step_profile.h"

#include <initializer_list>
#include <string_view>

#include "core/range.h"

namespace hyscale {
namespace {

constexpr const char kRest[] = "the rest";

struct Part {
  const char* name;
  std::initializer_list<const char*> ops;  // what their names begin with
};
const Part kParts[] = {
    {"selection", {"flash_topk"}},
    {"attention", {"sparse_attention", "dense_attention", "block_attention", "attended_rows"}},
    {"index loss", {"index_loss", "dense_index_loss"}},
    {"products", {"gemm"}},
    {"experts", {"grouped_gemm", "router", "hash_route", "make_expert_order", "gather_rows", "combine_rows", "balance"}},
    {"head and loss", {"lm_head_loss"}},
    {"optimizer", {"adamw", "muon", "newton_schulz", "sum_of_squares", "clip_gate"}},
    {"communication", {"barrier", "broadcast", "all_", "reduce_scatter", "exchange"}},
    {"linear attention", {"gated_delta", "delta_gates", "short_conv"}},
    {"compression", {"compressor", "block_pool"}},
    {"hyper-connections", {"hc_", "streams_"}},
    {"n-gram memory", {"ngram_"}},
};

// kRest: the range does not say.
const char* part_of(std::string_view range) {
  for (const Part& part : kParts)
    for (const char* op : part.ops)
      if (range.starts_with(op)) return part.name;
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
