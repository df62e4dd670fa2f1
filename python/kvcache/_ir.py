"""A spec as IR of the `kvcache` dialect: where compilation starts."""

from __future__ import annotations

from kvcache._spec import AttentionSpec

_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def kvcache_level(spec: AttentionSpec) -> str:
    """The module whose compilation gives the kernel of `spec`."""
    t = _TYPES[spec.dtype]
    h = spec.q_heads
    q = f"tensor<?x{h}x{spec.head_dim}x{t}>"
    out, lse = f"tensor<?x{h}x{spec.value_dim}x{t}>", f"tensor<?x{h}xf32>"
    cache = (
        f"!kvcache.cache<kv = {spec.kv_heads}, d = {spec.head_dim}, dv = {spec.value_dim}, open = {t}, "
        f'#kvcache.format<"{spec.format}">>'
    )
    arguments = [f"%q: {q}", "%cache: !cache", "%q_indptr: tensor<?xi32>"]
    operands = "%q, %cache q_indptr(%q_indptr : tensor<?xi32>)"
    if spec._slopes is not None:
        arguments.append(f"%slopes: tensor<{h}xf32>")
        operands += f" slopes(%slopes : tensor<{h}xf32>)"
    attributes = []
    if spec.causal:
        attributes.append("causal = #kvcache.causal<bottom_right>")
    if spec.scale is not None:
        attributes.append(f"scale = {_float(spec.scale)} : f64")
    if spec.softcap is not None:
        attributes.append(f"softcap = {_float(spec.softcap)} : f64")
    if spec.window is not None:
        attributes.append(f"window = #kvcache.window<left = {spec.window - 1}>")
    listed = " {" + ", ".join(attributes) + "}" if attributes else ""
    return (
        f"!cache = {cache}\n"
        f"func.func @attend({', '.join(arguments)}) -> ({out}, {lse}) {{\n"
        f"  %out, %lse = kvcache.attention {operands}{listed}\n"
        f"    : {q}, !cache -> {out}, {lse}\n"
        f"  return %out, %lse : {out}, {lse}\n"
        "}\n"
    )


def _float(x: float) -> str:
    """A number as MLIR reads it: always with a point, and exact."""
    return f"{x:.17e}"
