// What every program does with errors: the message to stderr, and the exit code of its kind.
#pragma once
#include <csignal>
#include <cstdio>
#include <new>

#include "core/error.h"

namespace hyscale {

template <typename Function>
int guarded_main(const char* program, Function function) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond a limit (ulimit -f) fails to be written, with its name
  try {
    return function();
  } catch (const UserError& e) {
    std::fprintf(stderr, "%s: %s\n", program, e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: internal error: %s\n", program, e.what());
    return 1;
  }
}

}  // namespace hyscale
