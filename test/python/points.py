"""Random points of the property test: a spec, data and a history, from two numbers.

A run draws a few dozen specs (each one compiled kernel) and spreads its points over
them; everything about a point follows from (seed, index), so "SEED:I" reproduces it.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from page_model import PageModel

import kvcache as kv

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
HEAD_DIMS = [64, 72, 80, 96, 112, 128, 192, 256, 8, 40]
SPECS_PER_RUN = 40


def _encoding(rng: np.random.Generator, page: int, channels: int, dtype: str) -> str:
    """Any encoding of the grammar that the CPU stores: floats, i8 and i4."""
    element = rng.choice(["f32", "f16", "bf16", "i8", "i8", "i8", "i4", "i4", "i4"])
    if not element.startswith("i"):
        # A narrower element than the model's is a real choice, too.
        return (
            {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype] if rng.random() < 0.6 else element
        )
    kind = rng.choice(["channel", "channel", "token", "token", "head", "tensor"])
    text = f"{element}:{kind}"
    whole = page if kind == "channel" else channels
    if kind in ("channel", "token") and rng.random() < 0.6:
        divisors = [g for g in (1, 2, 4, 8, 16, 24, 32, 64) if whole % g == 0]
        text += f":g{rng.choice(divisors)}"
    text += ":sym" if kind == "tensor" or rng.random() < 0.4 else ":asym"
    return text + rng.choice(["", "", ":sf16", ":sbf16", ":sf32"])


def make_spec(rng: np.random.Generator, index: int) -> kv.AttentionSpec:
    """A random legal spec; every fourth fits the real capture."""
    while True:
        real = index % 4 == 0
        dtype = "float16" if real else str(rng.choice(["float16", "float16", "bfloat16", "float32"]))
        d = 64 if real else int(rng.choice(HEAD_DIMS))
        dv = d if real or rng.random() < 0.7 else int(rng.choice([8, 64, 72, 128]))
        group = 3 if real else int(rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 64]))
        kv_heads = 3 if real else int(rng.choice([1, 2, 3] if group < 16 else [1]))
        page = int(rng.choice([1, 2, 4, 8, 16, 16, 32, 32, 64, 64, 128, 256]))
        if rng.random() < 0.3:
            fmt = str(rng.choice(["f16", "bf16", "int8", "kivi4"])) + f",page={page}"
        else:
            fmt = f"key={_encoding(rng, page, d, dtype)},value={_encoding(rng, page, dv, dtype)},page={page}"
        if rng.random() < 0.6:
            fmt += f",recent={int(rng.choice([0, 1, 16, 40, 128]))}"
        if rng.random() < 0.4:
            fmt += f",sinks={int(rng.choice([1, 4, 20]))}"
        try:
            return kv.AttentionSpec(
                q_heads=group * kv_heads,
                kv_heads=kv_heads,
                head_dim=d,
                value_dim=dv,
                dtype=dtype,
                format=fmt,
                causal=bool(rng.random() < 0.85),
                window=int(rng.choice([1, 5, 33, 100])) if rng.random() < 0.3 else None,
                softcap=30.0 if rng.random() < 0.2 else None,
                alibi=bool(rng.random() < 0.2),
                scale=0.2 if rng.random() < 0.2 else None,
            )
        except ValueError:
            continue  # a group that does not divide, or the like


def bounds(spec: kv.AttentionSpec) -> tuple[float, float]:
    """(relative error of the output, of LSE) that the interface grants."""
    elements = [spec.dtype] + [e.split(":")[0] for e in (spec.format.key, spec.format.value)]
    if any(e in ("bfloat16", "bf16") for e in elements):
        return 1.5e-2, 1e-2
    if all(e in ("float32", "f32") for e in elements):
        return 1e-5, 1e-5
    return 2e-3, 1e-3


def make_model(spec: kv.AttentionSpec, k_scale: np.ndarray, v_scale: np.ndarray) -> PageModel:
    """What an empty sequence must read back as, now and after any history."""
    fmt, resolved = spec.format, spec._native.format
    model = PageModel(str(resolved.key), str(resolved.value), fmt.page, fmt.sinks, fmt.recent, spec.dtype)
    model.static = (k_scale, v_scale)
    return model
