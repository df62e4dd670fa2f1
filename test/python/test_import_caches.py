"""Caches behind attention: recognised, fused to external layouts, with the graph's numbers."""

from __future__ import annotations

import json
import pathlib
import tempfile
from collections.abc import Callable

import kvrun
import ml_dtypes
import numpy as np
import pytest
from cache_graphs import DIM, HEADS, KV, SEQS, Body, Built
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run
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


POOLS = {
    "token_head": ((PAGES, 4, KV, DIM), 0, [0, 3, 1, 2, 4]),
    "head_token": ((PAGES, KV, 4, DIM), 0, [0, 2, 1, 3, 4]),
    "heads_first": ((KV, PAGES, 4, DIM), 1, [0, 2, 1, 3, 4]),
    "channels_first": ((PAGES, KV, DIM, 4), 0, [0, 2, 1, 4, 3]),
    "page_6": ((PAGES, 6, KV, DIM), 0, [0, 3, 1, 2, 4]),
    "page_1": ((PAGES, 1, KV, DIM), 0, [0, 3, 1, 2, 4]),
    "page_24": ((PAGES, 24, KV, DIM), 0, [0, 3, 1, 2, 4]),
}


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_pages(pool: str, wrap: bool) -> None:
    shape, dim, order = POOLS[pool]
    case = Case()
    pools, table = [case.float(shape) for _ in range(2)], case.table()
    if wrap:
        table = case.body.wrapped(table, PAGES)
    k, v = (joined(case.body, case.body.take(p, table, dim), order) for p in pools)
    entry, fused = case.run(k, v, [3, 1, 2])
    assert entry["cache"]["kind"] == "paged" and entry["cache"]["pages"] == PAGES
    assert entry["cache"]["table_rule"] == ("wrap" if wrap else "clamp")
    assert entry["lengths"] and "#kvcache.external" in fused and "page_gather" not in fused
    assert "mask(" not in fused


@pytest.mark.parametrize("fill", ["0xFF800000", "-3.4028235e38", "-1.0e9"])
def test_empty_and_long_sequences(fill: str) -> None:
    case = Case(fill=fill)
    pools, table = [case.float((PAGES, 4, KV, DIM)) for _ in range(2)], case.table()
    k, v = (joined(case.body, case.body.take(p, table), [0, 3, 1, 2, 4]) for p in pools)
    entry, fused = case.run(k, v, [0, 99, -5])
    assert entry["empty_rows"] == ("nan" if fill.startswith("0x") else "mean_all")
    assert "#kvcache.external" in fused


def test_keys_and_values_in_one_pool() -> None:
    case = Case()
    pool, table = case.float((PAGES, 2, 4, KV, DIM)), case.table()
    pages = case.body.take(pool, table)
    sides = []
    for i in range(2):
        text = (
            f"stablehlo.slice {pages.name} [0:{SEQS}, 0:{COLUMNS}, {i}:{i + 1}, 0:4, 0:{KV}, 0:{DIM}]"
            f" : ({pages.type}) -> $"
        )
        part = case.body.op(text, (SEQS, COLUMNS, 1, 4, KV, DIM), "f32")
        part = case.body.reshape(part, (SEQS, COLUMNS, 4, KV, DIM))
        sides.append(joined(case.body, part, [0, 3, 1, 2, 4]))
    entry, fused = case.run(*sides, [20, 7, 4])
    assert entry["cache"]["kind"] == "paged" and fused.count("codes(0,") == 2


def test_pages_out_of_range_read_as_nan() -> None:
    case = Case()
    pools = [case.float((PAGES, 4, KV, DIM)) for _ in range(2)]
    numbers = np.array([[0, 1, 2, 3, 4], [0, 1, 7, 2, 1], [6, 6, 6, -1, 0]], np.int32)
    table, body = case.give(numbers, "i32"), case.body
    low = body.compare("GE", table, body.constant("0", table.shape, "i32"))
    high = body.compare("LE", table, body.constant("6", table.shape, "i32"))
    valid = body.binary("and", low, high)
    sides = []
    for pool in pools:
        pages = body.take(pool, table)
        nan = body.constant("0x7FC00000", pages.shape, "f32")
        pages = body.select(body.broadcast(valid, pages.shape, [0, 1]), pages, nan)
        sides.append(joined(body, pages, [0, 3, 1, 2, 4]))
    entry, fused = case.run(*sides, [20, 3, 20])
    assert entry["cache"]["kind"] == "paged" and "#kvcache.external" in fused


def contiguous(decode: Callable[[Case], Built], tokens: int = 20) -> tuple[dict, str]:
    """Runs attention to keys and values that `decode` makes, each [seq, kv, token, dim]."""
    case = Case(tokens)
    return case.run(decode(case), decode(case), [20, 7, 1])


SHAPE = (SEQS, KV, 20, DIM)


def int8(case: Case, scale: tuple[int, ...], dims: list[int]) -> Built:
    return case.body.scaled(case.body.convert(case.codes(SHAPE, "i8"), "f32"), case.scale(scale), dims)


@pytest.mark.parametrize(
    ("scale", "dims"),
    [
        ((), []),
        ((KV,), [1]),
        ((SEQS, KV), [0, 1]),
        ((SEQS, KV, 20), [0, 1, 2]),
        ((SEQS, KV, DIM), [0, 1, 3]),
        ((DIM,), [3]),
        ((KV, 20), [1, 2]),
    ],
)
def test_int8_scales(scale: tuple[int, ...], dims: list[int]) -> None:
    entry, fused = contiguous(lambda case: int8(case, scale, dims))
    assert entry["cache"] == {"kind": "contiguous", "key": "i8", "value": "i8"}
    assert "#kvcache.external" in fused and "dequantize" not in fused


def test_scales_per_group_of_channels() -> None:
    def decode(case: Case) -> Built:
        grouped = (SEQS, KV, 20, 4, 4)
        codes = case.body.convert(case.codes(SHAPE, "i8"), "f32")
        x = case.body.scaled(
            case.body.reshape(codes, grouped), case.scale((SEQS, KV, 20, 4)), [0, 1, 2, 3]
        )
        return case.body.reshape(x, SHAPE)

    entry, fused = contiguous(decode)
    assert entry["cache"]["kind"] == "contiguous" and "floordiv 4" in fused


@pytest.mark.parametrize("where", ["float", "integer", "plus"])
def test_unsigned_codes_with_zero_points(where: str) -> None:
    def decode(case: Case) -> Built:
        body, codes, scale = case.body, case.codes(SHAPE, "ui8"), case.scale((SEQS, KV, 20))
        zeros = case.give(case.rng.integers(100, 150, (SEQS, KV, 20)).astype(np.uint8), "ui8")
        if where == "plus":
            least = body.broadcast(case.float((SEQS, KV, 20)), SHAPE, [0, 1, 2])
            return body.binary("add", least, body.scaled(body.convert(codes, "f32"), scale, [0, 1, 2]))
        wide = "i32" if where == "integer" else "f32"
        codes, zeros = body.convert(codes, wide), body.convert(zeros, wide)
        x = body.binary("subtract", codes, body.broadcast(zeros, SHAPE, [0, 1, 2]))
        return body.scaled(body.convert(x, "f32"), scale, [0, 1, 2])

    entry, fused = contiguous(decode)
    assert entry["cache"]["kind"] == "contiguous" and "zeros(" in fused


@pytest.mark.parametrize("high_first", [False, True])
@pytest.mark.parametrize("order", ["interleaved", "halves"])
@pytest.mark.parametrize("offset", [None, "8.0"])
def test_nibbles(order: str, high_first: bool, offset: str | None) -> None:
    def decode(case: Case) -> Built:
        packed = case.codes((SEQS, KV, 20, DIM // 2), "ui8")
        x = case.body.convert(case.body.nibbles(packed, order, high_first), "f32")
        if offset:
            x = case.body.binary("subtract", x, case.body.constant(offset, SHAPE, "f32"))
        x = case.body.scaled(x, case.scale((SEQS, KV, DIM)), [0, 1, 3])
        least = case.body.broadcast(case.float((SEQS, KV, DIM)), SHAPE, [0, 1, 3])
        return x if offset else case.body.binary("add", x, least)

    entry, fused = contiguous(decode)
    assert entry["cache"]["key"] == "i4 packed"
    assert f"packed(channel, {'high' if high_first else 'low'}_first)" in fused


def test_words_of_eight_codes() -> None:
    def decode(case: Case) -> Built:
        body, wide = case.body, (SEQS, KV, 20, DIM // 8, 8)
        words = case.rng.integers(0, 2**32, (SEQS, KV, 20, DIM // 8), dtype=np.uint64).astype(np.uint32)
        x = body.broadcast(case.give(words, "ui32"), wide, [0, 1, 2, 3])
        by = body.constant("[0, 4, 8, 12, 16, 20, 24, 28]", (8,), "ui32")
        x = body.binary("shift_right_logical", x, body.broadcast(by, wide, [4]))
        x = body.reshape(body.binary("and", x, body.constant("15", wide, "ui32")), SHAPE)
        return body.scaled(body.convert(x, "f32"), case.scale((SEQS, KV, 20)), [0, 1, 2])

    entry, fused = contiguous(decode)
    assert entry["cache"]["key"] == "i4 packed" and "tensor<3x2x20x2xi32>" in fused


@pytest.mark.parametrize(
    ("element", "kind"), [("f8E4M3FN", ml_dtypes.float8_e4m3fn), ("f8E5M2", ml_dtypes.float8_e5m2)]
)
@pytest.mark.parametrize("scale", [(), (KV,), None])
def test_fp8(element: str, kind: type, scale: tuple[int, ...] | None) -> None:
    def decode(case: Case) -> Built:
        codes = case.rng.standard_normal(SHAPE).astype(kind).view(np.uint8)
        x = case.body.convert(case.give(codes, element), "f32")
        return x if scale is None else case.body.scaled(x, case.scale(scale), [1] if scale else [])

    entry, fused = contiguous(decode)
    assert entry["cache"]["kind"] == "contiguous" and "#kvcache.external" in fused


@pytest.mark.parametrize("first", ["gather", "decode"])
def test_paged_codes(first: str) -> None:
    case, sides = Case(), []
    table = case.body.wrapped(case.table(), PAGES)
    for _ in range(2):
        body, packed = case.body, case.codes((PAGES, 4, KV, DIM // 2), "ui8")
        params = [case.scale((PAGES, 1, KV, DIM)), case.float((PAGES, 1, KV, DIM))]
        pages = (PAGES, 4, KV, DIM)
        if first == "gather":
            packed, *params = (body.take(x, table) for x in (packed, *params))
            pages = (SEQS, COLUMNS, 4, KV, DIM)
        x = body.convert(body.nibbles(packed), "f32")
        rank = list(range(len(pages)))
        for op, p in zip(("multiply", "add"), params, strict=True):
            x = body.binary(op, x, body.broadcast(p, pages, rank))
        sides.append(joined(body, x if first == "gather" else body.take(x, table), [0, 3, 1, 2, 4]))
    entry, fused = case.run(*sides, [20, 7, 1])
    assert entry["cache"] == {
        "kind": "paged",
        "key": "i4 packed",
        "value": "i4 packed",
        "page": 4,
        "pages": PAGES,
        "table_rule": "wrap",
    }
    assert "scales(" in fused and "dequantize" not in fused


def left_as_tensors(entry: dict, fused: str, why: str) -> None:
    """The attention is fused, its cache is not."""
    assert entry["cache"] is None and why in entry["cache_reason"], entry
    assert "#kvcache.external" not in fused


def test_different_tables() -> None:
    case = Case()
    sides = [
        joined(case.body, case.body.take(case.float((PAGES, 4, KV, DIM)), case.table()), [0, 3, 1, 2, 4])
        for _ in range(2)
    ]
    left_as_tensors(*case.run(*sides, [20, 7, 1]), "different tables")


def test_signed_codes_with_a_zero_point() -> None:
    def decode(case: Case) -> Built:
        x = case.body.convert(case.codes(SHAPE, "i8"), "f32")
        zeros = case.body.broadcast(case.float((SEQS, KV, 20)), SHAPE, [0, 1, 2])
        return case.body.scaled(
            case.body.binary("subtract", x, zeros), case.scale((SEQS, KV, 20)), [0, 1, 2]
        )

    left_as_tensors(*contiguous(decode), "zero point")


def test_nibbles_of_one_half_only() -> None:
    def decode(case: Case) -> Built:
        x = case.codes(SHAPE, "ui8")
        low = case.body.binary("and", x, case.body.constant("15", SHAPE, "ui8"))
        return case.body.scaled(case.body.convert(low, "f32"), case.scale((SEQS, KV, 20)), [0, 1, 2])

    left_as_tensors(*contiguous(decode), "do not fill their containers")


def test_more_queries_than_keys() -> None:
    case = Case(rows=6)
    table = case.table()
    sides = [
        joined(case.body, case.body.take(case.float((PAGES, 1, KV, DIM)), table), [0, 3, 1, 2, 4])
        for _ in range(2)
    ]
    left_as_tensors(*case.run(*sides), "more queries than keys")
