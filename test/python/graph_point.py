"""Paged attention written out, as importers leave it: gather, decode, attend.

Both orders of gather and decode, both layouts, packed codes, K and V in one
array with gaps, any table rule. `text` and `args` for kv-run, `expected` of it.
"""

from __future__ import annotations

import numpy as np
from arrays import rounded, tensor, to_npy
from oracle import reference as ref

ENCODINGS = ("none", "i8:channel:g8", "i8:token", "i4:channel:g4:sym", "i4:token:g8", "i8:head:sym")


class GraphPoint:
    """One written-out graph; every choice can be fixed by a keyword."""

    def __init__(self, seed: int, **fixed):
        rng = self.rng = np.random.default_rng(seed)

        def choose(name, options):
            value = options[rng.integers(len(options))]
            return fixed.get(name, value)

        self.key, self.value = choose("key", ENCODINGS), choose("value", ENCODINGS)
        self.layout = choose("layout", ("hnd", "nhd"))
        self.page = choose("page", (8, 16))
        self.gather_first = choose("gather_first", (True, False))
        self.interleaved = choose("interleaved", (True, False))
        self.container = choose("container", (None, "i8", "i32"))
        self.order = choose("order", ("low_first", "high_first"))
        self.rule = choose("rule", ("raw", "clamp", "wrap"))
        self.lists = choose("lists", (False, True))
        self.dtype = choose("dtype", ("f32", "f16"))
        self.lengths = choose("lengths", ([37, 0, 1], [8, 16, 40], [5]))
        self.seqs, self.kv, self.heads, self.d, self.dv = len(self.lengths), 2, 6, 16, 24
        if self.interleaved:  # one array needs one shape
            self.dv, self.value = self.d, self.key
        self.columns, self.pages = 5, 19
        self.attrs = choose("attrs", ([], ["softcap = 2.0"], ["window = #kvcache.window<left = 11>"]))
        self.kwargs = {"softcap = 2.0": {"softcap": 2.0}}.get("".join(self.attrs), {})
        if "window" in "".join(self.attrs):
            self.kwargs = {"window": 12}
        self.params, self.body, self.counter = [], [], 0
        self._build()

    def _swap(self, x):
        return x.swapaxes(-3, -2) if self.layout == "nhd" else x

    def _add(self, name: str, array, dtype: str) -> tuple[str, str]:
        self.params.append((name, tensor(array.shape, dtype), array))
        return f"%{name}", tensor(array.shape, dtype)

    def _new(self, text: str) -> str:
        self.counter += 1
        self.body.append(f"  %x{self.counter} = {text}")
        return f"%x{self.counter}"

    def _pack(self, codes, bits: int):
        """Codes [.., channel] -> containers of `self.container`."""
        per = int(self.container[1:]) // bits
        shifts = bits * np.arange(per)
        if self.order == "high_first":
            shifts = shifts[::-1]
        wide = (codes.astype(np.int64) & ((1 << bits) - 1)).reshape(*codes.shape[:-1], -1, per)
        return (wide << shifts).sum(-1).astype(np.uint8 if self.container == "i8" else np.uint32)

    def _side(self, name: str, encoding: str, channels: int):
        """Stored arrays of one side; decoded values [page, head, token, channel]."""
        shape = (self.pages, self.kv, self.page, channels)
        x = rounded(self.rng.standard_normal(shape) * np.exp(self.rng.standard_normal(channels)), self.dtype)
        if encoding == "none":
            return x, (to_npy(x, self.dtype), self.dtype), [], ""
        e = ref.parse_encoding(encoding)
        codes, scale, zero = ref.quantize(x, e)
        decoded = ref.dequantize(codes, scale, zero, e)
        params = [to_npy(p, "f16") for p in (scale, zero) if p is not None]
        bits = int(e.element[1:])
        packing = ""
        if self.container and int(self.container[1:]) > bits:
            stored = self._pack(codes, bits), self.container
            packing = f", packing = #kvcache.packing<channel, {self.order}>"
        else:
            stored = codes, e.element
        return decoded, stored, params, packing

    def _gather(self, x: str, kind: str) -> tuple[str, str]:
        shape = [int(s) for s in kind[7:-1].split("x")[:-1]]
        dtype = kind[7:-1].split("x")[-1]
        token = 2 if self.layout == "hnd" else 1
        shape[0], shape[token] = self.seqs, shape[token] * self.columns
        result = tensor(shape, dtype)
        attrs = f"layout = #kvcache.layout<{self.layout}>, table_rule = #kvcache.table_rule<{self.rule}>"
        text = f"kvcache.page_gather {x}, %t {{{attrs}}} : {kind}, {self.table_type} -> {result}"
        return self._new(text), result

    def _decode(self, codes, params, encoding, packing, channels) -> tuple[str, str]:
        shape = [int(s) for s in codes[1][7:-1].split("x")[:-1]]
        shape[-1] = channels
        result = tensor(shape, self.dtype)
        attrs = (
            f'encoding = #kvcache.encoding<"{encoding}">, layout = #kvcache.layout<{self.layout}>{packing}'
        )
        names = ", ".join([codes[0], *(p[0] for p in params)])
        types = ", ".join([codes[1], *(p[1] for p in params)])
        return self._new(f"kvcache.dequantize {names} {{{attrs}}} : {types} -> {result}"), result

    def _tensor_side(self, codes, params, encoding, packing, channels) -> tuple[str, str]:
        if encoding == "none":
            return self._gather(*codes)
        if self.gather_first:
            return self._decode(
                self._gather(*codes), [self._gather(*p) for p in params], encoding, packing, channels
            )
        return self._gather(*self._decode(codes, params, encoding, packing, channels))

    def _codes_argument(self, sides) -> list[tuple[str, str]]:
        """The code arrays as values: two arguments, or slices of one with a gap."""
        arrays = [self._swap(stored) for _, (stored, _), _, _ in sides]
        dtype = sides[0][1][1]
        if not self.interleaved:
            return [self._add(f"c{i}", a, sides[i][1][1]) for i, a in enumerate(arrays)]
        gap = np.full_like(arrays[0], np.nan if arrays[0].dtype.kind == "f" else 7)
        both = np.stack([arrays[0], gap, arrays[1]], axis=1)
        name, kind = self._add("c", both, dtype)
        n, rest = both.shape[0], both.shape[2:]
        slice_type = tensor((n, *rest), dtype)
        sizes, ones = ", ".join(map(str, (n, 1, *rest))), ", ".join(["1"] * both.ndim)
        zeros = ", ".join(["0"] * len(rest))
        tail = f"[{sizes}] [{ones}] : {kind} to {slice_type}"
        slices = [f"tensor.extract_slice {name}[0, {at}, {zeros}] {tail}" for at in (0, 2)]
        return [(self._new(text), slice_type) for text in slices]

    def _build(self):
        rng = self.rng
        self.q = rounded(rng.standard_normal((self.seqs, self.heads, self.d)), self.dtype)
        shape = (self.seqs, self.kv, self.columns) if self.lists else (self.seqs, self.columns)
        low, high = (0, self.pages) if self.rule == "raw" else (-30, 40)
        table = self.table = rng.integers(low, high, shape).astype(np.int32)
        for s, n in enumerate(self.lengths):
            table[s, ..., -(-n // self.page) :] = rng.choice([-1, 999])
        self._add("q", to_npy(self.q, self.dtype), self.dtype)
        self.table_type = self._add("t", table, "i32")[1]
        self._add("n", np.array(self.lengths, np.int32), "i32")
        sides = [self._side("k", self.key, self.d), self._side("v", self.value, self.dv)]
        self.decoded = [s[0] for s in sides]
        codes = self._codes_argument(sides)
        values = []
        encodings = (self.key, self.value), (self.d, self.dv)
        for i, ((_, _, params, packing), encoding, c) in enumerate(zip(sides, *encodings, strict=True)):
            given = [self._add(f"p{i}{j}", self._swap(p), "f16") for j, p in enumerate(params)]
            values.append(self._tensor_side(codes[i], given, encoding, packing, c))
        attrs = [
            "causal = #kvcache.causal<bottom_right>",
            f"layout = #kvcache.layout<{self.layout}>",
            *self.attrs,
        ]
        types = [tensor(self.q.shape, self.dtype), *(v[1] for v in values)]
        results = [tensor((*self.q.shape[:2], self.dv), self.dtype), tensor(self.q.shape[:2], "f32")]
        self.body.append(
            f"  %o, %l = kvcache.attention %q, {values[0][0]}, {values[1][0]}"
            f" lengths(%n : tensor<{self.seqs}xi32>) {{{', '.join(attrs)}}} : {', '.join(types)}"
            f" -> {', '.join(results)}\n  return %o, %l : {', '.join(results)}"
        )
        arguments = ", ".join(f"%{n}: {t}" for n, t, _ in self.params)
        self.args = [a for _, _, a in self.params]
        self.text = (
            f"func.func @f({arguments}) -> ({', '.join(results)}) {{\n" + "\n".join(self.body) + "\n}\n"
        )

    def expected(self):
        """out [seq, head, dv] and lse [seq, head] in float64."""
        table = self.table.astype(np.int64)
        if self.rule == "wrap":
            table = np.where(table < 0, table + self.pages, table)
        table = np.clip(table, 0, self.pages - 1)
        outs, lses = [], []
        for s, n in enumerate(self.lengths):
            rows = []
            for x in self.decoded:
                heads = [x[table[s, h] if self.lists else table[s], h] for h in range(self.kv)]
                rows.append(np.stack([h.reshape(-1, h.shape[-1])[:n] for h in heads], 1))
            out, lse = ref.attention(self.q[s : s + 1], *rows, **self.kwargs)
            outs.append(out[0]), lses.append(lse[0])
        return np.stack(outs), np.stack(lses)
