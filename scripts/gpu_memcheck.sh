#!/usr/bin/env bash
# Runs the GPU tests' small shapes under compute-sanitizer and prints one line for each program and tool.
#   scripts/gpu_memcheck.sh BIN_DIR [TOOL...]       tools: memcheck (default), initcheck, racecheck, synccheck
# BIN_DIR holds the test programs. The sanitizer is taken from PATH, the CUDA toolkit, or $COMPUTE_SANITIZER; where there is
# none, `pip download --no-deps nvidia-cuda-sanitizer-api==13.0.*` gets a wheel that holds it. Logs go to $OUT (default runs/gpu_memcheck).
# $PROGRAMS names them where not all are wanted. $FILTER is a GoogleTest filter; by default tests that allocate tens of GiB and the sweep over cuBLAS products are left out.
set -uo pipefail
bin=${1:?usage: scripts/gpu_memcheck.sh BIN_DIR [tool]...}; shift
tools=${*:-memcheck}
out=${OUT:-runs/gpu_memcheck}
filter=${FILTER:-*Cuda*-*Large*:*MoreTokensThanAChunk*:GemmCuda.Every*}
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/compute-sanitizer/compute-sanitizer)}
[[ -x $sanitizer ]] || { echo "no compute-sanitizer at $sanitizer: install the CUDA toolkit's, or set COMPUTE_SANITIZER" >&2; exit 2; }
mkdir -p "$out"
failed=0
printf '%-24s %-10s %6s %6s  %s\n' program tool passed errors seconds
for program in ${PROGRAMS:-test_dense_ops_cuda test_attention_cuda test_topk_cuda test_selection_pack test_faults_cuda test_block_attention_cuda test_linear_attention_ops_cuda}; do
  for tool in $tools; do
    log=$out/$program.$tool.log
    start=$SECONDS
    "$sanitizer" --tool "$tool" --print-limit 20 "$bin/$program" --gtest_filter="$filter" > "$log" 2>&1
    passed=$(sed -n 's/.*\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log")
    errors=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p; s/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p' "$log")
    printf '%-24s %-10s %6s %6s  %s\n' "$program" "$tool" "${passed:-none}" "${errors:-none}" "$((SECONDS - start))"
    if [[ ${errors:-1} != 0 || -z ${passed:-} ]] || grep -q '\[  FAILED  \]' "$log"; then failed=1; fi
  done
done
exit $failed
