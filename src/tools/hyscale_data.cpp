// hyscale-data: builds and inspects token data sets.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <map>

#include "data/build_dataset.h"
#include "data/indexed_dataset.h"
#include "tools/main.h"

namespace hyscale {
namespace {

// Entropy of single tokens in nats: what a model that knows only their frequencies reaches.
double unigram_entropy(const std::map<int32_t, int64_t>& counts, int64_t total) {
  double entropy = 0;
  for (const auto& [id, n] : counts) entropy -= static_cast<double>(n) / static_cast<double>(total) * std::log(static_cast<double>(n) / static_cast<double>(total));
  return entropy;
}

void inspect(const std::string& prefix, int64_t show, const std::string& tokenizer_name) {
  const IndexedDataset data(prefix);
  std::map<int32_t, int64_t> counts;
  int64_t shortest = INT64_MAX, longest = 0, empty = 0;
  std::vector<int32_t> ids;
  for (int64_t d = 0; d < data.num_documents(); ++d) {
    const int64_t length = data.document_tokens(d);
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    empty += length == 0;
    ids.resize(static_cast<size_t>(length));
    data.read(d, 0, length, INT32_MAX, ids.data());
    for (int32_t id : ids) ++counts[id];
  }
  std::cout << fmt::format("{}: {} documents ({} empty), {} tokens of {}, {} to {} per document, highest id {}, unigram entropy {:.4f} nats\n", prefix,
                           data.num_documents(), empty, data.num_tokens(), data.dtype_name(), data.num_documents() ? shortest : 0, longest,
                           counts.empty() ? -1 : counts.rbegin()->first, unigram_entropy(counts, data.num_tokens()));
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_name.empty() ? nullptr : make_tokenizer(tokenizer_name);
  for (int64_t d = 0; d < std::min(show, data.num_documents()); ++d) {
    ids.resize(static_cast<size_t>(std::min<int64_t>(data.document_tokens(d), 64)));
    data.read(d, 0, static_cast<int64_t>(ids.size()), INT32_MAX, ids.data());
    std::cout << fmt::format("document {}: {}\n", d, tokenizer ? tokenizer->decode(ids) : fmt::format("{}", fmt::join(ids, " ")));
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Builds and inspects token data sets (Megatron's .bin/.idx)."};
  add_version(app, "hyscale-data");
  app.require_subcommand(1);
  BuildOptions build;
  std::string tokenizer = "byte", end_of_document, prefix, decoder;
  int64_t show = 0;
  bool no_end = false;
  CLI::App* b = app.add_subcommand("build", "text files and .jsonl files, both also with .gz, and folders of these to OUTPUT.bin and OUTPUT.idx");
  b->add_option("inputs", build.inputs, "files and folders")->required();
  b->add_option("--output", build.output, "path prefix of the data set")->required();
  b->add_option("--tokenizer", tokenizer, "byte, or the path of a tokenizer.json (or its folder) or SentencePiece model")->capture_default_str();
  b->add_option("--end-of-document", end_of_document, "token that ends documents; the default is the tokenizer's own");
  b->add_option("--json-key", build.json_key, "key of the text in .jsonl lines")->capture_default_str();
  b->add_option("--validation-fraction", build.validation_fraction, "share of documents for OUTPUT-validation")->check(CLI::Range(0.0, 0.5));
  b->add_flag("--no-end-of-document", no_end, "do not end documents with the tokenizer's id for it");
  CLI::App* i = app.add_subcommand("inspect", "sizes, lengths and contents");
  i->add_option("prefix", prefix, "path prefix of the data set")->required();
  i->add_option("--show", show, "documents to show the beginning of");
  i->add_option("--tokenizer", decoder, "decode what is shown");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (i->parsed()) return inspect(prefix, show, decoder), 0;
  build.append_end_of_document = !no_end;
  const BuildReport r = build_dataset(build, *make_tokenizer(tokenizer, end_of_document));
  std::cout << fmt::format("{}: {} documents, {} tokens", build.output, r.documents, r.tokens);
  if (build.validation_fraction > 0) std::cout << fmt::format("; validation: {} documents, {} tokens", r.validation_documents, r.validation_tokens);
  std::cout << fmt::format("; left out: {} empty documents, {} binary files\n", r.empty_documents, r.binary_files);
  return 0;
}

}  // namespace
}  // namespace hyscale

int main(int argc, char** argv) {
  return hyscale::guarded_main("hyscale-data", [&] { return hyscale::run(argc, argv); });
}
