"""A batch of caches as one MLIR function: view, append and seal in steps, attend, read."""

from __future__ import annotations

import numpy as np
from arrays import rounded, tensor, to_npy
from oracle import reference as ref
from page_model import PageModel


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


class CachePoint:
    """One format, shape and history; `args` and `text` for kv-run, `expected` of it.

    Pages of the sequences are scattered over the pools; table entries that
    nobody may look at are garbage, and so are the bytes of pools at first.
    """

    def __init__(
        self,
        key: str,
        value: str,
        page: int,
        lengths: list[int],
        *,
        sinks=0,
        recent=0,
        kv=2,
        group=2,
        d=32,
        dv=32,
        dtype="f16",
        q_lens=None,
        attrs=(),
        kwargs=None,
        steps=2,
        lists=False,
        seed=0,
    ):
        self.rng = np.random.default_rng(seed)
        self.key, self.value, self.page, self.sinks, self.recent = key, value, page, sinks, recent
        self.kv, self.heads, self.d, self.dv, self.dtype = kv, kv * group, d, dv, dtype
        self.lengths, self.q_lens = lengths, q_lens or [1] * len(lengths)
        self.attrs = ["causal = #kvcache.causal<bottom_right>", *attrs]
        self.kwargs, self.steps, self.lists = kwargs or {}, steps, lists
        n, rng = len(lengths), self.rng
        spread = np.exp(0.7 * rng.standard_normal(d))
        self.k = [rounded(rng.standard_normal((t, kv, d)) * spread, dtype) for t in lengths]
        self.v = [rounded(rng.standard_normal((t, kv, dv)), dtype) for t in lengths]
        self.q = rounded(rng.standard_normal((sum(self.q_lens), self.heads, d)), dtype)
        self.pages = max(round_up(max(lengths, default=0), page) // page, 1) + 1
        self.total = n * self.pages + 2
        static = [e for e in (key, value) if ":tensor" in e]
        self.static = [rng.uniform(0.02, 0.05, kv).astype(np.float32) for _ in static]

    @property
    def format(self) -> str:
        extra = f", sinks = {self.sinks}" * bool(self.sinks) + f", recent = {self.recent}" * bool(self.recent)
        return f"#kvcache.format<key = {self.key}, value = {self.value}, page = {self.page}{extra}>"

    @property
    def cache_type(self) -> str:
        dims = f"kv = {self.kv}, d = {self.d}, dv = {self.dv}"
        return f"!kvcache.cache<{dims}, open = {self.dtype}, {self.format}>"

    def record_bytes(self) -> tuple[int, int]:
        """Upper bounds of a head's sealed and open record, multiples of 128."""
        width = 4 if self.dtype == "f32" else 2
        opened = round_up(self.page * (self.d + self.dv) * width, 128)
        bits = {"f32": 32, "f16": 16, "bf16": 16, "i8": 8, "i4": 4}
        sealed = 0
        for text, c in ((self.key, self.d), (self.value, self.dv)):
            e = ref.parse_encoding(text)
            sealed += self.page * c * bits[e.element] // 8
            size = 4 if e.stype == "f32" else 2
            count = {
                "channel": self.page // (e.group or self.page) * c,
                "token": self.page * (c // (e.group or c)),
                "head": 1,
            }.get(e.scale, 0)
            sealed += round_up(count * size, 16) * (2 if e.asym else 1) if count else 0
        return round_up(sealed, 128), opened

    def tables(self) -> list[np.ndarray]:
        n = len(self.lengths)
        shape = (n, self.kv, self.pages) if self.lists else (n, 1, self.pages)
        count = shape[1]
        out = []
        for _ in range(2):
            table = np.full(shape, -1, np.int32)
            for list_ in range(count):
                table[:, list_] = self.rng.permutation(self.total)[: n * self.pages].reshape(n, self.pages)
            for s, length in enumerate(self.lengths):
                used = round_up(length, self.page) // self.page
                table[s, :, used:] = self.rng.choice([-1, -7, 99999])
            out.append(table if self.lists else table[:, 0])
        return out

    def cuts(self) -> list[list[tuple[int, int]]]:
        """For each step, the tokens [a, b) that each sequence gets."""
        points = [[0, *sorted(self.rng.integers(0, n + 1, self.steps - 1).tolist()), n] for n in self.lengths]
        return [[(p[i], p[i + 1]) for p in points] for i in range(self.steps)]

    def rows(self, step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """k, v and row_seq of one append: padded, sequences interleaved in order."""
        ks, vs, seqs = [], [], []
        for s, (a, b) in enumerate(step):
            ks.append(self.k[s][a:b]), vs.append(self.v[s][a:b]), seqs.append(np.full(b - a, s))
        pad = np.full((1, self.kv, self.d), np.nan), np.full((1, self.kv, self.dv), np.nan)
        k, v = np.concatenate([*ks, pad[0]]), np.concatenate([*vs, pad[1]])
        seq = np.concatenate([*seqs, [-1]]).astype(np.int32)
        order = np.argsort(self.rng.random(len(seq)), kind="stable")
        # Rows of one sequence stay in order.
        for s in range(len(self.lengths)):
            places = np.flatnonzero(seq[order] == s)
            order[places] = np.sort(order[places])
        return k[order], v[order], seq[order]

    def build(self) -> None:
        """Fills in `text` and `args`."""
        n, t, cache = len(self.lengths), self.dtype, self.cache_type
        sealed, opened = self.record_bytes()
        tables = self.tables()
        table_type = tensor(tables[0].shape, "i32")
        params = [
            ("q", tensor(self.q.shape, t), to_npy(self.q, t)),
            (
                "sp",
                "tensor<?xi8>",
                self.rng.integers(-128, 128, self.total * self.kv * sealed).astype(np.int8),
            ),
            ("op", "tensor<?xi8>", np.full(self.total * self.kv * opened, -1, np.int8)),
            ("st", table_type, tables[0]),
            ("ot", table_type, tables[1]),
            ("z", f"tensor<{n}xi32>", np.zeros(n, np.int32)),
            ("qi", f"tensor<{n + 1}xi32>", np.cumsum([0, *self.q_lens]).astype(np.int32)),
        ]
        scales = ""
        if self.static:
            params += [(f"s{i}", f"tensor<{self.kv}xf32>", s) for i, s in enumerate(self.static)]
            names = ", ".join(f"%s{i}" for i in range(len(self.static)))
            scales = f" scales({names} : {', '.join([f'tensor<{self.kv}xf32>'] * len(self.static))})"
        body = (
            f"  %c0 = kvcache.view pools(%sp, %op : tensor<?xi8>, tensor<?xi8>)"
            f" table(%st, %ot : {table_type}, {table_type}) sealed_pages(%z : tensor<{n}xi32>)"
            f" lengths(%z : tensor<{n}xi32>){scales} -> {cache}\n"
        )
        for i, step in enumerate(self.cuts()):
            k, v, seq = self.rows(step)
            shapes = [tensor((None, *x.shape[1:]), t) for x in (k, v)]
            params += [(f"k{i}", shapes[0], to_npy(k, t)), (f"v{i}", shapes[1], to_npy(v, t))]
            params += [(f"r{i}", "tensor<?xi32>", seq)]
            body += (
                f"  %a{i} = kvcache.append %c{i}, %k{i}, %v{i} rows(%r{i}) :"
                f" {cache}, {shapes[0]}, {shapes[1]} rows(tensor<?xi32>)\n"
                f"  %c{i + 1} = kvcache.seal %a{i} : {cache}\n"
            )
        out, lse = tensor((*self.q.shape[:2], self.dv), t), tensor(self.q.shape[:2], "f32")
        rk, rv = (f"tensor<{n}x{self.kv}x?x{c}xf32>" for c in (self.d, self.dv))
        last = f"%c{self.steps}"
        body += (
            f"  %o, %l = kvcache.attention %q, {last} q_indptr(%qi : tensor<{n + 1}xi32>)"
            f" {{{', '.join(self.attrs)}}} : {params[0][1]}, {cache} -> {out}, {lse}\n"
            f"  %rk, %rv, %rn = kvcache.read {last} : {cache} -> {rk}, {rv}, tensor<{n}xi32>\n"
        )
        results = f"{out}, {lse}, {rk}, {rv}, tensor<{n}xi32>"
        arguments = ", ".join(f"%{name}: {kind}" for name, kind, _ in params)
        self.args = [np.frombuffer(a, np.int8) if isinstance(a, bytes) else a for _, _, a in params]
        self.text = (
            f"func.func @f({arguments}) -> ({results}) {{\n{body}"
            f"  return %o, %l, %rk, %rv, %rn : {results}\n}}\n"
        )

    def expected(self):
        """Decoded k and v per sequence, and out, lse [total_q, ...]."""
        name = {"f16": "float16", "f32": "float32", "bf16": "bfloat16"}[self.dtype]
        models, outs, lses, start = [], [], [], 0
        statics = list(self.static)
        static = [statics.pop(0) if ":tensor" in e else 1.0 for e in (self.key, self.value)]
        for k, v, n in zip(self.k, self.v, self.q_lens, strict=True):
            model = PageModel(self.key, self.value, self.page, self.sinks, self.recent, name)
            model.static = tuple(static)
            model.append(k, v)
            out, lse = ref.attention(self.q[start : start + n], *model.data, **self.kwargs)
            # Queries are the newest tokens: rows before token 0 are empty.
            empty = max(n - len(k), 0)
            out[:empty], lse[:empty] = 0, -np.inf
            start += n
            models.append(model), outs.append(out), lses.append(lse)
        return models, np.concatenate(outs), np.concatenate(lses)
