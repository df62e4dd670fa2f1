"""Arrays in and out: NumPy, ml_dtypes, and anything that speaks DLPack.

Inside the package an array is a NumPy array, with bfloat16 as ml_dtypes' type.
"""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from kvcache import _native

bfloat16 = np.dtype(ml_dtypes.bfloat16)

#: The model dtypes, by the names that specs use.
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": bfloat16, "float32": np.dtype(np.float32)}


def dtype_name(dtype: np.dtype) -> str:
    """The name of a NumPy dtype as messages print it."""
    return "bfloat16" if dtype == bfloat16 else str(dtype)


def framework_of(x: Any) -> str:
    """The top-level package of an array's type: "numpy", "torch", "jax", ..."""
    root = type(x).__module__.split(".")[0]
    return "jax" if root == "jaxlib" else root


def to_numpy(x: Any, name: str) -> np.ndarray:
    """Any array as NumPy, without a copy where its memory allows."""
    if isinstance(x, np.ndarray):
        return x
    if not hasattr(x, "__dlpack__"):
        if isinstance(x, (list, tuple, int, float, np.generic)):
            return np.asarray(x)
        raise ValueError(
            f"{name} is a {type(x).__name__}, expected a NumPy array or one that speaks DLPack (torch, JAX)"
        )
    if getattr(x, "requires_grad", False):
        x = x.detach()
    try:
        bits, dtype = _native.from_dlpack(x)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ValueError(f"{name} ({type(x).__name__}): {error}") from None
    if dtype == "bfloat16":
        return bits.view(bfloat16)
    try:
        return bits.view(np.dtype(dtype))
    except TypeError:
        raise ValueError(f"{name} has dtype {dtype}, which NumPy does not know") from None


def from_numpy(x: np.ndarray, framework: str) -> Any:
    """A NumPy result as an array of `framework`; NumPy for those we do not know."""
    if framework == "torch":
        torch = sys.modules["torch"]
        if x.dtype.kind == "V" or x.dtype.num >= 256:  # a dtype of ml_dtypes
            bits = torch.from_numpy(x.view(f"i{x.itemsize}"))
            return bits.view(getattr(torch, x.dtype.name)) if hasattr(torch, x.dtype.name) else bits
        return torch.from_numpy(x)
    if framework == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x)
    return x


def checked(x: Any, name: str, dtype: np.dtype, shape: tuple[Any, ...], why: str = "") -> np.ndarray:
    """`x` as a contiguous NumPy array of exactly `dtype` and `shape`.

    A string in `shape` stands for any size and is what the message prints.
    """
    a = to_numpy(x, name)
    if a.dtype != dtype:
        raise ValueError(
            f"{name} has dtype {dtype_name(a.dtype)}, expected {dtype_name(dtype)} (the spec's dtype)"
        )
    fits = a.ndim == len(shape) and all(
        isinstance(want, str) or have == want for have, want in zip(a.shape, shape, strict=True)
    )
    if not fits:
        want_text = ", ".join(str(n) for n in shape)
        raise ValueError(f"{name} has shape {list(a.shape)}, expected [{want_text}]{why}")
    if not a.dtype.isnative:
        a = a.astype(a.dtype.newbyteorder("="))
    return np.ascontiguousarray(a)


def raw(a: np.ndarray) -> np.ndarray:
    """The same bytes with a dtype that the native module accepts."""
    return a.view(np.uint16) if a.dtype == bfloat16 else a


def integer(value: Any, name: str, low: int | None = None) -> int:
    """`value` as an int; bools and fractions are refused."""
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} is {value!r}, expected an integer")
    n = value.__index__()
    if low is not None and n < low:
        raise ValueError(f"{name} is {n}, expected {low} or more")
    if abs(n) >= 1 << 62:
        raise ValueError(f"{name} is {n}, which is out of range")
    return n


def number(value: Any, name: str) -> float:
    """`value` as a float; anything that is no number is refused."""
    if isinstance(value, (bool, str, bytes)):
        raise ValueError(f"{name} is {value!r}, expected a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, expected a number") from None
