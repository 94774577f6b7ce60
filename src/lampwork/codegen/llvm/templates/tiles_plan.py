"""Which products are made of tiles (`Target.units`), and how: decided before a line is emitted.

rows of A       as they lie, where neighbouring rows are equally far apart and k is made of whole tiles; else copied
                into scratch, k filled up with zeros: so are the taps of a convolution
columns of B    panels, packed or made in scratch, two tiles wide
work items      of A as it lies: one panel, and rows that share it; of copied rows: those that fit the second-level
                cache, and as many panels as leave enough items for the threads
"""

from __future__ import annotations

from typing import Literal

from lampwork.codegen.llvm.templates.choose import UNKNOWN, GemmConfig, Likely, choose_config
from lampwork.codegen.llvm.templates.conv_plan import ConvPlan
from lampwork.codegen.llvm.templates.plan import plan_gemm, split_offset, supports
from lampwork.codegen.target import Target, TileUnit
from lampwork.loops.ir.index import ONE
from lampwork.loops.ir.nodes import Gemm
from lampwork.records import record

ROWS, WORDS, COLUMNS = 16, 16, 16
"""Of a tile: rows of A or of sums, words of A or B along k, columns of B or of sums. A word is of 4 bytes."""

TILE_ROWS = 2 * ROWS
"""Rows of A that are multiplied at a time."""

LEAST_WORDS = 8
"""Along k: with fewer most of a tile is zeros."""

LEAST_PANELS = 4
"""Panels for which rows of A are copied, at least: the copy takes a seventh of the time of the product then."""

MOST_ROWS = 512
"""Rows of A of a work item."""

Left = Literal["in place", "copied", "taps"]
"""How A is read: as it lies, rows copied, rows gathered tap by tap."""


@record
class TileConfig:
    """The parts that a product is made of.

    left: see `Left`. whole: k is made of whole tiles. rows: of A in a work item, a multiple of TILE_ROWS. panels: of B
    in a work item. block: words along k of one pass over the rows, about; 0: all of them. few: the tile for fewer rows
    than `Target.unit_rows`, where the rows are open. ahead: lines of the next panel to fetch in each step along k; 0:
    none.
    """

    left: Left
    whole: bool
    rows: int
    panels: int
    block: int
    few: GemmConfig | None = None
    ahead: int = 0


def tile_unit(gemm: Gemm, target: Target) -> TileUnit | None:
    """The unit that a product is made with; None: vectors are as good, or it has a form that tiles do not read."""
    unit = target.unit(gemm.a.buffer.dtype)
    if unit is None or target.sum_lanes(unit.dtype) != COLUMNS:
        return None
    if gemm.b.buffer.dtype != gemm.a.buffer.dtype or gemm.is_depthwise or gemm.outputs or gemm.group:
        return None
    m, k = gemm.m.extent.as_int(), gemm.k.extent.as_int()
    if k is None or k < LEAST_WORDS * unit.steps:
        return None
    if m is not None and m < target.unit_rows:
        return None
    if gemm.packed and gemm.steps != unit.steps:
        return None
    return unit if gemm.rows or supports(gemm, target) else None


def tile_columns(gemm: Gemm, target: Target) -> int:
    """The columns of the panels that B is packed in for tiles; 0: it is not multiplied by tiles."""
    if tile_unit(gemm, target) is None:
        return 0
    n = gemm.n.extent.as_int()
    return COLUMNS if n is not None and n <= COLUMNS else 2 * COLUMNS


def tile_config(gemm: Gemm, unit: TileUnit, target: Target, likely: Likely = UNKNOWN) -> TileConfig:
    """The parts of a product without taps. B may be packed or not."""
    words, m = _words(gemm, unit), gemm.m.extent.as_int()
    left: Left = "in place" if _lies_in_tiles(gemm, unit, target) else "copied"
    whole = words % WORDS == 0 and _is_whole(gemm, unit)
    few = None
    if m is None:
        few = _few_rows(gemm, unit, target, likely)
    if left == "in place":
        rows = _upwards(min(m or likely.m or MOST_ROWS, MOST_ROWS), TILE_ROWS)
        if m is None:
            rows = MOST_ROWS
        return TileConfig(left, whole, rows, 1, _block(words, rows, target), few, _ahead(gemm, rows))
    rows, panels = _items(gemm, words, target, likely)
    return TileConfig(left, whole, rows, panels, _block(words, rows, target), few)


def conv_tile_config(plan: ConvPlan, unit: TileUnit, target: Target, likely: Likely = UNKNOWN) -> TileConfig:
    """The parts of a convolution whose numbers are known."""
    gemm = plan.gemm
    words = _words(gemm, unit)
    whole = words % WORDS == 0 and _is_whole(gemm, unit)
    rows, panels = _items(gemm, words, target, likely)
    block = _unit_words(target)
    if len(gemm.rows) == len(gemm.depth) == 1 and not plan.places and whole:
        m = gemm.m.extent.as_int() or likely.m or MOST_ROWS
        rows = min(_upwards(m, TILE_ROWS), MOST_ROWS)
        return TileConfig("in place", whole, rows, 1, block, ahead=_ahead(gemm, rows))
    return TileConfig("taps", whole, rows, panels, block)


def _words(gemm: Gemm, unit: TileUnit) -> int:
    k = gemm.k.extent.as_int()
    assert k is not None, "tiles multiply along a known k"
    return -(-k // unit.steps)


def _is_whole(gemm: Gemm, unit: TileUnit) -> bool:
    return (gemm.k.extent % unit.steps).as_int() == 0


def _lies_in_tiles(gemm: Gemm, unit: TileUnit, target: Target) -> bool:
    """Whether 64 bytes of k lie side by side, and rows of A equally far apart."""
    plan = plan_gemm(gemm, target)
    bytes_of_k = WORDS * unit.steps
    if (gemm.k.extent % bytes_of_k).as_int() != 0 or plan.a.coefficient(gemm.m.name) is None:
        return False
    if not plan.split:
        return plan.a.coefficient(gemm.k.name) == ONE
    inner = split_offset(gemm, plan.a, plan.split).coefficient(f"{gemm.k.name}.inner")
    return plan.split % bytes_of_k == 0 and inner == ONE


def _items(gemm: Gemm, words: int, target: Target, likely: Likely) -> tuple[int, int]:
    """(rows, panels) of a work item over copied rows."""
    m, n = gemm.m.extent.as_int() or likely.m, gemm.n.extent.as_int() or likely.n
    row_bytes = 4 * (_upwards(words, WORDS) + WORDS)
    most = max(TILE_ROWS, min(MOST_ROWS, target.unit_bytes // row_bytes // TILE_ROWS * TILE_ROWS))
    rows = most if m is None else min(most, _upwards(m, TILE_ROWS))
    panels = -(-(n or 1) // (gemm.packed or 2 * COLUMNS))
    blocks = -(-(m or rows) // rows)
    for axis in gemm.batch:
        blocks *= axis.extent.as_int() or 1
    return rows, max(LEAST_PANELS, -(-panels * blocks // target.few_items))


def _block(words: int, rows: int, target: Target) -> int:
    """All of k where nothing reads a panel twice, or it stays in the cache anyway."""
    return 0 if rows <= TILE_ROWS or words <= target.unit_words else _unit_words(target)


def _unit_words(target: Target) -> int:
    """`Target.unit_words` in whole tiles."""
    return max(WORDS, target.unit_words // WORDS * WORDS)


def _ahead(gemm: Gemm, rows: int) -> int:
    """The tiles of rows of a work item share the work of fetching the next panel: 16 rows of its lines each step."""
    return -(-WORDS * (gemm.packed // COLUMNS) // (rows // TILE_ROWS))


def _few_rows(gemm: Gemm, unit: TileUnit, target: Target, likely: Likely) -> GemmConfig:
    """The tile of vectors for the same panels."""
    few = Likely(min(likely.m or target.unit_rows - 1, target.unit_rows - 1), likely.n)
    split, n = plan_gemm(gemm, target).split, gemm.n.extent.as_int()
    split = split if split % unit.steps else split // unit.steps
    packed = gemm.packed or 2 * COLUMNS
    return choose_config(None, n, _words(gemm, unit), packed, split, target, gemm.a.buffer.dtype, few)


def _upwards(number: int, step: int) -> int:
    return -(-number // step) * step
