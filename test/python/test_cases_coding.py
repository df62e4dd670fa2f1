"""What is coded, when, and how it is shared."""

from __future__ import annotations

import numpy as np
import pytest
from caches import fill, make, means, random_rows, relative

import kvcache as kv


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("d", [80, 96, 112])
def test_c35_ranges_without_phantom_zeros(bits: int, d: int) -> None:
    x = np.random.default_rng(8).uniform(10, 11, (64, d)).astype(np.float32)
    for kind in ("channel", "token", "head"):
        text = f"i{bits}:{kind}:asym:sf32"
        back = kv.dequantize(*kv.quantize(x, text), text)
        assert np.abs(back - x).max() <= 0.5001 / (2**bits - 1)


@pytest.mark.parametrize("element", ["i8", "i4"])
def test_c36_the_tail_and_the_flush(element: str) -> None:
    fmt = f"key={element}:channel:g32,value={element}:token:g32,page=32,recent=32"
    cache = make(head_dim=64, kv_heads=2, q_heads=2, format=fmt)
    k, v = random_rows(np.random.default_rng(9), cache, 200)
    whole, singles, sevens = (cache.new_sequence() for _ in range(3))
    cache.append(whole, k, v)
    cache.append(singles, k[:32], v[:32])
    coded = {}
    for t in range(32, 200):
        coded[t] = cache._native.sealed_tokens(singles)
        cache.append(singles, k[t : t + 1], v[t : t + 1])
    coded[200] = cache._native.sealed_tokens(singles)
    for t in range(0, 200, 7):
        cache.append(sevens, k[t : t + 7], v[t : t + 7])
    assert cache.dump(whole) == cache.dump(singles) == cache.dump(sevens)
    assert [coded[n] for n in (32, 40, 63, 64, 65, 96, 200)] == [0, 0, 0, 32, 32, 64, 160]
    k2, v2 = cache.read(whole)
    assert (k2[160:] == k[160:]).all() and (v2[160:] == v[160:]).all()
    assert np.abs(k2[:160] - k[:160]).max() > 1e-3


@pytest.mark.parametrize("text", ["i8:channel", "i4:token", "i4:channel:sym", "i8:head:sym", "e4m3:head"])
def test_c38_constant_groups(text: str) -> None:
    for value, tolerance in ((3.7, 2e-3), (0.0, 0.0), (-1e-30, 1e-6)):
        x = np.full((32, 64), value, np.float32)
        back = kv.dequantize(*kv.quantize(x, text), text)
        assert np.isfinite(back).all()
        assert np.abs(back - x).max() <= tolerance * max(1, abs(value))


def test_c38_constant_groups_in_a_cache() -> None:
    for fmt in ("int8,page=16", "key=i4:channel,value=i4:token,page=16"):
        for value in (3.7, 0.0, -6e-8):
            cache = make(head_dim=64, format=fmt)
            seq = cache.new_sequence()
            x = np.full((16, 1, 64), value, np.float16)
            cache.append(seq, x, x)
            k2, v2 = cache.read(seq)
            assert np.abs(k2 - np.float32(np.float16(value))).max() <= 2e-3
            assert (k2 == v2).all()
            assert np.isfinite(cache.attend(x[:1], [seq])[0]).all()


def test_c60_sharing_and_a_window() -> None:
    cache = make(format="f16,page=2", window=4, capacity=20)
    a = fill(cache, 6)
    b = cache.fork(a)
    fill(cache, 2, first=6, seq=a)
    assert means(cache, a) == [5.5]
    cache.free(a)
    assert means(cache, b) == [3.5]
    assert (cache.read(b)[1][:, 0, 0] == np.arange(6)).all()
    cache.free(b)
    stats = cache.stats()
    assert stats["free_pages"] == stats["capacity_pages"] == 10
    with pytest.raises(ValueError, match="freed before"):
        cache.free(b)


@pytest.mark.parametrize("fmt", ["f16,page=16", "int8,page=16", "kivi4,page=16,recent=0"])
def test_c65_heads_and_tokens_of_equal_number(fmt: str) -> None:
    cache = make(q_heads=16, kv_heads=16, head_dim=64, format=fmt)
    rng = np.random.default_rng(10)
    k, v = random_rows(rng, cache, 16)
    seq = cache.new_sequence()
    # Heads first in memory, seen tokens first: the strides say so.
    cache.append(seq, np.ascontiguousarray(k.swapaxes(0, 1)).swapaxes(0, 1), v)
    plain = cache.new_sequence()
    cache.append(plain, k, v)
    assert cache.dump(seq) == cache.dump(plain)
    q = rng.standard_normal((1, 16, 64)).astype(np.float16)
    want, _ = kv.reference.attention(q, *cache.read(seq))
    assert relative(cache.attend(q, [seq])[0], want) < 2e-3


def test_c50_any_strides() -> None:
    """Stride 0, a transposed array and a last stride of 2 give what contiguous copies give."""
    cache = make(q_heads=2, kv_heads=2, head_dim=64)
    rng = np.random.default_rng(11)
    base = rng.standard_normal((33, 1, 64)).astype(np.float16)
    wide = rng.standard_normal((33, 2, 128)).astype(np.float16)
    forms = [
        np.broadcast_to(base, (33, 2, 64)),
        wide[..., ::2],
        wide.transpose(1, 0, 2)[:, :, :64].transpose(1, 0, 2),
    ]
    for x in forms:
        a, b = cache.new_sequence(), cache.new_sequence()
        cache.append(a, x, x)
        cache.append(b, x.copy(), x.copy())
        assert cache.dump(a) == cache.dump(b)
