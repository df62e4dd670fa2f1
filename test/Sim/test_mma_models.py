"""--mma-model: bit for bit against the published rules, and vectors worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from mma_isa import BITS, Meta, a_coords, b_coords, c_coords, gather, numbers, scatter
from mma_kernel import operate
from mma_models import dot
from test_mma_isa import shape_of

CASES = [
    ("a100", "m16n8k8.row.col.f32.f16.f16.f32"),
    ("a100", "m16n8k16.row.col.f32.f16.f16.f32"),
    ("a100", "m16n8k16.row.col.f16.f16.f16.f16"),
    ("a100", "m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("a100", "m16n8k8.row.col.f32.tf32.tf32.f32"),
    ("ada", "m16n8k32.row.col.f32.e4m3.e5m2.f32"),
    ("ada", "m16n8k16.row.col.f32.e4m3.e4m3.f32"),
    ("ada", "m16n8k32.row.col.f16.e5m2.e5m2.f16"),
    ("h100", "m16n8k16.row.col.f32.f16.f16.f32"),
    ("h100", "m16n8k16.row.col.f16.f16.f16.f16"),
    ("h100", "m16n8k8.row.col.f32.bf16.bf16.f32"),
    ("h100", "m16n8k4.row.col.f32.tf32.tf32.f32"),
    ("h100", "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
    ("h100", "m16n8k32.row.col.f16.e4m3.e5m2.f16"),
]


def wild(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Raw elements of all exponents near one another, with zeros, subnormals and a few specials."""
    bits = BITS[kind]
    raw = rng.integers(0, 1 << bits, shape, dtype=np.uint64)
    mant = {"f16": 10, "bf16": 7, "tf32": 23, "f32": 23, "e4m3": 3, "e5m2": 2}[kind]
    exp = bits - 1 - mant
    bias = (1 << (exp - 1)) - 1
    span = min(bias, 14)
    e = rng.integers(bias - span, bias + span, shape, dtype=np.uint64)
    raw = (raw & np.uint64((1 << (bits - 1)) | ((1 << mant) - 1))) | e << np.uint64(mant)
    raw[rng.random(shape) < 0.1] = 0
    raw[rng.random(shape) < 0.03] &= np.uint64((1 << mant) - 1)  # subnormal
    raw[rng.random(shape) < 0.002] = ((1 << exp) - 1) << mant  # infinity (e4m3: 256)
    return raw


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bit for bit, any NaN for NaN."""
    both = np.isnan(got) & np.isnan(want)
    np.testing.assert_array_equal(np.where(both, 0, got), np.where(both, 0, want))


@pytest.mark.parametrize(("chip", "form"), CASES)
def test_random(tmp_path, chip, form):
    m, k, (d, at, bt, ct) = shape_of(form)
    rng = np.random.default_rng(k + len(chip))
    a, b, c = wild(rng, at, (m, k)), wild(rng, bt, (k, 8)), wild(rng, ct, (m, 8))
    regs = {
        "a": gather(a, lambda lane: a_coords(m, k, BITS[at], lane), BITS[at]),
        "b": gather(b, lambda lane: b_coords(k, BITS[bt], lane), BITS[bt]),
        "c": gather(c, lambda lane: c_coords(m, lane), BITS[ct]),
    }
    out = operate(tmp_path, f"mma.sync.aligned.{form}", regs, len(regs["c"]), f"--mma-model={chip}")
    got = numbers(scatter(out, lambda lane: c_coords(m, lane), (m, 8), BITS[d]), d)
    va, vb, vc = numbers(a, at), numbers(b, bt), numbers(c, ct)
    want = [
        [dot(chip, va[i].tolist(), vb[:, j].tolist(), float(vc[i, j]), (at, bt), d, False) for j in range(8)]
        for i in range(m)
    ]
    same(got, np.array(want))


def test_sparse_adds_stored_elements(tmp_path):
    """Chunks are of stored elements."""
    rng = np.random.default_rng(3)
    meta = Meta(16, 32)
    nibbles = meta.random(rng, 16, True)
    a, b, c = wild(rng, "f16", (16, 16)), wild(rng, "f16", (32, 8)), wild(rng, "f32", (16, 8))
    regs = {
        "a": gather(a, lambda lane: a_coords(16, 16, 16, lane), 16),
        "b": gather(b, lambda lane: b_coords(32, 16, lane), 16),
        "c": gather(c, lambda lane: c_coords(16, lane), 32),
        "e": meta.registers(nibbles, 0),
    }
    form = "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"
    out = operate(tmp_path, form, regs, 4, "--mma-model=a100", selector=0)
    got = numbers(scatter(out, lambda lane: c_coords(16, lane), (16, 8), 32), "f32")
    va, vb, vc = numbers(a, "f16"), numbers(b, "f16"), numbers(c, "f32")
    cols = meta.columns(nibbles)
    want = [
        [
            dot(
                "a100", va[i].tolist(), vb[cols[i], j].tolist(), float(vc[i, j]), ("f16", "f16"), "f32", False
            )
            for j in range(8)
        ]
        for i in range(16)
    ]
    same(got, np.array(want))


def one(tmp_path, chip: str, kind: str, k: int, a: dict[int, float], c: float, out: str = "f32") -> float:
    """Row 0 of A (column -> value) times ones, plus c, for output (0, 0)."""
    ml = pytest.importorskip("ml_dtypes")
    np_type = {"f16": np.float16, "bf16": ml.bfloat16, "e4m3": ml.float8_e4m3fn, "tf32": np.float32}[kind]
    raw = np.dtype(f"u{np.dtype(np_type).itemsize}")
    x, y, acc = np.zeros((16, k), np_type), np.ones((k, 8), np_type), np.zeros((16, 8), np.float32)
    for col, v in a.items():
        x[0, col] = v
    acc[0, 0] = c
    bits, acc_bits = BITS[kind], BITS[out]
    acc_raw = acc.astype(np.float16).view(np.uint16) if out == "f16" else acc.view(np.uint32)
    regs = {
        "a": gather(x.view(raw), lambda lane: a_coords(16, k, bits, lane), bits),
        "b": gather(y.view(raw), lambda lane: b_coords(k, bits, lane), bits),
        "c": gather(acc_raw, lambda lane: c_coords(16, lane), acc_bits),
    }
    form = f"mma.sync.aligned.m16n8k{k}.row.col.{out}.{kind}.{kind}.{out}"
    o = operate(tmp_path, form, regs, len(regs["c"]), f"--mma-model={chip}")
    return float(numbers(scatter(o, lambda lane: c_coords(16, lane), (16, 8), acc_bits), out)[0, 0])


BIG = 2.0**24


@pytest.mark.parametrize(
    ("chip", "kind", "k", "a", "c", "want"),
    [
        # Fraction bits of the alignment: 2^24 has the unit 1 at 24 bits, 1/2 at 25.
        ("a100", "f16", 8, {0: 1.0}, BIG, BIG),  # 2^24 + 1 needs 24 bits, the result keeps 23
        ("a100", "f16", 8, {0: 1.0, 1: 1.0}, BIG, BIG + 2),
        ("a100", "f16", 8, {0: 0.5, 1: 0.5, 2: 1.0}, BIG, BIG),  # each half is truncated, 1 remains
        ("h100", "f16", 8, {0: 0.5, 1: 0.5, 2: 1.0}, BIG, BIG + 2),  # a 25th bit keeps the halves
        ("h100", "f16", 8, {0: 0.25, 1: 0.25, 2: 0.5, 3: 1.0}, BIG, BIG),
        # The accumulator enters with the first chunk only: k 8.. sees 2^24 already.
        ("a100", "f16", 16, {i: 0.5 for i in range(16)}, BIG, BIG),
        ("h100", "f16", 16, {i: 0.5 for i in range(16)}, BIG, BIG + 8),
        # Truncation, not rounding: 2^24 + 3 lies nearer to + 4.
        ("a100", "f16", 8, {0: 3.0}, BIG, BIG + 2),
        ("a100", "f16", 8, {0: -3.0}, -BIG, -BIG - 2),
        # Cancellation within a step is exact for what survived the alignment.
        ("a100", "f16", 8, {0: 2.0**12, 1: -(2.0**12), 2: 2.0**-12}, 0.0, 2.0**-12),
        ("a100", "f16", 8, {0: 2.0**13, 1: -(2.0**13), 2: 2.0**-12}, 0.0, 0.0),
        ("h100", "f16", 8, {0: 2.0**13, 1: -(2.0**13), 2: 2.0**-12}, 0.0, 2.0**-12),
        # ... but not across steps: the first chunk's 2^13 eats the small term of the second.
        ("a100", "f16", 16, {0: 2.0**13, 8: -(2.0**13), 9: 2.0**-12}, 0.0, 0.0),
        ("a100", "f16", 16, {0: 2.0**13, 1: -(2.0**13), 9: 2.0**-12}, 0.0, 2.0**-12),
        # tf32: chunks of 4 on a100, of 8 on h100; inputs truncated to 10 bits.
        ("a100", "tf32", 8, {i: 0.5 for i in range(8)}, BIG, BIG),
        ("a100", "tf32", 8, {0: 1.0 + 2.0**-11}, 0.0, 1.0),
        ("h100", "tf32", 8, {i: 0.5 for i in range(8)}, BIG, BIG + 4),
        # FP8 on Ada keeps 13 bits: of 1 + 2^-14, and of 8192 + 1/2, only the first term.
        ("ada", "e4m3", 16, {0: 0.5}, 8192.0, 8192.0),
        ("ada", "e4m3", 16, {0: 1.0}, 8192.0, 8193.0),
        ("ada", "e4m3", 32, {i: 0.5 for i in range(32)}, 8192.0, 8192.0),
        ("ada", "e4m3", 16, {}, 1.0 + 2.0**-14, 1.0),
        # On Hopper's mma.sync FP8 runs as f16 and the accumulator is added last, rounded.
        ("h100", "e4m3", 32, {i: 0.5 for i in range(32)}, 8192.0, 8208.0),
        ("h100", "e4m3", 32, {0: 1.5, 1: 1.5}, BIG, BIG + 4),  # 2^24 + 3 to nearest even
        # Overflow goes to infinity; subnormal results keep their bits.
        ("a100", "bf16", 8, {0: 2.0**127, 1: 2.0**127}, 0.0, np.inf),
        ("a100", "bf16", 8, {0: 2.0**-130}, 2.0**-149, 2.0**-130 + 2.0**-149),
        ("a100", "f16", 8, {0: np.inf, 1: -np.inf}, 0.0, np.nan),
        ("a100", "f16", 8, {0: -np.inf}, 1.0, -np.inf),
    ],
)
def test_by_hand(tmp_path, chip, kind, k, a, c, want):
    np.testing.assert_array_equal(one(tmp_path, chip, kind, k, a, c), want)


@pytest.mark.parametrize(
    ("chip", "a", "c", "want"),
    [
        ("a100", {0: 1.0}, 2048.0, 2048.0),  # 2049 to nearest even
        ("a100", {0: 1.0, 1: 2.0}, 2048.0, 2052.0),  # 2051 to nearest even
        ("a100", {0: 1.0, 8: 1.0}, 2048.0, 2048.0),  # rounded to f16 after each chunk
        ("h100", {0: 1.0, 8: 1.0}, 2048.0, 2050.0),
        ("a100", {0: 32.0}, 65504.0, np.inf),
    ],
)
def test_f16_accumulators(tmp_path, chip, a, c, want):
    assert one(tmp_path, chip, "f16", 16, a, c, "f16") == want
