"""Arguments at the edge of what the array functions and `attend` take."""

import numpy as np
import pytest

import kvcache as kv


@pytest.mark.parametrize("fmt", ["f16", "int8,page=4", "key=i4:channel:g4,value=i8:token,page=4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_query_is_nan_not_empty(fmt: str, bad: float) -> None:
    cache = kv.PagedCache(kv.AttentionSpec(q_heads=4, kv_heads=2, head_dim=64, format=fmt), 256)
    rng = np.random.default_rng(0)
    seqs = [cache.new_sequence() for _ in range(2)]
    x = rng.standard_normal((13, 2, 64)).astype(np.float16)
    cache.append(seqs[0], x, x)
    cache.append(seqs[1], x[:1], x[:1])
    q = rng.standard_normal((4, 4, 64)).astype(np.float16)
    clean, clean_lse = cache.attend(q, seqs, q_lens=[2, 2])
    q[1, 2, 5] = q[2, 0, 0] = q[3, 1, 63] = bad
    out, lse = cache.attend(q, seqs, q_lens=[2, 2])
    nan = np.zeros((4, 4), bool)
    nan[1, 2] = nan[3, 1] = True  # row 2 lies before token 0: empty whatever it holds
    assert np.isnan(out[nan]).all() and np.isnan(lse[nan]).all()
    assert (out[~nan] == clean[~nan]).all() and (lse[~nan] == clean_lse[~nan]).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 1e39])
def test_static_scale_is_checked(scale: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number above 0"):
        kv.quantize(np.ones((4, 8), np.float32), "i8:tensor", scale=scale)


@pytest.mark.parametrize(
    "encoding, scales",
    [("i8:channel", (0, 8)), ("i4:channel:g4:sym", (0, 8)), ("i8:token:g4", (0, 2)), ("i4:head", (1, 1))],
)
def test_no_tokens(encoding: str, scales: tuple[int, int]) -> None:
    codes, scale, zero = kv.quantize(np.zeros((3, 0, 8), np.float32), encoding)
    assert codes.shape == (3, 0, 8)
    assert scale.shape == (3, *scales)
    assert (zero is None) == encoding.endswith("sym")
    assert zero is None or zero.shape == (3, *scales)
    assert kv.dequantize(codes, scale, zero, encoding).shape == (3, 0, 8)


def test_sparsify_nothing_and_bad_axes() -> None:
    values, metadata = kv.sparsify(np.zeros((0, 8), np.float16))
    assert values.shape == (0, 4) and metadata.shape == (0, 2)
    assert kv.densify(values, metadata).shape == (0, 8)
    for axis in ("a", 1.5, True, 2):
        with pytest.raises(ValueError, match="axis"):
            kv.sparsify(np.zeros((4, 8), np.float16), axis=axis)


@pytest.mark.parametrize("states", [None, 3, [1], [(1, 2, 3)], {}])
def test_merge_states_takes_pairs(states: object) -> None:
    with pytest.raises(ValueError, match="states is"):
        kv.merge_states(states)


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"softcap": -1.0},
        {"alibi_slopes": [1.0]},
        {"sink_logits": 0.0},
        {"k": np.zeros((5, 2, 8))},
    ],
)
def test_oracle_refuses_what_would_broadcast(wrong: dict) -> None:
    arrays = {"q": np.zeros((1, 2, 8)), "k": np.zeros((4, 2, 8)), "v": np.zeros((4, 2, 8))}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kv.reference.attention(**{**arrays, **wrong})


def test_save_takes_a_path() -> None:
    spec = kv.AttentionSpec(q_heads=2, kv_heads=1, head_dim=16, format="f16,page=16")
    with pytest.raises(ValueError, match="folder is None"):
        kv.compile(spec, target="sm_80").save(None)
