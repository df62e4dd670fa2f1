"""quantize and dequantize against the oracle, every encoding."""

import numpy as np
import pytest
from arrays import FLOATS, from_npy, rounded, tensor, to_npy
from kvrun import kv_run, needs_kv_run
from oracle import reference as ref

pytestmark = needs_kv_run

MLIR_ELEMENT = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}
ENCODINGS = [
    f"{e}:{kind}:{mode}{stype}"
    for e in ("i8", "i4", "i2")
    for kind in ("channel", "channel:g8", "token", "token:g8", "head", "tensor")
    for mode in ("asym", "sym")
    for stype in (":sf32", "", ":sbf16")
    if (kind != "tensor" or mode == "sym") and (stype == "" or e == "i4")
]
ENCODINGS += [
    "i1:channel:asym",
    "i1:token:g8:asym",
    "f16",
    "bf16",
    "f32",
    "e4m3",
    "e5m2:token",
    "e4m3:tensor",
]


def scales_text(e: ref.Encoding, codes, dtype: str):
    """Shapes of scales (and zeros) for codes [heads, tokens, channels]."""
    h, t, c = codes
    group = e.group
    shape = {"channel": (h, t // (group or t), c), "token": (h, t, c // (group or c))}.get(e.scale, (h, 1, 1))
    return tensor(shape, dtype)


def code_functions(text: str, x_type: str):
    """MLIR of a quantize and a dequantize of x [2, 16, 24] under an encoding."""
    e = ref.parse_encoding(text)
    shape = (2, 16, 24)
    x, codes = tensor(shape, x_type), tensor(shape, MLIR_ELEMENT.get(e.element, e.element))
    s = scales_text(e, shape, e.stype)
    params = [] if e.scale == "none" else [s, s] if e.asym else [s]
    computed = [] if e.scale == "tensor" else params
    static = " scale(%s : tensor<2x1x1xf32>)" if e.scale == "tensor" else ""
    extra = ", %s: tensor<2x1x1xf32>" if static else ""
    count = len(computed)
    bind = f"%c, %p:{count}" if count else "%c"
    back = "".join(f", %p#{i}" for i in range(count))
    attr = f'{{encoding = #kvcache.encoding<"{text}">}}'
    results = ", ".join([codes, *computed])
    given = "".join(f", %p{i}: {t}" for i, t in enumerate(params))
    names = "".join(f", %p{i}" for i in range(len(params)))
    types = ", ".join([codes, *params])
    return f"""
func.func @quantize(%x: {x}{extra}) -> ({results}) {{
  {bind} = kvcache.quantize %x{static} {attr} : {x} -> {results}
  return %c{back} : {results}
}}
func.func @dequantize(%c: {codes}{given}) -> tensor<2x16x24xf32> {{
  %x = kvcache.dequantize %c{names} {attr} : {types} -> tensor<2x16x24xf32>
  return %x : tensor<2x16x24xf32>
}}"""


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_quantize_and_dequantize(encoding):
    e = ref.parse_encoding(encoding)
    rng = np.random.default_rng(len(encoding))
    dtype = FLOATS[len(encoding) % 3]
    x = rounded(rng.standard_normal((2, 16, 24)) * np.exp(rng.standard_normal(24)), dtype)
    x[0, 3] = 2.5
    x[1, :, 4] = 0
    static = np.float32([0.03, 0.5]).reshape(2, 1, 1)
    given = static.reshape(2, 1, 1, 1, 1) if e.scale == "tensor" else 1
    codes, scale, zero = ref.quantize(x, e, given)
    text = code_functions(encoding, dtype)
    tensor_scale = e.scale == "tensor"
    args = [to_npy(x, dtype), *([static] if tensor_scale else [])]
    params = [] if tensor_scale else [p for p in (scale, zero) if p is not None]
    got, *got_params = kv_run(text, "quantize", args, 1 + len(params))
    if e.scale == "none":
        np.testing.assert_array_equal(from_npy(got, e.element), codes)
    else:
        mask = 255 if e.element in ("e4m3", "e5m2") else (1 << int(e.element[1:])) - 1
        np.testing.assert_array_equal(got.astype(np.int64) & mask, codes.astype(np.int64) & mask)
    for a, b in zip(got_params, params, strict=True):
        np.testing.assert_array_equal(from_npy(a, e.stype), b)
    if tensor_scale:
        static = rounded(static, e.stype)
        scale, params = static, [static]
    stored = to_npy(codes, e.element) if e.scale == "none" else codes
    (back,) = kv_run(text, "dequantize", [stored, *(to_npy(p, e.stype) for p in params)], 1)
    np.testing.assert_array_equal(back, ref.dequantize(codes, scale, zero, e))


def quantize_static(encoding: str, x) -> np.ndarray:
    e = ref.parse_encoding(encoding)
    element = MLIR_ELEMENT.get(e.element, e.element)
    text = f"""
func.func @f(%x: tensor<1x8xf32>, %s: tensor<1x1xf32>) -> tensor<1x8x{element}> {{
  %c = kvcache.quantize %x scale(%s : tensor<1x1xf32>) {{encoding = #kvcache.encoding<"{encoding}">}}
    : tensor<1x8xf32> -> tensor<1x8x{element}>
  return %c : tensor<1x8x{element}>
}}"""
    return kv_run(text, "f", [np.float32([x]), np.ones((1, 1), np.float32)], 1)[0][0]


def test_case_c31_saturation():
    x = [448, 464, 465, 1000, -1000, np.inf, -np.inf, np.nan]
    assert quantize_static("e4m3:tensor", x).tolist() == [0x7E] * 4 + [0xFE, 0x7E, 0xFE, 0x7F]
    x = [127, 128, 1e9, -128, -1e9, np.inf, -np.inf, np.nan]
    assert quantize_static("i8:tensor", x).tolist() == [127, 127, 127, -127, -127, 127, -127, 0]


@pytest.mark.parametrize("channels", [96, 80, 112])
def test_case_c35_range_without_zero(channels):
    x = np.random.default_rng(channels).uniform(10, 11, (4, channels)).astype(np.float32)
    back = round_trip("i4:token:asym", x)
    assert np.abs(back - x).max() <= 0.034


@pytest.mark.parametrize(
    "encoding", ["i8:token", "i4:channel", "i8:head:sym", "e4m3", "i2:token", "i1:channel"]
)
def test_case_c38_constant_groups(encoding):
    for value in (3.7, 0.0, -1e-30):
        x = np.full((16, 24), value, np.float32)
        back = round_trip(encoding, x)
        assert np.isfinite(back).all()
        if value != -1e-30:
            assert np.abs(back - value).max() <= 0.002 * value + (0.07 * value if encoding == "e4m3" else 0)


def round_trip(encoding: str, x: np.ndarray) -> np.ndarray:
    e = ref.parse_encoding(encoding)
    shape = (1, *x.shape)
    s = scales_text(e, shape, e.stype)
    params = [s, s] if e.asym else [s]
    types = ", ".join([tensor(shape, MLIR_ELEMENT.get(e.element, e.element)), *params])
    used = "".join(f", %p#{i}" for i in range(len(params)))
    text = f"""
func.func @f(%x: {tensor(shape, "f32")}) -> {tensor(shape, "f32")} {{
  %c, %p:{len(params)} = kvcache.quantize %x {{encoding = #kvcache.encoding<"{encoding}">}}
    : {tensor(shape, "f32")} -> {types}
  %y = kvcache.dequantize %c{used} {{encoding = #kvcache.encoding<"{encoding}">}}
    : {types} -> {tensor(shape, "f32")}
  return %y : {tensor(shape, "f32")}
}}"""
    return kv_run(text, "f", [x[None]], 1)[0][0]


@pytest.mark.parametrize("container", ["i8", "i32"])
@pytest.mark.parametrize("axis", ["token", "channel"])
@pytest.mark.parametrize("order", ["low_first", "high_first"])
def test_packed_codes(container, axis, order):
    rng = np.random.default_rng(8)
    codes = rng.integers(0, 16, (2, 16, 24))
    scale, zero = (rounded(rng.random((2, 16, 1)), "f16") for _ in range(2))
    per = int(container[1:]) // 4
    grouped = (
        codes.reshape(2, 16 // per, per, 24) if axis == "token" else codes.reshape(2, 16, 24 // per, per)
    )
    shifts = 4 * np.arange(per) if order == "low_first" else 4 * np.arange(per)[::-1]
    axis_number = 2 if axis == "token" else 3
    shape = [1, 1, 1, 1]
    shape[axis_number] = per
    packed = (grouped << shifts.reshape(shape)).sum(axis_number)
    packed = packed.astype(np.uint8 if container == "i8" else np.uint32)
    c = tensor(packed.shape, container)
    text = f"""
func.func @f(%c: {c}, %s: tensor<2x16x1xf16>, %z: tensor<2x16x1xf16>) -> tensor<2x16x24xf32> {{
  %x = kvcache.dequantize %c, %s, %z {{encoding = #kvcache.encoding<i4:token:asym>,
    packing = #kvcache.packing<{axis}, {order}>}} : {c}, tensor<2x16x1xf16>, tensor<2x16x1xf16>
    -> tensor<2x16x24xf32>
  return %x : tensor<2x16x24xf32>
}}"""
    (out,) = kv_run(text, "f", [packed, to_npy(scale, "f16"), to_npy(zero, "f16")], 1)
    np.testing.assert_array_equal(out, ref.dequantize(codes, scale, zero, "i4:token:asym"))
