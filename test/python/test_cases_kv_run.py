"""Handed cases through the IR: kv-run on plain tensors and on our own pages.

The same cases through PagedCache are in test_cases_*.py.
"""

import numpy as np
import pytest
from arrays import tensor, to_npy
from cache_point import CachePoint
from kvrun import KvRunError, kv_run, needs_kv_run
from oracle import reference as ref

pytestmark = needs_kv_run

CAUSAL = "causal = #kvcache.causal<bottom_right>"


def attend(q, k, v, attrs="", dtype="f32", mask=None, flags=()):
    """One sequence: q [tq, heads, d], k and v [tk, kv, d] -> out [tq, heads, dv], lse."""
    args = [to_npy(np.asarray(x, np.float32).swapaxes(0, 1)[None], dtype) for x in (q, k, v)]
    types = [tensor(a.shape, dtype) for a in args]
    names, clause = "%q: {}, %k: {}, %v: {}".format(*types), ""
    if mask is not None:
        kind = tensor(mask.shape, "i1" if mask.dtype == bool else "f32")
        names += f", %m: {kind}"
        clause = f" mask(%m : {kind})"
        args.append(mask)
    out = tensor((*args[0].shape[:-1], args[2].shape[-1]), dtype)
    lse = tensor(args[0].shape[:-1], "f32")
    text = f"""
func.func @f({names}) -> ({out}, {lse}) {{
  %o, %l = kvcache.attention %q, %k, %v{clause} {{{attrs}}} : {", ".join(types)} -> {out}, {lse}
  return %o, %l : {out}, {lse}
}}"""
    o, n = kv_run(text, "f", args, 2, *flags)
    return o[0].swapaxes(0, 1), n[0].swapaxes(0, 1)


def numbers(n, d=1):
    """V[j] = j."""
    return np.repeat(np.arange(n, dtype=np.float32).reshape(n, 1, 1), d, axis=2)


def test_case_c01_empty_rows():
    out, lse = attend(np.zeros((4, 1, 1)), np.zeros((2, 1, 1)), np.ones((2, 1, 1)), CAUSAL)
    assert out[:, 0, 0].tolist() == [0, 0, 1, 1]
    assert np.isneginf(lse[:2, 0]).all()
    np.testing.assert_allclose(lse[2:, 0], [0, np.log(2)], atol=1e-6)


@pytest.mark.parametrize("attrs", ["", CAUSAL])
def test_case_c03_zero_length_inputs(attrs):
    out, lse = attend(np.zeros((3, 2, 4)), np.zeros((0, 1, 4)), np.zeros((0, 1, 4)), attrs)
    assert not out.any() and np.isneginf(lse).all()
    out, lse = attend(np.zeros((0, 2, 4)), np.zeros((3, 1, 4)), np.zeros((3, 1, 4)), attrs)
    assert out.shape == (0, 2, 4) and lse.shape == (0, 2)


def test_case_c03_zero_lengths_in_a_batch_of_caches():
    for lengths in ([0, 0], [0, 3]):
        point = CachePoint("f16", "f16", 4, lengths, steps=1)
        point.build()
        out, lse, *_ = kv_run(point.text, "f", point.args, 5)
        assert not out[0].any() and np.isneginf(lse[0]).all()
        assert np.isfinite(lse[1]).all() == (lengths[1] > 0)


def test_case_c06_very_negative_scores():
    q, k = np.full((1, 1, 64), 64.0), np.full((2, 1, 64), -64.0)
    v = np.array([7.0, 1000.0]).reshape(2, 1, 1)
    for n, mask in ((1, None), (2, np.array([[[[True, False]]]]))):
        out, lse = attend(q, k[:n], v[:n], "scale = 1.0", "bf16", mask)
        assert (out.astype(np.uint32) << 16).view(np.float32)[0, 0, 0] == 7 and lse[0, 0] == -262144


def test_case_c07_first_tiles_masked():
    mask = np.ones((1, 1, 4, 256), bool)
    mask[..., 1, :128] = False
    mask[..., 2, :] = False
    out, lse = attend(np.zeros((4, 1, 1)), np.zeros((256, 1, 1)), numbers(256), mask=mask)
    np.testing.assert_allclose(out[:, 0, 0], [127.5, 191.5, 0, 127.5], rtol=1e-6)
    assert np.isneginf(lse[2, 0]) and np.isfinite(lse[[0, 1, 3], 0]).all()


def test_case_c08_two_causal_alignments():
    v = np.arange(1.0, 6.0).reshape(5, 1, 1)
    zero = np.zeros
    top_left = "causal = #kvcache.causal<top_left>"
    cases = [(2, 5, [2.5, 3], [1, 1.5]), (1, 5, [3], [1]), (5, 2, [0, 0, 0, 1, 1.5], [1, 1.5, 1.5, 1.5, 1.5])]
    for tq, tk, native, imported in cases:
        for attrs, want in ((CAUSAL, native), (top_left, imported)):
            out, _ = attend(zero((tq, 1, 1)), zero((tk, 1, 1)), v[:tk], attrs)
            np.testing.assert_allclose(out[:, 0, 0], want, rtol=1e-6)


@pytest.mark.parametrize("flags", [(), ("--no-fuse",)])
def test_case_c09_poisoned_tail(flags):
    """What lies in pools before, and past every length, does not show."""
    results = []
    for poison in (np.nan, np.inf, 0.0):
        point = CachePoint("f16", "f16", 4, [13], steps=1)
        point.build()
        fill = to_npy(np.full(1, poison), "f16").view(np.int8)
        for i in (1, 2):
            point.args[i] = np.tile(fill, len(point.args[i]) // 2)
        results.append(kv_run(point.text, "f", point.args, 5, *flags)[:2])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("heads", [(28, 4), (24, 4), (10, 2), (12, 2), (64, 1), (48, 2)])
def test_case_c17_odd_head_ratios(heads):
    rng = np.random.default_rng(heads[0])
    q = rng.standard_normal((2, heads[0], 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 33, heads[1], 16)).astype(np.float32)
    out, lse = attend(q, k, v, CAUSAL)
    want, want_lse = ref.attention(q, k, v)
    np.testing.assert_allclose(out, want, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, atol=2e-6)


@pytest.mark.parametrize("heads", [(3, 2), (33, 2), (2, 4)])
def test_case_c17_refused_ratios(heads):
    with pytest.raises(KvRunError) as error:
        attend(np.zeros((1, heads[0], 8)), np.zeros((3, heads[1], 8)), np.zeros((3, heads[1], 8)))
    assert str(heads[0]) in str(error.value) and str(heads[1]) in str(error.value)


def test_case_c23_window():
    window = CAUSAL + ", window = #kvcache.window<left = {}>"
    q, v = np.zeros((8, 1, 1)), numbers(8)
    out, _ = attend(q, q, v, window.format(3))
    assert out[7, 0, 0] == 5.5 and out[2, 0, 0] == 1
    for i in range(8):
        step, _ = attend(q[:1], q[: i + 1], v[: i + 1], window.format(3))
        assert step[0, 0, 0] == out[i, 0, 0]
    np.testing.assert_array_equal(attend(q, q, v, window.format(0))[0][:, 0, 0], np.arange(8))
    np.testing.assert_array_equal(attend(q, q, v, window.format(7))[0], attend(q, q, v, CAUSAL)[0])


def test_case_c43_softcap_before_the_mask():
    k, v = np.array([0.0, 50.0]).reshape(2, 1, 1), np.array([0.0, 1.0]).reshape(2, 1, 1)
    mask = np.array([[[[True, False]]]])
    out, _ = attend(np.ones((1, 1, 1)), k, v, "softcap = 1.0, scale = 1.0", mask=mask)
    assert out[0, 0, 0] == 0
    k, v = np.array([100.0, 0.0]).reshape(2, 1, 1), v[::-1]
    out, _ = attend(np.ones((1, 1, 1)), k, v, "softcap = 5.0, scale = 1.0")
    np.testing.assert_allclose(out[0, 0, 0], 0.993307, atol=1e-6)


def test_case_c51_broadcast_masks():
    rng = np.random.default_rng(51)
    q, k, v = rng.standard_normal((3, 12, 4, 8)).astype(np.float32)
    for isbool in (True, False):
        full = rng.random((1, 4, 12, 12)) < 0.7 if isbool else rng.standard_normal((1, 4, 12, 12))
        full = full if isbool else full.astype(np.float32)
        for mask in (full[:, :1, :1], full[:, :1], full):
            a = attend(q, k, v, mask=mask)
            b = attend(q, k, v, mask=np.ascontiguousarray(np.broadcast_to(mask, full.shape)))
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)


def test_case_c54_one_function_many_lengths():
    t, o = "tensor<1x1x1x1xf32>", "tensor<1x1x1xf32>"
    text = f"""
func.func @f(%q: {t}, %k: tensor<1x1x?x1xf32>, %v: tensor<1x1x?x1xf32>) -> ({t}, {o}) {{
  %o, %l = kvcache.attention %q, %k, %v : {t}, tensor<1x1x?x1xf32>, tensor<1x1x?x1xf32> -> {t}, {o}
  return %o, %l : {t}, {o}
}}"""
    for n in (1, 10, 31, 32, 33, 65):
        k = np.zeros((1, 1, n, 1), np.float32)
        assert kv_run(text, "f", [k[:, :, :1], k, k + 1], 2)[0].item() == 1
        out = kv_run(text, "f", [k[:, :, :1], k, numbers(n).reshape(1, 1, n, 1)], 2)[0].item()
        np.testing.assert_allclose(out, (n - 1) / 2, rtol=1e-6)


def test_case_c55_scores_above_65504():
    q, k = np.full((1, 1, 128), 32.0), np.full((2, 1, 128), 32.0)
    k[1, 0, 0] = 31.984375
    out, _ = attend(q, k, np.array([1.0, 0.0]).reshape(2, 1, 1), dtype="f16")
    np.testing.assert_allclose(out[0, 0, 0], 0.511047, atol=5e-4)


def test_case_c57_one_unit_for_lse():
    zero = np.zeros
    out, lse = attend(zero((1, 1, 1)), zero((8, 1, 1)), numbers(8))
    np.testing.assert_allclose(lse[0, 0], 2.079442, atol=1e-6)


@pytest.mark.parametrize("flags", [(), ("--no-fuse",)])
def test_case_c64_table_bounds(flags):
    """Two pages of 4 tokens: nine tokens need a third; a bad number is named."""
    point = CachePoint("f16", "f16", 4, [9], steps=1)
    point.pages = 2
    point.tables = lambda: [np.array([[0, 1]], np.int32)] * 2
    point.build()
    with pytest.raises(KvRunError, match="has 9 tokens and needs 3 pages, its table holds 2"):
        kv_run(point.text, "f", point.args, 5, *flags)
    for bad in (-1, -7, 999):
        point = CachePoint("f16", "f16", 4, [6], steps=1)
        point.tables = lambda bad=bad: [np.array([[0, bad, -1]], np.int32)] * 2
        point.build()
        with pytest.raises(KvRunError, match=f"sequence 0: entry 1 of its page table is {bad}, expected"):
            kv_run(point.text, "f", point.args, 5, *flags)


def test_case_c12_append_refuses_what_cannot_be_stored():
    for value in (np.nan, np.inf, 1e6):
        point = CachePoint("i4:channel", "i4", 4, [5], steps=1, dtype="f32")
        point.k[0][3, 1, 2] = value
        point.build()
        with pytest.raises(KvRunError, match="of the appended tokens holds a value that is not finite or"):
            kv_run(point.text, "f", point.args, 5)


@pytest.mark.parametrize("n", [1, 63, 65, 70, 129])
def test_case_c74_partial_last_block(n):
    q, k = np.ones((1, 1, 1)), np.full((n, 1, 1), -10.0)
    out, lse = attend(q, k, np.ones((n, 1, 1)), "scale = 1.0")
    np.testing.assert_allclose(out[0, 0, 0], 1, rtol=1e-6)
    np.testing.assert_allclose(lse[0, 0], np.log(n) - 10, rtol=1e-6)
