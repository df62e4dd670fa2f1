"""Numbers: extreme scores, splits, LSE units, merging, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from caches import DTYPES, fill, make, means, random_rows, relative, zeros

import kvcache as kv
from kvcache import _native


@pytest.mark.parametrize("fmt", ["f16", "int8", "kivi4,recent=0", "kivi4"])
def test_c55_scores_above_65504(fmt: str) -> None:
    cache = make(head_dim=128, format=fmt)
    page = cache.spec.format.page
    k = np.full((2, 1, 128), 32, np.float16)
    k[1, 0, 5] = 31.984375
    v = np.stack([np.ones((1, 128)), np.zeros((1, 128))]).astype(np.float16)
    seq = cache.new_sequence()
    cache.append(seq, k, v)
    q = np.full((1, 1, 128), 32, np.float16)
    out, _ = cache.attend(q, [seq])
    assert np.abs(out.astype(float) - 0.511047).max() < 1e-3
    # The same in sealed pages, whatever their codes make of it.
    cache.append(seq, np.tile(k, (page, 1, 1)), np.tile(v, (page, 1, 1)))
    cache.append(seq, np.tile(k, (200, 1, 1)), np.tile(v, (200, 1, 1)))
    out, lse = cache.attend(q, [seq])
    want, want_lse = kv.reference.attention(q, *cache.read(seq))
    assert relative(out, want) < 2e-3
    assert np.abs(lse - want_lse).max() <= 1e-3 * np.abs(want_lse).max()


def test_c56_splitting_costs_no_accuracy() -> None:
    rng = np.random.default_rng(5)
    spec = kv.AttentionSpec(q_heads=4, kv_heads=2, head_dim=64, dtype="bfloat16", format="bf16")
    q = rng.standard_normal((1, 4, 64)).astype(DTYPES["bfloat16"])
    rows = None
    errors = []
    for splits in (1, 2, 8, 32):
        cache = kv.PagedCache(spec, 4096, schedule={"split_tokens": 4096 // splits})
        rows = rows or random_rows(rng, cache, 4096)
        seq = cache.new_sequence()
        cache.append(seq, *rows)
        out = cache.attend(q, [seq])[0].astype(np.float64)
        want, _ = kv.reference.attention(q, *rows)
        rounded = want.astype(DTYPES["bfloat16"]).astype(np.float64)
        step = np.maximum(np.abs(rounded), 2.0**-60) * 2.0**-7
        assert (np.abs(out - rounded) <= step).all()
        errors.append(np.abs(out - want).mean())
    assert max(errors) <= 1.1 * errors[0]


@pytest.mark.parametrize("fmt", ["f16,page=4", "int8,page=4", "key=i4:channel,value=i4,page=4,recent=2"])
def test_c57_one_unit_for_lse(fmt: str) -> None:
    cache = make(format=fmt)
    eight = fill(cache, 8)
    for rows in (1, 2):
        _, lse = cache.attend(zeros(cache, rows, "q"), [eight], [rows])
        assert abs(lse[-1, 0] - 2.079442) < 1e-5


def test_c57_merging_parts_of_different_backends() -> None:
    cache = make(format="f16,page=4")
    seq = cache.new_sequence()
    cache.append(seq, zeros(cache, 6, "k"), np.zeros((6, 1, 8), np.float16))
    part = cache.attend(zeros(cache, 1, "q"), [seq])
    other = kv.reference.attention(np.zeros((1, 1, 8)), np.zeros((2, 1, 8)), np.ones((2, 1, 8)))
    out, lse = kv.merge_states([part, other])
    assert out.dtype == np.float16 and lse.dtype == np.float32
    assert (out == 0.25).all() and abs(lse[0, 0] - np.log(8)) < 1e-6
    empty = (np.full((1, 1, 8), np.nan, np.float16), np.full((1, 1), -np.inf, np.float32))
    out, lse = kv.merge_states([empty, part, other])
    assert (out == 0.25).all()
    out, lse = kv.merge_states([empty, empty])
    assert not out.any() and np.isneginf(lse).all()


@pytest.mark.parametrize("fmt", ["f16", "int8", "kivi4", "kivi4,sinks=4"])
def test_a_batch_and_threads_do_not_show(fmt: str, capture) -> None:
    cache = make(q_heads=9, kv_heads=3, head_dim=64, format=fmt, capacity=8192)
    seqs = []
    for n in (0, 1, 700, 63, 1024, 128):
        seqs.append(cache.new_sequence())
        if n:
            cache.append(seqs[-1], capture["k"][:n], capture["v"][:n])
    q = capture["q"][: len(seqs)]
    results = []
    for threads in (1, 2, 3):
        _native.set_num_threads(threads)
        results.append(cache.attend(q, seqs))
        results.append(cache.attend(q[::-1], seqs[::-1]))
        results[-1] = tuple(a[::-1] for a in results[-1])
    _native.set_num_threads(0)
    for out, lse in results[1:]:
        assert out.tobytes() == results[0][0].tobytes() and lse.tobytes() == results[0][1].tobytes()
    for i, seq in enumerate(seqs):
        out, lse = cache.attend(q[i : i + 1], [seq])
        assert (out == results[0][0][i]).all() and (lse == results[0][1][i]).all()


def test_long_sequences_use_longer_splits() -> None:
    """Lengths around the steps of the split function, with V = token number / 4096."""
    cache = make(format="int8", capacity=40000, dtype="float32")
    seq = cache.new_sequence()
    at = 0
    for n in (8192, 8193, 32768, 32769):
        v = (np.arange(at, n, dtype=np.float32) / 4096)[:, None, None].repeat(8, 2)
        cache.append(seq, zeros(cache, n - at, "k"), v)
        at = n
        assert abs(means_of(cache, seq) - (n - 1) / 8192) < 1e-3


def means_of(cache: kv.PagedCache, seq: int) -> float:
    """The mean over channels of the newest output with a zero query."""
    out, _ = cache.attend(zeros(cache, 1, "q"), [seq])
    return float(out.mean())


def test_the_capture_against_its_own_output(capture) -> None:
    cache = make(q_heads=9, kv_heads=3, head_dim=64, format="f16")
    seq = cache.new_sequence()
    cache.append(seq, capture["k"], capture["v"])
    out, _ = cache.attend(capture["q"], [seq], [32])
    assert relative(out, capture["o"]) < 2e-3


def test_attending_does_not_change_the_cache() -> None:
    cache = make(format="int8,page=4")
    seq = fill(cache, 11)
    before = cache.dump(seq)
    means(cache, seq, 3)
    assert cache.dump(seq) == before


KEYS = [
    "i8:channel",
    "i8:channel:sym",
    "i8:token",
    "i8:head",
    "i8:head:sym",
    "i4:channel",
    "i4:token:g16",
    "i4:head",
]


@pytest.mark.parametrize("key", KEYS)
def test_single_scores_on_the_capture(key: str, capture) -> None:
    """With a window of one token the LSE is one score: no error averages out."""
    cache = make(q_heads=9, kv_heads=3, head_dim=64, format=f"key={key},value=i8:token,page=16", window=1)
    for n in range(16, 1025, 112):
        seq = cache.new_sequence()
        cache.append(seq, capture["k"][:n], capture["v"][:n])
        newest = np.repeat(cache.read(seq)[0][-1].astype(np.float64), 3, 0)
        scores = np.einsum("ihd,hd->ih", capture["q"].astype(np.float64), newest) / 8
        _, lse = cache.attend(capture["q"], [seq] * len(capture["q"]))
        assert (np.abs(lse - scores) / np.maximum(1, np.abs(scores))).max() < 1e-3
        cache.free(seq)
