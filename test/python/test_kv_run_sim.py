"""kv-run --device=sim:sm_XX: attention runs as PTX in the simulator, the rest on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from cache_point import CachePoint
from kvrun import KvRunError, kv_run, needs_kv_run
from test_fused import bounds, relative

pytestmark = needs_kv_run

POINTS = [
    ("sim:sm_80", dict(key="i4:channel:g32", value="i4:token:g32", page=64, recent=16)),
    ("sim:sm_80,mma=a100", dict(key="i8:channel", value="i8:token", page=32, sinks=5)),
    ("sim:sm_90a", dict(key="f16", value="f16", page=64)),
    ("sim:sm_89", dict(key="i4:channel:g32", value="i8:token", page=32, dtype="bf16")),
]


def make(lengths=(0, 33, 200), **more) -> CachePoint:
    """A batch of three sequences, built."""
    key, value, page = more.pop("key"), more.pop("value"), more.pop("page")
    point = CachePoint(key, value, page, list(lengths), group=4, d=64, dv=64, steps=1, **more)
    point.build()
    return point


@pytest.mark.parametrize(("device", "what"), POINTS, ids=[d for d, _ in POINTS])
def test_equals_the_cpu(device, what):
    point = make(**what)
    got = kv_run(point.text, "f", point.args, 5, f"--device={device}")
    want = kv_run(point.text, "f", point.args, 5)
    out_bound, lse_bound = bounds(point)
    if point.dtype == "bf16":
        got[0], want[0] = ((a.astype(np.uint32) << 16).view(np.float32) for a in (got[0], want[0]))
    assert relative(got[0], want[0]) <= 2 * out_bound
    seen = np.isfinite(want[1])
    np.testing.assert_array_equal(np.isfinite(got[1]), seen)
    a, b = got[1][seen], want[1][seen]
    assert (np.abs(a - b) <= 2 * lse_bound * np.maximum(1, np.abs(b))).all()
    # The stored contents do not depend on who reads them.
    for a, b in zip(got[2:], want[2:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_refuses_formats_without_kernels_by_name():
    point = make(key="i8:head", value="f16", page=32)
    with pytest.raises(KvRunError, match="scale kind 'head' has no kernel on PTX targets yet"):
        kv_run(point.text, "f", point.args, 5, "--device=sim:sm_80")


def test_refuses_attention_on_tensors():
    q, k = "tensor<1x4x1x64xf16>", "tensor<1x4x8x64xf16>"
    text = (
        f"func.func @f(%q: {q}, %k: {k}) -> ({q}, tensor<1x4x1xf32>) {{\n"
        f"  %o, %l = kvcache.attention %q, %k, %k : {q}, {k}, {k} -> {q}, tensor<1x4x1xf32>\n"
        f"  return %o, %l : {q}, tensor<1x4x1xf32>\n}}\n"
    )
    args = [np.zeros((1, 4, 1, 64), np.float16), np.zeros((1, 4, 8, 64), np.float16)]
    with pytest.raises(KvRunError, match="own pages with one list per sequence, not plain tensors"):
        kv_run(text, "f", args, 2, "--device=sim:sm_80")


def test_refuses_several_queries_per_sequence():
    point = make(q_lens=[1, 2, 1], **POINTS[0][1])
    with pytest.raises(KvRunError, match="sequence 1 has 2 queries, but kernels for GPUs take one"):
        kv_run(point.text, "f", point.args, 5, "--device=sim:sm_80")


def test_refuses_functions_without_attention_on_a_cache():
    text = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    with pytest.raises(KvRunError, match="'f' has no attention on a cache of ours"):
        kv_run(text, "f", [np.zeros(4, np.float32)], 1, "--device=sim:sm_80")


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("sim:sm_70", "sm_70"),
        ("sim:x86-64", "x86-64 is no GPU"),
        ("sim:sm_80,mma=b200", "mma=exact, a100, ada or h100"),
        ("cuda", "device 'cuda' cannot run here"),
    ],
)
def test_refuses_devices_by_name(device, why):
    point = make(**POINTS[0][1])
    with pytest.raises(KvRunError, match=why):
        kv_run(point.text, "f", point.args, 5, f"--device={device}")


def test_refuses_the_reference():
    point = make(**POINTS[0][1])
    with pytest.raises(KvRunError, match="--no-fuse runs the reference"):
        kv_run(point.text, "f", point.args, 5, "--device=sim:sm_80", "--no-fuse")
