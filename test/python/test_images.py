"""Page images of sm_8x, executed: records are read as the GPU kernel reads them."""

from __future__ import annotations

import mma
import numpy as np
import pytest

import kvcache as kv
from kvcache import _native

# format, key element, value element, head dim, value dim
CASES = [
    ("f16,page=16", 128, 128),
    ("bf16,page=32", 80, 64),
    ("int8,page=64", 128, 128),
    ("int8,page=16", 112, 48),
    ("kivi4", 128, 128),
    ("kivi4,page=16", 64, 192),
    ("kivi4,page=32", 80, 96),
    ("kivi4", 112, 256),
    ("key=i4:channel:g8:sym,value=i8:token:g8:sym:sf32,page=32", 96, 80),
    ("key=i8:channel:g16:sbf16,value=f16,page=64", 144, 112),
    ("key=f16,value=i4:token:g16,page=128", 64, 64),
]
SCALE_DTYPES = {"sf16": np.float16, "sf32": np.float32}


def encodings(text: str) -> tuple[str, str]:
    """Key and value encodings of a format string, spelled out for kv.quantize."""
    presets = {
        "f16": ("f16", "f16"),
        "bf16": ("bf16", "bf16"),
        "int8": ("i8:channel:asym", "i8:token:asym"),
        "kivi4": ("i4:channel:gK", "i4:token:gV"),
    }
    items = dict(i.split("=") for i in text.split(",") if "=" in i)
    key, value = presets.get(text.split(",")[0], (None, None))
    return items.get("key", key), items.get("value", value)


class Record:
    """One random page, coded by kv.quantize and packed through the image map."""

    def __init__(self, text: str, d: int, dv: int, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.map = _native.image_map(text, d, dv, "sm_8x")
        self.page = self.map["k"]["byte"].shape[0]
        self.dims = {"k": d, "v": dv}
        self.encoding, self.decoded = {}, {}
        self.data = np.zeros(self.map["record_bytes"], np.uint8)
        for side, encoding in zip("kv", encodings(text), strict=True):
            group = self.map[side]["group"]
            e = encoding.replace("gK", f"g{group}").replace("gV", f"g{group}")
            x = rng.normal(size=(self.page, self.dims[side])) + rng.normal(size=self.dims[side])
            self.encoding[side] = e
            self.decoded[side] = self.place(side, x.astype(np.float32), e)

    def section(self, name: str) -> np.ndarray:
        offset, size = self.map["sections"][name]
        return self.data[offset : offset + size]

    def place(self, side: str, x: np.ndarray, encoding: str) -> np.ndarray:
        """Packs x, returns its decoded values."""
        m, out = self.map[side], self.section(side + "_codes")
        element = encoding.split(":")[0]
        if element in ("f16", "bf16"):
            bits = mma.from_float(x, element)
            for b in range(2):
                out[m["byte"] + b] = (bits >> (8 * b)).astype(np.uint8)
            return mma.to_float(bits, element)
        codes, scale, zero = kv.quantize(x, encoding)
        stored = (codes.astype(np.int64) + m["bias"]).astype(np.uint8)
        np.bitwise_or.at(out, m["byte"], stored << m["shift"].astype(np.uint8))
        self.place_scales(side + "_scales", encoding, scale)
        if zero is not None:
            self.place_scales(side + "_zeros", encoding, zero)
        return np.asarray(kv.dequantize(codes, scale, zero, encoding), np.float64)

    def place_scales(self, name: str, encoding: str, scale: np.ndarray) -> None:
        """Token scales lie transposed, [channels/group][page]."""
        s = np.asarray(scale, np.float32)
        s = s.T if ":token" in encoding else s
        if ":sbf16" in encoding:
            raw = mma.from_float(s, "bf16")
        else:
            raw = s.astype(np.float32 if ":sf32" in encoding else np.float16)
        self.section(name)[:] = np.ascontiguousarray(raw).view(np.uint8).ravel()

    def scales(self, name: str, encoding: str) -> np.ndarray:
        """The section as float64 [rows, columns]."""
        raw = self.section(name).copy()
        if ":sf32" in encoding:
            s = raw.view(np.float32).astype(np.float64)
        else:
            s = mma.to_float(raw.view(np.uint16), "bf16" if ":sbf16" in encoding else "f16")
        columns = self.page if ":token" in encoding else self.dims[name[0]]
        return s.reshape(-1, columns)

    def fragments(self, side: str, block: int) -> list[np.ndarray]:
        bits, d = self.map[side]["code_bits"], self.dims[side]
        size = 16 * d * bits // 8
        return mma.load_fragments(self.section(side + "_codes")[block * size : (block + 1) * size], bits, d)

    def factors(self, side: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Scale and effective zero of each element of the page, or None for floats."""
        e = self.encoding[side]
        if not e.startswith("i"):
            return None
        index, scale = self.map[side]["scale_index"], self.scales(side + "_scales", e)
        if ":sym" in e:
            return scale.ravel()[index], -self.map[side]["bias"] * scale.ravel()[index]
        return scale.ravel()[index], self.scales(side + "_zeros", e).ravel()[index]


def split_halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x as two f16 parts."""
    high = x.astype(np.float16).astype(np.float64)
    return high, x - high


def multiply(tiles: list[np.ndarray], parts: list[list[np.ndarray]], kind: str) -> np.ndarray:
    """Sum over tiles of A . B with B in parts; accumulators [32, 4]."""
    c = np.zeros((32, 4))
    for a, operands in zip(tiles, parts, strict=True):
        for b in operands:
            c = mma.mma_m16n8k16(a, mma.b_operand(b, kind), c, kind)
    return c


def scatter(c: np.ndarray) -> np.ndarray:
    """Accumulators [32, 4] as a matrix [16, 8]."""
    m = np.zeros((16, 8))
    for i in range(4):
        m[mma.c_row(i), mma.c_column(i)] = c[:, i]
    return m


def scores(r: Record, q: np.ndarray) -> np.ndarray:
    """S^T [page, 8] of q [8, d]: keys as operand A, scales folded into q."""
    kind = r.encoding["k"] if r.encoding["k"] in ("f16", "bf16") else "f16"
    factors, bits = r.factors("k"), r.map["k"]["code_bits"]
    out = np.zeros((r.page, 8))
    for block in range(r.page // 16):
        rows = slice(block * 16, block * 16 + 16)
        tiles = r.fragments("k", block)
        if factors is None:
            parts = [[q[:, t * 16 : t * 16 + 16].T] for t in range(len(tiles))]
            out[rows] = scatter(multiply(tiles, parts, kind))
            continue
        # One product per group of tokens in the block; its rows are kept.
        for first in range(0, 16, min(r.map["k"]["group"], 16)):
            token = block * 16 + first
            folded = q * factors[0][token]
            parts = [list(split_halves(folded[:, t * 16 : t * 16 + 16].T)) for t in range(len(tiles))]
            s = scatter(multiply(tiles, parts, kind) * mma.row_factor(bits))
            members = slice(first, first + min(r.map["k"]["group"], 16))
            out[rows][members] = s[members] + (q * factors[1][token]).sum(-1)
    return out


def transpose_probabilities(p: np.ndarray) -> np.ndarray:
    """P^T [16, 8] from accumulators to operand B [32, 2], by movmatrix."""
    c = np.stack([p[mma.c_row(i), mma.c_column(i)] for i in range(4)], axis=1)
    bits = mma.from_float(c, "f16")
    return np.stack([mma.movmatrix(mma.pack(bits[:, 2 * i : 2 * i + 2])[:, 0]) for i in (0, 1)], 1)


def weighted_values(r: Record, p: np.ndarray) -> np.ndarray:
    """O^T [dv, 8] of P^T [page, 8]: values transposed as operand A, scales in P."""
    dv, factors, bits = r.dims["v"], r.factors("v"), r.map["v"]["code_bits"]
    kind, out = r.encoding["v"] if bits == 16 else "f16", np.zeros((dv, 8))
    for block in range(r.page // 16):
        rows = slice(block * 16, block * 16 + 16)
        for tile, a in enumerate(r.fragments("v", block)):
            group = 16 if factors is None else min(r.map["v"]["group"], 16)
            for first in range(0, 16, group):
                channel = tile * 16 + first
                weights = p[rows] if factors is None else p[rows] * factors[0][rows, channel, None]
                if kind == "f16":
                    b = transpose_probabilities(weights)
                else:
                    b = mma.b_operand(weights, kind)
                c = mma.mma_m16n8k16(a, b, np.zeros((32, 4)), kind)
                o = scatter(c * mma.row_factor(bits))[first : first + group]
                if factors is not None:
                    o = o + (p[rows] * factors[1][rows, channel, None]).sum(0)
                out[channel : channel + group] += o
    return out


@pytest.mark.parametrize(("text", "d", "dv"), CASES)
def test_attention_from_the_record(text: str, d: int, dv: int) -> None:
    """The record, read as fragments, gives attention on the decoded page."""
    r = Record(text, d, dv)
    dtype = "bf16" if "bf16" in r.encoding["k"].split(":")[0] else "f16"
    q = mma.to_float(mma.from_float(np.random.default_rng(5).normal(size=(8, d)), dtype), dtype)
    s = scores(r, q)
    np.testing.assert_allclose(s, r.decoded["k"] @ q.T, atol=2e-4 * np.abs(s).max())
    p = np.exp(s / np.sqrt(d) - (s / np.sqrt(d)).max(0))
    out = weighted_values(r, p) / p.sum(0)
    want = (r.decoded["v"].T @ p) / p.sum(0)
    bound = 1.5e-2 if "bf16" in text else 2e-3
    assert np.linalg.norm(out - want) <= bound * np.linalg.norm(want)


@pytest.mark.parametrize(("text", "d", "dv"), CASES)
def test_codes_are_a_bijection(text: str, d: int, dv: int) -> None:
    """Each code has bits of its own, and no bit of the section is left over."""
    m = _native.image_map(text, d, dv, "sm_8x")
    for side in "kv":
        bit = (m[side]["byte"] * 8 + m[side]["shift"]).ravel()
        step, size = m[side]["code_bits"], m["sections"][side + "_codes"][1]
        assert np.array_equal(np.sort(bit), np.arange(0, size * 8, step))


@pytest.mark.parametrize(("text", "d", "dv"), CASES)
def test_sections(text: str, d: int, dv: int) -> None:
    """Sections are in order, aligned, within the record."""
    m = _native.image_map(text, d, dv, "sm_8x")
    end = 0
    for name, (offset, size) in m["sections"].items():
        assert offset >= end
        assert offset % (128 if name.endswith("codes") else 16) == 0
        end = offset + size
    assert end <= m["record_bytes"] < end + 128
    assert m["record_bytes"] % 128 == 0


@pytest.mark.parametrize(("text", "d", "dv"), CASES)
def test_load_widths(text: str, d: int, dv: int) -> None:
    """Loads are aligned to their width; nearly all bytes come 16 at a time."""
    m = _native.image_map(text, d, dv, "sm_8x")
    for side, dim in (("k", d), ("v", dv)):
        bits = m[side]["code_bits"]
        loads = mma.lane_loads(bits, dim)
        block = 16 * dim * bits // 8
        for offset, width in loads:
            for b in range(m[side]["byte"].shape[0] // 16):
                assert (m["sections"][side + "_codes"][0] + b * block + offset) % width == 0
        wide = sum(32 * w for _, w in loads if w == 16)
        assert sum(32 * w for _, w in loads) == block
        if dim % 64 == 0:
            assert wide >= 0.95 * block
