"""Prefill of an imported graph: fused, unfused and NumPy, time and peak memory by length.

usage: import-prefill.py KV_RUN [LENGTH ...]

Times are of the whole command less that of a graph of 16 tokens (reading, compiling).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import numpy as np

HEADS, DIM = 4, 64


def graph(length: int) -> str:
    """Causal attention over [HEADS, length, DIM] as JAX writes it."""
    wide, row = f"tensor<{HEADS}x{length}x{length}xf32>", f"tensor<{HEADS}x{length}xf32>"
    x = f"tensor<{HEADS}x{length}x{DIM}xf32>"
    return f"""
func.func @main(%q: {x}, %k: {x}, %v: {x}) -> {x} {{
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : ({x}, {x}) -> {wide}
  %c = stablehlo.constant dense<{DIM**-0.5}> : {wide}
  %m = stablehlo.multiply %s, %c : {wide}
  %i = stablehlo.iota dim = 1 : {wide.replace("f32", "i32")}
  %j = stablehlo.iota dim = 2 : {wide.replace("f32", "i32")}
  %see = stablehlo.compare GE, %i, %j : ({wide.replace("f32", "i32")}, {wide.replace("f32", "i32")})
    -> {wide.replace("f32", "i1")}
  %low = stablehlo.constant dense<0xFF800000> : {wide}
  %x = stablehlo.select %see, %m, %low : {wide.replace("f32", "i1")}, {wide}
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
  %o = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : ({wide}, {x}) -> {x}
  return %o : {x}
}}
"""


def kv_run(tool: str, length: int, *flags: str) -> tuple[float, float]:
    """Seconds and peak MiB of one run of the tool."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "g.mlir")
        with open(path, "w") as file:
            file.write(graph(length))
        arrays = [os.path.join(folder, f"{n}.npy") for n in "qkv"]
        for array in arrays:
            np.save(array, np.random.default_rng(1).standard_normal((HEADS, length, DIM), np.float32))
        command = [tool, path, "--entry=main", "--args", ",".join(arrays)]
        command += ["--out", os.path.join(folder, "o.npy"), "--device=cpu", *flags]
        start = time.perf_counter()
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
        return time.perf_counter() - start, usage.ru_maxrss / 1024


def numpy_seconds(length: int) -> float:
    """Seconds of the plain formula in NumPy."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((HEADS, length, DIM), np.float32) for _ in range(3))
    start = time.perf_counter()
    s = q @ k.transpose(0, 2, 1) * DIM**-0.5
    s = np.where(np.tril(np.ones((length, length), bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    (p / p.sum(-1, keepdims=True)) @ v
    return time.perf_counter() - start


def main() -> None:
    """Prints one line per length."""
    tool, lengths = sys.argv[1], [int(n) for n in sys.argv[2:]] or [512, 1024, 2048, 4096, 8192]
    base = {flag: kv_run(tool, 16, *flag) for flag in ((), ("--no-fuse",))}
    print("length | fused s, MiB | unfused s, MiB | NumPy s")
    for length in lengths:
        cells = []
        for flag, (seconds, memory) in base.items():
            took, peak = kv_run(tool, length, *flag)
            cells.append(f"{took - seconds:.2f}, {peak - memory:.0f}")
        print(f"{length} | {cells[0]} | {cells[1]} | {numpy_seconds(length):.2f}", flush=True)


if __name__ == "__main__":
    main()
