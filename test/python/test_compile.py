"""Compiled kernels: the cache on disk, packages, IR at every level, GPU text."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from caches import fill, make, means, random_rows

import kvcache as kv
from kvcache import _compile, _disk, _native

SPEC = {"q_heads": 4, "kv_heads": 2, "head_dim": 64, "format": "kivi4,page=16,recent=16"}


@pytest.fixture
def fresh(tmp_path, monkeypatch) -> Path:
    """An empty cache folder, and a process that has compiled nothing."""
    monkeypatch.setenv("KVCACHE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_compile, "_kernels", {})
    return tmp_path / "cache"


def test_kernels_are_kept_by_content(fresh: Path, monkeypatch) -> None:
    spec = kv.AttentionSpec(**SPEC)
    first = kv.compile(spec)
    assert kv.compile(spec) is first
    files = list(fresh.iterdir())
    assert len(files) == 1
    monkeypatch.setattr(_compile, "_kernels", {})
    again = kv.compile(spec)
    assert again is not first and again._blob == first._blob and list(fresh.iterdir()) == files
    # A damaged file is compiled again and replaced.
    whole = files[0].read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole[:-1] + b"\0\0"):
        files[0].write_bytes(damaged)
        monkeypatch.setattr(_compile, "_kernels", {})
        assert means_of(kv.PagedCache(spec, 64)) == 1
        assert _disk.load(files[0].name) is not None


def means_of(cache: kv.PagedCache) -> float:
    """The mean of token numbers 0, 1, 2 through a cache."""
    return means(cache, fill(cache, 3))[0]


def test_a_folder_that_cannot_be_written_only_costs_time(monkeypatch) -> None:
    monkeypatch.setenv("KVCACHE_CACHE_DIR", "/dev/null/none")
    monkeypatch.setattr(_compile, "_kernels", {})
    assert means_of(make(**SPEC)) == 1


def test_compiling_from_several_threads(fresh: Path) -> None:
    specs = [kv.AttentionSpec(**{**SPEC, "q_heads": 2 * g}) for g in (1, 2, 1, 2, 3)]
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(kv.compile, specs))
    assert kernels[0] is kernels[2] and kernels[1] is kernels[3]


def test_packages_hold_every_tier(tmp_path) -> None:
    spec = kv.AttentionSpec(**SPEC)
    folder = tmp_path / "package"
    files = kv.compile(spec).save(folder)
    assert {f.name for f in files} == {"manifest.json", "kernel-v2.so", "kernel-avx2.so", "kernel-avx512.so"}
    assert {f.name for f in folder.iterdir()} == {f.name for f in files}
    for library in folder.glob("*.so"):
        nm = shutil.which("nm") or shutil.which("llvm-nm-22")
        if nm:
            undefined = subprocess.run([nm, "-D", "-u", library], capture_output=True, text=True, check=True)
            assert undefined.stdout.strip() == ""
    rng = np.random.default_rng(0)
    compiled = kv.PagedCache(spec, 256)
    k, v = random_rows(rng, compiled, 100)
    q = rng.standard_normal((1, 4, 64)).astype(np.float16)
    dumps, outs = set(), []
    for tier in ("v2", "avx2", "avx512"):
        try:
            kernel = kv.load(folder, tier)
        except kv.DeviceError:
            continue  # this machine lacks the tier
        assert kernel.tier == tier
        cache = kv.PagedCache(spec, 256, kernel=kernel)
        seq = cache.new_sequence()
        cache.append(seq, k, v)
        dumps.add(cache.dump(seq))
        outs.append(cache.attend(q, [seq])[0].astype(np.float64))
        want, _ = kv.reference.attention(q, *cache.read(seq))
        assert np.linalg.norm(outs[-1] - want) / np.linalg.norm(want) < 2e-3
    assert len(dumps) == 1 and outs
    kv.compile(spec).save(folder)  # over an old package: fine
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(ValueError, match="exists and is no kernel package"):
        kv.compile(spec).save(tmp_path / "other")


def test_packages_that_do_not_fit_are_refused(tmp_path) -> None:
    spec = kv.AttentionSpec(**SPEC)
    folder = tmp_path / "package"
    kv.compile(spec).save(folder)
    kernel = kv.load(folder)
    with pytest.raises(ValueError, match="the kernel has head_dim 64, the spec needs 128"):
        kv.PagedCache(kv.AttentionSpec(**{**SPEC, "head_dim": 128}), 64, kernel=kernel)
    with pytest.raises(ValueError, match="page image"):
        kv.PagedCache(kv.AttentionSpec(**{**SPEC, "format": "int8,page=16,recent=16"}), 64, kernel=kernel)
    with pytest.raises(ValueError, match="kernel= takes what kvcache.load returned"):
        kv.PagedCache(spec, 64, kernel=folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["abi"] = 99
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="follow ABI 99"):
        kv.load(folder)
    with pytest.raises(ValueError, match="cannot read manifest.json"):
        kv.load(tmp_path / "absent")


@pytest.mark.parametrize("target", ["x86-64", "sm_80"])
def test_ir_at_every_level(target: str) -> None:
    kernel = kv.compile(kv.AttentionSpec(**{**SPEC, "alibi": True, "window": 7, "softcap": 20.0}), target)
    assert "kvcache.attention" in kernel.ir("kvcache") and "window = #kvcache.window<left = 6>" in kernel.ir(
        "kvcache"
    )
    assert "kvtile.kernel" in kernel.ir("kvtile")
    assert "define" in kernel.ir("llvm")
    if target == "sm_80":
        assert "nvvm" in kernel.ir("nvvm")
    else:
        with pytest.raises(ValueError, match="no IR at level 'nvvm'"):
            kernel.ir("nvvm")
    with pytest.raises(ValueError, match="level is 'ptx', expected one of kvcache, kvtile, nvvm, llvm"):
        kernel.ir("ptx")


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_gpu_kernels(target: str, tmp_path) -> None:
    kernel = kv.compile(kv.AttentionSpec(**SPEC), target)
    assert f".target {target}" in kernel.ptx and ".entry attend" in kernel.ptx
    launch = kernel.launches()[0]
    assert launch["entry"] == "attend" and launch["block"] > 0 and launch["arguments"]
    try:
        assert kernel.cubin()[:4] == b"\x7fELF"
    except kv.DeviceError as error:
        assert "ptxas" in str(error)
    assert kernel.report["compile_ms"]
    assert any(f.suffix == ".ptx" for f in kernel.save(tmp_path / "package"))


def test_what_is_refused() -> None:
    spec = kv.AttentionSpec(**SPEC)
    for target in ("sm_75", "sm_120", "", "sm80"):
        with pytest.raises(ValueError, match="x86-64, sm_80") as error:
            kv.compile(spec, target)
        assert f"'{target}'" in str(error.value)
    for call in (lambda k: k.ptx, lambda k: k.launches(), lambda k: k.cubin()):
        with pytest.raises(ValueError, match="a kernel for x86-64 has no"):
            call(kv.compile(spec))
    with pytest.raises(ValueError, match="spec is a str"):
        kv.compile("kivi4")
    with pytest.raises(ValueError, match="q_pick"):
        kv.compile(spec, schedule={"q_pick": 4})
    with pytest.raises(ValueError, match="schedule is 'q_pack=4', expected a dict"):
        kv.compile(spec, schedule="q_pack=4")
    with pytest.raises(ValueError, match="fp8|e4m3"):
        make(format="fp8")
    with pytest.raises(ValueError, match="e4m3"):
        kv.compile(kv.AttentionSpec(**{**SPEC, "format": "fp8"}), "sm_80")


def test_tiers_by_environment(tmp_path) -> None:
    code = f"import kvcache as kv;k = kv.compile(kv.AttentionSpec(**{SPEC!r}));print(k.report['tier'])"
    for tier, want in (("v2", "v2"), ("nope", "KVCACHE_CPU is 'nope', expected v2, avx2 or avx512")):
        env = {"KVCACHE_CPU": tier, "KVCACHE_CACHE_DIR": str(tmp_path), "PYTHONPATH": _package_path()}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert want in run.stdout + run.stderr


def _package_path() -> str:
    return str(Path(_native.__file__).parents[1])


def test_threads_by_environment() -> None:
    code = "from kvcache import _native; print(_native.num_threads())"
    for env, want in (
        ({"KVCACHE_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, "3"),
        ({"OMP_NUM_THREADS": "5"}, "5"),
    ):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**env, "PYTHONPATH": _package_path()},
            capture_output=True,
            text=True,
        )
        assert run.stdout.strip() == want, run.stderr


@pytest.mark.parametrize("text", ["0", "-1", "two", "2x"])
def test_threads_environment_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KVCACHE_NUM_THREADS", text)
    spec = kv.AttentionSpec(q_heads=1, kv_heads=1, head_dim=64, format="f16")
    with pytest.raises(ValueError, match=f"KVCACHE_NUM_THREADS is '{text}'"):
        kv.PagedCache(spec, capacity_tokens=64)
