#!/usr/bin/env bash
# Runs the commands of a page of the documentation: its fenced sh blocks, in order, in a scratch folder that looks like the
# repository with a build in build/.
#   tests/docs/run_page.sh BUILD_DIR PAGE [cuda]      cuda: the build has the CUDA backend
# A block whose fence says more than sh cannot run on every machine, or takes too long: gpu, slurm (a cluster), root, python
# (packages from outside), build (it would build the tree again), long. Such a block is checked instead: its syntax, that its
# programs exist, and that what they say of themselves names every long option. Links of the page must lead somewhere.
set -euo pipefail
build=$(realpath "${1:?usage: tests/docs/run_page.sh BUILD_DIR PAGE [cuda]}") page=$(realpath "$2") cuda=${3:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$1" >&2; exit 1; }

# LINE-KIND holds a block; its first line in the page is LINE + 1. Commands in other fences would be run by nobody.
mkdir "$work/blocks" "$work/tree"
awk -v out="$work/blocks" '
  /^```/ { inside = !inside; kind = substr($0, 4); if (kind == "sh") kind = "sh run"
           file = inside && kind ~ /^sh / ? sprintf("%s/%05d-%s", out, NR, substr(kind, 4)) : ""; next }
  file != "" { print > file; next }
  (inside || /^    /) && /^ *(build\/|scripts\/|mpirun |sbatch |cmake |nsys )/ { print FILENAME ":" NR ": a command outside a ```sh block"; wrong = 1 }
  END { if (inside) { print FILENAME ": the last fence is open"; wrong = 1 } exit wrong }' "$page" >&2
for entry in "$root"/*; do [[ $(basename "$entry") == build* ]] || ln -s "$entry" "$work/tree/"; done
rm -f "$work"/tree/{runs,quickstart}
ln -s "$build" "$work/tree/build"
cd "$work/tree"

# Links: files, and headings as GitHub names them.
headings() { sed -n 's/^#\{1,6\} //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }
for link in $({ grep -oE '\]\([^)]+\)' "$page" || true; } | sed 's/^](//; s/)$//' | grep -v '^https\?:' || true); do
  file=$(dirname "$page")/${link%%#*}
  [[ $link == \#* ]] && file=$page
  [[ -e $file ]] || fail "$page: link to $link: there is no $file"
  [[ $link != *\#* ]] || headings "$file" | grep -qxF -- "${link#*#}" || fail "$page: link to $link: $file has no such heading"
done

# What a program says of its options: the help of a program of the build, with and without its subcommand; the text of a script,
# and the help of the programs that it hands options to.
said_by() { # program, next word
  case $1 in
    build/*) "$1" --help; [[ $2 == -* ]] || "$1" "$2" --help ;;
    scripts/* | tests/*)
      cat "$1"
      for p in $(grep -oE 'hyscale-(train|data|bench)|layout_check|golden-check' "$1" | sort -u); do for b in build/src/tools build/tests; do [[ ! -x $b/$p ]] || "$b/$p" --help; done; done ;;
    cmake) cmake --help; cmake --build || true ;;  # without a folder it names its options
    *) "$1" --help ;;
  esac 2>&1
}
of_other_machines=" sbatch nsys tensorboard hf "
check() { # block, kind, place
  bash -n "$1" || fail "$3: syntax"
  local line words i word program next text
  while IFS= read -r line; do
    mapfile -t words < <(xargs -r printf '%s\n' <<< "$line")
    program= text=
    for ((i = 0; i < ${#words[@]}; i++)); do
      word=${words[i]}
      if [[ -z $program && $word == *=* && $word != -* ]]; then continue; fi
      if [[ -z $program || ( $word == */* && -f $word && ( -x $word || $word == *.sbatch ) ) ]]; then
        program=$word next=${words[i + 1]:--} text=
        if ! command -v "$program" > /dev/null && [[ ! -f $program ]]; then
          [[ $of_other_machines == *" $program "* ]] || fail "$3: there is no program $program"
          echo "$3: $program is not on this machine, its options are not checked"
          program=absent
        fi
      elif [[ $word == --?* && $program != absent ]]; then
        # Subcommands for kernels are built with CUDA only.
        if [[ $program == build/*bench && $2 == gpu && $cuda != cuda ]]; then continue; fi
        [[ -n $text ]] || text=$(said_by "$program" "$next") || true
        grep -qE -- "(^|[^a-z-])${word%%=*}([^a-z-]|$)" <<< "$text" || fail "$3: $program says nothing of ${word%%=*}"
      fi
    done
  done < <(sed -e ':a' -e '/\\$/N; s/\\\n//; ta' -e 's/\(^\|  *\)#.*//' -e 's/ *\(||\|&&\||\|;\) */\n/g' "$1" | grep -v '^ *$')
  echo "$3: checked, not run ($2)"
}

run=$work/run.sh
echo 'set -euo pipefail' > "$run"
for block in "$work"/blocks/*; do
  [[ -e $block ]] || continue
  line=$((10#$(basename "${block%%-*}"))) kind=${block##*-}
  place=$(basename "$page"):$line
  case $kind in
    run) { echo "echo '== $place'"; cat "$block"; } >> "$run" ;;
    gpu | slurm | root | python | build | long) check "$block" "$kind" "$place" ;;
    *) fail "$place: no such kind of block: sh $kind; known are gpu, slurm, root, python, build, long" ;;
  esac
done
bash "$run" || fail "$(basename "$page"): a command failed, see the last line that begins with =="
