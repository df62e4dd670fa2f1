"""Faults planted in CUDA C++: reported at the source line, not in the twin."""

from __future__ import annotations

import re

import numpy as np
import pytest
from simrun import KERNELS, In, Out, run

# By file: kind and grid of each pair.
KINDS = {
    "faults": {
        "no_syncthreads": ("race", "1"),
        "no_syncwarp": ("race", "1"),
        "off_by_one": ("bounds", "1"),
        "not_filled": ("init", "1"),
        "no_wait": ("async", "1"),
        "conditional_barrier": ("barrier", "1"),
        "wraps": ("overflow", "1"),
    },
    "faults_grid": {
        "last_block": ("race", "4"),
        "spin_lock": ("race", "4"),
        "grid_sync": ("race", "4"),
        "flag": ("race", "2"),
        "never_set": ("barrier", "2"),
        "histogram": ("race", "1"),
        "tree": ("race", "1"),
        "local_array": ("init", "1"),
        "undefined_choice": ("init", "1"),
        "undefined_index": ("init", "1"),
        "vector_cast": ("align", "1"),
        "before_the_start": ("bounds", "1"),
        "shared_end": ("bounds", "1"),
        "null_pointer": ("bounds", "1"),
        "shuffle_in_branch": ("barrier", "1"),
        "barrier_in_loop": ("barrier", "1"),
        "wraps_unsigned": ("overflow", "1"),
    },
}
CASES = [(file, name) for file, names in KINDS.items() for name in names]
# Whichever of two sides or waits is found is reported.
EITHER = {"grid_sync", "shuffle_in_branch"}


def launch(tmp_path, file, entry, grid):
    """Runs one kernel of a file on 64 integers."""
    x = np.ones(64, np.int32)
    y = Out(np.zeros(64, np.int32), True)
    return run(tmp_path, KERNELS / f"{file}.sm_80.ptx", entry, grid, "64", [In(x), y])


@pytest.mark.parametrize(("file", "name"), CASES)
def test_fault(tmp_path, file, name):
    kind, grid = KINDS[file][name]
    r = launch(tmp_path, file, f"bad_{name}", grid)
    assert r.code == 1, "not reported"
    _, found, text = r.violation()
    assert found == kind, r.stderr
    source = (KERNELS / f"{file}.cu").read_text().split("\n")
    line = next(i + 1 for i, s in enumerate(source) if s.endswith(f"FAULT {name}"))
    m = re.search(r"source \S+:(\d+)", text)
    assert m and (name in EITHER or int(m.group(1)) == line), r.stderr
    assert re.search(r"block \(\d+,0,0\) thread \(\d+,0,0\)", text)


@pytest.mark.parametrize(("file", "name"), CASES)
def test_twin(tmp_path, file, name):
    r = launch(tmp_path, file, f"good_{name}", KINDS[file][name][1])
    assert r.code == 0, r.stderr
