"""wgmma.cu: warpgroup products in CUDA C++, and fragments shared by wmma and mma.sync."""

from __future__ import annotations

import numpy as np
import pytest
from mma_isa import Meta
from simrun import KERNELS, In, run
from test_kernels import f32, ok, zeros

WGMMA = KERNELS / "wgmma.sm_90a.ptx"
MODELS = pytest.mark.parametrize("model", ["exact", "h100"])


@MODELS
def test_both_operands_mn_major(tmp_path, model):
    ml = pytest.importorskip("ml_dtypes")
    a, b = (f32(48, 64).astype(ml.bfloat16) for _ in range(2))
    args = [In(a.view(np.uint16)), In(b.view(np.uint16)), zeros((64, 64)), "i32:48"]
    (o,) = ok(run(tmp_path, WGMMA, "wgmma_mn", "1", "128", args, f"--mma-model={model}"))
    want = -(a.astype(np.float64).T @ b.astype(np.float64))
    np.testing.assert_allclose(o, want, rtol=1e-4, atol=1e-4)


@MODELS
def test_fp8_from_registers(tmp_path, model):
    ml = pytest.importorskip("ml_dtypes")
    a, b = f32(64, 64).astype(ml.float8_e4m3fn), f32(8, 64).astype(ml.float8_e5m2)
    args = [In(a.view(np.uint8)), In(b.view(np.uint8)), zeros((64, 8))]
    (o,) = ok(run(tmp_path, WGMMA, "wgmma_fp8", "1", "128", args, f"--mma-model={model}"))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    # 13 fraction bits of the largest term, truncated, twice.
    np.testing.assert_allclose(o, want, atol=1e-5 if model == "exact" else 0.05)


@MODELS
def test_sparse_f16_accumulators(tmp_path, model):
    a, b = f32(64, 16).astype(np.float16), f32(8, 32).astype(np.float16)
    meta = Meta(16, 32)
    nibbles = meta.random(np.random.default_rng(2), 64, True)
    e = np.hstack([meta.registers(nibbles[16 * w : 16 * w + 16], 0) for w in range(4)])
    args = [In(a), In(b), In(e), zeros((64, 8), np.float16)]
    (o,) = ok(run(tmp_path, WGMMA, "wgmma_sparse", "1", "128", args, f"--mma-model={model}"))
    dense = np.zeros((64, 32))
    np.put_along_axis(dense, meta.columns(nibbles), a.astype(np.float64), 1)
    np.testing.assert_allclose(o.astype(np.float64), dense @ b.astype(np.float64).T, rtol=2e-3, atol=5e-3)


@MODELS
def test_wmma_fragments_in_mma(tmp_path, model):
    a, b = f32(16, 16).astype(np.float16), f32(16, 16).astype(np.float16)
    args = [In(a), In(b), zeros((16, 16))]
    (o,) = ok(run(tmp_path, WGMMA, "wmma_and_mma", "1", "32", args, f"--mma-model={model}"))
    want = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(o, want * np.where(np.arange(16) < 8, 0.5, 2.0)[:, None], rtol=1e-4, atol=1e-4)
