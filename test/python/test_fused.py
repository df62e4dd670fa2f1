"""Fused CPU kernels, run by kv-run, against the reference and the oracle."""

import numpy as np
import pytest
from arrays import from_npy
from cache_point import CachePoint
from kvrun import kv_run, needs_kv_run
from oracle import reference as ref

pytestmark = needs_kv_run

KEYS = ["f16", "f32", "i8:channel", "i8:token:sym", "i8:head", "i4:channel:g16", "i4:token:g8:sf32"]
KEYS += ["i4:channel:sym:sbf16", "i8:tensor:sym", "i4:head"]
VALUES = ["i4:token:g16", "i8:token", "f16", "i8:head:sym", "i4:channel:g16:sym", "f32", "i8:tensor:sym"]


def bounds(point: CachePoint) -> tuple[float, float]:
    """interface.md's bounds: relative error of out, absolute scale of the LSE's."""
    kinds = {point.dtype, point.key.split(":")[0], point.value.split(":")[0]}
    if kinds == {"f32"}:
        return 1e-5, 1e-5
    return (1.5e-2, 1e-2) if "bf16" in kinds else (2e-3, 1e-3)


def relative(a, b) -> float:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    size = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / (size if size else 1))


def check_fused(point: CachePoint) -> None:
    """Fused against the oracle on the decoded cache, sequence by sequence."""
    point.build()
    out, lse, k, v, _ = kv_run(point.text, "f", point.args, 5)
    models, want, want_lse = point.expected()
    # What the storage kernels coded is bitwise what the formulas say.
    for s, model in enumerate(models):
        for got, x in zip((k, v), model.data, strict=True):
            np.testing.assert_array_equal(got[s, :, : len(model)].swapaxes(0, 1), x)
    out = from_npy(out, point.dtype)
    out_bound, lse_bound = bounds(point)
    start = 0
    for n in point.q_lens:
        rows = slice(start, start + n)
        start += n
        assert relative(out[rows], want[rows]) <= out_bound
        a, b = lse[rows].astype(np.float64), want_lse[rows]
        np.testing.assert_array_equal(np.isneginf(a), np.isneginf(b))
        seen = np.isfinite(b)
        assert (np.abs(a[seen] - b[seen]) <= lse_bound * np.maximum(1, np.abs(b[seen]))).all()
        assert not out[rows][~seen].any()


def random_point(seed: int) -> CachePoint:
    rng = np.random.default_rng(500 + seed)
    pick = rng.choice
    page = int(pick([1, 2, 8, 16, 32, 64]))
    key = str(pick([k for k in KEYS if ":g" not in k or "token" in k or page >= 16]))
    value = str(pick([v for v in VALUES if ":g" not in v or "token" in v or page >= 16]))
    attrs, kwargs = [], {}
    if rng.random() < 0.3:
        left = int(rng.integers(0, 40))
        attrs.append(f"window = #kvcache.window<left = {left}>")
        kwargs["window"] = left + 1
    if rng.random() < 0.2:
        attrs.append("softcap = 3.0")
        kwargs["softcap"] = 3.0
    if rng.random() < 0.2:
        attrs.append("scale = 0.2")
        kwargs["scale"] = 0.2
    group, kv = int(pick([1, 3, 4, 5, 8, 16])), int(pick([1, 2]))
    if rng.random() < 0.2:
        attrs.append("alibi = array<f32>")
        kwargs["alibi_slopes"] = ref.alibi_slopes(kv * group)
    lengths = [int(pick([0, 1, page, page + 1, 3 * page, int(rng.integers(1, 300))])) for _ in range(3)]
    return CachePoint(
        key,
        value,
        page,
        lengths,
        sinks=int(pick([0, 0, 1, 5])),
        recent=int(pick([0, 0, 3, 40])),
        kv=kv,
        group=group,
        d=int(pick([64, 72, 80, 96, 128])),
        dv=int(pick([64, 80, 128])),
        dtype=str(pick(["f16", "f16", "bf16", "f32"])),
        q_lens=[int(rng.integers(0, 4)) for _ in lengths] if rng.random() < 0.3 else None,
        attrs=attrs,
        kwargs=kwargs,
        steps=1,
        lists=bool(rng.random() < 0.2),
        seed=seed,
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_points(seed):
    check_fused(random_point(seed))


def test_fused_equals_reference_on_the_same_arrays():
    point = CachePoint("i4:channel:g16", "i4:token:g16", 32, [0, 33, 200], recent=16, group=4)
    point.build()
    fused = kv_run(point.text, "f", point.args, 5)
    plain = kv_run(point.text, "f", point.args, 5, "--no-fuse")
    assert relative(fused[0], plain[0]) <= 2e-3
    np.testing.assert_allclose(fused[1], plain[1], rtol=1e-3, atol=1e-3)
    for a, b in zip(fused[2:], plain[2:], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_queries_of_rank_4(layout):
    """[seq, head, query, d] and [seq, query, head, d] against the flat rows."""
    point = CachePoint("i8:channel", "i8:token", 16, [40, 7], group=2, q_lens=[3, 3], kv=2)
    point.build()
    want, want_lse, *_ = kv_run(point.text, "f", point.args, 5)
    shape = (2, 3, 4)
    to = (0, 2, 1) if layout == "hnd" else (0, 1, 2)
    q = point.args[0].reshape(*shape, 32).transpose(*to, 3)
    dims = "2x4x3" if layout == "hnd" else "2x3x4"
    text = point.text.replace("tensor<6x4x32xf16>", f"tensor<{dims}x32xf16>")
    text = text.replace("tensor<6x4xf32>", f"tensor<{dims}xf32>").replace(
        " q_indptr(%qi : tensor<3xi32>)", ""
    )
    text = text.replace("bottom_right>}", f"bottom_right>, layout = #kvcache.layout<{layout}>}}")
    out, lse, *_ = kv_run(text, "f", [q, *point.args[1:]], 5)
    np.testing.assert_array_equal(out, want.reshape(*shape, 32).transpose(*to, 3))
    np.testing.assert_array_equal(lse, want_lse.reshape(shape).transpose(to))


def test_what_no_kernel_computes_runs_as_loops_with_a_warning():
    point = CachePoint("f16", "f16", 16, [20], group=1)
    point.build()
    text = point.text.replace("f(%q", "f(%s: tensor<2xf32>, %q")
    text = text.replace(
        "q_indptr(%qi : tensor<2xi32>)", "q_indptr(%qi : tensor<2xi32>) sink_logits(%s : tensor<2xf32>)"
    )
    sinks = np.float32([0.5, 1.0])
    out, lse, *_ = kv_run(text, "f", [sinks, *point.args], 5)
    want, want_lse = ref.attention(point.q, point.k[0], point.v[0], sink_logits=sinks)
    assert relative(out, want) <= 2e-3
    np.testing.assert_allclose(lse, want_lse, rtol=1e-3)
