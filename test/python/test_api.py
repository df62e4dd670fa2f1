"""The package's calls: results, frameworks, and what each says to a wrong argument."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest
from caches import fill, make, means, random_rows

import kvcache as kv
from kvcache import _native


class Foreign:
    """An array of a framework that only speaks DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_through_dlpack() -> None:
    cache = make(head_dim=64, kv_heads=2, q_heads=2)
    k, v = random_rows(np.random.default_rng(0), cache, 20)
    a, b = cache.new_sequence(), cache.new_sequence()
    cache.append(a, k, v)
    cache.append(b, Foreign(k), Foreign(v))
    assert cache.dump(a) == cache.dump(b)
    # Strides survive the trip.
    c = cache.new_sequence()
    cache.append(c, Foreign(np.ascontiguousarray(k.swapaxes(0, 1)).swapaxes(0, 1)), Foreign(v))
    assert cache.dump(a) == cache.dump(c)
    out, lse = cache.attend(Foreign(k[:1]), [a])
    assert isinstance(out, np.ndarray) and isinstance(lse, np.ndarray)


def test_bfloat16_arrays() -> None:
    cache = make(head_dim=64, dtype="bfloat16", format="int8")
    k, v = random_rows(np.random.default_rng(1), cache, 70)
    assert k.dtype == ml_dtypes.bfloat16
    seq = cache.new_sequence()
    cache.append(seq, k, v)
    out, lse = cache.attend(k[:1], [seq])
    assert out.dtype == ml_dtypes.bfloat16 and lse.dtype == np.float32
    with pytest.raises(ValueError, match="k has dtype float16, expected bfloat16"):
        cache.append(seq, k.astype(np.float16), v)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_torch_arrays(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    cache = make(head_dim=64, dtype=dtype, format={"bfloat16": "bf16"}.get(dtype, "f16"))
    x = torch.randn(10, 1, 64).to(getattr(torch, dtype)).requires_grad_()
    seq = cache.new_sequence()
    cache.append(seq, x, x)
    out, lse = cache.attend(x[:1], [seq])
    assert out.dtype == x.dtype and lse.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_jax_arrays(dtype: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    cache = make(head_dim=64, dtype=dtype, format={"bfloat16": "bf16"}.get(dtype, "f16"))
    x = jnp.ones((10, 1, 64), dtype)
    seq = cache.new_sequence()
    cache.append(seq, x, x)
    out, lse = cache.attend(x[:1], [seq])
    assert out.dtype == x.dtype and type(lse) is type(x)
    assert (np.asarray(out, np.float32) == 1).all()


def _spec(**change) -> kv.AttentionSpec:
    return kv.AttentionSpec(**{"q_heads": 2, "kv_heads": 1, "head_dim": 64, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_heads": 0}, "q_heads is 0, expected 1 or more"),
        ({"q_heads": 2.5}, "q_heads is 2.5, expected an integer"),
        ({"kv_heads": True}, "kv_heads is True, expected an integer"),
        ({"kv_heads": 3, "q_heads": 4}, "4 query heads cannot share 3 key/value heads"),
        ({"dtype": "float64"}, "dtype is 'float64', expected 'float16', 'bfloat16' or 'float32'"),
        ({"format": 4}, "format is 4, expected a string"),
        ({"format": "kivi5"}, "'kivi5' is not a preset"),
        ({"format": "key=i4:channel:g48"}, "g48"),
        ({"window": 0}, "window is 0, expected 1 or more"),
        ({"window": -3}, "window is -3, expected 1 or more"),
        ({"softcap": 0}, "softcap 0; expected a positive number"),
        ({"softcap": "x"}, "softcap is 'x', expected a number"),
        ({"scale": float("nan")}, "scale nan; expected a finite number"),
        ({"alibi": [1.0]}, "expected True, False or 2 finite slopes"),
        ({"causal": 1}, "causal is 1, expected True or False"),
    ],
)
def test_specs_say_what_is_wrong(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        _spec(**change)
    assert message in str(error.value)


def test_caches_say_what_is_wrong() -> None:
    cache = make(head_dim=64, kv_heads=2, q_heads=4, capacity=48, format="int8,page=16")
    seq = cache.new_sequence()
    k, v = random_rows(np.random.default_rng(2), cache, 20)
    cache.append(seq, k, v)
    before = cache.dump(seq), cache.stats()
    q = np.zeros((1, 4, 64), np.float16)
    nan = k.copy()
    nan[7, 1, 3] = np.nan
    wrong = [
        (lambda: cache.append(seq, k[:, :1], v), "k has shape [20, 1, 64], expected [tokens, 2, 64]"),
        (
            lambda: cache.append(seq, k, v[:3]),
            "v has shape [3, 2, 64], expected [20, 2, 64] (as many tokens as k)",
        ),
        (lambda: cache.append(seq, k.astype(np.float32), v), "k has dtype float32, expected float16"),
        (lambda: cache.append(seq, "text", v), "k is a str, expected a NumPy array"),
        (lambda: cache.append(seq, nan, v), "k[7, 1, 3] is nan, expected finite numbers"),
        (lambda: cache.append(seq, k, nan), "v[7, 1, 3] is nan, expected finite numbers"),
        (lambda: cache.append(9, k, v), "there is no sequence 9, 1 were made so far"),
        (lambda: cache.append("a", k, v), "sequence is 'a', expected an integer"),
        (
            lambda: cache.attend(q, [seq, seq]),
            "q has shape [1, 4, 64], expected [2, 4, 64] (2 query rows for 2",
        ),
        (lambda: cache.attend(q, [seq], [1, 1]), "q_lens has 2 entries, expected one per sequence (1)"),
        (lambda: cache.attend(q, [seq], [-1]), "q_lens is -1, expected 0 or more"),
        (lambda: cache.attend(q, seq), "seqs is 0, expected a list with one entry per sequence"),
        (lambda: cache.attend(q, [5]), "there is no sequence 5"),
        (lambda: cache.truncate(seq, 21), "cannot truncate to 21 tokens: sequence 0 has 20"),
        (lambda: cache.truncate(seq, -1), "length is -1, expected 0 or more"),
        (lambda: cache.read(3), "there is no sequence 3"),
        (lambda: kv.PagedCache(cache.spec, 0), "capacity_tokens is 0, expected 1 or more"),
        (lambda: kv.PagedCache("f16", 10), "spec is a str, expected a kvcache.AttentionSpec"),
        (lambda: kv.PagedCache(cache.spec, 10, device="tpu"), "device is 'tpu', expected 'cpu'"),
        (lambda: kv.PagedCache(cache.spec, 10, k_scale=2.0), "has no static scale ('tensor')"),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError) as error:
            call()
        assert message in str(error.value)
        assert (cache.dump(seq), cache.stats()) == before
    with pytest.raises(
        kv.CacheFull, match="appending 40 tokens needs 2 more pages of 16 tokens, 1 of 3 are free"
    ):
        cache.append(seq, np.tile(k, (2, 1, 1)), np.tile(v, (2, 1, 1)))
    assert (cache.dump(seq), cache.stats()) == before
    with pytest.raises(kv.DeviceError, match="cuda"):
        kv.PagedCache(cache.spec, 10, device="cuda")


@pytest.mark.parametrize(
    "fmt", ["key=i8:channel:asym,value=f32,page=16", "key=f16,value=f32,page=16,sinks=16"]
)
def test_values_that_could_overflow_are_refused(fmt: str) -> None:
    """Beyond the f16 scale or element; sinks included, so that sealing cannot fail."""
    cache = make(format=fmt, dtype="float32")
    seq = cache.new_sequence()
    x = np.zeros((3, 1, 8), np.float32)
    big = x.copy()
    big[1] = 1e6
    cache.append(seq, x, big)
    with pytest.raises(ValueError, match=r"token 1 \(largest \|k\| 1e\+06, .*use wider scales"):
        cache.append(seq, big, x)
    assert cache.length(seq) == 3


def test_static_scales() -> None:
    spec = _spec(kv_heads=2, format="key=i8:tensor:sym,value=i8:tensor:sym,page=16")
    for scale in (0.25, [0.25, 0.5]):
        cache = kv.PagedCache(spec, 64, k_scale=scale, v_scale=np.float32(0.5))
        seq = cache.new_sequence()
        x = np.full((16, 2, 64), 3.3, np.float16)
        cache.append(seq, x, x)
        k, v = cache.read(seq)
        steps = np.broadcast_to(np.asarray(scale, np.float32), 2)
        assert np.allclose(k[0, :, 0], np.rint(np.float32(x[0, 0, 0]) / steps) * steps)
        assert (v == 3.5).all()
    for bad in ([1, 2, 3], -1.0, float("nan"), "x"):
        with pytest.raises(ValueError, match="k_scale"):
            kv.PagedCache(spec, 64, k_scale=bad)


def test_statistics() -> None:
    cache = make(head_dim=64, format="int8,page=16", capacity=160)
    assert cache.stats()["bytes_per_token"] == 0
    seq = cache.new_sequence()
    cache.append(seq, *random_rows(np.random.default_rng(3), cache, 40))
    cache.fork(seq)
    s = cache.stats()
    assert s["pages"] == {"open": 1, "sealed": 2, "free": 7}
    assert s["stored_tokens"] == 40 and s["sequence_tokens"] == 80 and s["shared_pages"] == 3
    assert s["bytes_held"] == 2 * s["sealed_page_bytes"] + s["open_page_bytes"]
    assert s["bytes_per_token"] == s["bytes_held"] / 40
    assert s["wasted_bytes"] == 8 * 2 * 64 * 2


def test_formats_are_values() -> None:
    f = kv.Format("kivi4,page=128,sinks=4")
    assert (f.page, f.sinks, f.recent) == (128, 4, 128)
    assert f == kv.Format(str(f)) and hash(f) == hash(kv.Format(str(f)))
    assert "bytes per token" in f.describe() and "72" in f.describe(72)
    assert kv.Format("f16") != f


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_two_of_four(axis: int) -> None:
    x = np.random.default_rng(4).standard_normal((8, 12, 16)).astype(np.float16)
    values, metadata = kv.sparsify(x, "2of4", axis)
    assert values.shape[axis] == x.shape[axis] // 2 and metadata.shape[axis] == x.shape[axis] // 4
    dense = kv.densify(values, metadata, axis=axis)
    groups = np.moveaxis(x, axis, -1).reshape(-1, 4)
    kept = np.moveaxis(dense, axis, -1).reshape(-1, 4)
    for g, d in zip(groups, kept, strict=True):
        order = np.argsort(-np.abs(g), kind="stable")
        assert (d[order[:2]] == g[order[:2]]).all() and not d[order[2:]].any()
    assert set(np.unique(metadata)) == {4, 8, 9, 12, 13, 14}
    with pytest.raises(ValueError, match="10 elements along axis -1, expected a multiple of 4"):
        kv.sparsify(np.zeros((2, 10)))


def test_a_forked_child_works() -> None:
    """Threads do not survive fork(): the child makes its own and uses the parent's caches."""
    _native.set_num_threads(3)
    cache = make(head_dim=64, format="int8,page=16", capacity=8192)
    seq = fill(cache, 5000)
    want = means_as_bytes(cache, seq)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = means_as_bytes(cache, seq) == want
            fill(cache, 600, seq=seq)
            other = make(head_dim=64, format="f16,page=16")
            status = 0 if same and means(other, fill(other, 3)) == [1] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert means_as_bytes(cache, seq) == want
    _native.set_num_threads(0)


def means_as_bytes(cache: kv.PagedCache, seq: int) -> bytes:
    """The bits of the output of a fixed query."""
    q = np.full((1, cache.spec.q_heads, cache.spec.head_dim), 0.5, np.float16)
    return cache.attend(q, [seq])[0].tobytes()
