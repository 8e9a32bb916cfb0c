// JSON from files that may come from anyone: parsing, and typed access to the keys of an object.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"

namespace hyscale {

// Throws UserError naming `path` for text that is not JSON or nests deeper than 64 levels: copying and printing a value
// takes stack for every level.
nlohmann::json parse_json(const std::string& text, const std::string& path);
nlohmann::json read_json_file(const std::string& path);

// Errors name the file and the key. Objects outlive their reader.
class JsonReader {
 public:
  static constexpr int64_t kMostCount = int64_t{1} << 62;  // of things counted from then on, with room to go on counting

  JsonReader(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) throw UserError(path_ + ": expected a JSON object");
  }

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const nlohmann::json& raw(const char* key) const {
    if (!has(key)) throw UserError(concat(path_, ": \"", key, "\" is missing"));
    return object_[key];
  }
  int64_t integer(const char* key, int64_t lowest, int64_t highest = int64_t{1} << 40) const {
    const nlohmann::json& v = raw(key);
    if (!v.is_number_integer()) fail(key, v, "an integer");
    const int64_t n = v.get<int64_t>();
    if (n < lowest || n > highest) fail(key, v, concat("an integer from ", lowest, " to ", highest));
    return n;
  }
  int64_t integer_or(const char* key, int64_t otherwise, int64_t lowest) const { return has(key) ? integer(key, lowest) : otherwise; }
  double number(const char* key) const {
    const nlohmann::json& v = raw(key);
    // Configurations compute with floats.
    if (!v.is_number() || !(std::abs(v.get<double>()) <= std::numeric_limits<float>::max())) fail(key, v, "a number that f32 holds");
    return v.get<double>();
  }
  double number_or(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool boolean_or(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_boolean()) fail(key, object_[key], "true or false");
    return object_[key].get<bool>();
  }
  std::string text(const char* key) const {
    const nlohmann::json& v = raw(key);
    if (!v.is_string()) fail(key, v, "a string");
    return v.get<std::string>();
  }
  std::string text_or(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_string()) fail(key, object_[key], "a string");
    return object_[key].get<std::string>();
  }
  // A list of `count` words, each of them one of `choices`.
  std::vector<std::string> words(const char* key, int64_t count, const std::vector<std::string>& choices) const {
    const nlohmann::json& list = raw(key);
    if (!list.is_array() || static_cast<int64_t>(list.size()) != count) fail(key, list, concat("a list of ", count, " entries"));
    for (size_t i = 0; i < list.size(); ++i)
      if (std::find(choices.begin(), choices.end(), list[i]) == choices.end()) fail(concat(key, "[", i, "]"), list[i], concat("one of ", nlohmann::json(choices).dump()));
    return list.get<std::vector<std::string>>();
  }
  // The key is absent or has this very value; anything else is refused.
  template <typename T>
  void only(const char* key, const T& supported) const {
    if (has(key) && object_[key] != nlohmann::json(supported)) fail(key, object_[key], concat("supported is ", nlohmann::json(supported).dump()));
  }
  [[noreturn]] void fail(const std::string& key, const nlohmann::json& value, const std::string& expected) const {
    throw UserError(concat(path_, ": \"", key, "\" is ", value.dump().substr(0, 200), "; expected ", expected));
  }

 private:
  const nlohmann::json& object_;
  std::string path_;
};

}  // namespace hyscale
