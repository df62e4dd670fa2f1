"""The generated table of spellings is up to date; import is fast and linear in the layers."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

import graphs
import kvrun
from kvrun import needs_kv_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = needs_kv_run


def test_table_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "import-table.py"), str(kvrun.BIN / "kv-opt")]
    made = subprocess.run([*command, str(graphs.SHIPPED)], capture_output=True, text=True, check=True)
    assert made.stdout == (ROOT / "docs" / "import-table.md").read_text()


def layers(count: int) -> str:
    """A graph of `count` causal attentions, each reading the one before."""
    body = (graphs.SHIPPED / "jax_causal_tril_neginf" / "graph.mlir").read_text()
    calls = "\n".join(
        f"    %{i + 1} = func.call @layer(%{i}, %arg1, %arg2) : (T, T, T) -> T" for i in range(count)
    )
    kind = body.split("%arg0: ")[1].split(",")[0]
    layer = body.replace("func.func public @main", "func.func private @layer")
    main = f"""
  func.func public @main(%arg0: T, %arg1: T, %arg2: T) -> T {{
    %0 = stablehlo.negate %arg0 : T
{calls}
    return %{count} : T
  }}
}}
"""
    return layer.rstrip().removesuffix("}") + main.replace("T", kind)


def seconds(count: int) -> float:
    """Time of the whole tool on `count` layers."""
    text = layers(count)
    start = time.perf_counter()
    assert graphs.fused(graphs.report(text)) == count
    return time.perf_counter() - start


def test_time_grows_linearly() -> None:
    seconds(1)  # loads the libraries
    times = {n: min(seconds(n) for _ in range(2)) for n in (2, 32, 128)}
    print({n: f"{t * 1e3:.0f} ms" for n, t in times.items()})
    assert times[128] < 8 * times[32] + 0.5
