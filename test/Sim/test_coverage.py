"""The committed coverage table is what the decoders say."""

from __future__ import annotations

import subprocess

from simrun import HERE, tool


def test_table_is_up_to_date():
    table = (HERE.parents[1] / "docs" / "ptx-coverage.md").read_text()
    now = subprocess.run([tool(), "--coverage"], capture_output=True, text=True, check=True).stdout
    assert table == now, "run: kv-sim --coverage > docs/ptx-coverage.md"
