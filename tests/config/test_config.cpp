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

std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const TemporaryFolder folder;
  test::write_file(folder / "run.yaml", yaml);
  try {
    read_config(folder / "run.yaml", overrides);
  } catch (const UserError& e) {
    const std::string message = e.what();
    return message.starts_with(folder.path() + "/") ? message.substr(folder.path().size() + 1) : message;
  }
  return "accepted";
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
}

TEST(ConfigReader, MistypedValuesAreNamed) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: two\n"), "run.yaml:8: train.micro_batches: \"two\"; expected an integer");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: 1.5\n"), "run.yaml:8: train.micro_batches: \"1.5\"; expected an integer");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: \"2\"\n"), "run.yaml:8: train.micro_batches: \"2\"; expected an integer");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  deterministic: yes\n"), "run.yaml:8: train.deterministic: \"yes\"; expected true or false");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer:\n  lr: fast\n"), "run.yaml:9: optimizer.lr: \"fast\"; expected a number");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer:\n  lr: .nan\n"), "run.yaml:9: optimizer.lr: \".nan\"; expected a number");
  EXPECT_EQ(error_of(std::string(kMinimal) + "optimizer: 3\n"), "run.yaml:8: optimizer: expected keys with values");
  EXPECT_EQ(error_of(std::string(kMinimal) + "  recompute: all\n"), "run.yaml:8: train.recompute: \"all\"; expected one of none, layer");
}

TEST(ConfigReader, RangesDuplicatesAndMissingKeys) {
  EXPECT_EQ(error_of(std::string(kMinimal) + "  micro_batches: 0\n"), "run.yaml:8: train.micro_batches: 0; expected an integer from 1 to 1e+06");
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
  EXPECT_EQ(error_of(kMinimal, {"train.steps=many"}), "--set train.steps=many: train.steps: \"many\"; expected an integer");
  EXPECT_EQ(error_of(kMinimal, {"steps"}), "--set steps: expected section.key=value");
}

TEST(ConfigReader, TheEffectiveConfigurationReadsBackTheSame) {
  const Config c = config_of(kMinimal, {"optimizer.lr=0.00012345678901234567", "checkpoint.directory='a b: c'", "model.mtp=true"});
  EXPECT_EQ(config_yaml(c), config_yaml(config_of(config_yaml(c))));
}

TEST(ConfigReader, MissingFile) {
  try {
    read_config("/nowhere/run.yaml");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()), "/nowhere/run.yaml: cannot be read; expected a YAML configuration");
  }
}

TEST(ConfigReader, TheReferenceInTheDocsIsCurrent) { EXPECT_EQ(test::read_file("docs/config.md"), config_reference()) << "regenerate with hyscale-train --config-reference > docs/config.md"; }

}  // namespace
}  // namespace hyscale
