"""A causal prefill of JAX: kv.from_jax beside plain XLA.

    python bench/from-jax.py [LENGTH ..]

Needs JAX (pip install jax) and the package. For each length: milliseconds (least of
several calls) of both, and the largest deviation over the largest output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import kvcache as kv

HEADS, KV_HEADS, DIM = 8, 2, 64


def prefill(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """q [1, t, heads, d], k and v [1, t, kv heads, d]."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def least(call: Callable[[], jax.Array], seconds: float = 2.0) -> float:
    """Seconds of the fastest call, after one that compiles."""
    jax.block_until_ready(call())
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Prints one line a length."""
    lengths = [int(n) for n in sys.argv[1:]] or [512, 1024, 2048, 4096]
    print(f"{HEADS} heads, {KV_HEADS} kv heads of {DIM}, f32, {kv._native.num_threads()} threads")
    print(f"{'length':>8} {'XLA ms':>10} {'from_jax ms':>12} {'ratio':>7} {'deviation':>10}")
    for t in lengths:
        rng = np.random.default_rng(0)
        shapes = [(1, t, h, DIM) for h in (HEADS, KV_HEADS, KV_HEADS)]
        args = [jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes]
        plain, ours = jax.jit(prefill), kv.from_jax(prefill, *args)
        assert len(ours.specs) == 1, ours.report
        want = np.asarray(plain(*args))
        off = np.abs(np.asarray(ours(*args)) - want).max() / np.abs(want).max()
        a, b = least(lambda: plain(*args)), least(lambda: ours(*args))  # noqa: B023
        print(f"{t:8} {a * 1e3:10.1f} {b * 1e3:12.1f} {a / b:7.2f} {off:10.1e}")


if __name__ == "__main__":
    main()
