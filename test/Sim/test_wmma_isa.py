"""wmma of every shape, type and layout; fragments are those of mma.sync tiles, as compilers lay them out."""

from __future__ import annotations

import numpy as np
import pytest
from mma_isa import BITS, a_coords, b_coords, c_coords, gather, numbers, random_raw
from simrun import In, Out, run
from test_mma_isa import check, expected

K16 = ["m16n16k16", "m32n8k16", "m8n32k16"]
CASES = [(s, f"{d}.f16.f16.{c}") for s in K16 for d in ("f16", "f32") for c in ("f16", "f32")]
CASES += [(s, "f32.bf16.bf16.f32") for s in K16]
CASES += [(s, f"s32.{t}.{t}.s32{sat}") for s in K16 for t in ("s8", "u8") for sat in ("", ".satfinite")]
CASES += [("m16n16k8", "f32.tf32.tf32.f32"), ("m8n8k4", "f64.f64.f64.f64")]
CASES += [("m8n8k32", "s32.s4.s4.s32"), ("m8n8k32", "s32.u4.u4.s32.satfinite")]
CASES += [("m8n8k128", "s32.b1.b1.s32.xor.popc"), ("m8n8k128", "s32.b1.b1.s32.and.popc")]


def sizes(shape: str) -> tuple[int, int, int]:
    """m, n, k."""
    m, n, k = shape[1:].replace("n", " ").replace("k", " ").split()
    return int(m), int(n), int(k)


def count(shape: str, which: str, kind: str) -> int:
    """Registers of a fragment."""
    m, n, k = sizes(shape)
    if kind == "f16" and which in "ab":
        return 8
    elements = {"a": m * k, "b": k * n}.get(which, m * n)
    return elements * BITS[kind] // (64 if kind == "f64" else 32) // 32


def store_packed(raw: np.ndarray, bits: int, row_major: bool, pad: int) -> tuple[np.ndarray, int]:
    """The matrix in memory with `pad` more elements a row, and its leading dimension."""
    m = raw if row_major else raw.T
    m = np.pad(m, ((0, 0), (0, pad)))
    ld = m.shape[1]
    if bits >= 8:
        return np.ascontiguousarray(m.astype(f"u{bits // 8}")), ld
    flat = m.reshape(-1, 8 // bits).astype(np.uint8)
    return (flat << (np.arange(8 // bits, dtype=np.uint8) * bits)).sum(1, dtype=np.uint8), ld


def reg_list(prefix: str, n: int) -> str:
    """{%x0,%x1,...}"""
    return "{" + ",".join(f"%{prefix}{i}" for i in range(n)) + "}"


LAYOUTS = ["row.col.row", "col.row.col", "row.row.row", "col.col.col"]
RUNS = [
    (shape, types, layouts)
    for shape, types in CASES
    for layouts in LAYOUTS
    if shape in (*K16, "m16n16k8", "m8n8k4") or layouts == "row.col.row"  # sub-byte types have no others
]


@pytest.mark.parametrize(("shape", "types", "layouts"), RUNS)
def test_product(tmp_path, shape, types, layouts):
    m, n, k = sizes(shape)
    d, at, bt, ct, *rest = types.split(".")
    la, lb, lc = layouts.split(".")
    rng = np.random.default_rng(len(types) + m)
    a, b, c = random_raw(rng, at, (m, k)), random_raw(rng, bt, (k, n)), random_raw(rng, ct, (m, n))
    mem_a, lda = store_packed(a, BITS[at], la == "row", 32 if BITS[at] < 8 else 8)
    mem_b, ldb = store_packed(b, BITS[bt], lb == "row", 128 if BITS[bt] < 8 else 0)
    mem_c, ldc = store_packed(c, BITS[ct], lc == "row", 4)
    out = np.zeros((m, n) if lc == "row" else (n, m), f"u{BITS[d] // 8}")
    suffix = f".{d}.{ct}" if at == "f16" else f".{d}.{at}.{bt}.{ct}"
    op = "".join(f".{r}" for r in rest if r != "satfinite")
    sat = ".satfinite" if "satfinite" in rest else ""
    rn = ".rn" if at == "f64" else ""
    regs = {w: reg_list(f"{w}_", count(shape, w, t)) for w, t in zip("abcd", (at, bt, ct, d), strict=True)}
    decl = "".join(
        f".reg .{'f64' if t == 'f64' else 'b32'} %{w}_<9>;"
        for w, t in zip("abcd", (at, bt, ct, d), strict=True)
    )
    text = f""".version 8.7
.target sm_80
.address_size 64
.visible .entry k(.param .u64 A, .param .u64 B, .param .u64 C, .param .u64 D)
{{
{decl} .reg .b64 %p<8>;
ld.param.u64 %p0, [A]; ld.param.u64 %p1, [B]; ld.param.u64 %p2, [C]; ld.param.u64 %p3, [D];
wmma.load.a.sync.aligned.{la}.{shape}.global.{at} {regs["a"]}, [%p0], {lda};
wmma.load.b.sync.aligned.{lb}.{shape}.global.{bt} {regs["b"]}, [%p1], {ldb};
wmma.load.c.sync.aligned.{lc}.{shape}.global.{ct} {regs["c"]}, [%p2], {ldc};
wmma.mma{op}.sync.aligned.{la}.{lb}.{shape}{rn}{suffix}{sat}
  {regs["d"]}, {regs["a"]}, {regs["b"]}, {regs["c"]};
wmma.store.d.sync.aligned.{lc}.{shape}.global.{d} [%p3], {regs["d"]};
ret;
}}
"""
    path = tmp_path / "k.ptx"
    path.write_text(text)
    for model in ("exact", "a100"):
        args = [In(mem_a), In(mem_b), In(mem_c), Out(out)]
        r = run(tmp_path, path, "k", "1", "32", args, f"--mma-model={model}", "--check=all")
        assert r.code == 0, r.stderr
        got = numbers(r.outputs[0] if lc == "row" else r.outputs[0].T, d)
        check(types, got, expected(types, numbers(a, at), numbers(b, bt), numbers(c, ct)), d)


def tiled(coords, tiles: list[tuple[int, int]]):
    """Elements of several tiles one after the other."""
    return lambda lane: [(r + y, c + x) for y, x in tiles for r, c in coords(lane)]


@pytest.mark.parametrize(
    ("which", "shape", "kind", "coords", "tiles", "swap"),
    [
        ("a", "m16n16k16", "f16", lambda t: a_coords(16, 16, 16, t), [(0, 0)], False),
        ("b", "m16n16k16", "f16", lambda t: b_coords(16, 16, t), [(0, 0), (0, 8)], False),
        ("c", "m16n16k16", "f32", lambda t: c_coords(16, t), [(0, 0), (0, 8)], False),
        ("c", "m16n16k16", "f16", lambda t: c_coords(16, t), [(0, 0), (0, 8)], False),
        ("a", "m32n8k16", "bf16", lambda t: a_coords(16, 16, 16, t), [(0, 0), (16, 0)], False),
        ("c", "m32n8k16", "s32", lambda t: c_coords(16, t), [(0, 0), (16, 0)], False),
        ("a", "m8n32k16", "s8", lambda t: b_coords(16, 8, t), [(0, 0)], True),
        ("b", "m8n32k16", "f16", lambda t: a_coords(16, 16, 16, t), [(0, 0), (16, 0)], True),
        ("c", "m8n32k16", "f32", lambda t: c_coords(16, t), [(0, 0), (16, 0)], True),
        ("a", "m16n16k8", "tf32", lambda t: a_coords(16, 8, 32, t), [(0, 0)], False),
        ("b", "m16n16k8", "tf32", lambda t: b_coords(8, 32, t), [(0, 0), (0, 8)], False),
        ("a", "m16n16k16", "u8", lambda t: a_coords(16, 16, 8, t), [(0, 0)], False),
        ("a", "m8n8k32", "s4", lambda t: a_coords(8, 32, 4, t), [(0, 0)], False),
    ],
)
def test_fragments_are_those_of_mma(tmp_path, which, shape, kind, coords, tiles, swap):
    m, n, k = sizes(shape)
    size = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
    raw = random_raw(np.random.default_rng(1), kind, size)
    mem, ld = store_packed(raw, BITS[kind], which != "b", 0)
    regs = count(shape, which, kind)
    layout = "col" if which == "b" else "row"
    path = tmp_path / "k.ptx"
    stores = "\n".join(f"st.global.b32 [%p1+{128 * i}], %r{i};" for i in range(regs))
    path.write_text(f""".version 8.7
.target sm_80
.address_size 64
.visible .entry k(.param .u64 A, .param .u64 D)
{{
.reg .b32 %r<9>; .reg .b64 %p<3>; .reg .b32 %t;
ld.param.u64 %p0, [A]; ld.param.u64 %p1, [D];
wmma.load.{which}.sync.aligned.{layout}.{shape}.global.{kind} {reg_list("r", regs)}, [%p0], {ld};
mov.u32 %t, %laneid; mul.wide.u32 %p2, %t, 4; add.s64 %p1, %p1, %p2;
{stores}
ret;
}}
""")
    r = run(tmp_path, path, "k", "1", "32", [In(mem), Out(np.zeros((regs, 32), np.uint32))])
    assert r.code == 0, r.stderr
    want = gather(raw.T if swap else raw, tiled(coords, tiles), BITS[kind])
    np.testing.assert_array_equal(r.outputs[0], np.tile(want, (regs // len(want), 1)))


def test_undefined_column_taints_its_outputs_only(tmp_path):
    """One element of A never written: stores of other rows are no fault."""
    path = tmp_path / "k.ptx"
    path.write_text(""".version 8.7
.target sm_80
.address_size 64
.visible .entry k(.param .u64 D, .param .u32 row)
{
.reg .b32 %a<8>; .reg .f32 %c<8>; .reg .b64 %p<3>; .reg .b32 %r<8>; .reg .pred %q;
.shared .align 32 .b8 s[512];
ld.param.u64 %p0, [D]; ld.param.u32 %r0, [row];
mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, 16; mov.u32 %r3, s; add.u32 %r3, %r3, %r2;
setp.ne.u32 %q, %r1, %r0;
mov.b32 %r4, 0;
@%q st.shared.v4.b32 [%r3], {%r4,%r4,%r4,%r4};
bar.sync 0;
wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, [s], 16;
mov.b32 %r5, 0;
mov.f32 %c0, 0f00000000;
wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%c0,%c1,%c2,%c3,%c4,%c5,%c6,%c7},
  {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, {%r5,%r5,%r5,%r5,%r5,%r5,%r5,%r5}, {%c0,%c0,%c0,%c0,%c0,%c0,%c0,%c0};
mul.wide.u32 %p1, %r1, 4; add.s64 %p0, %p0, %p1;
st.global.f32 [%p0], %c0;
ret;
}
""")
    out = Out(np.zeros(32, np.float32))
    # 16 bytes of lane 17 are half of row 8: c0 (rows 0 to 7) is defined.
    r = run(tmp_path, path, "k", "1", "32", [out, "i32:17"], "--check=all")
    assert r.code == 0, r.stderr
    r = run(tmp_path, path, "k", "1", "32", [out, "i32:6"], "--check=all")
    assert r.violation()[1] == "init" and "(12,0,0)" in r.stderr.replace(" ", "")
