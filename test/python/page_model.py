"""The life of a sequence: an oracle of what is coded when."""

from __future__ import annotations

import numpy as np
from oracle import reference as ref


class PageModel:
    """One sequence: which tokens are coded after append, truncate and fork.

    Holds decoded values, k [tokens, kv_heads, d] and v, exactly as `read` must
    return them. `dtype` is float16, float32 or "bfloat16".
    """

    def __init__(self, key: str, value: str, page: int, sinks: int = 0, recent: int = 0, dtype="float16"):
        self.encodings = (key, value)
        self.page, self.recent, self.sink_pages = page, recent, -(-sinks // page)
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        self.stype = {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}[name]
        self.data: list[np.ndarray] = []
        self.sealed: set[int] = set()
        self.static = (1.0, 1.0)

    def __len__(self) -> int:
        return len(self.data[0]) if self.data else 0

    def append(self, k, v) -> None:
        """Adds k [n, kv_heads, d] and v [n, kv_heads, dv], then seals what is due."""
        new = [ref.store(np.asarray(a).astype(np.float32), self.stype) for a in (k, v)]
        self.data = (
            [np.concatenate([a, b]) for a, b in zip(self.data, new, strict=True)] if self.data else new
        )
        for p in range(self.sink_pages, (len(self) - self.recent) // self.page):
            if p not in self.sealed:
                self._seal(p)

    def _seal(self, p: int) -> None:
        self.sealed.add(p)
        rows = slice(p * self.page, (p + 1) * self.page)
        for x, enc, static in zip(self.data, self.encodings, self.static, strict=True):
            for h in range(x.shape[1]):
                s = static if np.isscalar(static) else static[h]
                x[rows, h] = ref.dequantize(*ref.quantize(x[rows, h], enc, s), enc)

    def truncate(self, n: int) -> None:
        """Keeps n tokens; a sealed page that n cuts is decoded into an open one."""
        cut = n // self.page
        if n % self.page and cut in self.sealed:
            rows = slice(cut * self.page, (cut + 1) * self.page)
            for x in self.data:
                x[rows] = ref.store(x[rows], self.stype)
        self.data = [x[:n].copy() for x in self.data]
        self.sealed = {p for p in self.sealed if (p + 1) * self.page <= n}

    def fork(self) -> PageModel:
        """An independent copy that shares the past."""
        new = PageModel.__new__(PageModel)
        new.__dict__ = dict(self.__dict__, data=[x.copy() for x in self.data], sealed=set(self.sealed))
        return new

    def coded_tokens(self) -> int:
        """How many tokens lie in sealed pages."""
        return len(self.sealed) * self.page
