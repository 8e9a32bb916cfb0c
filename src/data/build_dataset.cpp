#include "data/build_dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "data/gzip_buffer.h"
#include "data/indexed_dataset.h"

namespace hyscale {
namespace fs = std::filesystem;
namespace {

using Sink = std::function<void(const std::string& text, const std::string& place)>;

bool has_ending(const std::string& path, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* e) { return path.ends_with(e); });
}

std::unique_ptr<std::streambuf> open_text(const std::string& path) {
  if (path.ends_with(".gz")) return std::make_unique<GzipBuffer>(path);
  auto file = std::make_unique<std::filebuf>();
  if (!file->open(path, std::ios::in | std::ios::binary)) throw UserError(path + ": cannot be read");
  return file;
}

std::string read_text(const std::string& path) {
  if (!path.ends_with(".gz")) return read_text_file(path);
  GzipBuffer text(path);
  return {std::istreambuf_iterator<char>(&text), {}};
}

void read_json_lines(const std::string& path, const std::string& key, const Sink& sink) {
  const std::unique_ptr<std::streambuf> buffer = open_text(path);
  std::istream file(buffer.get());
  file.exceptions(std::ios::badbit);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = concat(path, ":", number);
    const nlohmann::json json = parse_json(line, place);
    if (!json.is_object()) throw UserError(place + ": is no JSON object");
    if (!json.contains(key) || !json[key].is_string()) throw UserError(concat(place, ": has no string \"", key, "\"; name the key with --json-key"));
    sink(json[key].get<std::string>(), place);
  }
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text, const std::string& place) {
  try {
    return tokenizer.encode(text);
  } catch (const UserError& e) {
    throw UserError(concat(place, ": ", e.what()));
  }
}

std::vector<std::string> files_of(const std::string& input) {
  if (!fs::exists(input)) throw UserError(input + ": does not exist");
  if (!fs::is_directory(input)) return {input};
  std::vector<std::string> paths;
  for (auto it = fs::recursive_directory_iterator(input, fs::directory_options::skip_permission_denied); it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_directory() && name.starts_with(".")) it.disable_recursion_pending();
    if (it->is_regular_file() && !name.starts_with(".")) paths.push_back(it->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

BuildReport build_dataset(const BuildOptions& o, const Tokenizer& tokenizer) {
  BuildReport report;
  if (o.append_end_of_document && tokenizer.end_of_document() < 0)
    throw UserError("the tokenizer's files name no token that ends documents; name one with --end-of-document, or leave it out with --no-end-of-document");
  if (fs::path(o.output).has_parent_path()) make_folder(fs::path(o.output).parent_path());
  IndexedDatasetWriter train(o.output, tokenizer.vocabulary_size());
  std::optional<IndexedDatasetWriter> validation;
  if (o.validation_fraction > 0) validation.emplace(o.output + "-validation", tokenizer.vocabulary_size());
  int64_t documents = 0;
  const Sink sink = [&](const std::string& text, const std::string& place) {
    std::vector<int32_t> ids = encode(tokenizer, text, place);
    if (ids.empty()) return void(++report.empty_documents);
    if (o.append_end_of_document) ids.push_back(tokenizer.end_of_document());
    ++documents;
    // The product of a fraction and a count may fall just below a whole number.
    const bool held_out = validation && std::floor(static_cast<double>(documents) * o.validation_fraction + 1e-9) > static_cast<double>(validation->num_documents());
    (held_out ? *validation : train).add_document(ids);
  };
  for (const std::string& input : o.inputs) {
    const bool folder = fs::is_directory(input);
    for (const std::string& path : files_of(input)) {
      if (!folder && has_ending(path, {".zst", ".xz", ".bz2", ".zip", ".parquet"}))
        throw UserError(path + ": is packed; expected text or .jsonl, as they are or with .gz");
      if (has_ending(path, {".jsonl", ".jsonl.gz"})) {
        read_json_lines(path, o.json_key, sink);
        continue;
      }
      const std::string text = read_text(path);
      if (folder && text.find('\0') != std::string::npos)
        ++report.binary_files;
      else
        sink(text, path);
    }
  }
  if (train.num_documents() == 0) throw UserError(concat(o.output, ": the input holds no text for training"));
  if (validation && validation->num_documents() == 0)
    throw UserError(concat(o.output, ": a validation fraction of ", o.validation_fraction, " takes none of ", documents, " documents; expected ", documents > 1 ? concat("at least ", 1.0 / static_cast<double>(documents)) : "more documents", ", or no fraction"));
  train.finish();
  report.documents = train.num_documents();
  report.tokens = train.num_tokens();
  if (validation) {
    validation->finish();
    report.validation_documents = validation->num_documents();
    report.validation_tokens = validation->num_tokens();
  }
  return report;
}

}  // namespace hyscale
