#!/usr/bin/env bash
# A run that is killed (SIGKILL) again and again and resumed, beside the same run left alone: equal weights at the end, and no
# step missing from the metrics.
#   scripts/kill_run.sh BIN_DIR [SECONDS [MOST_SECONDS_BETWEEN_KILLS]]     default: an hour, a kill every 5 minutes at most
# BIN_DIR holds hyscale-train and hyscale-data. $OUT (default runs/kill_run) gets both runs.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:?usage: scripts/kill_run.sh BIN_DIR [SECONDS [MOST_SECONDS_BETWEEN_KILLS]]}
seconds=${2:-3600} between=${3:-300}
out=${OUT:-runs/kill_run}
export OMP_WAIT_POLICY=passive
rm -rf "$out"; mkdir -p "$out"
"$bin/hyscale-data" build src kernels docs --output "$out/text" > "$out/data.log"
arguments() { # folder, steps -> the run's command line in `command`
  command=("$bin/hyscale-train" --config configs/quickstart.yaml --set "data.train=[{path: $out/text}]" --set "data.validation=[]" --set train.evaluate_every=0 --set train.steps="$2"
    --set schedule.kind=constant --set schedule.min_lr=0 --set checkpoint.every=20 --set checkpoint.directory="$out/$1" --set run.device=cpu)
}
start=$SECONDS
arguments rate 40
"${command[@]}" > "$out/rate.log" 2>&1
steps=$(( 40 * seconds / (SECONDS - start + 1) / 20 * 20 + 20 ))
echo "kill_run: $steps steps, about $seconds s"
arguments whole "$steps"
"${command[@]}" > "$out/whole.log" 2>&1 &
whole=$!
trap 'kill -9 "$whole" 2> /dev/null || true' EXIT
arguments cut "$steps"
kills=0 begun=$SECONDS
while true; do
  "${command[@]}" --resume latest >> "$out/cut.log" 2>&1 &
  pid=$!
  sleep $(( between / 4 + RANDOM % (between * 3 / 4 + 1) )) &
  timer=$!
  wait -n "$pid" "$timer" || true
  if ! kill -9 "$pid" 2> /dev/null; then
    wait "$pid"
    kill "$timer" 2> /dev/null || true
    break
  fi
  wait "$pid" 2> /dev/null || true
  kills=$((kills + 1))
done
echo "kill_run: $kills kills, the last step after $(( (SECONDS - begun) / 60 )) minutes"
wait "$whole"
last=step-$(printf %08d "$steps")
cmp "$out/whole/$last/model/model.safetensors" "$out/cut/$last/model/model.safetensors"
cmp "$out/whole/$last/optimizer/rank-00000.safetensors" "$out/cut/$last/optimizer/rank-00000.safetensors"
# Of steps that were taken twice the later line counts.
recorded=$(grep -o '"step":[0-9]*' "$out/cut/metrics.jsonl" | sort -u | wc -l)
[ "$recorded" = "$steps" ] || { echo "kill_run: $recorded of $steps steps are in the metrics" >&2; exit 1; }
echo "kill_run: $kills kills in $steps steps: weights and optimizer state are those of the uncut run, bit for bit"
