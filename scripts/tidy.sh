#!/usr/bin/env bash
# tidy.sh BUILD_DIR [--all]: clang-tidy on the sources that differ from the
# parent commit (KVCACHE_TIDY_BASE to choose another), or on all of them.
set -uo pipefail
build=$1
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
base=${KVCACHE_TIDY_BASE:-HEAD~1}
if [ "${2:-}" = --all ]; then
  files=$(git ls-files '*.cpp')
else
  files=$(git diff --name-only --diff-filter=d "$base" -- '*.cpp' 2>/dev/null)
fi
# Only what this build compiles has a compile command.
known=$(python3 -c 'import json,sys
print("\n".join(e["file"] for e in json.load(open(sys.argv[1]))))' "$build/compile_commands.json")
todo=()
for f in $files; do
  grep -qxF "$root/$f" <<<"$known" && todo+=("$f")
done
echo "-- clang-tidy: ${#todo[@]} files"
[ ${#todo[@]} -eq 0 ] && exit 0
printf '%s\n' "${todo[@]}" |
  xargs -P "$(nproc)" -n 1 /usr/lib/llvm-22/bin/clang-tidy --quiet -p "$build" --warnings-as-errors='*' 2>/dev/null
