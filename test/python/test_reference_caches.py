"""Caches on our own pages: append, seal, read and attention against the oracle."""

import numpy as np
import pytest
from arrays import EPS, error, from_npy
from cache_point import CachePoint
from kvrun import kv_run, needs_kv_run
from oracle import reference as ref

pytestmark = needs_kv_run

KEYS = ["f16", "bf16", "f32", "i8:channel", "i8:token:sym", "i8:head", "i4:channel:g16", "i4:token:g8:sf32"]
KEYS += ["i4:channel:sym:sbf16", "i8:tensor", "i8:channel:g8:sym:sf32", "i4:head"]
VALUES = ["i4:token:g16", "i8:token", "f16", "i8:head:sym", "i4:channel:g16:sym", "f32", "bf16"]
VALUES += ["i8:tensor:sym"]


def check(point: CachePoint, *flags: str, out_error=None, lse_error=1e-5):
    """Runs a point; reads must be bitwise the oracle's, attention within bounds."""
    point.build()
    out, lse, k, v, lengths = kv_run(point.text, "f", point.args, 5, *flags)
    models, want, want_lse = point.expected()
    np.testing.assert_array_equal(lengths, point.lengths)
    for s, model in enumerate(models):
        n = len(model)
        np.testing.assert_array_equal(k[s, :, :n].swapaxes(0, 1), model.data[0])
        np.testing.assert_array_equal(v[s, :, :n].swapaxes(0, 1), model.data[1])
        assert not k[s, :, n:].any() and not v[s, :, n:].any()
    assert error(from_npy(out, point.dtype), want) <= (out_error or EPS[point.dtype])
    assert error(lse, want_lse) <= lse_error


@pytest.mark.parametrize("seed", range(24))
def test_random_points(seed):
    rng = np.random.default_rng(100 + seed)
    pick = rng.choice
    page = int(pick([1, 2, 4, 8, 16, 32]))
    key = str(pick([k for k in KEYS if ":g" not in k or "token" in k or page >= 16]))
    value = str(pick([v for v in VALUES if ":g" not in v or "token" in v or page >= 16]))
    lengths = [int(pick([0, 1, page - 1, page, page + 1, int(rng.integers(1, 90))])) for _ in range(3)]
    attrs, kwargs = [], {}
    if rng.random() < 0.3:
        left = int(rng.integers(0, 20))
        attrs.append(f"window = #kvcache.window<left = {left}>")
        kwargs["window"] = left + 1
    if rng.random() < 0.3:
        attrs.append("softcap = 3.0")
        kwargs["softcap"] = 3.0
    group = int(pick([1, 3]))
    if rng.random() < 0.3:
        attrs.append("alibi = array<f32>")
        kwargs["alibi_slopes"] = ref.alibi_slopes(2 * group)
    point = CachePoint(
        key,
        value,
        page,
        lengths,
        sinks=int(pick([0, 0, 1, 5])),
        recent=int(pick([0, 0, 3, 20])),
        group=group,
        d=int(pick([16, 32])),
        dv=int(pick([16, 32])),
        dtype=str(pick(["f16", "bf16", "f32"])),
        q_lens=[int(rng.integers(0, 4)) for _ in lengths] if rng.random() < 0.4 else None,
        attrs=attrs,
        kwargs=kwargs,
        lists=bool(rng.random() < 0.3),
        seed=seed,
    )
    check(point, "--no-fuse")
