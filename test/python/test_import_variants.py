"""The same attention written differently is recognised alike, and masks keep their meaning.

Graphs are rewritten as text: operands of commutative ops swapped, independent
ops shuffled, dead code and identities put in between.
"""

from __future__ import annotations

import random
import re

import graphs
import numpy as np
import pytest
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run
SUBJECTS = ("jax_dpa_gqa_causal", "jax_sinks_gptoss_concat", "jax_softcap_gemma2", "torch_sdpa_mask_bool")
NEAR = ("jax_near_dropout_select", "jax_near_mask_after_softmax", "jax_near_talking_heads")
TORCH = ("torch_sdpa_mask_bool", "torch_sdpa_gqa", "torch_sinks_gptoss", "torch_manual_masked_fill_causal")
FILES = [f"{name}/graph.mlir" for name in SUBJECTS + NEAR]
FILES += [f"{name}/graph.{kind}.mlir" for name in TORCH for kind in ("linalg", "tosa")]

COMMUTES = re.compile(
    r"(\s*%\w+ = (?:stablehlo\.(?:add|multiply|maximum|and)|arith\.(?:addf|mulf|maximumf|andi)"
    r"|tosa\.(?:add|maximum)) )(%[\w#]+), (%[\w#]+)( : )(.*)"
)
YIELDS = re.compile(r"\s*(%\w+) = (stablehlo|linalg|tosa)\.\w+.*(?:: |-> )(tensor<[\dx]+xf32>)$", re.DOTALL)


def _names(text: str) -> set[str]:
    """The SSA names in a piece of text, results of multi-result ops by base name."""
    return set(re.findall(r"%[\w]+", text))


def _shuffled(ops: list[str], rng: random.Random) -> list[str]:
    """A random order of a block's ops that keeps definitions before uses."""
    defines = [_names(op.split(" = ")[0]) if " = " in op.split("\n")[0] else set() for op in ops]
    uses = [_names(op) - own for op, own in zip(ops, defines, strict=True)]
    known = set().union(*defines) if defines else set()
    left, order, done = list(range(len(ops))), [], set()
    while left:
        ready = [i for i in left if not (uses[i] & known) - done]
        pick = rng.choice(ready)
        left.remove(pick)
        order.append(ops[pick])
        done |= defines[pick]
    return order


def _commuted(line: str, rng: random.Random) -> str:
    """The operands of an add, multiply or maximum swapped half of the time."""
    found = COMMUTES.match(line)
    if not found or rng.random() < 0.5:
        return line
    types = re.sub(r"^\((.*), (.*)\) ->", r"(\2, \1) ->", found[5])
    return f"{found[1]}{found[3]}, {found[2]}{found[4]}{types}"


def _padded(op: str, rng: random.Random, count: int) -> list[str]:
    """The op, sometimes followed by one that nobody uses."""
    found = YIELDS.match(op)
    if not found or rng.random() >= 0.3:
        return [op]
    negate = "stablehlo.negate" if found[2] == "stablehlo" else "math.absf"
    return [op, f"    %dead{count} = {negate} {found[1]} : {found[3]}"]


def _privately(op: str, count: int) -> str:
    """The op with the names that its regions define made unique: order changes what they hide."""
    first, *rest = op.split("\n")
    for name in {n for line in rest for n in _names(line.split(" = ")[0]) if " = " in line} | {
        n for line in rest if line.lstrip().startswith("^") for n in _names(re.sub(r": \w+", "", line))
    }:
        rest = [re.sub(re.escape(name) + r"\b", f"%r{count}_{name[1:]}", line) for line in rest]
    return "\n".join([first, *rest])


def _ops(lines: list[str]) -> list[str]:
    """The ops of a block, those with regions as one text of several lines."""
    ops: list[str] = []
    for line in lines:
        starts = re.match(r"    (%|\w|\")", line) and not line.lstrip().startswith("}")
        if starts or not ops:
            ops.append(line)
        else:
            ops[-1] += "\n" + line
    return ops


def _block(lines: list[str], rng: random.Random, serial: int) -> list[str]:
    """A block's lines shuffled, commuted and padded."""
    ops = []
    for number, op in enumerate(_ops(lines)):
        name = serial * 10000 + number
        commuted = "\n".join(_commuted(line, rng) for line in _privately(op, name).split("\n"))
        ops += _padded(commuted, rng, name)
    return _shuffled(ops, rng)


def variant(text: str, seed: int) -> str:
    """The graph shuffled, commuted and padded; the same function."""
    rng = random.Random(seed)
    output, block, serial = [], [], 0
    for line in text.splitlines():
        if line.startswith("    ") and not line.startswith(("    return", "    func.return")):
            block.append(line)
            continue
        serial += 1
        output += [*_block(block, rng, serial), line]
        block = []
    return "\n".join(output) + "\n"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FILES)
def test_order_and_dead_code_do_not_matter(name: str, seed: int) -> None:
    file = graphs.SHIPPED / name
    text = variant(file.read_text(), seed)
    assert graphs.fused(graphs.report(text)) == graphs.fused(graphs.report(file))
    if seed == 0:
        graphs.check_outputs(file, graphs.run(file, graphs.inputs(file), text=text))


MASKED = """
func.func @main(%q: tensor<2x3x8xf32>, %k: tensor<2x5x8xf32>, %v: tensor<2x5x8xf32>, %m: tensor<2x3x5xi1>)
    -> tensor<2x3x8xf32> {{
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : (tensor<2x3x8xf32>, tensor<2x5x8xf32>) -> tensor<2x3x5xf32>
  %low = stablehlo.constant dense<{fill}> : tensor<2x3x5xf32>
  %x = stablehlo.select %m, %s, %low : tensor<2x3x5xi1>, tensor<2x3x5xf32>
  %inf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %max = stablehlo.reduce(%x init: %inf) applies stablehlo.maximum across dimensions = [2]
    : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3xf32>
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x5xf32>
  %d = stablehlo.subtract %x, %maxes : tensor<2x3x5xf32>
  %e = stablehlo.exponential %d : tensor<2x3x5xf32>
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2]
    : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3xf32>
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x5xf32>
  %p = stablehlo.divide %e, %sums : tensor<2x3x5xf32>
  %o = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : (tensor<2x3x5xf32>, tensor<2x5x8xf32>) -> tensor<2x3x8xf32>
  return %o : tensor<2x3x8xf32>
}}
"""


@pytest.mark.parametrize(
    ("fill", "empty"),
    [("0xFF800000", "nan"), ("-3.40282347E+38", "mean_all"), ("-1.0E+9", "mean_all")],
)
def test_rows_without_keys(fill: str, empty: str) -> None:
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 8), (2, 5, 8), (2, 5, 8)))
    mask = rng.random((2, 3, 5)) < 0.5
    mask[0, 1] = False
    mask[1, 2] = True
    text = MASKED.format(fill=fill)
    entries = graphs.report(text)
    assert [e["empty_rows"] for e in entries if e["fused"]] == [empty]
    fused = kv_run(text, "main", [q, k, v, mask], 1)[0]
    plain = kv_run(text, "main", [q, k, v, mask], 1, "--no-fuse")[0]
    assert np.isnan(plain[0, 1]).all() == (empty == "nan")
    assert graphs.deviation(fused, plain, "float32") <= 1e-5


def test_safe_softmax_zeroes_rows() -> None:
    file = graphs.SHIPPED / "torch_sdpa_mask_bool" / "graph.mlir"
    args = graphs.inputs(file)
    mask = next(i for i, a in enumerate(args) if a.dtype == np.bool_)
    args[mask] = args[mask].copy()
    args[mask][..., 2, :] = False
    fused, plain = graphs.run(file, args)[0], graphs.run(file, args, "--no-fuse")[0]
    assert (plain[..., 2, :] == 0).all()
    assert graphs.deviation(fused, plain, "float32") <= 1e-5


def test_fill_that_still_has_weight_is_left_alone() -> None:
    entries = graphs.report(MASKED.format(fill="-5.0"))
    assert [e["fused"] for e in entries] == [False]
    assert "still has weight" in entries[0]["reason"]


def test_report_fields() -> None:
    entry = graphs.report(MASKED.format(fill="0xFF800000"))[0]
    assert entry["function"] == "main" and entry["fused"] is True
    assert entry["location"].count(":") >= 2
    assert (entry["q_len"], entry["kv_len"], entry["head_dim"], entry["mask"]) == (3, 5, 8, "bool")
