"""Attention graphs with their arrays, compared fused, unfused and in float64."""

from __future__ import annotations

import graphs
import numpy as np
from cache_graphs import Body, Built
from kvrun import kv_run

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
