"""Runs kv-sim on NumPy arrays, for the simulator's own tests."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
from dataclasses import dataclass

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
KERNELS = HERE / "kernels"


def tool() -> str:
    """The kv-sim to test: $KVSIM or the build tree's."""
    return os.environ.get("KVSIM", str(HERE.parents[1] / "build" / "bin" / "kv-sim"))


@dataclass
class In:
    """A read-only array."""

    array: np.ndarray


@dataclass
class Out:
    """An array that is written back; `defined`: its contents count as initialised."""

    array: np.ndarray
    defined: bool = False


@dataclass
class Run:
    """What a run left: exit code, outputs in order, stderr."""

    code: int
    outputs: list[np.ndarray]
    stderr: str

    def violation(self) -> tuple[int, str, str]:
        """(line, kind, rest) of the reported violation."""
        m = re.search(r":(\d+): violation: (\w+): (.*)", self.stderr)
        assert m, f"no violation: exit {self.code}, {self.stderr}"
        return int(m.group(1)), m.group(2), m.group(3)


def run(
    directory: pathlib.Path,
    ptx: str | pathlib.Path,
    entry: str,
    grid: str,
    block: str,
    args: list,
    *options: str,
) -> Run:
    """One launch; `args` are In, Out or kv-sim argument strings ({name} is an earlier file)."""
    command = [tool(), str(ptx), "--entry", entry, "--grid", grid, "--block", block]
    outs, files = [], {}
    for i, a in enumerate(args):
        if isinstance(a, str):
            command += ["--arg", a.format(**files)]
            continue
        path = directory / f"{entry}{i}.npy"
        np.save(path, a.array)
        files[f"f{i}"] = str(path)
        spec = f"ptr:{path}"
        if isinstance(a, Out):
            outs.append(path)
            spec += ":out" if a.defined else ":out:uninit"
        command += ["--arg", spec]
    r = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    return Run(r.returncode, [np.load(p) for p in outs], r.stderr)


def counters(directory: pathlib.Path, *args, **kw) -> dict:
    """The counters of a run that must succeed."""
    path = directory / "counters.json"
    r = run(directory, *args, "--counters", str(path), **kw)
    assert r.code == 0, r.stderr
    return json.loads(path.read_text())
