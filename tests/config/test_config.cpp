#include "config/config.h"

#include "core/error.h"
#include "tests/support/processes.h"

namespace hyscale {
namespace {

using test::TemporaryFolder;

constexpr const char* kMinimal =
    "model:\n  config: m.json\n"                                    // lines 1, 2
    "data:\n  train: [{path: d}]\n  sequence_tokens: 64\n"           // 3 to 5
    "train:\n  steps: 10\n";                                         // 6, 7

// A message that begins with a file of the folder, from that file's name on.
std::string inside(const TemporaryFolder& folder, const std::string& message) {
  return message.starts_with(folder.path() + "/") ? message.substr(folder.path().size() + 1) : message;
}

std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const TemporaryFolder folder;
  test::write_file(folder / "run.yaml", yaml);
  return inside(folder, test::error_of([&] { read_config(folder / "run.yaml", overrides); }));
}

Config config_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const TemporaryFolder folder;
  test::write_file(folder / "run.yaml", yaml);
  return read_config(folder / "run.yaml", overrides);
}

TEST(ConfigReader, MinimalConfigurationTakesDefaults) {
  const Config c = config_of(kMinimal);
  EXPECT_EQ(c.model.config, "m.json");
  EXPECT_EQ(c.data.train[0].path, "d");
  EXPECT_EQ(c.data.train[0].weight, 1);
  EXPECT_EQ(c.train.steps, 10);
  EXPECT_EQ(c.optimizer.beta1, 0.9);
}

TEST(ConfigReader, MisspeltKeyIsNamedWithItsLineAndTheRightOne) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batchs: 2\n"), "run.yaml:8: train.micro_batchs: unknown key; did you mean \"micro_batches\"?");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimiser:\n  lr: 1\n"), "run.yaml:8: optimiser: unknown key; did you mean \"optimizer\"?");
  EXPECT_EQ(error_of("model:\n  confg: m.json\n"), "run.yaml:2: model.confg: unknown key; did you mean \"config\"?");
  EXPECT_EQ(error_of("modle:\n  config: m.json\n"), "run.yaml:1: modle: unknown key; did you mean \"model\"?");
  EXPECT_EQ(error_of("model: {config: m}\ndata: {train: [{path: d}], sequence_tokens: 8}\ntrian: {steps: 1}\n"), "run.yaml:3: trian: unknown key; did you mean \"train\"?");
}

TEST(ConfigReader, MistypedValuesAreNamed) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: two\n"), "run.yaml:8: train.micro_batches: \"two\"; expected an integer from 1 to 1000000");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: 1.5\n"), "run.yaml:8: train.micro_batches: \"1.5\"; expected an integer from 1 to 1000000, in digits alone");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: \"2\"\n"), "run.yaml:8: train.micro_batches: \"2\"; expected an integer from 1 to 1000000, without quotes");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  deterministic: yes\n"), "run.yaml:8: train.deterministic: \"yes\"; expected true or false");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer:\n  lr: fast\n"), "run.yaml:9: optimizer.lr: \"fast\"; expected a number at least 0");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer:\n  lr: .nan\n"), "run.yaml:9: optimizer.lr: \".nan\"; expected a number at least 0");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer: 3\n"), "run.yaml:8: optimizer: expected keys with values");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  recompute: all\n"), "run.yaml:8: train.recompute: \"all\"; expected one of none, layer");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  residual_dtype: bfloat16\n"), "run.yaml:8: train.residual_dtype: \"bfloat16\"; expected one of activation, float32");
}

TEST(ConfigReader, NumbersThatAreWrittenOtherwiseAreToldHow) {
  const auto lr = [](const std::string& text) { return error_of(std::string(kMinimal) + "optimizer: {lr: " + text + "}\n"); };
  for (const std::string text : {"128k", "1e3", "1_000", "2.5", "99999999999999999999"})
    EXPECT_EQ(error_of(kMinimal, {"data.sequence_tokens=" + text}),
              "--set data.sequence_tokens=" + text + ": data.sequence_tokens: \"" + text + "\"; expected an integer from 1 to 1073741824, in digits alone");
  for (const std::string text : {"1e-4x", "+1e-3", "1e999", "0x10", "3 %"})
    EXPECT_EQ(lr(text), "run.yaml:8: optimizer.lr: \"" + text + "\"; expected a number at least 0, such as 0.001 or 1e-3, without a unit");
  EXPECT_EQ(lr("\"1e-4\""), "run.yaml:8: optimizer.lr: \"1e-4\"; expected a number at least 0, without quotes");
  EXPECT_EQ(lr("1,0e-4").substr(0, 49), "run.yaml:8: optimizer.0e-4: unknown key; known ke");
  for (const char* text : {"1e-4", "1E-4", ".0001", "0.0001", "0.1e-3"}) EXPECT_EQ(config_of(kMinimal, {std::string("optimizer.lr=") + text}).optimizer.lr, 1e-4) << text;
}

TEST(ConfigReader, ColonsAndTabsThatYamlTakesOtherwiseAreNamed) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer: {lr:1}\n"), "run.yaml:8: optimizer.lr:1: unknown key; expected \"lr: 1\", with a colon and a space");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer: {lr 1}\n"), "run.yaml:8: optimizer.lr 1: unknown key; expected \"lr: 1\", with a colon and a space");
  const std::string tab = error_of("model:\n\tconfig: m.json\n");
  EXPECT_EQ(tab.substr(0, 30), "run.yaml:2: is not valid YAML:") << tab;
  EXPECT_CONTAINS(tab, "; line 2 is indented with a tab, expected spaces");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer: {lr: 1e-4}\t# a tab behind\n"), "accepted");
}

// From editors of other systems.
TEST(ConfigReader, LineEndsAndByteOrderMarksAreTaken) {
  std::string lines = kMinimal;
  for (size_t at = 0; (at = lines.find('\n', at)) != std::string::npos; at += 2) lines.replace(at, 1, "\r\n");
  EXPECT_EQ(config_yaml(config_of(lines)), config_yaml(config_of(kMinimal)));
  EXPECT_EQ(config_yaml(config_of(std::string("\xef\xbb\xbf") + kMinimal)), config_yaml(config_of(kMinimal)));
}

TEST(ConfigReader, InputsThatDoNotExistAreNamedWithTheirPlace) {
  const TemporaryFolder folder;
  test::write_file(folder / "m.json", "{}");
  test::write_file(folder / "d.bin", "");
  const auto error_with = [&](const std::string& model, const std::string& data, Inputs inputs, const std::vector<std::string>& overrides = {}) {
    test::write_file(folder / "run.yaml", "model:\n  config: " + model + "\ndata:\n  train: [{path: " + data + "}]\n  sequence_tokens: 64\ntrain:\n  steps: 10\n");
    return inside(folder, test::error_of([&] { read_config(folder / "run.yaml", overrides, inputs); }));
  };
  const std::string m = folder / "m.json", d = folder / "d";
  EXPECT_EQ(error_with("/no.json", "/no", Inputs::named), "accepted");
  EXPECT_EQ(error_with(m, "/no", Inputs::model), "accepted");
  EXPECT_EQ(error_with(m, d, Inputs::all), "accepted");
  EXPECT_EQ(error_with("/no.json", d, Inputs::model), "run.yaml:2: model.config: /no.json: cannot be read: No such file; expected a Hugging Face config.json or a folder that holds one");
  EXPECT_EQ(error_with(m, "/no", Inputs::all), "run.yaml:4: data.train: /no.bin: cannot open: No such file; expected the path of a data set as hyscale-data build --output had it");
  EXPECT_CONTAINS(error_with(m, d + ".bin", Inputs::all), "d.bin.bin: cannot open: No such file; expected the path of a data set without .bin");
  for (const std::string path : {"$DATA/d", "~/d"}) EXPECT_CONTAINS(error_with(m, path, Inputs::all), "; $ and ~ are not replaced here, but in the shell by --set");
  EXPECT_CONTAINS(error_with(m, d + ".bin/set", Inputs::all), "d.bin/set.bin: cannot open: No such file");
  EXPECT_CONTAINS(error_with(m, std::string(300, 'x'), Inputs::all), ".bin: cannot open: File name too long; expected");
  EXPECT_CONTAINS(error_of(kMinimal, {"checkpoint.directory="}), "checkpoint.directory: expected text, the value is empty");
  EXPECT_CONTAINS(error_of(kMinimal, {"checkpoint.directory=''"}), "checkpoint.directory: is empty; expected a folder");
}

TEST(ConfigReader, RangesDuplicatesAndMissingKeys) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: 0\n"), "run.yaml:8: train.micro_batches: 0; expected an integer from 1 to 1000000");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  steps: 11\n"), "run.yaml:8: train.steps: is given twice");
  EXPECT_EQ(error_of(std::string(kMinimal) + "train:\n  steps: 11\n"), "run.yaml:8: train: is given twice");
  EXPECT_EQ(error_of("model:\n  config: m\ndata:\n  train: [{path: d}]\n  sequence_tokens: 64\n"), "run.yaml: train.steps: is missing");
  EXPECT_EQ(error_of("model:\n  config: m\ndata:\n  train: []\n"), "run.yaml:4: data.train: expected a list of data sets, each {path: PREFIX, weight: NUMBER}");
  EXPECT_EQ(error_of("model:\n  config: m\ndata:\n  train: [{path: d, wieght: 2}]\n  sequence_tokens: 8\n"),
            "run.yaml:4: data.train[0].wieght: unknown key; did you mean \"weight\"?");
  EXPECT_EQ(error_of("a: [1\n").substr(0, 11), "run.yaml:2:");
  EXPECT_EQ(error_of(""), "run.yaml: model.config: is missing");
}

TEST(ConfigReader, YamlThatIsNoConfigurationIsNamed) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "---\ntrain:\n  steps: 11\n"), "run.yaml:8: is not valid YAML: text after the first document");
  EXPECT_EQ(error_of(", a\n"), "run.yaml:1: is not valid YAML: text after the first document");
  EXPECT_EQ(error_of(kMinimal, {"train.steps=, 3"}), "--set train.steps=, 3: the value is not valid YAML: text after the first document");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  [a, b]: 1\n"), "run.yaml:8: train: a key is no word");
  EXPECT_EQ(error_of(std::string(kMinimal) + "[a]: 1\n"), "run.yaml:8: the file: a key is no word");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  ? {a: b}\n  : 1\n"), "run.yaml:8: train: a key is no word");
  EXPECT_EQ(error_of("just words\n"), "run.yaml:1: the file: expected keys with values");
  const std::string deep = error_of("a: " + std::string(100000, '['));
  EXPECT_EQ(deep.substr(0, 30), "run.yaml:1: is not valid YAML:") << deep;
}

TEST(ConfigReader, ImpossibleCombinations) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "schedule:\n  kind: wsd\n  warmup_steps: 1\n  decay_steps: 9223372036854775807\n"),
            "run.yaml:11: schedule.decay_steps: 9223372036854775807; wsd needs from 1 to 9 steps of decay");
  EXPECT_EQ(error_of(std::string(kMinimal) + "schedule:\n  warmup_steps: 11\n"), "run.yaml:9: schedule.warmup_steps: 11 is more than train.steps, 10");
  EXPECT_EQ(error_of(std::string(kMinimal) + "schedule:\n  kind: wsd\n"), "run.yaml: schedule.decay_steps: 0; wsd needs from 1 to 10 steps of decay");
  EXPECT_EQ(error_of(std::string(kMinimal) + "schedule:\n  decay_steps: 3\n"), "run.yaml:9: schedule.decay_steps: acts only with schedule.kind wsd, which is cosine");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  evaluate_every: 5\n"), "run.yaml:8: train.evaluate_every: needs data.validation");
  EXPECT_EQ(error_of(std::string(kMinimal) + "parallel:\n  context: 2\n  expert: 3\n"),
            "run.yaml:10: parallel.expert: 3 does not divide the 2 ranks of the job, parallel.data x parallel.context");
  EXPECT_EQ(error_of(std::string(kMinimal) + "parallel:\n  context_transport: all_gather\n"), "run.yaml:9: parallel.context_transport: acts only with parallel.context above 1");
}

TEST(ConfigReader, DataRanksDivideTheSequencesOfAStep) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: 3\nparallel:\n  data: 2\n"),
            "run.yaml:10: parallel.data: 2 does not divide train.micro_batches, 3: every rank takes equally many sequences of a step");
  EXPECT_EQ(config_of(std::string(kMinimal) + "  micro_batches: 4\nparallel:\n  data: 2\n").parallel.data, 2);
}

TEST(ConfigReader, OverridesGoThroughTheSameChecks) {
  const Config c = config_of(kMinimal, {"train.steps=20", "optimizer.lr=1e-4", "data.train=[{path: other, weight: 3}]"});
  EXPECT_EQ(c.train.steps, 20);
  EXPECT_EQ(c.optimizer.lr, 1e-4);
  EXPECT_EQ(c.data.train[0].path, "other");
  EXPECT_EQ(error_of(kMinimal, {"train.stepz=20"}), "--set train.stepz=20: train.stepz: unknown key; did you mean \"steps\"?");
  EXPECT_EQ(error_of(kMinimal, {"train.steps=many"}), "--set train.steps=many: train.steps: \"many\"; expected an integer from 1 to 1000000000000");
  EXPECT_EQ(error_of(kMinimal, {"steps"}), "--set steps: expected section.key=value");
  EXPECT_EQ(error_of(kMinimal, {"trian.steps=3"}), "--set trian.steps=3: trian: unknown key; did you mean \"train\"?");
  EXPECT_EQ(error_of(kMinimal, {"data.train.path=x"}), "--set data.train.path=x: data.train has no keys");
  const Config groups = config_of(kMinimal, {"optimizer.groups.indexer.lr=1e-3", "optimizer.groups.router.lr_scale=0.5"});
  EXPECT_EQ(groups.optimizer.groups.at("indexer").lr, 1e-3);
  EXPECT_EQ(groups.optimizer.groups.at("router").lr_scale, 0.5);
  EXPECT_EQ(error_of(kMinimal, {"optimizer.groups.indexr.lr=1e-3"}), "--set optimizer.groups.indexr.lr=1e-3: optimizer.groups.indexr: unknown key; did you mean \"indexer\"?");
}

TEST(ConfigReader, TheEffectiveConfigurationReadsBackTheSame) {
  const Config c = config_of(kMinimal, {"optimizer.lr=0.00012345678901234567", "checkpoint.directory='a b: c'", "model.mtp=true"});
  EXPECT_EQ(config_yaml(c), config_yaml(config_of(config_yaml(c))));
}

TEST(ConfigReader, StagesReplaceStageLearningRateAndSchedule) {
  const Config c = config_of(kMinimal, {"train.stages=[{stage: warmup, steps: 4, lr: 5e-3, schedule: linear, min_lr: 2e-4}, {steps: 6, lr: 1e-5}]"});
  EXPECT_EQ(num_stages(c), 2u);
  const Config warmup = stage_config(c, 0), sparse = stage_config(c, 1);
  EXPECT_EQ(warmup.model.stage + " " + warmup.schedule.kind + " " + sparse.model.stage + " " + sparse.schedule.kind, "warmup linear sparse constant");
  EXPECT_EQ(warmup.train.steps, 4);
  EXPECT_EQ(warmup.schedule.min_lr, 2e-4);
  EXPECT_EQ(sparse.optimizer.lr, 1e-5);
  for (const auto& [step, stage, within] : {std::tuple{1, 0u, 1}, {4, 0u, 4}, {5, 1u, 1}, {10, 1u, 6}, {12, 1u, 8}}) {
    EXPECT_EQ(stage_of_step(c, step).stage, stage);
    EXPECT_EQ(stage_of_step(c, step).step, within);
  }
  EXPECT_EQ(config_yaml(c), config_yaml(config_of(config_yaml(c))));
  EXPECT_EQ(num_stages(config_of(kMinimal)), 1u);
}

TEST(ConfigReader, ImpossibleStages) {
  const auto refused = [](const std::string& stages, const std::string& more = "") { return error_of(std::string(kMinimal) + "  stages: " + stages + "\n" + more); };
  EXPECT_EQ(refused("[{steps: 4, lr: 1}]"), "run.yaml:8: train.stages: have 4 steps together; train.steps is 10");
  EXPECT_EQ(refused("[{steps: 10}]"), "run.yaml: train.stages[0].lr: is missing");
  EXPECT_EQ(refused("[{steps: 10, lr: 1, stages: 3}]"), "run.yaml:8: train.stages[0].stages: unknown key; did you mean \"stage\"?");
  EXPECT_EQ(refused("3"), "run.yaml:8: train.stages: expected a list");
  EXPECT_EQ(refused("[{steps: 10, lr: 1}]", "optimizer:\n  lr: 1\n"), "run.yaml:10: optimizer.lr: does not act with train.stages, each of which has its own");
  EXPECT_EQ(refused("[{steps: 10, lr: 1}]", "model:\n  stage: warmup\n").substr(0, 11), "run.yaml:9:");  // model is given twice
  EXPECT_EQ(refused("[{steps: 5, lr: 1}, {steps: 5, lr: 1, stage: warmup}]"),
            "run.yaml:8: train.stages: stage 2: warmup after sparse would lose the optimizer state of the trunk; expected warmup first");
  EXPECT_EQ(refused("[{steps: 10, lr: 1, warmup_steps: 11}]"), "run.yaml:8: train.stages: stage 1, schedule.warmup_steps: 11 is more than train.steps, 10");
  EXPECT_EQ(refused("[{steps: 10, lr: 1}]", "  overfit_loss: 2\n"), "run.yaml:9: train.overfit_loss: acts only with model.stage sparse and without train.stages");
}

TEST(ConfigReader, OptimizersAndGroups) {
  const Config c = config_of(kMinimal, {"optimizer.name=muon", "optimizer.groups={indexer: {lr: 1e-3, name: adamw}, router: {lr_scale: 0.1}}"});
  EXPECT_EQ(c.optimizer.groups.at("indexer").lr, 1e-3);
  EXPECT_EQ(c.optimizer.groups.at("router").lr_scale, 0.1);
  EXPECT_EQ(config_yaml(c), config_yaml(config_of(config_yaml(c))));
  const auto refused = [](const std::string& optimizer) { return error_of(kMinimal, {"optimizer." + optimizer}); };
  EXPECT_EQ(refused("groups={indexr: {lr: 1}}"), "--set optimizer.groups={indexr: {lr: 1}}: optimizer.groups.indexr: unknown key; did you mean \"indexer\"?");
  EXPECT_CONTAINS(refused("groups={indexer: {}}"), "indexer: says nothing; expected name, lr or lr_scale");
  EXPECT_CONTAINS(refused("groups={indexer: {lr: 1, lr_scale: 2}}"), "indexer: lr 1 and lr_scale 2 exclude each other");
  EXPECT_CONTAINS(refused("groups={vectors: {name: muon}}"), "vectors: Muon is for matrices; expected adamw");
  EXPECT_CONTAINS(refused("update_rms=0.1"), "acts only with optimizer.name muon, or with a group that has it");
  EXPECT_EQ(config_of(kMinimal, {"optimizer.update_rms=0.1", "optimizer.groups={head: {name: muon}}"}).optimizer.update_rms, 0.1);
  EXPECT_EQ(error_of(kMinimal, {"optimizer.name=muon", "optimizer.newton_schulz=polar_express", "optimizer.polish_steps=2"}),
            "--set optimizer.polish_steps=2: optimizer.polish_steps: acts only with newton_schulz quintic, which is polar_express");
  EXPECT_EQ(error_of(kMinimal, {"model.stage=warmup", "optimizer.groups={router: {lr_scale: 2}}"}),
            "--set optimizer.groups={router: {lr_scale: 2}}: optimizer.groups: router does not act with model.stage warmup, which trains the indexers alone");
}

TEST(ConfigReader, GuardsThatDoNotActAreRefused) {
  EXPECT_EQ(error_of(kMinimal, {"guard.window=5"}), "--set guard.window=5: guard.window: acts only with guard.loss_factor or guard.grad_norm_factor");
  EXPECT_EQ(error_of(kMinimal, {"guard.loss_factor=0.5"}), "--set guard.loss_factor=0.5: guard.loss_factor: 0.5; expected 0 (not watched) or a number above 1");
  EXPECT_EQ(error_of(kMinimal, {"guard.loss_factor=2", "guard.window=5"}), "run.yaml: guard.min_steps: 16 is more than guard.window, 5");
  EXPECT_EQ(error_of(kMinimal, {"guard.loss_factor=2", "guard.action=stop", "guard.skip_limit=2"}), "--set guard.skip_limit=2: guard.skip_limit: acts only with guard.action skip");
  EXPECT_EQ(error_of(kMinimal, {"guard.loss_factor=2", "model.stage=warmup"}), "--set guard.loss_factor=2: guard.loss_factor: does not act with model.stage warmup, whose trunk is frozen");
  EXPECT_EQ(error_of(kMinimal, {"run.replica_check_every=2"}), "--set run.replica_check_every=2: run.replica_check_every: acts only with several ranks, parallel.data or parallel.context above 1");
  EXPECT_EQ(error_of(kMinimal, {"run.straggler_factor=3"}), "--set run.straggler_factor=3: run.straggler_factor: acts only with several ranks, parallel.data or parallel.context above 1");
  EXPECT_EQ(config_of(kMinimal, {"guard.loss_factor=2", "guard.window=32", "parallel.context=2", "run.replica_check_every=2", "run.straggler_factor=3"}).guard.window, 32);
}

TEST(ConfigReader, MissingFile) {
  EXPECT_EQ(test::error_of([] { read_config("/nowhere/run.yaml"); }), "/nowhere/run.yaml: cannot be read; expected a YAML configuration");
}

TEST(ConfigReader, TheReferenceInTheDocsIsCurrent) { EXPECT_EQ(test::read_file("docs/config.md"), config_reference()) << "regenerate with hyscale-train --config-reference > docs/config.md"; }

}  // namespace
}  // namespace hyscale
