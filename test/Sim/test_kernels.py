"""CUDA C++ kernels compiled by nvcc: each equals NumPy, all checks on."""

from __future__ import annotations

import numpy as np
import pytest
from simrun import KERNELS, In, Out, run

RNG = np.random.default_rng(7)
BOTH = pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])


def f32(*shape):
    """Normal f32 values."""
    return RNG.standard_normal(shape).astype(np.float32)


def zeros(shape, dtype=np.float32, defined=False):
    """An output array."""
    return Out(np.zeros(shape, dtype), defined)


def ok(result):
    """The outputs of a run without violation."""
    assert result.code == 0, result.stderr
    return result.outputs


@BOTH
def test_saxpy(tmp_path, arch):
    x, y = f32(1000), f32(1000)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "saxpy", "4", "256", [In(x), Out(y, True), "f32:2.5", "i32:1000"]))
    np.testing.assert_allclose(o, 2.5 * x + y, rtol=1e-6, atol=1e-6)


@BOTH
def test_block_sum(tmp_path, arch):
    x = f32(1000)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "block_sum", "1", "256", [In(x), zeros(1), "i32:1000"]))
    np.testing.assert_allclose(o[0], x.sum(), rtol=1e-5, atol=1e-5)


@BOTH
def test_scan(tmp_path, arch):
    x = RNG.integers(-50, 50, 256).astype(np.int32)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "scan", "1", "256", [In(x), zeros(256, np.int32)]))
    np.testing.assert_array_equal(o, np.cumsum(x))


@BOTH
def test_matmul(tmp_path, arch):
    a, b = f32(32, 48), f32(48, 32)
    p = KERNELS / f"basic.{arch}.ptx"
    args = [In(a), In(b), zeros((32, 32)), "i32:32", "i32:48"]
    (o,) = ok(run(tmp_path, p, "matmul", "2,2", "16,16", args))
    np.testing.assert_allclose(o, a @ b, rtol=1e-4, atol=1e-4)


@BOTH
def test_collatz(tmp_path, arch):
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "collatz", "2", "64", [zeros(128, np.int32)]))

    def steps(n):
        c = 0
        while n != 1:
            n = 3 * n + 1 if n & 1 else n // 2
            c += 1
        return c

    np.testing.assert_array_equal(o, [steps(i + 1) for i in range(128)])


@BOTH
def test_recursion(tmp_path, arch):
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "recursion", "1", "64", [zeros(64, np.int32)]))
    fib = [0, 1]
    for _ in range(12):
        fib.append(fib[-1] + fib[-2])
    np.testing.assert_array_equal(o, [fib[i % 13] for i in range(64)])


@BOTH
def test_indirect_call(tmp_path, arch):
    which = RNG.integers(0, 3, 64).astype(np.int32)
    a, b = f32(64), f32(64)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "indirect", "1", "64", [In(which), In(a), In(b), zeros(64)]))
    np.testing.assert_array_equal(o, np.choose(which, [a + b, a * b, np.maximum(a, b)]))


@BOTH
def test_local_array(tmp_path, arch):
    idx = RNG.integers(0, 16, 64).astype(np.int32)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "local_array", "1", "64", [In(idx), zeros(64, np.int32)]))
    a = np.arange(16)[None, :] * np.arange(64)[:, None]
    a[np.arange(64), idx] = -7
    expected = sum(a[np.arange(64), (i + idx) & 15] * (i + 1) for i in range(16))
    np.testing.assert_array_equal(o, expected)


@BOTH
def test_wide_int(tmp_path, arch):
    n = 100
    a = RNG.integers(-(2**62), 2**62, n, dtype=np.int64)
    b = RNG.integers(-(2**40), 2**40, n, dtype=np.int64)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "wide_int", "2", "64", [In(a), In(b), zeros((n, 8), np.int64), f"i32:{n}"]))

    def signed(v):
        v &= 2**64 - 1
        return v - 2**64 if v >> 63 else v

    for i in range(n):
        x, y = int(a[i]), int(b[i])
        ux, uy = x % 2**64, y % 2**64
        q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        assert int(o[i, 0]) == signed(x * y)
        assert int(o[i, 1]) == q
        assert int(o[i, 2]) == x - q * y
        assert int(o[i, 3]) == (x * y) >> 64
        assert int(o[i, 4]) == signed(ux >> (y & 63))
        assert int(o[i, 5]) == bin(ux).count("1") + 1000 * (64 - uy.bit_length())
        assert int(o[i, 6]) == signed((ux * uy + ux) >> 64)
        assert int(o[i, 7]) == signed(int(f"{ux:064b}"[::-1], 2))


@BOTH
def test_bits(tmp_path, arch):
    a = RNG.integers(0, 2**32, 64, dtype=np.uint32)
    b = RNG.integers(0, 2**32, 64, dtype=np.uint32)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "bits", "1", "64", [In(a), In(b), zeros((64, 8), np.uint32)]))

    def s32(v):
        return v - 2**32 if v >> 31 else v

    for i in range(64):
        x, y = int(a[i]), int(b[i])
        pool = x.to_bytes(4, "little") + y.to_bytes(4, "little")
        assert int(o[i, 0]) == int.from_bytes(bytes([pool[5], pool[7], pool[1], pool[3]]), "little")
        assert int(o[i, 1]) == ((y << 32 | x) << 7 >> 32) % 2**32
        xb, yb = x.to_bytes(4, "little"), y.to_bytes(4, "little")
        assert int(o[i, 2]) == int.from_bytes(
            bytes(abs(p - q) for p, q in zip(xb, yb, strict=True)), "little"
        )
        s8 = [(p - 256 if p > 127 else p) * (q - 256 if q > 127 else q) for p, q in zip(xb, yb, strict=True)]
        assert int(o[i, 3]) == (sum(s8) + 11) % 2**32
        assert int(o[i, 4]) == x >> 5 & 0x3FF
        assert int(o[i, 5]) == (abs(s32(x) - s32(y)) + 3) % 2**32
        assert int(o[i, 6]) == x * y >> 32
        ffs = (x & -x).bit_length()
        assert int(o[i, 7]) == ffs + 100 * ((y | 1).bit_length() - 1)


@BOTH
def test_constant_poly(tmp_path, arch):
    x = f32(32)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "constant_poly", "1", "32", [In(x), zeros(32)]))
    np.testing.assert_allclose(o, np.polyval([2, -0.125, 0.25, -0.5, 1], x), rtol=1e-4, atol=1e-5)


@BOTH
def test_by_value_struct(tmp_path, arch):
    x, scale = f32(20), f32(4)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.zeros(20, np.float32))
    blob = np.zeros(40, np.uint8)
    blob[16:20] = np.frombuffer(np.int32(20).tobytes(), np.uint8)
    blob[20:36] = np.frombuffer(scale.tobytes(), np.uint8)
    blob.tofile(tmp_path / "p.bin")
    arg = f"struct:{tmp_path}/p.bin:0=ptr:{tmp_path}/x.npy,8=ptr:{tmp_path}/y.npy:out"
    ok(run(tmp_path, KERNELS / f"basic.{arch}.ptx", "by_value", "1", "32", [arg]))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x * np.tile(scale, 5))


@BOTH
def test_switch(tmp_path, arch):
    op = RNG.integers(0, 9, 64).astype(np.int32)
    x = f32(64)
    p = KERNELS / f"basic.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "switch_case", "1", "64", [In(op), In(x), zeros(64)]))
    cases = [
        x + 1,
        x * x,
        -x,
        np.sqrt(np.abs(x)),
        1 / x,
        np.floor(x),
        np.minimum(x, 0),
        x * 0 + 42,
        x * 0 + 42,
    ]
    np.testing.assert_allclose(o, np.choose(op, cases), rtol=1e-6)


@BOTH
def test_doubles(tmp_path, arch):
    x, y = RNG.standard_normal(64) * 3, RNG.standard_normal(64) * 3
    p = KERNELS / f"math.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "doubles", "1", "64", [In(x), In(y), zeros((64, 8), np.float64)]))
    expected = [x / y, np.sqrt(np.abs(x)), x * y + x, np.exp(x), np.floor(x) + np.ceil(y), np.sin(y)]
    for i, e in enumerate(expected):
        np.testing.assert_allclose(o[:, i], e, rtol=1e-14, atol=1e-15)
    assert np.all((o[:, 6] == 0) | (o[:, 6] >= np.spacing(np.abs(x + y)) * 0.49))
    np.testing.assert_array_equal(o[:, 7], np.trunc(x))


@BOTH
def test_floats(tmp_path, arch):
    x, y = f32(64), f32(64)
    p = KERNELS / f"math.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "floats", "1", "64", [In(x), In(y), zeros((64, 8))]))
    x64, y64 = x.astype(np.float64), y.astype(np.float64)
    np.testing.assert_array_equal(o[:, 0], x / y)
    exact = x64 + y64
    up = o[:, 1].astype(np.float64)
    assert np.all(up >= exact) and np.all(np.nextafter(o[:, 1], np.float32(-9e9)) < exact)
    fma = x64 * y64 + x64
    down = o[:, 2].astype(np.float64)
    assert np.all(down <= fma) and np.all(np.nextafter(o[:, 2], np.float32(9e9)) > fma)
    assert np.all(np.abs(o[:, 3].astype(np.float64)) <= np.abs(x64 * y64))
    np.testing.assert_array_equal(o[:, 4], np.sqrt(np.abs(x)))
    np.testing.assert_array_equal(o[:, 5], np.float32(1) / y)
    np.testing.assert_array_equal(o[:, 6], np.rint(x * np.float32(7)))
    np.testing.assert_array_equal(o[:, 7], np.clip(x, 0, 1))


@BOTH
def test_approx(tmp_path, arch):
    x = f32(64)
    p = KERNELS / f"math.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "approx", "1", "64", [In(x), zeros((64, 6))]))
    e = [np.exp2(x), np.log2(np.abs(x) + 1), np.sin(x), np.cos(x), 1 / np.sqrt(np.abs(x) + 1), x / 3]
    for i, v in enumerate(e):
        np.testing.assert_allclose(o[:, i], v, rtol=2e-6, atol=1e-6)


@BOTH
def test_halves(tmp_path, arch):
    x, y = f32(64, 2).astype(np.float16), f32(64, 2).astype(np.float16)
    p = KERNELS / f"math.{arch}.ptx"
    (o,) = ok(run(tmp_path, p, "halves", "1", "64", [In(x), In(y), zeros((64, 6, 2), np.float16)]))
    fma = (x.astype(np.float64) * y + x).astype(np.float16)
    e = [x + y, x * y, fma, np.maximum(x, y), -np.abs(x), np.clip(x - y, 0, 1)]
    for i, v in enumerate(e):
        np.testing.assert_array_equal(o[:, i], v)


@BOTH
def test_bfloats(tmp_path, arch):
    ml = pytest.importorskip("ml_dtypes")
    x, y = f32(64, 2).astype(ml.bfloat16), f32(64, 2).astype(ml.bfloat16)
    p = KERNELS / f"math.{arch}.ptx"
    args = [In(x.view(np.uint16)), In(y.view(np.uint16)), zeros((64, 3, 2), np.uint16)]
    (o,) = ok(run(tmp_path, p, "bfloats", "1", "64", args))
    r = o.view(ml.bfloat16)
    xf, yf = x.astype(np.float32), y.astype(np.float32)
    np.testing.assert_array_equal(r[:, 0], (xf * yf + xf).astype(ml.bfloat16))
    np.testing.assert_array_equal(r[:, 1], np.minimum(xf, yf).astype(ml.bfloat16))
    np.testing.assert_array_equal(r[:, 2, 0], (xf[:, 0] * 3).astype(ml.bfloat16))


@BOTH
def test_conversions(tmp_path, arch):
    x = (f32(64) * 100).astype(np.float32)
    x[:3] = [np.nan, 3e9, -3e9]
    p = KERNELS / f"math.{arch}.ptx"
    args = [In(x), zeros((64, 6), np.int32), zeros(64, np.float16)]
    o, h = ok(run(tmp_path, p, "conversions", "1", "64", args))
    y = x[3:]
    np.testing.assert_array_equal(o[3:, 0], np.rint(y))
    np.testing.assert_array_equal(o[3:, 1], np.trunc(y))
    np.testing.assert_array_equal(o[3:, 2], np.maximum(np.ceil(y), 0))
    np.testing.assert_array_equal(o[3:, 3], np.floor(y))
    np.testing.assert_array_equal(o[3:, 4], np.trunc(y).astype(np.int32).astype(np.int8))
    assert o[0, 1] == 0 and o[1, 1] == 2**31 - 1 and o[2, 1] == -(2**31)
    assert np.all(np.abs(h[3:].astype(np.float64)) <= np.abs(y))


def test_fp8(tmp_path):
    ml = pytest.importorskip("ml_dtypes")
    x = (f32(64, 2) * 50).astype(np.float32)
    args = [In(x), zeros(64, np.uint16), zeros(64, np.uint16), zeros((64, 2), np.float16)]
    e4, e5, back = ok(run(tmp_path, KERNELS / "math.sm_90a.ptx", "fp8", "1", "64", args))
    q4 = x.astype(ml.float8_e4m3fn)
    np.testing.assert_array_equal(e4.view(np.uint8).reshape(64, 2), q4.view(np.uint8))
    np.testing.assert_array_equal(e5.view(np.uint8).reshape(64, 2), x.astype(ml.float8_e5m2).view(np.uint8))
    np.testing.assert_array_equal(back, q4.astype(np.float16))
