"""Attention on caches that others lay out, with masks and shapes no cache kernel has."""

import numpy as np
import pytest
from kvrun import kv_run, needs_kv_run

pytestmark = needs_kv_run
PAGE, PAGES, KV, D = 8, 11, 2, 20


def text(rows: int, extra: str, attrs: str, kind: str) -> str:
    """int8 codes with a scale per token, [page, head, token, channel], K and V in one array."""
    q, out = f"tensor<2x4x{rows}x{D}xf32>", f"tensor<2x4x{rows}xf32>"
    codes = f"tensor<{PAGES}x2x{KV}x{PAGE}x{D}x{kind}>"
    scales = f"tensor<{PAGES}x2x{KV}x{PAGE}x1xf32>"
    element = "i8" if kind == "i8" else "i4"
    enc = f"{element}:token:sym:sf32"
    maps = [
        f"{element}, codes(0, affine_map<(p, t, h, c) -> (p, {i}, h, t, c)>) "
        f"scales(1, affine_map<(p, t, h, c) -> (p, {i}, h, t, 0)>)"
        for i in (0, 1)
    ]
    cache = (
        f"!kvcache.cache<kv = {KV}, d = {D}, open = f32, "
        f'#kvcache.format<"key={enc},value={enc},page={PAGE}">, '
        f"#kvcache.external<key = {maps[0]}, value = {maps[1]}, table = raw>>"
    )
    return f"""!cache = {cache}
func.func @f(%q: {q}, %p: {codes}, %s: {scales}, %t: tensor<2x5xi32>, %n: tensor<2xi32>,
    %m: tensor<2x1x1x?xf32>, %k: tensor<4xf32>) -> ({q}, {out}) {{
  %c = kvcache.view pools(%p : {codes}) table(%t : tensor<2x5xi32>) lengths(%n : tensor<2xi32>)
    scales(%s : {scales}) -> !cache
  %o, %l = kvcache.attention %q, %c {extra} {{{attrs}}} : {q}, !cache -> {q}, {out}
  return %o, %l : {q}, {out}
}}
"""


def expected(q, k, v, lengths, mask, sinks, causal):
    """out and lse in float64; queries are the newest tokens."""
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for s, h in np.ndindex(2, 4):
        n, rows = int(lengths[s]), q.shape[2]
        x = q[s, h].astype(np.float64) @ k[s, h // 2, :n].T * D**-0.5 + mask[s, 0, 0, :n]
        i, j = np.arange(rows)[:, None] + n - rows, np.arange(n)[None]
        x = np.where((j <= i if causal else True) & (i >= 0), x, -np.inf)
        sink = sinks[h] if sinks is not None else -np.inf
        top = np.maximum(x.max(-1, initial=-np.inf), sink)
        safe = np.where(np.isneginf(top), 0, top)[:, None]
        p = np.exp(x - safe)
        total = p.sum(-1) + np.exp(sink - safe[:, 0])
        with np.errstate(divide="ignore", invalid="ignore"):
            out[s, h] = np.where(total[:, None] > 0, p @ v[s, h // 2, :n] / total[:, None], 0)
            lse[s, h] = safe[:, 0] + np.log(total)
    return out, lse


@pytest.mark.parametrize("kind", ["i8", "i4"])
@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "sinks"])
def test_external(kind: str, rows: int, case: str) -> None:
    rng = np.random.default_rng(rows)
    q = rng.standard_normal((2, 4, rows, D)).astype(np.float32)
    top = 128 if kind == "i8" else 8
    codes = rng.integers(1 - top, top, (PAGES, 2, KV, PAGE, D)).astype(np.int8)
    scales = (rng.random((PAGES, 2, KV, PAGE, 1)) * 2 / top).astype(np.float32)
    table = rng.permutation(PAGES)[:10].reshape(2, 5).astype(np.int32)
    lengths = np.array([37, 16], np.int32)
    table[1, 2:] = -1
    mask = rng.standard_normal((2, 1, 1, 40)).astype(np.float32)
    mask[0, :, :, 3:9] = -np.inf
    sinks = rng.standard_normal(4).astype(np.float32)
    extra = {"mask": "mask(%m : tensor<2x1x1x?xf32>)", "sinks": "sink_logits(%k : tensor<4xf32>)"}.get(
        case, ""
    )
    attrs = "causal = #kvcache.causal<bottom_right>" if case == "causal" else ""
    out, lse = kv_run(text(rows, extra, attrs, kind), "f", [q, codes, scales, table, lengths, mask, sinks], 2)
    decoded = codes * scales
    pages = decoded[table].swapaxes(1, 2)  # [seq, side, page, head, token, channel]
    k, v = (pages[:, i].swapaxes(1, 2).reshape(2, KV, 5 * PAGE, D).astype(np.float64) for i in (0, 1))
    bias = mask.astype(np.float64) if case == "mask" else np.zeros_like(mask)
    want, want_lse = expected(q, k, v, lengths, bias, sinks if case == "sinks" else None, case == "causal")
    assert np.abs(out - want).max() <= 1e-5 * np.abs(want).max()
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-5)
