"""The decode step of bench-decode in NumPy: what BLAS makes of it.

32 query heads, 8 kv heads, d = 128, 8192 tokens, f32 (NumPy has no f16 BLAS),
caches of several layers in turn. Usage: numpy_decode.py [THREADS]
"""

import os
import sys
import time

THREADS = sys.argv[1] if len(sys.argv) > 1 else "1"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = THREADS

import numpy as np  # noqa: E402  (after the thread counts are set)

HEADS, KV_HEADS, DIM, TOKENS, LAYERS = 32, 8, 128, 8192, 8


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """q [kv, group, d], k and v [kv, tokens, d] -> out [kv, group, d]."""
    scores = q @ k.transpose(0, 2, 1)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return (scores @ v) / scores.sum(axis=-1, keepdims=True)


def main() -> None:
    """Prints the best time of one step of one layer, in this thread's own time."""
    rng = np.random.default_rng(0)
    shape = (KV_HEADS, TOKENS, DIM)
    layers = [
        (rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32))
        for _ in range(LAYERS)
    ]
    q = rng.standard_normal((KV_HEADS, HEADS // KV_HEADS, DIM), np.float32) / DIM**0.5
    clock = time.thread_time if THREADS == "1" else time.perf_counter
    best = float("inf")
    for _ in range(5):
        start = clock()
        for k, v in layers:
            attend(q, k, v)
        best = min(best, (clock() - start) / LAYERS)
    size = 2 * np.prod(shape) * 4
    print(f"numpy f32    {best * 1e3:8.3f} ms  {size / best / 1e9:6.1f} GB/s  ({THREADS} threads)")


if __name__ == "__main__":
    main()
