#!/usr/bin/env bash
# From a fresh clone to a trained model: set up, build, make a data set from text, train a small GLM-5.1 for a few minutes on
# two cores, show the loss, save, export, and say where everything is.
#
#   scripts/quickstart.sh [FOLDER_OF_TEXT]     default: this repository's own sources and docs
set -euo pipefail
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # threads that wait sleep: other programs may share the cores
cd "$(dirname "$0")/.."

text=("$@")
if [ ${#text[@]} -eq 0 ]; then text=(src kernels models tests/kernels docs README.md); fi

scripts/setup.sh
cmake --preset release > /dev/null
cmake --build --preset release --target hyscale-train hyscale-data hyscale-checkpoint hyscale-report
tools=build/src/tools

# An earlier run is kept aside, never overwritten.
if [ -e quickstart ]; then mv quickstart "quickstart.$(date +%Y%m%d-%H%M%S)"; fi
"$tools/hyscale-data" build "${text[@]}" --output quickstart/data/text --validation-fraction 0.05
"$tools/hyscale-data" inspect quickstart/data/text | tee quickstart/data/summary.txt
"$tools/hyscale-train" --config configs/quickstart.yaml
"$tools/hyscale-checkpoint" export quickstart/run/latest quickstart/exported
"$tools/hyscale-report" quickstart/run
# The exported model, read back, on the same validation text: one step at learning rate 0 evaluates it.
"$tools/hyscale-train" --config configs/quickstart.yaml --set model.weights=quickstart/exported --set train.steps=1 --set optimizer.lr=0 \
  --set schedule.min_lr=0 --set schedule.warmup_steps=0 --set loss.router_bias_update_rate=0 --set checkpoint.directory=quickstart/check > quickstart/check.log

loss_of() { grep validation_loss "$1" | tail -1 | sed 's/.*"validation_loss":\([0-9.]*\).*/\1/'; }
entropy=$(sed 's/.*unigram entropy \([0-9.]*\).*/\1/' quickstart/data/summary.txt)
trained=$(loss_of quickstart/run/metrics.jsonl)
exported=$(loss_of quickstart/check/metrics.jsonl)
cat <<END

unigram entropy of the text      $entropy nats per token
validation loss after training   $trained
validation loss, exported model  $exported

data set       quickstart/data/text.bin, .idx
metrics        quickstart/run/metrics.jsonl
report         quickstart/run/report.html
checkpoint     quickstart/run/latest            (continue: $tools/hyscale-train --config configs/quickstart.yaml --resume latest --set train.steps=1000)
Hugging Face   quickstart/exported              (loads in transformers as it is)
END
awk -v e="$entropy" -v t="$trained" -v x="$exported" 'BEGIN { if (t > 0.9 * e || t - x > 1e-4 || x - t > 1e-4) { print "quickstart: the loss is not where it should be" > "/dev/stderr"; exit 1 } }'
