"""The published models of tensor-core accumulation, in exact integers.

After MMA-Sim (Xie et al., arXiv 2511.10909) and its predecessors (Fasi et al. 2021; Khattak and
Mikaitis 2025). A second implementation for the tests.
"""

from __future__ import annotations

import math
from fractions import Fraction

EMIN = {"f16": -14, "bf16": -126, "tf32": -126, "f32": -126, "e4m3": -6, "e5m2": -14}


def parts(x: float, kind: str) -> tuple[Fraction, int]:
    """Significand and exponent; subnormals keep the least exponent, zeros have -126."""
    if x == 0:
        return Fraction(0), -126
    e = max(math.frexp(x)[1] - 1, EMIN[kind])
    return Fraction(x) / Fraction(2) ** e, e


def round_f16(v: Fraction) -> float:
    """To nearest even; beyond the largest to infinity."""
    if v == 0:
        return 0.0
    e = max(math.floor(math.log2(abs(v))), -14)
    while abs(v) >= Fraction(2) ** (e + 1):
        e += 1
    while e > -14 and abs(v) < Fraction(2) ** e:
        e -= 1
    r = round(v / Fraction(2) ** (e - 10)) * Fraction(2) ** (e - 10)
    return math.copysign(math.inf, v) if abs(r) >= 65536 else float(r)


def truncate_f32(v: Fraction, mant: int) -> float:
    """To `mant` fraction bits towards zero; beyond the largest to infinity."""
    if v == 0:
        return 0.0
    e = -1100
    m, x = math.frexp(float(v))
    e = max(x - 1, -126)
    while abs(v) < Fraction(2) ** e and e > -126:
        e -= 1
    q = Fraction(2) ** (e - mant)
    r = math.trunc(v / q) * q
    return math.copysign(math.inf, v) if abs(r) >= Fraction(2) ** 128 else float(r)


def fused(terms: list[tuple[Fraction, int]], frac: int) -> Fraction:
    """All terms aligned to the largest exponent, truncated to `frac` fraction bits, added."""
    top = max(e for _, e in terms)
    unit = Fraction(2) ** (top - frac)
    return sum((math.trunc(s * Fraction(2) ** e / unit) for s, e in terms), 0) * unit


def step(
    a: list[float], b: list[float], c: float, kinds: tuple[str, str], out: str, frac: int, mant: int
) -> float:
    """One fused step; `out` is f16 or f32."""
    plain = sum((x * y for x, y in zip(a, b, strict=True)), c)
    if not math.isfinite(plain):
        return plain
    terms = [parts(c, out)]
    for x, y in zip(a, b, strict=True):
        (sx, ex), (sy, ey) = parts(x, kinds[0]), parts(y, kinds[1])
        terms.append((sx * sy, ex + ey))
    v = fused(terms, frac)
    return round_f16(v) if out == "f16" else truncate_f32(v, mant)


def dot(
    chip: str, a: list[float], b: list[float], c: float, kinds: tuple[str, str], out: str, wgmma: bool
) -> float:
    """The dot product of a row and a column of stored elements, and the accumulator."""
    hopper, fp8 = chip == "h100", kinds[0] in ("e4m3", "e5m2")
    if fp8 and hopper and not wgmma:  # emulated: two f16 products from zero, then an addition
        s = 0.0
        for half in (0, 1):
            x = [v for i, v in enumerate(a) if i % 4 // 2 == half]
            y = [v for i, v in enumerate(b) if i % 4 // 2 == half]
            s = step(x, y, s, ("f16", "f16"), out, 25, 23)
        if not math.isfinite(s + c):
            return s + c
        import numpy as np

        return round_f16(Fraction(s) + Fraction(c)) if out == "f16" else float(np.float32(s) + np.float32(c))
    if fp8:
        chunk, frac, mant = (32 if hopper else 16), 13, 13
    else:
        chunk, frac, mant = (4 if kinds[0] == "tf32" else 8) * (2 if hopper else 1), 25 if hopper else 24, 23
    for i in range(0, len(a), chunk):
        c = step(a[i : i + chunk], b[i : i + chunk], c, kinds, out, frac, mant)
    return c
