"""kv.import_mlir: graphs as functions on arrays."""

from __future__ import annotations

import threading

import graphs
import ml_dtypes
import numpy as np
import pytest

import kvcache as kv

ATTENTION = graphs.SHIPPED / "torch_sdpa_causal" / "graph.mlir"


def function(arguments: str, results: str, *lines: str) -> str:
    """A function @f as MLIR text, one op a line."""
    return "\n".join([f"func.func @f({arguments}) -> {results} {{", *lines, "}", ""])


ROWS = "tensor<?x4xf32>"
TWICE = function(f"%a: {ROWS}", ROWS, f"%0 = arith.addf %a, %a : {ROWS}", f"return %0 : {ROWS}")


def recorded(file, graph):
    """The recorded inputs in the dtypes of the graph."""
    arrays = zip(graphs.inputs(file), graph.inputs, strict=True)
    return [a.view(d) if a.dtype != d and a.dtype.itemsize == d.itemsize else a for a, (d, _) in arrays]


@pytest.mark.parametrize("file", graphs.files(), ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_recorded_graph(file):
    graph = kv.import_mlir(file, entry=graphs.meta(file)["entry"])
    args = recorded(file, graph)
    before = [a.copy() for a in args]
    for _ in range(2):
        outs = graph.run_numpy(args)
        bits = [o.view(np.uint16) if o.dtype == ml_dtypes.bfloat16 else o for o in outs]
        graphs.check_outputs(file, bits)
    for a, b in zip(args, before, strict=True):
        assert a.tobytes() == b.tobytes(), "an argument was changed"
    expected = graphs.meta(file)["expect"]
    if expected.startswith("fuse"):
        assert len(graph.specs) == int(expected.split()[1])


def test_specs_and_report():
    specs, run = kv.import_mlir(ATTENTION)
    assert [e["fused"] for e in run.report] == [True]
    (spec,) = specs
    assert spec.causal and spec.q_heads == spec.kv_heads and spec.dtype == "float32"
    assert spec.cache_spec("kivi4").head_dim == spec.head_dim
    assert kv.import_mlir(ATTENTION, fuse=False).specs == []


def test_no_cache_spec_for_what_a_cache_kernel_does_not():
    specs, _ = kv.import_mlir(graphs.SHIPPED / "torch_sdpa_mask_bool" / "graph.mlir")
    with pytest.raises(ValueError, match="has a bool mask, which no cache kernel takes"):
        specs[0].cache_spec()


def test_dynamic_sizes_and_strides():
    run = kv.import_mlir(TWICE)
    for rows in (0, 1, 5):
        x = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)[:, ::2]
        assert (run(x) == 2 * x).all()
    assert run.inputs == [(np.dtype(np.float32), (None, 4))]


def test_arguments_are_read_in_place_and_results_stay():
    run = kv.import_mlir(TWICE)
    x = np.ones((3, 4), np.float32)
    x.flags.writeable = False
    first = run(x)
    second = run(x + 1)
    assert (first == 2).all() and (second == 4).all()
    assert first.flags.writeable and not np.shares_memory(first, x)


def test_returned_argument_is_copied():
    t = "tensor<4xi32>"
    run = kv.import_mlir(function(f"%a: {t}", f"({t}, {t})", f"return %a, %a : {t}, {t}"))
    x = np.arange(4, dtype=np.int32)
    a, b = run(x)
    a[0] = 7
    assert x[0] == 0 and b[0] == 0 and not np.shares_memory(a, b)


def test_update_in_place_leaves_the_argument():
    long, short, index = "tensor<8xf32>", "tensor<2xf32>", "tensor<i32>"
    update = f"%0 = stablehlo.dynamic_update_slice %a, %x, %i : ({long}, {short}, {index}) -> {long}"
    text = function(f"%a: {long}, %x: {short}, %i: {index}", long, update, f"return %0 : {long}")
    a = np.zeros(8, np.float32)
    out = kv.import_mlir(text)(a, np.ones(2, np.float32), 3)
    assert out.sum() == 2 and not a.any()


@pytest.mark.parametrize("element, dtype", [("i4", ml_dtypes.int4), ("ui4", ml_dtypes.uint4)])
def test_narrow_integers(element, dtype):
    t = f"tensor<4x{element}>"
    x = np.array([-8, -1, 0, 7] if element == "i4" else [0, 1, 8, 15]).astype(dtype)
    out = kv.import_mlir(function(f"%a: {t}", t, f"return %a : {t}"))(x)
    assert out.dtype == x.dtype and (out.astype(int) == x.astype(int)).all()


def test_threads():
    graph = kv.import_mlir(ATTENTION)
    args = recorded(ATTENTION, graph)
    want = graph(*args)
    bad = []

    def work():
        for _ in range(5):
            if not (graph(*args) == want).all():
                bad.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


def test_repeated_calls_do_not_grow():
    import resource

    run = kv.import_mlir(TWICE)
    x = np.ones((4096, 4), np.float32)
    run(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        run(x)  # 64 KiB each
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


F = "tensor<4xf32>"
EMPTY = "func.func @{} () {{\n  return\n}}\n"
ERRORS = {
    function(f"%a: {F}", F, f"%0 = stablehlo.nothing %a : {F}"): "<text>:2:",
    function(f"%a: {F}", F, f"%0 = torch.aten.relu %a : {F}"): "torch_mlir.fx.export_and_import",
    function("%a: vector<4xf32>", "()", "return"): "argument 0 of 'f' is vector<4xf32>",
    EMPTY.format("f") + EMPTY.format("g"): "entry= must name one of 'f', 'g'",
    "module {\n}": "no function with a body",
}


@pytest.mark.parametrize("text", ERRORS)
def test_refused(text):
    with pytest.raises(ValueError, match=ERRORS[text]):
        kv.import_mlir(text)


def test_refused_calls(tmp_path):
    run = kv.import_mlir(TWICE)
    with pytest.raises(ValueError, match="takes 1 arrays, got 0"):
        run()
    with pytest.raises(ValueError, match=r"argument 0 is float64 \[3, 4\], expected float32 \[\?, 4\]"):
        run(np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"argument 0 is float32 \[3, 5\]"):
        run(np.zeros((3, 5), np.float32))
    with pytest.raises(ValueError, match="no function 'g' with a body, there is 'f'"):
        kv.import_mlir(TWICE, entry="g")
    with pytest.raises(ValueError, match="No such file"):
        kv.import_mlir(tmp_path / "none.mlir")
    with pytest.raises(ValueError, match="source is a int"):
        kv.import_mlir(3)
