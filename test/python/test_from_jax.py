"""kv.from_jax: attention of JAX functions in our kernels, the rest in XLA."""

from __future__ import annotations

import json
import threading

import graphs
import numpy as np
import pytest

import kvcache as kv
from kvcache import _native

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'jax>=0.5'")
jnp = jax.numpy
BOUND = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def arrays(*shapes, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(s), dtype) for s in shapes]


def check(fn, *args, fused=1, **kwargs):
    """from_jax of `fn` fuses as many and gives what `fn` gives."""
    ours = kv.from_jax(fn, *args, **kwargs)
    assert len(ours.specs) == fused, ours.report
    assert ours.mlir.count("@kvcache_attention") == fused
    got, want = ours(*args, **kwargs), jax.jit(fn)(*args, **kwargs)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and isinstance(a, jax.Array)
        assert graphs.deviation(np.asarray(a), np.asarray(b), str(a.dtype)) <= BOUND.get(str(a.dtype), 0)
    return ours


def attention(q, k, v, mask=None):
    """q [b, h, t, d], k and v [b, h, s, d]."""
    s = jnp.einsum("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        s = jnp.where(mask, s, -jnp.inf)
    return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(s, axis=-1), v)


def causal(t, s=None):
    s = s or t
    return jnp.arange(s)[None] <= jnp.arange(t)[:, None] + s - t


@pytest.mark.parametrize("dtype", BOUND)
def test_multi_head(dtype):
    (spec,) = check(attention, *arrays(*[(2, 3, 17, 24)] * 3, dtype=dtype)).specs
    assert (spec.head_dim, spec.dtype) == (24, dtype)


def test_causal_and_window():
    q, k, v = arrays((1, 2, 9, 16), (1, 2, 21, 16), (1, 2, 21, 8))
    assert check(lambda q, k, v: attention(q, k, v, causal(9, 21)), q, k, v).specs[0].causal
    window = causal(9, 21) & ~(jnp.arange(21)[None] <= jnp.arange(9)[:, None] + 12 - 5)
    assert check(lambda q, k, v: attention(q, k, v, window), q, k, v).specs[0].window == (4, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_library_attention_with_groups(dtype):
    q, k, v = arrays((2, 12, 8, 32), (2, 12, 2, 32), (2, 12, 2, 32), dtype=dtype)

    def fn(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    assert check(fn, q, k, v).specs[0].kv_heads == 2


def test_run_time_mask():
    q, k, v = arrays(*[(2, 2, 5, 8)] * 3)
    lengths = jnp.asarray([5, 2])

    def fn(q, k, v, lengths):
        return attention(q, k, v, (jnp.arange(5) < lengths[:, None])[:, None, None])

    check(fn, q, k, v, lengths)


def test_vmap_inside():
    q, k, v = arrays(*[(4, 6, 8)] * 3)

    def head(q, k, v):
        s = jnp.where(causal(6), q @ k.T / np.sqrt(8), -jnp.inf)
        return jax.nn.softmax(s) @ v

    check(jax.vmap(head), q, k, v)


def layer(x, w, heads=2):
    b, t, c = x.shape
    x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    q, k, v = (a.reshape(b, t, heads, -1).swapaxes(1, 2) for a in jnp.split(x @ w["qkv"], 3, -1))
    y = attention(q, k, v, causal(t)).swapaxes(1, 2).reshape(b, t, c)
    return x + y @ w["o"] + jax.nn.gelu(x @ w["up"]) @ w["down"]


def weights(layers, c=16):
    shapes = {"qkv": (c, 3 * c), "o": (c, c), "up": (c, 4 * c), "down": (4 * c, c)}
    values = arrays(*[(layers, *s) for s in shapes.values()])
    return {n: v / np.sqrt(v.shape[1]) for n, v in zip(shapes, values, strict=True)}


def test_scan_over_layers():
    w = weights(3)
    (x,) = arrays((2, 7, 16))

    def fn(x, w):
        return jax.lax.scan(lambda x, w: (layer(x, w), x.mean()), x, w)

    ours = check(fn, x, w)
    before = ours.mlir.index("stablehlo.while")
    assert "@kvcache_attention" in ours.mlir[before:], "the call lies in the loop"


def test_jitted_layers_called_often():
    w = weights(4)
    (x,) = arrays((2, 7, 16))
    jitted = jax.jit(layer)

    def fn(x, w):
        for i in range(4):
            x = jitted(x, jax.tree.map(lambda a, i=i: a[i], w))
        return {"x": x, "mean": x.mean()}

    check(fn, x, w, fused=4)


def test_condition():
    q, k, v = arrays(*[(1, 2, 5, 8)] * 3)

    def fn(flag, q, k, v):
        return jax.lax.cond(flag, lambda: attention(q, k, v, causal(5)), lambda: v * 2)

    for flag in (True, False):
        check(fn, jnp.asarray(flag), q, k, v)


def decode_step(cache, x, w, i):
    """One token through a layer whose keys and values go into `cache` [2, b, h, s, d]."""
    b, _, c = x.shape
    q, k, v = (a.reshape(b, 1, 2, -1).swapaxes(1, 2) for a in jnp.split(x @ w["qkv"], 3, -1))
    new = jnp.stack([k, v])
    cache = jax.lax.dynamic_update_slice(cache, new, (0, 0, 0, i, 0))
    y = attention(q, *cache, jnp.arange(cache.shape[3]) <= i)
    return cache, x + y.swapaxes(1, 2).reshape(b, 1, c) @ w["o"]


def test_decode_loop_with_cache():
    w = jax.tree.map(lambda a: a[0], weights(1))
    cache, x = jnp.zeros((2, 1, 2, 9, 8)), arrays((1, 1, 16))[0]

    def fn(cache, x, w):
        return jax.lax.fori_loop(0, 6, lambda i, s: decode_step(*s, w, i), (cache, x))

    check(fn, cache, x, w)
    check(decode_step, cache, x, w, jnp.asarray(3))


def test_flax_block():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: pip install flax")
    block = nnx.MultiHeadAttention(4, 32, decode=False, rngs=nnx.Rngs(0))
    graph, state = nnx.split(block)
    (x,) = arrays((2, 10, 32))
    mask = nnx.make_causal_mask(jnp.ones((2, 10)))

    def fn(state, x):
        return nnx.merge(graph, state)(x, mask=mask)

    check(fn, state, x)


def no_maximum(q, k, v):
    e = jnp.exp(jnp.einsum("bhtd,bhsd->bhts", q, k))
    return jnp.einsum("bhts,bhsd->bhtd", e / e.sum(-1, keepdims=True), v)


def masked_after(q, k, v):
    p = jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", q, k))
    return jnp.einsum("bhts,bhsd->bhtd", jnp.where(causal(6), p, 0), v)


def probabilities_too(q, k, v):
    p = jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", q, k))
    return jnp.einsum("bhts,bhsd->bhtd", p, v), p


@pytest.mark.parametrize("fn", [no_maximum, masked_after, probabilities_too])
@pytest.mark.filterwarnings("error")
def test_near_misses_stay_in_xla(fn):
    args = arrays(*[(1, 2, 6, 8)] * 3)
    ours = check(fn, *args, fused=0)
    assert all(e["reason"] and not e["fused"] for e in ours.report)
    got, want = ours(*args), jax.jit(fn)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a == b).all()


def test_what_is_not_read_stays_in_xla():
    ours = check(lambda x: jnp.fft.fft(x).real, *arrays((4, 8)), fused=0)
    assert "not imported" in ours.report[0]["reason"]


def test_calls_that_only_xla_knows_stay_beside_attention():
    (a,) = arrays((8, 8))
    q, k, v = arrays(*[(1, 2, 8, 8)] * 3)

    def fn(a, q, k, v):
        return attention(q, k, v) @ jnp.linalg.cholesky(a @ a.T + 8 * jnp.eye(8))

    check(fn, a, q, k, v)


def test_callbacks_into_python_stay():
    def fn(x):
        return jax.pure_callback(np.sin, x, x)

    ours = check(fn, *arrays((4,)), fused=0)
    assert "left to XLA" in ours.report[0]["reason"]


def test_errors_of_the_function_are_its_own():
    with pytest.raises(TypeError, match="incompatible shapes|broadcast"):
        kv.from_jax(lambda a, b: a + b, *arrays((3,), (4,)))


def test_report_names_the_source_line():
    (entry,) = kv.from_jax(attention, *arrays(*[(1, 2, 6, 8)] * 3)).report
    assert entry["location"].startswith(__file__)


def test_under_jit_and_grad():
    args = arrays(*[(1, 2, 6, 8)] * 3)
    ours = kv.from_jax(attention, *args)
    twice = jax.jit(lambda q, k, v: ours(ours(q, k, v), k, v) * 2)(*args)
    want = attention(attention(*args), *args[1:]) * 2
    assert np.abs(twice - want).max() < 1e-5
    got = jax.grad(lambda *a: ours(*a).sum())(*args)
    assert np.abs(got - jax.grad(lambda *a: attention(*a).sum())(*args)).max() < 1e-5


def test_shapes_only():
    args = arrays(*[(1, 2, 6, 8)] * 3)
    ours = kv.from_jax(attention, *[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args])
    assert np.abs(ours(*args) - attention(*args)).max() < 1e-5


def test_other_arguments_are_refused():
    args = arrays(*[(1, 2, 6, 8)] * 3)
    ours = kv.from_jax(attention, *args)
    with pytest.raises(ValueError, match="shape|Shape"):
        ours(*arrays(*[(1, 2, 7, 8)] * 3))
    with pytest.raises(ValueError, match="dtype|type"):
        ours(*[a.astype(jnp.bfloat16) for a in args])
    with pytest.raises((ValueError, TypeError)):
        ours(*args[:2])
    with pytest.raises(ValueError, match="fn is a int"):
        kv.from_jax(3)


def test_results_do_not_alias_and_repeat():
    args = arrays(*[(1, 2, 6, 8)] * 3)
    ours = kv.from_jax(attention, *args)
    first = np.asarray(ours(*args)).copy()
    kept = ours(*args)
    for seed in range(3):
        ours(*arrays(*[(1, 2, 6, 8)] * 3, seed=seed + 1))
    assert (np.asarray(kept) == first).all() and (np.asarray(ours(*args)) == first).all()


def test_threads():
    args = arrays(*[(2, 4, 32, 16)] * 3)
    ours = kv.from_jax(attention, *args)
    want = np.asarray(ours(*args))
    same = []

    def work():
        same.extend((np.asarray(ours(*args)) == want).all() for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(same) == 40 and all(same)


def test_a_kernel_of_another_process_is_an_error():
    args = arrays(*[(1, 2, 6, 8)] * 3)
    shapes = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)
    kv.from_jax(attention, *args)
    call = jax.ffi.ffi_call(_native.XLA_CALL_TARGET, shapes)
    with pytest.raises(Exception, match="was not compiled in this process"):
        jax.block_until_ready(call(*args, kernel="0" * 32))


def test_a_kernel_refuses_other_buffers():
    args = arrays(*[(1, 2, 6, 8)] * 3)
    ours = kv.from_jax(attention, *args)
    kernel = ours.mlir.split('kernel = "')[1][:32]
    wrong = arrays(*[(1, 2, 7, 8)] * 3)
    call = jax.ffi.ffi_call(_native.XLA_CALL_TARGET, jax.ShapeDtypeStruct(wrong[0].shape, jnp.float32))
    with pytest.raises(Exception, match="argument 0 has another shape or dtype"):
        jax.block_until_ready(call(*wrong, kernel=kernel))


@pytest.mark.parametrize(
    "file", [f for f in graphs.files() if f.name == "graph.mlir"], ids=lambda f: f.parent.name
)
def test_recorded_graphs(file):
    text, report, calls = _native.rewrite_for_xla(file.read_text(), file.parent.name)
    fused = sum(e["fused"] for e in json.loads(report))
    assert fused == calls == text.count("@kvcache_attention(")
    expected = graphs.meta(file)["expect"]
    if expected.startswith("fuse"):
        assert fused == int(expected.split()[1])
