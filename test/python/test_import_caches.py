"""Paged caches behind attention: recognised, fused to external layouts, with the graph's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from cache_cases import COLUMNS, PAGES, Case, joined, left_as_tensors
from cache_graphs import DIM, KV, SEQS
from kvrun import needs_kv_run

pytestmark = needs_kv_run

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
    assert entry["cache"]["kind"] == "paged"
    assert "codes(0," in fused and "codes(1," not in fused


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


def test_different_tables() -> None:
    case = Case()
    sides = [
        joined(case.body, case.body.take(case.float((PAGES, 4, KV, DIM)), case.table()), [0, 3, 1, 2, 4])
        for _ in range(2)
    ]
    left_as_tensors(*case.run(*sides, [20, 7, 1]), "different tables")


def test_more_queries_than_keys() -> None:
    case = Case(rows=6)
    table = case.table()
    sides = [
        joined(case.body, case.body.take(case.float((PAGES, 1, KV, DIM)), table), [0, 3, 1, 2, 4])
        for _ in range(2)
    ]
    left_as_tensors(*case.run(*sides), "more queries than keys")
