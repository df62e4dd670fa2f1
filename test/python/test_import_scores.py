"""Imported attention with masks, scales and sums in its scores, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from attention_graphs import LOWEST16, Graph, attention, normal, scaled_scores
from cache_graphs import Built
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run

MASKS = [((1, 1, 1, 12), 1), ((12, 12), 1), ((1, 1, 12, 12), 1), ((4, 1, 1, 12), 4)]


@pytest.mark.parametrize("is_bool", [True, False])
@pytest.mark.parametrize(("shape", "batch"), MASKS)
def test_broadcast_masks(shape: tuple[int, ...], batch: int, is_bool: bool) -> None:
    """C51: masks of fewer or smaller dimensions."""
    g, rng = Graph(), np.random.default_rng(5)
    arrays = [normal(i, batch, 4, 12, 16) for i in range(3)]
    q, k, v = (g.give(x) for x in arrays)
    mask = rng.random(shape) < 0.7 if is_bool else rng.standard_normal(shape)
    if is_bool:
        mask[..., 0] = True
    given = g.give(mask, "i1" if is_bool else "f32")
    s = scaled_scores(g, q, k, 0.25)
    wide = g.broadcast(given, s.shape, list(range(4 - len(shape), 4)))
    if is_bool:
        s = g.select(wide, s, g.constant("0xFF800000", s.shape, "f32"))
    else:
        s = g.binary("add", s, wide)
    got = g.result(g.dot(g.softmax(s), v, 2))
    bias = np.where(mask, 0, -np.inf) if is_bool else mask.astype(np.float32)
    np.testing.assert_allclose(got, attention(*arrays, 0.25, bias), rtol=0, atol=1e-5)


def test_stacked_lowest_masks_in_half_precision() -> None:
    """C52: the sum of two planes of the lowest finite f16 overflows to -inf."""
    g = Graph()
    arrays = [normal(i, 1, 1, 5, 8).astype(np.float16) for i in range(3)]
    q, k, v = (g.give(x, "f16") for x in arrays)
    causal = np.where(np.tril(np.ones((5, 5))) > 0, 0, LOWEST16)
    padding = np.where(np.arange(5) < 3, LOWEST16, 0)
    s = g.dot(q, k, 3, "f16")
    s = g.binary("add", s, g.broadcast(g.give(causal, "f16"), s.shape, [2, 3]))
    s = g.binary("add", s, g.broadcast(g.give(padding, "f16"), s.shape, [3]))
    p = g.convert(g.softmax(g.convert(s, "f32")), "f16")
    out = g.dot(p, v, 2, "f16")
    got = kv_run(g.text(out), "main", g.arrays, 1)[0]
    plain = kv_run(g.text(out), "main", g.arrays, 1, "--no-fuse")[0]
    want = attention(*(x[:, :, 3:] for x in arrays), 1.0, np.where(np.tril(np.ones((2, 2))) > 0, 0, -np.inf))
    for result in (got, plain):
        np.testing.assert_allclose(result[:, :, 3:], want, rtol=0, atol=4e-3)


@pytest.mark.parametrize(("score", "hidden"), [(-262144.0, False), (-262144.0, True)])
def test_very_negative_scores(score: float, hidden: bool) -> None:
    """C06: one visible key far below zero, and a hidden one beside it."""
    g = Graph()
    keys = 2 if hidden else 1
    k, v = np.full((1, 1, keys, 64), score / 64 / 64), np.full((1, 1, keys, 1), 1000.0)
    v[0, 0, 0] = 7
    q, k, v = (g.give(x) for x in (np.full((1, 1, 1, 64), 64.0), k, v))
    s = g.dot(q, k, 3)
    if hidden:
        seen = g.give(np.array([[[[True, False]]]]), "i1")
        s = g.select(seen, s, g.constant("0xFF800000", s.shape, "f32"))
    # A single key needs no attention.
    assert g.result(g.dot(g.softmax(s), v, 2), fused=hidden).item() == 7


@pytest.mark.parametrize("row", [0, 2, 4])
def test_first_keys_hidden(row: int) -> None:
    """C07: one row sees the second half of the keys, one nothing, the others all."""
    g, see = Graph(), np.ones((5, 256), bool)
    see[row, :128] = False
    see[(row + 1) % 5] = False
    zeros = np.zeros((1, 1, 5, 8))
    q, k = g.give(zeros), g.give(np.zeros((1, 1, 256, 8)))
    v = g.give(np.arange(256.0).reshape(1, 1, 256, 1))
    s = g.dot(q, k, 3)
    wide = g.broadcast(g.give(see, "i1"), s.shape, [2, 3])
    s = g.select(wide, s, g.constant("0xFF800000", s.shape, "f32"))
    p = g.softmax(s)
    isnan = g.op(
        f"stablehlo.compare NE, {p.name}, {p.name}, FLOAT : ({p.type}, {p.type}) -> $", p.shape, "i1"
    )
    p = g.select(isnan, g.constant("0.0", p.shape, "f32"), p)
    got = g.result(g.dot(p, v, 2))[0, 0, :, 0]
    assert g.entry["empty_rows"] == "zero"
    want = np.full(5, 127.5)
    want[row], want[(row + 1) % 5] = 191.5, 0
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("with_nan", [False, True])
def test_nan_replaced_after_the_softmax(with_nan: bool) -> None:
    """Rows of NaN become zero, whatever made them NaN."""
    g = Graph()
    arrays = [normal(i, 1, 2, 3, 4) for i in range(3)]
    if with_nan:
        arrays[0][0, 1, 2, 0] = np.nan
    q, k, v = (g.give(x) for x in arrays)
    s = scaled_scores(g, q, k, 0.5)
    wide = g.broadcast(g.give(np.tril(np.ones((3, 3)), -1), "i1"), s.shape, [2, 3])
    p = g.softmax(g.select(wide, s, g.constant("0xFF800000", s.shape, "f32")))
    text = f"stablehlo.compare NE, {p.name}, {p.name}, FLOAT : ({p.type}, {p.type}) -> $"
    p = g.select(g.op(text, p.shape, "i1"), g.constant("0.0", p.shape, "f32"), p)
    got = g.result(g.dot(p, v, 2))
    assert (got[:, :, 0] == 0).all() and (got[0, 1, 2] == 0).all() == with_nan


@pytest.mark.parametrize("heads", [6, 8, 12])
@pytest.mark.parametrize("relative", [True, False])
def test_alibi_slopes(heads: int, relative: bool) -> None:
    """C44: slopes that the graph holds become the op's."""
    slopes = {6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]}.get(
        heads, [2.0**-i for i in range(1, 9)] + [2.0 ** -(i + 0.5) for i in range(4)]
    )[:heads]
    g = Graph()
    arrays = [normal(i, 1, heads, 7, 8) for i in range(3)]
    q, k, v = (g.give(x) for x in arrays)
    s = scaled_scores(g, q, k, 0.25)
    j = g.op("stablehlo.iota dim = 3 : $", s.shape, "f32")
    if relative:
        j = g.binary("subtract", j, g.op("stablehlo.iota dim = 2 : $", s.shape, "f32"))
    m = g.constant(str(slopes), (heads,), "f32")
    s = g.binary("add", s, g.binary("multiply", j, g.broadcast(m, s.shape, [1])))
    got = g.result(g.dot(g.softmax(s), v, 2))
    bias = np.array(slopes)[:, None, None] * np.arange(7)
    np.testing.assert_allclose(got, attention(*arrays, 0.25, bias), rtol=0, atol=1e-5)
    assert g.entry["alibi"] == pytest.approx(slopes) and g.entry["mask"] == "none"


@pytest.mark.parametrize("shape", [(), (1, 4, 1, 1), (2, 1, 1, 1)])
@pytest.mark.parametrize("divides", [False, True])
def test_scales_given_at_run_time(shape: tuple[int, ...], divides: bool) -> None:
    """One number, one per head, one per sequence."""
    g, rng = Graph(), np.random.default_rng(2)
    arrays = [normal(i, 2, 4, 6, 8) for i in range(3)]
    q, k, v = (g.give(x) for x in arrays)
    scale = np.asarray(0.5 + rng.random(shape), np.float32)
    s = g.dot(q, k, 3)
    by = g.broadcast(g.give(scale), s.shape, list(range(len(shape))))
    s = g.binary("divide" if divides else "multiply", s, by)
    got = g.result(g.dot(g.softmax(s), v, 2))
    factor = (1 / scale if divides else scale).astype(np.float64)
    np.testing.assert_allclose(got, attention(arrays[0] * factor, *arrays[1:], 1.0), rtol=0, atol=1e-5)
    assert g.entry["runtime_scale"]


def test_scales_of_keys_are_not_of_queries() -> None:
    g = Graph()
    q, k, v = (g.give(normal(i, 1, 2, 3, 4)) for i in range(3))
    s = g.dot(q, k, 3)
    s = g.binary("multiply", s, g.broadcast(g.give(normal(4, 3)), s.shape, [3]))
    g.result(g.dot(g.softmax(s), v, 2), fused=False)
    assert "differs between keys" in g.entry["reason"]


@pytest.mark.parametrize("absorbed", [True, False])
def test_sum_of_two_products(absorbed: bool) -> None:
    """MLA: scores of a latent (or of each head) and of a rotary part shared by all heads."""
    g, heads, tokens = Graph(), 4, 9
    q1, q2 = normal(1, 2, heads, 1, 16), normal(2, 2, heads, 1, 8)
    k1, k2 = normal(3, 2, 1 if absorbed else heads, tokens, 16), normal(4, 2, 1, tokens, 8)
    v = k1 if absorbed else normal(5, 2, heads, tokens, 12)
    args = [g.give(x) for x in (q1, q2, k1, k2)]

    def all_heads(x: Built) -> Built:
        if x.shape[1] == heads:
            return x
        return g.repeat_heads(x, heads)

    values = args[2] if absorbed else g.give(v)
    s = g.binary("add", g.dot(args[0], all_heads(args[2]), 3), g.dot(args[1], all_heads(args[3]), 3))
    s = g.binary("multiply", s, g.constant("0.2", s.shape, "f32"))
    got = g.result(g.dot(g.softmax(s), all_heads(values), 2))
    k = [np.broadcast_to(x, (2, heads, *x.shape[2:])) for x in (k1, k2, v)]
    want = attention(np.concatenate([q1, q2], -1), np.concatenate(k[:2], -1), k[2], 0.2)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    assert g.entry["products"] == 2 and g.entry["head_dim"] == 24
    assert g.entry["kv_heads"] == (1 if absorbed else heads)


def test_position_scores_are_left_alone() -> None:
    """A second product with keys of its own for every query would be quadratic."""
    g = Graph()
    q, k, v = (g.give(normal(i, 1, 2, 3, 4)) for i in range(3))
    r = g.give(normal(7, 1, 2, 3, 5, 4))
    one = g.dot(q, g.give(normal(8, 1, 2, 5, 4)), 3)
    text = (
        f"stablehlo.dot_general {q.name}, {r.name}, batching_dims = [0, 1, 2] x [0, 1, 2], "
        f"contracting_dims = [3] x [4] : ({q.type}, {r.type}) -> $"
    )
    s = g.binary("add", one, g.op(text, one.shape, "f32"))
    g.result(g.dot(g.softmax(s), g.give(normal(9, 1, 2, 5, 4)), 2), fused=False)
    assert "for every query" in g.entry["reason"]
