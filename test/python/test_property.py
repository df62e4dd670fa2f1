"""Random caches: the fused CPU kernel against the reference on the decoded cache.

Each point makes a cache of a random spec, runs a random history of append, fork,
truncate and free (which seals on the way), and checks three things: `read` returns
what a model without pages says, `attend` is within the interface's bounds of the
float64 reference on it, and a sequence's bits do not depend on its batch or on the
number of threads.

A failure prints the command that repeats its point alone.
"""

from __future__ import annotations

import numpy as np
import pytest
from page_model import PageModel
from points import DTYPES, SPECS_PER_RUN, bounds, make_model, make_spec

import kvcache as kv
from kvcache import _native

CAPACITY = 6144


class Point:
    """One random history on one spec."""

    def __init__(self, seed: int, index: int, capture: dict[str, np.ndarray]) -> None:
        which = index % SPECS_PER_RUN
        self.spec = make_spec(np.random.default_rng([seed, which]), which)
        self.rng = np.random.default_rng([seed, which, index])
        self.capture = capture if which % 4 == 0 else None
        h = self.spec.kv_heads
        scales = [np.exp2(self.rng.integers(-6, -3, h)).astype(np.float32) for _ in range(2)]
        static = ["tensor" in e for e in (self.spec.format.key, self.spec.format.value)]
        self.cache = kv.PagedCache(
            self.spec,
            CAPACITY,
            k_scale=scales[0] if static[0] else None,
            v_scale=scales[1] if static[1] else None,
        )
        self.scales = scales
        self.model: dict[int, PageModel] = {}

    def new(self) -> None:
        self.model[self.cache.new_sequence()] = make_model(self.spec, *self.scales)

    def any_sequence(self) -> int:
        return int(self.rng.choice(list(self.model)))

    def rows(self, at: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """New keys and values; real ones continue the capture."""
        s, rng = self.spec, self.rng
        if self.capture is not None:
            index = (at + np.arange(n)) % len(self.capture["k"])
            return self.capture["k"][index], self.capture["v"][index]
        spread = np.exp(rng.standard_normal(s.head_dim) * 0.7)
        k = (rng.standard_normal((n, s.kv_heads, s.head_dim)) * spread).astype(DTYPES[s.dtype])
        return k, rng.standard_normal((n, s.kv_heads, s.value_dim)).astype(DTYPES[s.dtype])

    def queries(self, n: int) -> np.ndarray:
        s = self.spec
        if self.capture is not None:
            return self.capture["q"][self.rng.integers(0, len(self.capture["q"]), n)]
        return self.rng.standard_normal((n, s.q_heads, s.head_dim)).astype(DTYPES[s.dtype])

    def append(self) -> None:
        seq, page = self.any_sequence(), self.spec.format.page
        n = int(self.rng.choice([1, 1, 2, page - 1, page, page + 1, 3 * page, self.rng.integers(1, 500)]))
        n = min(max(n, 1), 500)
        k, v = self.rows(self.cache.length(seq), n)
        before = self.cache.length(seq)
        try:
            self.cache.append(seq, k, v)
        except kv.CacheFull:
            assert self.cache.length(seq) == before
            return
        self.model[seq].append(k, v)

    def step(self) -> None:
        what = self.rng.integers(0, 10)
        if what == 0 or not self.model:
            self.new()
        elif what == 1 and len(self.model) < 5:
            seq = self.any_sequence()
            self.model[self.cache.fork(seq)] = self.model[seq].fork()
        elif what == 2:
            seq = self.any_sequence()
            n = int(self.rng.integers(0, self.cache.length(seq) + 1))
            self.cache.truncate(seq, n)
            self.model[seq].truncate(n)
        elif what == 3 and len(self.model) > 2:
            seq = self.any_sequence()
            self.cache.free(seq)
            del self.model[seq]
        else:
            self.append()

    def check_contents(self) -> None:
        for seq, want in self.model.items():
            assert self.cache._native.sealed_tokens(seq) == want.coded_tokens()
            for got, expected in zip(self.cache.read(seq), want.data, strict=bool(want.data)):
                assert got.shape == expected.shape
                tolerance = 3e-7 * np.abs(expected).max(initial=0)  # the oracle rounds twice
                assert np.abs(got - expected).max(initial=0) <= tolerance, (
                    f"sequence {seq} reads back differently"
                )

    def check_attention(self) -> None:
        spec = self.spec
        seqs = list(self.model)
        lens = [int(n) for n in self.rng.choice([0, 1, 1, 1, 2, 5], len(seqs))]
        q = self.queries(sum(lens))
        _native.set_num_threads(2)
        out, lse = self.cache.attend(q, seqs, lens)
        _native.set_num_threads(1)
        single = self.cache.attend(q, seqs, lens)
        _native.set_num_threads(0)
        assert out.tobytes() == single[0].tobytes() and lse.tobytes() == single[1].tobytes(), "threads show"
        row = 0
        for seq, n in zip(seqs, lens, strict=True):
            part = slice(row, row + n)
            row += n
            alone = self.cache.attend(q[part], [seq], [n])
            assert alone[0].tobytes() == out[part].tobytes(), f"sequence {seq}: the batch shows"
            assert alone[1].tobytes() == lse[part].tobytes(), f"sequence {seq}: the batch shows"
            want, want_lse = kv.reference.attention(
                q[part],
                *self.cache.read(seq),
                causal=spec.causal,
                window=spec.window,
                softcap=spec.softcap,
                alibi_slopes=spec._slopes,
                scale=spec.scale,
            )
            before = max(0, n - self.cache.length(seq))  # rows before token 0 are empty, causal or not
            want[:before], want_lse[:before] = 0, -np.inf
            self.compare(seq, out[part], lse[part], want, want_lse)

    def compare(self, seq: int, out, lse, want: np.ndarray, want_lse: np.ndarray) -> None:
        bound, lse_bound = bounds(self.spec)
        out = out.astype(np.float64)
        assert np.isfinite(out).all()
        empty = np.isneginf(want_lse)
        assert (np.isneginf(lse) == empty).all() and not out[empty].any(), f"sequence {seq}: empty rows"
        norm = np.linalg.norm(want)
        error = np.linalg.norm(out - want) / norm if norm else np.abs(out).max(initial=0)
        assert error <= bound, f"sequence {seq}: error {error:.2e}, allowed {bound:.0e}"
        off = np.abs(lse[~empty] - want_lse[~empty]) / np.maximum(1, np.abs(want_lse[~empty]))
        assert off.max(initial=0) <= lse_bound, f"sequence {seq}: lse off by {off.max():.2e}"

    def run(self) -> None:
        self.new()
        for _ in range(int(self.rng.integers(4, 14))):
            self.step()
        self.check_contents()
        self.check_attention()
        for seq in list(self.model):
            self.cache.free(seq)
        assert self.cache.stats()["bytes_held"] == 0


def run_point(seed: int, index: int, capture: dict[str, np.ndarray]) -> str | None:
    """None, or one line that says what failed and how to repeat it."""
    spec = "?"
    try:
        point = Point(seed, index, capture)
        spec = str(point.spec)
        point.run()
    except Exception as error:  # noqa: BLE001 - whatever happens belongs to this point
        what = str(error).splitlines()[0] if str(error) else ""
        return (
            f"pytest test/python/test_property.py --point={seed}:{index}   "
            f"# {type(error).__name__}: {what} [{spec}]"
        )
    return None


@pytest.mark.parametrize("which", range(SPECS_PER_RUN))
def test_random_points(which: int, request: pytest.FixtureRequest, capture: dict[str, np.ndarray]) -> None:
    """All points of one spec (one compiled kernel)."""
    if one := request.config.getoption("--point"):
        seed, index = (int(part) for part in one.split(":"))
        if index % SPECS_PER_RUN != which:
            pytest.skip("another point was asked for")
        Point(seed, index, capture).run()
        return
    seed, count = request.config.getoption("--seed"), request.config.getoption("--points")
    results = [run_point(seed, index, capture) for index in range(which, count, SPECS_PER_RUN)]
    failed = [line for line in results if line]
    assert not failed, "\n".join(["", *failed])
