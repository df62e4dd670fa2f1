# ruff: noqa: E501 (PTX text)
"""Planted faults: each is reported at its line and thread, its correct twin is not."""

from __future__ import annotations

import dataclasses
import textwrap

import numpy as np
import pytest
from simrun import In, Out, run

HEAD = ".version 8.0\n.target {target}\n.address_size 64\n"


@dataclasses.dataclass
class Fault:
    """A kernel whose line marked `//!` is faulty and a twin where `//!` lines are replaced."""

    name: str
    kind: str
    body: str
    fix: dict
    grid: str = "1"
    block: str = "64"
    thread: str | None = None
    target: str = "sm_80"
    options: tuple = ()
    decl: str = ""
    shared: str = ""


def kernel(fault: Fault, fixed: bool) -> tuple[str, int]:
    """PTX text and the 1-based line of the marked instruction."""
    body = textwrap.dedent(fault.body)
    if fixed:
        for old, new in fault.fix.items():
            assert old in body, old
            body = body.replace(old, new)
    text = (
        HEAD.format(target=fault.target)
        + fault.decl
        + "\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n"
        + ".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<40>; .reg .f32 %f<16>; .reg .b64 %rd<20>;\n"
        + fault.shared
        + "ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];\n"
        + "mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;\n"
        + "mov.u32 %r20, %laneid; mov.u32 %r21, %warpid;\n"
        + body
        + "\nret;\n}\n"
    )
    line = next((i + 1 for i, s in enumerate(text.split("\n")) if "//!" in s), 0)
    return text, line


SMEM = ".shared .align 128 .b8 s[4096];\n.shared .align 8 .b64 bar;\n"
FILL = "shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.s32 %r4, %r3, %r2;\n"

FAULTS = [
    Fault(
        "past_end",
        "bounds",
        "ld.global.u32 %r5, [%rd4+256]; //!\nst.global.u32 [%rd5], %r5;",
        {"+256": ""},
        thread="(0,0,0)",
    ),
    Fault("store_past_end", "bounds", "st.global.u32 [%rd5+4], %r1; //!", {"+4": ""}, thread="(63,0,0)"),
    Fault(
        "null",
        "bounds",
        "mov.u64 %rd6, 0;\nst.global.u32 [%rd6], %r1; //!",
        {"mov.u64 %rd6, 0": "mov.u64 %rd6, %rd5"},
    ),
    Fault(
        "shared_past_end", "bounds", FILL + "st.shared.u32 [%r4+8000], %r1; //!", {"+8000": ""}, shared=SMEM
    ),
    Fault(
        "misaligned",
        "align",
        "ld.global.v2.u32 {%r5, %r6}, [%rd1+4]; //!\nst.global.u32 [%rd5], %r5;",
        {"+4": "+8"},
    ),
    Fault("misaligned_shared", "align", FILL + "st.shared.u32 [%r4+2], %r1; //!", {"+2]": "]"}, shared=SMEM),
    Fault("undefined_store", "init", "st.global.u32 [%rd5], %r30; //!", {"%r30": "%r1"}, thread="(0,0,0)"),
    Fault(
        "undefined_through_shared",
        "init",
        FILL + "setp.lt.u32 %p1, %r1, 63;\n@%p1 st.shared.u32 [%r4], %r1;\nbar.sync 0;\n"
        "ld.shared.u32 %r5, [%r4];\nadd.s32 %r6, %r5, 1;\nst.global.u32 [%rd5], %r6; //!",
        {"@%p1 st.shared": "st.shared"},
        shared=SMEM,
        thread="(63,0,0)",
    ),
    Fault(
        "undefined_selected_away",
        "init",
        FILL
        + "ld.shared.u32 %r5, [%r4];\nsetp.lt.u32 %p1, %r1, 100;\nselp.b32 %r6, %r5, %r1, %p1;\nst.global.u32 [%rd5], %r6; //!",
        {"selp.b32 %r6, %r5, %r1": "selp.b32 %r6, %r1, %r5"},
        shared=SMEM,
    ),
    Fault(
        "undefined_branch",
        "init",
        "setp.eq.s32 %p1, %r30, 0;\n@%p1 bra L1; //!\nst.global.u32 [%rd5], %r1;\nL1:",
        {"%r30": "%r1"},
    ),
    Fault(
        "undefined_address",
        "init",
        "add.s64 %rd6, %rd5, %rd15;\nst.global.u32 [%rd6], %r1; //!",
        {"%rd15": "0"},
    ),
    Fault(
        "missing_barrier",
        "race",
        FILL
        + "st.shared.u32 [%r4], %r1;\n@%p7 bar.sync 0;\nxor.b32 %r5, %r1, 32; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r3;\n"
        "ld.shared.u32 %r6, [%r5]; //!\nst.global.u32 [%rd5], %r6;",
        {"@%p7 bar.sync 0;": "bar.sync 0;"},
        shared=SMEM,
        options=("--check=race",),
    ),
    Fault(
        "missing_warp_sync",
        "race",
        FILL + "st.shared.u32 [%r4], %r1;\nmov.u32 %r7, 0;\nxor.b32 %r5, %r4, 4;\n"
        "ld.shared.u32 %r6, [%r5]; //!\nst.global.u32 [%rd5], %r6;",
        {"mov.u32 %r7, 0;": "bar.warp.sync -1;"},
        shared=SMEM,
        thread="(0,0,0)",
    ),
    Fault(
        "shuffle_orders_nothing",
        "race",
        FILL + "st.shared.u32 [%r4], %r1;\nshfl.sync.bfly.b32 %r7, %r1, 1, 31, -1;\nxor.b32 %r5, %r4, 4;\n"
        "ld.shared.u32 %r6, [%r5]; //!\nst.global.u32 [%rd5], %r6;",
        {"shfl.sync.bfly.b32 %r7, %r1, 1, 31, -1;": "bar.warp.sync -1;"},
        shared=SMEM,
    ),
    Fault(
        "overwrite_too_early",
        "race",
        FILL
        + "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nxor.b32 %r5, %r1, 32; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r3;\n"
        "ld.shared.u32 %r6, [%r5];\nmov.u32 %r7, 0;\nst.shared.u32 [%r4], %r6; //!\nst.global.u32 [%rd5], %r6;",
        {"mov.u32 %r7, 0;": "bar.sync 0;"},
        shared=SMEM,
    ),
    Fault(
        "blocks_without_atomic",
        "race",
        "mov.u32 %r5, %ctaid.x;\nst.global.u32 [%rd5], %r5; //!",
        {"st.global.u32 [%rd5], %r5;": "red.global.add.u32 [%rd5], %r5;"},
        grid="2",
    ),
    Fault(
        "flag_without_fence",
        "race",
        "mov.u32 %r5, %ctaid.x;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra W;\nst.global.u32 [%rd2], 7;\nmov.u32 %r9, 0;\n"
        "st.relaxed.gpu.global.u32 [%rd2+4], 1;\nbra E;\nW: ld.relaxed.gpu.global.u32 %r6, [%rd2+4];\nsetp.eq.u32 %p2, %r6, 0;\n@%p2 bra W;\n"
        "fence.acq_rel.gpu;\nld.global.u32 %r7, [%rd2]; //!\nst.global.u32 [%rd2+8], %r7;\nE:",
        {"mov.u32 %r9, 0;": "fence.acq_rel.gpu;"},
        grid="2",
        block="1",
    ),
    Fault(
        "flag_with_narrow_scope",
        "race",
        "mov.u32 %r5, %ctaid.x;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra W;\nst.global.u32 [%rd2], 7;\n"
        "st.release.cta.global.u32 [%rd2+4], 1;\nbra E;\nW: ld.acquire.gpu.global.u32 %r6, [%rd2+4];\nsetp.eq.u32 %p2, %r6, 0;\n@%p2 bra W;\n"
        "ld.global.u32 %r7, [%rd2];\nst.global.u32 [%rd2+8], %r7;\nE:",
        {"release.cta": "release.gpu"},
        grid="2",
        block="1",
    ),
    Fault(
        "copy_not_waited",
        "async",
        "shl.b32 %r2, %r1, 4; mov.u32 %r3, s; add.s32 %r4, %r3, %r2;\ncp.async.ca.shared.global [%r4], [%rd4], 4;\ncp.async.commit_group;\n"
        "cp.async.wait_group 1;\nld.shared.u32 %r5, [%r4]; //!\nst.global.u32 [%rd5], %r5;",
        {"wait_group 1": "wait_group 0"},
        shared=SMEM,
    ),
    Fault(
        "mbarrier_not_initialised",
        "async",
        "setp.ne.u32 %p1, %r1, 0;\nmov.u32 %r9, 0;\nbar.sync 0;\nmbarrier.arrive.shared.b64 %rd6, [bar]; //!",
        {"mov.u32 %r9, 0;": "@!%p1 mbarrier.init.shared.b64 [bar], 64;"},
        shared=SMEM,
    ),
    Fault(
        "bytes_never_arrive",
        "async",
        "setp.ne.u32 %p1, %r1, 0;\n@!%p1 mbarrier.init.shared.b64 [bar], 1;\nbar.sync 0;\n"
        "@!%p1 mbarrier.arrive.expect_tx.shared.b64 %rd6, [bar], 64;\n"
        "@!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 48, [bar];\n"
        "W: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; //!\n@!%p2 bra W;\nld.shared.u32 %r5, [s];\nst.global.u32 [%rd5], %r5;",
        {", 48, [bar]": ", 64, [bar]"},
        shared=SMEM,
        target="sm_90",
    ),
    Fault(
        "no_proxy_fence",
        "async",
        FILL + "st.shared.u32 [%r4], %r1;\nmov.u32 %r9, 0;\nbar.sync 0;\nsetp.ne.u32 %p1, %r1, 0;\n"
        "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [s], 256; //!\n"
        "@!%p1 cp.async.bulk.commit_group;\n@!%p1 cp.async.bulk.wait_group 0;",
        {"mov.u32 %r9, 0;": "fence.proxy.async.shared::cta;"},
        shared=SMEM,
        target="sm_90",
    ),
    Fault(
        "divergent_barrier",
        "barrier",
        "setp.lt.u32 %p1, %r1, 7;\n@%p1 bra L1;\nbar.sync 0; //!\nbra L2;\nL1: add.s32 %r5, %r1, 1;\nL2: st.global.u32 [%rd5], %r1;",
        {"%r1, 7": "%r1, 0"},
    ),
    Fault(
        "deadlock",
        "barrier",
        "setp.ne.u32 %p1, %r21, 0;\n@%p1 bra L1;\nbar.sync 1, 64; //!\nL1: st.global.u32 [%rd5], %r1;",
        {"1, 64": "1, 32"},
    ),
    Fault(
        "wrong_count",
        "barrier",
        "setp.ne.u32 %p1, %r21, 0;\n@!%p1 bar.arrive 1, 64;\n@%p1 bar.sync 1, 96; //!\nst.global.u32 [%rd5], %r1;",
        {"1, 96": "1, 64"},
    ),
    Fault(
        "absent_lane",
        "barrier",
        "setp.lt.u32 %p1, %r20, 16;\nmov.u32 %r5, 0;\n@%p1 shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1; //!\nst.global.u32 [%rd5], %r5;",
        {"31, -1": "31, 65535"},
    ),
    Fault(
        "not_on_target",
        "target",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, 0f3f800000, 0f3f800000; //!\ncvt.u32.u16 %r5, %h1;\nst.global.u32 [%rd5], %r5;",
        {"cvt.rn.satfinite.e4m3x2.f32 %h1, 0f3f800000, 0f3f800000": "cvt.rn.f16.f32 %h1, 0f3f800000"},
    ),
    Fault(
        "wrapped_index",
        "overflow",
        "ld.global.u32 %r5, [%rd1+252];\nmad.lo.s32 %r6, %r5, 65536, %r1;\nmul.wide.s32 %rd6, %r6, 4;\nadd.s64 %rd7, %rd2, %rd6;\nst.global.u32 [%rd7], %r1; //!",
        {"mad.lo.s32 %r6, %r5, 65536, %r1": "mad.lo.s32 %r6, %r5, 0, %r1"},
    ),
    Fault("endless", "steps", "W: bra W; //!", {"W: bra W;": ""}, options=("--max-steps", "100000")),
]


def launch(tmp_path, fault, fixed):
    """Runs one twin."""
    text, line = kernel(fault, fixed)
    path = tmp_path / ("good.ptx" if fixed else "bad.ptx")
    path.write_text(text)
    x = np.arange(64, dtype=np.uint32)
    x[63] = 65536
    out = Out(np.zeros(64, np.uint32), True)
    return run(tmp_path, path, "k", fault.grid, fault.block, [In(x), out], *fault.options), line


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_fault_is_reported(tmp_path, fault):
    result, line = launch(tmp_path, fault, False)
    assert result.code == 1, "not reported"
    got_line, kind, text = result.violation()
    assert kind == fault.kind, result.stderr
    assert line in (0, got_line), result.stderr
    assert "thread (" in text
    if fault.thread:
        assert f"thread {fault.thread}" in text.split("; block")[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_twin_is_clean(tmp_path, fault):
    result, _ = launch(tmp_path, fault, True)
    assert result.code == 0, result.stderr
