// hyscale-checkpoint: inspects, verifies and exports checkpoints.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "checkpoint/checkpoint.h"
#include "core/json.h"
#include "models/registry.h"
#include "tools/main.h"
#include "train/weights.h"

namespace hyscale {
namespace fs = std::filesystem;
namespace {

// The model folder of a checkpoint, or the folder itself.
std::string model_folder(const std::string& path) {
  const auto checkpoints = list_checkpoints(path);
  if (!fs::is_directory(path)) throw UserError(path + ": is no folder; expected a checkpoint or a Hugging Face model folder");
  if (!checkpoints.empty()) throw UserError(concat(path, ": is the folder of a run; expected one of its checkpoints, such as ", checkpoints.back().second));
  return fs::is_directory(path + "/model") ? path + "/model" : path;
}

void inspect(const std::string& path, bool tensors) {
  const HfFolderReader folder(model_folder(path));
  int64_t elements = 0;
  for (const std::string& name : folder.names()) {
    const SafetensorInfo& info = folder.reader(name).info(name);
    elements += info.elements();
    if (tensors) std::cout << fmt::format("{:<8} {:<20} {}\n", info.dtype, fmt::format("[{}]", fmt::join(info.shape, ", ")), name);
  }
  std::cout << fmt::format("{}: {} tensors, {} elements\n", folder.folder(), folder.names().size(), elements);
  if (!fs::exists(path + "/trainer.json")) return;
  const nlohmann::json saved = read_json_file(path + "/trainer.json");
  const JsonReader j(saved, path + "/trainer.json");
  std::cout << fmt::format("step {}, {} tokens, {} updates, stage {}\n", j.integer("step", 0, JsonReader::kMostCount), j.integer("tokens", 0, JsonReader::kMostCount),
                           j.integer("updates", 0, JsonReader::kMostCount), j.text("stage"));
}

void export_model(const std::string& path, const std::string& output, const std::string& dtype) {
  const std::string from = model_folder(path), config_path = from + "/config.json";
  if (fs::exists(output) && (!fs::is_directory(output) || !fs::is_empty(output))) throw UserError(output + ": exists and is no empty folder; expected a new one");
  const nlohmann::json config = read_hf_config(config_path);
  const HfFolderReader folder(from);
  const std::string mtp_layer = concat("model.layers.", JsonReader(config, config_path).integer_or("num_hidden_layers", 0, 0), ".");
  bool mtp = false;
  for (const std::string& name : folder.names()) mtp = mtp || name.starts_with(mtp_layer);
  const std::unique_ptr<Model> model = make_model(config, config_path, {.mtp = mtp});
  const JsonReader r(config, config_path);
  const std::string stored = r.text_or("dtype", r.text_or("torch_dtype", "bfloat16"));
  // What has its name is whole.
  const std::string written = dtype == "same" ? stored : dtype, partial = output + ".partial";
  fs::remove_all(partial);
  try {
    convert_weights(*model, folder, partial, written);
    finish_hf_folder(partial, saved_hf_config(*model, written));
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(partial, ignored);  // on a full disk it would be in the way
    throw;
  }
  if (fs::exists(output)) fs::remove(output);
  fs::rename(partial, output);
  std::cout << fmt::format("exported {} to {}\n", from, output);
}

int run(int argc, char** argv) {
  CLI::App app{"Inspects, verifies and exports checkpoints."};
  add_version(app, "hyscale-checkpoint");
  app.require_subcommand(1);
  std::string path, output, dtype = "same";
  bool tensors = false;
  CLI::App* i = app.add_subcommand("inspect", "tensors and training state of a checkpoint or a Hugging Face folder");
  i->add_option("path", path)->required();
  i->add_flag("--tensors", tensors, "list every tensor");
  CLI::App* v = app.add_subcommand("verify", "compare every file of a checkpoint with its manifest");
  v->add_option("path", path)->required();
  CLI::App* e = app.add_subcommand("export", "write a Hugging Face model folder");
  e->add_option("path", path, "a checkpoint or a Hugging Face folder")->required();
  e->add_option("output", output, "a folder that is new or empty")->required();
  e->add_option("--dtype", dtype, "same, float32 or bfloat16")->check(CLI::IsMember({"same", "float32", "bfloat16"}))->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (i->parsed()) inspect(path, tensors);
  if (v->parsed()) {
    if (!fs::exists(path + "/MANIFEST.json")) throw UserError(path + ": is no complete checkpoint (it has no MANIFEST.json); expected RUN/latest or RUN/step-N");
    verify_checkpoint(path, true);
    std::cout << path << ": every file matches the manifest\n";
  }
  if (e->parsed()) export_model(path, output, dtype);
  return 0;
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  return hyscale::guarded_main("hyscale-checkpoint", [&] { return hyscale::run(argc, argv); });
}
