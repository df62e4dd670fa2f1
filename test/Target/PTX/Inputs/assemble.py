"""Compile default schedules for four chips and read ptxas's report of each.

Usage: assemble.py KV_COMPILE. Exits 1 naming the kernels that spill.
"""

import json
import subprocess
import sys

CHIPS = ("sm_80", "sm_86", "sm_89", "sm_90")
# (q_heads, kv_heads, head_dim, value_dim, format, dtype)
KERNELS = (
    (32, 8, 128, 128, "kivi4", "f16"),
    (64, 8, 128, 128, "int8", "bf16"),
    (9, 3, 64, 64, "f16", "f16"),
    (28, 4, 80, 112, "kivi4,page=16", "f16"),
    (16, 2, 256, 256, "int8,page=128", "f16"),
    (32, 8, 128, 128, "bf16", "bf16"),
)


def report(tool: str, chip: str, kernel: tuple) -> dict:
    """The JSON report of one kernel."""
    q_heads, kv_heads, d, dv, format_text, dtype = kernel
    command = [
        tool,
        f"--q-heads={q_heads}",
        f"--kv-heads={kv_heads}",
        f"--head-dim={d}",
        f"--value-dim={dv}",
        f"--format={format_text}",
        f"--dtype={dtype}",
        f"--target={chip}",
        "--report",
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main() -> int:
    """Check every kernel on every chip."""
    bad = []
    for index, kernel in enumerate(KERNELS):
        # Every chip sees the first kernel, the others take turns.
        for chip in CHIPS if index == 0 else (CHIPS[index % 4], "sm_80"):
            entries = report(sys.argv[1], chip, kernel)["entries"]
            for name, usage in entries.items():
                if usage["spills"] or usage["stack_bytes"]:
                    bad.append(f"{chip} {kernel} {name}: {usage}")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
