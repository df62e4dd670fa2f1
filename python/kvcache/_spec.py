"""Formats and attention specs: plain values that determine a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcache import _native
from kvcache._arrays import DTYPES, dtype_name, integer, number
from kvcache.reference import alibi_slopes


class Format:
    """A storage format: `Format("kivi4,page=128")`, `Format("key=i8:channel,value=i4:token:g32")`.

    `str()` gives the canonical text, which `Format` reads back to the same value.
    """

    def __init__(self, text: str | Format) -> None:
        if not isinstance(text, (str, Format)):
            raise ValueError(f"format is {text!r}, expected a string such as 'kivi4' or 'key=i8:channel'")
        self._text = str(text)
        self._native = _native.Format(self._text)

    @property
    def page(self) -> int:
        """Tokens per page."""
        return self._native.page

    @property
    def sinks(self) -> int:
        """Leading tokens whose pages are never sealed."""
        return self._native.sinks

    @property
    def recent(self) -> int:
        """Newest tokens that are never coded."""
        return self._native.recent

    @property
    def key(self) -> str:
        """The encoding of keys."""
        return str(self._native.key)

    @property
    def value(self) -> str:
        """The encoding of values."""
        return str(self._native.value)

    def describe(self, head_dim: int = 128, value_dim: int | None = None) -> str:
        """The expansion, and bytes per token and head with all overheads, for these dims."""
        d = integer(head_dim, "head_dim", 1)
        dv = d if value_dim is None else integer(value_dim, "value_dim", 1)
        return self._native.describe(d, dv)

    def __str__(self) -> str:
        return str(self._native)

    def __repr__(self) -> str:
        return f"Format({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and self._native == other._native

    def __hash__(self) -> int:
        return hash(str(self))


def _dtype_name(dtype: Any) -> str:
    """The spec's name of a dtype given as a string, a NumPy, torch or JAX dtype."""
    text = dtype if isinstance(dtype, str) else None
    if text is None:
        try:
            text = dtype_name(np.dtype(dtype))
        except TypeError:
            text = str(dtype).removeprefix("torch.")
    short = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
    text = short.get(text, text)
    if text not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, expected 'float16', 'bfloat16' or 'float32'")
    return text


@dataclass(frozen=True)
class AttentionSpec:
    """What determines a kernel, besides its target.

    q [rows, q_heads, head_dim], k [tokens, kv_heads, head_dim], v and the output
    [.., .., value_dim] (None: head_dim). `window=N` shows a query itself and the
    N - 1 tokens before it. `alibi`: True for the usual slopes, or a list [q_heads].
    `scale` None: 1 / sqrt(head_dim).
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    dtype: str = "float16"
    format: str | Format = "f16"
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    alibi: bool | Sequence[float] = False
    scale: float | None = None
    _native: Any = field(init=False, repr=False, compare=False, default=None)
    _slopes: Any = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        for name in ("q_heads", "kv_heads", "head_dim"):
            put(name, integer(getattr(self, name), name, 1))
        put("value_dim", self.head_dim if self.value_dim is None else integer(self.value_dim, "value_dim", 1))
        put("dtype", _dtype_name(self.dtype))
        put("format", Format(self.format))
        if not isinstance(self.causal, (bool, np.bool_)):
            raise ValueError(f"causal is {self.causal!r}, expected True or False")
        put("causal", bool(self.causal))
        if self.window is not None:
            put("window", integer(self.window, "window", 1))
        for name in ("softcap", "scale"):
            if getattr(self, name) is not None:
                put(name, number(getattr(self, name), name))
        self._set_slopes(put)
        native = _native.Spec(
            q_heads=self.q_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            dtype=self.dtype,
            format=self.format._text,
            causal=self.causal,
            window_left=None if self.window is None else self.window - 1,
            softcap=self.softcap,
            alibi=self._slopes is not None,
            scale=self.scale,
        )
        put("_native", native)

    def _set_slopes(self, put: Any) -> None:
        if isinstance(self.alibi, (bool, np.bool_)):
            put("alibi", bool(self.alibi))
            slopes = alibi_slopes(self.q_heads) if self.alibi else None
        else:
            try:
                slopes = np.asarray(self.alibi, np.float64)
            except (TypeError, ValueError):
                slopes = np.zeros(0)
            if slopes.shape != (self.q_heads,) or not np.isfinite(slopes).all():
                raise ValueError(
                    f"alibi is {self.alibi!r}, expected True, False or {self.q_heads} finite slopes (one per "
                    "query head)"
                )
            put("alibi", tuple(float(s) for s in slopes))
        put("_slopes", None if slopes is None else np.ascontiguousarray(slopes, np.float32))

    def __str__(self) -> str:
        return str(self._native)
