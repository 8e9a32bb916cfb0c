#!/usr/bin/env bash
# scripts/slurm/train.sbatch with srun and scontrol in name only: what is started, and what follows each exit code.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#!/bin/sh\necho "srun $*" >> "$LOG"\nexit "$SRUN_EXIT"\n' > "$folder/srun"
printf '#!/bin/sh\necho "scontrol $*" >> "$LOG"\n' > "$folder/scontrol"
chmod +x "$folder/srun" "$folder/scontrol"

check() { # srun's exit code, restarts, the job's exit code, what is started last, whether the job is requeued
  export LOG="$folder/log" SRUN_EXIT=$1 SLURM_RESTART_COUNT=$2 SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=2
  rm -f "$LOG"
  code=0
  PATH="$folder:$PATH" bash scripts/slurm/train.sbatch run.yaml --resume runs/a/step-00000005 > "$folder/output" 2>&1 || code=$?
  [ "$code" = "$3" ] || { echo "srun's $1 after $2 restarts: exit code $code, expected $3"; cat "$folder/output"; exit 1; }
  grep -q -- "--config run.yaml --resume runs/a/step-00000005$4\$" "$LOG" || { echo "srun's $1 after $2 restarts: started was"; cat "$LOG"; exit 1; }
  requeued=no
  if grep -q '^scontrol requeue 7$' "$LOG"; then requeued=yes; fi
  [ "$requeued" = "$5" ] || { echo "srun's $1 after $2 restarts: requeued $requeued, expected $5"; exit 1; }
}
check 0 0 0 "" no
check 75 0 0 "" yes
check 75 1 0 " --resume latest" yes
check 1 1 1 " --resume latest" no
if bash scripts/slurm/train.sbatch > "$folder/output" 2>&1; then echo "a job without a configuration was started"; exit 1; fi
grep -q 'usage: sbatch train.sbatch CONFIG' "$folder/output"
