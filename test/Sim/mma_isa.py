"""Matrix fragments by the formulas of the PTX ISA, and number formats by their bits.

A second implementation for the tests: fragments are (row, column) of element i of a lane, as the
ISA's tables state them shape by shape; nothing here is shared with the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BITS = {
    "f64": 64,
    "tf32": 32,
    "f32": 32,
    "s32": 32,
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
}
BITS |= {"s4": 4, "u4": 4, "b1": 1}


def a_coords(m: int, k: int, bits: int, lane: int) -> list[tuple[int, int]]:
    """(row, column) of a0, a1, ... of a lane, for K stored columns."""
    g, t = lane // 4, lane % 4
    e = max(32 // bits, 1)  # elements of a register
    if m == 8:
        return [(g, t * e + i) for i in range(e)]
    out = []
    for i in range(m * k // 32):
        if bits == 16:  # m16n8k8, m16n8k16
            row = g if i < 2 or 4 <= i < 6 else g + 8
            col = t * 2 + (i & 1) + (8 if i >= 4 else 0)
        elif bits >= 32:  # k4, k8, k16 (f64): one element a register
            row = g if i % 2 == 0 else g + 8
            col = t + 4 * (i // 2)
        elif bits == 8:  # k16, k32
            row = g if i < 4 or 8 <= i < 12 else g + 8
            col = t * 4 + (i & 3) + (16 if i >= 8 else 0)
        elif bits == 4:  # k32, k64
            row = g if i < 8 or 16 <= i < 24 else g + 8
            col = t * 8 + (i & 7) + (32 if i >= 16 else 0)
        else:  # b1: k128, k256
            row = g if i < 32 or 64 <= i < 96 else g + 8
            col = t * 32 + (i & 31) + (128 if i >= 64 else 0)
        out.append((row, col))
    return out


def b_coords(k: int, bits: int, lane: int) -> list[tuple[int, int]]:
    """(row, column) of b0, b1, ...: K rows, 8 columns."""
    g, t = lane // 4, lane % 4
    e = max(32 // bits, 1)
    return [(t * e + i % e + 4 * e * (i // e), g) for i in range(k * 8 // 32)]


def c_coords(m: int, lane: int) -> list[tuple[int, int]]:
    """(row, column) of c0, c1, ...: m rows, 8 columns."""
    g, t = lane // 4, lane % 4
    return [(g if i < 2 else g + 8, t * 2 + (i & 1)) for i in range(m * 8 // 32)]


def coords884(which: str, row_major: bool, half: bool, lane: int) -> list[tuple[int, int]]:
    """m8n8k4 on f16; the product is lane % 16 // 4."""
    t, high = lane % 4, 0 if lane < 16 else 4
    if which == "a":
        return [(t + high, i) if row_major else (i % 4 + high, t) for i in range(4)]
    if which == "b":
        return [(t, i + high) if row_major else (i, t + high) for i in range(4)]
    if half:
        return [(t + high, i) for i in range(8)]
    return [((lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)) for i in range(8)]


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """values[lane][i] raw bits -> registers [reg][lane], elements from the low end."""
    if bits == 64:
        return np.ascontiguousarray(values.T.astype(np.uint64))
    e = 32 // bits
    v = values.astype(np.uint64).reshape(32, -1, e)
    words = (v << (np.arange(e, dtype=np.uint64) * np.uint64(bits))).sum(-1, dtype=np.uint64)
    return np.ascontiguousarray(words.T.astype(np.uint32))


def unpack(regs: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of pack: [lane][i]."""
    if bits == 64:
        return regs.T
    e = 32 // bits
    v = regs.T.astype(np.uint64)[:, :, None] >> (np.arange(e, dtype=np.uint64) * np.uint64(bits))
    return (v & np.uint64((1 << bits) - 1)).reshape(32, -1)


def gather(matrix: np.ndarray, coords, bits: int) -> np.ndarray:
    """Registers that hold `matrix` by coords(lane)."""
    return pack(np.array([[matrix[rc] for rc in coords(lane)] for lane in range(32)], dtype=np.uint64), bits)


def scatter(regs: np.ndarray, coords, shape: tuple[int, int], bits: int) -> np.ndarray:
    """The matrix that registers hold."""
    out, v = np.zeros(shape, np.uint64), unpack(regs, bits)
    for lane in range(32):
        for i, rc in enumerate(coords(lane)):
            out[rc] = v[lane, i]
    return out


@dataclass(frozen=True)
class Real:
    """A float format: exponent and fraction bits; e4m3 has no infinities."""

    exp: int
    mant: int

    @property
    def bias(self) -> int:
        return (1 << (self.exp - 1)) - 1

    def value(self, raw: int) -> float:
        """The number (NaN and infinity included) of raw bits."""
        s = -1.0 if raw >> (self.exp + self.mant) & 1 else 1.0
        e, f = raw >> self.mant & ((1 << self.exp) - 1), raw & ((1 << self.mant) - 1)
        top = (1 << self.exp) - 1
        if (self.exp, self.mant) == (4, 3):
            if e == top and f == 7:
                return float("nan")
        elif e == top:
            return float("nan") if f else s * float("inf")
        if e == 0:
            return s * f * 2.0 ** (1 - self.bias - self.mant)
        return s * (1 + f / 2.0**self.mant) * 2.0 ** (e - self.bias)


REALS = {"f16": Real(5, 10), "bf16": Real(8, 7), "tf32": Real(8, 10), "f32": Real(8, 23)}
REALS |= {"e4m3": Real(4, 3), "e5m2": Real(5, 2)}


def number(raw: int, kind: str):
    """The number of an element; tf32 ignores the low 13 bits of its register."""
    raw = int(raw)
    if kind == "f64":
        return float(np.uint64(raw).view(np.float64))
    if kind == "tf32":
        return REALS[kind].value(raw >> 13)
    if kind in REALS:
        return REALS[kind].value(raw)
    if kind[0] == "s":
        n = BITS[kind]
        return raw - (1 << n) if raw >> (n - 1) else raw
    return raw


def numbers(raw: np.ndarray, kind: str) -> np.ndarray:
    """number() of each element."""
    return np.array([number(v, kind) for v in raw.ravel()]).reshape(raw.shape)


def random_raw(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random finite elements of moderate size, subnormals of 8 and 16-bit formats among them."""
    bits = BITS[kind]
    if kind == "f64":
        return rng.standard_normal(shape).view(np.uint64)
    if kind in ("f32", "tf32"):
        return rng.standard_normal(shape).astype(np.float32).view(np.uint32).astype(np.uint64)
    raw = rng.integers(0, 1 << bits, shape, dtype=np.uint64)
    if kind in REALS:
        r = REALS[kind]
        low = max(r.bias - 6, 0) if kind == "bf16" else 0
        e = rng.integers(low, min(r.bias + 4, (1 << r.exp) - 1), shape, dtype=np.uint64)
        raw = (raw & np.uint64((1 << (bits - 1)) | ((1 << r.mant) - 1))) | e << np.uint64(r.mant)
    return raw


@dataclass(frozen=True)
class Meta:
    """Which of the chunk's positions are stored, for a row: two of four (one of two for tf32)."""

    bits: int
    k: int

    def random(self, rng: np.random.Generator, rows: int, ordered: bool) -> np.ndarray:
        """4-bit groups [row][group]."""
        if self.bits == 32:
            return rng.choice([0b0100, 0b1110], (rows, self.k // 2))
        groups = self.k // (8 if self.bits == 4 else 4)
        pairs = [a | b << 2 for a in range(4) for b in range(4) if (a < b if ordered else a != b)]
        return rng.choice(pairs, (rows, groups))

    def columns(self, nibbles: np.ndarray) -> np.ndarray:
        """Dense column of each stored element [row][k / 2]."""
        lo, hi = nibbles & 3, nibbles >> 2
        n = np.arange(nibbles.shape[1])
        if self.bits == 32:  # 0b0100: the first of two, 0b1110: the second
            return 2 * n + (nibbles == 0b1110)
        if self.bits == 4:  # pairs of neighbours
            parts = [8 * n + 2 * lo, 8 * n + 2 * lo + 1, 8 * n + 2 * hi, 8 * n + 2 * hi + 1]
        else:
            parts = [4 * n + lo, 4 * n + hi]
        return np.stack(parts, -1).reshape(len(nibbles), -1)

    def registers(self, nibbles: np.ndarray, selector: int) -> np.ndarray:
        """The metadata register of each lane; lanes that do not contribute hold rubbish."""
        rows = [sum(int(v) << (4 * i) for i, v in enumerate(r)) for r in nibbles]
        width = 4 * nibbles.shape[1]
        out = np.full(32, 0xDEADBEEF, np.uint64)
        for g in range(8):
            low, high = rows[g], rows[g + 8]
            if width == 16:  # one thread: row g in the lower half, row g + 8 in the upper
                words = {selector: low | high << 16}
            elif self.bits >= 16:  # two threads, 16 columns' worth of both rows each
                words = {
                    2 * selector + j: (low >> 16 * j & 0xFFFF) | (high >> 16 * j & 0xFFFF) << 16
                    for j in (0, 1)
                }
            elif width == 32:  # two threads, a row each
                words = {2 * selector: low, 2 * selector + 1: high}
            else:  # four threads: row g, row g + 8 of the first half, then of the second
                words = {j: (low, high)[j % 2] >> 32 * (j // 2) & 0xFFFFFFFF for j in range(4)}
            for t, w in words.items():
                out[4 * g + t] = w
        return out.astype(np.uint32)
