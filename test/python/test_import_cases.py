"""Small graphs with known answers: masks, biases, caps and windows keep their meaning."""

from __future__ import annotations

import re

import graphs
import numpy as np
import pytest
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run


def attention(rows: int, keys: int, middle: str, extra: str = "", dim: int = 1) -> str:
    """One head of softmax(middle(q.k)) v in StableHLO: `middle` makes %x of the scores %s.

    q is [rows, dim], k [keys, dim], v [keys, 1]; `extra` adds arguments. In `middle`, S
    stands for tensor<rows x keys x f32>, B for the same of i1, I of i32.
    """
    scores, row, wide = f"tensor<{rows}x{keys}xf32>", f"tensor<{rows}xf32>", "tensor<f32>"
    text = f"""
func.func @main(%q: tensor<{rows}x{dim}xf32>, %k: tensor<{keys}x{dim}xf32>, %v: tensor<{keys}x1xf32>{extra})
    -> tensor<{rows}x1xf32> {{
  %s = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1]
    : (tensor<{rows}x{dim}xf32>, tensor<{keys}x{dim}xf32>) -> S
{middle}
  %inf = stablehlo.constant dense<0xFF800000> : {wide}
  %zero = stablehlo.constant dense<0.0> : {wide}
  %max = stablehlo.reduce(%x init: %inf) applies stablehlo.maximum across dimensions = [1]
    : (S, {wide}) -> {row}
  %maxes = stablehlo.broadcast_in_dim %max, dims = [0] : ({row}) -> S
  %d = stablehlo.subtract %x, %maxes : S
  %e = stablehlo.exponential %d : S
  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
    : (S, {wide}) -> {row}
  %sums = stablehlo.broadcast_in_dim %sum, dims = [0] : ({row}) -> S
  %p = stablehlo.divide %e, %sums : S
  %o = stablehlo.dot_general %p, %v, contracting_dims = [1] x [0]
    : (S, tensor<{keys}x1xf32>) -> tensor<{rows}x1xf32>
  return %o : tensor<{rows}x1xf32>
}}
"""
    words = {"S": scores, "B": scores.replace("f32", "i1"), "I": scores.replace("f32", "i32")}
    return re.sub(r"(?<=[ (])([SBI])\b", lambda found: words[found[1]], text)


def causal(shift: int, window: int | None = None) -> str:
    """where(j <= i + shift and j > i + shift - window, s, -inf)."""
    lines = [
        "  %i = stablehlo.iota dim = 0 : I",
        "  %j = stablehlo.iota dim = 1 : I",
        f"  %by = stablehlo.constant dense<{shift}> : I",
        "  %pos = stablehlo.add %i, %by : I",
        "  %late = stablehlo.compare LE, %j, %pos, SIGNED : (I, I) -> B",
        "  %low = stablehlo.constant dense<0xFF800000> : S",
    ]
    seen = "%late"
    if window is not None:
        lines += [
            f"  %w = stablehlo.constant dense<{window}> : I",
            "  %first = stablehlo.subtract %pos, %w : I",
            "  %near = stablehlo.compare GT, %j, %first, SIGNED : (I, I) -> B",
            "  %seen = stablehlo.and %near, %late : B",
        ]
        seen = "%seen"
    return "\n".join([*lines, f"  %x = stablehlo.select {seen}, %s, %low : B, S"])


def run(text: str, *args: np.ndarray) -> tuple[list[float], list[dict]]:
    """Output values of the fused run, checked against the unfused one, and the report."""
    arrays = [a if a.dtype == np.bool_ else np.asarray(a, np.float32) for a in map(np.asarray, args)]
    fused, plain = (kv_run(text, "main", arrays, 1, *flags)[0] for flags in ((), ("--no-fuse",)))
    np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-6)
    return fused[:, 0].tolist(), graphs.report(text)


def column(*values: float) -> np.ndarray:
    """A column of numbers."""
    return np.array(values, np.float32)[:, None]


@pytest.mark.parametrize(
    ("rows", "keys", "shift", "want"),
    [(2, 5, 0, [1, 1.5]), (2, 5, 3, [2.5, 3]), (1, 5, 0, [1]), (5, 2, 0, [1, 1.5, 1.5, 1.5, 1.5])],
)
def test_two_causal_alignments(rows: int, keys: int, shift: int, want: list[float]) -> None:
    values = column(*range(1, keys + 1))
    got, report = run(attention(rows, keys, causal(shift)), np.zeros((rows, 1)), np.zeros((keys, 1)), values)
    assert got == pytest.approx(want)
    assert report[0]["fused"]


def test_window_counts_the_current_token() -> None:
    for window, last in ((4, 5.5), (1, 7), (8, 3.5), (20, 3.5)):
        text = attention(8, 8, causal(0, window))
        got, report = run(text, np.zeros((8, 1)), np.zeros((8, 1)), column(*range(8)))
        assert got[7] == pytest.approx(last) and report[0]["fused"] and report[0]["causal"]
        assert report[0].get("window") == (None if window >= 8 else [window - 1, 0])


def test_multiplying_is_not_masking() -> None:
    q, k, v = column(1), column(2, 3), column(10, 20)
    factor = "  %m = stablehlo.constant dense<[[1.0, 0.0]]> : S\n  %x = stablehlo.multiply %s, %m : S"
    got, report = run(attention(1, 2, factor), q, k, v)
    assert got == pytest.approx([11.19203]) and not report[0]["fused"]
    select = (
        "  %m = stablehlo.constant dense<[[true, false]]> : B\n"
        "  %low = stablehlo.constant dense<0xFF800000> : S\n"
        "  %x = stablehlo.select %m, %s, %low : B, S"
    )
    got, report = run(attention(1, 2, select), q, k, v)
    assert got == pytest.approx([10]) and report[0]["fused"]


def test_boolean_mask_and_float_bias_differ() -> None:
    extra, zeros = ", %m: S", np.zeros((2, 1))
    got, report = run(
        attention(2, 2, "  %x = stablehlo.add %s, %m : S", extra), zeros, zeros, column(1, 3), np.eye(2)
    )
    e = np.e
    assert got == pytest.approx([(e + 3) / (e + 1), (1 + 3 * e) / (e + 1)])
    assert report[0]["fused"] and report[0]["mask"] == "additive"


def test_soft_cap_comes_before_the_mask() -> None:
    cap = (
        "  %c = stablehlo.constant dense<5.0> : S\n"
        "  %y = stablehlo.divide %s, %c : S\n"
        "  %t = stablehlo.tanh %y : S\n"
        "  %x = stablehlo.multiply %c, %t : S"
    )
    got, report = run(attention(1, 2, cap), column(1), column(100, 0), column(1, 0))
    assert got == pytest.approx([0.993307], abs=1e-6)
    assert report[0]["fused"] and report[0]["softcap"] == pytest.approx(5)


def test_added_minus_infinity_hides_and_empties() -> None:
    text = attention(2, 3, "  %x = stablehlo.add %m, %s : S", ", %m: S")
    mask = np.zeros((2, 3))
    mask[0] = [0, -np.inf, 0]
    mask[1] = -np.inf
    got, report = run(text, np.zeros((2, 1)), np.zeros((3, 1)), column(1, 5, 2), mask)
    assert got[0] == pytest.approx(1.5) and report[0]["fused"]
    assert np.isnan(got[1])


def test_two_stacked_lowest_masks() -> None:
    low = float(np.finfo(np.float32).min)
    middle = "  %y = stablehlo.add %s, %a : S\n  %x = stablehlo.add %y, %b : S"
    a = np.where(np.tril(np.ones((5, 5))) > 0, 0, low)
    b = np.where(np.arange(5) < 3, low, 0)[None].repeat(5, 0)
    text = attention(5, 5, middle, ", %a: S, %b: S")
    got, _ = run(text, np.zeros((5, 1)), np.zeros((5, 1)), column(1, 2, 3, 4, 5), a, b)
    assert got[3:] == pytest.approx([4, 4.5])


@pytest.mark.parametrize("fill", ["0xFF800000", "-3.0E+38", "-1.0E+9", "-1.0E+4"])
@pytest.mark.parametrize("added", [False, True])
def test_first_row_sees_nothing(fill: str, added: bool) -> None:
    how = (
        "  %z = stablehlo.constant dense<0.0> : S\n"
        "  %b = stablehlo.select %see, %z, %low : B, S\n"
        "  %x = stablehlo.add %b, %s : S"
        if added
        else "  %x = stablehlo.select %see, %s, %low : B, S"
    )
    middle = (
        "  %i = stablehlo.iota dim = 0 : I\n"
        "  %j = stablehlo.iota dim = 1 : I\n"
        "  %see = stablehlo.compare LT, %j, %i, SIGNED : (I, I) -> B\n"
        f"  %low = stablehlo.constant dense<{fill}> : S\n{how}"
    )
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(s) for s in ((5, 4), (5, 4), (5, 1)))
    _, report = run(attention(5, 5, middle, dim=4), q, k, v)
    assert report[0]["fused"]


def test_masks_with_different_fills_are_left_alone() -> None:
    middle = (
        "  %a = stablehlo.constant dense<-1.0E+9> : S\n"
        "  %b = stablehlo.constant dense<0xFF800000> : S\n"
        "  %y = stablehlo.select %m, %s, %a : B, S\n"
        "  %x = stablehlo.select %n, %y, %b : B, S"
    )
    report = graphs.report(attention(2, 3, middle, ", %m: B, %n: B"))
    assert not report[0]["fused"] and "different numbers" in report[0]["reason"]


def test_dropout_is_named() -> None:
    text = attention(2, 2, "  %x = stablehlo.negate %s : S", ", %m: S")
    text = text.replace("dot_general %p, %v", "dot_general %kept, %v")
    text = text.replace("  %o =", f"  %kept = stablehlo.multiply %p, %m : {'tensor<2x2xf32>'}\n  %o =")
    report = graphs.report(text)
    assert not report[0]["fused"] and "dropout" in report[0]["reason"]
