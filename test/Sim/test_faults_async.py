# ruff: noqa: E501 (PTX text)
"""Planted faults of asynchronous operations, with their correct twins."""

from __future__ import annotations

import pytest
from test_faults import FILL, SMEM, Fault, launch

INIT = "setp.ne.u32 %p1, %r1, 0;\n@!%p1 mbarrier.init.shared.b64 [bar], 1;\nbar.sync 0;\n"
LOAD = (
    "@!%p1 mbarrier.arrive.expect_tx.shared.b64 %rd6, [bar], 64;\n"
    "@!%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [{0}], 64, [bar];{1}\n"
)
WAIT = "W{0}: mbarrier.try_wait.parity.shared.b64 %p2, [bar], {0};\n@!%p2 bra W{0};"
NOP = "mov.u32 %r9, 0;"
FENCE = "fence.proxy.async.shared::cta;\n"
MAP = (
    "@%p1 bra X;\ntensormap.replace.tile.global_address.global.b1024.b64 [%rd2], %rd1;\n"
    "tensormap.replace.tile.rank.global.b1024.b32 [%rd2], 0;\ntensormap.replace.tile.box_dim.global.b1024.b32 [%rd2], 0, 16;\n"
    "tensormap.replace.tile.global_dim.global.b1024.b32 [%rd2], 0, 64;\ntensormap.replace.tile.element_stride.global.b1024.b32 [%rd2], 0, 1;\n"
    "tensormap.replace.tile.elemtype.global.b1024.b32 [%rd2], 2;\ntensormap.replace.tile.interleave_layout.global.b1024.b32 [%rd2], 0;\n"
    "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%rd2], 0;\ntensormap.replace.tile.fill_mode.global.b1024.b32 [%rd2], 0;\n"
    "fence.proxy.tensormap::generic.release.gpu;\nX: bar.sync 0;\n"
)
# A is 64x16 and B 8x16 halves, K-major without swizzle.
WGMMA_FILL = (
    "shl.b32 %r2, %r1, 4; mov.u32 %r3, s; add.s32 %r4, %r3, %r2; mov.u32 %r5, 0; setp.lt.u32 %p3, %r1, 128; setp.lt.u32 %p1, %r1, 16;\n"
    "@%p3 st.shared.v4.u32 [%r4], {%r5, %r5, %r5, %r5};\n@%p1 st.shared.v4.u32 [%r4+2048], {%r5, %r5, %r5, %r5};\n"
    + FENCE
    + "shr.u32 %r6, %r3, 4; cvt.u64.u32 %rd6, %r6; or.b64 %rd6, %rd6, 68720001024; add.s64 %rd7, %rd6, 128;\n"
    "setp.eq.u32 %p2, %r5, 1; mov.f32 %f8, 0f00000000;\n"
    "mov.u32 %r30, %r1; mov.u32 %r31, %r1; mov.u32 %r32, %r1; mov.u32 %r33, %r1;\n"
)
WGMMA_FENCE = "wgmma.fence.sync.aligned;\n"
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd6, %rd7, %p2, 1, 1, 0, 0;"
WGMMA_A = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, {%r30, %r31, %r32, %r33}, %rd7, %p2, 1, 1, 0;"
COMMIT = "\nwgmma.commit_group.sync.aligned;\n"
WGMMA_WAIT = "wgmma.wait_group.sync.aligned 0;"
STORE = "st.global.u32 [%rd5], %r5;"


def bulk(name, body, fix, **more):
    """A fault in a kernel of bulk copies."""
    return Fault(name, more.pop("kind", "async"), body, fix, target="sm_90a", shared=SMEM, **more)


def wgmma(name, body, fix, block="128", **more):
    """A fault around one wgmma."""
    shared = SMEM + ".shared .align 8 .b64 bar2;\n"
    head = "bar.sync 0;\n" if block == "128" else ""
    return Fault(
        name, "async", WGMMA_FILL + head + body, fix, block=block, target="sm_90a", shared=shared, **more
    )


FAULTS = [
    bulk(
        "destination_read",
        INIT + LOAD.format("%rd1", "") + NOP + f"\nbar.sync 0;\nld.shared.u32 %r5, [s]; //!\n{STORE}",
        {NOP: WAIT.format(0)},
    ),
    bulk(
        "destination_stored",
        INIT + LOAD.format("%rd1", "") + NOP + "\nbar.sync 0;\n@%p1 st.shared.u32 [s], 1; //!",
        {NOP: WAIT.format(0), "@%p1 st": "@!%p1 st"},
    ),
    bulk(
        "destination_reused",
        INIT
        + LOAD.format("%rd1", "")
        + WAIT.format(0)
        + f"\nld.shared.u32 %r5, [s];\n{NOP}\n"
        + LOAD.format("%rd1+64", "")
        + WAIT.format(1)
        + STORE,
        {NOP: "bar.sync 0;"},
        kind="race|async",
    ),
    bulk(
        "source_overwritten",
        FILL
        + "st.shared.u32 [%r4], %r1;\n"
        + FENCE
        + "bar.sync 0;\nsetp.ne.u32 %p1, %r1, 0;\n"
        + "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [s], 256;\n@!%p1 cp.async.bulk.commit_group;\n"
        + NOP
        + "\nbar.sync 0;\n@%p1 st.shared.u32 [%r4], 7; //!\n@!%p1 cp.async.bulk.wait_group 0;",
        {NOP: "@!%p1 cp.async.bulk.wait_group.read 0;"},
    ),
    bulk(
        "result_read_after_read_wait",
        FILL
        + "st.shared.u32 [%r4], %r1;\n"
        + FENCE
        + "bar.sync 0;\nsetp.ne.u32 %p1, %r1, 0;\n"
        + "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [s], 256;\n@!%p1 cp.async.bulk.commit_group;\n"
        + "@!%p1 cp.async.bulk.wait_group.read 0;\nbar.sync 0;\nld.global.u32 %r5, [%rd5]; //!",
        {"wait_group.read 0": "wait_group 0"},
    ),
    bulk(
        "wrong_parity",
        INIT
        + LOAD.format("%rd1", "")
        + "bar.sync 0;\nW: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 1;\n@!%p2 bra W;\n"
        + f"ld.shared.u32 %r5, [s];\n{STORE}",
        {"[bar], 1;\n@!%p2": "[bar], 0;\n@!%p2"},
    ),
    bulk(
        "expect_tx_overflow",
        INIT
        + "@!%p1 mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 1048575;\n@!%p1 mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 16; //!",
        {"1048575": "16"},
        thread="(0,0,0)",
    ),
    bulk(
        "initialised_again",
        "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra E;\nmbarrier.init.shared.b64 [bar], 2;\nmbarrier.arrive.shared.b64 %rd6, [bar];\n"
        + NOP
        + "\nmbarrier.init.shared.b64 [bar], 1; //!\nE:",
        {NOP: "mbarrier.arrive.shared.b64 %rd6, [bar];"},
    ),
    bulk(
        "used_after_inval",
        INIT
        + NOP
        + "\n@!%p1 mbarrier.inval.shared.b64 [bar];\n@!%p1 mbarrier.arrive.shared.b64 %rd6, [bar]; //!",
        {"@!%p1 mbarrier.inval.shared.b64 [bar];": ""},
    ),
    bulk(
        "too_many_arrivals",
        "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra E;\nmbarrier.init.shared.b64 [bar], 2;\nmbarrier.arrive.shared.b64 %rd6, [bar];\n"
        "mbarrier.arrive.shared.b64 %rd6, [bar], 2; //!\nE:",
        {"[bar], 2; //!": "[bar], 1;"},
    ),
    bulk(
        "global_without_proxy_fence",
        INIT
        + "st.global.u32 [%rd5], %r1;\n"
        + NOP
        + "\nbar.sync 0;\n"
        + LOAD.format("%rd2", " //!")
        + WAIT.format(0),
        {NOP: "fence.proxy.async;"},
    ),
    bulk(
        "proxy_fence_of_another_warp",
        FILL
        + "st.shared.u32 [%r4], %r1;\nsetp.ne.u32 %p2, %r21, 0;\n@!%p2 fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p1, %r1, 32;\n"
        + "@!%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd2], [s], 256; //!\n@!%p1 cp.async.bulk.commit_group;\n@!%p1 cp.async.bulk.wait_group 0;",
        {"@!%p2 fence": "fence"},
    ),
    bulk(
        "tensormap_without_fence",
        INIT
        + MAP
        + NOP
        + "\n@!%p1 mbarrier.arrive.expect_tx.shared.b64 %rd6, [bar], 64;\n"
        + "@!%p1 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [s], [%rd2, {0}], [bar]; //!\n"
        + WAIT.format(0),
        {NOP: "fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;"},
    ),
    Fault(
        "init_unseen_by_cluster",
        "race",
        "mov.u32 %r10, %cluster_ctarank; setp.eq.u32 %p3, %r10, 0;\n@%p3 mbarrier.init.shared.b64 [bar], 1;\n"
        + NOP
        + "\nbarrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        + "mov.u32 %r11, bar; mapa.shared::cluster.u32 %r12, %r11, 0;\n@%p3 bra W;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12]; //!\nbra E;\n"
        + "W: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;\n@!%p2 bra W;\nE: barrier.cluster.arrive;\nbarrier.cluster.wait;",
        {NOP: "fence.mbarrier_init.release.cluster;"},
        grid="2",
        block="1",
        target="sm_90",
        shared=SMEM,
        options=("--cluster", "2,1,1"),
    ),
    Fault(
        "cp_async_seen_by_another_warp",
        "async",
        FILL
        + "cp.async.ca.shared.global [%r4], [%rd4], 4;\ncp.async.commit_group;\n"
        + NOP
        + "\nbar.sync 0;\nxor.b32 %r5, %r1, 32; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r3;\nld.shared.u32 %r5, [%r5]; //!\n"
        + STORE
        + "\ncp.async.wait_all;",
        {NOP: "cp.async.wait_group 0;"},
        shared=SMEM,
    ),
    Fault(
        "cp_async_mbarrier",
        "async",
        "setp.ne.u32 %p1, %r1, 0;\n@!%p1 mbarrier.init.shared.b64 [bar], 64;\nbar.sync 0;\n"
        + FILL
        + "cp.async.ca.shared.global [%r4], [%rd4], 4;\n"
        + NOP
        + "\nmbarrier.arrive.shared.b64 %rd6, [bar];\n"
        + WAIT.format(0).replace("try_wait", "test_wait")
        + "\nxor.b32 %r5, %r1, 32; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r3;\nld.shared.u32 %r5, [%r5]; //!\n"
        + STORE,
        {
            NOP: "cp.async.mbarrier.arrive.noinc.shared.b64 [bar];",
            "mbarrier.arrive.shared.b64 %rd6, [bar];\n": "",
        },
        shared=SMEM,
    ),
    wgmma(
        "wgmma_operand_overwritten",
        WGMMA_FENCE + WGMMA + COMMIT + NOP + "\n@%p1 st.shared.u32 [%r4+2048], %r1; //!\n" + WGMMA_WAIT,
        {NOP: WGMMA_WAIT + "\nbar.sync 0;"},
    ),
    wgmma(
        "wgmma_result_before_wait",
        WGMMA_FENCE + WGMMA + COMMIT + NOP + "\nadd.f32 %f5, %f0, %f1; //!\n" + WGMMA_WAIT,
        {NOP: WGMMA_WAIT},
    ),
    wgmma(
        "wgmma_copy_used_before_wait",
        WGMMA_FENCE
        + WGMMA
        + COMMIT
        + "mov.b32 %f4, %f0;\n"
        + NOP
        + "\nadd.f32 %f5, %f4, %f4; //!\n"
        + WGMMA_WAIT,
        {NOP: WGMMA_WAIT},
    ),
    wgmma(
        "wgmma_a_register_overwritten",
        WGMMA_FENCE + WGMMA_A + COMMIT + NOP + "\nadd.s32 %r31, %r1, 1; //!\n" + WGMMA_WAIT,
        {NOP: WGMMA_WAIT},
    ),
    wgmma("wgmma_without_fence", NOP + "\n" + WGMMA + " //!" + COMMIT + WGMMA_WAIT, {NOP: WGMMA_FENCE}),
    wgmma(
        "wgmma_register_after_fence",
        WGMMA_FENCE + "add.f32 %f2, %f8, %f8;\n" + NOP + "\n" + WGMMA + " //!" + COMMIT + WGMMA_WAIT,
        {NOP: WGMMA_FENCE},
    ),
    wgmma(
        "wgmma_operands_without_proxy_fence",
        "@%p1 st.shared.u32 [%r4+2048], %r5;\n"
        + NOP
        + "\nbar.sync 0;\n"
        + WGMMA_FENCE
        + WGMMA
        + " //!"
        + COMMIT
        + WGMMA_WAIT,
        {NOP: FENCE},
    ),
    # The consumers free the operands before their wgmma is complete.
    wgmma(
        "wgmma_released_too_early",
        "setp.eq.u32 %p1, %r1, 128;\n@%p1 mbarrier.init.shared.b64 [bar], 128;\n@%p1 mbarrier.init.shared.b64 [bar2], 1;\nbar.sync 0;\n@!%p3 bra P;\n"
        + WGMMA_FENCE
        + WGMMA
        + COMMIT
        + NOP
        + "\nmbarrier.arrive.shared.b64 %rd8, [bar];\n"
        + WGMMA_WAIT
        + "\nbra E;\nP: mbarrier.test_wait.parity.shared.b64 %p4, [bar], 0;\n@!%p4 bra P;\n@!%p1 bra E;\n"
        + "mbarrier.arrive.expect_tx.shared.b64 %rd8, [bar2], 64;\n"
        + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 64, [bar2]; //!\nE:",
        {NOP: WGMMA_WAIT},
        block="160",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_fault_is_reported(tmp_path, fault):
    result, line = launch(tmp_path, fault, False)
    assert result.code == 1, "not reported"
    got_line, kind, text = result.violation()
    assert kind in fault.kind.split("|"), result.stderr
    assert line in (0, got_line), result.stderr
    assert "block (" in text and "thread (" in text
    if fault.thread:
        assert f"thread {fault.thread}" in text.split("; block")[1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_twin_is_clean(tmp_path, fault):
    result, _ = launch(tmp_path, fault, True)
    assert result.code == 0, result.stderr


def test_missing_bytes_are_counted(tmp_path):
    body = INIT + LOAD.format("%rd1", "").replace("[bar], 64", "[bar], 96") + WAIT.format(0)
    result, _ = launch(tmp_path, bulk("missing", body, {}), False)
    _, kind, text = result.violation()
    assert kind == "async"
    assert "0 of 1 arrivals and 32 bytes are missing" in text
    assert "so do warp 1 of block rank 0" in text
    assert "address 0x1000" in text
