"""Attention on tensors: the kernels, the reference and NumPy agree."""

import numpy as np
import pytest
from arrays import from_npy
from dense_point import DensePoint
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run
BOUND = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}


def deviation(a, b) -> float:
    """Largest difference over the largest number; non-finite ones must agree."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    return float(np.abs(a[finite] - b[finite]).max(initial=0) / max(np.abs(b[finite]).max(initial=0), 1e-3))


def check(point: DensePoint, *flags: str, env=None) -> None:
    out, lse = kv_run(point.text, "f", point.args, 2, *flags, env=env)
    want, want_lse = point.expected()
    assert deviation(from_npy(out, point.dtype), want) <= BOUND[point.dtype], point.text
    assert deviation(lse, want_lse) <= 1e-5, point.text


@pytest.mark.parametrize("seed", range(48))
def test_random_points(seed):
    point = DensePoint(seed)
    check(point, env={"KVCACHE_CPU": ("avx2", "v2")[seed % 8 == 1]} if seed % 4 == 1 else None)
    if seed % 4 == 0:
        check(point, "--no-fuse")
