"""Rows whose visible keys a bias hides: the fill of a mask stays the number that it is."""

from __future__ import annotations

import graphs
import numpy as np
import pytest
from kvrun import kv_run, needs_kv_run
from test_import_cases import attention, causal

pytestmark = needs_kv_run
LOWEST = float(np.finfo(np.float32).min)
ROWS = (0.0, -1e9, LOWEST, -np.inf)


def compare(text: str, args: list[np.ndarray], dtype: str = "float32") -> list[dict]:
    """Runs fused and unfused, asserts equal outputs, returns the report."""
    fused, plain = (kv_run(text, "main", args, 1, *flags)[0] for flags in ((), ("--no-fuse",)))
    assert graphs.deviation(fused, plain, dtype) <= graphs.BOUND[dtype]
    return graphs.report(text)


def operands(rows: int, keys: int, dim: int, dtype: type = np.float32) -> list[np.ndarray]:
    """q [rows, dim], k [keys, dim], v [keys, 1]."""
    rng = np.random.default_rng(11)
    return [rng.standard_normal(s).astype(dtype) for s in ((rows, dim), (keys, dim), (keys, 1))]


def biases(rows: int, keys: int, dtype: type = np.float32) -> np.ndarray:
    """[rows, keys]: one row of each of ROWS, the rest ordinary."""
    bias = np.random.default_rng(12).standard_normal((rows, keys))
    with np.errstate(over="ignore"):
        for row, value in enumerate(ROWS):
            bias[row] += np.maximum(value, np.finfo(dtype).min) if np.isfinite(value) else value
        return bias.astype(dtype)


@pytest.mark.parametrize("fill", ["-2.38197633E+38", "-1.0E+9", "0xFF800000"])
@pytest.mark.parametrize("outside", [False, True])
def test_bias_hides_what_the_mask_leaves(fill: str, outside: bool) -> None:
    middle = causal(1).replace("0xFF800000", fill)
    if outside:
        middle = middle.replace("%x =", "%y =") + "\n  %x = stablehlo.add %y, %m : S"
    else:
        middle = "  %t = stablehlo.add %s, %m : S\n" + middle.replace("%see, %s", "%see, %t")
        middle = middle.replace("%late, %s", "%late, %t")
    text = attention(5, 6, middle, ", %m: S", dim=4)
    report = compare(text, [*operands(5, 6, 4), biases(5, 6)])
    assert report[0]["fused"] and report[0]["mask"] == "additive"


def test_weak_fill_beside_a_bias_is_left_alone() -> None:
    middle = causal(1).replace("0xFF800000", "-1.0E+4")
    middle = "  %t = stablehlo.add %s, %m : S\n" + middle.replace("%late, %s", "%late, %t")
    report = compare(attention(5, 6, middle, ", %m: S", dim=4), [*operands(5, 6, 4), biases(5, 6)])
    assert not report[0]["fused"] and "a bias may be lower" in report[0]["reason"]


def test_known_bias_keeps_the_causal_mask() -> None:
    slopes = (
        "  %a = stablehlo.iota dim = 1 : I\n  %f = stablehlo.convert %a : (I) -> S\n"
        "  %t = stablehlo.add %s, %f : S\n"
    )
    middle = slopes + causal(0).replace("0xFF800000", "-1.0E+9").replace("%late, %s", "%late, %t")
    report = compare(attention(5, 5, middle, dim=4), operands(5, 5, 4))
    assert report[0]["fused"] and report[0]["causal"]


def test_low_rows_in_half_precision() -> None:
    text = attention(5, 6, "  %x = stablehlo.add %s, %m : S", ", %m: S", dim=4)
    text = text.replace("0xFF800000", "0xFC00").replace("xf32", "xf16").replace("<f32>", "<f16>")
    args = [*operands(5, 6, 4, np.float16), biases(5, 6, np.float16)]
    args[3][1] = -1e4
    assert compare(text, args, "float16")[0]["fused"]


def test_half_precision_fill_beside_a_bias() -> None:
    middle = causal(1).replace("0xFF800000", "-6.5504E+4").replace("%x =", "%y =")
    text = attention(5, 6, middle + "\n  %x = stablehlo.add %y, %m : S", ", %m: S", dim=4)
    text = text.replace("0xFF800000", "0xFC00").replace("xf32", "xf16").replace("<f32>", "<f16>")
    args = [*operands(5, 6, 4, np.float16), biases(5, 6, np.float16)]
    assert compare(text, args, "float16")[0]["fused"]


@pytest.mark.parametrize("spelling", ["log_softmax", "guarded", "negated"])
def test_spellings_of_the_softmax(spelling: str) -> None:
    text = attention(3, 5, causal(2), dim=4)
    scores, row = "tensor<3x5xf32>", "tensor<3xf32>"
    if spelling == "log_softmax":
        text = text.replace(
            f"  %p = stablehlo.divide %e, %sums : {scores}",
            f"  %log = stablehlo.log %sum : {row}\n"
            f"  %logs = stablehlo.broadcast_in_dim %log, dims = [0] : ({row}) -> {scores}\n"
            f"  %lp = stablehlo.subtract %d, %logs : {scores}\n  %p = stablehlo.exponential %lp : {scores}",
        )
    elif spelling == "guarded":
        text = text.replace(
            "  %maxes = stablehlo.broadcast_in_dim %max,",
            f"  %abs = stablehlo.abs %max : {row}\n"
            f"  %top = stablehlo.constant dense<0x7F800000> : {row}\n"
            f"  %none = stablehlo.compare EQ, %abs, %top : ({row}, {row}) -> tensor<3xi1>\n"
            f"  %zeros = stablehlo.constant dense<0.0> : {row}\n"
            f"  %safe = stablehlo.select %none, %zeros, %max : tensor<3xi1>, {row}\n"
            "  %maxes = stablehlo.broadcast_in_dim %safe,",
        )
    else:
        text = text.replace(
            "  %d = stablehlo.subtract %x, %maxes",
            f"  %low2 = stablehlo.negate %maxes : {scores}\n  %d = stablehlo.add %low2, %x",
        )
    assert any(name in text for name in ("%lp", "%safe", "%low2"))
    assert compare(text, operands(3, 5, 4))[0]["fused"]


@pytest.mark.parametrize("where", ["scores", "probabilities"])
@pytest.mark.parametrize("rounded", [False, True], ids=["wide result", "rounded result"])
def test_rounding_inside_must_be_in_the_result(where: str, rounded: bool) -> None:
    """Scores or probabilities rounded to f16 fuse only where the result is rounded as well."""
    scores, half = "tensor<3x5xf32>", "tensor<3x5xf16>"
    twice = (
        f"  %h = stablehlo.convert {{}} : ({scores}) -> {half}\n"
        f"  {{}} = stablehlo.convert %h : ({half}) -> {scores}\n"
    )
    text = attention(3, 5, twice.format("%s", "%x") if where == "scores" else "", dim=4)
    if where == "probabilities":
        text = text.replace("%x", "%s").replace("  %o =", twice.format("%p", "%pr") + "  %o =")
        text = text.replace("dot_general %p", "dot_general %pr")
    if rounded:
        text = text.replace("-> tensor<3x1xf32> {", "-> tensor<3x1xf16> {").replace(
            "  return %o : tensor<3x1xf32>",
            "  %r = stablehlo.convert %o : (tensor<3x1xf32>) -> tensor<3x1xf16>\n"
            "  return %r : tensor<3x1xf16>",
        )
    report = compare(text, operands(3, 5, 4), "float16" if rounded else "float32")
    assert report[0]["fused"] == rounded
    assert rounded or "rounded to 16 bits" in report[0]["reason"]
