// What errors say.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"

namespace hyscale::test {

// The message of the UserError that `function` throws, or "accepted".
template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const UserError& e) {
    return e.what();
  }
  return "accepted";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(::hyscale::test::contains(text, part)) << "expected \"" << (part) << "\" in: " << (text)

}  // namespace hyscale::test
