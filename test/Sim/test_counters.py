# ruff: noqa: E501 (PTX text)
"""Counters against counts by hand: sectors, bank conflicts, divergence, flops, lines."""

from __future__ import annotations

import numpy as np
import pytest
from simrun import In, Out, counters

HEAD = (
    ".version 8.0\n.target {target}\n.address_size 64\n"
    ".visible .entry k(.param .u64 in, .param .u64 out)\n{{\n"
    ".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<40>; .reg .f32 %f<16>; .reg .b64 %rd<20>;\n"
    ".shared .align 128 .b8 s[8192]; .shared .align 8 .b64 bar;\n"
    "ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r3, s;\n"
)


def count(tmp_path, body, block="32", target="sm_80"):
    """The counters of a body that may use %r1 (thread), %rd1, %rd2 and shared `s` (%r3)."""
    path = tmp_path / "k.ptx"
    path.write_text(HEAD.format(target=target) + body + "\nret;\n}\n")
    args = [In(np.zeros(4096, np.uint32)), Out(np.zeros(4096, np.uint32), True)]
    return counters(tmp_path, path, "k", "1", block, args, "--counters-per-line")


def strided(step):
    """%rd4 = in + tid * step, %r4 = s + tid * step."""
    return (
        f"mul.wide.u32 %rd3, %r1, {step}; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;\n"
        f"mul.lo.u32 %r2, %r1, {step}; add.s32 %r4, %r3, %r2;\n"
    )


@pytest.mark.parametrize(
    ("what", "step", "nbytes", "sectors"),
    [
        (".u8 %r5", 1, 32, 1),
        (".u16 %h1", 2, 64, 2),
        (".u32 %r5", 4, 128, 4),
        (".u32 %r5", 0, 128, 1),
        (".u32 %r5", 8, 128, 8),
        (".u32 %r5", 32, 128, 32),
        (".u32 %r5", 256, 128, 32),
        (".u64 %rd7", 8, 256, 8),
        (".v2.u32 {%r5,%r6}", 8, 256, 8),
        (".v4.u32 {%r5,%r6,%r7,%r8}", 16, 512, 16),
        (".v4.u32 {%r5,%r6,%r7,%r8}", 64, 512, 32),
    ],
)
def test_sectors_of_loads(tmp_path, what, step, nbytes, sectors):
    c = count(tmp_path, strided(step) + f"ld.global{what}, [%rd4];")
    assert c["global_load"] == {"requests": 1, "bytes": nbytes, "sectors": sectors}
    assert c["global_store"]["requests"] == 0
    assert c["shared_load"] == {"requests": 0, "bytes": 0, "bank_conflicts": 0}


def test_sectors_of_a_shifted_store(tmp_path):
    # 128 bytes from byte 4 on: five sectors.
    c = count(tmp_path, strided(4) + "st.global.u32 [%rd5+4], %r1;")
    assert c["global_store"] == {"requests": 1, "bytes": 128, "sectors": 5}


def test_predicated_lanes_are_not_counted(tmp_path):
    body = (
        strided(4)
        + "setp.lt.u32 %p1, %r1, 5;\n@%p1 ld.global.u32 %r5, [%rd4];\n@!%p1 st.shared.u32 [%r4], %r1;"
    )
    c = count(tmp_path, body)
    assert c["global_load"] == {"requests": 1, "bytes": 20, "sectors": 1}
    assert c["shared_store"] == {"requests": 1, "bytes": 27 * 4, "bank_conflicts": 0}
    # 4 of the head, 5 + 3 here, ret.
    assert c["warp_instructions"] == 13
    assert c["thread_instructions"] == 11 * 32 + 5 + 27


@pytest.mark.parametrize(
    ("what", "step", "nbytes", "conflicts"),
    [
        (".u32 %r5", 4, 128, 0),
        (".u32 %r5", 0, 128, 0),  # one word for all
        (".u32 %r5", 8, 128, 1),  # two words in each of 16 banks
        (".u32 %r5", 16, 128, 3),
        (".u32 %r5", 128, 128, 31),
        (".u32 %r5", 132, 128, 0),
        (".u16 %h1", 2, 64, 0),
        (".u64 %rd7", 8, 256, 0),  # 16 lanes at a time
        (".u64 %rd7", 16, 256, 2),  # one more in each half
        (".v4.u32 {%r5,%r6,%r7,%r8}", 16, 512, 0),  # 8 lanes at a time
        (".v4.u32 {%r5,%r6,%r7,%r8}", 128, 512, 28),  # 8 words per bank, in each of 4 parts
    ],
)
def test_bank_conflicts(tmp_path, what, step, nbytes, conflicts):
    c = count(tmp_path, strided(step) + f"ld.shared{what}, [%r4];")
    assert c["shared_load"] == {"requests": 1, "bytes": nbytes, "bank_conflicts": conflicts}
    assert c["global_load"]["bytes"] == 0


def test_ldmatrix_conflicts(tmp_path):
    # Rows 16 bytes apart: none. 128 bytes apart: eight rows of a matrix in the same banks.
    for step, conflicts in ((16, 0), (128, 4 * 7)):
        body = strided(step) + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5,%r6,%r7,%r8}, [%r4];"
        c = count(tmp_path, body)
        assert c["shared_load"] == {"requests": 1, "bytes": 512, "bank_conflicts": conflicts}


def test_divergent_branches(tmp_path):
    body = "setp.lt.u32 %p1, %r1, 40;\n@%p1 bra A;\nadd.s32 %r5, %r1, 1;\nA: setp.lt.u32 %p2, %r1, 64;\n@%p2 bra B;\nadd.s32 %r5, %r1, 2;\nB:"
    c = count(tmp_path, body, block="64")
    assert c["divergent_branches"] == 1  # warp 1 at the first branch
    # Warp 0: 4 + 4 + ret; warp 1: the add too.
    assert c["warp_instructions"] == 9 + 10
    assert c["thread_instructions"] == (9 + 8) * 32 + 8 + 24  # a guarded branch counts the lanes that take it


def test_mma_flops(tmp_path):
    zero = "mov.u32 %r5, 0; mov.f32 %f0, 0f00000000;\n"
    dense = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r5,%r5,%r5,%r5}, {%r5,%r5}, {%f0,%f0,%f0,%f0};\n"
    c = count(tmp_path, zero + dense + dense, block="64")
    assert c["mma"] == {"instructions": 4, "flops": 4 * 2 * 16 * 8 * 16}


def test_asynchronous_copies(tmp_path):
    body = (
        strided(16)
        + "cp.async.cg.shared.global [%r4], [%rd4], 16;\ncp.async.wait_all;\n"
        + "setp.ne.u32 %p1, %r1, 0;\n@!%p1 mbarrier.init.shared.b64 [bar], 1;\n@!%p1 mbarrier.arrive.expect_tx.shared.b64 %rd6, [bar], 96;\n"
        + "@!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s+4096], [%rd1+16], 96, [bar];\nbar.warp.sync -1;\n"
        + "W: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;\n@!%p2 bra W;"
    )
    c = count(tmp_path, body, target="sm_90")
    # 32 copies of 16 bytes; 96 bytes from byte 16 on: four sectors.
    assert c["global_load"] == {"requests": 2, "bytes": 512 + 96, "sectors": 16 + 4}
    assert c["shared_async"]["bytes"] == 96
    assert c["shared_load"]["bytes"] == 0


def test_atomics_and_lines(tmp_path):
    c = count(tmp_path, strided(4) + "red.global.add.u32 [%rd5], 1;")
    assert c["global_atomic"] == {"requests": 1, "bytes": 128, "sectors": 4}
    line = next(x for x in c["lines"] if "red.global" in x["text"])
    assert (line["warp"], line["thread"], line["bytes"], line["sectors"]) == (1, 32, 128, 4)
    assert sum(x["warp"] for x in c["lines"]) == c["warp_instructions"]
    assert sum(x["thread"] for x in c["lines"]) == c["thread_instructions"]
