"""One matrix instruction on given registers."""

from __future__ import annotations

import pathlib

import numpy as np
from simrun import In, Out, run

HEAD = """.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .u64 A, .param .u64 B, .param .u64 C, .param .u64 D, .param .u64 E)
{{
.reg .b32 %a<20>; .reg .b32 %b<20>; .reg .b32 %c<20>; .reg .b32 %d<20>; .reg .b32 %e, %t;
.reg .f64 %fa<20>; .reg .f64 %fb<20>; .reg .f64 %fc<20>; .reg .f64 %fd<20>;
.reg .b64 %p<8>; .reg .b64 %o;
ld.param.u64 %p0, [A]; ld.param.u64 %p1, [B]; ld.param.u64 %p2, [C]; ld.param.u64 %p3, [D];
ld.param.u64 %p4, [E];
mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4;
add.s64 %p4, %p4, %o; ld.global.b32 %e, [%p4];
mul.wide.u32 %o, %t, {bytes};
add.s64 %p0, %p0, %o; add.s64 %p1, %p1, %o; add.s64 %p2, %p2, %o; add.s64 %p3, %p3, %o;
"""


def operate(
    directory: pathlib.Path,
    form: str,
    regs: dict[str, np.ndarray],
    n_out: int,
    *options: str,
    selector: int | None = None,
    target: str = "sm_90a",
) -> np.ndarray:
    """Runs `form` on registers a, b, c [reg][lane] (and e [lane]); returns d [reg][lane]."""
    wide = regs["a"].dtype == np.uint64
    bytes_, kind, f = (8, "f64", "f") if wide else (4, "b32", "")
    text = [HEAD.format(bytes=bytes_, target=target)]
    for i, n in enumerate("abc"):
        for j in range(len(regs[n])):
            text.append(f"ld.global.{kind} %{f}{n}{j}, [%p{i}+{32 * bytes_ * j}];")
    count = {"d": n_out} | {n: len(regs[n]) for n in "abc"}
    ops = ["{" + ",".join(f"%{f}{n}{j}" for j in range(count[n])) + "}" for n in "dabc"]
    if selector is not None:
        ops += ["%e", str(selector)]
    text.append(f"{form} {', '.join(ops)};")
    text += [f"st.global.{kind} [%p3+{32 * bytes_ * j}], %{f}d{j};" for j in range(n_out)]
    path = directory / "k.ptx"
    path.write_text("\n".join([*text, "ret;\n}\n"]))
    e = regs.get("e", np.zeros(32, np.uint32))
    out = np.zeros((n_out, 32), np.uint64 if wide else np.uint32)
    r = run(
        directory,
        path,
        "k",
        "1",
        "32",
        [In(regs["a"]), In(regs["b"]), In(regs["c"]), Out(out), In(e)],
        *options,
    )
    assert r.code == 0, r.stderr
    return r.outputs[0]
