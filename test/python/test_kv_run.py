"""kv-run: dtypes in and out, and one clear error for everything wrong."""

import numpy as np
import pytest
from kvrun import KvRunError, kv_run, needs_kv_run

pytestmark = needs_kv_run

MLIR = """
func.func @two(%a: tensor<?x3xf32>, %b: tensor<?x3xf16>) -> (tensor<?x3xf32>, index) {
  %c1 = arith.constant 1 : index
  %n = tensor.dim %a, %c1 : tensor<?x3xf32>
  return %a, %n : tensor<?x3xf32>, index
}
func.func @cache(%c: !kvcache.cache<kv = 8, d = 128, open = f16, #kvcache.format<f16>>) {
  return
}
func.func @int4(%a: tensor<2xi4>) -> tensor<2xi4> {
  return %a : tensor<2xi4>
}
func.func private @outside() -> f32
func.func @none() -> (f32, i1) {
  %x = arith.constant 1.5 : f32
  %y = arith.constant true
  return %x, %y : f32, i1
}
func.func @matmul(%a: tensor<?x4xf32>, %b: tensor<4x?xf32>) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %m = tensor.dim %a, %c0 : tensor<?x4xf32>
  %n = tensor.dim %b, %c1 : tensor<4x?xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty(%m, %n) : tensor<?x?xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x4xf32>, tensor<4x?xf32>)
    outs(%f : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
func.func @casts(%a: tensor<?xf32>) -> (tensor<?xf8E4M3FN>, tensor<?xf8E5M2>, tensor<?xbf16>, tensor<?xf16>) {
  %0 = arith.truncf %a : tensor<?xf32> to tensor<?xf8E4M3FN>
  %1 = arith.truncf %a : tensor<?xf32> to tensor<?xf8E5M2>
  %2 = arith.truncf %a : tensor<?xf32> to tensor<?xbf16>
  %3 = arith.truncf %a : tensor<?xf32> to tensor<?xf16>
  return %0, %1, %2, %3 : tensor<?xf8E4M3FN>, tensor<?xf8E5M2>, tensor<?xbf16>, tensor<?xf16>
}
func.func @bf16_in(%a: tensor<3xbf16>) -> tensor<3xf32> {
  %b = arith.addf %a, %a : tensor<3xbf16>
  %0 = arith.extf %b : tensor<3xbf16> to tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""

A = np.zeros((2, 3), np.float32)
B = np.zeros((2, 3), np.float16)


@pytest.mark.parametrize(
    "entry,args,results,message",
    [
        ("absent", [A], 1, "no function 'absent' in this file, it has 'two', 'cache', 'int4'"),
        ("outside", [], 1, "'outside' has no body"),
        ("two", [A, B], 1, "'two' has 2 results, --out gives 1"),
        ("two", [A, B], 3, "'two' has 2 results, --out gives 3"),
        ("two", [], 2, "'two' has 2 arguments, --args gives 0"),
        ("two", [A, A], 2, "expected float16 [?, 3], got float32 [2, 3]"),
        ("two", [A[:, :2], B], 2, "expected float32 [?, 3], got float32 [2, 2]"),
        ("cache", [A], 0, "is a cache, which no array can stand for: make it with kvcache.view"),
        ("int4", [np.array([15, 16], np.uint8)], 1, "element 1 is 16, expected -8 to 15"),
    ],
)
def test_refusals(entry, args, results, message):
    with pytest.raises(KvRunError) as error:
        kv_run(MLIR, entry, args, results)
    assert message in str(error.value)
    assert str(error.value).startswith("kv-run: ") and str(error.value).count("\n") == 1


def test_refuses_device_and_tier_by_name():
    with pytest.raises(KvRunError, match="device 'tpu' cannot run here"):
        kv_run(MLIR, "none", [], 2, "--device=tpu")
    with pytest.raises(KvRunError, match="KVCACHE_CPU is 'pentium', expected v2, avx2 or avx512"):
        kv_run(MLIR, "none", [], 2, env={"KVCACHE_CPU": "pentium"})


def test_scalars_and_no_arguments():
    x, y = kv_run(MLIR, "none", [], 2)
    assert x.shape == () and x.dtype == np.float32 and x == 1.5
    assert y.dtype == bool and y
    _, n = kv_run(MLIR, "two", [A, B], 2)
    assert n.dtype == np.int64 and n == 3


def test_narrow_codes_round_trip_as_unsigned():
    (out,) = kv_run(MLIR, "int4", [np.array([-8, 7], np.int8)], 1)
    assert out.dtype == np.uint8 and out.tolist() == [8, 7]


def test_linalg_runs():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 4), np.float32), rng.standard_normal((4, 7), np.float32)
    np.testing.assert_allclose(kv_run(MLIR, "matmul", [a, b], 1)[0], a @ b, rtol=1e-5, atol=1e-6)
    empty = kv_run(MLIR, "matmul", [a[:0], b], 1)[0]
    assert empty.shape == (0, 7)


def test_case_c34_float_casts():
    """Conversions keep the types' own rules: e4m3 overflows to NaN, e5m2 to infinity."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(4)
    x = rng.standard_normal(9000) * np.exp(4 * rng.standard_normal(9000))
    x = np.append(x, [448, 464, 465, 1e9, -1e9, np.inf, -np.inf, 0, -0.0, 2**-10, 3 * 2**-17]).astype(
        np.float32
    )
    for tier in ("v2", "avx2", "avx512"):
        try:
            e4, e5, b16, f16 = kv_run(MLIR, "casts", [x], 4, env={"KVCACHE_CPU": tier})
        except KvRunError as error:
            assert "this machine has" in str(error)
            continue
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(e4, x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
            np.testing.assert_array_equal(e5, x.astype(ml_dtypes.float8_e5m2).view(np.uint8))
            np.testing.assert_array_equal(b16, x.astype(ml_dtypes.bfloat16).view(np.uint16))
            np.testing.assert_array_equal(f16, x.astype(np.float16))


def test_bf16_accepts_bits_and_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    for a in (x, x.view(np.uint16)):
        assert kv_run(MLIR, "bf16_in", [a], 1)[0].tolist() == [2, 5, -6]


DYNAMIC = """
func.func @dequantize(%c: tensor<?x?xi8>, %s: tensor<?x?xf16>) -> tensor<?x?xf32> {
  %x = kvcache.dequantize %c, %s {encoding = #kvcache.encoding<"i8:token:sym">}
    : tensor<?x?xi8>, tensor<?x?xf16> -> tensor<?x?xf32>
  return %x : tensor<?x?xf32>
}
func.func @merge(%a: tensor<?x8xf32>, %b: tensor<?x8xf32>, %l: tensor<?xf32>) -> tensor<?x8xf32> {
  %o, %n = kvcache.merge_states outs(%a, %b) lses(%l, %l) : tensor<?x8xf32>, tensor<?xf32>
  return %o : tensor<?x8xf32>
}
func.func @attend(%q: tensor<?x2x8xf32>, %k: tensor<?x1x?x8xf32>, %n: tensor<?xi32>) -> tensor<?x2x8xf32> {
  %o, %l = kvcache.attention %q, %k, %k lengths(%n : tensor<?xi32>) : tensor<?x2x8xf32>,
    tensor<?x1x?x8xf32>, tensor<?x1x?x8xf32> -> tensor<?x2x8xf32>, tensor<?x2xf32>
  return %o : tensor<?x2x8xf32>
}
!external = !kvcache.cache<kv = 1, d = 8, open = f16, #kvcache.format<"key=f16,page=8">, #kvcache.external<
  key = f16, codes(0, affine_map<(p, t, h, c) -> (p, 0, t, h, c)>),
  value = f16, codes(0, affine_map<(p, t, h, c) -> (p, 1, t, h, c)>), table = raw>>
func.func @external(%q: tensor<?x2x8xf16>, %i: tensor<?xi32>, %p: tensor<3x2x8x1x8xf16>, %t: tensor<2x1xi32>,
                    %n: tensor<2xi32>) -> tensor<?x2x8xf16> {
  %c = kvcache.view pools(%p : tensor<3x2x8x1x8xf16>) table(%t : tensor<2x1xi32>) lengths(%n : tensor<2xi32>)
    -> !external
  %o, %l = kvcache.attention %q, %c q_indptr(%i : tensor<?xi32>) : tensor<?x2x8xf16>, !external
    -> tensor<?x2x8xf16>, tensor<?x2xf32>
  return %o : tensor<?x2x8xf16>
}
"""

EXTERNAL = [np.ones((3, 2, 8, 1, 8), np.float16), np.int32([[0], [2]]), np.int32([3, 4])]


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    "entry,args,message",
    [
        (
            "dequantize",
            [ones(4, 8, dtype=np.int8), ones(4, 3, dtype=np.float16)],
            "size 3, expected one",
        ),
        (
            "dequantize",
            [ones(4, 8, dtype=np.int8), ones(0, 0, dtype=np.float16)],
            "size 0, expected one",
        ),
        ("merge", [ones(3, 8), ones(2, 8), ones(3)], "a size is 2, expected 3"),
        ("attend", [ones(2, 2, 8), ones(3, 1, 5, 8), ones(3, dtype=np.int32)], "query rows 2 to 3"),
        ("attend", [ones(3, 2, 8), ones(3, 1, 5, 8), ones(2, dtype=np.int32)], "a size is 2, expected 3"),
        (
            "external",
            [np.ones((2, 2, 8), np.float16), np.int32([0, 2]), *EXTERNAL],
            "a size is 2, expected 3",
        ),
        ("attend", [ones(1, 2, 8), ones(1, 1, 5, 8), np.int32([6])], "6 tokens, the tensors have room for 5"),
        ("attend", [ones(1, 2, 8), ones(1, 1, 5, 8), np.int32([-1])], "length -1, expected 0 or more"),
    ],
)
def test_dynamic_sizes_that_do_not_fit(entry, args, message):
    with pytest.raises(KvRunError) as error:
        kv_run(DYNAMIC, entry, args, 1)
    assert message in str(error.value)


def test_dynamic_sizes_that_fit_an_external_layout():
    args = [np.ones((2, 2, 8), np.float16), np.int32([0, 1, 2]), *EXTERNAL]
    assert (kv_run(DYNAMIC, "external", args, 1)[0] == 1).all()
