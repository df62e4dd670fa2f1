"""wgmma of every type, layout, swizzle and size against the ISA's canonical layouts."""

from __future__ import annotations

import numpy as np
import pytest
from mma_isa import BITS, Meta, a_coords, c_coords, gather, numbers, random_raw, scatter
from mma_models import dot
from simrun import In, Out, run
from test_mma_isa import check
from wgmma_isa import Operand

SMEM = 65536


def kernel(form: str, n_d: int, reg_a: bool, tail: str, meta: bool) -> str:
    """Copies the image to shared memory and issues one wgmma on registers of D."""
    d = "{" + ",".join(f"%d{i}" for i in range(n_d)) + "}"
    a = "{%a0,%a1,%a2,%a3}" if reg_a else "%x0"
    loads = "\n".join(f"ld.global.b32 %d{i}, [%p1+{512 * i}];" for i in range(n_d))
    loads += "".join(f"\nld.global.b32 %a{i}, [%p2+{512 * i}];" for i in range(4)) if reg_a else ""
    stores = "\n".join(f"st.global.b32 [%p1+{512 * i}], %d{i};" for i in range(n_d))
    e = ", %e, 0" if meta else ""
    return f""".version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 S, .param .u64 D, .param .u64 A, .param .u64 E, .param .u64 da, .param .u64 db,
  .param .u32 keep)
{{
.reg .b32 %d<128>; .reg .b32 %a<4>; .reg .b32 %e, %t, %s, %i; .reg .b32 %v<4>;
.reg .b64 %p<6>; .reg .b64 %x<2>; .reg .pred %k, %q;
.shared .align 1024 .b8 smem[{SMEM}];
ld.param.u64 %p0, [S]; ld.param.u64 %p1, [D]; ld.param.u64 %p2, [A]; ld.param.u64 %p3, [E];
ld.param.u64 %x0, [da]; ld.param.u64 %x1, [db]; ld.param.u32 %i, [keep]; setp.ne.u32 %k, %i, 0;
mov.u32 %t, %tid.x; mul.wide.u32 %p4, %t, 16; add.s64 %p0, %p0, %p4;
mov.u32 %s, smem; shl.b32 %i, %t, 4; add.u32 %s, %s, %i;
mov.u32 %i, 0;
L: ld.global.v4.b32 {{%v0,%v1,%v2,%v3}}, [%p0]; st.shared.v4.b32 [%s], {{%v0,%v1,%v2,%v3}};
add.s64 %p0, %p0, 2048; add.u32 %s, %s, 2048; add.u32 %i, %i, 1;
setp.lt.u32 %q, %i, {SMEM // 2048}; @%q bra L;
fence.proxy.async.shared::cta; bar.sync 0;
mul.wide.u32 %p4, %t, 4; add.s64 %p1, %p1, %p4; add.s64 %p2, %p2, %p4; add.s64 %p3, %p3, %p4;
ld.global.b32 %e, [%p3];
{loads}
wgmma.fence.sync.aligned;
wgmma.mma_async.{form} {d}, {a}, %x1{e}, %k{tail};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{stores}
ret;
}}
"""


def warps(coords, count: int = 4):
    """Registers of four warps, each 16 rows below the one before: [reg][128]."""
    return [lambda lane, w=w: [(r + 16 * w, c) for r, c in coords(lane)] for w in range(count)]


def c_tiles(n: int):
    """Accumulators of a warp: m16n8 tiles side by side."""
    return lambda lane: [(r, c + 8 * j) for j in range(n // 8) for r, c in c_coords(16, lane)]


class Case:
    """One product: operands, what to expect, and its run."""

    def __init__(self, form: str, a: Operand, b: Operand, reg_a: bool = False, seed: int = 0):
        self.form, self.a, self.b, self.reg_a = form, a, b, reg_a
        parts = [p for p in form.split(".") if p not in ("sp", "sync", "aligned", "satfinite")]
        self.d, self.at, self.bt = parts[1:4]
        self.sparse = ".sp." in f".{form}."
        rng = np.random.default_rng(seed)
        self.raw_a = random_raw(rng, self.at, (64, a.cols))
        self.raw_b = random_raw(rng, self.bt, (b.rows, b.cols))
        self.raw_c = random_raw(rng, self.d, (64, b.rows))
        self.meta = Meta(BITS[self.at], b.cols)
        self.nibbles = self.meta.random(rng, 64, False) if self.sparse else None

    def run(self, tmp_path, tail: str, keep: bool, *options: str) -> np.ndarray:
        """D as numbers [64][n]."""
        image = np.zeros(SMEM, np.uint8)
        self.a.place(image, self.raw_a)
        self.b.place(image, self.raw_b)
        bits, n = BITS[self.d], self.b.rows
        d = np.hstack([gather(self.raw_c, f, bits) for f in warps(c_tiles(n))])
        ab = BITS[self.at]
        regs = [gather(self.raw_a, f, ab) for f in warps(lambda t: a_coords(16, self.a.cols, ab, t))]
        e = np.zeros(128, np.uint32)
        if self.sparse:
            e = np.hstack([self.meta.registers(self.nibbles[16 * w : 16 * w + 16], 0) for w in range(4)])
        path = tmp_path / "k.ptx"
        path.write_text(kernel(self.form, len(d), self.reg_a, tail, self.sparse))
        args = [In(image), Out(d, defined=True), In(np.hstack(regs)), In(e)]
        args += [f"u64:{self.a.descriptor()}", f"u64:{self.b.descriptor()}", f"u32:{int(keep)}"]
        r = run(tmp_path, path, "k", "1", "128", args, *options)
        assert r.code == 0, r.stderr
        out = np.zeros((64, n), np.uint64)
        for w in range(4):
            part = scatter(r.outputs[0][:, 32 * w : 32 * w + 32], c_tiles(n), (16, n), bits)
            out[16 * w : 16 * w + 16] = part
        return numbers(out, self.d)

    def dense_a(self) -> np.ndarray:
        """A with its zeros."""
        v = numbers(self.raw_a, self.at)
        if not self.sparse:
            return v
        out = np.zeros((64, self.b.cols), v.dtype)
        np.put_along_axis(out, self.meta.columns(self.nibbles), v, 1)
        return out

    def want(self, keep: bool, sign: int = 1) -> np.ndarray:
        """sign * A B (+ D)."""
        r = sign * (self.dense_a() @ numbers(self.raw_b, self.bt).T)
        r = r + numbers(self.raw_c, self.d) if keep else r
        return (r + 2**31) % 2**32 - 2**31 if self.d == "s32" and not self.form.count("sat") else r


def tail_of(kind: str, reg_a: bool, sa: int = 1, sb: int = 1, ta: bool = False, tb: bool = False) -> str:
    """The operands after the scale predicate."""
    if kind[0] in "su":
        return ""
    trans = "" if kind not in ("f16", "bf16") else f", {int(tb)}" if reg_a else f", {int(ta)}, {int(tb)}"
    return f", {sa}, {sb}{trans}"


TYPES = [("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")]
TYPES += [("f32", "e4m3", "e4m3"), ("f32", "e4m3", "e5m2"), ("f32", "e5m2", "e4m3"), ("f16", "e5m2", "e5m2")]
TYPES += [("s32", "s8", "s8"), ("s32", "u8", "s8"), ("s32", "u8", "u8")]


@pytest.mark.parametrize("types", TYPES, ids=".".join)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_k_major(tmp_path, types, sparse, swizzle):
    d, at, bt = types
    bits = BITS[at]
    k = 256 // bits * (2 if sparse else 1)
    if sparse and swizzle == 32:
        b_swizzle = 64  # a row of B is 64 bytes
    else:
        b_swizzle = swizzle
    n = {0: 8, 32: 16, 64: 32, 128: 48}[swizzle]
    a = Operand(64, 256 // bits, bits, swizzle, False, 1024)
    b = Operand(n, k, bits, b_swizzle, False, 2048, start=32768)
    case = Case(f"{'sp.' if sparse else ''}sync.aligned.m64n{n}k{k}.{d}.{at}.{bt}", a, b, seed=swizzle)
    for reg_a in (False, True):
        case.reg_a = reg_a
        check("", case.run(tmp_path, tail_of(at, reg_a), True), case.want(True), d)
    check("", case.run(tmp_path, tail_of(at, True), False), case.want(False), d)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [8, 64, 136])
def test_mn_major(tmp_path, kind, swizzle, sparse, n):
    k = 32 if sparse else 16
    if n * 2 < swizzle:
        n = swizzle // 2
    a = Operand(64, 16, 16, swizzle, True, 1024)
    b = Operand(n, k, 16, swizzle, True, 2048, start=32768)
    case = Case(f"{'sp.' if sparse else ''}sync.aligned.m64n{n}k{k}.f32.{kind}.{kind}", a, b, seed=n)
    check("", case.run(tmp_path, tail_of(kind, False, -1, 1, True, True), True), case.want(True, -1), "f32")
    case.reg_a = True
    check("", case.run(tmp_path, tail_of(kind, True, -1, -1, tb=True), False), case.want(False), "f32")


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("rows", [1, 3, 5])
def test_base_offset(tmp_path, swizzle, rows):
    """Patterns that do not start at a multiple of their size."""
    a = Operand(64, 16, 16, swizzle, False, 0, start=128 * rows)
    b = Operand(32, 16, 16, swizzle, False, 0, start=32768 + 128 * rows)
    case = Case("sync.aligned.m64n32k16.f32.f16.f16", a, b)
    check("", case.run(tmp_path, tail_of("f16", False), True), case.want(True), "f32")


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_n(tmp_path, n):
    a, b = Operand(64, 16, 16, 128, False), Operand(n, 16, 16, 128, False, start=16384)
    case = Case(f"sync.aligned.m64n{n}k16.f32.f16.f16", a, b)
    check("", case.run(tmp_path, tail_of("f16", False), True), case.want(True), "f32")


@pytest.mark.parametrize("reg_a", [False, True])
def test_single_bits(tmp_path, reg_a):
    a, b = Operand(64, 32, 8, 128, False), Operand(24, 32, 8, 64, False, start=16384)
    case = Case("sync.aligned.m64n24k256.s32.u8.u8", a, b, reg_a)
    case.form = "sync.aligned.m64n24k256.s32.b1.b1.and.popc"
    pair = case.raw_a[:, None, :].astype(np.uint8) & case.raw_b[None].astype(np.uint8)
    want = np.unpackbits(pair, axis=-1).sum(-1) + numbers(case.raw_c, "s32")
    np.testing.assert_array_equal(case.run(tmp_path, "", True), want)


def test_satfinite(tmp_path):
    a, b = Operand(64, 32, 8, 32, False), Operand(8, 32, 8, 32, False, start=16384)
    case = Case("sync.aligned.m64n8k32.satfinite.s32.u8.u8", a, b)
    case.raw_c[:] = 2**31 - 1000
    np.testing.assert_array_equal(case.run(tmp_path, "", True), np.minimum(case.want(True), 2**31 - 1))


@pytest.mark.parametrize(
    "types", [("f32", "e4m3", "e5m2"), ("f32", "f16", "f16"), ("f16", "f16", "f16")], ids=".".join
)
def test_h100_model(tmp_path, types):
    """Bit for bit, all of k in one step."""
    d, at, bt = types
    k = 256 // BITS[at]
    a, b = Operand(64, k, BITS[at], 32, False), Operand(8, k, BITS[at], 32, False, start=16384)
    case = Case(f"sync.aligned.m64n8k{k}.{d}.{at}.{bt}", a, b)
    got = case.run(tmp_path, tail_of(at, False), True, "--mma-model=h100")
    va, vb, vc = numbers(case.raw_a, at), numbers(case.raw_b, bt), numbers(case.raw_c, d)
    rows = range(0, 64, 5)
    want = [
        [dot("h100", va[i].tolist(), vb[j].tolist(), float(vc[i, j]), (at, bt), d, True) for j in range(8)]
        for i in rows
    ]
    np.testing.assert_array_equal(got[list(rows)], np.array(want))
