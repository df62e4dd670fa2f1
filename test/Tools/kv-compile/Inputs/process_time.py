"""Measure the process time of kv-compile from flags to PTX text.

Usage: process_time.py OUT. Exits 1 when the best of five runs takes more than
300 ms of user and system time, or when most of it is not LLVM's.
"""

import json
import resource
import subprocess
import sys

LIMIT = 0.3
COMMAND = [
    "kv-compile",
    "--q-heads=32",
    "--kv-heads=8",
    "--head-dim=128",
    "--format=kivi4",
    "--target=sm_80",
]


def run_once(out: str) -> float:
    """Seconds of user and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*COMMAND, "-o", out], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Time five runs, then ask the report where the time goes."""
    best = min(run_once(sys.argv[1]) for _ in range(5))
    text = subprocess.run([*COMMAND, "--report"], check=True, capture_output=True).stdout
    phases = json.loads(text)["compile_ms"]
    llvm = sum(ms for name, ms in phases.items() if name.startswith("llvm"))
    share = llvm / phases["total"]
    print(f"process time {best * 1e3:.0f} ms, LLVM {share:.0%} of the phases: {phases}")
    return 0 if best <= LIMIT and share > 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
