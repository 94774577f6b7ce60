"""Attention of few queries: decoding with a cache. Its time is that of reading keys and values once.

    for keys, some at a time:      s[r, n] = q[r] . k[n]           dot products, k as it lies
    softmax of the block           attention_rows.py
    for columns, some vectors:     out[r] = out[r] * factor + sum of s[r, n] * v[n], v as it lies

Nothing is rearranged: each number is used once for every query.
"""

from __future__ import annotations

from collections.abc import Mapping

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.shuffles import sums_across
from lampwork.codegen.llvm.templates.attention_plan import Blocks, operand_offset
from lampwork.codegen.llvm.templates.ints import Int, add, count, evaluate, least, place, sub, value_of
from lampwork.codegen.llvm.templates.microkernel import load_vector, store_vector
from lampwork.loops.ir.nodes import Attention, DType, Load
from lampwork.records import record

_DOTS = 2
"""Keys at a time, if their dot products with all queries fit in registers. More are more streams, which is slower
to read: of 8192 keys 30 GB/s, with 8 of them 17."""


@record
class FewRows:
    """Emits the two products of a strip of few queries, all of whose rows are valid."""

    attention: Attention
    blocks: Blocks

    def scores(self, b: Builder, at: Mapping[str, str], env: Mapping[str, Int]) -> None:
        """s = q @ k^T for the block's keys. A last group past the end repeats the last key."""
        blocks, dtype, lanes = self.blocks, self.blocks.dtype, self.blocks.score.lanes
        rows, columns, n0 = blocks.strip, env["columns"], env[self.attention.n.name]
        group = _DOTS if _DOTS * rows <= b.target.registers * 5 // 8 else 1
        whole = blocks.depth - blocks.depth % lanes
        with count(b, 0, columns, group) as column:
            keys = [least(b, add(b, column, g), sub(b, columns, 1)) for g in range(group)]
            starts = [self._row(b, at, self.attention.k, add(b, n0, key), env) for key in keys]
            zero = Value("zeroinitializer", dtype, lanes) if lanes > 1 else b.const(0.0, dtype)
            vectors = [zero] * (rows * group)
            if whole:
                with b.loop(value_of(b, 0), value_of(b, whole), lanes, vectors, runs=True) as loop:
                    loop.next = self._products(b, at, starts, loop.index, lanes, loop.carried)
                vectors = loop.results
            sums = sums_across(b, vectors) if whole else [b.const(0.0, dtype)] * len(vectors)
            if whole != blocks.depth:
                with b.loop(value_of(b, whole), value_of(b, blocks.depth), 1, sums, runs=True) as loop:
                    loop.next = self._products(b, at, starts, loop.index, 1, loop.carried)
                sums = loop.results
            for r in range(rows):
                for g, key in enumerate(keys):
                    store_vector(
                        b, sums[r * group + g], place(b, at["s"], add(b, r * blocks.padded_keys, key), dtype)
                    )

    def _products(
        self, b: Builder, at: Mapping[str, str], starts: list[str], d: Int, lanes: int, sums: list[Value]
    ) -> list[Value]:
        """sums + q[r, d..] * k[d..], [row][key]."""
        blocks = self.blocks
        right = [self._read(b, start, d, self.attention.k.dtype, lanes) for start in starts]
        result: list[Value] = []
        for r in range(blocks.strip):
            left = load_vector(
                b, blocks.dtype, lanes, place(b, at["q"], add(b, d, r * blocks.depth), blocks.dtype)
            )
            result += [b.fma(left, factor, sums[len(result) + g]) for g, factor in enumerate(right)]
        return result

    def mix(self, b: Builder, at: Mapping[str, str], env: Mapping[str, Int]) -> None:
        """out = out * factor + p @ v."""
        blocks, tile = self.blocks, self.blocks.mix
        attention, dtype = self.attention, blocks.dtype
        zero = Value("zeroinitializer", dtype, tile.lanes) if tile.lanes > 1 else b.const(0.0, dtype)
        with count(b, 0, blocks.columns, tile.width) as column:
            start = [zero] * (tile.rows * tile.vectors)
            with b.loop(value_of(b, 0), value_of(b, env["columns"]), 1, start, runs=True) as loop:
                key = add(b, env[attention.n.name], loop.index)
                line = self._row(b, at, attention.v, key, env)
                right = [
                    self._read(b, line, add(b, column, v * tile.lanes), attention.v.dtype, tile.lanes)
                    for v in range(tile.vectors)
                ]
                for r in range(tile.rows):
                    shift = add(b, loop.index, r * blocks.padded_keys)
                    weight = b.widen(load_vector(b, dtype, 1, place(b, at["s"], shift, dtype)), tile.lanes)
                    for v, factor in enumerate(right):
                        place_of = r * tile.vectors + v
                        loop.next[place_of] = b.fma(weight, factor, loop.carried[place_of])
            for r in range(tile.rows):
                factor = load_vector(b, dtype, 1, place(b, at["factor"], r, dtype))
                for v in range(tile.vectors):
                    shift = add(b, column, r * blocks.padded_columns + v * tile.lanes)
                    pointer = place(b, at["o"], shift, dtype)
                    before = load_vector(b, dtype, tile.lanes, pointer)
                    total = loop.results[r * tile.vectors + v]
                    store_vector(b, b.fma(before, b.widen(factor, tile.lanes), total), pointer)

    def _row(self, b: Builder, at: Mapping[str, str], load: Load, key: Int, env: Mapping[str, Int]) -> str:
        """Where the row of a key in k or v starts."""
        attention = self.attention
        offset = operand_offset(attention, load)
        start = evaluate(b, offset, {**env, attention.n.name: key, attention.d.name: 0, attention.e.name: 0})
        return place(b, at[f"buffer {load.buffer.name}"], start, load.dtype)

    def _read(self, b: Builder, line: str, shift: Int, dtype: DType, lanes: int) -> Value:
        return convert(b, load_vector(b, dtype, lanes, place(b, line, shift, dtype)), self.blocks.dtype)
