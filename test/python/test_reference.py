"""Every op's reference lowering against the NumPy oracle, at random points."""

import numpy as np
import pytest
from arrays import EPS, FLOATS, error, from_npy, rounded, tensor, to_npy
from kvrun import kv_run, needs_kv_run
from oracle import reference as ref

pytestmark = needs_kv_run


def swap(x, layout):
    """[.., head, token, channel] <-> nhd."""
    return np.swapaxes(x, -3, -2) if layout == "nhd" else x


class AttentionPoint:
    """One random attention on plain tensors: the op's text, arguments, expectation."""

    def __init__(self, seed: int):
        rng = self.rng = np.random.default_rng(seed)
        pick = rng.choice
        self.dtype, self.kv_dtype = str(pick(FLOATS)), str(pick(FLOATS))
        self.layout = str(pick(["hnd", "nhd"]))
        self.seqs, self.kv = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        self.heads = self.kv * int(pick([1, 2, 3]))
        self.d, self.dv = int(pick([8, 16, 24])), int(pick([8, 16]))
        self.tokens = int(rng.integers(1, 12))
        self.form = str(pick(["rows", "ragged", "rank4"]))
        self.attrs, self.args, self.types, self.clauses = [], [], [], []
        self.kwargs: list[dict] = [{} for _ in range(self.seqs)]
        self._operands()
        self._modifiers()

    def _operands(self):
        rng = self.rng
        if self.form == "rank4":
            self.q_lens = [int(rng.integers(1, 5))] * self.seqs
            shape = (self.seqs, self.heads, self.q_lens[0], self.d)
        else:
            ragged = self.form == "ragged"
            self.q_lens = [int(rng.integers(0, 4)) if ragged else 1 for _ in range(self.seqs)]
            shape = (sum(self.q_lens), self.heads, self.d)
        self.q = rounded(rng.standard_normal(shape), self.dtype)
        self.k = rounded(rng.standard_normal((self.seqs, self.kv, self.tokens, self.d)), self.kv_dtype)
        self.v = rounded(rng.standard_normal((self.seqs, self.kv, self.tokens, self.dv)), self.kv_dtype)
        q = swap(self.q, self.layout) if self.form == "rank4" else self.q
        self.add("q", q, self.dtype, dynamic=0)
        self.add("k", swap(self.k, self.layout), self.kv_dtype)
        self.add("v", swap(self.v, self.layout), self.kv_dtype)
        self.lengths = [self.tokens] * self.seqs
        if rng.random() < 0.6:
            self.lengths = [int(rng.integers(0, self.tokens + 1)) for _ in range(self.seqs)]
            self.add("lengths", np.array(self.lengths), str(rng.choice(["i32", "i64"])), clause=True)
        if self.form == "ragged":
            self.add("q_indptr", np.cumsum([0, *self.q_lens]), "i32", clause=True)
        if self.layout == "nhd":
            self.attrs.append("layout = #kvcache.layout<nhd>")

    def add(self, name, x, dtype, clause=False, dynamic=None):
        """An argument of the function, and its clause of the op."""
        shape = [None if i == dynamic else s for i, s in enumerate(np.shape(x))]
        if dtype == "i1":
            self.args.append(x)
        else:
            self.args.append(to_npy(np.asarray(x), dtype))
        self.types.append((name, tensor(shape, dtype)))
        if clause:
            self.clauses.append(f"{name}(%{name} : {tensor(shape, dtype)})")

    def every(self, **kwargs):
        """An option of the oracle for all sequences."""
        for d in self.kwargs:
            d.update(kwargs)

    def _modifiers(self):
        rng = self.rng
        causal = str(rng.choice(["no", "bottom_right", "top_left"]))
        self.every(causal=causal != "no", top_left=causal == "top_left")
        if causal != "no":
            self.attrs.append(f"causal = #kvcache.causal<{causal}>")
        if rng.random() < 0.4:
            left, right = int(rng.integers(0, 6)), int(rng.integers(0, 3))
            both = rng.random() < 0.3
            self.attrs.append(
                f"window = #kvcache.window<left = {left}{f', right = {right}' if both else ''}>"
            )
            self.every(window=left + 1, window_right=right if both else None)
        if rng.random() < 0.3:
            self.attrs.append("softcap = 2.5")
            self.every(softcap=2.5)
        if rng.random() < 0.3:
            self.attrs.append("scale = 0.3")
            self.every(scale=0.3)
        slopes = rng.random()
        if slopes < 0.2:
            self.attrs.append("alibi = array<f32>")
            self.every(alibi_slopes=ref.alibi_slopes(self.heads))
        elif slopes < 0.4:
            values = rounded(rng.random(self.heads), "f32")
            self.add("slopes", values, "f32", clause=True)
            self.every(alibi_slopes=values)
        self._mask()
        if rng.random() < 0.25:
            sinks = rounded(rng.standard_normal(self.heads), "f32")
            self.add("sink_logits", sinks, "f32", clause=True)
            self.every(sink_logits=sinks)

    def _mask(self):
        rng = self.rng
        if rng.random() > 0.5:
            return
        rank4 = self.form == "rank4"
        rows = self.q_lens[0] if rank4 else sum(self.q_lens)
        full = (self.seqs, self.heads, rows, self.tokens) if rank4 else (rows, self.heads, self.tokens)
        shape = [1 if rng.random() < 0.3 else s for s in full[:-1]] + [self.tokens]
        isbool = rng.random() < 0.5
        mask = rng.random(shape) < 0.7 if isbool else rounded(rng.standard_normal(shape), "f32")
        if not isbool:
            mask[rng.random(shape) < 0.2] = -np.inf
        whole = np.broadcast_to(mask, full)
        self.add("mask", swap(mask, self.layout) if rank4 else mask, "i1" if isbool else "f32", clause=True)
        start = 0
        for s, (n, kwargs) in enumerate(zip(self.q_lens, self.kwargs, strict=True)):
            mine = whole[s] if rank4 else whole[start : start + n].transpose(1, 0, 2)
            start += n
            kwargs["mask"] = mine[..., : self.lengths[s]]

    def text(self) -> str:
        lse_shape = self.args[0].shape[:-1]
        out_shape = (*lse_shape, self.dv)
        dynamic = [None, *out_shape[1:]]
        results = f"{tensor(dynamic, self.dtype)}, {tensor(dynamic[:-1], 'f32')}"
        types = dict(self.types)
        order = ["lengths", "q_indptr", "positions", "mask", "slopes", "sink_logits"]
        clauses = " ".join(sorted(self.clauses, key=lambda c: order.index(c.split("(")[0])))
        params = ", ".join(f"%{n}: {t}" for n, t in self.types)
        return (
            f"func.func @f({params}) -> ({results}) {{\n"
            f"  %o, %l = kvcache.attention %q, %k, %v {clauses} {{{', '.join(self.attrs)}}} :"
            f" {types['q']}, {types['k']}, {types['v']} -> {results}\n"
            f"  return %o, %l : {results}\n}}\n"
        )

    def expected(self):
        outs, lses, start = [], [], 0
        for s, n in enumerate(self.lengths):
            q = self.q[s].swapaxes(0, 1) if self.form == "rank4" else self.q[start : start + self.q_lens[s]]
            start += self.q_lens[s]
            kv = [x[s, :, :n].swapaxes(0, 1) for x in (self.k, self.v)]
            o, lse = ref.attention(q, *kv, **self.kwargs[s])
            outs.append(o), lses.append(lse)
        if self.form != "rank4":
            return np.concatenate(outs), np.concatenate(lses)
        out, lse = np.stack(outs), np.stack(lses)
        if self.layout == "hnd":
            return out.swapaxes(1, 2), lse.swapaxes(1, 2)
        return out, lse


@pytest.mark.parametrize("seed", range(40))
def test_attention(seed):
    point = AttentionPoint(seed)
    out, lse = kv_run(point.text(), "f", point.args, 2)
    want, want_lse = point.expected()
    assert error(from_npy(out, point.dtype), want) <= EPS[point.dtype], point.text()
    assert error(lse, want_lse) <= 1e-6, point.text()


def test_empty_rows_nan_and_mean():
    text = "".join(
        f"""
func.func @{mode}(%q: tensor<1x1x1x4xf32>, %k: tensor<1x1x3x4xf32>, %m: tensor<1x1x1x3xi1>)
    -> (tensor<1x1x1x4xf32>, tensor<1x1x1xf32>) {{
  %o, %l = kvcache.attention %q, %k, %k mask(%m : tensor<1x1x1x3xi1>)
    {{empty_rows = #kvcache.empty_rows<{mode}>}} : tensor<1x1x1x4xf32>, tensor<1x1x3x4xf32>,
    tensor<1x1x3x4xf32> -> tensor<1x1x1x4xf32>, tensor<1x1x1xf32>
  return %o, %l : tensor<1x1x1x4xf32>, tensor<1x1x1xf32>
}}"""
        for mode in ("zero", "nan", "mean_all")
    )
    k = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    args = [k[:, :, :1], k, np.zeros((1, 1, 1, 3), bool)]
    for mode, want in (("zero", np.zeros(4)), ("nan", np.full(4, np.nan)), ("mean_all", k[0, 0].mean(0))):
        out, lse = kv_run(text, mode, args, 2)
        np.testing.assert_array_equal(out[0, 0, 0], want)
        assert np.isneginf(lse).all()


def test_positions_and_head_map():
    rng = np.random.default_rng(5)
    q, k, v = rng.standard_normal((3, 2, 4, 6, 8)).astype(np.float32)
    positions = np.sort(rng.integers(0, 30, (2, 1, 6)), axis=2).astype(np.int32)
    text = """
func.func @f(%q: tensor<2x4x8xf32>, %k: tensor<2x4x6x8xf32>, %v: tensor<2x4x6x8xf32>, %p: tensor<2x1x6xi32>)
    -> (tensor<2x4x8xf32>, tensor<2x4xf32>) {
  %o, %l = kvcache.attention %q, %k, %v positions(%p : tensor<2x1x6xi32>)
    {causal = #kvcache.causal<bottom_right>, window = #kvcache.window<left = 9>,
     head_map = array<i64: 3, 1, 1, 0>} : tensor<2x4x8xf32>, tensor<2x4x6x8xf32>,
    tensor<2x4x6x8xf32> -> tensor<2x4x8xf32>, tensor<2x4xf32>
  return %o, %l : tensor<2x4x8xf32>, tensor<2x4xf32>
}"""
    out, lse = kv_run(text, "f", [q[:, :, 0], k, v, positions], 2)
    for s in range(2):
        heads = [x[s, [3, 1, 1, 0]].swapaxes(0, 1) for x in (k, v)]
        at = positions[s, 0] - positions[s, 0, -1] + 5  # the query is the newest token
        want, want_lse = ref.attention(q[s, None, :, 0], *heads, window=10, positions=at)
        assert error(out[s], want[0]) < 2e-6 and error(lse[s], want_lse[0]) < 1e-6


@pytest.mark.parametrize("dtype", FLOATS)
def test_merge_states(dtype):
    rng = np.random.default_rng(6)
    parts = []
    for i in range(3):
        lse = (3 * rng.standard_normal((5, 4))).astype(np.float32)
        lse[i] = -np.inf
        lse[4] = -np.inf
        out = rounded(rng.standard_normal((5, 4, 8)), dtype)
        out[lse == -np.inf] = np.nan  # parts without keys do not count
        parts.append((out, lse))
    o, n = tensor([5, 4, 8], dtype), tensor([5, 4], "f32")
    text = f"""
func.func @f(%a: {o}, %b: {o}, %c: {o}, %x: {n}, %y: {n}, %z: {n}) -> ({o}, {n}) {{
  %o, %l = kvcache.merge_states outs(%a, %b, %c) lses(%x, %y, %z) : {o}, {n}
  return %o, %l : {o}, {n}
}}"""
    args = [to_npy(p[0], dtype) for p in parts] + [p[1] for p in parts]
    out, lse = kv_run(text, "f", args, 2)
    want, want_lse = ref.merge_states([(np.nan_to_num(p[0]), p[1]) for p in parts])
    assert error(from_npy(out, dtype), want) <= EPS[dtype] and error(lse, want_lse) < 1e-6


@pytest.mark.parametrize("rule", ["raw", "clamp", "wrap"])
@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_page_gather(rule, layout):
    rng = np.random.default_rng(7)
    pool = rng.integers(-100, 100, (7, 2, 4, 3)).astype(np.int8)
    table = rng.integers(0, 7, (3, 2, 5)) if rule == "raw" else rng.integers(-9, 12, (3, 2, 5))
    number = {"raw": table, "clamp": np.clip(table, 0, 6)}.get(
        rule, np.clip(np.where(table < 0, table + 7, table), 0, 6)
    )
    want = np.stack([np.stack([pool[number[s, h], h] for h in range(2)]) for s in range(3)])
    want = want.reshape(3, 2, 20, 3)
    pool_in = swap(pool, layout)
    a, r = tensor(pool_in.shape, "i8"), tensor(swap(want, layout).shape, "i8")
    text = f"""
func.func @f(%p: {a}, %t: tensor<3x2x5xi64>) -> {r} {{
  %x = kvcache.page_gather %p, %t {{layout = #kvcache.layout<{layout}>,
    table_rule = #kvcache.table_rule<{rule}>}} : {a}, tensor<3x2x5xi64> -> {r}
  return %x : {r}
}}"""
    (out,) = kv_run(text, "f", [pool_in, table.astype(np.int64)], 1)
    np.testing.assert_array_equal(out, swap(want, layout))
