"""Faults planted in CUDA C++: reported at the source line, not in the twin."""

from __future__ import annotations

import re

import numpy as np
import pytest
from simrun import KERNELS, In, Out, run

KINDS = {
    "no_syncthreads": "race",
    "no_syncwarp": "race",
    "off_by_one": "bounds",
    "not_filled": "init",
    "no_wait": "async",
    "conditional_barrier": "barrier",
    "wraps": "overflow",
}
SOURCE = (KERNELS / "faults.cu").read_text().split("\n")


def launch(tmp_path, entry):
    """Runs one kernel of faults.cu on 64 integers."""
    x = np.ones(64, np.int32)
    y = Out(np.zeros(64, np.int32), True)
    return run(tmp_path, KERNELS / "faults.sm_80.ptx", entry, "1", "64", [In(x), y])


@pytest.mark.parametrize("name", KINDS)
def test_fault(tmp_path, name):
    r = launch(tmp_path, f"bad_{name}")
    assert r.code == 1, "not reported"
    _, kind, text = r.violation()
    assert kind == KINDS[name], r.stderr
    line = next(i + 1 for i, s in enumerate(SOURCE) if s.endswith(f"FAULT {name}"))
    m = re.search(r"source \S+:(\d+)", text)
    assert m and int(m.group(1)) == line, r.stderr


@pytest.mark.parametrize("name", KINDS)
def test_twin(tmp_path, name):
    r = launch(tmp_path, f"good_{name}")
    assert r.code == 0, r.stderr
