#!/usr/bin/env bash
# On a machine with one GPU: every layout of 2 and 4 ranks that share it (MPI with staging) against one rank, in bf16.
#   scripts/gpu_layouts.sh BIN_DIR [layout_check options]        BIN_DIR holds layout_check
# Qwen3.8: --family qwen_qsa --smooth, and --wide for the delta rule on tensor cores.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${1:?usage: scripts/gpu_layouts.sh BIN_DIR [options]}; shift
out=${OUT:-runs/gpu_layouts}
mkdir -p "$out"
export PMIX_MCA_pcompress_base_silence_warning=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
status=0
for ranks in 1 2 4; do
  mpirun --oversubscribe --mca btl_vader_single_copy_mechanism none -np $ranks "$bin/layout_check" --device cuda "$@" > "$out/np$ranks.log" 2>&1 || status=1
done
grep -hE "loss|rank [0-9]" "$out"/np*.log | cut -c1-170
exit $status
