"""Instructions outside kernels seldom have, against the ISA's semantics."""

from __future__ import annotations

import numpy as np
import pytest
from ops import apply
from simrun import In, Out, run

RNG = np.random.default_rng(17)
A, B, C = (RNG.integers(0, 2**32, 256, dtype=np.uint64).astype(np.uint32) for _ in range(3))
A[:8] = B[8:16] = C[16:24] = 0
NIL = np.where(RNG.random(256) < 0.5, 0, A).astype(np.uint32)


@pytest.mark.parametrize("op", ["or", "and"])
def test_lop3_predicate(tmp_path, op):
    form = "setp.ne.u32 %p, {4}, 0; lop3." + op + ".b32 {0}|%p, {1}, {2}, {3}, 0xe8, %p"
    q = RNG.integers(0, 2, 256).astype(np.uint32)
    inputs = [NIL, NIL & B, C & NIL, q]
    d = (inputs[0] & inputs[1]) | (inputs[0] & inputs[2]) | (inputs[1] & inputs[2])
    np.testing.assert_array_equal(apply(tmp_path, form, inputs, np.uint32), d)
    p = (d != 0) | (q != 0) if op == "or" else (d != 0) & (q != 0)
    sink = form.replace("{0}|", "_|")
    np.testing.assert_array_equal(apply(tmp_path, sink, inputs, np.uint32, pred=True), p)


def floats(seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(512).astype(np.float32)
    return x.reshape(256, 2)


def pair(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint64).ravel()


def test_f32_pairs(tmp_path):
    x, y, z = floats(1), floats(2), floats(3)
    for op, want in {"add.rn": x + y, "sub": x - y, "mul.rn": x * y}.items():
        out = apply(tmp_path, f"{op}.f32x2 {{0}}, {{1}}, {{2}}", [pair(x), pair(y)], np.uint64)
        np.testing.assert_array_equal(out.view(np.float32).reshape(256, 2), want)
    out = apply(tmp_path, "fma.rn.f32x2 {0}, {1}, {2}, {3}", [pair(x), pair(y), pair(z)], np.uint64)
    want = (x.astype(np.float64) * y + z).astype(np.float32)  # exact product, the sum of 53 bits
    np.testing.assert_allclose(out.view(np.float32).reshape(256, 2), want, rtol=1e-7)
    low = apply(tmp_path, "add.rm.f32x2 {0}, {1}, {2}", [pair(x), pair(y)], np.uint64).view(np.float32)
    exact = (x.astype(np.float64) + y).ravel()
    assert (low <= exact).all() and (np.nextafter(low, np.float32(np.inf)) > exact).all()


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_mixed_precision(tmp_path, half):
    ml = pytest.importorskip("ml_dtypes")
    t = np.float16 if half == "f16" else ml.bfloat16
    a, b, c = floats(4).ravel()[:256].astype(t), floats(5).ravel()[:256].astype(t), floats(6).ravel()[:256]
    raw = [a.view(np.uint16), b.view(np.uint16), c.view(np.uint32)]
    wide = a.astype(np.float64)
    out = apply(tmp_path, f"add.f32.{half} {{0}}, {{1}}, {{2}}", [raw[0], raw[2]], np.uint32)
    np.testing.assert_array_equal(out.view(np.float32), (wide + c).astype(np.float32))
    out = apply(tmp_path, f"sub.rn.sat.f32.{half} {{0}}, {{1}}, {{2}}", [raw[0], raw[2]], np.uint32)
    np.testing.assert_array_equal(out.view(np.float32), np.clip((wide - c).astype(np.float32), 0, 1))
    out = apply(tmp_path, f"fma.rn.f32.{half} {{0}}, {{1}}, {{2}}, {{3}}", raw, np.uint32)
    np.testing.assert_array_equal(out.view(np.float32), (wide * b.astype(np.float64) + c).astype(np.float32))


def part(v: int, sel: str, signed: bool) -> int:
    """Bits of a register by .b0, .h1, ... (empty: all), extended."""
    bits = {"": 32, "b": 8, "h": 16}[sel[:1]]
    x = v >> (bits * int(sel[1:] or 0)) & ((1 << bits) - 1)
    return x - (1 << bits) if signed and x >> (bits - 1) else x


OPS = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}


def clamp(v: int, signed: bool, bits: int) -> int:
    lo, hi = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(v, lo), hi)


@pytest.mark.parametrize("op", ["vadd", "vsub", "vabsdiff", "vmin", "vmax"])
@pytest.mark.parametrize(
    ("dt", "at", "bt"), [("s32", "s32", "s32"), ("u32", "s32", "u32"), ("s32", "u32", "s32")]
)
def test_scalar_video(tmp_path, op, dt, at, bt):
    signed = [t == "s32" for t in (dt, at, bt)]
    for sa, sb, sat, second in [
        ("", "", "", ""),
        ("b1", "h0", ".sat", ""),
        ("h1", "", ".sat", ".add"),
        ("", "b3", "", ".min"),
    ]:
        ra, rb = (f"{{{i}}}" + ("." + s if s else "") for i, s in ((1, sa), (2, sb)))
        c = ", {3}" if second else ""
        out = apply(tmp_path, f"{op}.{dt}.{at}.{bt}{sat}{second} {{0}}, {ra}, {rb}{c}", [A, B, C], np.uint32)
        want = []
        for a, b, e in zip(A.tolist(), B.tolist(), C.tolist(), strict=True):
            t = OPS[op](part(a, sa, signed[1]), part(b, sb, signed[2]))
            t = clamp(t, signed[0], 32) if sat else t
            t = part(t & 0xFFFFFFFF, "", signed[0])
            e = part(e, "", signed[0])
            want.append({"": t, ".add": t + e, ".min": min(t, e)}[second] & 0xFFFFFFFF)
        np.testing.assert_array_equal(out, want)


def test_scalar_video_merge_and_shift(tmp_path):
    out = apply(tmp_path, "vsub.s32.u32.u32.sat {0}.h1, {1}.b0, {2}.h1, {3}", [A, B, C], np.uint32)
    t = np.clip((A & 255).astype(np.int64) - (B >> 16), -32768, 32767)
    np.testing.assert_array_equal(out, (C & 0xFFFF) | ((t & 0xFFFF) << 16).astype(np.uint32))
    n = B & 63
    out = apply(tmp_path, "vshl.u32.u32.u32.clamp {0}, {1}, {2}", [A, n], np.uint32)
    wide = A.astype(object) << np.minimum(n, 32).astype(object)
    np.testing.assert_array_equal(out, (wide & 0xFFFFFFFF).astype(np.uint32))
    out = apply(tmp_path, "vshr.s32.s32.u32.wrap.add {0}, {1}, {2}, {3}", [A, n, C], np.uint32)
    np.testing.assert_array_equal(out, (A.view(np.int32) >> (n & 31).astype(np.int32)).view(np.uint32) + C)


@pytest.mark.parametrize(("mods", "sign"), [("", 1), (".shr7", 1), (".sat.shr15", 1), (".sat", -1)])
def test_vmad(tmp_path, mods, sign):
    minus = "-" if sign < 0 else ""
    out = apply(
        tmp_path, f"vmad.s32.s32.u32{mods} {{0}}, {minus}{{1}}.h0, {{2}}.h1, {{3}}", [A, B, C], np.uint32
    )
    shift = 7 if "7" in mods else 15 if "15" in mods else 0
    want = []
    for a, b, c in zip(A.tolist(), B.tolist(), C.tolist(), strict=True):
        t = (sign * part(a, "h0", True) * part(b, "h1", False) + part(c, "", True)) >> shift
        want.append((clamp(t, True, 32) if "sat" in mods else t) & 0xFFFFFFFF)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("op", ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"])
def test_simd_video(tmp_path, lanes, op):
    bits, letter = 32 // lanes, "h" if lanes == 2 else "b"
    sel = ".h21" if lanes == 2 else ".b6240"
    for dt, at, bt, sat in [
        ("s32", "s32", "u32", ".sat"),
        ("u32", "u32", "s32", ""),
        ("u32", "s32", "s32", ".add"),
    ]:
        mask = f".{letter}{'1' if lanes == 2 else '31'}"
        form = f"{op}{lanes}.{dt}.{at}.{bt}{sat} {{0}}{mask}, {{1}}{sel}, {{2}}, {{3}}"
        out = apply(tmp_path, form, [A, B, C], np.uint32)
        want = []
        for a, b, c in zip(A.tolist(), B.tolist(), C.tolist(), strict=True):
            both, r = a | b << 32, c
            for i in map(int, mask[2:]):
                x = part(both >> (bits * int(sel[2:][::-1][i])), f"{letter}0", at == "s32")
                y = part(both >> (bits * (lanes + i)), f"{letter}0", bt == "s32")
                t = OPS[op](x, y)
                if sat == ".sat":
                    t = clamp(t, dt == "s32", bits)
                if sat == ".add":
                    r += t
                else:
                    field = (1 << bits) - 1
                    r = r & ~(field << bits * i) | (t & field) << bits * i
            want.append(r & 0xFFFFFFFF)
        np.testing.assert_array_equal(out, want)


def test_vset(tmp_path):
    out = apply(tmp_path, "vset.s32.s32.lt.add {0}, {1}, {2}, {3}", [A, B, C], np.uint32)
    np.testing.assert_array_equal(out, C + (A.view(np.int32) < B.view(np.int32)))
    out = apply(tmp_path, "vset4.u32.u32.ge {0}, {1}, {2}, {3}", [A, B, C], np.uint32)
    np.testing.assert_array_equal(out.view(np.uint8), A.view(np.uint8) >= B.view(np.uint8))


def test_integers(tmp_path):
    x, y = A.view(np.int16), B.view(np.int16)
    out = apply(tmp_path, "max.relu.s16x2 {0}, {1}, {2}", [A, B], np.uint32)
    np.testing.assert_array_equal(out.view(np.int16), np.maximum(np.maximum(x, y), 0))
    out = apply(tmp_path, "mad24.hi.sat.s32 {0}, {1}, {2}, {3}", [A, B, C], np.uint32)
    s24 = [((v.astype(np.int64) & 0xFFFFFF) ^ 0x800000) - 0x800000 for v in (A, B)]
    want = np.clip((s24[0] * s24[1] >> 16) + C.view(np.int32), -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(out.view(np.int32), want)
    out = apply(tmp_path, "cvt.pack.sat.s4.s32.b32 {0}, {1}, {2}, {3}", [A, B, C], np.uint32)
    a, b = (np.clip(v.view(np.int32), -8, 7) & 15 for v in (A, B))
    np.testing.assert_array_equal(out, (C << 8) | (a << 4 | b).astype(np.uint32))


def test_16_byte_atomics(tmp_path):
    """256 threads in 4 blocks count in the low and the high half by compare-and-swap; one exchange."""
    path = tmp_path / "k.ptx"
    path.write_text(""".version 8.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 P, .param .u64 Q)
{
.reg .b128 %q<4>; .reg .b64 %w<8>; .reg .pred %p; .reg .b64 %o<3>;
ld.param.u64 %o0, [P]; ld.param.u64 %o1, [Q];
mov.b64 %w0, 0; mov.b128 %q0, {%w0, %w0};
L:
mov.b128 {%w1, %w2}, %q0;
add.u64 %w3, %w1, 1; add.u64 %w4, %w2, 3;
mov.b128 %q1, {%w3, %w4};
atom.relaxed.gpu.global.cas.b128 %q2, [%o0], %q0, %q1;
mov.b128 {%w5, %w6}, %q2;
setp.ne.u64 %p, %w5, %w1;
mov.b128 %q0, %q2;
@%p bra L;
atom.relaxed.gpu.global.exch.b128 %q3, [%o1], %q1;
ret;
}
""")
    p, q = np.zeros(2, np.uint64), np.zeros(2, np.uint64)
    r = run(tmp_path, path, "k", "4", "64", [Out(p, defined=True), Out(q, defined=True)], "--check=all")
    assert r.code == 0, r.stderr
    np.testing.assert_array_equal(r.outputs[0], [256, 768])
    assert r.outputs[1][1] == 3 * r.outputs[1][0]


STACK = """.version 8.7
.target sm_80
.address_size 64
.func (.param .b32 r) f(.param .b32 n)
{
.reg .b32 %r<8>; .reg .b64 %w<4>; .reg .pred %p;
ld.param.b32 %r0, [n];
cvt.u64.u32 %w0, %r0; shl.b64 %w0, %w0, 2;
alloca.u64 %w1, %w0, 16;
mov.u32 %r1, 0; mov.u32 %r3, 0; mov.u64 %w2, %w1;
S: st.local.u32 [%w2], %r1; add.s64 %w2, %w2, 4; add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, %r0; @%p bra S;
T: sub.s64 %w2, %w2, 4; ld.local.u32 %r2, [%w2]; add.u32 %r3, %r3, %r2; setp.ne.u64 %p, %w2, %w1; @%p bra T;
st.param.b32 [r], %r3;
ret;
}
.visible .entry k(.param .u64 D, .param .u32 size)
{
.reg .b32 %r<8>; .reg .b64 %w<8>; .reg .pred %p;
ld.param.u64 %w0, [D]; ld.param.u32 %r4, [size];
mov.u32 %r0, %tid.x; add.u32 %r1, %r0, 1;
stacksave.u64 %w1;
cvt.u64.u32 %w2, %r4; alloca.u64 %w3, %w2; st.local.u32 [%w3], %r0;
{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), f, (a); ld.param.b32 %r2, [b]; }
ld.local.u32 %r3, [%w3]; add.u32 %r2, %r2, %r3;
cvta.local.u64 %w6, %w3; ld.u32 %r3, [%w6]; add.u32 %r2, %r2, %r3;
stackrestore.u64 %w1; stacksave.u64 %w5; setp.ne.u64 %p, %w1, %w5; @%p trap;
mul.wide.u32 %w4, %r0, 4; add.s64 %w0, %w0, %w4; st.global.u32 [%w0], %r2;
ret;
}
"""


def test_stack(tmp_path):
    """Arrays of a size known at run time, in a function and around its call."""
    path = tmp_path / "k.ptx"
    path.write_text(STACK)
    r = run(tmp_path, path, "k", "1", "64", [Out(np.zeros(64, np.uint32)), "u32:100"], "--check=all")
    assert r.code == 0, r.stderr
    t = np.arange(64)
    np.testing.assert_array_equal(r.outputs[0], t * (t + 1) // 2 + 2 * t)
    r = run(tmp_path, path, "k", "1", "64", [Out(np.zeros(64, np.uint32)), "u32:10000000"], "--check=all")
    assert r.violation()[1] == "bounds" and "stack overflows" in r.stderr


def test_components_are_refused_by_name(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text(STACK.replace("add.u32 %r1, %r0, 1;", "add.u32 %r1, %r0.b0, 1;"))
    r = run(tmp_path, path, "k", "1", "32", [In(np.zeros(32, np.uint32)), "u32:4"])
    assert r.code == 1 and "vector registers are not supported" in r.stderr
