"""CUDA C++ kernels: synchronisation, matrix instructions, Hopper features."""

from __future__ import annotations

import numpy as np
import pytest
from simrun import KERNELS, In, Out, run
from test_kernels import BOTH, RNG, f32, ok, zeros

TENSOR = KERNELS / "tensor.sm_80.ptx"


def sync(arch):
    """The kernels of sync.cu."""
    return KERNELS / f"sync.{arch}.ptx"


@BOTH
def test_histogram(tmp_path, arch):
    x = RNG.integers(0, 64, 5000).astype(np.int32)
    p = sync(arch)
    (o,) = ok(run(tmp_path, p, "histogram", "4", "128", [In(x), zeros(64, np.int32, True), "i32:5000"]))
    np.testing.assert_array_equal(o, np.bincount(x, minlength=64))


@BOTH
def test_atomics(tmp_path, arch):
    args = [
        zeros(6, np.int32, True),
        zeros(1, np.uint64, True),
        zeros(1, np.float32, True),
        zeros(1, np.float64, True),
    ]
    o, w, f, d = ok(run(tmp_path, sync(arch), "atomics", "4", "64", args))
    t = np.arange(256)
    assert list(o) == [-255, 255, 0xFFFF, np.bitwise_xor.reduce(t), 256 % 10, -3 * 256]
    assert w[0] == t.sum() << 20 and f[0] == 128 and d[0] == 64


@BOTH
def test_last_block(tmp_path, arch):
    x = f32(5000)
    args = [In(x), zeros(10), zeros(1), "i32:5000"]
    _, o = ok(run(tmp_path, sync(arch), "last_block", "10", "32", args))
    np.testing.assert_allclose(o[0], x.sum(), rtol=1e-4, atol=1e-4)


@BOTH
def test_grid_barrier(tmp_path, arch):
    args = [zeros(1, np.int32, True), zeros(20, np.int32), zeros(20, np.int32)]
    p = sync(arch)
    _, _, o = ok(run(tmp_path, p, "grid_barrier", "20", "1", args))
    np.testing.assert_array_equal(o, (np.arange(20) + 1) % 20 * 3)


@BOTH
@pytest.mark.parametrize("check", ["all", "none"])
def test_lane_lock(tmp_path, arch, check):
    args = [zeros(1, np.int32, True), zeros(1, np.int32, True)]
    p = sync(arch)
    _, o = ok(run(tmp_path, p, "lane_lock", "2", "64", args, f"--check={check}"))
    assert o[0] == 128


@BOTH
def test_votes(tmp_path, arch):
    x = RNG.integers(0, 8, 32).astype(np.int32)
    (o,) = ok(run(tmp_path, sync(arch), "votes", "1", "32", [In(x), zeros((32, 6), np.uint32)]))
    t = np.arange(32)
    assert np.all(o[:, 0] == (1 << t[x > 3]).sum())
    assert np.all(o[:, 1] == int(np.any(x == 5)) + 2)
    np.testing.assert_array_equal(o[:, 2], [(1 << t[x == v]).sum() for v in x])
    assert np.all(o[:, 3] == x.sum()) and np.all(o[:, 4] == x.max())
    up = np.where(t >= 3, x[np.maximum(t - 3, 0)], x)
    np.testing.assert_array_equal(o[:, 5], up + 100 * x[t // 16 * 16 + x % 16])


@BOTH
def test_tiles_with_their_own_masks(tmp_path, arch):
    x = RNG.integers(0, 99, 64).astype(np.int32)
    (o,) = ok(run(tmp_path, sync(arch), "tiles", "1", "64", [In(x), zeros(64, np.int32)]))
    sums = x.reshape(8, 8).sum(1).repeat(8)
    np.testing.assert_array_equal(o, sums + 1000 * x[np.arange(64) ^ 3])


@BOTH
def test_cooperative_grid(tmp_path, arch):
    args = [zeros(256, np.int32), zeros(256, np.int32)]
    _, o = ok(run(tmp_path, sync(arch), "cooperative", "4", "64", args))
    np.testing.assert_array_equal(o, np.arange(256)[::-1] * 5)


@BOTH
def test_barrier_reductions(tmp_path, arch):
    x = RNG.integers(0, 7, 128).astype(np.int32)
    (o,) = ok(run(tmp_path, sync(arch), "barrier_red", "1", "128", [In(x), zeros(128, np.int32)]))
    assert np.all(o == (x > 4).sum() + 1000)


@BOTH
def test_named_barriers(tmp_path, arch):
    x = RNG.integers(0, 99, (5, 32)).astype(np.int32)
    args = [In(x), zeros((5, 32), np.int32), "i32:5"]
    (o,) = ok(run(tmp_path, sync(arch), "named_barriers", "1", "64", args))
    np.testing.assert_array_equal(o, 2 * x[:, ::-1])


def test_equal_values_are_a_note(tmp_path):
    p = KERNELS / "sync.sm_80.ptx"
    r = run(tmp_path, p, "same_values", "2", "64", [zeros(1, np.int32)])
    assert r.code == 0 and "note" in r.stderr and r.outputs[0][0] == 5
    r = run(tmp_path, p, "same_values", "2", "64", [zeros(1, np.int32)], "--check=race=strict")
    assert r.violation()[1] == "race"


@pytest.mark.parametrize("model", ["exact", "a100", "h100", "ada"])
def test_gemm_f16(tmp_path, model):
    a, b = f32(32, 128).astype(np.float16), f32(16, 128).astype(np.float16)
    args = [In(a), In(b), zeros((32, 16)), "i32:16", "i32:128"]
    (o,) = ok(run(tmp_path, TENSOR, "gemm_f16", "2,2", "32", args, f"--mma-model={model}"))
    np.testing.assert_allclose(o, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-4, atol=1e-4)


def test_mma_s8(tmp_path):
    a, b = RNG.integers(-128, 128, (16, 32)).astype(np.int8), RNG.integers(0, 256, (8, 32)).astype(np.uint8)
    (o,) = ok(
        run(
            tmp_path,
            TENSOR,
            "mma_s8",
            "1",
            "32",
            [In(a), In(b), zeros((16, 8), np.int32)],
        )
    )
    np.testing.assert_array_equal(o, a.astype(np.int32) @ b.astype(np.int32).T)


def test_mma_tf32(tmp_path):
    a, b = f32(16, 8), f32(8, 8)
    (o,) = ok(run(tmp_path, TENSOR, "mma_tf32", "1", "32", [In(a), In(b), zeros((16, 8))]))
    cut = [(v.view(np.uint32) & 0xFFFFE000).view(np.float32) for v in (a, b)]
    np.testing.assert_allclose(o, cut[0] @ cut[1].T, rtol=1e-5, atol=1e-5)


def test_mma_f64(tmp_path):
    a, b = RNG.standard_normal((8, 4)), RNG.standard_normal((8, 4))
    args = [In(a), In(b), zeros((8, 8), np.float64)]
    (o,) = ok(run(tmp_path, TENSOR, "mma_f64", "1", "32", args))
    np.testing.assert_allclose(o, a @ b.T, rtol=1e-14)


def test_mma_sparse(tmp_path):
    values = f32(16, 8, 2).astype(np.float16)
    dense = np.zeros((16, 8, 4), np.float16)
    meta = np.zeros((16, 2), np.uint16)
    for r in range(16):
        for g in range(8):
            i, j = sorted(RNG.choice(4, 2, replace=False))
            dense[r, g, [i, j]] = values[r, g]
            meta[r, g // 4] |= (i | j << 2) << (4 * (g % 4))
    b = f32(8, 32).astype(np.float16)
    args = [In(values), In(meta), In(b), zeros((16, 8))]
    (o,) = ok(run(tmp_path, TENSOR, "mma_sparse", "1", "32", args))
    expected = dense.reshape(16, 32).astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-4)


def test_wmma(tmp_path):
    a, b = f32(32, 64).astype(np.float16), f32(32, 64).astype(np.float16)
    args = [In(a), In(b), zeros((32, 32)), "i32:32", "i32:64"]
    (o,) = ok(run(tmp_path, TENSOR, "wmma_f16", "2,2", "32", args))
    np.testing.assert_allclose(o, 0.5 * (a.astype(np.float32) @ b.astype(np.float32).T), rtol=1e-4, atol=1e-4)


def test_movmatrix(tmp_path):
    x = RNG.integers(0, 2**16, (8, 8)).astype(np.uint16)
    (o,) = ok(run(tmp_path, TENSOR, "transpose", "1", "32", [In(x), zeros((8, 8), np.uint16)]))
    np.testing.assert_array_equal(o, x.T)


HOPPER = KERNELS / "hopper.sm_90a.ptx"


def test_bulk_pipeline(tmp_path):
    x = f32(11, 256)
    (o,) = ok(run(tmp_path, HOPPER, "bulk_pipeline", "1", "96", [In(x), zeros((11, 256)), "i32:11"]))
    np.testing.assert_array_equal(o, 2 * x)


def test_tensor_tile(tmp_path):
    x = f32(30, 128).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.zeros_like(x))
    tail = ";dtype=f16;dims=128x30;strides=256;box=64x16;swizzle=128B"
    args = [f"tmap:{tmp_path}/x.npy{tail}", f"tmap:{tmp_path}/y.npy:out{tail}"]
    ok(run(tmp_path, HOPPER, "tensor_tile", "2,2", "64", args))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x + np.float16(1))


def test_cluster_ring(tmp_path):
    x = RNG.integers(0, 99, (8, 64)).astype(np.int32)
    (o,) = ok(run(tmp_path, HOPPER, "cluster_ring", "8", "64", [In(x), zeros((8, 64), np.int32)]))
    neighbour = [b // 4 * 4 + (b + 1) % 4 for b in range(8)]
    np.testing.assert_array_equal(o, x[neighbour][:, ::-1])


@pytest.mark.parametrize("model", ["exact", "h100"])
def test_wgmma(tmp_path, model):
    a, b = f32(64, 128).astype(np.float16), f32(8, 128).astype(np.float16)
    args = [In(a), In(b), zeros((64, 8)), "i32:128"]
    (o,) = ok(run(tmp_path, HOPPER, "wgmma_f16", "1", "128", args, f"--mma-model={model}"))
    np.testing.assert_allclose(o, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-4, atol=1e-4)


def test_mbarrier_tokens(tmp_path):
    x = RNG.integers(0, 99, 64).astype(np.int32)
    (o,) = ok(run(tmp_path, HOPPER, "mbarrier_tokens", "1", "64", [In(x), zeros(64, np.int32)]))
    np.testing.assert_array_equal(o, x[::-1])


def test_bulk_reduce(tmp_path):
    x = f32(3, 64)
    y = f32(64)
    (o,) = ok(run(tmp_path, HOPPER, "bulk_reduce", "3", "64", [In(x), Out(y, True)]))
    np.testing.assert_allclose(o, y + x.sum(0), rtol=1e-5, atol=1e-5)
