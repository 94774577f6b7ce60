"""Rearranging B into panels: as a kernel of its own (`emit_pack`), or into a GEMM's scratch (`pack_panel`).

    before:  b(batch, k, n), any strides
    after:   out[batch, n // panel, k, n % panel], zero where n is past the end

so that the micro-kernel reads one contiguous stream. For a dot product instruction the numbers that it takes from a
column at once, `steps` along k, lie side by side as one word, filled with zeros past the end of k. In what follows, k
counts such words (`Tile.steps`), and is what it says where a word is one number.

Where the numbers of A get an offset (`Dot.offset`), a row of what the sums begin at lies before the first of a panel.
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
    both,
    branch,
    ceil_div,
    count,
    div,
    evaluate,
    least,
    less,
    mod,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import (
    Tile,
    load_source,
    load_vector,
    multiply_add,
    store_vector,
)
from lampwork.codegen.llvm.templates.pack_taps import pack_taps, taps_of
from lampwork.codegen.llvm.templates.transpose import transpose
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
    """target[j, c] = b(k0 + j, n0 + c) for j < k and the tile's columns c; zero where n0 + c is past the end.

    target is of the tile's dtype: numbers are widened on the way.
    """
    size = evaluate(b, source.n.extent, env)
    lanes = tile.lanes
    with count(b, 0, tile.width, lanes) as column:
        start = add(b, n0, column)
        out = place(b, target, column, tile.dtype)
        full = less(b, add(b, start, lanes - 1), size)
        fast: Int = 0
        if source.along != "neither":
            fast = k
            if tile.steps > 1:
                # The last word may be cut off.
                left = sub(b, evaluate(b, source.k.extent, env), mul(b, k0, tile.steps))
                fast = least(b, k, div(b, left, tile.steps))
        if source.along == "k":
            fast = sub(b, fast, mod(b, fast, lanes))
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


def widen_panel(b: Builder, tile: Tile, packed: str, target: str, k: Int) -> None:
    """k rows of a panel at `packed`, as they are multiplied at `target`."""
    with count(b, 0, k) as step:
        row = mul(b, step, tile.width)
        for column in range(0, tile.width, tile.lanes):
            at = add(b, row, column)
            value = load_source(b, tile, tile.lanes, place(b, packed, mul(b, at, tile.steps), tile.source))
            store_vector(b, value, place(b, target, at, tile.dtype))


def write_first_sums(b: Builder, tile: Tile, panel: str, out: str, k: Int) -> None:
    """out[c] = -offset * the sum of column c of the k rows of words at `panel`: what the sums of a product begin at."""
    offset = Value(f"splat (i8 {tile.offset - 256})", "i8", tile.lanes * tile.steps)
    left = b.emit(f"bitcast {b.typed(offset)} to {tile.vector}", tile.dtype, tile.lanes)
    zero = Value("zeroinitializer", tile.dtype, tile.lanes)
    with count(b, 0, tile.width, tile.lanes) as column:
        start = place(b, panel, column, tile.dtype)
        with b.loop(value_of(b, 0), value_of(b, k), 1, [zero]) as scope:
            row = place(b, start, mul(b, scope.index, tile.width), tile.dtype)
            scope.next = [
                multiply_add(b, tile, left, load_vector(b, tile.dtype, tile.lanes, row), scope.carried[0])
            ]
        store_vector(b, b.sub(zero, scope.results[0]), place(b, out, column, tile.dtype))


def _copy_rows(
    b: Builder, tile: Tile, source: Source, out: str, start: Int, k0: Int, k: Int, env: Mapping[str, Int]
) -> None:
    """`lanes` columns, contiguous in B: a vector for each k."""
    with count(b, 0, k) as step:
        rows: list[Value] = []
        for part in range(tile.steps):
            row = add(b, mul(b, add(b, k0, step), tile.steps), part)
            at = evaluate(b, source.offset, {**env, source.n.name: start, source.k.name: row})
            rows.append(load_vector(b, tile.source, tile.lanes, place(b, source.pointer, at, tile.source)))
        if tile.steps == 1:
            value = convert(b, rows[0], tile.dtype)
        else:
            value = _interleaved(b, tile, [convert(b, row, tile.number) for row in rows])
        store_vector(b, value, place(b, out, mul(b, step, tile.width), tile.dtype))


def _interleaved(b: Builder, tile: Tile, rows: list[Value]) -> Value:
    """As many vectors as a word has numbers, as one of words that hold one of each."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = [_zipped(b, *pair) for pair in zip(rows[:half], rows[half:], strict=True)]
    joined = rows[0]
    return b.emit(f"bitcast {joined.type} {joined.text} to {tile.vector}", tile.dtype, tile.lanes)


def _zipped(b: Builder, first: Value, second: Value) -> Value:
    """The elements of two vectors by turns."""
    lanes = 2 * first.lanes
    order = ", ".join(f"i32 {i // 2 + (i % 2) * first.lanes}" for i in range(lanes))
    return b.emit(
        f"shufflevector {b.typed(first)}, {b.typed(second)}, <{lanes} x i32> <{order}>", first.dtype, lanes
    )


def _transpose_blocks(
    b: Builder, tile: Tile, source: Source, out: str, start: Int, k0: Int, k: Int, env: Mapping[str, Int]
) -> None:
    """`lanes` columns, each contiguous along k: square blocks, transposed in registers."""
    with count(b, 0, k, tile.lanes) as step:
        columns: list[Value] = []
        for lane in range(tile.lanes):
            at_n = source.offset.substitute({source.n.name: Index.var(source.n.name) + lane})
            first = mul(b, add(b, k0, step), tile.steps)
            inner = {**env, source.n.name: start, source.k.name: first}
            base = place(b, source.pointer, evaluate(b, at_n - at_n.constant, inner), tile.source)
            columns.append(load_source(b, tile, tile.lanes, place(b, base, at_n.constant, tile.source)))
        block = place(b, out, mul(b, step, tile.width), tile.dtype)
        for j, row in enumerate(transpose(b, columns)):
            store_vector(b, row, place(b, block, j * tile.width, tile.dtype))


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
    """`lanes` columns for one k, number by number, with zeros past the end."""
    row = place(b, out, mul(b, step, tile.width), tile.dtype)
    depth = evaluate(b, source.k.extent, env)
    with count(b, 0, tile.lanes) as lane:
        n = add(b, start, lane)
        # Past the end the last column is read and thrown away, which needs no branch.
        inside = least(b, n, sub(b, size, 1))
        for part in range(tile.steps):
            line = add(b, mul(b, k, tile.steps), part)
            here = line if part == 0 else least(b, line, sub(b, depth, 1))
            at = evaluate(b, source.offset, {**env, source.n.name: inside, source.k.name: here})
            value = load_vector(b, tile.source, 1, place(b, source.pointer, at, tile.source))
            valid = less(b, n, size)
            if part > 0:
                valid = both(b, valid, less(b, line, depth))
            if valid is False:
                value = b.const(0, tile.source)
            elif valid is not True:
                value = b.select(valid, value, b.const(0, tile.source))
            stored = tile.dtype if tile.steps == 1 else tile.number
            to = place(b, row, add(b, mul(b, lane, tile.steps), part), stored)
            store_vector(b, convert(b, value, stored), to)


_WORDS: dict[tuple[DType, int], DType] = {("bf16", 2): "f32", ("i8", 4): "i32", ("i8", 2): "i16"}
"""What moves `steps` numbers of a dtype as one."""


def emit_pack(pack: PackB, name: str, target: Target) -> GemmCode:
    """The kernel of a `PackB`; one work item is one panel of one batch element.

    b and out have one dtype. Numbers that are widened before they are multiplied stay what they are.
    """
    dtype, steps, offset = pack.out.dtype, pack.out.steps, pack.out.offset
    lanes = target.sum_lanes(dtype)
    word = dtype if steps == 1 else _WORDS[dtype, steps]
    tile = Tile(1, pack.out.columns // lanes, lanes, word, dtype, steps, offset=offset)
    b = Builder(Module(), target)
    params = (pack.b.buffer, pack.out)
    place_of = source_offset(offset_in(pack.b.buffer, pack.b.index), (*pack.batch, pack.n, pack.k))
    pointers, sizes, env = load_params(
        b, params, (place_of, pack.n.extent, pack.k.extent, *(a.extent for a in pack.batch))
    )
    panels = (pack.n.extent + (pack.out.columns - 1)) // pack.out.columns
    taps = taps_of(pack, place_of) if lanes > 1 else None
    source = Source(pointers[pack.b.buffer.name], place_of, pack.k, pack.n, dtype)
    k = ceil_div(b, evaluate(b, pack.k.extent, env), steps)
    with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
        panel_count = evaluate(b, panels, env)
        panel = mod(b, items.index, panel_count)
        inner = env | decode_batch(b, pack.batch, items.index, panel_count, env)
        rows = add(b, k, 1) if offset else k
        out = place(b, pointers[pack.out.name], mul(b, items.index, mul(b, rows, tile.width)), tile.dtype)
        rows_of = place(b, out, tile.width, tile.dtype) if offset else out
        first = mul(b, panel, pack.out.columns)
        if taps is None:
            pack_panel(b, tile, source, rows_of, first, 0, k, inner)
        else:
            pack_taps(b, tile, pack, taps, source.pointer, rows_of, first, inner)
        if offset:
            write_first_sums(b, tile, rows_of, out, k)
    extent = panels
    for axis in pack.batch:
        extent = extent * axis.extent
    work = pack.k.extent * pack.out.columns
    return GemmCode(name, function(b, name), params, sizes, extent, work, target.pack_work)
