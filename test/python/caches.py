"""Short ways to make and fill caches in tests."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import kvcache as kv

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def make(capacity: int = 4096, **spec) -> kv.PagedCache:
    """A cache of the given spec; heads default to 1 and head_dim to 8."""
    spec = {"q_heads": 1, "kv_heads": 1, "head_dim": 8, "format": "f16,page=16", **spec}
    return kv.PagedCache(kv.AttentionSpec(**spec), capacity)


def counting_values(cache: kv.PagedCache, first: int, n: int) -> np.ndarray:
    """V[j] = j in every channel: with zero queries the output is the mean visible token number."""
    s = cache.spec
    v = np.arange(first, first + n, dtype=np.float32)[:, None, None]
    return np.broadcast_to(v, (n, s.kv_heads, s.value_dim)).astype(DTYPES[s.dtype])


def zeros(cache: kv.PagedCache, n: int, what: str) -> np.ndarray:
    """Zero keys ("k") or queries ("q") of n rows."""
    heads = cache.spec.kv_heads if what == "k" else cache.spec.q_heads
    return np.zeros((n, heads, cache.spec.head_dim), DTYPES[cache.spec.dtype])


def fill(cache: kv.PagedCache, n: int, first: int = 0, seq: int | None = None) -> int:
    """Appends n tokens with zero keys and V = token number, from `first`; returns the sequence."""
    seq = cache.new_sequence() if seq is None else seq
    if n:
        cache.append(seq, zeros(cache, n, "k"), counting_values(cache, first, n))
    return seq


def means(cache: kv.PagedCache, seq: int, rows: int = 1) -> list[float]:
    """The output of the newest `rows` tokens with zero queries, channel 0 of head 0."""
    out, _ = cache.attend(zeros(cache, rows, "q"), [seq], [rows])
    assert (out == out[:, :1, :1]).all()
    return [float(x) for x in out[:, 0, 0]]


def random_rows(rng: np.random.Generator, cache: kv.PagedCache, n: int):
    """Random k and v of n tokens."""
    s = cache.spec
    dtype = DTYPES[s.dtype]
    k = rng.standard_normal((n, s.kv_heads, s.head_dim)).astype(dtype)
    return k, rng.standard_normal((n, s.kv_heads, s.value_dim)).astype(dtype)


def relative(a, b) -> float:
    """||a - b|| / ||b||."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1))
