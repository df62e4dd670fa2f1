"""kvcache: attention over paged, quantised KV caches, compiled.

    import kvcache as kv

    spec = kv.AttentionSpec(q_heads=9, kv_heads=3, head_dim=64, format="kivi4")
    cache = kv.PagedCache(spec, capacity_tokens=65536)
    seq = cache.new_sequence()
    cache.append(seq, k, v)           # [tokens, kv_heads, head_dim]
    out, lse = cache.attend(q, [seq])  # q [rows, q_heads, head_dim]

Arrays are NumPy, torch or JAX (anything that speaks DLPack); results come back in
the framework of `q`. A wrong argument raises ValueError, a full pool CacheFull, a
missing or failing device DeviceError; each leaves everything as it was.
"""

from __future__ import annotations

from kvcache import reference, sim
from kvcache._cache import PagedCache
from kvcache._compile import Kernel, compile, load
from kvcache._graph import GraphAttention, ImportedGraph, import_mlir
from kvcache._jax import JaxFunction, from_jax
from kvcache._native import CacheFull, DeviceError
from kvcache._quantize import densify, dequantize, merge_states, quantize, sparsify
from kvcache._spec import AttentionSpec, Format
from kvcache._torch import TorchFunction, from_torch

__version__ = "0.1.0"

__all__ = [
    "AttentionSpec",
    "CacheFull",
    "DeviceError",
    "Format",
    "GraphAttention",
    "ImportedGraph",
    "JaxFunction",
    "Kernel",
    "PagedCache",
    "TorchFunction",
    "compile",
    "densify",
    "dequantize",
    "from_jax",
    "from_torch",
    "import_mlir",
    "load",
    "merge_states",
    "quantize",
    "reference",
    "sim",
    "sparsify",
]
