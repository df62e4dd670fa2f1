#!/usr/bin/env bash
# check.sh BUILD_DIR JOBS: every check and test, all of them even if one fails;
# the summary at the end says which did.
set -uo pipefail
build=$1 jobs=$2
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
build=$(cd "$build" && pwd)
failed=()
started=$SECONDS
step() {
  local name=$1 from=$SECONDS
  shift
  echo "== $name"
  "$@" || failed+=("$name")
  echo "== $name took $((SECONDS - from)) s"
}
if ! command -v ptxas >/dev/null && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/ptxas" ]; then
  echo "!! SKIPPED: ptxas was not found, so no emitted PTX is assembled in this run" >&2
fi

step lint scripts/lint.sh "$build"
step lit ninja -C "$build" check-kvcache
step unit ctest --test-dir "$build" --output-on-failure -j "$jobs"
step fuzz scripts/fuzz.sh "$build" "${KVCACHE_FUZZ_SECONDS:-20}"
step pytest "$build/venv/bin/python" -m pytest -q -n "$jobs" -rs test/python test/Sim

echo "== all checks took $((SECONDS - started)) s"
if [ ${#failed[@]} -ne 0 ]; then
  echo "== FAILED: ${failed[*]}"
  exit 1
fi
echo "== all checks passed"
