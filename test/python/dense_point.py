"""Random attention on tensors: MLIR text, arrays and what NumPy says in float64."""

from __future__ import annotations

import numpy as np
from arrays import rounded, tensor, to_npy

ROWS = (1, 1, 2, 5, 17, 40, 70, 130)
TOKENS = (1, 3, 16, 63, 64, 65, 130, 300)
DIMS = (1, 3, 8, 20, 32, 64, 72)


class DensePoint:
    """One `kvcache.attention` on tensors; every choice can be fixed by a keyword.

    `text` and `args` are for kv-run; `expected` gives out [seq, head, row, dv] and
    lse [seq, head, row].
    """

    def __init__(self, seed: int, **fixed):
        rng = self.rng = np.random.default_rng(seed)

        def choose(name, options):
            value = options[rng.integers(len(options))]
            return fixed.get(name, value)

        self.dtype = choose("dtype", ("f32", "f32", "f16", "bf16"))
        self.layout = choose("layout", ("hnd", "nhd"))
        self.seqs, self.kv = choose("seqs", (1, 2, 3)), choose("kv", (1, 2, 3))
        self.heads = self.kv * choose("group", (1, 1, 2, 4, 9))
        self.rows, self.tokens = choose("rows", ROWS), choose("tokens", TOKENS)
        self.d, self.dv = choose("d", DIMS), choose("dv", DIMS)
        self.causal = choose("causal", (None, None, "bottom_right", "top_left"))
        self.left, self.right = choose("window", ((None, None),) * 3 + ((5, None), (None, 3), (70, 1)))
        self.softcap = choose("softcap", (None, None, 2.5))
        self.scale = choose("scale", (None, 0.3, -0.2))
        self.alibi, self.sinks = choose("alibi", (False, False, True)), choose("sinks", (False, False, True))
        self.mask = choose("mask", (None, None, "i1", "f32", "low"))
        self.mask_dims = choose("mask_dims", ((1, 1, 1), (1, 1, 0), (1, 0, 1), (0, 0, 0), (0, 1, 0)))
        self.empty = choose("empty", ("zero", "nan", "mean_all"))
        self.lengths = choose("lengths", (False, False, True))
        self.mapped = choose("mapped", (False, False, False, True))
        self.dynamic = choose("dynamic", (False, False, True))
        self._build()

    def _order(self, x):
        """[seq, head, token, ..] to the layout's order, and back."""
        return x.swapaxes(1, 2) if self.layout == "nhd" else x

    def _build(self):
        rng, dtype = self.rng, self.dtype
        self.q = rounded(rng.standard_normal((self.seqs, self.heads, self.rows, self.d)) * 2, dtype)
        self.k = rounded(rng.standard_normal((self.seqs, self.kv, self.tokens, self.d)), dtype)
        self.v = rounded(rng.standard_normal((self.seqs, self.kv, self.tokens, self.dv)), dtype)
        self.head_map = np.arange(self.heads) // (self.heads // self.kv)
        if self.mapped:
            self.head_map = rng.integers(0, self.kv, self.heads)
        self.counts = np.full(self.seqs, self.tokens)
        if self.lengths:
            self.counts = rng.integers(0, self.tokens + 1, self.seqs)
        params, extra, attrs = [], [], []

        def add(name, array, kind):
            shape = [
                None if self.dynamic and i != array.ndim - 1 and name in "qkv" and s in self._free(i) else s
                for i, s in enumerate(array.shape)
            ]
            params.append((name, tensor(shape, kind), array))
            return tensor(shape, kind)

        types = [
            add(n, self._order(to_npy(x, dtype)), dtype)
            for n, x in zip("qkv", (self.q, self.k, self.v), strict=True)
        ]
        if self.lengths:
            kind = add("n", self.counts.astype(np.int32), "i32")
            extra.append(f"lengths(%n : {kind})")
        self._build_mask(add, extra)
        self.sink = rng.standard_normal(self.heads).astype(np.float32) if self.sinks else None
        if self.sinks:
            extra.append(f"sink_logits(%s : {add('s', self.sink, 'f32')})")
        self._attributes(attrs)
        results = [tensor([*self._dims(types[0]), self.dv], dtype), tensor(self._dims(types[0]), "f32")]
        arguments = ", ".join(f"%{n}: {t}" for n, t, _ in params)
        self.args = [a for _, _, a in params]
        self.text = (
            f"func.func @f({arguments}) -> ({', '.join(results)}) {{\n"
            f"  %o, %l = kvcache.attention %q, %k, %v {' '.join(extra)} {{{', '.join(attrs)}}}\n"
            f"    : {', '.join(types)} -> {', '.join(results)}\n"
            f"  return %o, %l : {', '.join(results)}\n}}\n"
        )

    def _free(self, i):
        """Sizes of dimension i that may be dynamic: sequences and tokens."""
        token = 1 if self.layout == "nhd" else 2
        return {0: (self.seqs,), token: (self.rows, self.tokens)}.get(i, ())

    @staticmethod
    def _dims(kind: str):
        """[2, None, 3] of tensor<2x?x3x64xf32>."""
        return [None if s == "?" else int(s) for s in kind[7:-1].split("x")[:-2]]

    def _build_mask(self, add, extra):
        self.bias = None
        if not self.mask:
            return
        sizes = (self.seqs, self.heads, self.rows)
        shape = [s if keep else 1 for s, keep in zip(sizes, self.mask_dims, strict=True)] + [self.tokens]
        hidden = self.rng.random(shape) < 0.4
        hidden |= self.rng.random((*shape[:-1], 1)) < 0.1  # whole rows
        if self.mask == "i1":
            array, kind = ~hidden, "i1"
            self.bias = np.where(hidden, -np.inf, 0)
        else:
            low = -np.inf if self.mask == "f32" else float(np.finfo(np.float32).min)
            array = np.where(hidden, low, self.rng.standard_normal(shape)).astype(np.float32)
            self.bias, kind = array.astype(np.float64), "f32"
        extra.append(f"mask(%m : {add('m', self._order(array), kind)})")

    def _attributes(self, attrs):
        attrs += [
            f"layout = #kvcache.layout<{self.layout}>",
            f"empty_rows = #kvcache.empty_rows<{self.empty}>",
        ]
        if self.causal:
            attrs.append(f"causal = #kvcache.causal<{self.causal}>")
        window = [f"{n} = {x}" for n, x in (("left", self.left), ("right", self.right)) if x is not None]
        if window:
            attrs.append(f"window = #kvcache.window<{', '.join(window)}>")
        for name in ("softcap", "scale"):
            if getattr(self, name) is not None:
                attrs.append(f"{name} = {getattr(self, name):e} : f64")
        self.slopes = None
        if self.alibi:
            self.slopes = self.rng.random(self.heads).astype(np.float32)
            attrs.append(f"alibi = array<f32: {', '.join(map(repr, self.slopes.tolist()))}>")
        if self.mapped:
            attrs.append(f"head_map = array<i64: {', '.join(map(str, self.head_map))}>")

    def expected(self):
        out = np.zeros((self.seqs, self.heads, self.rows, self.dv))
        lse = np.full((self.seqs, self.heads, self.rows), -np.inf)
        for s in range(self.seqs):
            for h in range(self.heads):
                out[s, h], lse[s, h] = self._head(s, h)
        return self._order(out), self._order(lse[..., None])[..., 0]

    def _head(self, s: int, h: int):
        n = int(self.counts[s])
        k, v = (x[s, self.head_map[h], :n].astype(np.float64) for x in (self.k, self.v))
        i = np.arange(self.rows)[:, None] + (0 if self.causal == "top_left" else n - self.rows)
        j = np.arange(n)[None, :]
        x = self.q[s, h].astype(np.float64) @ k.T * (self.d**-0.5 if self.scale is None else self.scale)
        if self.softcap:
            x = self.softcap * np.tanh(x / self.softcap)
        if self.alibi:
            x = x + self.slopes[h].astype(np.float64) * (j - i)
        seen = np.ones((self.rows, n), bool)
        if self.bias is not None:
            bias = np.broadcast_to(self.bias, (self.seqs, self.heads, self.rows, self.tokens))[s, h, :, :n]
            if self.mask == "i1":
                seen &= bias == 0
            else:  # a sum of f32
                x = (x.astype(np.float32) + bias.astype(np.float32)).astype(np.float64)
        if self.causal:
            seen &= j <= i
        if self.left is not None:
            seen &= j >= i - self.left
        if self.right is not None:
            seen &= j <= i + self.right
        x = np.where(seen, x, -np.inf)
        sink = -np.inf if self.sink is None else float(self.sink[h])
        top = np.maximum(x.max(-1, initial=-np.inf), sink)[:, None]
        empty = np.isneginf(top)
        with np.errstate(invalid="ignore", divide="ignore"):
            p = np.where(empty, 0, np.exp(x - np.where(empty, 0, top)))
            total = p.sum(-1, keepdims=True) + np.exp(sink - np.where(empty, 0, top))
            out, lse = p @ v / total, (top + np.log(total))[:, 0]
        mean = self.v[s, self.head_map[h]].astype(np.float64).mean(0)  # keys past the length too
        fill = {"zero": 0.0, "nan": np.nan, "mean_all": mean}[self.empty]
        return np.where(empty, fill, out), np.where(empty[:, 0], -np.inf, lse)
