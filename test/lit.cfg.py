"""Rules of the lit tests.

Features (a test says REQUIRES: what it needs beyond the tools):
  ptxas     NVIDIA's assembler was found (PATH or CUDA_HOME)
  avx512    the processor has AVX-512 with VNNI
  avx2      the processor has AVX2, FMA and F16C
  cuda      a GPU is there
  kv-run, kv-compile, kv-sim    that tool was built
"""
# ruff: noqa: F821  (lit provides `config`)

import os
import shutil

import lit.formats

config.name = "kvcache"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs", "Unit", "Fuzz", "python", "data"]
config.test_source_root = os.path.join(config.kvcache_source_dir, "test")
config.test_exec_root = os.path.join(config.kvcache_build_dir, "test")

bin_dir = os.path.join(config.kvcache_build_dir, "bin")
config.environment["PATH"] = os.pathsep.join([bin_dir, config.llvm_tools_dir, os.environ.get("PATH", "")])
for name in ("CUDA_HOME", "KVCACHE_CPU", "HOME"):
    if name in os.environ:
        config.environment[name] = os.environ[name]

config.substitutions += [
    ("%python", config.python),
    ("%source_dir", config.kvcache_source_dir),
    ("%build_dir", config.kvcache_build_dir),
    ("%llvm_include", config.llvm_include_dir),
]


def _cpu_flags() -> set[str]:
    """The processor's feature words, empty where the system does not say."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith("flags")]
    except OSError:
        return set()
    return set(lines[0].split(":")[1].split()) if lines else set()


flags = _cpu_flags()
if {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"} <= flags:
    config.available_features.add("avx512")
if {"avx2", "fma", "f16c"} <= flags:
    config.available_features.add("avx2")
for tool in ("kv-run", "kv-compile", "kv-sim"):
    if os.path.exists(os.path.join(bin_dir, tool)):
        config.available_features.add(tool)
ptxas = shutil.which("ptxas")
cuda_ptxas = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "ptxas")
if ptxas is None and os.path.exists(cuda_ptxas):
    ptxas = cuda_ptxas
if ptxas is not None:
    config.available_features.add("ptxas")
    config.substitutions.append(("%ptxas", ptxas))
if os.path.exists("/dev/nvidiactl"):
    config.available_features.add("cuda")
