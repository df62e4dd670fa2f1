"""The oracle itself: hand-computed values, and ml_dtypes as a second opinion."""

import numpy as np
import pytest
from oracle import reference as ref
from page_model import PageModel


def test_causal_is_bottom_right_and_empty_rows_are_zero():
    out, lse = ref.attention(np.zeros((4, 1, 8)), np.zeros((2, 1, 8)), np.ones((2, 1, 8)))
    assert out[:, 0, 0].tolist() == [0, 0, 1, 1]
    assert np.isneginf(lse[:2, 0]).all()
    np.testing.assert_allclose(lse[2:, 0], [0, np.log(2)])


def test_window_counts_the_current_token():
    v = np.arange(8.0).reshape(8, 1, 1)
    out, _ = ref.attention(np.zeros((8, 1, 1)), np.zeros((8, 1, 1)), v, window=4)
    assert out[7, 0, 0] == 5.5 and out[2, 0, 0] == 1


def test_softcap_precedes_the_mask():
    k = np.array([100.0, 0.0]).reshape(2, 1, 1)
    v = np.array([1.0, 0.0]).reshape(2, 1, 1)
    out, _ = ref.attention(np.ones((1, 1, 1)), k, v, softcap=5.0, scale=1.0)
    np.testing.assert_allclose(out[0, 0, 0], 0.993307, atol=1e-6)


def test_sink_logit_joins_the_denominator():
    out, lse = ref.attention(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)), sink_logits=[0.0])
    np.testing.assert_allclose([out[0, 0, 0], lse[0, 0]], [0.5, np.log(2)])


def test_alibi_slopes_of_other_head_counts():
    assert ref.alibi_slopes(6).tolist() == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]


@pytest.mark.parametrize("element,name", [("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")])
def test_fp8_against_ml_dtypes(element, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(20000) * np.exp(3 * rng.standard_normal(20000))).astype(np.float32)
    top = 448.0 if element == "e4m3" else 57344.0
    x = np.clip(x, -top, top)
    want = x.astype(getattr(ml_dtypes, name)).view(np.uint8)
    assert (ref.encode_fp8(x, element) == want).all()
    bits = np.arange(256, dtype=np.uint8)
    want = bits.view(getattr(ml_dtypes, name)).astype(np.float32)
    np.testing.assert_array_equal(ref.decode_fp8(bits, element), want)


def test_fp8_saturates():
    x = [448, 464, 465, 1000, -1000, np.inf, -np.inf, np.nan]
    assert ref.encode_fp8(x, "e4m3").tolist() == [0x7E] * 4 + [0xFE, 0x7E, 0xFE, 0x7F]


def test_bf16_rounding_against_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(2).standard_normal(9999).astype(np.float32)
    np.testing.assert_array_equal(ref.round_bf16(x), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_constant_groups_survive_half_precision_scales():
    for enc in ("i8", "i4", "i4:channel", "i8:head:sym", "e4m3"):
        for value in (3.7, 0.0, -1e-30):
            x = np.full((32, 16), value, np.float32)
            back = ref.dequantize(*ref.quantize(x, enc), enc)
            assert np.isfinite(back).all()
            if value == 0:
                assert not back.any()
            if value == 3.7:
                assert np.abs(back - 3.7).max() < 0.15


def test_pages_seal_by_length_only():
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, 200, 1, 16)).astype(np.float16)
    whole = PageModel("i4:channel:g32", "i4:token:g16", page=32, recent=32)
    whole.append(k, v)
    bits = whole.fork()
    bits.data, bits.sealed = [], set()
    for i in range(0, 200, 7):
        bits.append(k[i : i + 7], v[i : i + 7])
    assert whole.coded_tokens() == bits.coded_tokens() == 160
    np.testing.assert_array_equal(whole.data[0], bits.data[0])
    whole.truncate(150)
    assert len(whole) == 150 and whole.coded_tokens() == 128
