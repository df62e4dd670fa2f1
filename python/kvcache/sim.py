"""Run any PTX kernel on NumPy arrays without a GPU.

``run(ptx, entry, grid, block, args)`` copies nothing back by name: every array
argument is device memory, and arrays that the kernel changes are changed in
place. The work is done by the ``kv-sim`` tool of the build.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["SimError", "Violation", "find_tool", "run"]

_SCALARS = {
    "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64", "float32": "f32", "float64": "f64",
}  # fmt: skip


class SimError(RuntimeError):
    """The kernel could not be run: bad PTX, a wrong launch."""


class Violation(SimError):
    """A check failed; ``line``, ``kind`` and the message say where and how."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        head, _, rest = message.partition(": violation: ")
        self.line = int(head.rsplit(":", 1)[-1]) if head.rsplit(":", 1)[-1].isdigit() else 0
        self.kind = rest.partition(":")[0]


def find_tool() -> str:
    """The path of kv-sim: $KVCACHE_SIM, beside the package, its environment's or build tree's, or PATH."""
    here = pathlib.Path(__file__).resolve()
    places = [os.environ.get("KVCACHE_SIM"), here.parent / "bin" / "kv-sim"]
    places += [p / "build" / "bin" / "kv-sim" for p in here.parents[1:4]]
    # PREFIX/lib/pythonX.Y/site-packages/kvcache: PREFIX/bin, and BUILD/bin of BUILD/venv.
    places += [p / "bin" / "kv-sim" for p in here.parents[4:6]]
    for p in places:
        if p and pathlib.Path(p).is_file():
            return str(p)
    found = shutil.which("kv-sim")
    if not found:
        raise SimError("kv-sim was not found: build it, or set KVCACHE_SIM to its path")
    return found


def _dims(v: int | Sequence[int]) -> str:
    return ",".join(str(int(x)) for x in ([v] if np.isscalar(v) else v))


def _argument(value: Any, index: int, directory: pathlib.Path, outputs: list) -> str:
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous or not value.flags.writeable:
            raise ValueError(f"argument {index}: expected a writable C-contiguous array")
        path = directory / f"{index}.bin"
        for known, array in outputs:
            if array is value:
                return f"ptr:{known}:out"
        value.tofile(path)
        outputs.append((path, value))
        return f"ptr:{path}:out"
    if isinstance(value, np.generic) and value.dtype.name in _SCALARS:
        return f"{_SCALARS[value.dtype.name]}:{value!s}"
    if isinstance(value, bytes | bytearray):
        path = directory / f"{index}.struct"
        path.write_bytes(value)
        return f"bytes:{path}"
    if isinstance(value, str):
        return value
    raise ValueError(
        f"argument {index}: expected an array, a NumPy scalar (np.int32(n)), bytes or a kv-sim "
        f"argument string, got {type(value).__name__}"
    )


def run(
    ptx: str | os.PathLike,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    shared: int = 0,
    cluster: Sequence[int] | None = None,
    checks: str = "all",
    mma_model: str = "exact",
    target: str | None = None,
    max_steps: int | None = None,
    counters: bool = False,
) -> dict | None:
    """Runs ``entry`` of the PTX text (or file) over ``grid`` x ``block``.

    ``args`` are arrays of any shape (device memory, changed in place), NumPy scalars, bytes (a
    by-value struct) or kv-sim argument strings. Raises Violation at the first failed check, SimError
    for what cannot run. Returns the counters if asked for.
    """
    text = str(ptx)
    with tempfile.TemporaryDirectory(prefix="kvsim") as name:
        directory = pathlib.Path(name)
        path = pathlib.Path(text) if "\n" not in text else directory / "kernel.ptx"
        if "\n" in text:
            path.write_text(text)
        command = [find_tool(), str(path), "--entry", entry, "--grid", _dims(grid), "--block", _dims(block)]
        command += ["--shared", str(shared), f"--check={checks}", f"--mma-model={mma_model}"]
        command += ["--cluster", _dims(cluster)] if cluster else []
        command += ["--target", target] if target else []
        command += ["--max-steps", str(max_steps)] if max_steps else []
        outputs: list = []
        for i, a in enumerate(args):
            command += ["--arg", _argument(a, i, directory, outputs)]
        report = directory / "counters.json"
        if counters:
            command += ["--counters", str(report)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            message = done.stderr.strip()
            raise Violation(message) if ": violation: " in message else SimError(message)
        for file, array in outputs:
            array[...] = np.fromfile(file, dtype=array.dtype).reshape(array.shape)
        return json.loads(report.read_text()) if counters else None
