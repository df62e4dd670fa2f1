"""The cache of compiled kernels on disk, keyed by content.

One file per kernel under KVCACHE_CACHE_DIR (default: the user's cache directory).
A file is written beside its final name and renamed, so that readers, other
processes and a full disk never see half of one; it starts with a hash of the rest,
and one that does not match is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path

from kvcache import _native


def directory() -> Path:
    """Where compiled kernels are kept."""
    chosen = os.environ.get("KVCACHE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kvcache"


@functools.cache
def compiler_hash() -> str:
    """Names this very build of the compiler: kernels of another are not ours."""
    return hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()


def key_of(*parts: str) -> str:
    """The name of a kernel that depends on `parts` and on the compiler."""
    return hashlib.sha256("\0".join((compiler_hash(), *parts)).encode()).hexdigest()


def load(key: str) -> bytes | None:
    """The kept bytes, or None."""
    try:
        data = (directory() / key).read_bytes()
    except OSError:
        return None
    digest, body = data[:32], data[32:]
    return body if hashlib.sha256(body).digest() == digest else None


def store(key: str, body: bytes) -> None:
    """Keeps bytes; a directory that cannot be written only costs time."""
    folder = directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".new-")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(name, folder / key)
    except OSError:
        Path(name).unlink(missing_ok=True)
