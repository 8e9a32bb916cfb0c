// What every program does: errors go to stderr with the exit code of their kind, and --version says what was built.
#pragma once
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <new>

#include "core/error.h"
#include "core/memory.h"

namespace hyscale {

inline void add_version(CLI::App& app, const char* program) {
  app.set_version_flag("--version", concat(program, " " HYSCALE_VERSION, built_with_cuda() ? ", CUDA and CPU" : ", CPU alone"), "print version and backends, and exit");
}

template <typename Function>
int guarded_main(const char* program, Function function) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond a limit (ulimit -f) fails to be written, with its name
  try {
    return function();
  } catch (const UserError& e) {
    std::fprintf(stderr, "%s: %s\n", program, e.what());
    return 2;
  } catch (const std::filesystem::filesystem_error& e) {
    std::fprintf(stderr, "%s: %s\n", program, e.what());  // a path that may not be looked at
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: internal error: %s\n", program, e.what());
    return 1;
  }
}

}  // namespace hyscale
