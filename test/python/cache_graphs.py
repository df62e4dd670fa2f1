"""Graphs that decode a cache and attend to it, as exporters write them, in StableHLO."""

from __future__ import annotations

from typing import NamedTuple

SEQS, KV, GROUP, DIM = 3, 2, 2, 16
HEADS = KV * GROUP


def t(shape: tuple[int, ...], element: str = "f32") -> str:
    """A tensor type."""
    return "tensor<" + "x".join([*map(str, shape), element]) + ">"


class Built(NamedTuple):
    """The name of a value and its shape and element."""

    name: str
    shape: tuple[int, ...]
    element: str

    @property
    def type(self) -> str:
        """The type as MLIR writes it."""
        return t(self.shape, self.element)


class Body:
    """Lines of a function, and its arguments."""

    def __init__(self):
        self.args: list[str] = []
        self.lines: list[str] = []

    def arg(self, shape: tuple[int, ...], element: str = "f32") -> Built:
        """A new argument."""
        built = Built(f"%a{len(self.args)}", tuple(shape), element)
        self.args.append(f"{built.name}: {built.type}")
        return built

    def op(self, text: str, shape: tuple[int, ...], element: str) -> Built:
        """A new value of `text`, in which $ stands for its type."""
        built = Built(f"%v{len(self.lines)}", tuple(shape), element)
        self.lines.append(f"  {built.name} = {text.replace('$', built.type)}")
        return built

    def constant(self, value: str, shape: tuple[int, ...], element: str) -> Built:
        """A constant."""
        return self.op(f"stablehlo.constant dense<{value}> : $", shape, element)

    def broadcast(self, x: Built, shape: tuple[int, ...], dims: list[int]) -> Built:
        """broadcast_in_dim."""
        text = f"stablehlo.broadcast_in_dim {x.name}, dims = {dims} : ({x.type}) -> $"
        return self.op(text, shape, x.element)

    def binary(self, op: str, x: Built, y: Built) -> Built:
        """An elementwise op of two values of one type."""
        return self.op(f"stablehlo.{op} {x.name}, {y.name} : $", x.shape, x.element)

    def convert(self, x: Built, element: str) -> Built:
        """A conversion."""
        return self.op(f"stablehlo.convert {x.name} : ({x.type}) -> $", x.shape, element)

    def reshape(self, x: Built, shape: tuple[int, ...]) -> Built:
        """A reshape."""
        return self.op(f"stablehlo.reshape {x.name} : ({x.type}) -> $", shape, x.element)

    def transpose(self, x: Built, order: list[int]) -> Built:
        """A transposition."""
        shape = tuple(x.shape[d] for d in order)
        text = f"stablehlo.transpose {x.name}, dims = {order} : ({x.type}) -> $"
        return self.op(text, shape, x.element)

    def compare(self, direction: str, x: Built, y: Built) -> Built:
        """A comparison of integers."""
        text = f"stablehlo.compare {direction}, {x.name}, {y.name}, SIGNED : ({x.type}, {y.type}) -> $"
        return self.op(text, x.shape, "i1")

    def select(self, c: Built, x: Built, y: Built) -> Built:
        """A choice by element."""
        return self.op(
            f"stablehlo.select {c.name}, {x.name}, {y.name} : {c.type}, {x.type}", x.shape, x.element
        )

    def concat(self, parts: list[Built], dim: int) -> Built:
        """A concatenation."""
        shape = list(parts[0].shape)
        shape[dim] = sum(p.shape[dim] for p in parts)
        names, types = ", ".join(p.name for p in parts), ", ".join(p.type for p in parts)
        text = f"stablehlo.concatenate {names}, dim = {dim} : ({types}) -> $"
        return self.op(text, tuple(shape), parts[0].element)

    def scaled(self, x: Built, scale: Built, dims: list[int]) -> Built:
        """x * scale, the scale broadcast along the dimensions it lacks."""
        return self.binary("multiply", x, self.broadcast(scale, x.shape, dims))

    def wrapped(self, table: Built, count: int) -> Built:
        """table < 0 ? table + count : table, as pages[table] is exported."""
        zero = self.constant("0", table.shape, table.element)
        by = self.constant(str(count), table.shape, table.element)
        negative = self.compare("LT", table, zero)
        return self.select(negative, self.binary("add", table, by), table)

    def take(self, pool: Built, table: Built, dim: int = 0) -> Built:
        """Slices of `pool` along `dim` by `table`, whose dimensions take its place in front."""
        index = self.reshape(table, (*table.shape, 1))
        rest = [d for d in range(len(pool.shape)) if d != dim]
        rank = len(table.shape)
        sizes = [1 if d == dim else n for d, n in enumerate(pool.shape)]
        offsets = list(range(rank, rank + len(rest)))
        text = (
            f'"stablehlo.gather"({pool.name}, {index.name}) <{{dimension_numbers = #stablehlo.gather<'
            f"offset_dims = {offsets}, collapsed_slice_dims = [{dim}], start_index_map = [{dim}], "
            f"index_vector_dim = {rank}>, indices_are_sorted = false, "
            f"slice_sizes = array<i64: {', '.join(map(str, sizes))}>}}> : ({pool.type}, {index.type}) -> $"
        )
        return self.op(text, (*table.shape, *(pool.shape[d] for d in rest)), pool.element)

    def nibbles(self, x: Built, order: str = "interleaved", high_first: bool = False) -> Built:
        """Two codes of each byte along the last dimension, neighbours or halves."""
        low = self.binary("and", x, self.constant("15", x.shape, x.element))
        high = self.binary("shift_right_logical", x, self.constant("4", x.shape, x.element))
        parts = [high, low] if high_first else [low, high]
        if order == "halves":
            return self.concat(parts, len(x.shape) - 1)
        stacked = self.concat([self.reshape(p, (*x.shape, 1)) for p in parts], len(x.shape))
        return self.reshape(stacked, (*x.shape[:-1], 2 * x.shape[-1]))

    def repeat_heads(self, x: Built, group: int) -> Built:
        """[seq, kv, token, dim] with each head `group` times."""
        seqs, kv, tokens, dim = x.shape
        repeated = self.broadcast(x, (seqs, kv, group, tokens, dim), [0, 1, 3, 4])
        return self.reshape(repeated, (seqs, kv * group, tokens, dim))

    def dot(self, x: Built, y: Built, over: int, element: str = "f32") -> Built:
        """x [a, b, i, c] and y contracted over c and y's dimension `over`."""
        rest = y.shape[2 if over == 3 else 3]
        text = (
            f"stablehlo.dot_general {x.name}, {y.name}, batching_dims = [0, 1] x [0, 1], "
            f"contracting_dims = [3] x [{over}] : ({x.type}, {y.type}) -> $"
        )
        return self.op(text, (*x.shape[:3], rest), element)

    def softmax(self, s: Built) -> Built:
        """Along the last dimension of four."""
        low, zero = self.constant("0xFF800000", (), "f32"), self.constant("0.0", (), "f32")
        reduce = (
            "stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = [3]"
            " : ({}, tensor<f32>) -> $"
        )
        top = self.op(reduce.format(s.name, low.name, "maximum", s.type), s.shape[:3], "f32")
        e = self.binary("subtract", s, self.broadcast(top, s.shape, [0, 1, 2]))
        e = self.op(f"stablehlo.exponential {e.name} : $", s.shape, "f32")
        total = self.op(reduce.format(e.name, zero.name, "add", e.type), s.shape[:3], "f32")
        return self.binary("divide", e, self.broadcast(total, s.shape, [0, 1, 2]))

    def attend(self, q: Built, k: Built, v: Built, lengths: Built | None, fill: str = "0xFF800000") -> Built:
        """softmax(q.k / 4 where key < length, else fill) . v; k and v are [seq, kv, token, dim]."""
        k, v = self.repeat_heads(k, GROUP), self.repeat_heads(v, GROUP)
        s = self.dot(q, k, 3)
        s = self.binary("multiply", s, self.constant("2.5e-1", s.shape, "f32"))
        if lengths:
            i = self.op("stablehlo.iota dim = 3 : $", s.shape, "i32")
            seen = self.compare("LT", i, self.broadcast(lengths, s.shape, [0]))
            s = self.select(seen, s, self.constant(fill, s.shape, "f32"))
        return self.dot(self.softmax(s), v, 2)

    def text(self, result: Built) -> str:
        """The module."""
        lines = "\n".join(self.lines)
        return (
            f"func.func @main({', '.join(self.args)}) -> {result.type} {{\n{lines}\n"
            f"  return {result.name} : {result.type}\n}}\n"
        )
