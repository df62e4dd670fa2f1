"""Loads kvcache/reference.py by path, so that these tests need no built module."""

import importlib.util
import pathlib
import sys

_PATH = pathlib.Path(__file__).resolve().parents[2] / "python" / "kvcache" / "reference.py"
_SPEC = importlib.util.spec_from_file_location("kvcache_reference_oracle", _PATH)
assert _SPEC and _SPEC.loader
reference = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = reference
_SPEC.loader.exec_module(reference)
