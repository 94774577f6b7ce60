"""Which products read a constant matrix as it lies, with the rows of A in lanes (turned.py), and by which tile."""

from __future__ import annotations

from lampwork.codegen.llvm.templates.choose import balanced_rows, choose_panel, max_rows
from lampwork.codegen.llvm.templates.plan import extents_of, supports
from lampwork.codegen.llvm.templates.tiles_plan import tile_columns
from lampwork.codegen.llvm.types import compute_dtype, itemsize
from lampwork.codegen.target import Target, TileShape
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, Index, simplify
from lampwork.loops.ir.nodes import DType, Gemm, Load
from lampwork.records import record


@record
class TurnedConfig:
    """The tile of a turned product.

    rows: of B's columns, `vectors`: of rows of A, both of a tile; a panel of A is `vectors` vectors wide.
    unroll, k_block, prefetch: as in `GemmConfig`; k_block 0: all of K.
    columns: of a work item, a multiple of a vector's.
    """

    rows: int
    vectors: int
    unroll: int
    k_block: int
    columns: int
    prefetch: bool = True


def supports_turned(gemm: Gemm, target: Target) -> bool:
    """Whether `emit_turned` can make a Gemm once its A is in panels: of a dtype whose numbers are multiplied as they
    lie, B of one matrix whose columns are contiguous along k, and A contiguous along k or m, of known sizes."""
    if gemm.batch or gemm.group or gemm.rows or gemm.packed or not supports(gemm, target):
        return False
    k = gemm.k.extent.as_int()
    if k is None or gemm.m.extent.as_int() is None or gemm.n.extent.as_int() is None:
        return False
    dtype = gemm.b.buffer.dtype
    if gemm.a.buffer.dtype != dtype or not _lies_as_multiplied(dtype, k, target):
        return False
    a, b = _offset(gemm, gemm.a), _offset(gemm, gemm.b)
    if b.coefficient(gemm.k.name) != ONE or b.coefficient(gemm.n.name) is None or b.symbols():
        return False
    return ONE in (a.coefficient(gemm.k.name), a.coefficient(gemm.m.name))


def _offset(gemm: Gemm, load: Load) -> Index:
    return simplify(offset_in(load.buffer, load.index), extents_of(gemm))


def _lies_as_multiplied(dtype: DType, k: int, target: Target) -> bool:
    dot = target.dot(dtype)
    if dot is None:
        return compute_dtype(dtype) == dtype
    return dot.factor is None and not dot.offset and k % dot.steps == 0


def choose_turned(gemm: Gemm, target: Target, columns: int | None = None) -> TileShape | None:
    """The tile of a Gemm whose constant B had better be read as it lies, by rows of A in lanes; None: it had not.

    columns: of all products that share the panels of A; None: no others do.
    """
    m, n, k = (axis.extent.as_int() for axis in (gemm.m, gemm.n, gemm.k))
    if m is None or n is None or k is None or not target.few_rows < m <= target.turned_rows:
        return None
    if n < target.turned_columns or not target.turned_tiles or not supports_turned(gemm, target):
        return None
    if tile_columns(gemm, target):
        return None
    dtype = gemm.b.buffer.dtype
    lanes, fits = target.sum_lanes(dtype), n * k * itemsize(dtype) <= target.packed_bytes
    if fits and m < lanes:
        # Products of so few rows take the time that B needs to come, which is shorter for panels: one stream.
        return None

    def cost(tile: TileShape) -> tuple[float, int]:
        width = tile.vectors * lanes
        return turned_cost(m, tile, target, lanes), -(-m // width) * width

    best = min(target.turned_tiles, key=cost)
    fixed = target.turned_work * (1 / (columns or n) + 1 / k)
    limit = _panels_cost(m, n, dtype, target) + target.turned_loss if fits else 1 + target.repacked_rows / m
    return best if cost(best)[0] + fixed <= limit else None


def _panels_cost(m: int, n: int, dtype: DType, target: Target) -> float:
    """What the product costs with B in panels, against that of full tiles."""
    panel = choose_panel(m, n, target, dtype)
    most = max_rows(panel // target.sum_lanes(dtype), target)
    rows = balanced_rows(m, most)
    return -(-m // rows) * rows / m * (-(-n // panel) * panel / n)


def turned_cost(m: int, tile: TileShape, target: Target, lanes: int) -> float:
    """The time of the multiply-adds, against that of the best tile without lanes past the last row of A."""
    width = tile.vectors * lanes
    vectors, part = last_panel(m, tile.vectors, lanes)
    last = next((each.cost for each in target.turned_tiles if each.vectors == vectors), tile.cost)
    last = last if part == lanes else target.turned_half
    return (m // width * width * tile.cost + vectors * part * last) / m


def last_panel(m: int, vectors: int, lanes: int) -> tuple[int, int]:
    """(vectors, lanes of each) of a last panel that is not whole: half a vector may do. (0, lanes): there is none."""
    rest = m % (vectors * lanes)
    if lanes >= _HALVED and 0 < rest <= lanes // 2:
        return 1, lanes // 2
    return -(-rest // lanes), lanes


_HALVED = 8
"""The lanes of a vector from which half of one is worth a tile of its own."""


def turned_config(gemm: Gemm, target: Target, vectors: int) -> TurnedConfig:
    """How a Gemm whose A is in panels `vectors` wide is computed."""
    rows = next(tile.rows for tile in target.turned_tiles if tile.vectors == vectors)
    unroll = 4 if rows * vectors <= target.registers // 2 else 2
    words = -(-(gemm.k.extent.as_int() or 1) // target.steps(gemm.b.buffer.dtype))
    k_block = 0
    if words > target.sum_block:
        k_block = -(-words // -(-words // target.sum_block))
        k_block = -(-k_block // unroll) * unroll
    lanes = target.sum_lanes(gemm.b.buffer.dtype)
    return TurnedConfig(rows, vectors, unroll, k_block, max(1, target.turned_columns // lanes) * lanes)
