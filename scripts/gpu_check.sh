#!/usr/bin/env bash
# On a machine with a GPU: goldens in bf16, the quickstart models on CPU and GPU, a 1B-class model at 128K tokens and one
# sequence of a million. Prints a short table last; logs go to $OUT (default runs/gpu_check).
#   scripts/gpu_check.sh BIN_DIR [golden|small|v4|128k|1m]...        BIN_DIR holds golden-check, hyscale-train, hyscale-data
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${1:?usage: scripts/gpu_check.sh BIN_DIR [part]...}; shift
parts=${*:-golden small v4 128k 1m}
out=${OUT:-runs/gpu_check}
mkdir -p "$out" runs/data
goldens="tests/goldens/glm51 tests/goldens/glm51_odd_length tests/goldens/glm52_shared tests/goldens/deepseek_v4"
table=()
has() { [[ " $parts " == *" $1 "* ]]; }
if has golden; then
  for recompute in none layer; do
    "$bin/golden-check" --device cuda --recompute $recompute $goldens 2>&1 | tee -a "$out/golden.log"
    "$bin/golden-check" --device cuda --recompute $recompute --replay-golden-selections $goldens 2>&1 | tee -a "$out/golden.log"
  done
fi
text() { find src kernels models tests docs -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.md' | sort; }
train() { # name, config, overrides
  local name=$1 config=$2; shift 2
  rm -rf "runs/$name"
  "$bin/hyscale-train" --config "$config" --plan "$@" > "$out/$name.plan" 2>&1
  timeout 240 "$bin/hyscale-train" --config "$config" --set checkpoint.directory="runs/$name" "$@" > "$out/$name.log" 2>&1
  table+=("$name: exit $?; $(grep -h 'step ' "$out/$name.log" | grep loss | grep -v validation | sed -n '1p;$p' | sed 's/.*\] //' | paste -sd'|')")
  table+=("  plan $(awk '/^  total/ {print $2, $3}' "$out/$name.plan"), peak $(tail -2 "runs/$name/metrics.jsonl" 2>/dev/null | grep -o '"peak_bytes":[0-9]*' | tail -1 | awk -F: '{printf "%.3f GiB", $2 / 2^30}')  $(grep -h 'validation loss' "$out/$name.log" | tail -1 | sed 's/.*\] //')")
  cp "runs/$name/metrics.jsonl" "$out/$name.jsonl" 2> /dev/null
}
if has small; then
  "$bin/hyscale-data" build src kernels models docs --output quickstart/data/text --validation-fraction 0.05
  train small-cuda configs/quickstart.yaml --set run.device=cuda --set train.steps=60
  train small-cpu configs/quickstart.yaml --set run.device=cpu --set train.steps=60
fi
if has v4; then
  [ -e quickstart/data/text.bin ] || "$bin/hyscale-data" build src kernels models docs --output quickstart/data/text --validation-fraction 0.05
  train v4-cuda configs/quickstart-deepseek-v4.yaml --set run.device=cuda --set train.steps=60
  train v4-cpu configs/quickstart-deepseek-v4.yaml --set run.device=cpu --set train.steps=60
fi
if has 128k || has 1m; then
  for i in 1 2 3 4; do text | xargs cat; done > runs/data/long.txt
  "$bin/hyscale-data" build runs/data/long.txt --output runs/data/long
fi
if has 128k; then train gpu-128k configs/gpu-128k.yaml; fi
if has 1m; then train gpu-1m configs/gpu-1m.yaml; fi
nvidia-smi --query-gpu=name,memory.used,power.draw --format=csv,noheader
printf '%s\n' "${table[@]}"
