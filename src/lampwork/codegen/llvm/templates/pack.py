"""Rearranging B into panels: as a kernel of its own (`emit_pack`), or into a GEMM's scratch (`pack_panel`).

    before:  b(batch, k, n), any strides
    after:   out[batch, n // panel, k, n % panel], zero where n is past the end

so that the micro-kernel reads one contiguous stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.code import GemmCode, decode_batch, function, load_params
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    count,
    evaluate,
    least,
    less,
    mod,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import Tile, load_vector, store_vector
from lampwork.codegen.llvm.types import REGISTER
from lampwork.codegen.target import Target
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import Index, simplify
from lampwork.loops.ir.nodes import Axis, DType, PackB
from lampwork.records import record

Along = Literal["n", "k", "neither"]


@record
class Source:
    """B as it lies: `offset` over batch, k and n; `along`: the axis on which it is contiguous.

    dtype: its own, the tile's or a narrower one.
    """

    pointer: str
    offset: Index
    k: Axis
    n: Axis
    dtype: DType

    @property
    def along(self) -> Along:
        one = Index.const(1)
        if self.offset.coefficient(self.n.name) == one:
            return "n"
        if self.offset.coefficient(self.k.name) == one:
            return "k"
        return "neither"


def source_offset(load_offset: Index, axes: tuple[Axis, ...]) -> Index:
    return simplify(load_offset, {axis.name: axis.extent for axis in axes})


def pack_panel(
    b: Builder, tile: Tile, source: Source, target: str, n0: Int, k0: Int, k: Int, env: Mapping[str, Int]
) -> None:
    """target[j, c] = b(k0 + j, n0 + c) for j < k and the tile's columns c; zero where n0 + c is past the end."""
    size = evaluate(b, source.n.extent, env)
    lanes = tile.lanes
    with count(b, 0, tile.width, lanes) as column:
        start = add(b, n0, column)
        out = place(b, target, column, tile.dtype)
        full = less(b, add(b, start, lanes - 1), size)
        fast: Int = 0
        if source.along == "n":
            fast = k
        elif source.along == "k":
            fast = sub(b, k, mod(b, k, lanes))
        done: Int = fast if full is True else 0
        if not isinstance(full, bool):
            done = 0 if fast == 0 else b.select(full, value_of(b, fast), value_of(b, 0))

        def whole(start: Int = start, out: str = out, fast: Int = fast) -> None:
            if source.along == "n":
                _copy_rows(b, tile, source, out, start, k0, fast, env)
            else:
                _transpose_blocks(b, tile, source, out, start, k0, fast, env)

        if fast != 0:
            branch(b, full, whole)
        with count(b, done, k) as step:
            _one_row(b, tile, source, out, start, size, add(b, k0, step), step, env)


def _read(b: Builder, tile: Tile, source: Source, lanes: int, pointer: str) -> Value:
    """`lanes` elements of B, in the tile's dtype."""
    return convert(b, load_vector(b, source.dtype, lanes, pointer), tile.dtype)


def _copy_rows(
    b: Builder, tile: Tile, source: Source, out: str, start: Int, k0: Int, k: Int, env: Mapping[str, Int]
) -> None:
    """`lanes` columns, contiguous in B: a vector for each k."""
    with count(b, 0, k) as step:
        at = evaluate(b, source.offset, {**env, source.n.name: start, source.k.name: add(b, k0, step)})
        value = _read(b, tile, source, tile.lanes, place(b, source.pointer, at, source.dtype))
        store_vector(b, value, place(b, out, mul(b, step, tile.width), tile.dtype))


def _transpose_blocks(
    b: Builder, tile: Tile, source: Source, out: str, start: Int, k0: Int, k: Int, env: Mapping[str, Int]
) -> None:
    """`lanes` columns, each contiguous along k: square blocks, transposed in registers."""
    with count(b, 0, k, tile.lanes) as step:
        columns: list[Value] = []
        for lane in range(tile.lanes):
            at_n = source.offset.substitute({source.n.name: Index.var(source.n.name) + lane})
            inner = {**env, source.n.name: start, source.k.name: add(b, k0, step)}
            base = place(b, source.pointer, evaluate(b, at_n - at_n.constant, inner), source.dtype)
            columns.append(_read(b, tile, source, tile.lanes, place(b, base, at_n.constant, source.dtype)))
        block = place(b, out, mul(b, step, tile.width), tile.dtype)
        for j, row in enumerate(transpose(b, columns)):
            store_vector(b, row, place(b, block, j * tile.width, tile.dtype))


def transpose(b: Builder, rows: list[Value]) -> list[Value]:
    """A square of vectors transposed: log2(lanes) stages of interleaving row i with row i + lanes / 2."""
    lanes = len(rows)
    low = ", ".join(f"i32 {i // 2 + (i % 2) * lanes}" for i in range(lanes))
    high = ", ".join(f"i32 {lanes // 2 + i // 2 + (i % 2) * lanes}" for i in range(lanes))
    type_ = rows[0].type
    stages = lanes.bit_length() - 1
    for _ in range(stages):
        following: list[Value] = []
        for i in range(lanes // 2):
            pair = f"{type_} {rows[i].text}, {type_} {rows[i + lanes // 2].text}"
            for order in (low, high):
                following.append(
                    b.emit(f"shufflevector {pair}, <{lanes} x i32> <{order}>", rows[0].dtype, lanes)
                )
        rows = following
    return rows


def _one_row(
    b: Builder,
    tile: Tile,
    source: Source,
    out: str,
    start: Int,
    size: Int,
    k: Int,
    step: Int,
    env: Mapping[str, Int],
) -> None:
    """`lanes` columns for one k, element by element, with zeros past the end."""
    row = place(b, out, mul(b, step, tile.width), tile.dtype)
    with count(b, 0, tile.lanes) as lane:
        n = add(b, start, lane)
        # Past the end the last column is read and thrown away, which needs no branch.
        inside = least(b, n, sub(b, size, 1))
        at = evaluate(b, source.offset, {**env, source.n.name: inside, source.k.name: k})
        value = _read(b, tile, source, 1, place(b, source.pointer, at, source.dtype))
        valid = less(b, n, size)
        if not isinstance(valid, bool):
            zero = Value(f"{REGISTER[tile.dtype]} 0.0".split()[1], tile.dtype, 1, const=True)
            value = b.select(valid, value, zero)
        store_vector(b, value, place(b, row, lane, tile.dtype))


def emit_pack(pack: PackB, name: str, target: Target) -> GemmCode:
    """The kernel of a `PackB`; one work item is one panel of one batch element.

    b and out have one dtype, f32 or f64.
    """
    dtype = pack.out.dtype
    tile = Tile(1, pack.out.columns // target.lanes(dtype), target.lanes(dtype), dtype)
    b = Builder(Module(), target)
    params = (pack.b.buffer, pack.out)
    offset = source_offset(offset_in(pack.b.buffer, pack.b.index), (*pack.batch, pack.n, pack.k))
    pointers, sizes, env = load_params(
        b, params, (offset, pack.n.extent, pack.k.extent, *(a.extent for a in pack.batch))
    )
    panels = (pack.n.extent + (pack.out.columns - 1)) // pack.out.columns
    source = Source(pointers[pack.b.buffer.name], offset, pack.k, pack.n, dtype)
    k = evaluate(b, pack.k.extent, env)
    with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
        panel_count = evaluate(b, panels, env)
        panel = mod(b, items.index, panel_count)
        inner = env | decode_batch(b, pack.batch, items.index, panel_count, env)
        out = place(b, pointers[pack.out.name], mul(b, items.index, mul(b, k, pack.out.columns)), dtype)
        pack_panel(b, tile, source, out, mul(b, panel, pack.out.columns), 0, k, inner)
    extent = panels
    for axis in pack.batch:
        extent = extent * axis.extent
    work = pack.k.extent * pack.out.columns
    return GemmCode(name, function(b, name), params, sizes, extent, work, target.pack_work)
