# ruff: noqa: E501 (PTX text)
"""Constructs that other compilers write: each runs with all checks on."""

from __future__ import annotations

import numpy as np
from simrun import In, Out, Run
from simrun import run as run_file

HEAD = ".version 8.7\n.target {target}\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n"
REGS = ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .f32 %f<9>; .reg .b64 %rd<20>;\n"
START = "ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;\n"


def text(body: str, target: str = "sm_80") -> str:
    """An entry `k(in, out)`: %r1 is the thread, %rd4 and %rd5 its words."""
    return HEAD.format(target=target) + REGS + START + body + "\nret;\n}\n"


def run(directory, ptx: str, block: str, args: list, grid: str = "1") -> Run:
    """Runs the entry `k` of PTX text."""
    path = directory / "k.ptx"
    path.write_text(ptx)
    return run_file(directory, path, "k", grid, block, args)


def test_ranges_beside_plain_registers(tmp_path):
    """`a` and `a<2>` in one scope, `%q1<12>` beside `%q<3>`."""
    body = """{ .reg .b32 a; .reg .b16 a<2>; .reg .b32 %q1<12>; .reg .b32 %q<3>;
    ld.global.u32 a, [%rd4]; mov.b32 {a0, a1}, a; mov.b32 %q111, {a1, a0}; mov.b32 %q2, %q111;
    st.global.u32 [%rd5], %q2; }"""
    x = np.arange(32, dtype=np.uint32) * 0x10003
    r = run(tmp_path, text(body), "32", [In(x), Out(np.zeros_like(x))])
    assert r.code == 0, r.stderr
    assert np.array_equal(r.outputs[0], x >> 16 | x << 16)


WGMMA = """.shared .align 128 .b8 s[8192];
mov.u32 %r3, s; mul.lo.u32 %r4, %r1, 64; add.u32 %r4, %r3, %r4; mov.b32 %r5, 0;
FILL
fence.proxy.async; bar.sync 0;
shr.u32 %r6, %r3, 4; cvt.u64.u32 %rd6, %r6; or.b64 %rd6, %rd6, 0x0000000800080000;
mov.b32 %r10, 0; mov.b32 %r11, 0; mov.pred %p1, -1;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r10, %r11}, %rd6, %rd6, %p1, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
BODY
st.global.u32 [%rd5], %r20;""".replace(
    "FILL", " ".join(f"st.shared.u32 [%r4+{i * 4}], %r5;" for i in range(16))
)


def test_copies_of_a_wgmma_result_before_its_wait(tmp_path):
    """Copies are in flight as their source is: fine before the wait, not usable."""
    out = [In(np.zeros(128, np.uint32)), Out(np.ones(128, np.uint32))]
    split = "mov.b32 {%h1, %h2}, %r10;\n"
    wait = "wgmma.wait_group.sync.aligned 0;\n"
    good = WGMMA.replace("BODY", split + wait + "mov.b32 %r20, {%h1, %h2};")
    r = run(tmp_path, text(good, "sm_90a"), "128", out)
    assert r.code == 0, r.stderr
    assert not r.outputs[0].any()
    bad = WGMMA.replace("BODY", split + "add.u16 %h1, %h1, 1; //!\n" + wait + "mov.b32 %r20, {%h1, %h2};")
    ptx = text(bad, "sm_90a")
    line, kind, _ = run(tmp_path, ptx, "128", out).violation()
    assert kind == "async"
    assert "//!" in ptx.split("\n")[line - 1]


IN_PLACE = """and.b32 %r2, %r1, 31; mul.wide.u32 %rd6, %r2, 4; add.s64 %rd6, %rd2, %rd6;
setp.lt.u32 %p1, %r1, 32; setp.ge.u32 %p2, %r1, 32;
ld.global.f32 %f1, [%rd6];
setp.lt.f32 %p3, %f1, 0f40000000; @%p3 bra L;
add.f32 %f1, %f1, %f1;
L:
@%p1 st.global.f32 [%rd6], %f1; //!
"""


def test_copies_of_an_owner_in_an_update_in_place(tmp_path):
    """The second warp reads what the first updates: a race only if it stores it."""
    x = np.arange(32, dtype=np.float32)
    args = [Out(np.zeros(64, np.float32), defined=True), Out(x, defined=True)]
    r = run(tmp_path, text(IN_PLACE), "64", args)
    assert r.code == 0, r.stderr
    assert np.array_equal(r.outputs[1], np.where(x < 2, x, x + x))
    for use in ("@%p2 st.global.f32 [%rd4], %f1;", "@%p3 bra M; bar.warp.sync -1; M:"):
        ptx = text(IN_PLACE + use)
        line, kind, _ = run(tmp_path, ptx, "64", args).violation()
        assert kind == "race"
        assert "//!" in ptx.split("\n")[line - 1]


def test_address_of_a_local_variable_in_32_bits(tmp_path):
    """`mov.b32 %r, array`, sums of it, and the way to a generic address."""
    body = """.local .align 4 .b8 depot[16]; .reg .b32 %SPL;
    mov.b32 %SPL, depot; add.u32 %r2, %SPL, 4; ld.global.u32 %r3, [%rd4];
    st.local.b32 [%SPL], %r3; st.local.b32 [%r2], %r1; st.local.b32 [%SPL+8], %r1;
    cvt.u64.u32 %rd6, %r2; cvta.local.u64 %rd6, %rd6; ld.u32 %r4, [%rd6]; ld.local.b32 %r5, [depot];
    add.u32 %r4, %r4, %r5; st.global.u32 [%rd5], %r4;"""
    x = np.arange(64, dtype=np.uint32) * 7
    r = run(tmp_path, text(body), "64", [In(x), Out(np.zeros_like(x))])
    assert r.code == 0, r.stderr
    assert np.array_equal(r.outputs[0], x + np.arange(64, dtype=np.uint32))
