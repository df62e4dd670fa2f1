"""Imported attention of unusual shapes and numbers, against float64."""

from __future__ import annotations

import kvrun
import numpy as np
import pytest
from attention_graphs import Graph, attention, normal, scaled_scores
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run


@pytest.mark.parametrize(("heads", "kv"), [(28, 4), (24, 4), (10, 2), (12, 2), (64, 1), (48, 2)])
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


def test_scores_beyond_half_precision() -> None:
    """C55: f16 operands, products in f32: the raw score 131072 fits."""
    g = Graph()
    q, k = np.full((1, 1, 1, 128), 32.0), np.full((1, 1, 2, 128), 32.0)
    k[0, 0, 1, 0] = 31.984375
    v = np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    args = [g.give(x, "f16") for x in (q, k, v)]
    p = g.softmax(scaled_scores(g, args[0], args[1], 128**-0.5))
    got = g.result(g.dot(g.convert(p, "f16"), args[2], 2, "f16"), bound=2e-3)
    assert got.item() == pytest.approx(0.511047, abs=1e-3)


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
