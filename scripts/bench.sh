#!/usr/bin/env bash
# bench.sh BUILD_DIR: runs every benchmark of bench/; each prints its own table.
set -euo pipefail
build=$1
shopt -s nullglob
ran=0
for program in "$build"/bench/*; do
  [ -f "$program" ] && [ -x "$program" ] || continue
  echo "== $(basename "$program")"
  "$program"
  ran=1
done
[ $ran -eq 1 ] || { echo "no benchmark was built" >&2; exit 1; }
