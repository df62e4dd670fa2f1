"""Runs kv-run on arrays, for tests: one .mlir, any of its functions."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile

import numpy as np
import pytest

_BUILD = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin"
BIN = pathlib.Path(os.environ.get("KVCACHE_BIN_DIR", _BUILD))
needs_kv_run = pytest.mark.skipif(not (BIN / "kv-run").exists(), reason="kv-run was not built")


class KvRunError(RuntimeError):
    """kv-run refused: the message is its standard error."""


def kv_run(text: str, entry: str, args: list, results: int, *flags: str, env: dict | None = None) -> list:
    """Runs function `entry` of MLIR `text` on arrays; returns `results` arrays."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "f.mlir").write_text(text)
        for i, a in enumerate(args):
            np.save(folder / f"i{i}.npy", a)
        inputs = ",".join(str(folder / f"i{i}.npy") for i in range(len(args)))
        outputs = [folder / f"o{i}.npy" for i in range(results)]
        command = [BIN / "kv-run", folder / "f.mlir", f"--entry={entry}", "--args", inputs]
        command += ["--out", ",".join(map(str, outputs)), "--device=cpu", *flags]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
        if done.returncode:
            assert done.returncode == 1, (done.returncode, done.stderr)
            raise KvRunError(done.stderr)
        return [np.load(o) for o in outputs]


def opt(text: str, *flags: str) -> str:
    """kv-opt on MLIR text; returns what it prints."""
    done = subprocess.run([BIN / "kv-opt", "-", *flags], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
