"""Prefill of an imported graph: fused, op by op, and NumPy; time and peak memory.

usage: import-prefill.py KV_RUN [--dim 64] [--dtype f32,f16] [--wall] [LENGTH ...]

One causal attention of 4 heads as JAX writes it. Times are medians of calls in one
process, compiling apart: processor time, which other programs on the machine do not
change much, or (--wall) the clock's. Memory is the peak of the process less that of
a graph of 16 tokens. All three run with the same number of threads
(KVCACHE_NUM_THREADS, default 1). The rate counts the two products of the visible
half, the last column sets it against a large f32 matrix product of NumPy's BLAS.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

HEADS = 4
THREADS = os.environ.get("KVCACHE_NUM_THREADS", "1")
#: Bytes that a run may need before it is left out.
MOST_MEMORY = 6 << 30

NUMPY = f"""
import sys, time, numpy as np
length, dim, dtype, times = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal(({HEADS}, length, dim), np.float32).astype(dtype) for _ in range(3))
hidden = ~np.tril(np.ones((length, length), bool))
def attend():
    a, b, c = (x.astype(np.float32, copy=False) for x in (q, k, v))
    s = a @ b.transpose(0, 2, 1)
    s *= dim**-0.5
    s[:, hidden] = -np.inf
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    return (s @ c).astype(dtype)
clock = time.perf_counter if sys.argv[5] == "wall" else time.process_time
taken = []
for _ in range(times):
    start = clock()
    attend()
    taken.append(clock() - start)
print(sorted(taken)[times // 2])
"""


def graph(length: int, dim: int, dtype: str) -> str:
    """Causal attention over [HEADS, length, dim] as JAX writes it (softmax in f32)."""
    wide, row = f"tensor<{HEADS}x{length}x{length}xf32>", f"tensor<{HEADS}x{length}xf32>"
    x, ints = f"tensor<{HEADS}x{length}x{dim}x{dtype}>", wide.replace("f32", "i32")
    bools, result = wide.replace("f32", "i1"), f"tensor<{HEADS}x{length}x{dim}xf32>"
    return f"""
func.func @main(%q: {x}, %k: {x}, %v: {x}) -> {x} {{
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : ({x}, {x}) -> {wide}
  %c = stablehlo.constant dense<{dim**-0.5}> : {wide}
  %m = stablehlo.multiply %s, %c : {wide}
  %i = stablehlo.iota dim = 1 : {ints}
  %j = stablehlo.iota dim = 2 : {ints}
  %see = stablehlo.compare GE, %i, %j : ({ints}, {ints}) -> {bools}
  %low = stablehlo.constant dense<0xFF800000> : {wide}
  %x = stablehlo.select %see, %m, %low : {bools}, {wide}
  %inf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %max = stablehlo.reduce(%x init: %inf) applies stablehlo.maximum across dimensions = [2]
    : ({wide}, tensor<f32>) -> {row}
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0, 1] : ({row}) -> {wide}
  %d = stablehlo.subtract %x, %maxes : {wide}
  %e = stablehlo.exponential %d : {wide}
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2]
    : ({wide}, tensor<f32>) -> {row}
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1] : ({row}) -> {wide}
  %p = stablehlo.divide %e, %sums : {wide}
  %vf = stablehlo.convert %v : ({x}) -> {result}
  %of = stablehlo.dot_general %p, %vf, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : ({wide}, {result}) -> {result}
  %o = stablehlo.convert %of : ({result}) -> {x}
  return %o : {x}
}}
"""


def measure(command: list[str]) -> tuple[str, float]:
    """What a command prints, and its peak MiB."""
    env = {**os.environ, "KVCACHE_NUM_THREADS": THREADS, "OPENBLAS_NUM_THREADS": THREADS}
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=printed, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        printed.seek(0)
        text = printed.read()
    if status:
        raise SystemExit(f"{' '.join(command[:6])} failed: {text[-400:]}")
    return text, usage.ru_maxrss / 1024


def kv_run(
    options: argparse.Namespace, length: int, dtype: str, times: int, *flags: str
) -> tuple[float, float]:
    """Median seconds of a call, and peak MiB, of one run of the tool."""
    tool, dim = options.tool, options.dim
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "g.mlir")
        with open(path, "w") as file:
            file.write(graph(length, dim, dtype))
        arrays, rng = [], np.random.default_rng(1)
        for name in "qkv":
            arrays.append(os.path.join(folder, f"{name}.npy"))
            x = rng.standard_normal((HEADS, length, dim), np.float32)
            np.save(arrays[-1], x.astype({"f32": np.float32, "f16": np.float16}[dtype]))
        command = [tool, path, "--entry=main", "--args", ",".join(arrays), f"--repeat={times}"]
        command += ["--out", os.path.join(folder, "o.npy"), "--device=cpu", *flags]
        text, peak = measure(command)
    return float(re.search(r"([\d.]+) ms " + ("." if options.wall else "of"), text).group(1)) / 1000, peak


def numpy_run(options: argparse.Namespace, length: int, dtype: str, times: int) -> tuple[float, float]:
    """The same of the plain formula in NumPy."""
    kind, clock = {"f32": "float32", "f16": "float16"}[dtype], "wall" if options.wall else "processor"
    command = [sys.executable, "-c", NUMPY, str(length), str(options.dim), kind, str(times), clock]
    text, peak = measure(command)
    return float(text), peak


def sgemm_rate(options: argparse.Namespace) -> float:
    """GFLOP/s of a 2048 x 2048 product, best of five."""
    clock = "perf_counter" if options.wall else "process_time"
    code = (
        f"from time import {clock} as clock\nimport numpy as np\nn = 2048\n"
        "a = np.ones((n, n), np.float32)\na @ a\nbest = 9\n"
        "for _ in range(5):\n t = clock()\n a @ a\n best = min(best, clock() - t)\n"
        "print(2 * n**3 / best / 1e9)"
    )
    return float(measure([sys.executable, "-c", code])[0])


def cells(options: argparse.Namespace, dtype: str, length: int, bases: list[float]) -> list[str]:
    """One line of the table: times and memory, rate, rate of the matrix product."""
    scores = 4 * HEADS * length * length
    # What runs, its flags, arrays of scores that it holds, calls.
    plan = [
        (kv_run, (), 0, 5),
        (kv_run, ("--no-fuse",), 5, 1),
        (numpy_run, (), 3, 3 if length <= 4096 else 1),
    ]
    texts, first = [], 0.0
    for (run, flags, arrays, times), base in zip(plan, bases, strict=True):
        if arrays * scores > MOST_MEMORY or (flags and length > options.most):
            texts.append("-")
            continue
        seconds, peak = run(options, length, dtype, times, *flags)
        first = first or seconds
        texts.append(f"{1000 * seconds:.1f}, {peak - base:.0f}")
    rate = 2 * HEADS * length * length * options.dim / first / 1e9
    return [*texts, f"{rate:.0f}", f"{100 * rate / sgemm_rate(options):.0f} %"]


def main() -> None:
    """Prints one line per dtype and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("lengths", nargs="*", type=int)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--dtype", default="f32,f16")
    parser.add_argument("--wall", action="store_true", help="the clock's time")
    parser.add_argument("--most", type=int, default=1 << 30, help="longest graph to run op by op")
    options = parser.parse_args()
    lengths = options.lengths or [512, 1024, 2048, 4096, 8192]
    clock = "on the clock" if options.wall else "of processors"
    print(f"{HEADS} heads of {options.dim}, threads: {THREADS}, ms {clock}; {time.strftime('%Y-%m-%d')}")
    print("| dtype | length | fused ms, MiB | op by op ms, MiB | NumPy ms, MiB | GFLOP/s | of sgemm |")
    print("|---|---|---|---|---|---|---|")
    for dtype in options.dtype.split(","):
        bases = [kv_run(options, 16, dtype, 1)[1], kv_run(options, 16, dtype, 1, "--no-fuse")[1]]
        bases.append(numpy_run(options, 16, dtype, 1)[1])
        for length in lengths:
            print(f"| {dtype} | {length} | {' | '.join(cells(options, dtype, length, bases))} |", flush=True)


if __name__ == "__main__":
    main()
