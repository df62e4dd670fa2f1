"""Coding arrays outside a cache, 2:4 sparsity, and merging partial results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvcache import _native
from kvcache._arrays import bfloat16, framework_of, from_numpy, integer, number, raw, to_numpy

_FLOAT_CODES = {"f16": np.dtype(np.float16), "bf16": bfloat16, "f32": np.dtype(np.float32)}
_MAX_F32 = float(np.finfo(np.float32).max)
_STYPES = (np.dtype(np.float16), bfloat16, np.dtype(np.float32), np.dtype(np.float64))


def _float32(x: Any, name: str) -> np.ndarray:
    a = to_numpy(x, name)
    if a.dtype not in _STYPES and a.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {a.dtype}, expected float16, bfloat16, float32 or float64")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(a.astype(np.float32))


def _paged(a: np.ndarray, name: str) -> np.ndarray:
    """[..., tokens, channels] as [batch, tokens, channels]."""
    if a.ndim < 2:
        raise ValueError(f"{name} has shape {list(a.shape)}, expected [..., tokens, channels]")
    batch = int(np.prod(a.shape[:-2], dtype=np.int64))
    return a.reshape(batch, *a.shape[-2:])


def _encoding(spec: Any) -> tuple[str, Any]:
    if not isinstance(spec, str):
        raise ValueError(f"encoding is {spec!r}, expected a string such as 'i4:channel:g32:asym'")
    return spec, _native.encoding(spec)


def quantize(x: Any, spec: str, *, scale: float | None = None) -> tuple[np.ndarray, np.ndarray | None, Any]:
    """Codes x [..., tokens, channels] by an encoding string -> (codes, scale, zero).

    All tokens of x are one page. codes has x's shape: uint8 for `asym`, int8 for
    `sym`, the bits as uint8 for fp8, the values themselves for floats. scale and
    zero (f32) are [..., tokens/N, channels] (channel), [..., tokens, channels/N]
    (token) or [..., 1, 1] (head, tensor); zero is None if symmetric. `scale=` is
    the static scale of a `tensor` encoding.
    """
    text, enc = _encoding(spec)
    if scale is not None and enc.scale != "tensor":
        raise ValueError(f"scale= is for 'tensor' encodings, '{text}' computes its scales")
    static = 1.0 if scale is None else number(scale, "scale")
    if not 0 < static <= _MAX_F32:
        raise ValueError(f"scale is {static:g}, expected a finite number above 0")
    pages = _paged(_float32(x, "x"), "x")
    shape = to_numpy(x, "x").shape
    codes, s, z = _no_tokens(pages, text, enc) if shape[-2] == 0 else _native.quantize(pages, text, static)
    lead = shape[:-2]
    if enc.element in _FLOAT_CODES:
        codes = codes.view(_FLOAT_CODES[enc.element])
    elif enc.element.startswith("i") and not enc.asymmetric:
        codes = codes.view(np.int8)

    def shaped(a: np.ndarray | None) -> np.ndarray | None:
        return None if a is None else a.reshape(*lead, *a.shape[-2:])

    return codes.reshape(shape), shaped(s), shaped(z)


def _no_tokens(pages: np.ndarray, text: str, enc: Any) -> tuple[np.ndarray, Any, Any]:
    """What `_native.quantize` gives, for pages without tokens: no group divides those."""
    batch, _, channels = pages.shape
    if enc.element in _FLOAT_CODES:
        return raw(pages.astype(_FLOAT_CODES[enc.element])), None, None
    _, rows, cols = _native.quantized_shape(
        text, max(enc.group, 1) if enc.scale == "channel" else 1, channels
    )
    scales = np.zeros((batch, 0 if enc.scale in ("channel", "token") else rows, cols), np.float32)
    return pages.astype(np.uint8), scales, scales.copy() if enc.asymmetric else None


def dequantize(codes: Any, scale: Any, zero: Any, spec: str) -> np.ndarray:
    """The inverse of `quantize`: codes [..., tokens, channels] -> f32 of the same shape."""
    text, enc = _encoding(spec)
    given = to_numpy(codes, "codes")
    if enc.element in _FLOAT_CODES:
        want = _FLOAT_CODES[enc.element]
        if given.dtype != want:
            raise ValueError(f"codes have dtype {given.dtype}, expected {want} for '{text}'")
        a = np.ascontiguousarray(given)
    else:
        a = _integer_codes(given, text, enc)
    pages = _paged(a, "codes")
    tokens, channels = a.shape[-2:]
    if tokens == 0:
        return np.zeros(a.shape, np.float32)
    _, rows, cols = _native.quantized_shape(text, tokens, channels)

    def fitted(x: Any, name: str, needed: bool) -> np.ndarray | None:
        if x is None or not needed:
            if needed:
                raise ValueError(f"{name} is None, but '{text}' needs one")
            return None
        x = _float32(x, name)
        want = (*a.shape[:-2], rows, cols)
        if x.shape != want and x.size != pages.shape[0] * rows * cols:
            raise ValueError(f"{name} has shape {list(x.shape)}, expected {list(want)} for '{text}'")
        return x

    is_float = enc.element in _FLOAT_CODES
    out = _native.dequantize(
        raw(pages), fitted(scale, "scale", not is_float), fitted(zero, "zero", enc.asymmetric), text
    )
    return out.reshape(a.shape)


def _integer_codes(given: np.ndarray, text: str, enc: Any) -> np.ndarray:
    """Integer or fp8 codes as bytes, refused when out of range."""
    if enc.element.startswith("e") and given.dtype.itemsize == 1:
        return np.ascontiguousarray(given).view(np.uint8)
    if given.dtype.kind not in "iu":
        raise ValueError(f"codes have dtype {given.dtype}, expected integers for '{text}'")
    bits = enc.code_bits
    unsigned = enc.asymmetric or enc.element.startswith("e")
    low = 0 if unsigned else -(2 ** (bits - 1))
    high = low + 2**bits - 1
    if given.size and (given.min() < low or given.max() > high):
        raise ValueError(f"codes span {given.min()} to {given.max()}, expected {low} to {high} for '{text}'")
    return np.ascontiguousarray(given.astype(np.uint8 if low == 0 else np.int8)).view(np.uint8)


def _sparse_axis(a: np.ndarray, pattern: str, axis: int, size: int, name: str) -> np.ndarray:
    if pattern != "2of4":
        raise ValueError(f"sparsity is {pattern!r}, expected '2of4'")
    axis = integer(axis, "axis")
    if a.ndim == 0 or not -a.ndim <= axis < a.ndim:
        raise ValueError(f"axis is {axis}, but {name} has shape {list(a.shape)}")
    moved = np.moveaxis(a, axis, -1)
    if moved.shape[-1] % size:
        n = moved.shape[-1]
        raise ValueError(f"{name} has {n} elements along axis {axis}, expected a multiple of {size}")
    return moved


def sparsify(x: Any, pattern: str = "2of4", axis: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Keeps the two of every four elements along `axis` with the largest |x|.

    Returns values (x's dtype, half as long along `axis`) and metadata (uint8, a
    quarter as long): first kept position + 4 * second, one of 4 8 9 C D E. Of equal
    magnitudes the earlier one is kept.
    """
    a = to_numpy(x, "x")
    moved = _sparse_axis(a, pattern, axis, 4, "x")
    groups = moved.reshape(*moved.shape[:-1], moved.shape[-1] // 4, 4)
    magnitude = np.abs(groups.astype(np.float64))
    if np.isnan(magnitude).any():
        raise ValueError("x holds NaN, which has no magnitude to compare")
    kept = np.sort(np.argsort(-magnitude, axis=-1, kind="stable")[..., :2], axis=-1)
    values = np.take_along_axis(groups, kept, axis=-1).reshape(*moved.shape[:-1], moved.shape[-1] // 2)
    metadata = (kept[..., 0] + 4 * kept[..., 1]).astype(np.uint8)
    return (
        np.ascontiguousarray(np.moveaxis(values, -1, axis)),
        np.ascontiguousarray(np.moveaxis(metadata, -1, axis)),
    )


def densify(values: Any, metadata: Any, pattern: str = "2of4", axis: int = -1) -> np.ndarray:
    """The inverse of `sparsify`: what was dropped is zero."""
    v = _sparse_axis(to_numpy(values, "values"), pattern, axis, 2, "values")
    m = _sparse_axis(to_numpy(metadata, "metadata"), pattern, axis, 1, "metadata")
    if (*v.shape[:-1], v.shape[-1] // 2) != m.shape:
        raise ValueError(
            f"metadata along axis {axis} has shape {list(m.shape)}, expected half of {list(v.shape)}"
        )
    if not np.isin(m, [4, 8, 9, 12, 13, 14]).all():
        raise ValueError("metadata holds a value that is none of 4, 8, 9, 12, 13, 14")
    kept = np.stack([m % 4, m // 4], axis=-1).astype(np.int64)
    out = np.zeros((*m.shape, 4), v.dtype)
    np.put_along_axis(out, kept, v.reshape(*m.shape, 2), axis=-1)
    return np.ascontiguousarray(np.moveaxis(out.reshape(*m.shape[:-1], m.shape[-1] * 4), -1, axis))


def merge_states(states: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Merges attention over disjoint keys: [(out [..., dv], lse [...]), ...] -> (out, lse).

    The parts may come from any backend; out keeps the first part's dtype and
    framework, lse is f32. Parts that saw nothing (lse -inf) do not count.
    """
    if not isinstance(states, Sequence) or any(not isinstance(s, Sequence) or len(s) != 2 for s in states):
        raise ValueError("states is not a list of pairs (out, lse)")
    if not states:
        raise ValueError("states is empty, expected at least one (out, lse)")
    outs = [to_numpy(o, f"out of state {i}") for i, (o, _) in enumerate(states)]
    lses = [to_numpy(s, f"lse of state {i}").astype(np.float64) for i, (_, s) in enumerate(states)]
    for i, (o, s) in enumerate(zip(outs, lses, strict=True)):
        if o.shape != outs[0].shape or s.shape != o.shape[:-1]:
            raise ValueError(
                f"state {i} has out {list(o.shape)} and lse {list(s.shape)}, expected {list(outs[0].shape)} "
                f"and {list(outs[0].shape[:-1])}"
            )
    peak = np.max(lses, axis=0)
    safe = np.where(np.isneginf(peak), 0.0, peak)
    weights = [np.exp(s - safe) for s in lses]
    total = np.sum(weights, axis=0)
    mixed = np.zeros(outs[0].shape, np.float64)
    for o, w in zip(outs, weights, strict=True):
        mixed += np.where(w[..., None] > 0, o.astype(np.float64) * w[..., None], 0.0)
    with np.errstate(divide="ignore"):
        out = np.where(total[..., None] > 0, mixed / np.maximum(total, 1e-300)[..., None], 0.0)
        lse = (safe + np.log(total)).astype(np.float32)
    framework = framework_of(states[0][0])
    return from_numpy(out.astype(outs[0].dtype), framework), from_numpy(lse, framework)
