"""What a query sees: empty rows, causal alignment, windows, soft cap, biases."""

from __future__ import annotations

import numpy as np
import pytest
from caches import fill, make, means, random_rows, zeros

import kvcache as kv

FORMATS = ["f16,page=2", "int8,page=2", "key=i4:channel,value=i4:token,page=2"]


@pytest.mark.parametrize("fmt", FORMATS)
def test_c01_empty_rows_of_a_causal_prefill(fmt: str) -> None:
    cache = make(format=fmt)
    seq = cache.new_sequence()
    cache.append(seq, zeros(cache, 2, "k"), np.ones((2, 1, 8), np.float16))
    out, lse = cache.attend(zeros(cache, 4, "q"), [seq], [4])
    assert (out[:, 0, 0] == [0, 0, 1, 1]).all()
    assert np.isneginf(lse[:2]).all()
    assert lse[2, 0] == 0 and abs(lse[3, 0] - np.log(2)) < 1e-6


@pytest.mark.parametrize("causal", [True, False])
def test_c03_zero_lengths(causal: bool) -> None:
    cache = make(causal=causal)
    empty, three = cache.new_sequence(), fill(cache, 3)
    out, lse = cache.attend(zeros(cache, 1, "q"), [empty])
    assert not out.any() and np.isneginf(lse).all()
    out, lse = cache.attend(zeros(cache, 2, "q"), [empty, three])
    assert out[:, 0, 0].tolist() == [0, 1]
    assert np.isneginf(lse[0, 0]) and abs(lse[1, 0] - np.log(3)) < 1e-6
    for seqs, lens in (([], None), ([], []), ([three], [0])):
        out, lse = cache.attend(zeros(cache, 0, "q"), seqs, lens)
        assert out.shape == (0, 1, 8) and lse.shape == (0, 1)
    out, _ = cache.attend(zeros(cache, 1, "q"), [empty, three], [0, 1])
    assert out[0, 0, 0] == 1


def test_c06_very_negative_scores() -> None:
    cache = make(head_dim=64, dtype="bfloat16", format="bf16,page=16", scale=1.0)
    bf16 = zeros(cache, 0, "k").dtype
    seq = cache.new_sequence()
    cache.append(seq, np.full((1, 1, 64), -64, bf16), np.full((1, 1, 64), 7, bf16))
    q = np.full((1, 1, 64), 64, bf16)
    out, lse = cache.attend(q, [seq])
    assert (out == 7).all() and lse[0, 0] == -262144
    # A ragged batch, and a prefill whose first row sees one key.
    other = fill(cache, 40)
    both, lses = cache.attend(np.repeat(q, 2, 0), [seq, other])
    assert (both[0] == 7).all() and lses[0, 0] == -262144
    cache.append(seq, np.full((1, 1, 64), -64, bf16), np.full((1, 1, 64), 1000, bf16))
    out, lse = cache.attend(np.repeat(q, 2, 0), [seq], [2])
    assert (out[0] == 7).all() and lse[0, 0] == -262144


def test_c08_queries_are_the_newest_tokens() -> None:
    cache = make()
    seq = fill(cache, 5, first=1)
    assert means(cache, seq, 2) == [2.5, 3]
    assert means(cache, seq, 1) == [3]
    assert means(cache, fill(cache, 2, first=1), 5) == [0, 0, 0, 1, 1.5]


@pytest.mark.parametrize("fmt", ["f16,page=4", "f16,page=4,recent=3", "f16,page=4,sinks=1"])
def test_c23_a_window_counts_the_current_token(fmt: str) -> None:
    windowed = make(format=fmt, window=4)
    rows = means(windowed, fill(windowed, 8), 8)
    assert rows[7] == 5.5 and rows[2] == 1
    seq, steps = windowed.new_sequence(), []
    for j in range(8):
        fill(windowed, 1, first=j, seq=seq)
        steps += means(windowed, seq)
    assert steps == rows
    one = make(format=fmt, window=1)
    assert means(one, fill(one, 8), 8) == list(range(8))
    for window in (8, 9, 1 << 40):
        wide = make(format=fmt, window=window)
        assert means(wide, fill(wide, 8), 8) == [j / 2 for j in range(8)]


def test_c25_the_compile_cache_knows_every_attribute() -> None:
    def last(**spec) -> float:
        cache = make(**spec)
        return means(cache, fill(cache, 64))[0]

    assert [last(window=w) for w in (None, 4, 8, None)] == [31.5, 61.5, 59.5, 31.5]
    assert last(window=4, format="f16,page=32") == 61.5
    # Scale, soft cap, alibi and dtype: each gives its own result, in any order.
    rng = np.random.default_rng(3)
    k, v, q = (rng.standard_normal((64, 1, 8)).astype(np.float16) for _ in range(3))

    def run(**spec) -> np.ndarray:
        cache = make(**spec)
        seq = cache.new_sequence()
        dtype = zeros(cache, 0, "k").dtype
        cache.append(seq, k.astype(dtype), v.astype(dtype))
        return np.asarray(cache.attend(q.astype(dtype), [seq], [64])[0], np.float64)

    specs = [{}, {"scale": 1.0}, {"softcap": 0.5}, {"alibi": True}, {"causal": False}, {"dtype": "float32"}]
    first = [run(**s) for s in specs]
    again = [run(**s) for s in reversed(specs)][::-1]
    for a, b in zip(first, again, strict=True):
        assert (a == b).all()
    for a in first[1:-1]:
        assert np.abs(a - first[0]).max() > 1e-2
    assert np.abs(first[-1] - first[0]).max() < 1e-2


@pytest.mark.parametrize("fmt", ["f16,page=4", "f16,page=2,recent=4"])
def test_c26_a_window_rolls_over_the_fill_boundary(fmt: str) -> None:
    cache = make(format=fmt, window=8)
    seq = fill(cache, 6, first=1)
    got = means(cache, seq)
    for token in (7, 8, 9, 10):
        fill(cache, 1, first=token, seq=seq)
        got += means(cache, seq)
    fill(cache, 3, first=11, seq=seq)
    assert got + means(cache, seq, 3) == [3.5, 4, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]
    long = fill(cache, 20, first=1)
    fill(cache, 1, first=21, seq=long)
    assert means(cache, long) == [17.5]


def test_c43_softcap_comes_before_the_mask() -> None:
    cache = make(softcap=1.0)
    seq = fill(cache, 2)  # V = 0, 1: the first of two queries sees V = 0 only
    assert means(cache, seq, 2)[0] == 0
    cache = make(softcap=5.0, scale=1.0)
    seq = cache.new_sequence()
    k = np.zeros((2, 1, 8), np.float16)
    k[0, 0, 0] = 100
    cache.append(seq, k, np.array([1, 0], np.float16).reshape(2, 1, 1).repeat(8, 2))
    q = np.zeros((1, 1, 8), np.float16)
    q[0, 0, 0] = 1
    out, _ = cache.attend(q, [seq])
    assert np.abs(out.astype(float) - 0.993307).max() < 5e-4


@pytest.mark.parametrize("heads", [6, 12])
def test_c44_position_bias_slopes(heads: int) -> None:
    slopes = {
        6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
        12: [2.0**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    }[heads]
    given = make(q_heads=heads, kv_heads=heads, alibi=slopes, format="f16,page=4")
    usual = make(q_heads=heads, kv_heads=heads, alibi=True, format="f16,page=4")
    results = []
    for cache in (given, usual):
        rng = np.random.default_rng(1)
        seq = cache.new_sequence()
        k, v = random_rows(rng, cache, 30)
        cache.append(seq, k, v)
        q = rng.standard_normal((3, heads, 8)).astype(np.float16)
        out, lse = cache.attend(q, [seq], [3])
        want, want_lse = kv.reference.attention(q, k, v, alibi_slopes=slopes)
        assert np.abs(out - want).max() < 2e-3 and np.abs(lse - want_lse).max() < 1e-3
        results.append(out.tobytes())
    assert results[0] == results[1]


def test_c44_explicit_slopes_are_not_recomputed() -> None:
    slopes = [2.0**-i for i in range(5, 9)]
    cache = make(q_heads=4, kv_heads=4, alibi=slopes)
    rng = np.random.default_rng(2)
    seq = cache.new_sequence()
    k, v = random_rows(rng, cache, 40)
    cache.append(seq, k, v)
    q = rng.standard_normal((1, 4, 8)).astype(np.float16)
    want, _ = kv.reference.attention(q, k, v, alibi_slopes=slopes)
    assert np.abs(cache.attend(q, [seq])[0] - want).max() < 2e-3


@pytest.mark.parametrize("n", [1, 10, 31, 32, 33, 65])
def test_c54_one_kernel_many_lengths(n: int) -> None:
    cache = make(format="int8,page=32")
    seq = cache.new_sequence()
    cache.append(seq, zeros(cache, n, "k"), np.ones((n, 1, 8), np.float16))
    assert means(cache, seq) == [1]
    exact = make(format="f16,page=32")
    assert means(exact, fill(exact, n)) == [(n - 1) / 2]


@pytest.mark.parametrize("n", [1, 63, 65, 70, 129])
@pytest.mark.parametrize("fmt", ["f16", "int8", "kivi4"])
def test_c74_partial_last_page(n: int, fmt: str) -> None:
    cache = make(head_dim=64, format=fmt, scale=1.0)
    seq = cache.new_sequence()
    k = np.zeros((n, 1, 64), np.float16)
    k[..., 0] = -10
    cache.append(seq, k, np.ones((n, 1, 64), np.float16))
    q = np.zeros((1, 1, 64), np.float16)
    q[..., 0] = 1
    out, lse = cache.attend(q, [seq])
    assert np.abs(out - 1).max() < 1e-3
    assert abs(lse[0, 0] - (np.log(n) - 10)) < 2e-3
