"""JAX functions whose attentions run in our kernels, the rest in XLA.

The function is lowered to StableHLO through `jax.export`; recognised attentions become
custom calls of JAX's FFI, and the rewritten module is called as an exported function.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcache import _native
from kvcache._graph import GraphAttention, specs_of

INSTALL = "pip install 'jax>=0.5'"

_registered = False
_register_lock = threading.Lock()


def _import_jax() -> Any:
    try:
        import jax
        import jax.export
        import jax.ffi
    except ImportError as error:
        raise ImportError(f"kvcache.from_jax needs JAX ({error}); install it: {INSTALL}") from None
    return jax


def _ffi_version(jax: Any) -> tuple[int, int]:
    """The version of the FFI that this jaxlib has, as its own header says."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return 0, 1
    found = [re.search(rf"#define XLA_FFI_API_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")]
    return (int(found[0][1]), int(found[1][1])) if all(found) else (0, 1)


def _register(jax: Any) -> None:
    """Makes our handler known to XLA, once a process."""
    global _registered
    with _register_lock:
        if _registered:
            return
        major, minor = _ffi_version(jax)
        if major != 0:
            raise ValueError(
                f"this jaxlib has version {major}.{minor} of XLA's FFI, expected 0.x; install: {INSTALL}"
            )
        _native.set_xla_ffi_version(major, minor)
        jax.ffi.register_ffi_target(_native.XLA_CALL_TARGET, _native.xla_handler(), platform="cpu")
        _registered = True


class JaxFunction:
    """A function of JAX, called as the one it was made of.

    Takes arrays of the shapes and dtypes that it was made with, in the same pytrees,
    under `jax.jit` too; gradients are those of the original function, all in XLA.
    `specs`: the attentions that run in our kernels; `report`: every candidate with its
    location and, where left to XLA, the reason; `mlir`: the StableHLO that XLA compiles.
    """

    def __init__(self, call: Callable[..., Any], report: list[dict[str, Any]], mlir: str, name: str) -> None:
        self._call = call
        self.report = report
        self.specs: list[GraphAttention] = specs_of(report)
        self.mlir = mlir
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<kvcache.JaxFunction '{self.__name__}', {len(self.specs)} attentions fused>"


def _left(name: str, why: str) -> dict[str, Any]:
    """The report's entry for a function that is not searched for attention."""
    return {"function": "main", "location": name, "fused": False, "reason": f"left to XLA, {why}"}


def _rewrite(text: str, name: str) -> tuple[str, list[dict[str, Any]], int]:
    """The rewritten module; the module itself, with the reason as its report, where it is not read."""
    try:
        rewritten, report, calls = _native.rewrite_for_xla(text, name)
    except ValueError as error:
        return text, [_left(name, f"the graph was not imported: {error}")], 0
    entries = json.loads(report)
    return (rewritten if calls else text), entries, calls


def _serialize(text: str) -> bytes:
    """StableHLO text as the bytes that an exported function holds."""
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo
    from jax.interpreters import mlir

    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        version = stablehlo.get_current_version()
        return stablehlo.serialize_portable_artifact(module, version, allow_other_dialects=True)


def from_jax(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> JaxFunction:
    """`fn` with its recognised attentions in our kernels and everything else in XLA.

    `args` and `kwargs` are arrays (or `jax.ShapeDtypeStruct`s) that say shapes and
    dtypes; nothing is computed with them. Works inside scans, loops and conditions.
    Runs on the CPU. ImportError names the line that installs JAX.
    """
    jax = _import_jax()
    if not callable(fn):
        raise ValueError(f"fn is a {type(fn).__name__}, expected a function of JAX arrays")
    name = getattr(fn, "__name__", type(fn).__name__)
    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    try:
        exported = jax.export.export(jitted, platforms=["cpu"])(*args, **kwargs)
    except Exception as error:
        # What the function itself does wrong is raised here; what only export
        # cannot do (callbacks into Python) leaves it as it is.
        lowered = jitted.lower(*args, **kwargs)
        report = [_left(name, f"jax.export refused it: {error}")]
        return JaxFunction(jitted, report, lowered.as_text(), name)
    text, report, calls = _rewrite(str(exported.mlir_module()), name)
    if calls:
        _register(jax)
        exported = dataclasses.replace(exported, mlir_module_serialized=_serialize(text))
    return JaxFunction(jax.jit(exported.call), report, text, name)
