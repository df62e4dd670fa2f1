#!/usr/bin/env bash
# Installs the Debian packages that the build needs; does nothing (and needs no
# root) when all of them are there.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache git ca-certificates
  clang-22 clang-format-22 clang-tidy-22 lld-22 libclang-rt-22-dev
  llvm-22-dev llvm-22-tools libmlir-22-dev mlir-22-tools
  zlib1g-dev libzstd-dev libcurl4-openssl-dev libedit-dev libxml2-dev
  libgtest-dev libgmock-dev nlohmann-json3-dev
  python3 python3-venv python3-dev
)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "these Debian packages are missing, install them as root: ${missing[*]}" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends "${missing[@]}"
