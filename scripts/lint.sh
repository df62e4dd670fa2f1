#!/usr/bin/env bash
# lint.sh BUILD_DIR: formatting, ruff, whitespace, file sizes, then clang-tidy on
# changed files. Prints every finding; exits 1 if there was one.
set -uo pipefail
build=$1
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
llvm=/usr/lib/llvm-22
bad=0

echo "-- clang-format"
git ls-files '*.cpp' '*.h' '*.c' | xargs -r $llvm/bin/clang-format --dry-run -Werror || bad=1

echo "-- ruff"
"$build/venv/bin/python" -m ruff check -q python test scripts bench || bad=1
"$build/venv/bin/python" -m ruff format -q --check python test scripts bench || bad=1

echo "-- whitespace and ends of files"
text=$(git ls-files '*.cpp' '*.h' '*.c' '*.td' '*.py' '*.md' '*.sh' '*.txt' '*.cmake' Makefile ':!test/Fuzz/corpus')
# shellcheck disable=SC2086
if grep -nE '[[:space:]]+$' $text; then bad=1; fi
for f in $text; do
  [ -s "$f" ] && [ -n "$(tail -c1 "$f")" ] && { echo "$f: no newline at end of file"; bad=1; }
done

echo "-- large files"
git ls-files -z | xargs -0 -r du -k | awk '$1 > 1024 { print $2 ": " $1 " KiB is too large"; bad = 1 } END { exit bad }' || bad=1

scripts/tidy.sh "$build" || bad=1
exit $bad
