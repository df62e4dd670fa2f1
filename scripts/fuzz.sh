#!/usr/bin/env bash
# fuzz.sh BUILD_DIR SECONDS: runs each libFuzzer target on its corpus under
# test/Fuzz/corpus/NAME for SECONDS, two at a time. New inputs stay in the build.
set -uo pipefail
build=$1 seconds=$2
root=$(cd "$(dirname "$0")/.." && pwd)
run_one() {
  local target=$1 name log
  name=$(basename "$target")
  log="$build/fuzz/$name.log"
  mkdir -p "$build/fuzz/$name"
  if "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
    -artifact_prefix="$build/fuzz/$name-" "$build/fuzz/$name" \
    "$root/test/Fuzz/corpus/${name#fuzz-}" >"$log" 2>&1; then
    echo "$name: $(tail -1 "$log")"
  else
    tail -30 "$log"
    echo "$name: FAILED"
    return 1
  fi
}
export -f run_one
export build seconds root
mkdir -p "$build/fuzz"
targets=("$build"/fuzzers/fuzz-*)
[ -x "${targets[0]}" ] || { echo "no fuzz target was built"; exit 1; }
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'run_one {}'
