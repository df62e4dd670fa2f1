"""Imported attention of unusual shapes, masks and numbers, against float64."""

from __future__ import annotations

import graphs
import kvrun
import numpy as np
import pytest
from cache_graphs import Body, Built
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run
NUMPY = {"f32": np.float32, "f16": np.float16, "i1": np.bool_, "i32": np.int32}
LOWEST16 = -65504.0


class Graph(Body):
    """A body with the arrays of its arguments."""

    def __init__(self):
        super().__init__()
        self.arrays: list[np.ndarray] = []

    def give(self, array: np.ndarray, element: str = "f32") -> Built:
        """An argument of this value."""
        self.arrays.append(np.asarray(array, NUMPY[element]))
        return self.arg(self.arrays[-1].shape, element)

    def result(self, out: Built, fused: bool = True, bound: float = 1e-5) -> np.ndarray:
        """The fused run, checked against the unfused one."""
        text = self.text(out)
        report = graphs.report(text)
        assert [e["fused"] for e in report] == [fused], report
        self.entry = report[0]
        got, plain = (kv_run(text, "main", self.arrays, 1, *f)[0] for f in ((), ("--no-fuse",)))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(plain))
        np.testing.assert_allclose(got, plain, rtol=0, atol=bound * max(np.nanmax(np.abs(plain)), 1e-6))
        return got


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, bias: object = 0.0) -> np.ndarray:
    """Float64 softmax(scale q.k + bias) v over [batch, head, token, dim]."""
    s = scale * np.einsum("bhid,bhjd->bhij", *(x.astype(np.float64) for x in (q, k))) + bias
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", p / p.sum(-1, keepdims=True), v.astype(np.float64))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Random f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def scaled_scores(g: Graph, q: Built, k: Built, scale: float) -> Built:
    """scale * q.k."""
    s = g.dot(q, k, 3)
    return g.binary("multiply", s, g.constant(repr(scale), s.shape, "f32"))


@pytest.mark.parametrize(
    ("heads", "kv"), [(28, 4), (24, 4), (10, 2), (12, 2), (64, 1), (48, 2)]
)
def test_odd_head_ratios(heads: int, kv: int) -> None:
    g, group = Graph(), heads // kv
    q, k, v = normal(1, 1, heads, 2, 128), normal(2, 1, kv, 33, 128), normal(3, 1, kv, 33, 128)
    args = [g.give(x) for x in (q, k, v)]
    s = scaled_scores(g, args[0], g.repeat_heads(args[1], group), 128**-0.5)
    got = g.result(g.dot(g.softmax(s), g.repeat_heads(args[2], group), 2))
    want = attention(q, *(x.repeat(group, 1) for x in (k, v)), 128**-0.5)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    assert g.entry["kv_heads"] == kv


@pytest.mark.parametrize("dim", [72, 80, 88, 96, 112, 160, 192, 5])
def test_unusual_head_sizes(dim: int) -> None:
    g = Graph()
    arrays = [normal(i, 1, 2, n, dim) for i, n in enumerate((1, 65, 65))]
    q, k, v = (g.give(x) for x in arrays)
    got = g.result(g.dot(g.softmax(scaled_scores(g, q, k, dim**-0.5)), v, 2))
    np.testing.assert_allclose(got, attention(*arrays, dim**-0.5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("tokens", [33, 65, 97])
def test_one_cache_for_all_sequences(tokens: int) -> None:
    """K and V are held once, K transposed, V with every other channel (C50)."""
    g = Graph()
    q, k, v = normal(1, 4, 2, 3, 16), normal(2, 2, 16, tokens), normal(3, 2, tokens, 32)
    args = [g.give(x) for x in (q, k, v)]
    keys = g.broadcast(g.transpose(args[1], [0, 2, 1]), (4, 2, tokens, 16), [1, 2, 3])
    every = g.op(
        f"stablehlo.slice {args[2].name} [0:2, 0:{tokens}, 0:32:2] : ({args[2].type}) -> $",
        (2, tokens, 16),
        "f32",
    )
    values = g.broadcast(every, (4, 2, tokens, 16), [1, 2, 3])
    got = g.result(g.dot(g.softmax(scaled_scores(g, args[0], keys, 0.25)), values, 2))
    dense = [np.broadcast_to(x, (4, *x.shape)) for x in (k.swapaxes(1, 2), v[..., ::2])]
    np.testing.assert_allclose(got, attention(q, *dense, 0.25), rtol=0, atol=1e-5)


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


def test_scores_beyond_half_precision() -> None:
    """C55: f16 operands, products in f32: the raw score 131072 fits."""
    g = Graph()
    q, k = np.full((1, 1, 1, 128), 32.0), np.full((1, 1, 2, 128), 32.0)
    k[0, 0, 1, 0] = 31.984375
    v = np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    args = [g.give(x, "f16") for x in (q, k, v)]
    p = g.softmax(scaled_scores(g, args[0], args[1], 128**-0.5))
    got = g.result(g.dot(g.convert(p, "f16"), args[2], 2, "f32"), bound=2e-3)
    assert got.item() == pytest.approx(0.511047, abs=1e-3)


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
    assert g.result(g.dot(g.softmax(s), v, 2)).item() == 7


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
    isnan = g.op(f"stablehlo.compare NE, {p.name}, {p.name}, FLOAT : ({p.type}, {p.type}) -> $", p.shape, "i1")
    p = g.select(isnan, g.constant("0.0", p.shape, "f32"), p)
    got = g.result(g.dot(p, v, 2))[0, 0, :, 0]
    assert g.entry["empty_rows"] == "zero"
    want = np.full(5, 127.5)
    want[row], want[(row + 1) % 5] = 191.5, 0
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("with_nan", [False, True])
def test_nan_to_num_after_the_softmax(with_nan: bool) -> None:
    """Rows of NaN become zero, whatever made them NaN."""
    g = Graph()
    arrays = [normal(i, 1, 2, 3, 4) for i in range(3)]
    if with_nan:
        arrays[0][0, 1, 2, 0] = np.nan
    q, k, v = (g.give(x) for x in arrays)
    s = scaled_scores(g, q, k, 0.5)
    wide = g.broadcast(g.give(np.tril(np.ones((3, 3)), -1), "i1"), s.shape, [2, 3])
    p = g.softmax(g.select(wide, s, g.constant("0xFF800000", s.shape, "f32")))
    for value, direction, other in (("0.0", "NE", None), ("3.4e38", "EQ", "0x7F800000")):
        against = p if other is None else g.constant(other, p.shape, "f32")
        text = f"stablehlo.compare {direction}, {p.name}, {against.name}, FLOAT : ({p.type}, {p.type}) -> $"
        p = g.select(g.op(text, p.shape, "i1"), g.constant(value, p.shape, "f32"), p)
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


def test_one_graph_for_many_lengths() -> None:
    """C54: a dynamic number of keys."""
    text = """
#q = affine_map<(j, c) -> (c)>
#k = affine_map<(j, c) -> (j, c)>
#j = affine_map<(j, c) -> (j)>
#c = affine_map<(j, c) -> (c)>
#s = affine_map<(j) -> (j)>
#e = affine_map<(j) -> ()>
func.func @main(%q: tensor<8xf32>, %k: tensor<?x8xf32>, %v: tensor<?x8xf32>) -> tensor<8xf32> {
  %zero = arith.constant 0.0 : f32
  %inf = arith.constant 0xFF800000 : f32
  %c0 = arith.constant 0 : index
  %n = tensor.dim %k, %c0 : tensor<?x8xf32>
  %s0 = tensor.empty(%n) : tensor<?xf32>
  %s1 = linalg.fill ins(%zero : f32) outs(%s0 : tensor<?xf32>) -> tensor<?xf32>
  %s = linalg.generic {indexing_maps = [#q, #k, #j], iterator_types = ["parallel", "reduction"]}
      ins(%q, %k : tensor<8xf32>, tensor<?x8xf32>) outs(%s1 : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %r = arith.addf %o, %m : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  %x0 = tensor.empty() : tensor<f32>
  %x1 = linalg.fill ins(%inf : f32) outs(%x0 : tensor<f32>) -> tensor<f32>
  %x = linalg.generic {indexing_maps = [#s, #e], iterator_types = ["reduction"]}
      ins(%s : tensor<?xf32>) outs(%x1 : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.maximumf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %p = linalg.generic {indexing_maps = [#s, #e, #s], iterator_types = ["parallel"]}
      ins(%s, %x : tensor<?xf32>, tensor<f32>) outs(%s0 : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %d = arith.subf %a, %b : f32
    %r = math.exp %d : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  %l1 = linalg.fill ins(%zero : f32) outs(%x0 : tensor<f32>) -> tensor<f32>
  %l = linalg.generic {indexing_maps = [#s, #e], iterator_types = ["reduction"]}
      ins(%p : tensor<?xf32>) outs(%l1 : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %w = linalg.generic {indexing_maps = [#s, #e, #s], iterator_types = ["parallel"]}
      ins(%p, %l : tensor<?xf32>, tensor<f32>) outs(%s0 : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = arith.divf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  %o0 = tensor.empty() : tensor<8xf32>
  %o1 = linalg.fill ins(%zero : f32) outs(%o0 : tensor<8xf32>) -> tensor<8xf32>
  %out = linalg.generic {indexing_maps = [#j, #k, #c], iterator_types = ["reduction", "parallel"]}
      ins(%w, %v : tensor<?xf32>, tensor<?x8xf32>) outs(%o1 : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %r = arith.addf %o, %m : f32
    linalg.yield %r : f32
  } -> tensor<8xf32>
  return %out : tensor<8xf32>
}
"""
    zeros = np.zeros(8, np.float32)
    for n in (1, 10, 31, 32, 33, 65):
        keys = normal(n, n, 8)
        for values, want in ((np.ones(n), 1.0), (np.arange(n), (n - 1) / 2)):
            v = np.repeat(values[:, None], 8, 1).astype(np.float32)
            got = kvrun.kv_run(text, "main", [zeros, keys, v], 1)[0]
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(("batch", "rows", "keys"), [(0, 2, 3), (1, 0, 3)])
def test_nothing_to_compute(batch: int, rows: int, keys: int) -> None:
    """C03: no sequences, or no queries."""
    g = Graph()
    q, k, v = (g.give(np.zeros((batch, 2, n, 8))) for n in (rows, keys, keys))
    text = g.text(g.dot(g.softmax(scaled_scores(g, q, k, 0.25)), v, 2))
    assert kv_run(text, "main", g.arrays, 1)[0].shape == (batch, 2, rows, 8)


def test_no_keys() -> None:
    """C03: a softmax of nothing is a sum of nothing."""
    g = Graph()
    q, k, v = (g.give(np.zeros((1, 2, n, 8))) for n in (2, 0, 0))
    text = g.text(g.dot(g.softmax(scaled_scores(g, q, k, 0.25)), v, 2))
    assert (kv_run(text, "main", g.arrays, 1)[0] == 0).all()
