// A tiny run on a random data set, as a user would start it.
#pragma once
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/hf_folder.h"
#include "core/error.h"
#include "core/rng.h"
#include "data/indexed_dataset.h"
#include "tests/support/processes.h"

namespace hyscale::test {

inline std::string tool(const std::string& name) { return std::string(HYSCALE_TOOLS) + "/" + name; }

class TinyRun {
 public:
  TinyRun() {
    IndexedDatasetWriter w(folder_ / "data", 160);
    const Rng rng(3);
    uint64_t at = 0;
    for (int d = 0; d < 40; ++d) {
      std::vector<int32_t> document(1 + rng.below(at++, 90));
      for (int32_t& id : document) id = static_cast<int32_t>(rng.below(at++, 160));
      w.add_document(document);
    }
    w.finish();
    write_file(folder_ / "run.yaml",
               "model:\n  config: tests/goldens/glm51/config.json\n"
               "data:\n  train: [{path: " + (folder_ / "data") + "}]\n  validation: [{path: " + (folder_ / "data") + "}]\n  sequence_tokens: 96\n"
               "train:\n  steps: 10\n  micro_batches: 2\n  recompute: layer\n  evaluate_sequences: 2\n"
               "optimizer:\n  lr: 1e-3\n"
               "checkpoint:\n  directory: " + (folder_ / "run") + "\n  every: 5\n"
               "run:\n  device: cpu\n");
  }
  std::vector<std::string> command(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{tool("hyscale-train"), "--config", folder_ / "run.yaml"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Overrides as --set arguments; `directory` replaces the run's own.
  std::vector<std::string> into(const std::string& directory, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"--set", "checkpoint.directory=" + (folder_ / directory)});
    return command(more);
  }
  // The same under mpirun with `ranks` data-parallel ranks.
  std::vector<std::string> under_mpirun(int ranks, const std::string& directory, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--set", "parallel.data=" + std::to_string(ranks)});
    return with_ranks(ranks, directory, more);
  }
  // In any layout, which `more` gives.
  std::vector<std::string> with_ranks(int ranks, const std::string& directory, const std::vector<std::string>& more) const {
    std::vector<std::string> all{HYSCALE_MPIRUN, "--oversubscribe", "--allow-run-as-root", "-x", "OMP_NUM_THREADS=1", "--mca", "btl_vader_single_copy_mechanism", "none", "-np", std::to_string(ranks)};
    const std::vector<std::string> one = into(directory, more);
    all.insert(all.end(), one.begin(), one.end());
    return all;
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

  // Everything that makes up the state of a checkpoint.
  std::string state(const std::string& directory, int64_t step) const {
    char name[32];
    std::snprintf(name, sizeof name, "/step-%08lld", static_cast<long long>(step));
    const std::string path = (folder_ / directory) + name;
    nlohmann::json trainer = nlohmann::json::parse(read_file(path + "/trainer.json"));
    trainer.erase("config");
    return read_file(path + "/model/model.safetensors") + read_file(path + "/optimizer/rank-00000.safetensors") + trainer.dump();
  }
  std::vector<nlohmann::json> metrics(const std::string& directory) const {
    std::ifstream in((folder_ / directory) + "/metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

 private:
  TemporaryFolder folder_;
};

// Worst relative L2 difference of any tensor between the models of two checkpoints, of those that `looks_at` names.
inline double model_difference(const std::string& a, const std::string& b, const std::function<bool(const std::string&)>& looks_at = {}) {
  const HfFolderReader x(a + "/model"), y(b + "/model");
  double worst = 0;
  for (const std::string& name : x.names()) {
    if (looks_at && !looks_at(name)) continue;
    const std::vector<float> u = x.reader(name).read_f32(name), v = y.reader(name).read_f32(name);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < u.size(); ++i) difference += (double{u[i]} - v[i]) * (double{u[i]} - v[i]), norm += double{u[i]} * u[i];
    worst = std::max(worst, std::sqrt(difference) / std::max(std::sqrt(norm), 1e-6));
  }
  return worst;
}

}  // namespace hyscale::test
