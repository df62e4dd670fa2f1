"""Caches whose kernels are PTX, executed by the simulator with all checks on."""

from __future__ import annotations

import numpy as np
import pytest
from caches import DTYPES, relative
from points import bounds, make_model

import kvcache as kv

HEAD_DIMS = [64, 80, 96, 112, 128, 192, 256]


def _spec(rng: np.random.Generator) -> kv.AttentionSpec:
    """Anything that PTX targets accept in this build."""
    page = int(rng.choice([16, 32, 64, 128]))
    group = rng.choice(["", ":g16", f":g{page}"])
    dtype = str(rng.choice(["float16", "float16", "bfloat16"]))
    own = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    key = rng.choice([own, f"i8:channel{group}", f"i4:channel{group}:sym:sf32", f"i4:channel{group}:sbf16"])
    value = rng.choice([own, "i8:token", "i8:token:sym:sf32", "i4:token:g16", "i4:token:sbf16"])
    fmt = f"key={key},value={value},page={page}"
    fmt += rng.choice(["", ",recent=16", ",recent=40"]) + rng.choice(["", ",sinks=4"])
    kv_heads = int(rng.choice([1, 2]))
    return kv.AttentionSpec(
        q_heads=kv_heads * int(rng.choice([1, 3, 4, 8, 16])),
        kv_heads=kv_heads,
        head_dim=int(rng.choice(HEAD_DIMS)),
        value_dim=int(rng.choice(HEAD_DIMS)),
        dtype=dtype,
        format=fmt,
        window=int(rng.choice([1, 5, 100])) if rng.random() < 0.3 else None,
        softcap=30.0 if rng.random() < 0.2 else None,
        alibi=bool(rng.random() < 0.2),
        scale=0.2 if rng.random() < 0.2 else None,
    )


# Half of the points with the accumulation of a chip's own mma.
MODELS = ["", "", "", ",mma=a100", ",mma=ada", ",mma=h100"]


@pytest.mark.parametrize("point", range(120))
def test_random_caches_on_the_simulator(point: int) -> None:
    rng = np.random.default_rng([90210, point])
    spec = _spec(rng)
    device = ["sim:sm_80", "sim:sm_89", "sim:sm_90"][point % 3] + MODELS[point % len(MODELS)]
    cache = kv.PagedCache(spec, 2048, device=device)
    model = make_model(spec, *[np.ones(spec.kv_heads, np.float32)] * 2)
    dtype = DTYPES[spec.dtype]

    def rows(n: int):
        spread = np.exp(rng.standard_normal(spec.head_dim) * 0.7)
        k = (rng.standard_normal((n, spec.kv_heads, spec.head_dim)) * spread).astype(dtype)
        return k, rng.standard_normal((n, spec.kv_heads, spec.value_dim)).astype(dtype)

    seq = cache.new_sequence()
    for n in (int(rng.integers(1, 300)), 1, int(rng.integers(1, 40))):
        k, v = rows(n)
        cache.append(seq, k, v)
        model.append(k, v)
    fork = cache.fork(seq)
    forked = model.fork()
    cut = int(rng.integers(0, len(model)))
    cache.truncate(fork, cut)
    forked.truncate(cut)
    k, v = rows(20)
    cache.append(fork, k, v)
    forked.append(k, v)
    empty = cache.new_sequence()
    q = rng.standard_normal((3, spec.q_heads, spec.head_dim)).astype(dtype)
    out, lse = cache.attend(q, [seq, empty, fork])
    assert not out[1].any() and np.isneginf(lse[1]).all()
    bound, lse_bound = bounds(spec)
    for row, s, want in ((0, seq, model), (2, fork, forked)):
        stored = cache.read(s)
        for got, expected in zip(stored, want.data, strict=True):
            assert np.abs(got - expected).max() <= 3e-7 * np.abs(expected).max(), "decoded contents"
        exact, exact_lse = kv.reference.attention(
            q[row : row + 1],
            *stored,
            window=spec.window,
            softcap=spec.softcap,
            alibi_slopes=spec._slopes,
            scale=spec.scale,
        )
        assert relative(out[row], exact[0]) <= bound, str(spec)
        assert (np.abs(lse[row] - exact_lse[0]) <= lse_bound * np.maximum(1, np.abs(exact_lse[0]))).all()
        alone = cache.attend(q[row : row + 1], [s])
        assert (alone[0][0] == out[row]).all() and (alone[1][0] == lse[row]).all()


def test_what_the_simulator_device_refuses() -> None:
    spec = kv.AttentionSpec(q_heads=4, kv_heads=2, head_dim=64, format="kivi4,page=16,recent=16")
    cache = kv.PagedCache(spec, 64, device="sim:sm_86")
    seq = cache.new_sequence()
    x = np.ones((20, 2, 64), np.float16)
    cache.append(seq, x, x)
    before = cache.dump(seq), cache.stats()
    with pytest.raises(ValueError, match=r"q_lens\[0\] is 2, but kernels for GPUs take one query"):
        cache.attend(np.ones((2, 4, 64), np.float16), [seq], [2])
    bad = x.copy()
    bad[3, 1, 5] = np.inf
    with pytest.raises(ValueError, match=r"v\[3, 1, 5\] is inf"):
        cache.append(seq, x, bad)
    with pytest.raises(kv.CacheFull):
        cache.append(seq, np.tile(x, (4, 1, 1)), np.tile(x, (4, 1, 1)))
    assert (cache.dump(seq), cache.stats()) == before
    for device, message in (
        ("sim:sm_75", "'sm_75'"),
        ("sim:sm_80,mma=v100", "unknown mma model 'v100', expected exact, a100, ada or h100"),
        ("sim:", "''"),
        ("sim:x86-64", "is no GPU"),
        (3, "device is 3"),
    ):
        with pytest.raises(ValueError, match=message):
            kv.PagedCache(spec, 64, device=device)
    with pytest.raises(ValueError, match="72"):
        kv.PagedCache(
            kv.AttentionSpec(q_heads=1, kv_heads=1, head_dim=72, format="f16"), 64, device="sim:sm_80"
        )
