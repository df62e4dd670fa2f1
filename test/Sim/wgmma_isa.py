"""Shared-memory images and descriptors of wgmma by the ISA's canonical layouts, written as CuTe layouts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MODE = {0: 0, 128: 1, 64: 2, 32: 3}


def cute(index: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Offset of a coordinate, the first mode fastest."""
    out = 0
    for s, d in zip(shape, stride, strict=True):
        out += index % s * d
        index //= s
    assert index == 0, "outside the layout"
    return out


@dataclass(frozen=True)
class Operand:
    """A matrix of `rows` (M or N) by `cols` (K) elements of `bits` in shared memory.

    Canonical layouts (T elements are 16 bytes, W of them a swizzle row):
      K, none      ((8,m),(T,2k)) : ((1T,SBO),(1,LBO))
      K, swizzled  ((8,m),(T,2k)) : ((W T,SBO),(1,T))
      MN, none     ((T,1,m),(8,k)) : ((1,T,SBO),(1T,LBO))
      MN, swizzled ((T,W,m),(8,k)) : ((1,T,LBO),(W T,SBO))
    """

    rows: int
    cols: int
    bits: int
    swizzle: int  # bytes: 0, 32, 64, 128
    mn_major: bool
    pad: int = 0  # bytes added to the strides, a multiple of the pattern
    start: int = 0  # bytes; rows of the pattern before it are the base offset

    @property
    def pattern(self) -> int:
        return 8 * self.swizzle if self.swizzle else 16

    def strides(self) -> tuple[int, int]:
        """LBO and SBO in bytes."""
        w = self.swizzle or 16
        atoms_k = max(self.cols // 8, 1) if self.mn_major else 1
        atoms_mn = -(-self.rows * self.bits // 8 // w)
        if self.mn_major:
            if not self.swizzle:
                return 128 * atoms_mn + self.pad, 128  # next 8 of k, next 16 bytes of rows
            return 8 * w * atoms_k + self.pad, 8 * w  # next W bytes of rows, next 8 of k
        if not self.swizzle:
            return 128 * (self.rows // 8) + self.pad, 128
        return 16, 8 * w + self.pad

    def address(self, row: int, col: int) -> int:
        """Byte offset of an element from the start of shared memory (bits per element >= 8)."""
        t, e = 128 // self.bits, self.bits // 8
        lbo, sbo = (v // e for v in self.strides())
        w = self.swizzle // 16
        big = 1 << 20
        if not self.mn_major:
            rs = ((8, big), (t, sbo) if not w else (w * t, sbo))
            cs = ((t, big), (1, lbo) if not w else (1, t))
        elif not w:
            rs, cs = ((t, 1, big), (1, t, sbo)), ((8, big), (t, lbo))
        else:
            rs, cs = ((t, w, big), (1, t, lbo)), ((8, big), (w * t, sbo))
        linear = (cute(row, *rs) + cute(col, *cs)) * e
        # Swizzle<B,4,3> on byte offsets within the pattern, which starts at `start`.
        b = {0: 0, 32: 1, 64: 2, 128: 3}[self.swizzle]
        return self.start + (linear ^ (linear >> 3 & ((1 << b) - 1) << 4))

    def descriptor(self) -> int:
        """The 64-bit descriptor."""
        lbo, sbo = self.strides()
        base = self.start >> 7 & 7 if self.swizzle and self.start % self.pattern else 0
        d = (self.start & 0x3FFFF) >> 4 | ((lbo & 0x3FFFF) >> 4) << 16 | ((sbo & 0x3FFFF) >> 4) << 32
        return d | base << 49 | MODE[self.swizzle] << 62

    def place(self, image: np.ndarray, raw: np.ndarray) -> None:
        """Writes raw elements [row][col] into the image of shared memory (bytes)."""
        e = self.bits // 8
        for r in range(self.rows):
            for c in range(self.cols):
                a = self.address(r, c)
                image[a : a + e] = np.frombuffer(int(raw[r, c]).to_bytes(e, "little"), np.uint8)
