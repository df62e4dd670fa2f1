"""Graphs with a cache behind attention, their arrays, and the comparison of fused and unfused runs."""

from __future__ import annotations

import json
import pathlib
import tempfile

import kvrun
import numpy as np
from cache_graphs import DIM, HEADS, KV, SEQS, Body, Built
from kvrun import kv_run

COLUMNS, PAGES = 5, 7


class Case:
    """A graph with its arrays."""

    def __init__(self, tokens: int = 20, rows: int = 1, fill: str = "0xFF800000", seed: int = 0):
        self.body, self.arrays = Body(), []
        self.rng = np.random.default_rng(seed)
        self.tokens, self.fill = tokens, fill
        self.q = self.float((SEQS, HEADS, rows, DIM))

    def give(self, array: np.ndarray, element: str) -> Built:
        """An argument of this value."""
        self.arrays.append(array)
        return self.body.arg(array.shape, element)

    def float(self, shape: tuple[int, ...]) -> Built:
        """Random f32."""
        return self.give(self.rng.standard_normal(shape).astype(np.float32), "f32")

    def codes(self, shape: tuple[int, ...], element: str) -> Built:
        """Random bytes."""
        signed = element.startswith("i")
        low, high = (-128, 128) if signed else (0, 256)
        return self.give(self.rng.integers(low, high, shape).astype(np.int8 if signed else np.uint8), element)

    def scale(self, shape: tuple[int, ...]) -> Built:
        """Random positive f32 near 1/100."""
        return self.give((0.01 + 0.01 * self.rng.random(shape)).astype(np.float32), "f32")

    def table(self, low: int = -9, high: int = 12, columns: int = COLUMNS) -> Built:
        """Page numbers, some out of range."""
        return self.give(self.rng.integers(low, high, (SEQS, columns)).astype(np.int32), "i32")

    def run(self, k: Built, v: Built, lengths: list[int] | None = None) -> tuple[dict, str]:
        """Checks the fused numbers; the report's entry and the fused text."""
        bound = None if lengths is None else self.give(np.array(lengths, np.int32), "i32")
        return self.check(self.body.attend(self.q, k, v, bound, self.fill))

    def check(self, out: Built) -> tuple[dict, str]:
        """As `run`, of a finished body."""
        text = self.body.text(out)
        fused, plain = (kv_run(text, "main", self.arrays, 1, *flags)[0] for flags in ((), ("--no-fuse",)))
        np.testing.assert_array_equal(np.isnan(fused), np.isnan(plain))
        scale = np.nanmax(np.abs(plain))
        np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-5 * scale)
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "report.json"
            imported = kvrun.opt(text, f"--kvcache-import=report={path}")
            entries = json.loads(path.read_text())
        assert len(entries) == 1 and entries[0]["fused"], entries
        return entries[0], kvrun.opt(imported, "--kvcache-fuse")


def joined(body: Body, pages: Built, order: list[int]) -> Built:
    """Gathered pages to [seq, kv, token, dim], the order naming seq, kv, page, token, dim."""
    x = body.transpose(pages, order)
    return body.reshape(x, (SEQS, KV, x.shape[2] * x.shape[3], x.shape[4]))


def left_as_tensors(entry: dict, fused: str, why: str) -> None:
    """The attention is fused, its cache is not."""
    assert entry["cache"] is None and why in entry["cache_reason"], entry
    assert "#kvcache.external" not in fused
