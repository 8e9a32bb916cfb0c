// Typed access to the keys of a JSON object, with errors that name the file and the key.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace hyscale {

class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) throw UserError(path_ + ": expected a JSON object");
  }

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const nlohmann::json& raw(const char* key) const { return object_[key]; }

  int64_t integer(const char* key, int64_t lowest, int64_t highest = int64_t{1} << 40) const {
    const nlohmann::json& v = require(key);
    if (!v.is_number_integer()) fail(key, v, "an integer");
    const int64_t n = v.get<int64_t>();
    if (n < lowest || n > highest) fail(key, v, concat("an integer from ", lowest, " to ", highest));
    return n;
  }
  int64_t integer_or(const char* key, int64_t otherwise, int64_t lowest) const { return has(key) ? integer(key, lowest) : otherwise; }
  double number(const char* key) const {
    const nlohmann::json& v = require(key);
    if (!v.is_number()) fail(key, v, "a number");
    return v.get<double>();
  }
  double number_or(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool boolean_or(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_boolean()) fail(key, object_[key], "true or false");
    return object_[key].get<bool>();
  }
  std::string text_or(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_string()) fail(key, object_[key], "a string");
    return object_[key].get<std::string>();
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
  const nlohmann::json& require(const char* key) const {
    if (!has(key)) throw UserError(concat(path_, ": \"", key, "\" is missing"));
    return object_[key];
  }
  const nlohmann::json& object_;
  std::string path_;
};

}  // namespace hyscale
