"""forms.txt: instruction forms of the PTX ISA, each with the first of some chips whose assembler takes it.

Every one runs here, but for the families named below; the target check asks for no later chip than the
assembler does.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from simrun import HERE, run, tool

CHIPS = ["any", "sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a"]
REFUSED = [
    r"(tex|txq|tld4|istypep|suld|sust)\.",
    r"multimem\.",
    r"clusterlaunchcontrol\.",
    r"cp\.(reduce\.)?async\.bulk\.tensor\..*(im2col|gather4|scatter4)",
    r"cp\.async\.bulk\..*\.cp_mask",
    r"(ld|st)matrix\.sync\.aligned\.(m16n16|m8n16|m16n8)\.",
    r"(st|red)\.async\.release\.",
    r"st\.bulk",
    r"mov\.pred %p0,%is_explicit_cluster",
]


def states() -> list[tuple[str, str, str, str]]:
    """(form, assembler's chip, our chip, state)."""
    rows = [line.split(" ", 1) for line in (HERE / "forms.txt").read_text().splitlines()]
    path = HERE / "forms.txt"
    text = "\n".join(f for _, f in rows) + "\n"
    r = subprocess.run(
        [tool(), "--coverage=/dev/stdin"], input=text, capture_output=True, text=True, check=True
    )
    out = [line.split("\t") for line in r.stdout.splitlines()]
    assert len(out) == len(rows) > 3000, path
    return [(f, chip, ours, state) for (chip, f), (_, ours, state) in zip(rows, out, strict=True)]


def test_every_form_runs():
    wrong = []
    for form, chip, ours, state in states():
        known = any(re.match(p, form) for p in REFUSED)
        if known:
            assert state.startswith("refused: ") and len(state) > 20, (form, state)
        elif state != "executed":
            wrong.append((form, state))
        elif CHIPS.index(ours) > CHIPS.index(chip):
            wrong.append((form, f"needs {ours} here, {chip} for the assembler"))
    assert not wrong, f"{len(wrong)}: {wrong[:20]}"


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("tex.2d.v4.f32.s32 {r*4}, [%w0, {%r0, %r1}]", "textures"),
        ("suld.b.1d.b32.clamp %r0, [%w0, {%r1}]", "surfaces"),
    ],
)
def test_refusals_name_their_reason(tmp_path, op, why):
    path = tmp_path / "k.ptx"
    op = op.replace("{r*4}", "{%r0,%r1,%r2,%r3}")
    path.write_text(
        f".version 8.7\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n"
        f".reg .b32 %r<9>; .reg .b64 %w<9>;\n{op};\nret;\n}}\n"
    )
    r = run(tmp_path, path, "k", "1", "32", [])
    assert r.code == 1 and ":7: error:" in r.stderr and f"{why} are not supported" in r.stderr
