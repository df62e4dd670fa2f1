"""Written-out paged attention: fused, op by op, and the oracle agree."""

import numpy as np
import pytest
from arrays import from_npy
from graph_point import GraphPoint
from kvrun import KvRunError, kv_run, needs_kv_run, opt

pytestmark = needs_kv_run


def relative(a, b) -> float:
    size = np.linalg.norm(b)
    return float(np.linalg.norm(np.asarray(a, np.float64) - b) / (size if size else 1))


def check(point: GraphPoint, *flags: str) -> None:
    out, lse = kv_run(point.text, "f", point.args, 2, *flags)
    want, want_lse = point.expected()
    bound = 1e-5 if point.dtype == "f32" else 2e-3
    out = from_npy(out, point.dtype)
    for s in range(point.seqs):
        assert relative(out[s], want[s]) <= bound, point.text
        np.testing.assert_allclose(lse[s], want_lse[s], rtol=bound, atol=bound)


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed):
    point = GraphPoint(seed)
    fused = opt(point.text, "--kvcache-fuse")
    assert "page_gather" not in fused and "dequantize" not in fused, fused
    assert fused.count("kvcache.view") == 1
    check(point)
    if seed % 3 == 0:
        check(point, "--no-fuse")


@pytest.mark.parametrize("flags", [(), ("--no-fuse",)])
def test_case_c64_bad_page_numbers_are_reported(flags):
    """A bad number in the used part is named with its place; elsewhere nobody looks."""
    for bad in (-1, -7, 999):
        point = GraphPoint(1, rule="raw", lists=False, lengths=[37, 0, 1], page=8, attrs=[])
        table = point.args[1]
        table[0, 2] = bad
        with pytest.raises(KvRunError) as error:
            kv_run(point.text, "f", point.args, 2, *flags)
        assert f"sequence 0: entry 2 of its page table is {bad}, expected a page from 0 to 18" in str(
            error.value
        )


def test_case_c64_too_long_for_the_table():
    point = GraphPoint(2, lengths=[41, 3, 0], page=8, attrs=[])
    with pytest.raises(KvRunError, match="41 tokens and needs 6 pages, its table holds 5"):
        kv_run(point.text, "f", point.args, 2)


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_case_c65_as_many_heads_as_tokens(layout):
    """Heads and tokens of a page are both 8: the layout alone tells them apart."""
    point = GraphPoint(3, layout=layout, page=8)
    point.kv = 8
    point.heads = 8
    point.params, point.body = [], []
    point._build()
    check(point)
    check(point, "--no-fuse")


def test_case_c66_gaps_do_not_show():
    """K and V in one buffer, gaps between them full of NaN: bit for bit the separate pools."""
    one = GraphPoint(4, interleaved=True, key="none", layout="nhd", lists=False)
    both = one.args[3]
    assert np.isnan(both[:, 1]).all()
    two = GraphPoint(4, interleaved=True, key="none", layout="nhd", lists=False)
    two.args[3] = both.copy()
    two.args[3][:, 1] = 0
    a, b = (kv_run(p.text, "f", p.args, 2) for p in (one, two))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
    check(one)


def test_case_c13_pages_behind_the_window_are_not_looked_at():
    point = GraphPoint(
        5, rule="raw", lists=False, lengths=[40], page=8, attrs=["window = #kvcache.window<left = 11>"]
    )
    want = kv_run(point.text, "f", point.args, 2)
    for garbage in (-1, 999):
        point.args[1][0, :3] = garbage
        for x, y in zip(kv_run(point.text, "f", point.args, 2), want, strict=True):
            np.testing.assert_array_equal(x, y)
