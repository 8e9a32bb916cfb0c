#!/usr/bin/env bash
# On a machine with one GPU: every layout of 2 and 4 ranks that share it (MPI with staging) against one rank, in bf16.
#   scripts/gpu_layouts.sh BIN_DIR                              all families with everything selected, against limits; a line for each
#   scripts/gpu_layouts.sh BIN_DIR layout_check options...      as the options say, a line for each layout
# BIN_DIR holds layout_check. Logs go to $OUT (default runs/gpu_layouts).
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${1:?usage: scripts/gpu_layouts.sh BIN_DIR [options]}; shift
out=${OUT:-runs/gpu_layouts}
mkdir -p "$out"
export PMIX_MCA_pcompress_base_silence_warning=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
status=0
layouts() { # log, ranks, options
  local log=$1 ranks=$2; shift 2
  mpirun --oversubscribe --mca btl_vader_single_copy_mechanism none -np "$ranks" "$bin/layout_check" --device cuda "$@" > "$out/$log" 2>&1 || { status=1; false; }
}
if [ $# -gt 0 ]; then
  for ranks in 1 2 4; do layouts "np$ranks.log" $ranks "$@"; done
  grep -hE "loss|rank [0-9]" "$out"/np*.log | cut -c1-170
  exit $status
fi
# Nothing is left but rounding where every key is selected and every expert chosen. Limits: losses, each gradient, all together.
while read -r name losses gradients total options; do
  for ranks in 2 4; do
    verdict=ok
    layouts "$name.np$ranks.log" $ranks --smooth --own-selections --losses "$losses" --gradients "$gradients" --total-gradient "$total" $options < /dev/null || verdict=FAILED
    awk -v what="$name, $ranks ranks: $verdict" '/ loss .* gradient /{n++; for(i=1;i<NF;i++){v=$(i+1)+0; if($i=="loss"&&v>l)l=v; if($i=="gradient"&&v>g)g=v; if($i=="worst"&&v>w){w=v;p=$(i+2)}}}
      END{printf "%-36s %3d layouts; losses %.1e, gradient as a whole %.1e, worst %.1e %s\n", what, n, l, g, w, p}' "$out/$name.np$ranks.log"
  done
done <<'END'
glm 1e-5 3e-2 1e-2 --family glm51
deepseek-v4 4e-4 0.25 3e-2 --family deepseek_v4
qwen 1e-4 4e-2 2e-2 --family qwen_qsa --wide
qwen-ngram 1e-4 0.8 2e-2 --family qwen_qsa_ple --wide
END
exit $status
