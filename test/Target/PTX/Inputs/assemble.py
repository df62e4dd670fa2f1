"""Compile default schedules for four chips; read ptxas's report and the cubin.

Usage: assemble.py KV_COMPILE FOLDER. Exits 1 naming the kernels that spill, or
whose cubin holds another number of tensor-core instructions than the PTX: some
products assemble everywhere and are emulated on some chips.
"""

import json
import struct
import subprocess
import sys
from pathlib import Path

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


# HMMA, the f16 and bf16 product, in the low 12 bits of an instruction.
HMMA = 0x23C


def products(cubin: bytes) -> int:
    """HMMA instructions of attend, read from the ELF file."""
    table = struct.unpack_from("<Q", cubin, 0x28)[0]
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + 64 * i) for i in range(count)]
    for section in sections:
        start = sections[names][4] + section[0]
        if cubin[start : cubin.index(b"\0", start)] == b".text.attend":
            words = range(section[4], section[4] + section[5], 16)
            return sum(struct.unpack_from("<Q", cubin, at)[0] & 0xFFF == HMMA for at in words)
    return -1


def compile_kernel(tool: str, chip: str, kernel: tuple, *more: str) -> bytes:
    """What kv-compile prints for one kernel."""
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
        *more,
    ]
    return subprocess.run(command, check=True, capture_output=True).stdout


def main() -> int:
    """Check every kernel on every chip."""
    bad = []
    tool, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for index, kernel in enumerate(KERNELS):
        # Every chip sees the first kernel, the others take turns.
        for chip in CHIPS if index == 0 else (CHIPS[index % 4], "sm_80"):
            ptx, cubin = folder / "k.ptx", folder / "k.cubin"
            compile_kernel(tool, chip, kernel, "-o", str(ptx))
            text = compile_kernel(tool, chip, kernel, "--emit=cubin", "-o", str(cubin), "--report")
            wanted, found = ptx.read_text().count("mma.sync"), products(cubin.read_bytes())
            if wanted != found:
                bad.append(f"{chip} {kernel}: {wanted} products, {found} HMMA")
            entries = json.loads(text)["entries"]
            for name, usage in entries.items():
                if usage["spills"] or usage["stack_bytes"]:
                    bad.append(f"{chip} {kernel} {name}: {usage}")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
