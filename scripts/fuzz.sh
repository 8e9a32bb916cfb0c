#!/usr/bin/env bash
# Runs the fuzz targets, one after the other, with libFuzzer and sanitizers. Needs clang, libclang-rt-14-dev and libomp-14-dev.
#   scripts/fuzz.sh [SECONDS [TARGET...]]      SECONDS of each target, 1200 by default
# New inputs that reach new code gather in build-fuzz/corpus/TARGET, findings in build-fuzz/findings. An allocation of more
# than 64 MiB at once is a finding: no input is large enough to justify it.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang++ >/dev/null || { echo "fuzz: clang++ is missing; install it with: apt-get install clang libclang-rt-14-dev libomp-14-dev" >&2; exit 1; }
seconds=${1:-1200}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for corpus in tests/fuzz/corpus/*/; do targets+=("$(basename "$corpus")"); done
fi
cmake --preset fuzz
cmake --build --preset fuzz --target "${targets[@]/#/fuzz_}"
mkdir -p build-fuzz/findings
for target in "${targets[@]}"; do
  mkdir -p "build-fuzz/corpus/$target"
  echo "fuzz: $target for $seconds s"
  build-fuzz/tests/"fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=64 -print_final_stats=1 \
    -max_len=16384 -artifact_prefix="build-fuzz/findings/$target-" "build-fuzz/corpus/$target" "tests/fuzz/corpus/$target"
done
echo "fuzz: no findings"
