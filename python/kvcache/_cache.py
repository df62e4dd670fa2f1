"""Paged caches: sequences of tokens stored in a format, and attention over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvcache import _native
from kvcache._arrays import DTYPES, checked, framework_of, from_numpy, integer, raw, to_numpy
from kvcache._compile import compile
from kvcache._spec import AttentionSpec


def _target_of(device: Any) -> tuple[str, str]:
    """The target that a device runs kernels of, and its mma model ("sim:sm_80,mma=a100")."""
    if device == "cpu":
        return "x86-64", "exact"
    if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
        raise _native.DeviceError(
            f"device '{device}' needs a launcher of CUDA kernels, which this build does not have; "
            "accepted: 'cpu', 'sim:sm_80'"
        )
    if not isinstance(device, str) or not device.startswith("sim:"):
        raise ValueError(f"device is {device!r}, expected 'cpu', 'sim:sm_80' (or another target) or 'cuda'")
    target, _, model = device.removeprefix("sim:").partition(",mma=")
    if not _native.is_gpu(target):
        raise ValueError(f"device is {device!r}, but {target} is no GPU; expected 'sim:sm_80' or the like")
    return target, model or "exact"


class PagedCache:
    """A pool of pages that sequences share, on one device.

    `capacity_tokens` gives ceil(capacity_tokens / page) pages. `k_scale` and
    `v_scale` (scalar or [kv_heads]) are the static scales of `tensor` encodings.
    Devices: "cpu"; "sim:sm_80" (any GPU target) runs the PTX in the simulator, with the
    accumulation of a chip's mma by "sim:sm_80,mma=a100" (or ada, h100; default exact).
    The kernel is compiled (`schedule` as for `compile`), or is `kernel`, a package
    that `kvcache.load` loaded.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        capacity_tokens: int,
        device: str = "cpu",
        *,
        k_scale: Any = None,
        v_scale: Any = None,
        schedule: Mapping[str, Any] | None = None,
        kernel: Any = None,
    ) -> None:
        if not isinstance(spec, AttentionSpec):
            raise ValueError(f"spec is a {type(spec).__name__}, expected a kvcache.AttentionSpec")
        target, mma_model = _target_of(device)
        capacity = integer(capacity_tokens, "capacity_tokens", 1)
        self.spec = spec
        self.device = device
        self._dtype = DTYPES[spec.dtype]
        scales = [self._static_scale(s, n) for s, n in ((k_scale, "k_scale"), (v_scale, "v_scale"))]
        if kernel is None:
            kernel = compile(spec, target, schedule=schedule)._runtime(mma_model)
        elif isinstance(kernel, _native.Kernel) and schedule is None and device == "cpu":
            kernel.check_fits(spec._native)
        else:
            raise ValueError("kernel= takes what kvcache.load returned, without schedule=, on 'cpu'")
        self._kernel = kernel
        self._native = _native.Cache(self._kernel, capacity, *scales)

    def _static_scale(self, scale: Any, name: str) -> np.ndarray | None:
        if scale is None:
            return None
        encoding = self.spec.format.key if name == "k_scale" else self.spec.format.value
        if "tensor" not in encoding.split(":"):
            raise ValueError(f"{name} was given, but '{encoding}' has no static scale ('tensor')")
        a = to_numpy(scale, name)
        if a.dtype.kind not in "fiu" and a.dtype != DTYPES["bfloat16"]:
            raise ValueError(f"{name} has dtype {a.dtype}, expected numbers")
        if a.ndim and a.shape != (self.spec.kv_heads,):
            raise ValueError(f"{name} has shape {list(a.shape)}, expected a scalar or [{self.spec.kv_heads}]")
        return np.ascontiguousarray(np.broadcast_to(a.astype(np.float32), (self.spec.kv_heads,)))

    def new_sequence(self) -> int:
        """An empty sequence; its number is never used again."""
        return self._native.new_sequence()

    def fork(self, seq: int) -> int:
        """A new sequence with the same tokens; pages are shared until one of them is written."""
        return self._native.fork(integer(seq, "sequence"))

    def free(self, seq: int) -> None:
        """Gives the sequence's pages back."""
        self._native.free(integer(seq, "sequence"))

    def truncate(self, seq: int, length: int) -> None:
        """Keeps the first `length` tokens. Coded tokens stay coded."""
        self._native.truncate(integer(seq, "sequence"), integer(length, "length", 0))

    def length(self, seq: int) -> int:
        """Tokens of the sequence."""
        return self._native.length(integer(seq, "sequence"))

    def append(self, seq: int, k: Any, v: Any) -> None:
        """Appends k [tokens, kv_heads, head_dim] and v [tokens, kv_heads, value_dim], in the spec's dtype."""
        spec = self.spec
        seq = integer(seq, "sequence")
        k = checked(k, "k", self._dtype, ("tokens", spec.kv_heads, spec.head_dim))
        v = checked(v, "v", self._dtype, (len(k), spec.kv_heads, spec.value_dim), " (as many tokens as k)")
        refused = self._native.append(seq, raw(k), raw(v), len(k))
        if refused >= 0:
            raise ValueError(self._why_refused(refused, k[refused], v[refused]))

    def _why_refused(self, row: int, k: np.ndarray, v: np.ndarray) -> str:
        for name, x in (("k", k), ("v", v)):
            bad = np.argwhere(~np.isfinite(x.astype(np.float32)))
            if len(bad):
                head, channel = bad[0]
                return f"{name}[{row}, {head}, {channel}] is {x[head, channel]}, expected finite numbers"
        peak = [float(np.abs(x.astype(np.float32)).max(initial=0)) for x in (k, v)]
        return (
            f"token {row} (largest |k| {peak[0]:g}, largest |v| {peak[1]:g}) could overflow the scale type "
            f"or element of format '{self.spec.format}'; use wider scales (sf32, sbf16) or smaller values"
        )

    def attend(self, q: Any, seqs: Sequence[int], q_lens: Sequence[int] | None = None) -> tuple[Any, Any]:
        """Attention of the newest tokens of each sequence.

        q [total_q, q_heads, head_dim]: q_lens[i] rows of seqs[i] after one another
        (None: one each). Returns out [total_q, q_heads, value_dim] in the spec's
        dtype and lse [total_q, q_heads] f32 (natural log), in q's framework. A row
        that sees no token is 0 with lse -inf.
        """
        spec = self.spec
        ids = [integer(s, "sequence") for s in _listed(seqs, "seqs")]
        if q_lens is None:
            lens = [1] * len(ids)
        else:
            lens = [integer(n, "q_lens", 0) for n in _listed(q_lens, "q_lens")]
        if len(lens) != len(ids):
            raise ValueError(f"q_lens has {len(lens)} entries, expected one per sequence ({len(ids)})")
        rows = sum(lens)
        why = f" ({rows} query rows for {len(ids)} sequences)"
        a = checked(q, "q", self._dtype, (rows, spec.q_heads, spec.head_dim), why)
        out = np.empty((rows, spec.q_heads, spec.value_dim), self._dtype)
        lse = np.empty((rows, spec.q_heads), np.float32)
        self._native.attend(raw(a), ids, lens, spec._slopes, raw(out), lse)
        self._spread_nan(a, ids, lens, out, lse)
        framework = framework_of(q)
        return from_numpy(out, framework), from_numpy(lse, framework)

    def _spread_nan(
        self, q: np.ndarray, ids: list[int], lens: list[int], out: np.ndarray, lse: np.ndarray
    ) -> None:
        """Makes the results of queries with NaN or infinities NaN: kernels compare, and would lose them."""
        bad = ~np.isfinite(q).all(axis=-1)
        if not bad.any():
            return
        # Rows before token 0 see nothing, whatever they hold.
        before = [self.length(s) - n + i < 0 for s, n in zip(ids, lens, strict=True) for i in range(n)]
        bad[np.asarray(before, bool)] = False
        out[bad] = np.nan
        lse[bad] = np.nan

    def read(self, seq: int) -> tuple[np.ndarray, np.ndarray]:
        """Decoded contents: k [tokens, kv_heads, head_dim], v [tokens, kv_heads, value_dim], f32."""
        n = self.length(seq)
        k = np.empty((n, self.spec.kv_heads, self.spec.head_dim), np.float32)
        v = np.empty((n, self.spec.kv_heads, self.spec.value_dim), np.float32)
        self._native.read(seq, k, v)
        return k, v

    def dump(self, seq: int) -> bytes:
        """The stored bytes, page by page: equal for equal contents."""
        return self._native.dump(integer(seq, "sequence"))

    def stats(self) -> dict[str, Any]:
        """Bytes held, bytes per token, waste, and pages by state.

        `bytes_per_token` is what the stored tokens (shared ones counted once) hold,
        page padding and unused slots included; 0 when nothing is stored.
        """
        s = self._native.stats()
        s["free_pages"] = s["capacity_pages"] - s["open_pages"] - s["sealed_pages"]
        s["pages"] = {"open": s["open_pages"], "sealed": s["sealed_pages"], "free": s["free_pages"]}
        s["bytes_per_token"] = s["bytes_held"] / s["stored_tokens"] if s["stored_tokens"] else 0.0
        s["waste"] = s["wasted_bytes"] / s["bytes_held"] if s["bytes_held"] else 0.0
        return s


def _listed(x: Any, name: str) -> list[Any]:
    """A sequence of numbers as a list; a lone number is refused."""
    try:
        return list(x)
    except TypeError:
        raise ValueError(f"{name} is {x!r}, expected a list with one entry per sequence") from None
