#!/usr/bin/env bash
# What run_page.sh must refuse, and what it must not; and that the README names every page.
#   tests/docs/check_run_page.sh BUILD_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) build=${1:?usage: tests/docs/check_run_page.sh BUILD_DIR}
page=$(mktemp --suffix=.md)
trap 'rm -f "$page" "$page.log"' EXIT
status=0
expect() { # fails|passes, what must be said, lines of the page...
  local wanted=$1 said=$2 got=passes
  printf '%s\n' "${@:3}" > "$page"
  "$here/run_page.sh" "$build" "$page" > "$page.log" 2>&1 || got=fails
  if [[ $got != "$wanted" ]] || ! grep -qF -- "$said" "$page.log"; then
    echo "expected: $wanted and says \"$said\"; it $got:"; cat "$page" "$page.log"
    status=1
  fi
}
expect passes 'two'                      '```sh' 'one=two' '```' '```sh' 'echo $one' '```'
expect passes 'checked, not run (gpu)'   '```sh gpu' 'build/src/tools/hyscale-train --config a.yaml \' '  --set a.b=1 --resume latest    # a comment' '```'
expect passes 'checked, not run (slurm)' '```sh slurm' 'sbatch --nodes=2 scripts/slurm/train.sbatch run.yaml --set a.b=1' '```'
expect fails  'a command failed'         '```sh' 'false' 'echo on' '```'
expect fails  'a command failed'         '```sh' 'build/src/tools/hyscale-train --confg a.yaml' '```'
expect fails  'says nothing of --confg'  '```sh gpu' 'build/src/tools/hyscale-train --confg a.yaml' '```'
expect fails  'says nothing of --con'    '```sh long' 'mpirun -np 2 build/src/tools/hyscale-train --con a.yaml' '```'
expect fails  'says nothing of --jsn'    '```sh long' 'build/src/tools/hyscale-bench step --jsn a.json' '```'
expect fails  'says nothing of --lose'   '```sh gpu' 'scripts/gpu_layouts.sh build/tests --lose 1' '```'
expect fails  'there is no program'      '```sh root' 'hyscale-nothing' '```'
expect fails  'there is no program'      '```sh slurm' 'sbatch scripts/slurm/train.sbatch x' 'build/src/tools/hyscale-nothing' '```'
expect fails  'syntax'                   '```sh gpu' 'if true' '```'
expect fails  'no such kind of block'    '```sh later' 'true' '```'
expect fails  'outside a ```sh block'    '    build/src/tools/hyscale-train --config a.yaml'
expect fails  'outside a ```sh block'    '```' 'scripts/test.sh' '```'
expect fails  'the last fence is open'   '```sh' 'true'
expect fails  'there is no'              '[a page](nothing.md)'
expect fails  'has no such heading'      '# One' '[here](#two)'
for p in "$here"/../../docs/*.md; do
  grep -qF "(docs/$(basename "$p"))" "$here/../../README.md" || { echo "README.md has no link to docs/$(basename "$p")"; status=1; }
done
exit $status
