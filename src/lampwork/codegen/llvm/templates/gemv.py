"""Few rows times a matrix whose columns are contiguous along k: dot products, several columns at once.

    for n in groups of `columns`:
        for k in steps of vectors:   acc[row][column] += a[row, k..] * b[k.., n + column]
        sums of the lanes, into scratch
    epilogue

This is what a linear layer does with one to four rows. It is bound by the memory that B streams from, so B is read
once, in long runs, as it lies; nothing is gained by rearranging it. Several columns together share the loads of A and
give memory several streams to run ahead on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.ints import Int, add, count, evaluate, least, mod, place, sub, value_of
from lampwork.codegen.llvm.templates.microkernel import (
    Tile,
    load_source,
    load_vector,
    multiply_add,
    store_vector,
)
from lampwork.codegen.llvm.types import REGISTER, itemsize, mangled
from lampwork.codegen.target import Target
from lampwork.loops.ir.index import ZERO, Index
from lampwork.loops.ir.nodes import Gemm
from lampwork.records import record


def dot_columns(rows: int, target: Target) -> int:
    """Dot products in flight for each row: what the registers hold. A tile is a multiple of them wide."""
    return 4 if rows <= 2 or target.registers >= 32 else 2


def _unroll(dots: int) -> int:
    """Vectors along k in one turn, each with sums of its own: enough of them to hide the latency of the additions."""
    return max(1, 8 // dots)


@record
class DotOperands:
    """a, b: flat offsets, contiguous along k; a_base, b_base: where they start."""

    gemm: Gemm
    a: Index
    b: Index
    a_base: str
    b_base: str


def dot_tile(
    b: Builder,
    tile: Tile,
    right: Tile,
    operands: DotOperands,
    scratch: str,
    n0: Int,
    columns: Int,
    env: Mapping[str, Int],
) -> None:
    """scratch[row, c] = sum over k of a[row, k] * b[k, n0 + c], for the tile's rows and the first `columns` columns.

    right: the tile as it reads B. env[m] is the first row; env[m.r], where it is there, the number of row r. Columns
    come in groups; a last group past the end repeats the last column.
    """
    gemm = operands.gemm
    last = sub(b, evaluate(b, gemm.n.extent, env), 1)
    group = dot_columns(tile.rows, b.target)
    with count(b, 0, columns, group) as column:
        rows = [_row(b, operands, r, env) for r in range(tile.rows)]
        starts = [
            _column(b, operands, least(b, add(b, n0, add(b, column, c)), last), env) for c in range(group)
        ]
        after = evaluate(b, (operands.b.coefficient(gemm.n.name) or ZERO) * group, env)
        sums = _dots(b, tile, right, rows, starts, evaluate(b, gemm.k.extent, env), after)
        for r in range(tile.rows):
            for c in range(group):
                store_vector(b, sums[r][c], place(b, scratch, add(b, column, r * tile.width + c), tile.dtype))


def _row(b: Builder, operands: DotOperands, row: int, env: Mapping[str, Int]) -> str:
    gemm = operands.gemm
    number = f"{gemm.m.name}.{row}"
    m = Index.var(number) if number in env else Index.var(gemm.m.name) + row
    offset = operands.a.substitute({gemm.m.name: m, gemm.k.name: Index.const(0)})
    return place(b, operands.a_base, evaluate(b, offset, env), gemm.a.buffer.dtype)


def _column(b: Builder, operands: DotOperands, n: Int, env: Mapping[str, Int]) -> str:
    gemm = operands.gemm
    at = evaluate(b, operands.b, {**env, gemm.n.name: n, gemm.k.name: 0})
    return place(b, operands.b_base, at, gemm.b.buffer.dtype)


def _dots(
    b: Builder, tile: Tile, right: Tile, rows: Sequence[str], columns: Sequence[str], k: Int, after: Int
) -> list[list[Value]]:
    """[row][column] scalars: the dot products of length k. The next group of columns lies `after` elements further."""
    unroll = _unroll(len(rows) * len(columns))
    step = unroll * tile.lanes * tile.steps
    main = sub(b, k, mod(b, k, step))
    zero = Value("zeroinitializer", tile.dtype, tile.lanes)
    vectors = [zero] * (unroll * len(rows) * len(columns))
    if main != 0:
        with b.loop(value_of(b, 0), value_of(b, main), step, vectors, runs=isinstance(k, int)) as scope:
            _prefetch(b, right, columns, add(b, scope.index, after), step)
            scope.next = _vector_step(b, tile, right, rows, columns, scope.index, scope.carried)
        vectors = scope.results
    pairs = len(rows) * len(columns)
    sums = [_lane_sum(b, vectors[i::pairs]) for i in range(pairs)]
    if main != k:
        with b.loop(value_of(b, main), value_of(b, k), 1, sums, runs=isinstance(k, int)) as scope:
            scope.next = _scalar_step(b, tile, right, rows, columns, scope.index, scope.carried)
        sums = scope.results
    return [sums[r * len(columns) : (r + 1) * len(columns)] for r in range(len(rows))]


def _prefetch(b: Builder, tile: Tile, columns: Sequence[str], at: Int, step: int) -> None:
    """Bring `step` elements of each column into L2: short columns end before the hardware has seen that they are
    streams."""
    b.module.declare("llvm.prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    for column in columns:
        start = place(b, column, at, tile.source)
        for number in range(0, step, b.target.cache_line // itemsize(tile.source)):
            pointer = place(b, start, number, tile.source)
            b.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


def _vector_step(
    b: Builder,
    tile: Tile,
    right: Tile,
    rows: Sequence[str],
    columns: Sequence[str],
    k: Int,
    sums: Sequence[Value],
) -> list[Value]:
    """Some vectors along k; sums in the order [unrolled][row][column]."""
    per_vector = len(rows) * len(columns)
    result: list[Value] = []
    for u in range(_unroll(len(rows) * len(columns))):
        at = add(b, k, u * tile.lanes * tile.steps)
        result += _products(
            b, tile, right, tile.lanes, rows, columns, at, sums[u * per_vector : (u + 1) * per_vector]
        )
    return result


def _scalar_step(
    b: Builder,
    tile: Tile,
    right: Tile,
    rows: Sequence[str],
    columns: Sequence[str],
    k: Int,
    sums: Sequence[Value],
) -> list[Value]:
    return _products(b, tile, right, 1, rows, columns, k, sums)


def _products(
    b: Builder,
    tile: Tile,
    right: Tile,
    lanes: int,
    rows: Sequence[str],
    columns: Sequence[str],
    k: Int,
    sums: Sequence[Value],
) -> list[Value]:
    """sums + a[row, k..] * b[k.., column], [row][column]. A single lane takes one number, however many a word has."""
    alone = lanes == 1

    def loaded(start: str, of: Tile) -> Value:
        pointer = place(b, start, k, of.source)
        if alone:
            return convert(b, load_vector(b, of.source, 1, pointer), of.dtype)
        return load_source(b, of, lanes, pointer)

    factors = [loaded(start, right) for start in columns]
    result: list[Value] = []
    for row in rows:
        left = loaded(row, tile)
        for factor, total in zip(factors, sums[len(result) :], strict=False):
            result.append(b.fma(left, factor, total) if alone else multiply_add(b, tile, left, factor, total))
    return result


def _lane_sum(b: Builder, vectors: Sequence[Value]) -> Value:
    total = vectors[0]
    if total.text == "zeroinitializer":
        return Value("0.0", total.dtype, 1, const=True)
    for value in vectors[1:]:
        total = b.add(total, value)
    if total.lanes == 1:
        return total
    element = REGISTER[total.dtype]
    return b.emit(
        f"call reassoc {element} @llvm.vector.reduce.fadd.{mangled(element, total.lanes)}"
        f"({element} -0.0, {total.type} {total.text})",
        total.dtype,
        1,
    )
