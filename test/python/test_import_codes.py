"""Quantised caches behind attention: every spelling of codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from cache_cases import Case, left_as_tensors
from cache_graphs import DIM, KV, SEQS, Built
from kvrun import needs_kv_run

pytestmark = needs_kv_run


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
        x = case.body.scaled(case.body.reshape(codes, grouped), case.scale((SEQS, KV, 20, 4)), [0, 1, 2, 3])
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


def test_signed_codes_with_a_zero_point() -> None:
    def decode(case: Case) -> Built:
        x = case.body.convert(case.codes(SHAPE, "i8"), "f32")
        zeros = case.body.broadcast(case.float((SEQS, KV, 20)), SHAPE, [0, 1, 2])
        return case.body.scaled(case.body.binary("subtract", x, zeros), case.scale((SEQS, KV, 20)), [0, 1, 2])

    left_as_tensors(*contiguous(decode), "zero point")


def test_nibbles_of_one_half_only() -> None:
    def decode(case: Case) -> Built:
        x = case.codes(SHAPE, "ui8")
        low = case.body.binary("and", x, case.body.constant("15", SHAPE, "ui8"))
        return case.body.scaled(case.body.convert(low, "f32"), case.scale((SEQS, KV, 20)), [0, 1, 2])

    left_as_tensors(*contiguous(decode), "do not fill their containers")


def test_values_decoded_in_half_precision() -> None:
    """Rounded to f16 by the graph, which an f32 result shows."""

    def decode(case: Case) -> Built:
        scale = case.body.convert(case.scale((SEQS, KV, 20)), "f16")
        codes = case.body.convert(case.codes(SHAPE, "i8"), "f16")
        return case.body.convert(case.body.scaled(codes, scale, [0, 1, 2]), "f32")

    left_as_tensors(*contiguous(decode), "rounded to 16 bits")
