"""The main job on a real capture: one line per storage format.

For each format the capture's keys and values go through a paged cache, every
query attends to it, and the result is compared with a float64 oracle on the
original f16 data (so the error is the format's own). The decode step is timed on
this machine; kernels for the GPU targets are compiled and, where ptxas is found,
assembled, and the kernels for sm_80 are run in the simulator.

    python demo.py [--data DIR] [--build-dir build] [--format kivi4 ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import kvcache as kv

FORMATS = ["f16", "int8", "kivi4", "key=i8:channel:g32:asym,value=i4:token:g32:asym,recent=64"]
TARGETS = ["sm_80", "sm_86", "sm_89", "sm_90"]


def spec_for(fmt: str, heads: int, kv_heads: int, dim: int) -> kv.AttentionSpec:
    """The capture's attention with its cache stored as `fmt`."""
    return kv.AttentionSpec(q_heads=heads, kv_heads=kv_heads, head_dim=dim, format=fmt, causal=True)


def attention_error(spec: kv.AttentionSpec, q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int):
    """Relative L2 error of q [rows, heads, d] at positions first.. and the stored bytes per token."""
    cache = kv.PagedCache(spec, capacity_tokens=len(k) + 256)
    seq = cache.new_sequence()
    cache.append(seq, k[:first], v[:first])
    got = []
    for i, row in enumerate(q):
        cache.append(seq, k[first + i : first + i + 1], v[first + i : first + i + 1])
        got.append(np.asarray(cache.attend(row[None], [seq])[0], np.float64)[0])
    want, _ = kv.reference.attention(q, k[: first + len(q)], v[: first + len(q)], causal=True)
    error = np.linalg.norm(np.stack(got) - want) / np.linalg.norm(want)
    return float(error), cache.stats()["bytes_per_token"]


def decode_time(fmt: str, dtype: type = np.float16, tokens: int = 8192) -> float:
    """Median seconds of one decode step of 32/8 heads, d 128, over enough caches to leave no cache warm."""
    spec = kv.AttentionSpec(q_heads=32, kv_heads=8, head_dim=128, format=fmt, causal=True)
    rng = np.random.default_rng(0)
    layers = 8
    cache = kv.PagedCache(spec, capacity_tokens=layers * (tokens + 256))
    k = rng.standard_normal((tokens, 8, 128)).astype(dtype)
    seqs = []
    for _ in range(layers):
        seq = cache.new_sequence()
        cache.append(seq, k, k)
        seqs.append(seq)
    q = rng.standard_normal((1, 32, 128)).astype(dtype)
    times = []
    for _ in range(4):
        for seq in seqs:
            start = time.perf_counter()
            cache.attend(q, [seq])
            times.append(time.perf_counter() - start)
    return statistics.median(times[layers:])


def simulate(spec: kv.AttentionSpec, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> str:
    """Runs the sm_80 kernels (append, seal, attend, read) in the simulator with every check on."""
    cache = kv.PagedCache(spec, capacity_tokens=len(k) + 256, device="sim:sm_80")
    seq = cache.new_sequence()
    cache.append(seq, k, v)
    out, _ = cache.attend(q, [seq])
    want, _ = kv.reference.attention(q, *cache.read(seq))
    error = np.linalg.norm(np.asarray(out, np.float64) - want) / np.linalg.norm(want)
    if error > 2e-3:
        raise SystemExit(f"{spec.format}: the simulated kernel is off by {error:.1e}, expected at most 2e-3")
    return "simulated"


def compile_targets(spec: kv.AttentionSpec, out: Path, name: str):
    """PTX of every target, written to `out`: sizes, compile seconds, how it was checked, files."""
    sizes, checks, files = {}, set(), []
    start = time.perf_counter()
    for target in TARGETS:
        kernel = kv.compile(spec, target=target)
        sizes[target] = len(kernel.ptx)
        path = out / f"{name}.{target}.ptx"
        path.write_text(kernel.ptx)
        files.append(path)
        try:
            kernel.cubin()
            checks.add("assembled")
        except kv.DeviceError:
            checks.add("not assembled (no ptxas)")
    return sizes, time.perf_counter() - start, "+".join(sorted(checks)), files


def main() -> None:
    """Prints the table and writes it, with the PTX, under the build folder."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=root / "test/data/capture")
    parser.add_argument("--build-dir", type=Path, default=root / "build")
    parser.add_argument("--format", action="append", help="a format string; may be repeated")
    args = parser.parse_args()
    k, v, q, pos = (np.load(args.data / f"{n}.npy") for n in ("k", "v", "q", "q_positions"))
    out = args.build_dir / "demo"
    out.mkdir(parents=True, exist_ok=True)

    print(f"real capture: {k.shape[0]} tokens, {q.shape[1]}/{k.shape[1]} heads, d {k.shape[2]}; ", end="")
    print("decode step timed at 32/8 heads, d 128, 8192 tokens\n")
    head = f"{'format':34} {'B/token':>8} {'f16/x':>6} {'error':>8} {'ms/step':>8} {'x f16':>6}"
    head += f" {'compile s':>9}"
    print(head + "  PTX bytes " + " ".join(f"{t:>7}" for t in TARGETS) + "  PTX checked")
    rows, files, base = [], [], None
    for fmt in args.format or FORMATS:
        spec = spec_for(fmt, q.shape[1], k.shape[1], k.shape[2])
        error, bytes_per_token = attention_error(spec, q, k, v, int(pos[0]))
        step = decode_time(fmt)
        name = fmt if fmt.isalnum() else "mixed" + str(len(rows))
        sizes, seconds, check, written = compile_targets(spec, out, name)
        check += "+" + simulate(spec, q[-1:], k[-400:], v[-400:])
        base = base or (bytes_per_token, step)
        files += written
        row = {
            "format": fmt,
            "bytes_per_token": bytes_per_token,
            "ratio_to_f16": base[0] / bytes_per_token,
            "error": error,
            "decode_ms": step * 1e3,
            "decode_ratio_to_f16": step / base[1],
            "compile_seconds": seconds,
            "ptx_bytes": sizes,
            "ptx_checked": check,
        }
        rows.append(row)
        label = fmt if len(fmt) <= 34 else fmt[:31] + "..."
        print(
            f"{label:34} {bytes_per_token:8.0f} {row['ratio_to_f16']:6.2f} {error:8.1e} {step * 1e3:8.2f} "
            f"{row['decode_ratio_to_f16']:6.2f} {seconds:9.2f}            "
            + " ".join(f"{sizes[t]:7d}" for t in TARGETS)
            + f"  {check}"
        )
    table = out / "demo.json"
    table.write_text(json.dumps(rows, indent=2) + "\n")
    files.append(table)
    print("\nwrote:")
    for path in files:
        print(f"  {path}")


if __name__ == "__main__":
    main()
