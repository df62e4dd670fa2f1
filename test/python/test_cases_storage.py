"""Pools and tables: poisoned tails, padding, scattered pages, sizes, large pools."""

from __future__ import annotations

import numpy as np
import pytest
from caches import DTYPES, fill, make, random_rows, relative, zeros

import kvcache as kv


def _loaded(cache: kv.PagedCache):
    """The native kernel of a cache, for calls on the caller's own pools."""
    return cache._kernel


def _tables(
    cache: kv.PagedCache, pages: list[int], length: int, open_pool: np.ndarray, q: np.ndarray
) -> dict:
    """Arguments of attend_tables for one sequence whose pages are all open."""
    s = cache.spec
    return {
        "q": q,
        "row_seq": np.zeros(len(q), np.int32),
        "q_indptr": np.array([0, len(q)], np.int32),
        "sealed_table": np.full(len(pages), -1, np.int32),
        "open_table": np.array(pages, np.int32),
        "sealed_pages": np.zeros(1, np.int32),
        "lengths": np.array([length], np.int32),
        "sealed_pool": aligned(128),
        "open_pool": open_pool,
        "out": np.empty((len(q), s.q_heads, s.value_dim), q.dtype),
        "lse": np.empty((len(q), s.q_heads), np.float32),
    }


def aligned(n: int) -> np.ndarray:
    """n bytes on a multiple of 128."""
    raw = np.zeros(n + 128, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + n]


def _run(cache: kv.PagedCache, args: dict, pool_pages: int) -> tuple[bytes, bytes]:
    _loaded(cache).attend_tables(args, 1, len(args["open_table"]), 0, 1, pool_pages)
    return args["out"].tobytes(), args["lse"].tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_c09_poisoned_tail(dtype: str) -> None:
    cache = make(head_dim=128, dtype=dtype, format="int8,page=4,recent=64")
    rng = np.random.default_rng(0)
    record = _loaded(cache).info["open_record_bytes"]
    pool = aligned(4 * record)
    k, v = random_rows(rng, cache, 13)
    slots = np.arange(13, dtype=np.int64)
    _loaded(cache).append_slots({"k": k, "v": v, "slots": slots, "open_pool": pool}, 13, 4)
    q = rng.standard_normal((1, 1, 128)).astype(DTYPES[dtype])
    results = []
    for poison in (np.nan, np.inf, 0.0):
        last = pool[3 * record :][: 8 * 128 * q.itemsize].view(q.dtype).reshape(2, 4, 128)
        last[:, 1:] = poison
        results.append(_run(cache, _tables(cache, [0, 1, 2, 3], 13, pool, q), 4))
    assert results[0] == results[1] == results[2]
    want, _ = kv.reference.attention(q, k, v)
    out = np.frombuffer(results[0][0], q.dtype).reshape(want.shape)
    assert relative(out, want) < 2e-3


def test_c12_padded_rows_do_not_write() -> None:
    cache = make(head_dim=64, format="f16,page=4")
    kernel, rng = _loaded(cache), np.random.default_rng(1)
    record = kernel.info["open_record_bytes"]
    pool = aligned(4 * record)
    pool[:] = 0x11
    before = pool.copy()
    k, v = random_rows(rng, cache, 8)
    k[3:], v[3:] = np.nan, np.nan
    slots = np.array([0, 5, 10, -1, -1, -1, -1, -1], np.int64)
    kernel.append_slots({"k": k, "v": v, "slots": slots, "open_pool": pool}, 8, 4)
    changed = np.flatnonzero((pool != before).reshape(4, 2, 4, 128).any((1, 3)))
    assert set(changed) <= {0, 5, 10} and len(changed) == 3
    q = rng.standard_normal((1, 1, 64)).astype(np.float16)
    padded = [_run(cache, _tables(cache, [0, pad, pad], 1, pool, q), 4) for pad in (-1, 0)]
    exact = _run(cache, _tables(cache, [0], 1, pool, q), 4)
    assert padded[0] == padded[1] == exact


def test_c13_pages_behind_the_window_are_not_read() -> None:
    cache = make(format="f16,page=2", window=4)
    kernel = _loaded(cache)
    record = kernel.info["open_record_bytes"]
    pool = aligned(8 * record)
    v = np.arange(10, dtype=np.float16)[:, None, None].repeat(8, 2)
    arrays = {"k": zeros(cache, 10, "k"), "v": v, "slots": np.arange(10, dtype=np.int64), "open_pool": pool}
    kernel.append_slots(arrays, 10, 8)
    pool[5 * record : 6 * record].view(np.float16)[:] = np.nan
    q = zeros(cache, 1, "q")
    for garbage in (5, 4, 3, -1, 999):
        args = _tables(cache, [garbage] * 3 + [3, 4], 10, pool, q)
        _run(cache, args, 8)
        assert (args["out"] == 7.5).all()


def test_c14_pages_beyond_2_31_elements() -> None:
    """The same tokens at both ends of a pool of more than 2^32 bytes, mapped but hardly touched."""
    cache = make(head_dim=128, q_heads=8, kv_heads=8, format="bf16", dtype="bfloat16")
    kernel, rng = _loaded(cache), np.random.default_rng(2)
    page_bytes = kernel.info["open_record_bytes"] * 8
    pages = 16385
    assert page_bytes * pages > 1 << 32
    raw = np.zeros(page_bytes * pages + 128, np.uint8)  # untouched pages are never committed
    start = -raw.ctypes.data % 128
    pool = raw[start : start + page_bytes * pages]
    k, v = random_rows(rng, cache, 128)
    q = rng.standard_normal((1, 8, 128)).astype(DTYPES["bfloat16"])
    bits = [a.view(np.uint16) for a in (k, v)]
    results = []
    for where in ([0, 1], [16383, 16384]):
        slots = (np.array(where)[:, None] * 64 + np.arange(64)).astype(np.int64).ravel()
        arrays = {"k": bits[0], "v": bits[1], "slots": slots, "open_pool": pool}
        kernel.append_slots(arrays, 128, pages)
        args = _tables(cache, where, 128, pool, q.view(np.uint16))
        results.append(_run(cache, args, pages))
    assert results[0] == results[1]


def test_c16_more_than_65535_rows() -> None:
    n = 65537
    cache = make(capacity=n, format="f16,page=1")
    seqs = [fill(cache, 1, first=b % 251) for b in range(n)]
    out, _ = cache.attend(zeros(cache, n, "q"), seqs)
    assert (out[:, 0, 0] == np.arange(n) % 251).all()


def test_c16_65536_heads() -> None:
    heads = 65536
    cache = make(q_heads=heads, kv_heads=heads, format="f16,page=1", capacity=4)
    seq = cache.new_sequence()
    v = (np.arange(heads) % 251).astype(np.float16).reshape(1, heads, 1).repeat(8, 2)
    cache.append(seq, zeros(cache, 1, "k"), v)
    out, _ = cache.attend(zeros(cache, 1, "q"), [seq])
    assert (out == v).all()


@pytest.mark.parametrize("heads", [(28, 4), (24, 4), (10, 2), (12, 2), (64, 1), (48, 2)])
@pytest.mark.parametrize("fmt", ["f16,page=16", "int8,page=16", "kivi4,page=16,recent=0"])
def test_c17_odd_head_ratios(heads: tuple[int, int], fmt: str) -> None:
    cache = make(q_heads=heads[0], kv_heads=heads[1], head_dim=128, format=fmt)
    rng = np.random.default_rng(4)
    seq = cache.new_sequence()
    cache.append(seq, *random_rows(rng, cache, 33))
    for rows in (1, 5):
        q = rng.standard_normal((rows, heads[0], 128)).astype(np.float16)
        out, lse = cache.attend(q, [seq], [rows])
        want, want_lse = kv.reference.attention(q, *cache.read(seq))
        assert relative(out, want) < 2e-3 and np.abs(lse - want_lse).max() < 4e-3


@pytest.mark.parametrize("heads", [(3, 2), (33, 2), (2, 4)])
def test_c17_refused_ratios(heads: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"{heads[0]}\b.*\b{heads[1]}\b"):
        make(q_heads=heads[0], kv_heads=heads[1])


@pytest.mark.parametrize("d", [72, 80, 88, 96, 112, 160, 192])
@pytest.mark.parametrize("fmt", ["f16", "int8", "kivi4,recent=0"])
def test_c19_unusual_head_sizes(d: int, fmt: str) -> None:
    cache = make(head_dim=d, q_heads=3, kv_heads=1, format=fmt)
    rng = np.random.default_rng(6)
    seq = cache.new_sequence()
    cache.append(seq, *random_rows(rng, cache, 65))
    q = rng.standard_normal((1, 3, d)).astype(np.float16)
    want, _ = kv.reference.attention(q, *cache.read(seq))
    assert relative(cache.attend(q, [seq])[0], want) < 2e-3


@pytest.mark.parametrize("d", [1, 12, 65, 100])
def test_c19_refused_head_sizes(d: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{d}\b"):
        make(head_dim=d)


def test_c21_scattered_pages_and_page_sizes() -> None:
    cache = make(head_dim=128, format="f16,page=16")
    kernel, rng = _loaded(cache), np.random.default_rng(7)
    pool = aligned(8 * kernel.info["open_record_bytes"])
    k, v = random_rows(rng, cache, 40)
    q = rng.standard_normal((1, 1, 128)).astype(np.float16)
    results = []
    for where in ([0, 1, 2], [7, 2, 5]):
        slots = (np.array(where)[:, None] * 16 + np.arange(16)).ravel()[:40].astype(np.int64)
        kernel.append_slots({"k": k, "v": v, "slots": slots, "open_pool": pool}, 40, 8)
        results.append(_run(cache, _tables(cache, where, 40, pool, q), 8))
    assert results[0] == results[1]
    outs = []
    for page in (1, 16, 64):
        cache = make(head_dim=128, format=f"f16,page={page}")
        seq = cache.new_sequence()
        cache.append(seq, k, v)
        shared = cache.fork(seq)
        pair, _ = cache.attend(np.repeat(q, 2, 0), [seq, shared])
        assert (pair[0] == pair[1]).all()
        outs.append(pair[0])
    assert all(relative(o, outs[0]) < 1e-3 for o in outs)


def test_c64_table_bounds() -> None:
    cache = make(format="f16,page=4")
    pool = aligned(8 * _loaded(cache).info["open_record_bytes"])
    q = zeros(cache, 1, "q")
    with pytest.raises(ValueError, match=r"needs 3 pages.*has 2"):
        _run(cache, _tables(cache, [0, 1], 9, pool, q), 8)
    for bad in (-1, -7, 999):
        with pytest.raises(ValueError, match=rf"{bad} at position 1"):
            _run(cache, _tables(cache, [0, bad], 8, pool, q), 8)
        _run(cache, _tables(cache, [0, bad], 4, pool, q), 8)
