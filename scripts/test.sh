#!/usr/bin/env bash
# Sets up, builds and runs all tests of the default suite.  scripts/test.sh [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
cmake --preset release
cmake --build --preset release
ctest --preset release -j "$(nproc)" -LE long "$@"
