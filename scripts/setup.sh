#!/usr/bin/env bash
# Installs the Debian packages that HyScale builds with, those of them that are missing, and into .venv the Python packages
# with which tests read what HyScale writes.
#   scripts/setup.sh [--check]      --check only lists what is missing and exits 1 if anything is
set -euo pipefail
packages=(
  g++ cmake ninja-build ccache pkg-config
  libopenmpi-dev openmpi-bin libopenblas-openmp-dev
  libyaml-cpp-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
  libxxhash-dev libisal-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev
  libgtest-dev libgmock-dev libbenchmark-dev procps python3-venv
)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
python=$(dirname "$0")/../.venv/bin/python3
python_packages=(numpy==2.4.6 safetensors==0.8.0 tensorboard==2.21.0)
"$python" -c 'import numpy, safetensors, tensorboard' 2>/dev/null || missing_python=1
if [ ${#missing[@]} -eq 0 ] && [ -z "${missing_python:-}" ]; then
  echo "setup: every package is installed"
  exit 0
fi
echo "setup: missing packages: ${missing[*]}${missing_python:+ (Python: ${python_packages[*]})}"
[ "${1:-}" != --check ] || exit 1
if [ ${#missing[@]} -gt 0 ]; then
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ -n "${missing_python:-}" ]; then
  venv=$(dirname "$(dirname "$python")")
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check "${python_packages[@]}"
fi
echo "setup: installed"
