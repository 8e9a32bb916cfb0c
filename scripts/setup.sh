#!/usr/bin/env bash
# Installs the Debian packages that HyScale builds with, those of them that are missing.
#   scripts/setup.sh [--check]      --check only lists what is missing and exits 1 if anything is
set -euo pipefail
packages=(
  g++ cmake ninja-build ccache pkg-config
  libopenmpi-dev openmpi-bin libopenblas-openmp-dev
  libyaml-cpp-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  libxxhash-dev libisal-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev
  libgtest-dev libgmock-dev libbenchmark-dev procps
)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: every package is installed"
  exit 0
fi
echo "setup: missing Debian packages: ${missing[*]}"
[ "${1:-}" != --check ] || exit 1
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "setup: installed"
