"""Options and fixtures of the Python tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

CAPTURE = Path(__file__).resolve().parents[1] / "data" / "capture"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvcache", "random property test")
    group.addoption("--points", type=int, default=320, help="random points (default 320)")
    group.addoption("--seed", type=int, default=20261, help="seed of the random points")
    group.addoption("--point", default=None, metavar="SEED:I", help="run one random point again")


def pytest_configure(config: pytest.Config) -> None:
    # One cache of compiled kernels for the whole run, shared by its workers, never
    # the user's own.
    if "KVCACHE_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="kvcache-test-")
        config.add_cleanup(folder.cleanup)
        os.environ["KVCACHE_CACHE_DIR"] = folder.name


@pytest.fixture(scope="session")
def capture() -> dict[str, np.ndarray]:
    """The real capture: k, v [1024, 3, 64], q [32, 9, 64] f16, q_positions, o f32."""
    return {n: np.load(CAPTURE / f"{n}.npy") for n in ("k", "v", "q", "q_positions", "o")}
