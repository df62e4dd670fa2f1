"""Approximate functions: within the ISA's errors, and with --perturb up to them."""

from __future__ import annotations

import numpy as np
import pytest
from ops import apply

RNG = np.random.default_rng(23)


def ulp(v: np.ndarray) -> np.ndarray:
    """Of f32."""
    e = np.maximum(np.frexp(v)[1] - 1, -126)
    return np.ldexp(1.0, e - 23)


def wide(lo: float, hi: float) -> np.ndarray:
    """Numbers of all exponents between."""
    x = np.exp2(RNG.uniform(lo, hi, 4096)).astype(np.float32)
    return x


SIGNED = wide(-120, 120) * RNG.choice([-1, 1], 4096).astype(np.float32)
ANGLE = RNG.uniform(-np.pi, np.pi, 4096).astype(np.float32)
FAR = (RNG.uniform(4, 314, 4096) * RNG.choice([-1, 1], 4096)).astype(np.float32)
EXPONENT = RNG.uniform(-140, 127, 4096).astype(np.float32)
NEAR1 = RNG.uniform(0.501, 1.999, 4096).astype(np.float32)
LARGE = np.concatenate([wide(-120, -1.1), wide(1.1, 120)])

# form, inputs, exact function, limit
CASES = {
    "ex2": ("ex2.approx.f32 {0}, {1}", [EXPONENT], np.exp2, lambda v: 2.5 * ulp(v)),
    "ex2.ftz": (
        "ex2.approx.ftz.f32 {0}, {1}",
        [EXPONENT[EXPONENT > -125][:3840]],
        np.exp2,
        lambda v: 2.5 * ulp(v),
    ),
    "lg2 near 1": ("lg2.approx.f32 {0}, {1}", [NEAR1], np.log2, lambda v: 2.0**-22),
    "lg2": ("lg2.approx.f32 {0}, {1}", [LARGE], np.log2, lambda v: abs(v) * 2.0**-22),
    "sin": ("sin.approx.f32 {0}, {1}", [ANGLE], np.sin, lambda v: 2.0**-20.5),
    "cos": ("cos.approx.f32 {0}, {1}", [ANGLE], np.cos, lambda v: 2.0**-20.5),
    "sin far": ("sin.approx.ftz.f32 {0}, {1}", [FAR], np.sin, lambda v: 2.0**-14.7),
    "cos far": ("cos.approx.f32 {0}, {1}", [FAR], np.cos, lambda v: 2.0**-14.7),
    "tanh": ("tanh.approx.f32 {0}, {1}", [SIGNED], np.tanh, lambda v: abs(v) * 2.0**-11),
    "rcp": ("rcp.approx.f32 {0}, {1}", [SIGNED], lambda x: 1 / x, ulp),
    "rsqrt": (
        "rsqrt.approx.f32 {0}, {1}",
        [wide(-120, 120)],
        lambda x: 1 / np.sqrt(x),
        lambda v: v * 2.0**-22.9,
    ),
    "sqrt": ("sqrt.approx.f32 {0}, {1}", [wide(-120, 120)], np.sqrt, lambda v: v * 2.0**-23),
    "div.approx": (
        "div.approx.f32 {0}, {1}, {2}",
        [wide(-50, 50), wide(-60, 60)],
        lambda a, b: a / b,
        lambda v: 2 * ulp(v),
    ),
    "div.full": (
        "div.full.f32 {0}, {1}, {2}",
        [SIGNED, wide(-2, 2)],
        lambda a, b: a / b,
        lambda v: 2 * ulp(v),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_f32(tmp_path, name):
    form, inputs, exact, limit = CASES[name]
    raw = [x.view(np.uint32) for x in inputs]
    v = exact(*[x.astype(np.float64) for x in inputs])
    out = apply(tmp_path, form, raw, np.uint32).view(np.float32).astype(np.float64)
    assert (abs(out - v) <= 0.501 * ulp(v)).all()
    seen = []
    for seed in (1, 2):
        out = apply(tmp_path, form, raw, np.uint32, f"--perturb={seed}").view(np.float32).astype(np.float64)
        share = (out - v) / limit(v)
        assert abs(share).max() <= 1.0
        # Both ends are reached, as far as the numbers between allow.
        coarse = ulp(v) / limit(v)
        assert (share > 1 - coarse - 1e-3).any() and (share < coarse - 1 + 1e-3).any()
        seen.append(out)
    assert (seen[0] != seen[1]).any()


@pytest.mark.parametrize(
    ("form", "exact", "limit"),
    [
        ("tanh.approx.f16", np.tanh, lambda v: 2.0**-10.987),
        ("tanh.approx.bf16", np.tanh, lambda v: 2.0**-8),
        ("ex2.approx.f16", np.exp2, lambda v: v * 2.0**-9.9),
        ("ex2.approx.ftz.bf16", np.exp2, lambda v: v * 2.0**-7),
    ],
)
def test_halves(tmp_path, form, exact, limit):
    ml = pytest.importorskip("ml_dtypes")
    t = np.dtype(ml.bfloat16 if "bf16" in form else np.float16)
    x = RNG.uniform(-8, 8, 4096).astype(t)
    v = exact(x.astype(np.float64))
    half = 2.0**-9 if "bf16" in form else 2.0**-12  # half an ulp of a number below 2, relative
    for option in ("--perturb=0", "--perturb=5"):
        out = apply(tmp_path, f"{form} {{0}}, {{1}}", [x.view(np.uint16)], np.uint16, option)
        err = abs(out.view(t).astype(np.float64) - v)
        if option.endswith("0"):
            assert (err <= np.maximum(half * abs(v) * 2.01, 2.0**-25)).all()
        else:
            assert (err <= limit(v) * (1 + 1e-9)).all() and (err > limit(v) * 0.5).any()
        pairs = apply(tmp_path, f"{form}x2 {{0}}, {{1}}", [x.view(np.uint32)], np.uint32, option)
        np.testing.assert_array_equal(pairs.view(np.uint16), out)


def test_division_by_large_numbers(tmp_path):
    """Beyond 2^126 div.approx gives a signed zero, NaN for infinite dividends; div.full divides."""
    a = np.array([1, -1, np.inf, 2.0**100] * 8, np.float32)
    b = np.full(32, 2.0**126 * 1.5, np.float32)
    raw = [a.view(np.uint32), b.view(np.uint32)]
    out = apply(tmp_path, "div.approx.f32 {0}, {1}, {2}", raw, np.uint32).view(np.float32)
    np.testing.assert_array_equal(out[:4], [0, -0.0, np.nan, 0])
    assert np.signbit(out[1]) and not np.signbit(out[0])
    out = apply(tmp_path, "div.full.f32 {0}, {1}, {2}", raw, np.uint32).view(np.float32)
    np.testing.assert_array_equal(out[:4], a[:4] / b[:4])


def test_special_values(tmp_path):
    """The ISA's tables: zeros, infinities and NaN stay exact under perturbation."""
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1], np.float32).repeat(4)
    for form, want in {
        "ex2.approx.ftz.f32": [1, 1, np.inf, 0, np.nan, 1, 1],
        "lg2.approx.ftz.f32": [-np.inf, -np.inf, np.inf, np.nan, np.nan, -np.inf, -np.inf],
        "rcp.approx.ftz.f32": [np.inf, -np.inf, 0, -0.0, np.nan, np.inf, -np.inf],
        "rsqrt.approx.ftz.f32": [np.inf, -np.inf, 0, np.nan, np.nan, np.inf, -np.inf],
        "sqrt.approx.ftz.f32": [0, -0.0, np.inf, np.nan, np.nan, 0, -0.0],
        "sin.approx.ftz.f32": [0, -0.0, np.nan, np.nan, np.nan, 0, -0.0],
        "cos.approx.ftz.f32": [1, 1, np.nan, np.nan, np.nan, 1, 1],
        "tanh.approx.f32": [0, -0.0, 1, -1, np.nan, 1e-40, -1e-40],
    }.items():
        for option in ("--perturb=0", "--perturb=3"):
            out = apply(tmp_path, f"{form} {{0}}, {{1}}", [x.view(np.uint32)], np.uint32, option)
            got = out.view(np.float32)[::4][:7]
            want32 = np.array(want, np.float32)
            np.testing.assert_allclose(got, want32, rtol=2.0**-10, atol=0, err_msg=form)
            zero = want32 == 0
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want32[zero]), err_msg=form)
