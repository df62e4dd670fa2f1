"""mma.sync of every element type with 8 words a row, against NumPy."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from simrun import HERE, In, Out, run, tool

RNG = np.random.default_rng(11)

BODY = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 A, .param .u64 B, .param .u64 C)
{{
.reg .b32 %r<30>; .reg .b64 %rd<20>;
ld.param.u64 %rd1, [A]; ld.param.u64 %rd2, [B]; ld.param.u64 %rd3, [C];
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 2; and.b32 %r3, %r1, 3;
shl.b32 %r4, %r2, 3; add.s32 %r4, %r4, %r3;
mul.wide.u32 %rd4, %r4, 4; add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd2, %rd4;
ld.global.b32 %r10, [%rd5]; ld.global.b32 %r11, [%rd5+256];
ld.global.b32 %r12, [%rd5+16]; ld.global.b32 %r13, [%rd5+272];
ld.global.b32 %r14, [%rd6]; ld.global.b32 %r15, [%rd6+16];
mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0;
mma.sync.aligned.{form} {{%r20,%r21,%r22,%r23}}, {{%r10,%r11,%r12,%r13}}, {{%r14,%r15}},
  {{%r20,%r21,%r22,%r23}};
shl.b32 %r5, %r2, 3; shl.b32 %r6, %r3, 1; add.s32 %r5, %r5, %r6;
mul.wide.u32 %rd7, %r5, 4; add.s64 %rd8, %rd3, %rd7;
st.global.v2.b32 [%rd8], {{%r20,%r21}}; st.global.v2.b32 [%rd8+256], {{%r22,%r23}};
ret;
}}
"""


def multiply(tmp_path, form, a, b, dtype, *options):
    """The product of two fragments given as bytes [16][32] and [8][32]."""
    path = tmp_path / "k.ptx"
    path.write_text(BODY.format(form=form))
    r = run(tmp_path, path, "k", "1", "32", [In(a), In(b), Out(np.zeros((16, 8), dtype))], *options)
    assert r.code == 0, r.stderr
    return r.outputs[0]


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "f16", "bf16"])
@pytest.mark.parametrize("model", ["exact", "ada", "h100"])
def test_floats(tmp_path, name, model):
    ml = pytest.importorskip("ml_dtypes")
    types = {"e4m3": ml.float8_e4m3fn, "e5m2": ml.float8_e5m2, "f16": np.float16, "bf16": ml.bfloat16}
    t = np.dtype(types[name])
    k = 32 // t.itemsize
    a, b = (RNG.standard_normal((n, k)).astype(t) for n in (16, 8))
    form = f"m16n8k{k}.row.col.f32.{name}.{name}.f32"
    o = multiply(tmp_path, form, a.view(np.uint8), b.view(np.uint8), np.float32, f"--mma-model={model}")
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    fp8 = t.itemsize == 1
    np.testing.assert_allclose(o, exact, atol=4e-3 if fp8 and model != "exact" else 1e-4)


@pytest.mark.parametrize("types", ["s4.s4", "u4.s4", "s8.s8", "u8.u8", "u8.s8"])
def test_integers(tmp_path, types):
    bits = int(types[1])
    words = [RNG.integers(0, 256, (n, 32)).astype(np.uint8) for n in (16, 8)]

    def decode(w, kind):
        v = w if bits == 8 else np.stack([w & 15, w >> 4], -1).reshape(len(w), 64)
        v = v.astype(np.int32)
        return np.where(v >> (bits - 1), v - (1 << bits), v) if kind[0] == "s" else v

    ta, tb = types.split(".")
    form = f"m16n8k{32 * 8 // bits}.row.col.s32.{ta}.{tb}.s32"
    o = multiply(tmp_path, form, *words, np.int32)
    np.testing.assert_array_equal(o, decode(words[0], ta) @ decode(words[1], tb).T)


@pytest.mark.parametrize("op", ["xor", "and"])
def test_bits(tmp_path, op):
    words = [RNG.integers(0, 256, (n, 32)).astype(np.uint8) for n in (16, 8)]
    o = multiply(tmp_path, f"m16n8k256.row.col.s32.b1.b1.s32.{op}.popc", *words, np.int32)
    a, b = (np.unpackbits(w, axis=1).astype(np.int32) for w in words)
    pair = a[:, None, :] ^ b[None, :, :] if op == "xor" else a[:, None, :] & b[None, :, :]
    np.testing.assert_array_equal(o, pair.sum(-1))


def test_fortran_order_is_refused(tmp_path):
    words = np.asfortranarray(np.zeros((16, 32), np.uint8))
    path = tmp_path / "k.ptx"
    path.write_text(BODY.format(form="m16n8k32.row.col.s32.s8.s8.s32"))
    r = run(tmp_path, path, "k", "1", "32", [In(words), In(words), In(words)])
    assert r.code == 1 and "Fortran order" in r.stderr


def test_python_interface(tmp_path, monkeypatch):
    monkeypatch.setenv("KVCACHE_SIM", tool())
    spec = importlib.util.spec_from_file_location("sim", HERE.parents[1] / "python" / "kvcache" / "sim.py")
    sim = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sim)
    text = (HERE / "kernels" / "basic.sm_80.ptx").read_text()
    x, y = np.arange(100, dtype=np.float32), np.ones(100, np.float32)
    c = sim.run(text, "saxpy", 1, 128, [x, y, np.float32(2), np.int32(100)], counters=True)
    np.testing.assert_array_equal(y, 2 * np.arange(100) + 1)
    assert c["global_load"]["bytes"] == 800
    with pytest.raises(sim.Violation) as e:
        sim.run(text, "saxpy", 1, 128, [x, y, np.float32(2), np.int32(101)])
    assert e.value.kind == "bounds" and e.value.line > 0
