"""Hostile files and command lines: one message and exit 1, never a crash or a hang."""

from __future__ import annotations

import struct
import subprocess

import numpy as np
import pytest
from simrun import tool

TEXT = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .align 64 .b8 m[128])
{
  .reg .b64 %rd<4>; .reg .b32 %r<4>;
  ld.param.u64 %rd1, [a];
  ld.global.u32 %r1, [%rd1];
  ret;
}
"""


def sim(*args: str, timeout: int = 60) -> subprocess.CompletedProcess:
    """kv-sim with raw arguments."""
    return subprocess.run([tool(), *args], capture_output=True, text=True, timeout=timeout, check=False)


def launch(tmp_path, text: str, *args: str) -> subprocess.CompletedProcess:
    """One thread of entry k of a text."""
    path = tmp_path / "k.ptx"
    path.write_text(text)
    return sim(str(path), "--entry", "k", "--grid", "1", "--block", "1", *args)


def refused(r: subprocess.CompletedProcess, *words: str) -> None:
    """Exit 1 with one line that holds the words."""
    assert r.returncode == 1, (r.returncode, r.stderr)
    assert len(r.stderr.strip().split("\n")) == 1, r.stderr
    for w in words:
        assert w in r.stderr, r.stderr


TMAP = "dtype=f16;dims=64x4;strides=128;box=16x4"


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--arg", "ptr:absent.npy"], "cannot read"),
        (["--arg", "ptr:/dev/zero"], "is not a file"),
        (["--arg", "ptr:/"], "is not a file"),
        (["--arg", "u32:4294967296"], "does not fit"),
        (["--arg", "i8:-129"], "does not fit"),
        (["--arg", "u32:"], "expected an integer"),
        (["--arg", "u32:1x"], "expected an integer"),
        (["--arg", "f32:abc"], "expected a number"),
        (["--arg", "what:1"], "unknown argument form"),
        (["--arg", "struct:{f}:9999999999=ptr:{f}"], "does not fit"),
        (["--arg", "struct:{f}:4294967295=ptr:{f}"], "outside the struct"),
        (["--arg", "struct:{f}:60=ptr:{f}"], "outside the struct"),
        (["--arg", "struct:{f}:0"], "expected OFF="),
        (["--arg", "tmap:{f};dtype=f16;dims=;box="], "1 to 5 dims"),
        (["--arg", "tmap:{f};dtype=f16;dims=64x4;box=16x4"], "strides"),
        (["--arg", "tmap:{f};" + TMAP.replace("16x4", "4294967312x4")], "too large"),
        (["--arg", "tmap:{f};" + TMAP.replace("16x4", "0x4")], "box dims"),
        (["--arg", "tmap:{f};" + TMAP.replace("f16", "f17")], "unknown dtype"),
        (["--arg", "tmap:{f};" + TMAP + ";swizzle=256B"], "unknown swizzle"),
        (["--arg", "tmap:{f};" + TMAP + ";estrides=9x1"], "element strides"),
        (["--arg", "tmap:{f};" + TMAP.replace("128", "129")], "multiples of 16"),
        (["--grid", "1,1,1,1"], "expected X,Y,Z"),
        (["--grid", "99999999999"], "does not fit"),
        (["--grid", "0"], "out of range"),
        (["--block", "2048"], "out of range"),
        (["--cluster", "17"], "multiple of the cluster"),
        (["--shared", "4294967295"], "shared memory"),
        (["--check", "everything"], "unknown check"),
        (["--max-steps", "-"], "expected an integer"),
        (["--target", "gfx90a"], "unknown target"),
        (["--mma-model", "b200"], "unknown mma model"),
        (["--frobnicate"], "unknown option"),
        (["--arg"], "needs a value"),
    ],
)
def test_bad_command_lines(tmp_path, args, word):
    f = tmp_path / "f.bin"
    f.write_bytes(bytes(64))
    plain = ["--arg", f"ptr:{f}", "--arg", f"bytes:{f}"]
    refused(launch(tmp_path, TEXT, *plain, *[a.format(f=f) for a in args]), word)


@pytest.mark.parametrize(
    "header",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff{}",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
        b"\x93NUMPY\x09\x00\x02\x00{}",
    ],
)
def test_broken_npy_headers_are_raw_bytes(tmp_path, header):
    f, m = tmp_path / "f.npy", tmp_path / "m.bin"
    f.write_bytes(header)
    m.write_bytes(bytes(128))
    r = launch(tmp_path, TEXT, "--arg", f"ptr:{f}", "--arg", f"bytes:{m}")
    assert r.returncode in (0, 1)
    assert r.returncode == 0 or "bounds" in r.stderr


BODY = (
    ".version 8.0\n.target sm_80\n.address_size 64\n{0}\n"
    ".visible .entry k(.param .u64 a)\n{{\n{1}\nret;\n}}\n"
)


@pytest.mark.parametrize(
    ("module", "body", "word"),
    [
        ("", ".reg .b32 %r<2000000000>;", "register count"),
        ("", ".reg .b32 %r<-1>;", "register count"),
        ("", ".reg .b128 %a<600000>; .reg .b128 %b<500000>;", "too many registers"),
        ("", ".shared .b8 s[1073741824];\n.reg .u32 %r1; mov.u32 %r1, s;", "shared memory"),
        ("", ".shared .b8 s[99999999999];", "out of range"),
        ("", ".local .b8 s[1073741824];", "too large"),
        (".global .b8 g[2147483648];", "", "out of range"),
        (".global .b8 g[32768][32768][32768];", "", "too large"),
        (".global .b8 g[2] = {1, 2, 3};", "", "too many initialisers"),
        (".global .align 3 .b8 g[2];", "", "power of two"),
        ("", "{" * 3000, "nested too deeply"),
        ("", "mov.u32 " + "{" * 200, "nested too deeply"),
        ("", ".param .b8 p[65536];", "too large"),
        ("", "frob.u32 %r1;", "frob"),
        ("", "bra L;", "L"),
        (".visible .entry k(.param .u64 a) { ret; }", "", "defined twice"),
        ("/* ", "", "comment is not closed"),
        ('.file 1 "abc', "", "string is not closed"),
        ("\x01", "", "unexpected character"),
    ],
)
def test_hostile_declarations(tmp_path, module, body, word):
    r = launch(tmp_path, BODY.format(module, body), "--arg", "u64:0")
    refused(r, word)
    assert "k.ptx:" in r.stderr or "launch needs" in r.stderr


def test_large_zero_variables_cost_nothing(tmp_path):
    module = "\n".join(f".global .b8 g{i}[1073741824] = {{1}};" for i in range(64))
    r = launch(tmp_path, BODY.format(module, ""), "--arg", "u64:0")
    assert r.returncode == 0, r.stderr


def test_endless_recursion_ends(tmp_path):
    function = ".func f(.param .b32 x)\n{\n.param .b32 p;\ncall f, (p);\nret;\n}\n"
    r = launch(
        tmp_path, BODY.format(function, ".param .b32 q;\ncall f, (q);"), "--arg", "u64:0", "--check=bounds"
    )
    refused(r, "nested too deeply")


def test_huge_grids_end(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text(BODY.format("", ""))
    args = [str(path), "--entry", "k", "--grid", "2147483647,65535,65535", "--block", "1", "--arg", "u64:0"]
    refused(sim(*args, "--max-steps", "10000000"), "steps")


@pytest.mark.parametrize("cut", range(0, len(TEXT), 7))
def test_truncated_files(tmp_path, cut):
    f = tmp_path / "f.bin"
    f.write_bytes(bytes(128))
    r = launch(tmp_path, TEXT[:cut], "--arg", f"ptr:{f}", "--arg", f"bytes:{f}")
    assert r.returncode == 1
    assert "error" in r.stderr


def test_npy_of_version_two(tmp_path):
    head = b"{'descr': '<u4', 'fortran_order': False, 'shape': (4,), }".ljust(63) + b"\n"
    f, m = tmp_path / "f.npy", tmp_path / "m.bin"
    f.write_bytes(
        b"\x93NUMPY\x02\x00" + struct.pack("<I", len(head)) + head + np.arange(4, dtype="<u4").tobytes()
    )
    m.write_bytes(bytes(128))
    assert launch(tmp_path, TEXT, "--arg", f"ptr:{f}", "--arg", f"bytes:{m}").returncode == 0
