"""Exported attention graphs: where they are, how to import, run and compare them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile

import kvrun
import numpy as np

SHIPPED = pathlib.Path(__file__).resolve().parents[1] / "data" / "graphs"
KINDS = ("graph.mlir", "graph.linalg.mlir", "graph.tosa.mlir")
BOUND = {"float32": 1e-5, "float64": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def folders(root: pathlib.Path = SHIPPED) -> list[pathlib.Path]:
    """The folders of a collection of graphs."""
    return sorted(p.parent for p in root.glob("*/meta.json"))


def files(root: pathlib.Path = SHIPPED) -> list[pathlib.Path]:
    """Every graph of a collection in every dialect it is there."""
    return [f / k for f in folders(root) for k in KINDS if (f / k).exists()]


def meta(file: pathlib.Path) -> dict:
    """What is known about the graph of a file."""
    return json.loads((file.parent / "meta.json").read_text())


def report(source: str | pathlib.Path) -> list[dict]:
    """Imports MLIR text or a file; the candidates that were found."""
    with tempfile.TemporaryDirectory() as name:
        path = os.path.join(name, "report.json")
        text = source.read_text() if isinstance(source, pathlib.Path) else source
        kvrun.opt(text, f"--kvcache-import=report={path}", "-o", os.devnull)
        return json.loads(pathlib.Path(path).read_text())


def fused(entries: list[dict]) -> int:
    """How many candidates were fused."""
    return sum(entry["fused"] for entry in entries)


def floats(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array as float64; bfloat16 is given as uint16 bits."""
    if dtype == "bfloat16" and array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def inputs(file: pathlib.Path) -> list[np.ndarray]:
    """The recorded arguments."""
    return [np.load(file.parent / a["file"]) for a in meta(file)["args"]]


def run(file: pathlib.Path, args: list[np.ndarray], *flags: str, text: str | None = None) -> list[np.ndarray]:
    """Runs the graph on arrays, its text replaced by `text` when given."""
    known = meta(file)
    return kvrun.kv_run(text or file.read_text(), known["entry"], args, len(known["results"]), *flags)


def deviation(got: np.ndarray, want: np.ndarray, dtype: str) -> float:
    """Largest difference over largest magnitude; infinite where NaN or infinities differ."""
    got, want = floats(got, dtype), floats(want, dtype)
    if got.shape != want.shape or (np.isnan(got) != np.isnan(want)).any():
        return float("inf")
    special = np.isinf(want)
    if (got[special] != want[special]).any():
        return float("inf")
    plain = np.isfinite(want)
    scale = max(np.abs(want[plain]).max(initial=0), 1e-6)
    return float(np.abs(got[plain] - want[plain]).max(initial=0) / scale)


def bound(result: dict, want: np.ndarray) -> float:
    """The deviation allowed for a recorded result."""
    dtype = result["dtype"]
    if want.dtype.kind in "iub" and dtype != "bfloat16":
        return 0.0
    scale = max(np.nanmax(np.abs(floats(want, dtype)), initial=0), 1e-6)
    return max(BOUND.get(dtype, 0.0), 4 * result.get("ref64_max_abs_err", 0) / scale)


def check_outputs(file: pathlib.Path, outputs: list[np.ndarray]) -> None:
    """Asserts that outputs equal the recorded ones within their bounds."""
    for result, got in zip(meta(file)["results"], outputs, strict=True):
        want = np.load(file.parent / result["file"])
        off = deviation(got, want, result["dtype"])
        assert off <= bound(result, want), (file, result["file"], off)


def tool(*command: str) -> subprocess.CompletedProcess:
    """Runs kv-opt with the given arguments."""
    return subprocess.run([kvrun.BIN / "kv-opt", *command], capture_output=True, text=True)
