#!/usr/bin/env bash
# Checks and times sparse attention and the index loss on the GPU of this machine.
#   scripts/gpu_attention.sh [BUILD_DIR, build] [QUERIES, 8192]
set -euo pipefail
build=${1:-build}
"$build/tests/test_attention_cuda"
"$build/tests/attention-bench" "${2:-8192}"
