"""Graphs of frameworks: read, fused as expected, and the same numbers as the framework's."""

from __future__ import annotations

import pathlib

import graphs
import pytest
from kvrun import needs_kv_run

pytestmark = needs_kv_run
MORE = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data" / "graphs" / "handout"


def name_of(file: pathlib.Path) -> str:
    """A test's name for a graph file."""
    return f"{file.parent.name}/{file.name}"


def check_count(file: pathlib.Path) -> None:
    """The number of fused attentions is what the graph's meta.json expects."""
    entries, expect = graphs.report(file), graphs.meta(file)["expect"]
    if expect.startswith("fuse"):
        assert graphs.fused(entries) == int(expect.split()[1]), entries
    elif expect.startswith("refuse"):
        assert graphs.fused(entries) == 0, entries


@pytest.mark.parametrize("file", graphs.files(), ids=name_of)
def test_count(file: pathlib.Path) -> None:
    check_count(file)


@pytest.mark.parametrize("file", graphs.files(), ids=name_of)
def test_outputs(file: pathlib.Path) -> None:
    args = graphs.inputs(file)
    graphs.check_outputs(file, graphs.run(file, args))


@pytest.mark.parametrize("folder", graphs.folders(), ids=lambda f: f.name)
def test_outputs_unfused(folder: pathlib.Path) -> None:
    file = folder / "graph.mlir"
    graphs.check_outputs(file, graphs.run(file, graphs.inputs(file), "--no-fuse"))


@pytest.mark.parametrize("folder", graphs.folders(), ids=lambda f: f.name)
def test_prints_back_unchanged(folder: pathlib.Path) -> None:
    file = folder / "graph.mlir"
    done = graphs.tool(str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == file.read_text().strip()


@pytest.mark.skipif(not MORE.exists(), reason=f"the larger collection is not at {MORE}")
def test_larger_collection() -> None:
    wrong = []
    for file in graphs.files(MORE):
        try:
            check_count(file)
            graphs.check_outputs(file, graphs.run(file, graphs.inputs(file)))
        except Exception as error:  # noqa: BLE001 (every graph is reported)
            wrong.append(f"{name_of(file)}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)
