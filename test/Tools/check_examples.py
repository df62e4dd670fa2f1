"""Runs every ```mlir fence of the .td files under a folder through kv-opt.

Usage: check_examples.py KV_OPT FOLDER. Each must parse and verify, and what is
printed must parse back to the same text.
"""

import re
import subprocess
import sys
from pathlib import Path


def run(tool: str, text: str) -> subprocess.CompletedProcess[str]:
    """The tool's result on `text` as its input."""
    return subprocess.run([tool, "-"], input=text, capture_output=True, text=True, timeout=60)


def main() -> int:
    tool, folder = sys.argv[1:]
    count = failures = 0
    for path in sorted(Path(folder).rglob("*.td")):
        for match in re.finditer(r"```mlir\n(.*?)```", path.read_text(), re.S):
            count += 1
            first = run(tool, match.group(1))
            second = run(tool, first.stdout)
            if first.returncode or second.returncode or first.stdout != second.stdout:
                failures += 1
                print(f"{path}: example fails:\n{match.group(1)}\n{first.stderr}{second.stderr}")
    print(f"{count} examples, {failures} failures")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
