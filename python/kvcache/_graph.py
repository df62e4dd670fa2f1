"""Graphs of frameworks (MLIR) as functions on arrays, their attentions fused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kvcache import _native
from kvcache._arrays import dtype_name, framework_of, from_numpy, to_numpy
from kvcache._spec import AttentionSpec, Format

#: NumPy's dtype for each element of MLIR that arrays can hold.
_DTYPES = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "index": np.dtype(np.int64),
    "i1": np.dtype(np.bool_),
    **{f"{s}i{n}": np.dtype(f"int{n}") for s in ("", "s") for n in (8, 16, 32, 64)},
    **{f"ui{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    **{f"{s}i{n}": np.dtype(getattr(ml_dtypes, f"int{n}")) for s in ("", "s") for n in (2, 4)},
    **{f"ui{n}": np.dtype(getattr(ml_dtypes, f"uint{n}")) for n in (2, 4)},
}
_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


@dataclass(frozen=True)
class GraphAttention:
    """One attention that was recognised: the fields of `AttentionSpec`, and what a cache has no word for.

    q [batch, q_heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v and
    the result [.., .., .., value_dim]. `window` (left, right) counts tokens seen beside
    the query's own, None: all. `empty_rows` is what a row without keys gives: "zero",
    "nan" or "mean_all".
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: str
    causal: bool
    scale: float
    softcap: float | None
    window: tuple[int | None, int | None] | None
    batch: int
    q_len: int
    kv_len: int
    alignment: str | None
    mask: str
    sinks: bool
    empty_rows: str
    location: str

    @staticmethod
    def _of(entry: dict[str, Any]) -> GraphAttention:
        return GraphAttention(
            q_heads=entry["heads"],
            dtype=_NAMES.get(entry["dtype"], entry["dtype"]),
            window=tuple(entry["window"]) if entry.get("window") else None,
            softcap=entry.get("softcap"),
            alignment=entry.get("alignment"),
            **{
                name: entry[name]
                for name in ("kv_heads", "head_dim", "value_dim", "causal", "scale", "batch", "q_len")
                + ("kv_len", "mask", "sinks", "empty_rows", "location")
            },
        )

    def cache_spec(self, format: str | Format = "f16") -> AttentionSpec:
        """The spec of a `PagedCache` for this attention; ValueError names what no cache kernel does."""
        left, right = self.window or (None, None)
        refused = {
            f"a {self.mask} mask": self.mask != "none",
            "logits without a key (sinks)": self.sinks,
            "a window to the right": right not in (None, 0),
            "causal rows aligned to the top left": self.alignment == "top-left" and self.q_len != self.kv_len,
        }
        for what, present in refused.items():
            if present:
                raise ValueError(f"the attention at {self.location} has {what}, which no cache kernel takes")
        return AttentionSpec(
            q_heads=self.q_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            dtype=self.dtype,
            format=format,
            causal=self.causal,
            window=None if left is None else left + 1,
            softcap=self.softcap,
            scale=self.scale,
        )


def specs_of(report: list[dict[str, Any]]) -> list[GraphAttention]:
    """What was fused, in the graph's order."""
    return [GraphAttention._of(entry) for entry in report if entry["fused"]]


class ImportedGraph:
    """A graph compiled for this machine: call it with arrays.

    `specs`: the attentions that run in fused kernels; `report`: every candidate with
    its location and, where left alone, the reason; `inputs` and `outputs`: (dtype,
    shape) with None for any size. `specs, run = kv.import_mlir(..)` works too.
    """

    def __init__(self, text: bytes, name: str, entry: str | None = None, fuse: bool = True) -> None:
        self._native = _native.compile_graph(text, name, entry or "", bool(fuse))
        self.report: list[dict[str, Any]] = json.loads(self._native.report)
        self.specs = specs_of(self.report)
        self.entry: str = self._native.entry
        self._types = [(t.element, _shape_of(t)) for t in self._native.inputs]
        self._results = [t.element for t in self._native.outputs]
        self.inputs = [(_DTYPES[e], shape) for e, shape in self._types]
        self.outputs = [(_DTYPES[t.element], _shape_of(t)) for t in self._native.outputs]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.specs, self))

    def __call__(self, *args: Any) -> Any:
        """Runs the graph; one array, or a tuple when it has another number of results.

        Contiguous arrays are read where they lie; others (and i4, i2) are copied
        first. Results own their memory and are in the framework of the first array.
        """
        results = self.run_numpy(args)
        framework = next((framework_of(a) for a in args if hasattr(a, "__dlpack__")), "numpy")
        out = tuple(from_numpy(r, framework) for r in results)
        return out[0] if len(out) == 1 else out

    def run_numpy(self, args: Any) -> list[np.ndarray]:
        """Runs on any arrays; results as NumPy arrays."""
        if len(args) != len(self._types):
            raise ValueError(f"'{self.entry}' takes {len(self._types)} arrays, got {len(args)}")
        pairs = zip(args, self._types, strict=True)
        arrays = [_argument(a, f"argument {i}", *t) for i, (a, t) in enumerate(pairs)]
        results = self._native.call(arrays)
        return [_result(r, e) for r, e in zip(results, self._results, strict=True)]

    def __repr__(self) -> str:
        return f"<kvcache.ImportedGraph '{self.entry}', {len(self.specs)} attentions fused>"


def _shape_of(value_type: Any) -> tuple[int | None, ...]:
    return tuple(None if d < 0 else d for d in value_type.shape)


def _is_narrow(element: str) -> bool:
    return element.lstrip("sui") in ("2", "4")


def _argument(x: Any, name: str, element: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """`x` as bytes that the graph reads: no copy for a contiguous array of the right dtype."""
    want = _DTYPES[element]
    a = np.asarray(x, want) if isinstance(x, (bool, int, float)) else to_numpy(x, name)
    signless = element[0] == "i" and a.dtype.kind in "iu" and a.dtype.itemsize == want.itemsize
    fits = (a.dtype.newbyteorder("=") == want or (signless and want.kind in "iu")) and a.ndim == len(shape)
    if not fits or any(w not in (None, have) for have, w in zip(a.shape, shape, strict=True)):
        wanted = ", ".join("?" if d is None else str(d) for d in shape)
        raise ValueError(
            f"{name} is {dtype_name(a.dtype)} {list(a.shape)}, expected {dtype_name(want)} [{wanted}]"
        )
    if not a.dtype.isnative:
        a = a.astype(want)
    if _is_narrow(element):
        return (a.astype(np.int8) & ((1 << int(element[-1])) - 1)).astype(np.uint8)
    # ascontiguousarray would make an array of rank 0 one of rank 1.
    a = a if a.flags.c_contiguous else a.copy("C")
    return a.view(np.dtype(f"u{a.itemsize}")) if a.dtype.kind != "b" else a.view(np.uint8)


def _result(bits: np.ndarray, element: str) -> np.ndarray:
    if not _is_narrow(element):
        return bits.view(_DTYPES[element])
    width = int(element[-1])
    codes = (bits & ((1 << width) - 1)).astype(np.int8)
    if not element.startswith("u"):
        codes = (codes ^ (1 << (width - 1))) - (1 << (width - 1))
    return codes.astype(_DTYPES[element])


def import_mlir(source: str | os.PathLike[str], entry: str | None = None, fuse: bool = True) -> ImportedGraph:
    """Imports a graph (StableHLO, linalg on tensors, TOSA, or kvcache ops) and compiles it.

    `source` is MLIR text, or the path of a file with text or bytecode. `entry` names
    the function (None: the only public one, or "main"); `fuse=False` leaves attention
    as the graph writes it. Returns an `ImportedGraph`, which also unpacks into
    (specs, runnable). ValueError names the file and line of what is not supported.
    """
    if entry is not None and not isinstance(entry, str):
        raise ValueError(f"entry is {entry!r}, expected the name of a function")
    if not isinstance(source, (str, os.PathLike)):
        raise ValueError(f"source is a {type(source).__name__}, expected MLIR text or a path")
    if isinstance(source, str) and ("\n" in source or re.search(r"\bfunc\b|\bmodule\b", source)):
        return ImportedGraph(source.encode(), "<text>", entry, fuse)
    try:
        return ImportedGraph(Path(source).read_bytes(), str(source), entry, fuse)
    except OSError as error:
        raise ValueError(f"{source}: {error.strerror}") from None
