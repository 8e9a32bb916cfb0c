#!/usr/bin/env bash
# That docs/reports.md has a row for each of U01 to U26, that every row names a test or says why none is needed, and that the
# tests it names (`Suite.Case`, a * ends a name anyhow) are in the sources.
set -euo pipefail
cd "$(dirname "$0")/../.."
status=0
wrong() { echo "docs/reports.md: $1"; status=1; }
for number in $(seq -f 'U%02g' 1 26); do
  row=$(grep "^| $number |" docs/reports.md) || { wrong "$number has no row"; continue; }
  grep -qE '`[A-Z][A-Za-z0-9]+\.[A-Za-z0-9_*]+`|`layout_check`' <<< "$row" || wrong "$number names no test"
done
for name in $(grep -oE '`[A-Z][A-Za-z0-9]+\.[A-Za-z0-9_*]+`' docs/reports.md | tr -d '`' | sort -u); do
  end='\)'
  [[ $name != *\* ]] || end=
  grep -rqE "TEST(_F|_P)?\(${name%%.*}, $(tr -d '*' <<< "${name#*.}")$end" tests --include='*.cpp' || wrong "there is no test $name"
done
while IFS= read -r name; do
  grep -qF "{\"$name" tests/train/layout_check.cpp || wrong "layout_check has no case \"$name\""
done < <(grep -oE '`layout_check`, case "[^"]+"' docs/reports.md | sed 's/.*case "//; s/"$//')
exit $status
