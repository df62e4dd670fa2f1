"""cvt in every rounding and saturation mode against exact fractions; 8 and 16-bit inputs exhaustively."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from ops import apply

# exponent bits, fraction bits, bias, largest, bits of NaN (None: the largest)
FORMATS = {
    "f16": (5, 10, 15, 65504, 0x7FFF),
    "bf16": (8, 7, 127, (2 - Fraction(1, 128)) * 2**127, 0x7FFF),
    "e4m3": (4, 3, 7, 448, 0x7F),
    "e5m2": (5, 2, 15, 57344, 0x7F),
    "e2m3": (2, 3, 1, Fraction(15, 2), None),
    "e3m2": (3, 2, 3, 28, None),
    "e2m1": (2, 1, 1, 6, None),
    "tf32": (8, 10, 127, (2 - Fraction(1, 1024)) * 2**127, 0x3FFFF),
    "f32": (8, 23, 127, (2 - Fraction(1, 2**23)) * 2**127, 0x7FFFFFFF),
}
IEEE = ("f16", "bf16", "e5m2", "tf32", "f32")


@functools.cache
def value(kind: str, raw: int) -> float:
    """The number of raw bits."""
    e_bits, m_bits, bias, _, _ = FORMATS[kind]
    e, m, s = raw >> m_bits & ((1 << e_bits) - 1), raw & ((1 << m_bits) - 1), raw >> (e_bits + m_bits) & 1
    if kind in IEEE and e == (1 << e_bits) - 1:
        return math.nan if m else math.copysign(math.inf, -s if s else 1)
    if kind == "e4m3" and raw & 0x7F == 0x7F:
        return math.nan
    x = math.ldexp(m, 1 - bias - m_bits) if e == 0 else math.ldexp((1 << m_bits) + m, e - bias - m_bits)
    return -x if s else x


def quantise(q: Fraction, mode: str) -> int:
    """A non-negative number to an integer; the mode is of the magnitude."""
    low = q.numerator // q.denominator
    rest = q - low
    if mode == "rz" or rest == 0:
        return low
    if mode == "away":
        return low + 1
    half = Fraction(1, 2)
    return low + (rest > half or (rest == half and (mode == "rna" or low & 1)))


def encode(kind: str, x: float, mode: str, relu: bool = False, satfinite: bool = False) -> int:
    """Bits of a number in a format."""
    e_bits, m_bits, bias, largest, nan = FORMATS[kind]
    sign = 1 << (e_bits + m_bits) if math.copysign(1, x) < 0 else 0
    top = ((1 << e_bits) - 1) << m_bits  # infinity of IEEE formats
    big = {"e4m3": 0x7E, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 7}.get(kind, top - 1)
    if math.isnan(x):
        return big if nan is None else nan
    if relu and sign:
        return 0
    mag = {"rm": "away" if sign else "rz", "rp": "rz" if sign else "away"}.get(mode, mode)
    if math.isinf(x):
        return sign | (big if satfinite else top)
    f = abs(Fraction(x))
    if f == 0:
        return sign
    e = max(math.frexp(x)[1] - 1, 1 - bias)
    n = quantise(f / Fraction(2) ** (e - m_bits), mag)
    if n >= 2 << m_bits:
        n, e = n >> 1, e + 1
    if n * Fraction(2) ** (e - m_bits) > largest:
        return sign | (big if satfinite or mag == "rz" else top)
    return sign | (n if n < 1 << m_bits else (e + bias - 1 << m_bits) + n)


def f32_samples() -> np.ndarray:
    """Ties, neighbours of ties, subnormals, limits and specials of the narrow formats, and random bits."""
    rng = np.random.default_rng(1)
    out = [rng.integers(0, 2**32, 1024, dtype=np.uint64).astype(np.uint32)]
    for m_bits in (1, 2, 3, 7, 10):
        e = rng.integers(100, 150, 96).astype(np.uint32) << 23
        m = rng.integers(0, 1 << m_bits, 96).astype(np.uint32) << (23 - m_bits)
        tie = e | m | np.uint32(1 << (22 - m_bits))
        out += [tie, tie - 1, tie + 1, tie | np.uint32(1 << 31)]
    limits = [
        448,
        464,
        465,
        480,
        57344,
        61440,
        61441,
        65504,
        65519,
        65520,
        65536,
        6,
        5.5,
        7,
        7.5,
        8,
        28,
        30,
        3.4e38,
    ]
    tiny = [
        2.0**-n * k for n in (6, 9, 10, 14, 16, 17, 24, 25, 26, 126, 133, 134, 149) for k in (1, 1.5, 0.5)
    ]
    special = np.array([0, np.inf, np.nan, *limits, *tiny], np.float32)
    out += [special.view(np.uint32), (-special).view(np.uint32)]
    x = np.concatenate(out)
    return np.concatenate([x, np.zeros(-len(x) % 256, np.uint32)])


F32 = f32_samples()
HALVES = np.arange(65536, dtype=np.uint16)


def check_one(tmp_path, form: str, kind: str, mode: str, relu: bool, sat: bool) -> None:
    width = {"tf32": 32}.get(kind, 16)
    out = apply(tmp_path, form, [F32], f"u{width // 8}")
    shift = 13 if kind == "tf32" else 0
    want = [encode(kind, float(v), mode, relu, sat) << shift for v in F32.view(np.float32)]
    if kind == "tf32":
        want = [0x7FFFFFFF if w == 0x3FFFF << 13 else w for w in want]
    np.testing.assert_array_equal(out, np.array(want, out.dtype))


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("mods", ["", ".relu", ".satfinite", ".relu.satfinite"])
def test_from_f32(tmp_path, kind, mode, mods):
    if kind == "tf32" and mods == ".relu.satfinite":
        mods = ".satfinite.relu"
    check_one(
        tmp_path, f"cvt.{mode}{mods}.{kind}.f32 {{0}}, {{1}}", kind, mode, "relu" in mods, "satf" in mods
    )


@pytest.mark.parametrize("mode", ["rm", "rp"])
def test_directed_f16(tmp_path, mode):
    check_one(tmp_path, f"cvt.{mode}.f16.f32 {{0}}, {{1}}", "f16", mode, False, False)


@pytest.mark.parametrize("mods", ["", ".satfinite"])
def test_tf32_away(tmp_path, mods):
    check_one(tmp_path, f"cvt.rna{mods}.tf32.f32 {{0}}, {{1}}", "tf32", "rna", False, bool(mods))


PAIRS = ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"]


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_pairs(tmp_path, kind, relu):
    """From f32 and from every f16, and every element back."""
    step, size = (4, 1) if kind == "e2m1" else (8, 2)
    back = np.roll(F32, 7)
    out = apply(tmp_path, f"cvt.rn.satfinite{relu}.{kind}x2.f32 {{0}}, {{1}}, {{2}}", [F32, back], f"u{size}")
    one = {
        int(v): encode(kind, float(np.uint32(v).view(np.float32)), "rn", bool(relu), True)
        for v in set(F32.tolist())
    }
    want = [one[int(a)] << step | one[int(b)] for a, b in zip(F32, back, strict=True)]
    np.testing.assert_array_equal(out, np.array(want, out.dtype))

    both = HALVES.astype(np.uint32) | np.roll(HALVES, 1).astype(np.uint32) << 16
    out = apply(tmp_path, f"cvt.rn.satfinite{relu}.{kind}x2.f16x2 {{0}}, {{1}}", [both], f"u{size}")
    halves = np.array([encode(kind, value("f16", i), "rn", bool(relu), True) for i in range(65536)])
    np.testing.assert_array_equal(out, (np.roll(halves, 1) << step | halves).astype(out.dtype))

    n = 1 << (1 + FORMATS[kind][0] + FORMATS[kind][1])
    raw = np.arange(256 if step == 4 else 65536, dtype=np.uint32)
    mask = n - 1
    raw = raw[(raw >> step & ~np.uint32(mask) | raw & (((1 << step) - 1) & ~mask)) == 0].astype(f"u{size}")
    out = apply(tmp_path, f"cvt.rn{relu}.f16x2.{kind}x2 {{0}}, {{1}}", [raw], np.uint32)
    up = np.array([encode("f16", value(kind, v), "rn", bool(relu)) for v in range(n)], np.uint32)
    np.testing.assert_array_equal(out, up[raw.astype(np.uint32) >> step & mask] << 16 | up[raw & mask])


def scale(x: float, mode: str, satfinite: bool) -> int:
    """ue8m0 of a number."""
    if math.isnan(x):
        return 0xFF
    f = abs(x)
    if f <= 2.0**-127:
        return 0
    m, e = (0.5, 129) if math.isinf(f) else math.frexp(f)
    r = e + 126 + (mode == "rp" and m > 0.5)
    return r if r < 0xFF else 0xFE if satfinite else 0xFF


@pytest.mark.parametrize("mode", ["rz", "rp"])
@pytest.mark.parametrize("sat", ["", ".satfinite"])
def test_scales(tmp_path, mode, sat):
    x = HALVES.astype(np.uint32) << 16  # every bf16
    out = apply(tmp_path, f"cvt.{mode}{sat}.ue8m0x2.bf16x2 {{0}}, {{1}}", [x], np.uint16)
    want = [scale(value("bf16", i), mode, bool(sat)) for i in range(65536)]
    np.testing.assert_array_equal(out >> 8, want)
    assert not (out & 0xFF).any()
    out = apply(tmp_path, f"cvt.{mode}{sat}.ue8m0x2.f32 {{0}}, {{1}}, {{1}}", [F32], np.uint16)
    want = [scale(float(v), mode, bool(sat)) * 257 for v in F32.view(np.float32)]
    np.testing.assert_array_equal(out, want)
    out = apply(tmp_path, "cvt.rn.bf16x2.ue8m0x2 {0}, {1}", [HALVES], np.uint32)
    up = np.array(
        [encode("bf16", 2.0 ** (v - 127), "rn") if v < 255 else 0x7FFF for v in range(256)], np.uint32
    )
    np.testing.assert_array_equal(out, up[HALVES >> 8] << 16 | up[HALVES & 255])


INTS = {"s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8}


def limits(kind: str) -> tuple[int, int]:
    """Least and largest."""
    n = 8 * INTS[kind]
    return (-(1 << (n - 1)), (1 << (n - 1)) - 1) if kind[0] == "s" else (0, (1 << n) - 1)


def to_int(x: float, mode: str, kind: str) -> int:
    """A float to an integer, clamped; NaN is 0, or the top bit for 64-bit results."""
    lo, hi = limits(kind)
    if math.isnan(x):
        return (1 << 63 if kind == "u64" else -(1 << 63)) if INTS[kind] == 8 else 0
    if math.isinf(x):
        return hi if x > 0 else lo
    mag = {"rmi": "away" if x < 0 else "rz", "rpi": "rz" if x < 0 else "away", "rni": "rn", "rzi": "rz"}[mode]
    n = quantise(abs(Fraction(x)), mag)
    return min(max(-n if x < 0 else n, lo), hi)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u32", "s64", "u64"])
def test_to_integers(tmp_path, mode, kind):
    reg = max(INTS[kind], 2)  # 8-bit results are extended in 16-bit registers
    halves = apply(
        tmp_path, f"cvt.{mode}.{kind}.f16 {{0}}, {{1}}", [HALVES], f"{kind[0].replace('s', 'i')}{reg}"
    )
    want = [to_int(value("f16", i), mode, kind) for i in range(65536)]
    np.testing.assert_array_equal(halves, np.array(want, halves.dtype))
    out = apply(tmp_path, f"cvt.{mode}.{kind}.f32 {{0}}, {{1}}", [F32], halves.dtype)
    want = [to_int(float(v), mode, kind) for v in F32.view(np.float32)]
    np.testing.assert_array_equal(out, np.array(want, out.dtype))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("to", ["f16", "f32"])
@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u64"])
def test_from_integers(tmp_path, mode, to, kind):
    n = INTS[kind]
    rng = np.random.default_rng(n)
    raw = (
        np.arange(65536, dtype=np.uint16) if n == 2 else rng.integers(0, 1 << (8 * n), 2048, dtype=np.uint64)
    )
    raw = raw >> rng.integers(0, 8 * n - 8, len(raw)).astype(raw.dtype) if n > 2 else raw
    x = raw.astype(f"u{n}").view(f"{'i' if kind[0] == 's' else 'u'}{n}")
    out = apply(tmp_path, f"cvt.{mode}.{to}.{kind} {{0}}, {{1}}", [x], "u2" if to == "f16" else "u4")
    np.testing.assert_array_equal(out, np.array([encode_int(to, int(v), mode) for v in x], out.dtype))


def encode_int(kind: str, v: int, mode: str) -> int:
    """encode() of an integer that a double may not hold."""
    _, m_bits, bias, largest, _ = FORMATS[kind]
    sign = 1 << (15 if kind == "f16" else 31) if v < 0 else 0
    mag = {"rm": "away" if sign else "rz", "rp": "rz" if sign else "away"}.get(mode, mode)
    if v == 0:
        return 0
    e = abs(v).bit_length() - 1
    n = quantise(Fraction(abs(v)) / Fraction(2) ** (e - m_bits), mag)
    if n >= 2 << m_bits:
        n, e = n >> 1, e + 1
    top = (0x1F if kind == "f16" else 0xFF) << m_bits
    if n * Fraction(2) ** (e - m_bits) > largest:
        return sign | (top - 1 if mag == "rz" else top)
    return sign | ((e + bias - 1 << m_bits) + n)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_to_integral_halves(tmp_path, mode, kind):
    out = apply(tmp_path, f"cvt.{mode}.{kind}.{kind} {{0}}, {{1}}", [HALVES], np.uint16)
    for i in range(0, 65536, 7 if kind == "bf16" else 1):
        x = value(kind, i)
        if not math.isfinite(x):
            want = i if math.isinf(x) else 0x7FFF
        else:
            mag = {"rmi": "away" if x < 0 else "rz", "rpi": "rz" if x < 0 else "away"}.get(mode, mode[:2])
            n = quantise(abs(Fraction(x)), mag)
            want = encode(kind, math.copysign(n, x), "rn")
        assert out[i] == want, (hex(i), x, hex(out[i]), hex(want))
