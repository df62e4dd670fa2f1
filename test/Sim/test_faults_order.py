# ruff: noqa: E501 (PTX text)
"""Planted races between warps, blocks and clusters, and deadlocks, with their correct twins."""

from __future__ import annotations

import dataclasses

import pytest
from test_faults import FILL, SMEM, Fault, launch

NOP = "mov.u32 %r9, 0;"
FLAG = (
    "mov.u32 %r5, %ctaid.x;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra W;\nst.global.u32 [%rd2], 7;\n{0}\n"
    "st.volatile.global.u32 [%rd2+4], 1;\nbra E;\nW: ld.volatile.global.u32 %r6, [%rd2+4];\nsetp.eq.u32 %p2, %r6, 0;\n@%p2 bra W;\n"
    "{1}\nld.global.u32 %r7, [%rd2]; //!\nst.global.u32 [%rd2+8], %r7;\nE:"
)
BARRIER = (
    "mov.u32 %r5, %ctaid.x; mul.wide.u32 %rd6, %r5, 4; add.s64 %rd7, %rd2, %rd6;\nsetp.ne.u32 %p1, %r1, 0;\n"
    "@!%p1 st.global.u32 [%rd7], %r5;\nbar.sync 0;\n@%p1 bra S;\n{0}\natom.global.add.u32 %r6, [%rd2+128], 1;\n"
    "W: ld.volatile.global.u32 %r6, [%rd2+128];\nsetp.lt.u32 %p2, %r6, {1};\n@%p2 bra W;\nmembar.gl;\nS: bar.sync 0;\n"
)
CLUSTER = {"grid": "2", "block": "32", "target": "sm_90", "shared": SMEM, "options": ("--cluster", "2,1,1")}

FAULTS = [
    # Warp 0 is the first of four readers and the only one that the writer does not wait for.
    Fault(
        "third_reader",
        "race",
        FILL
        + "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [s], 1;\nbar.sync 0;\nld.shared.u32 %r5, [s];\n"
        + "setp.eq.u32 %p2, %r21, 0;\n@%p2 bra E;\nbar.sync 1, 96;\nsetp.eq.u32 %p3, %r1, 96;\n@%p3 st.shared.u32 [s], 2; //!\nE:",
        {"@%p2 bra E;\nbar.sync 1, 96": "bar.sync 1, 128"},
        block="128",
        shared=SMEM,
        options=("--check=race",),
    ),
    Fault(
        "cta_fence_between_blocks",
        "race",
        FLAG.format("membar.cta;", "membar.gl;"),
        {"membar.cta": "membar.gl"},
        grid="2",
        block="1",
    ),
    Fault(
        "no_fence_of_the_reader",
        "race",
        FLAG.format("membar.gl;", NOP),
        {NOP: "membar.gl;"},
        grid="2",
        block="1",
    ),
    Fault(
        "cta_atomics_between_blocks",
        "race",
        "red.relaxed.cta.global.add.u32 [%rd5], 1; //!",
        {".cta": ".gpu"},
        grid="2",
    ),
    Fault(
        "weak_store_to_an_atomic",
        "race",
        "mov.u32 %r5, %ctaid.x;\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 red.global.add.u32 [%rd5], 1;\n@!%p1 st.global.u32 [%rd5], 9; //!",
        {"st.global.u32 [%rd5], 9": "red.global.add.u32 [%rd5], 9"},
        grid="2",
    ),
    Fault(
        "lock_without_fence",
        "race",
        "L: atom.global.cas.b32 %r5, [%rd2+4], 0, 1;\nsetp.ne.u32 %p1, %r5, 0;\n@%p1 bra L;\nmembar.gl;\nld.global.u32 %r6, [%rd2]; //!\n"
        f"add.s32 %r6, %r6, 1;\nst.global.u32 [%rd2], %r6;\n{NOP}\natom.global.exch.b32 %r7, [%rd2+4], 0;",
        {NOP: "membar.gl;"},
        grid="4",
        block="1",
    ),
    Fault(
        "last_block_without_fence",
        "race",
        "mov.u32 %r5, %ctaid.x; mul.wide.u32 %rd6, %r5, 4; add.s64 %rd7, %rd2, %rd6;\nst.global.u32 [%rd7], %r5;\n"
        + NOP
        + "\natom.global.add.u32 %r6, [%rd2+128], 1;\nsetp.ne.u32 %p1, %r6, 3;\n@%p1 bra E;\nmembar.gl;\nld.global.u32 %r7, [%rd2]; //!\nst.global.u32 [%rd2+64], %r7;\nE:",
        {NOP: "membar.gl;"},
        grid="4",
        block="1",
    ),
    Fault(
        "grid_barrier_without_fence",
        "race",
        BARRIER.format(NOP, 4) + "ld.global.u32 %r7, [%rd2]; //!",
        {NOP: "membar.gl;"},
        grid="4",
        block="32",
    ),
    Fault(
        "distributed_memory_without_barrier",
        "race",
        FILL
        + "st.shared.u32 [%r4], %r1;\n"
        + NOP
        + "\nmov.u32 %r10, %cluster_ctarank; xor.b32 %r10, %r10, 1; mapa.shared::cluster.u32 %r12, %r4, %r10;\nbar.sync 0;\n"
        + "{ .reg .pred q; setp.eq.u32 q, %r10, 0; @!q bra.uni K; }\nld.shared::cluster.u32 %r5, [%r12]; //!\nK: barrier.cluster.arrive;\nbarrier.cluster.wait;",
        {NOP: "barrier.cluster.arrive;\nbarrier.cluster.wait;"},
        **CLUSTER,
    ),
    Fault(
        "equal_values_strict",
        "race",
        "st.global.u32 [%rd2], 5; //!",
        {"st.global": "setp.eq.u32 %p1, %r1, 3;\n@%p1 st.global"},
        options=("--check=race=strict",),
    ),
    Fault(
        "partial_warp_sync",
        "race",
        FILL
        + "st.shared.u32 [%r4], %r1;\nsetp.lt.u32 %p1, %r20, 8;\n@!%p1 bra E;\nbar.warp.sync 15;\nxor.b32 %r5, %r4, 28;\nld.shared.u32 %r6, [%r5]; //!\nE:",
        {"bar.warp.sync 15": "bar.warp.sync 255"},
        shared=SMEM,
        options=("--check=race",),
    ),
    # Nobody sets the flag.
    Fault(
        "endless_wait",
        "barrier",
        NOP + "\nW: ld.volatile.global.u32 %r5, [%rd2+4]; //!\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 bra W;",
        {NOP: "st.volatile.global.u32 [%rd2+4], 1;"},
        grid="3",
    ),
    # A lock that its owner takes again; the loop backs off and polls two words.
    Fault(
        "lock_taken_twice",
        "barrier",
        "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra E;\natom.global.cas.b32 %r5, [%rd2+4], 0, 1;\n"
        + NOP
        + "\nmov.u32 %r8, 8;\n"
        "L: min.u32 %r8, %r8, 128;\nnanosleep.u32 %r8;\nadd.s32 %r8, %r8, %r8;\nld.volatile.global.u32 %r6, [%rd2+8];\natom.global.cas.b32 %r5, [%rd2+4], 0, 1;\n"
        "setp.ne.u32 %p2, %r5, 0;\n@%p2 bra L;\nE: bar.sync 0;",
        {NOP: "atom.global.exch.b32 %r5, [%rd2+4], 0;"},
    ),
    # 72 processors hold one block of 1024 threads each.
    Fault(
        "more_blocks_than_the_chip_holds",
        "barrier",
        BARRIER.replace("@!%p1 st.global.u32 [%rd7], %r5;", "").format("membar.gl;", 73),
        {" 73;": " 72;"},
        grid="73",
        block="1024",
        target="sm_86",
        options=("--check=barrier",),
    ),
    # Waits for lanes of its own warp, through memory.
    Fault(
        "lanes_wait_for_each_other",
        "barrier",
        FILL
        + "st.volatile.shared.u32 [s], 0;\nbar.sync 0;\nsetp.eq.u32 %p1, %r1, 5;\n@%p1 bra S;\nW: ld.volatile.shared.u32 %r5, [s]; //!\nsetp.ne.u32 %p2, %r5, 1;\n@%p2 bra W;\nbra E;\nS: st.volatile.shared.u32 [s], 2;\nE:",
        {"[s], 2": "[s], 1"},
        shared=SMEM,
        options=("--check=barrier",),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_fault_is_reported(tmp_path, fault):
    result, line = launch(tmp_path, fault, False)
    assert result.code == 1, "not reported"
    got_line, kind, text = result.violation()
    assert kind == fault.kind, result.stderr
    assert line in (0, got_line), result.stderr
    assert "block (" in text and "thread (" in text
    if kind == "race":
        assert "by block (" in text


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_twin_is_clean(tmp_path, fault):
    result, _ = launch(tmp_path, fault, True)
    assert result.code == 0, result.stderr


def test_other_blocks_wait_is_named(tmp_path):
    fault = next(f for f in FAULTS if f.name == "more_blocks_than_the_chip_holds")
    result, _ = launch(tmp_path, fault, False)
    assert "72 of 73 blocks are alive, sm_86 holds no more at once" in result.stderr


def test_sixteen_blocks_in_a_cluster(tmp_path):
    fault = next(f for f in FAULTS if f.name == "distributed_memory_without_barrier")
    fault = dataclasses.replace(fault, grid="32", options=("--cluster", "16,1,1"))
    result, _ = launch(tmp_path, fault, True)
    assert result.code == 0, result.stderr
    result, _ = launch(tmp_path, fault, False)
    assert result.violation()[1] == "race"


@pytest.mark.parametrize("threads", ["1", "2", "4"])
def test_deadlock_is_found_by_any_number_of_workers(tmp_path, threads):
    fault = next(f for f in FAULTS if f.name == "endless_wait")
    fault = dataclasses.replace(fault, grid="16", options=("--check=none", "--threads", threads))
    result, line = launch(tmp_path, fault, False)
    found, kind, text = result.violation()
    assert (found, kind) == (line, "steps") and "deadlock" in text
    assert launch(tmp_path, fault, True)[0].code == 0
