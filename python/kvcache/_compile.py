"""Compiling specs into kernels, with a cache on disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcache import _disk, _native
from kvcache._ir import kvcache_level
from kvcache._spec import AttentionSpec

_LEVELS = ("kvcache", "kvtile", "nvvm", "llvm")


def _schedule_text(schedule: Mapping[str, Any] | None) -> str:
    """{"q_pack": 4} -> "q_pack=4", in a fixed order."""
    if schedule is None:
        return ""
    if not isinstance(schedule, Mapping):
        raise ValueError(f"schedule is {schedule!r}, expected a dict such as {{'q_pack': 4}}")
    for name, value in schedule.items():
        text = f"{name}={value}"
        if not isinstance(name, str) or any(c in text for c in ", \n") or text.count("=") != 1:
            raise ValueError(f"schedule entry {name!r}: {value!r} is not a name and a plain value")
    return ",".join(f"{name}={schedule[name]}" for name in sorted(schedule))


class Kernel:
    """A compiled kernel: `ptx`, `cubin()`, `launches()` on GPU targets, `save()` and `ir()` on all."""

    def __init__(self, spec: AttentionSpec, target: str, schedule: str, tier: str, blob: bytes) -> None:
        self.spec = spec
        self.target = target
        self._schedule = schedule
        self._tier = tier
        self._blob = blob
        self._gpu: dict[str, Any] | None = json.loads(blob) if _native.is_gpu(target) else None
        self._cubin: bytes | None = None
        self._report: dict[str, Any] | None = None
        self._loaded: dict[str, Any] = {}  # by mma model
        self._lock = threading.Lock()

    def _of_gpu(self, what: str) -> dict[str, Any]:
        if self._gpu is None:
            raise ValueError(f"a kernel for {self.target} has no {what}; compile it for sm_80 or another GPU")
        return self._gpu

    @property
    def ptx(self) -> str:
        """The PTX text (GPU targets)."""
        return self._of_gpu("PTX")["ptx"]

    @property
    def report(self) -> dict[str, Any]:
        """What was chosen and what it costs."""
        if self._gpu is not None:
            if self._report is None:
                text = _native.gpu_report(self.spec._native, self.target, self._schedule)
                self._report = json.loads(text)
            return self._report
        return {"target": self.target, **_native.unpack_cpu(self._blob)}

    def ir(self, level: str) -> str:
        """The kernel's IR at "kvcache", "kvtile", "nvvm" (GPU targets) or "llvm"."""
        if level not in _LEVELS:
            raise ValueError(f"level is {level!r}, expected one of {', '.join(_LEVELS)}")
        if level == "kvcache":
            return kvcache_level(self.spec)
        if self._gpu is not None:
            return _native.gpu_ir(self.spec._native, self.target, self._schedule, level)
        return _native.cpu_ir(self.spec._native, self._tier, self._schedule, level)

    def cubin(self) -> bytes:
        """The assembled kernel (GPU targets); DeviceError where there is no ptxas."""
        ptx = self.ptx
        if self._cubin is None:
            self._cubin = _native.assemble(ptx, self.target)
        return self._cubin

    def launches(self) -> list[dict[str, Any]]:
        """Each launch: entry, grid, block, shared bytes, argument layout (GPU targets)."""
        return self._of_gpu("launches")["launches"]

    def save(self, folder: str | Path) -> list[Path]:
        """Writes the kernel package to `folder` (absent, empty or an old package); returns the files."""
        if not isinstance(folder, (str, Path)):
            raise ValueError(f"folder is {folder!r}, expected a path")
        folder = Path(folder)
        if self._gpu is None:
            names = _native.write_package(self.spec._native, self._schedule, str(folder))
            return [folder / name for name in names]
        _native.write_gpu_package(self.spec._native, self.target, self._schedule, str(folder))
        return sorted(folder.iterdir())

    def _runtime(self, mma_model: str = "exact") -> Any:
        """The kernel ready to run: linked into this process, or in the simulator (GPU targets)."""
        with self._lock:
            if mma_model not in self._loaded:
                if self._gpu is None:
                    loaded = _native.load_cpu(self._blob)
                else:
                    loaded = _native.load_sim(self.spec._native, self.target, self._schedule, mma_model)
                self._loaded[mma_model] = loaded
            return self._loaded[mma_model]

    def __repr__(self) -> str:
        return f"<kvcache.Kernel {self.target} {self.spec}>"


_kernels: dict[str, Kernel] = {}
_kernels_lock = threading.Lock()


def compile(
    spec: AttentionSpec, target: str = "x86-64", *, schedule: Mapping[str, Any] | None = None
) -> Kernel:
    """Compiles `spec` for "x86-64" (this machine's best tier, or KVCACHE_CPU) or "sm_80", ...

    Kernels are kept in the process and on disk, by everything they depend on.
    `schedule` pins fields of the schedule, e.g. {"q_pack": 4}.
    """
    if not isinstance(spec, AttentionSpec):
        raise ValueError(f"spec is a {type(spec).__name__}, expected a kvcache.AttentionSpec")
    if not isinstance(target, str):
        raise ValueError(f"target is {target!r}, expected a string such as 'x86-64' or 'sm_80'")
    gpu = _native.is_gpu(target)
    text = _schedule_text(schedule)
    tier = "" if gpu else _native.host_cpu_tier()
    key = _disk.key_of(str(spec), target, tier, text)
    with _kernels_lock:
        known = _kernels.get(key)
    if known is not None:
        return known
    blob = _disk.load(key)
    if blob is None:
        if gpu:
            ptx, launches = _native.compile_gpu(spec._native, target, text)
            blob = json.dumps({"ptx": ptx, "launches": json.loads(launches)}).encode()
        else:
            blob = _native.compile_cpu(spec._native, tier, text)
        _disk.store(key, blob)
    kernel = Kernel(spec, target, text, tier, blob)
    with _kernels_lock:
        return _kernels.setdefault(key, kernel)


def load(folder: str | Path, tier: str | None = None) -> Any:
    """Loads a kernel package written by `Kernel.save` or kv-compile; `PagedCache(..., kernel=)` takes it."""
    return _native.load_package(str(folder), tier)
