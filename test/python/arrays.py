"""Arrays of MLIR element types in tests: rounding, and how .npy holds them."""

from __future__ import annotations

import numpy as np
from oracle import reference as ref

FLOATS = ("f32", "f16", "bf16")
NUMPY = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "i32": np.int32, "i64": np.int64}
# The largest relative rounding error of a result of this type.
EPS = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}


def rounded(x, dtype: str) -> np.ndarray:
    """x as `dtype` holds it, in f32."""
    return ref.store(np.asarray(x, np.float32), dtype)


def to_npy(x: np.ndarray, dtype: str) -> np.ndarray:
    """The array that kv-run takes for values already rounded to `dtype`."""
    if dtype == "bf16":
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(NUMPY[dtype])


def from_npy(a: np.ndarray, dtype: str) -> np.ndarray:
    """What kv-run wrote for `dtype`, as f32."""
    if dtype == "bf16":
        return (a.astype(np.uint32) << 16).view(np.float32)
    return a.astype(np.float32)


def tensor(shape, dtype: str) -> str:
    """tensor<2x?xf16>; None is a dynamic size."""
    return "tensor<" + "".join(f"{'?' if s is None else s}x" for s in shape) + dtype + ">"


def error(a, b) -> float:
    """Largest difference relative to max(1, |b|), equal infinities excepted."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        d = np.where(same, 0, np.abs(a - b) / np.maximum(1, np.abs(b)))
    return float(np.nan_to_num(d, nan=np.inf).max(initial=0))
