# ruff: noqa: E501 (PTX text)
"""What template libraries write: odd literals, masked tails behind branches, lockstep epilogues."""

from __future__ import annotations

import numpy as np
import pytest
from simrun import In, Out, Run, run

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
.reg .pred %p<8>; .reg .b32 %r<40>; .reg .f32 %f<24>; .reg .b64 %rd<20>;
.shared .align 16 .b8 s[4096];
ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
"""
X = np.arange(64, dtype=np.float32) + 1


def launch(tmp_path, body: str, *options: str, block: str = "32") -> tuple[Run, int]:
    """Runs `body` on X; also the line marked `//!`."""
    text = HEAD + body + "\nret;\n}\n"
    ptx = tmp_path / "k.ptx"
    ptx.write_text(text)
    line = next((i + 1 for i, s in enumerate(text.split("\n")) if "//!" in s), 0)
    return run(tmp_path, ptx, "k", "1", block, [In(X), Out(np.zeros(64, np.float32))], *options), line


def test_short_literals_and_discarded_results(tmp_path):
    """Row sums by a matrix product whose odd columns nobody wants: `_` and `0.`."""
    r, _ = launch(
        tmp_path,
        """mov.u32 %r2, 1006648320; mov.f32 %f1, 1.; mov.f32 %f3, 0.;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f2, _, %f4, _}, {%r2, %r2, %r2, %r2}, {%r2, %r2}, {%f1, 0., %f3, 0.};
        st.global.f32 [%rd5], %f2; st.global.f32 [%rd5+128], %f4;""",
    )
    assert r.code == 0, r.stderr
    np.testing.assert_array_equal(r.outputs[0][:32], 17)
    np.testing.assert_array_equal(r.outputs[0][32:], 16)


# Lanes 20.. never load; a branch on their value only decides what they compute.
TAIL = """setp.lt.u32 %p1, %r1, 20;
@%p1 ld.global.f32 %f1, [%rd4];
mov.f32 %f2, 0f00000000;
setp.eq.f32 %p2, %f1, 0f40400000;
@%p2 bra SKIP; //!
setp.gt.f32 %p3, %f1, 0f41200000;
@%p3 bra BIG;
rcp.approx.ftz.f32 %f2, %f1;
bra.uni SKIP;
BIG:
mul.f32 %f2, %f1, 0f40000000;
SKIP:
"""


def test_a_branch_that_decides_nothing_that_matters(tmp_path):
    """The masked store of a tail: no fault, and the lanes' results are right."""
    r, _ = launch(tmp_path, TAIL + "@%p1 st.global.f32 [%rd5], %f2;")
    assert r.code == 0, r.stderr
    x = X[:20]
    want = np.where(x == 3, 0, np.where(x > 10, 2 * x, 1 / x))
    np.testing.assert_allclose(r.outputs[0][:20], want, rtol=1e-6)


@pytest.mark.parametrize(
    "use",
    [
        "st.global.f32 [%rd5], %f2;",
        "add.f32 %f3, %f2, %f2;\nst.global.f32 [%rd5], %f3;",
        "cvt.rzi.u32.f32 %r3, %f2;\nand.b32 %r3, %r3, 15; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd6, %rd6, %rd1; ld.global.f32 %f3, [%rd6];",
    ],
)
def test_a_branch_that_matters_later(tmp_path, use):
    """What it decided reaches a store or an address: the branch is reported."""
    r, line = launch(tmp_path, TAIL + use)
    assert r.violation()[:2] == (line, "init"), r.stderr


@pytest.mark.parametrize(
    "way",
    [
        "st.global.f32 [%rd5], %f2;",  # an effect
        "bar.sync 0;",
        "ret;",
        "LOOP: add.f32 %f2, %f2, 0f3f800000;\nsetp.lt.f32 %p3, %f2, 0f41200000;\n@%p3 bra LOOP;",
    ],
)
def test_a_branch_with_effects_is_reported_at_once(tmp_path, way):
    r, line = launch(tmp_path, TAIL.split("setp.gt")[0] + way + "\nSKIP:")
    assert r.violation()[:2] == (line, "init"), r.stderr


def test_lockstep_epilogue(tmp_path):
    """A warp's tile through shared memory without bar.warp.sync: a race, unless lockstep is assumed."""
    body = """ld.global.f32 %f1, [%rd4]; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.s32 %r4, %r3, %r2;
    st.shared.f32 [%r4], %f1; xor.b32 %r5, %r2, 124; add.s32 %r5, %r3, %r5;
    ld.shared.f32 %f2, [%r5]; //!
    st.global.f32 [%rd5], %f2;"""
    r, line = launch(tmp_path, body)
    assert r.violation()[:2] == (line, "race") and "bar.warp.sync" in r.stderr
    r, _ = launch(tmp_path, body, "--check=init,race=lockstep")
    assert r.code == 0, r.stderr
    np.testing.assert_array_equal(r.outputs[0][:32], X[31::-1])
    across = body.replace("124", "252")  # another warp's lane: still a race
    r, _ = launch(tmp_path, across, "--check=init,race=lockstep", block="64")
    assert r.violation()[1] == "race", r.stderr
