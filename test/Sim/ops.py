"""One instruction on arrays: each thread takes an element of every operand."""

from __future__ import annotations

import pathlib

import numpy as np
from simrun import In, Out, run

LETTER = {1: "c", 2: "h", 4: "r", 8: "w", 16: "q"}


def apply(
    directory: pathlib.Path,
    form: str,
    inputs: list[np.ndarray],
    out: np.dtype | type,
    *options: str,
    target: str = "sm_100a",
    pred: bool = False,
) -> np.ndarray:
    """Runs `form`, in which {0} is the result and {1}, {2}, ... are the inputs' registers.

    A predicate result ({p}) is stored as 0 or 1 in the place of the result if `pred`.
    """
    n = len(inputs[0])
    assert n % 32 == 0
    out = np.dtype(out)
    regs = {k: 0 for k in "chrwq"}
    names, body = [], []
    for i, a in enumerate([np.empty(0, out), *inputs]):
        size = a.dtype.itemsize
        names.append(f"%{LETTER[size]}{regs[LETTER[size]]}")
        regs[LETTER[size]] += 1
        offset = f"mul.wide.u32 %x, %t, {size}; add.s64 %x, %x, %y{i};"
        if i:
            body.append(f"{offset} ld.global.b{8 * size} {names[i]}, [%x];")
        else:
            store = f"{offset} st.global.b{8 * size} [%x], {names[0]};"
    params = ", ".join(f".param .u64 P{i}" for i in range(len(inputs) + 1))
    loads = "\n".join(f"ld.param.u64 %y{i}, [P{i}];" for i in range(len(inputs) + 1))
    if pred:
        store = f"selp.u32 {names[0]}, 1, 0, %p; " + store
    text = f""".version 9.0
.target {target}
.address_size 64
.visible .entry k({params})
{{
.reg .b8 %c<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %w<9>; .reg .b128 %q<9>;
.reg .b64 %y<9>; .reg .b64 %x; .reg .b32 %t, %u; .reg .pred %p;
{loads}
mov.u32 %t, %ctaid.x; mov.u32 %u, %ntid.x; mul.lo.u32 %t, %t, %u; mov.u32 %u, %tid.x; add.u32 %t, %t, %u;
{chr(10).join(body)}
{form.format(*names, p="%p")};
{store}
ret;
}}
"""
    path = directory / "op.ptx"
    path.write_text(text)
    block = 256 if n % 256 == 0 else 32
    args = [Out(np.zeros(n, out)), *[In(np.ascontiguousarray(a)) for a in inputs]]
    r = run(directory, path, "k", str(n // block), str(block), args, "--check=none", *options)
    assert r.code == 0, r.stderr
    return r.outputs[0]
