"""The micro-kernel: a rows x vectors tile of accumulators, one rank-1 update per step over k.

    for k:  b[v] = load B[k, v]                 (vectors loads)
            a    = broadcast A[r, k]            (rows broadcasts)
            acc[r][v] += a * b[v]               (rows * vectors FMAs)

Where a machine has an instruction for dot products of a half type (`Target.dots`), a step takes several numbers along k
at once: they lie side by side in B's panels, as they do in A's rows, and go through the same loop as one word of 32
bits. Other half types are float32 before they come here.

The accumulators live in registers as loop-carried values. On AVX-512 with 8 rows and 3 vectors LLVM makes of it 24
`vfmadd231ps zmm`, 3 `vmovups` and 8 `vbroadcastss` from memory a step, with no spills: 12 cycles on a core with two
FMA pipes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.ints import Int, add, div, evaluate, mod, mul, place, sub, value_of
from lampwork.codegen.llvm.types import itemsize, memory_type, product_dtype, vector_type
from lampwork.codegen.target import Target
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType
from lampwork.records import record

_OFFSET_BYTES = -0x7F7F7F80
"""128 in each byte of a word: added to a byte, it changes the uppermost bit."""


@record
class Tile:
    """The shape of the accumulators: `rows` x `vectors` vectors of `lanes` elements of `dtype`.

    source: what A and B hold in memory. steps: how many of those, neighbours along k, one element stands for: with more
    than one, words of them are multiplied by the target's dot product instruction, as numbers of `factor` (None:
    of `source`), those of A with `offset` added (`Dot`).
    """

    rows: int
    vectors: int
    lanes: int
    dtype: DType
    source: DType
    steps: int = 1
    factor: DType | None = None
    offset: int = 0

    @staticmethod
    def of(rows: int, vectors: int, target: Target, dtype: DType) -> Tile:
        """The tile of a product of `dtype`."""
        lanes, sums, dot = target.sum_lanes(dtype), product_dtype(dtype), target.dot(dtype)
        if dot is None:
            return Tile(rows, vectors, lanes, sums, dtype)
        return Tile(rows, vectors, lanes, sums, dtype, dot.steps, dot.factor, dot.offset)

    @property
    def widens(self) -> bool:
        """Whether A and B are converted before they are multiplied."""
        return self.source != (self.dtype if self.steps == 1 else self.number)

    @property
    def number(self) -> DType:
        """What the numbers within a word are."""
        return self.factor or self.source

    @property
    def element(self) -> str:
        return memory_type(self.dtype)

    @property
    def vector(self) -> str:
        return vector_type(self.element, self.lanes)

    @property
    def width(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes

    @property
    def size(self) -> int:
        """Bytes of one element, or of one word of A and B."""
        return itemsize(self.dtype)


@record
class RowAddress:
    """Element (r, k) lies at base[displacement + k * stride], in elements of `Operands.left`."""

    base: str
    displacement: int


@record
class Prefetch:
    """Bring what lies at `base` into L2, `stride` elements for each step over k (not whole lines, maybe); no more than
    `lines` where the stride is not constant."""

    base: str
    stride: Int
    lines: int = 1


@record
class RowPrefetch:
    """Bring into L2 the same part of `rows` rows that lie `stride` elements apart from `base` on, of the dtype of
    `Operands.left`: a cache line of each while as many steps over k are made."""

    base: str
    stride: Int
    rows: int


Accumulators = list[list[Value]]
"""[row][vector]."""


def first_sums(b: Builder, tile: Tile, row: str) -> Accumulators:
    """What the sums of a tile begin at, by the row before a panel's first (`Panels.offset`)."""
    vectors = [
        load_vector(b, tile.dtype, tile.lanes, place(b, row, v * tile.lanes, tile.dtype))
        for v in range(tile.vectors)
    ]
    return [vectors] * tile.rows


def zeros(tile: Tile) -> Accumulators:
    zero = Value("zeroinitializer", tile.dtype, tile.lanes)
    return [[zero] * tile.vectors for _ in range(tile.rows)]


def load_vector(b: Builder, dtype: DType, lanes: int, pointer: str, align: int = 0) -> Value:
    """`lanes` elements from memory, aligned as single elements are, or by `align` bytes. Not reused: memory may have
    changed."""
    type_ = vector_type(memory_type(dtype), lanes)
    return b.emit(f"load {type_}, ptr {pointer}, align {align or itemsize(dtype)}", dtype, lanes, pure=False)


def load_source(b: Builder, tile: Tile, lanes: int, pointer: str) -> Value:
    """`lanes` elements as they are multiplied: widened, or words of `steps` numbers."""
    if tile.steps > 1 and not tile.widens:
        return load_vector(b, tile.dtype, lanes, pointer, itemsize(tile.source))
    if tile.steps > 1:
        numbers = convert(b, load_vector(b, tile.source, lanes * tile.steps, pointer), tile.number)
        return b.emit(f"bitcast {b.typed(numbers)} to {vector_type(tile.element, lanes)}", tile.dtype, lanes)
    return convert(b, load_vector(b, tile.source, lanes, pointer), tile.dtype)


def multiply_add(b: Builder, tile: Tile, left: Value, right: Value, sums: Value) -> Value:
    """sums + left * right, of vectors as `load_source` gives them."""
    dot = b.target.dot(tile.source) if tile.steps > 1 else None
    return b.fma(left, right, sums) if dot is None else dot.emit(b, sums, left, right)


def store_vector(b: Builder, value: Value, pointer: str) -> None:
    b.line(f"store {value.type} {value.text}, ptr {pointer}, align {itemsize(value.dtype)}")


def load_tile(b: Builder, tile: Tile, pointer: str) -> Accumulators:
    """The accumulators from a dense rows x width tile in scratch."""
    return [
        [
            load_vector(
                b, tile.dtype, tile.lanes, place(b, pointer, r * tile.width + v * tile.lanes, tile.dtype)
            )
            for v in range(tile.vectors)
        ]
        for r in range(tile.rows)
    ]


def store_tile(b: Builder, tile: Tile, accumulators: Accumulators, pointer: str) -> None:
    for r in range(tile.rows):
        for v in range(tile.vectors):
            store_vector(
                b, accumulators[r][v], place(b, pointer, r * tile.width + v * tile.lanes, tile.dtype)
            )


def row_addresses(
    b: Builder,
    offset: Index,
    matrix: str,
    dtype: DType,
    row: str,
    rows: Sequence[Index],
    env: Mapping[str, Int],
) -> list[RowAddress]:
    """Where each row starts, `offset` being A's flat offset with k already replaced.

    Rows whose offsets differ by a constant share one base, so that the difference becomes a displacement in the
    instruction and costs no register.
    """
    found: list[RowAddress] = []
    for number in rows:
        at = offset.substitute({row: number})
        base = place(b, matrix, evaluate(b, at - at.constant, env), dtype)
        found.append(RowAddress(base, at.constant))
    return found


def broadcast(b: Builder, tile: Tile, pointer: str) -> Value:
    word = b.widen(load_vector(b, tile.dtype, 1, pointer, itemsize(tile.source)), tile.lanes)
    return b.xor(word, b.const(_OFFSET_BYTES, tile.dtype)) if tile.offset else word


@record
class Operands:
    """What one pass over k reads.

    A[r, k] lies at rows[r] + k * a_stride, in elements of `left`. B[k, v] lies at b_start + k * b_stride + v * lanes,
    in elements of `right`, which are widened on the way if they are not the tile's; None: they are.
    """

    rows: Sequence[RowAddress]
    left: DType
    a_stride: Int
    b_start: str
    b_stride: Int
    prefetch: Prefetch | RowPrefetch | None = None
    right: DType | None = None


def accumulate(
    b: Builder, tile: Tile, operands: Operands, k: Int, init: Accumulators, unroll: int = 1
) -> Accumulators:
    """acc[r][v] = init[r][v] + sum over k of A[r, k] * B[k, v], for k >= 1 steps."""
    main = sub(b, k, mod(b, k, unroll))
    current = init
    if main != 0:
        runs = isinstance(k, int) or unroll == 1
        current = _steps(b, tile, operands, 0, main, unroll, current, runs=runs)
    if main != k:
        current = _steps(b, tile, operands, main, k, 1, current, runs=isinstance(k, int))
    return current


def _steps(
    b: Builder,
    tile: Tile,
    operands: Operands,
    start: Int,
    stop: Int,
    unroll: int,
    init: Accumulators,
    *,
    runs: bool,
) -> Accumulators:
    flat = [value for row in init for value in row]
    with b.loop(value_of(b, start), value_of(b, stop), unroll, flat, runs=runs) as scope:
        current = _rows_of(tile, scope.carried)
        if isinstance(operands.prefetch, RowPrefetch):
            _prefetch_rows(b, tile, operands.prefetch, scope.index, unroll)
        elif operands.prefetch is not None:
            _prefetch(b, tile, operands.prefetch, scope.index, unroll)
        for ahead in range(unroll):
            current = _rank_one(b, tile, operands, scope.index, ahead, current)
        scope.next = [value for row in current for value in row]
    return _rows_of(tile, scope.results)


def _rank_one(
    b: Builder, tile: Tile, operands: Operands, step: Int, ahead: int, current: Accumulators
) -> Accumulators:
    """Step number step + ahead over k; constant strides turn `ahead` into displacements."""
    right = operands.right or tile.dtype
    b_row = place(b, operands.b_start, mul(b, step, operands.b_stride), right)
    b_row, b_shift = _shifted(b, right, b_row, mul(b, ahead, operands.b_stride))
    columns = [
        load_vector(b, right, tile.lanes, place(b, b_row, add(b, b_shift, v * tile.lanes), right))
        for v in range(tile.vectors)
    ]
    columns = [convert(b, column, tile.dtype) for column in columns]
    a_shift = mul(b, step, operands.a_stride)
    result: Accumulators = []
    for r, address in enumerate(operands.rows):
        base = place(b, address.base, a_shift, operands.left)
        base, shift = _shifted(b, operands.left, base, mul(b, ahead, operands.a_stride))
        factor = broadcast(b, tile, place(b, base, add(b, shift, address.displacement), operands.left))
        result.append([multiply_add(b, tile, factor, columns[v], current[r][v]) for v in range(tile.vectors)])
    return result


def _shifted(b: Builder, dtype: DType, base: str, shift: Int) -> tuple[str, int]:
    """base and a displacement: a shift that is not constant goes into the base."""
    return (base, shift) if isinstance(shift, int) else (place(b, base, shift, dtype), 0)


def _prefetch(b: Builder, tile: Tile, prefetch: Prefetch, step: Int, unroll: int) -> None:
    """The cache lines at prefetch.base + step * stride, read-only, to L2."""
    b.module.declare("llvm.prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    per_line = b.target.cache_line // tile.size
    start = place(b, prefetch.base, mul(b, step, prefetch.stride), tile.dtype)
    lines = (
        -(-prefetch.stride * unroll // per_line)
        if isinstance(prefetch.stride, int)
        else prefetch.lines * unroll
    )
    for line in range(lines):
        pointer = place(b, start, line * per_line, tile.dtype)
        b.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


def _prefetch_rows(b: Builder, tile: Tile, prefetch: RowPrefetch, step: Int, unroll: int) -> None:
    """The lines that `unroll` steps are due for, of those that the steps of a cache line share."""
    b.module.declare("llvm.prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    per_line = b.target.cache_line // tile.size
    lines = -(-prefetch.rows * unroll // per_line)
    within = mod(b, step, per_line)
    first = mul(b, div(b, within, unroll), lines)
    start = place(b, prefetch.base, mul(b, sub(b, step, within), tile.steps), tile.source)
    start = place(b, start, mul(b, first, prefetch.stride), tile.source)
    for line in range(lines):
        pointer = place(b, start, mul(b, line, prefetch.stride), tile.source)
        b.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


def with_sums(b: Builder, tile: Tile, accumulators: Accumulators, k0: Int, sums: str) -> Accumulators:
    """The accumulators plus the sums at `sums` of the blocks of k before this one, where it is not the first."""
    first, resumed, ready = b.block, b.new_label("resumed"), b.new_label("ready")
    b.branch_if(b.cmp("eq", value_of(b, k0), 0), ready, resumed)
    b.start(resumed)
    with b.scope():
        loaded = load_tile(b, tile, sums)
        totals = [
            [b.add(old, new) for old, new in zip(*rows, strict=True)]
            for rows in zip(loaded, accumulators, strict=True)
        ]
    b.branch(ready)
    b.start(ready)
    return [
        [
            b.emit(
                f"phi {new.type} [ {new.text}, %{first} ], [ {total.text}, %{resumed} ]",
                tile.dtype,
                tile.lanes,
                pure=False,
            )
            for new, total in zip(*rows, strict=True)
        ]
        for rows in zip(accumulators, totals, strict=True)
    ]


def _rows_of(tile: Tile, flat: Sequence[Value]) -> Accumulators:
    return [list(flat[r * tile.vectors : (r + 1) * tile.vectors]) for r in range(tile.rows)]
