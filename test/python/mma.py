"""A lane-by-lane emulator of the tensor core pieces that page images rely on.

Register tables are those of the PTX ISA ("Matrix Fragments for mma.m16n8k16 with
floating point type", "movmatrix"), written down here independently of the compiler.
A register is a uint32; a warp's registers are arrays [32, n].
"""

from __future__ import annotations

import numpy as np

LANE = np.arange(32)
GROUP, THREAD = LANE // 4, LANE % 4


def halves(registers: np.ndarray) -> np.ndarray:
    """The 16-bit halves, low first: [32, n] uint32 -> [32, 2n] uint16."""
    low, high = registers & 0xFFFF, registers >> 16
    return np.stack([low, high], axis=-1).reshape(32, -1).astype(np.uint16)


def pack(values: np.ndarray) -> np.ndarray:
    """The inverse of `halves`: [32, 2n] uint16 -> [32, n] uint32."""
    v = values.astype(np.uint32).reshape(32, -1, 2)
    return v[..., 0] | v[..., 1] << 16


def to_float(bits: np.ndarray, dtype: str) -> np.ndarray:
    """float64 values of f16 or bf16 bits; f16 subnormals count."""
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def from_float(x: np.ndarray, dtype: str) -> np.ndarray:
    """uint16 bits of x rounded to f16 or bf16."""
    if dtype == "f16":
        return x.astype(np.float16).view(np.uint16)
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def mma_m16n8k16(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str) -> np.ndarray:
    """D = A B + C: a [32, 4], b [32, 2] registers, c [32, 4] float -> [32, 4]."""
    matrix_a, matrix_b = np.full((16, 16), np.nan), np.full((16, 8), np.nan)
    va, vb = to_float(halves(a), dtype), to_float(halves(b), dtype)
    for i in range(8):
        row = GROUP + (8 if i in (2, 3, 6, 7) else 0)
        column = THREAD * 2 + (i & 1) + (8 if i >= 4 else 0)
        matrix_a[row, column] = va[:, i]
    for i in range(4):
        matrix_b[THREAD * 2 + (i & 1) + (8 if i >= 2 else 0), GROUP] = vb[:, i]
    product = matrix_a @ matrix_b
    return c + np.stack([product[c_row(i), c_column(i)] for i in range(4)], axis=1)


def c_row(i: int) -> np.ndarray:
    """Row of accumulator register i in each lane."""
    return GROUP + (8 if i >= 2 else 0)


def c_column(i: int) -> np.ndarray:
    """Column of accumulator register i in each lane."""
    return THREAD * 2 + (i & 1)


def movmatrix(register: np.ndarray) -> np.ndarray:
    """Transposes an 8x8 matrix of 16-bit elements, one register a lane [32]."""
    matrix = np.zeros((8, 8), np.uint16)
    h = halves(register[:, None])
    matrix[GROUP, THREAD * 2], matrix[GROUP, THREAD * 2 + 1] = h[:, 0], h[:, 1]
    t = matrix.T
    return pack(np.stack([t[GROUP, THREAD * 2], t[GROUP, THREAD * 2 + 1]], axis=1))[:, 0]


def b_operand(x: np.ndarray, dtype: str) -> np.ndarray:
    """The registers [32, 2] that hold x [16, 8] as operand B."""
    bits = from_float(x, dtype)
    columns = [bits[THREAD * 2 + (i & 1) + (8 if i >= 2 else 0), GROUP] for i in range(4)]
    return pack(np.stack(columns, axis=1))


def words_per_tile(bits: int) -> int:
    """32-bit words a lane holds of one m16 x k16 tile of codes."""
    return bits * 8 // 32


def lane_loads(bits: int, channels: int) -> list[tuple[int, int]]:
    """(offset in a 16-token block, bytes per lane) of each load: widest first."""
    left, offset, loads = channels // 16 * words_per_tile(bits) * 4, 0, []
    for width in (16, 8, 4):
        while left >= width:
            loads.append((offset, width))
            left, offset = left - width, offset + 32 * width
    assert left == 0
    return loads


def load_fragments(block: np.ndarray, bits: int, channels: int) -> list[np.ndarray]:
    """A-operand registers [32, 4] of each channel tile of a 16-token block of bytes.

    Integer codes become f16 subnormals, n * 2^-24; of 4-bit codes rows g + 8 carry
    16 times their value.
    """
    words = []
    for offset, width in lane_loads(bits, channels):
        piece = block[offset : offset + 32 * width].reshape(32, width)
        words.append(piece.copy().view(np.uint32))
    lane_words = np.concatenate(words, axis=1)
    step = words_per_tile(bits)
    tiles = [lane_words[:, i : i + step] for i in range(0, lane_words.shape[1], step)]
    return [decode_tile(t, bits) for t in tiles]


def decode_tile(w: np.ndarray, bits: int) -> np.ndarray:
    """[32, words] of one tile -> a0..a3 [32, 4]."""
    if bits == 16:
        return w
    if bits == 8:
        # PRMT {b0, 0, b1, 0} and {b2, 0, b3, 0} of each word.
        low = (w & 0xFF) | (w & 0xFF00) << 8
        high = (w >> 16 & 0xFF) | (w >> 8 & 0xFF0000)
        return np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=1)
    y = w[:, 0] >> 8
    parts = [w[:, 0] & 0x000F000F, w[:, 0] & 0x00F000F0, y & 0x000F000F, y & 0x00F000F0]
    return np.stack(parts, axis=1)


def row_factor(bits: int) -> np.ndarray:
    """What takes accumulators [32, 4] of integer codes back to their values."""
    factor = np.full((32, 4), 2.0**24 if bits < 16 else 1.0)
    if bits == 4:
        factor[:, 2:] /= 16
    return factor
