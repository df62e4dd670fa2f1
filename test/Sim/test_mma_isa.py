"""Every form of mma.sync and mma.sp against the ISA's fragments, on random elements."""

from __future__ import annotations

import numpy as np
import pytest
from mma_isa import BITS, Meta, a_coords, b_coords, c_coords, coords884, gather, numbers, random_raw, scatter
from mma_kernel import operate

INTS = [f"s32.{a}.{b}.s32" for n in (8, 4) for a in (f"s{n}", f"u{n}") for b in (f"s{n}", f"u{n}")]
FP8 = [f"{d}.{a}.{b}.{d}" for d in ("f32", "f16") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]


def forms() -> list[str]:
    """The dense forms that the ISA lists, m8n8k4 on f16 apart."""
    out = [f"m16n8k{k}.row.col.{t}" for k in (8, 16) for t in ("f16.f16.f16.f16", "f32.f16.f16.f32")]
    out += [f"m16n8k{k}.row.col.f32.bf16.bf16.f32" for k in (8, 16)]
    out += [f"m16n8k{k}.row.col.f32.tf32.tf32.f32" for k in (4, 8)]
    out += [f"{s}.row.col.f64.f64.f64.f64" for s in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")]
    out += [f"m16n8k{k}.row.col.{t}" for k in (16, 32) for t in FP8]
    for t in INTS:
        n = 8 if "8" in t.split(".")[1] else 4
        shapes = ("m8n8k16", "m16n8k16", "m16n8k32") if n == 8 else ("m8n8k32", "m16n8k32", "m16n8k64")
        out += [f"{s}.row.col{sat}.{t}" for s in shapes for sat in ("", ".satfinite")]
    shapes = ("m8n8k128", "m16n8k128", "m16n8k256")
    return out + [f"{s}.row.col.s32.b1.b1.s32.{op}.popc" for s in shapes for op in ("xor", "and")]


def sparse_forms() -> list[str]:
    """The sparse forms."""
    out = [f"m16n8k{k}.row.col.{t}" for k in (16, 32) for t in ("f16.f16.f16.f16", "f32.f16.f16.f32")]
    out += [f"m16n8k{k}.row.col.f32.bf16.bf16.f32" for k in (16, 32)]
    out += [f"m16n8k{k}.row.col.f32.tf32.tf32.f32" for k in (8, 16)]
    out += [f"m16n8k64.row.col.{t}" for t in FP8 if t.startswith("f32")]
    for t in INTS:
        out += [f"m16n8k{k}.row.col.{t}" for k in ((32, 64) if "8" in t.split(".")[1] else (64, 128))]
    return out


def shape_of(form: str) -> tuple[int, int, list[str]]:
    """m, k and the four types."""
    parts = [p for p in form.split(".") if p not in ("row", "col", "satfinite", "xor", "and", "popc")]
    m, k = parts[0][1:].replace("n8k", " ").split()
    return int(m), int(k), parts[1:]


def expected(form: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a b + c in f64 or exact integers; b1 by its logical operation."""
    if "popc" in form:
        pair = a[:, :, None] ^ b[None] if "xor" in form else a[:, :, None] & b[None]
        return c + pair.sum(1)
    r = a @ b + c
    if a.dtype.kind == "f":
        return r
    if "satfinite" in form:
        return np.clip(r, -(2**31), 2**31 - 1)
    return (r + 2**31) % 2**32 - 2**31


def check(form: str, out: np.ndarray, want: np.ndarray, d: str) -> None:
    """Equal, or within the rounding of float sums."""
    if d == "s32":
        np.testing.assert_array_equal(out, want)
    else:
        tol = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3}[d]
        np.testing.assert_allclose(out, want, rtol=tol, atol=tol * np.abs(want).max())


@pytest.mark.parametrize("form", forms())
def test_dense(tmp_path, form):
    m, k, (d, at, bt, ct) = shape_of(form)
    rng = np.random.default_rng(len(form) + k)
    a, b, c = random_raw(rng, at, (m, k)), random_raw(rng, bt, (k, 8)), random_raw(rng, ct, (m, 8))
    regs = {
        "a": gather(a, lambda lane: a_coords(m, k, BITS[at], lane), BITS[at]),
        "b": gather(b, lambda lane: b_coords(k, BITS[bt], lane), BITS[bt]),
        "c": gather(c, lambda lane: c_coords(m, lane), BITS[ct]),
    }
    out = operate(tmp_path, f"mma.sync.aligned.{form}", regs, len(regs["c"]))
    got = numbers(scatter(out, lambda lane: c_coords(m, lane), (m, 8), BITS[d]), d)
    check(form, got, expected(form, numbers(a, at), numbers(b, bt), numbers(c, ct)), d)


@pytest.mark.parametrize("form", sparse_forms())
@pytest.mark.parametrize("variant", ["sp", "sp::ordered_metadata"])
def test_sparse(tmp_path, form, variant):
    m, k, (d, at, bt, ct) = shape_of(form)
    rng = np.random.default_rng(len(form) * 7 + k)
    bits, meta = BITS[at], Meta(BITS[at], k)
    nibbles = meta.random(rng, m, variant != "sp")
    stored, b, c = random_raw(rng, at, (m, k // 2)), random_raw(rng, bt, (k, 8)), random_raw(rng, ct, (m, 8))
    values = numbers(stored, at)
    dense = np.zeros((m, k), values.dtype)
    np.put_along_axis(dense, meta.columns(nibbles), values, 1)
    width = 4 * nibbles.shape[1]
    selectors = 4 if width == 16 else 1 if bits <= 8 and width == 64 else 2
    regs = {
        "a": gather(stored, lambda lane: a_coords(m, k // 2, bits, lane), bits),
        "b": gather(b, lambda lane: b_coords(k, BITS[bt], lane), BITS[bt]),
        "c": gather(c, lambda lane: c_coords(m, lane), BITS[ct]),
    }
    for selector in range(selectors):
        regs["e"] = meta.registers(nibbles, selector)
        out = operate(tmp_path, f"mma.{variant}.sync.aligned.{form}", regs, len(regs["c"]), selector=selector)
        got = numbers(scatter(out, lambda lane: c_coords(m, lane), (m, 8), BITS[d]), d)
        check(form, got, expected(form, dense, numbers(b, bt), numbers(c, ct)), d)


@pytest.mark.parametrize("layout", ["row.row", "row.col", "col.row", "col.col"])
@pytest.mark.parametrize("types", ["f16.f16", "f32.f16", "f32.f32"])
def test_m8n8k4_f16(tmp_path, layout, types):
    rng = np.random.default_rng(5)
    (d, ct), (la, lb) = types.split("."), layout.split(".")
    a, b, c = (
        random_raw(rng, "f16", (4, 8, 4)),
        random_raw(rng, "f16", (4, 4, 8)),
        random_raw(rng, ct, (4, 8, 8)),
    )

    def coords(which: str, row: bool, half: bool):
        return lambda lane: [(lane % 16 // 4, *rc) for rc in coords884(which, row, half, lane)]

    regs = {
        "a": gather(a, coords("a", la == "row", True), 16),
        "b": gather(b, coords("b", lb == "row", True), 16),
        "c": gather(c, coords("c", True, ct == "f16"), BITS[ct]),
    }
    form = f"mma.sync.aligned.m8n8k4.{layout}.{d}.f16.f16.{ct}"
    for model in ("exact", "a100", "h100"):
        out = operate(tmp_path, form, regs, 4 if d == "f16" else 8, f"--mma-model={model}")
        got = numbers(scatter(out, coords("c", True, d == "f16"), (4, 8, 8), BITS[d]), d)
        check(form, got, numbers(a, "f16") @ numbers(b, "f16") + numbers(c, ct), d)
