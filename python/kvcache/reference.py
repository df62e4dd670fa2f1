"""NumPy oracles for tests: attention and the quantiser.

Nothing here imports the compiler or the runtime: the formulas are written down a
second time, straight from docs/spec.md, so that an error would have to be made
twice to go unnoticed. Softmax is float64; the quantiser is float32 with IEEE
division, because its codes must be bitwise equal everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Encoding",
    "alibi_slopes",
    "attention",
    "round_bf16",
    "decode_fp8",
    "dequantize",
    "encode_fp8",
    "merge_states",
    "parse_encoding",
    "quantize",
    "round_bf16",
    "store",
]


def alibi_slopes(heads: int) -> np.ndarray:
    """The usual power-of-two ALiBi slopes of `heads` heads -> [heads] f64."""

    def powers(n: int) -> list[float]:
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]

    base = 1 << (heads.bit_length() - 1)
    slopes = powers(base)
    if base < heads:
        slopes += powers(2 * base)[0::2][: heads - base]
    return np.array(slopes)


def _check_arguments(q, k, v, window, softcap, per_head) -> None:
    """Refuses what would broadcast to something that nobody meant."""
    if not q.ndim == k.ndim == v.ndim == 3 or k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            "expected [tq, q_heads, d], [tk, kv_heads, d], [tk, kv_heads, dv]"
        )
    hq, hkv = q.shape[1], k.shape[1]
    if hkv and hq % hkv:
        raise ValueError(f"{hq} query heads cannot share {hkv} key/value heads")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}, expected 1 or more")
    if softcap is not None and softcap < 0:
        raise ValueError(f"softcap is {softcap}, expected a positive number")
    for name, x in per_head.items():
        if x is not None and np.shape(x) != (hq,):
            raise ValueError(f"{name} has shape {list(np.shape(x))}, expected [{hq}] (one per query head)")


def attention(
    q,
    k,
    v,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes=None,
    scale: float | None = None,
    mask=None,
    sink_logits=None,
    window_right: int | None = None,
    top_left: bool = False,
    positions=None,
) -> tuple[np.ndarray, np.ndarray]:
    """Attention of one sequence in float64.

    q [tq, q_heads, d], k [tk, kv_heads, d], v [tk, kv_heads, dv] ->
    out f64 [tq, q_heads, dv], lse f64 [tq, q_heads] (natural log).

    Queries are the newest tokens: query i has position i + tk - tq (`top_left`:
    i). `mask` broadcasts to [q_heads, tq, tk]; booleans say what is visible,
    numbers are added to the scores. `sink_logits` [q_heads] join the denominator
    (and the LSE) of every row without contributing a value. `positions` [tk]
    replaces the key positions 0..tk-1. Rows that see nothing are 0 with LSE -inf
    (with sinks: 0 with the sink as LSE).
    """
    q, k, v = (np.asarray(a).astype(np.float64) for a in (q, k, v))
    _check_arguments(q, k, v, window, softcap, {"alibi_slopes": alibi_slopes, "sink_logits": sink_logits})
    tq, hq, d = q.shape
    tk, hkv, dv = v.shape
    i = np.arange(tq)[:, None] + (0 if top_left else tk - tq)
    j = (np.arange(tk) if positions is None else np.asarray(positions))[None, :]
    visible = np.ones((tq, tk), bool)
    if causal:
        visible &= j <= i
    if window is not None:
        visible &= j > i - window
    if window_right is not None:
        visible &= j <= i + window_right
    visible = np.broadcast_to(visible, (hq, tq, tk))

    group = hq // hkv if hkv else 1
    kh, vh = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = np.einsum("ihd,jhd->hij", q, kh) * (1 / np.sqrt(d) if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if alibi_slopes is not None:
        s = s + np.asarray(alibi_slopes, np.float64)[:, None, None] * (j - i)
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype == bool:
            visible = visible & mask
        else:
            s = s + mask.astype(np.float64)
    s = np.where(visible, s, -np.inf)
    if sink_logits is not None:
        sinks = np.broadcast_to(np.asarray(sink_logits, np.float64)[:, None, None], (hq, tq, 1))
        s = np.concatenate([s, sinks], axis=2)
    top = s.max(2, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    p = np.exp(s - top)
    total = p.sum(2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (top + np.log(total))[:, :, 0]
        # A hidden value must not reach the result, whatever it holds.
        w = np.where(total > 0, p / total, 0.0)[:, :, :tk]
        vh = np.where(np.isfinite(vh), vh, 0.0) if not np.isfinite(vh).all() else vh
    out = np.einsum("hij,jhd->ihd", w, vh)
    return out.reshape(tq, hq, dv), lse.T


def merge_states(parts) -> tuple[np.ndarray, np.ndarray]:
    """Merges [(out [..., dv], lse [...]), ...] in float64; empty parts have LSE -inf."""
    outs = np.stack([np.asarray(o, np.float64) for o, _ in parts])
    lses = np.stack([np.asarray(x, np.float64) for _, x in parts])
    top = lses.max(0)
    safe = np.where(np.isfinite(top), top, 0.0)
    w = np.exp(lses - safe)
    total = w.sum(0)
    with np.errstate(divide="ignore"):
        lse = safe + np.log(total)
    w = w / np.where(total > 0, total, 1.0)
    return (w[..., None] * outs).sum(0), lse


# --- elements -----------------------------------------------------------------


def round_bf16(x) -> np.ndarray:
    """Rounds f32 to the nearest bfloat16 (ties to even), returned as f32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    up = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    up = np.where(np.isnan(np.asarray(x, np.float32)), np.uint32(0x7FC00000), up).astype(np.uint32)
    return up.view(np.float32).reshape(np.shape(x))


def _fp8_table(element: str) -> np.ndarray:
    """The f64 values of codes 0..127; non-finite codes are left out at the end."""
    mant, bias, last = (3, 7, 0x7E) if element == "e4m3" else (2, 15, 0x7B)
    codes = np.arange(last + 1)
    exp, frac = codes >> mant, (codes & ((1 << mant) - 1)) / (1 << mant)
    return np.where(exp == 0, frac * 2.0 ** (1 - bias), (1 + frac) * 2.0 ** (exp.astype(np.float64) - bias))


def encode_fp8(x, element: str) -> np.ndarray:
    """Nearest fp8 (ties to even), saturating; NaN becomes 0x7f -> uint8 bits."""
    table = _fp8_table(element)
    x = np.asarray(x, np.float64)
    mag = np.minimum(np.abs(np.where(np.isnan(x), 0.0, x)), table[-1])
    hi = np.searchsorted(table, mag)
    lo = np.maximum(hi - 1, 0)
    down, up = mag - table[lo], table[hi] - mag
    code = np.where((up < down) | ((up == down) & (hi % 2 == 0)), hi, lo)
    code = code | np.where(np.signbit(x), 0x80, 0)
    return np.where(np.isnan(x), 0x7F, code).astype(np.uint8)


def decode_fp8(bits, element: str) -> np.ndarray:
    """fp8 bits (uint8) -> f32, non-finite codes included."""
    bits = np.asarray(bits, np.uint8)
    table = np.full(128, np.nan)
    values = _fp8_table(element)
    table[: len(values)] = values
    if element == "e5m2":
        table[0x7C] = np.inf
    return (table[bits & 0x7F] * np.where(bits & 0x80, -1.0, 1.0)).astype(np.float32)


def store(x: np.ndarray, stype: str) -> np.ndarray:
    """S(x): x rounded to the type that scales are stored in, as f32."""
    if stype == "bf16":
        return round_bf16(x)
    with np.errstate(over="ignore"):
        return x.astype(np.float16 if stype == "f16" else np.float32).astype(np.float32)


# --- the quantiser ------------------------------------------------------------

_BITS = {"i8": 8, "i4": 4, "i2": 2, "i1": 1}
_FP8_MAX = {"e4m3": 448.0, "e5m2": 57344.0}


@dataclass(frozen=True)
class Encoding:
    """One parsed encoding, every default filled in; group 0 means all."""

    element: str
    scale: str = "none"
    group: int = 0
    asym: bool = False
    stype: str = "f16"


def parse_encoding(text: str) -> Encoding:
    """Parses "i4:channel:g32:asym:sf32" (no sparsity, rotation or centring)."""
    element, *rest = text.split(":")
    integer = element in _BITS
    got = {
        "scale": "token" if integer else "head" if element in _FP8_MAX else "none",
        "asym": integer,
        "group": 0,
        "stype": "f16",
    }
    for part in rest:
        if part in ("tensor", "head", "token", "channel"):
            got["scale"] = part
            if part == "tensor":
                got["asym"] = False
        elif re.fullmatch(r"g\d+", part):
            got["group"] = int(part[1:])
        elif part in ("asym", "sym"):
            got["asym"] = part == "asym"
        elif part in ("sf16", "sbf16", "sf32"):
            got["stype"] = part[1:]
        else:
            raise ValueError(f"the oracle does not know '{part}' in '{text}'")
    return Encoding(element, **got)


def _grouped(x: np.ndarray, e: Encoding) -> tuple[np.ndarray, tuple[int, int]]:
    """[..., T, C] -> [..., T/gt, gt, C/gc, gc] and (T/gt, C/gc)."""
    *lead, t, c = x.shape
    gt, gc = {"channel": (e.group or t, 1), "token": (1, e.group or c)}.get(e.scale, (t, c))
    if t % gt or c % gc:
        raise ValueError(f"group {e.group} does not divide [{t}, {c}]")
    return x.reshape(*lead, t // gt, gt, c // gc, gc), (t // gt, c // gc)


def quantize(x, encoding: str | Encoding, scale=1.0):
    """x [..., tokens, channels] -> codes (x.shape), scale, zero (None if symmetric).

    Scales are f32 arrays holding values of the s-type: channel [..., tokens/N,
    channels], token [..., tokens, channels/N], head and tensor [..., 1, 1].
    Float elements have neither: their codes are the rounded values.
    """
    e = parse_encoding(encoding) if isinstance(encoding, str) else encoding
    x = np.asarray(x).astype(np.float32)
    if e.scale == "none":
        return store(x, e.element), None, None
    y, (rows, cols) = _grouped(x, e)
    axes = (-3, -1)
    n = _FP8_MAX.get(e.element) or float(2 ** (_BITS[e.element] - (0 if e.asym else 1)) - 1)
    zero = None
    if e.scale == "tensor":
        s = np.broadcast_to(np.asarray(scale, np.float32), y.shape[:-4] + (1, 1, 1, 1))
    elif e.asym:
        lo, hi = y.min(axes, keepdims=True), y.max(axes, keepdims=True)
        zero = store(lo, e.stype)
        s = store((hi - lo) / np.float32(n), e.stype)
    else:
        s = store(np.abs(y).max(axes, keepdims=True) / np.float32(n), e.stype)
    ratio = (y - zero if e.asym else y) / np.where(s > 0, s, np.float32(1))
    if e.element in _FP8_MAX:
        code = np.where(s > 0, encode_fp8(np.clip(ratio, -n, n), e.element), 0).astype(np.uint8)
    else:
        code = np.where(s > 0, np.clip(np.rint(ratio), 0 if e.asym else -n, n), 0)
        code = code.astype(np.uint8 if e.asym else np.int8)
    shape = x.shape[:-2] + ((1, 1) if e.scale == "tensor" else (rows, cols))
    return code.reshape(x.shape), s.reshape(shape), None if zero is None else zero.reshape(shape)


def dequantize(codes, scale, zero, encoding: str | Encoding) -> np.ndarray:
    """Inverse of `quantize`: codes [..., tokens, channels] -> f32, one rounding."""
    e = parse_encoding(encoding) if isinstance(encoding, str) else encoding
    if e.scale == "none":
        return np.asarray(codes, np.float32)
    codes = np.asarray(codes)
    value = decode_fp8(codes, e.element) if e.element in _FP8_MAX else codes
    y, _ = _grouped(value.astype(np.float64), e)

    def spread(a):
        a = np.asarray(a, np.float64)
        return a[..., :, None, :, None]

    y = y * spread(scale) + (0.0 if zero is None else spread(zero))
    return y.reshape(codes.shape).astype(np.float32)
