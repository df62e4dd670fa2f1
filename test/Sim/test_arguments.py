# ruff: noqa: E501 (PTX text)
"""Argument forms for kernels that take tables of addresses, parts of buffers, or constants."""

from __future__ import annotations

import numpy as np
from simrun import In, Out, run

PTX = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .f32 factors[2] = {0f3f800000, 0f3f800000};
.visible .entry k(.param .u64 table, .param .u64 out)
{
.reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %rd<16>;
ld.param.u64 %rd1, [table]; ld.param.u64 %rd2, [out];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x;
mul.wide.u32 %rd3, %r1, 8; add.s64 %rd4, %rd1, %rd3; ld.global.u64 %rd5, [%rd4];
mul.wide.u32 %rd6, %r2, 4; add.s64 %rd7, %rd5, %rd6; ld.global.f32 %f1, [%rd7];
mov.u64 %rd8, factors; mul.wide.u32 %rd9, %r1, 4; add.s64 %rd10, %rd8, %rd9; ld.const.f32 %f2, [%rd10];
mul.f32 %f3, %f1, %f2;
shl.b32 %r3, %r1, 5; add.s32 %r4, %r3, %r2; mul.wide.u32 %rd11, %r4, 4; add.s64 %rd12, %rd2, %rd11;
st.global.f32 [%rd12], %f3;
ret;
}
"""


def launch(tmp_path, *options: str, out: str = "ptr:{f1}:out"):
    """Two blocks, each on the row its table entry points to; returns the run and the rows."""
    ptx = tmp_path / "k.ptx"
    ptx.write_text(PTX)
    a, b = np.arange(64, dtype=np.float32), np.arange(32, dtype=np.float32) * 10
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    (tmp_path / "table.bin").write_bytes(bytes(16))
    table = f"dstruct:{tmp_path}/table.bin:0=ptr+128:{tmp_path}/a.npy,8=ptr:{tmp_path}/b.npy"
    r = run(tmp_path, ptx, "k", "2", "32", [table, Out(np.zeros(64, np.float32))], *options)
    return r, a[32:], b


def test_tables_of_addresses(tmp_path):
    r, a, b = launch(tmp_path)
    assert r.code == 0, r.stderr
    np.testing.assert_array_equal(r.outputs[0], np.concatenate([a, b]))


def test_symbols(tmp_path):
    np.save(tmp_path / "factors.npy", np.array([2, 3], np.float32))
    r, a, b = launch(tmp_path, f"--symbol=factors={tmp_path}/factors.npy")
    assert r.code == 0, r.stderr
    np.testing.assert_array_equal(r.outputs[0], np.concatenate([2 * a, 3 * b]))


def test_refusals(tmp_path):
    np.save(tmp_path / "big.npy", np.zeros(3, np.float32))
    for option, text in [
        (f"--symbol=nothing={tmp_path}/big.npy", "no variable 'nothing'"),
        (f"--symbol=factors={tmp_path}/big.npy", "has 8 bytes, got 12"),
        ("--symbol=factors", "expected NAME=FILE"),
    ]:
        r, _, _ = launch(tmp_path, option)
        assert r.code == 1 and text in r.stderr, r.stderr


def test_an_address_past_the_end(tmp_path):
    ptx = tmp_path / "k.ptx"
    ptx.write_text(PTX)
    (tmp_path / "table.bin").write_bytes(bytes(8))
    r = run(tmp_path, ptx, "k", "1", "32", [In(np.zeros(32, np.float32)), Out(np.zeros(32, np.float32))])
    assert r.violation()[1] == "bounds"  # a null entry
    table = f"dstruct:{tmp_path}/table.bin:0=ptr+64:{tmp_path}/k0.npy"
    r = run(tmp_path, ptx, "k", "1", "32", [table, Out(np.zeros(32, np.float32))])
    assert r.violation()[1] == "bounds", r.stderr
