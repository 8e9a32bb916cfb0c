#!/usr/bin/env bash
# Runs the tests labelled "long", which scripts/test.sh leaves out.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
cmake --preset release
cmake --build --preset release
ctest --preset release -L long "$@"
