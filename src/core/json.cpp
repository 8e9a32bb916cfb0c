#include "core/json.h"

#include "core/file.h"

namespace hyscale {

nlohmann::json parse_json(const std::string& text, const std::string& path) {
  constexpr int kMostDepth = 64;
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    if (depth > kMostDepth) throw UserError(concat(path, ": nests deeper than ", kMostDepth, " levels"));
    return true;
  };
  try {
    return nlohmann::json::parse(text, limit_depth);
  } catch (const nlohmann::json::exception& e) {
    const std::string what = e.what();  // "[json.exception.parse_error.101] parse error at ..."
    throw UserError(concat(path, ": is not valid JSON: ", what.substr(what.find("] ") + 2)));
  }
}

nlohmann::json read_json_file(const std::string& path) { return parse_json(read_text_file(path), path); }

}  // namespace hyscale
