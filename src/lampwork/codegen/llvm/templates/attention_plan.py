"""What is known about an Attention before a line is emitted: whether it has a template, its blocks, its bounds."""

from __future__ import annotations

from lampwork.codegen.llvm.templates.choose import balanced_rows, choose_vectors, max_rows
from lampwork.codegen.llvm.templates.microkernel import Tile
from lampwork.codegen.llvm.types import itemsize
from lampwork.codegen.target import Target
from lampwork.loops.ir.bounds import facts_of, offset_in
from lampwork.loops.ir.expr import indices, loads, requires
from lampwork.loops.ir.index import ONE, Index, simplify
from lampwork.loops.ir.nodes import Attention, Axis, Buffer, Const, DType, Expr, Load, Local, Op
from lampwork.loops.ir.traverse import walk_once
from lampwork.records import record
from lampwork.standard import math

LARGEST_HEAD = 512
"""Rows of larger heads would take too much of a thread's stack."""


@record
class Bounds:
    """The keys that have a part in row m: begin <= n < end, as indices over batch and m; `value` is the score of those
    before `end`. None: no bound.

    before: where(n <= m, acc * 0.125, -inf)        after: end m + 1, value acc * 0.125
    """

    begin: Index | None
    end: Index | None
    value: Expr


@record
class Blocks:
    """The tiles of an Attention.

    strip: queries whose scores exist at a time. strips: those of a work item, which share the panels of a block of
    keys. keys: keys of a block. score, mix: the tiles of q @ k^T and of p @ v; with a dot product instruction, numbers
    of q, k, powers and v lie in words. depth, columns: the sizes of a head of q and k, and of v.
    unit: see attention_rows.py. ahead: what q is multiplied by. tops: the largest scores of a row are found where the
    products are made, which are the scores, and of whole tiles. values: rows of v are read as they lie, because they
    lie as they would in a panel. mask: what closes a place where it is false, if that can be known before the score.
    """

    strip: int
    strips: int
    keys: int
    score: Tile
    mix: Tile
    depth: int
    columns: int
    unit: float
    ahead: float
    mask: Expr | None
    tops: bool = False
    values: bool = False

    @property
    def dtype(self) -> DType:
        return self.score.dtype

    @property
    def rows(self) -> int:
        """Queries of a work item."""
        return self.strip * self.strips

    @property
    def padded_rows(self) -> int:
        """Rows of a strip in scratch: whole tiles of either product."""
        return max(_upwards(self.strip, self.score.rows), _upwards(self.strip, self.mix.rows))

    @property
    def words(self) -> int:
        """Steps over the depth of a head: numbers, or words of several."""
        return -(-self.depth // self.score.steps)

    @property
    def kept_rows(self) -> int:
        """Numbers that are kept of a strip, one a row: whole vectors."""
        return _upwards(self.padded_rows, self.score.lanes)

    @property
    def padded_keys(self) -> int:
        return _upwards(self.keys, self.score.width)

    @property
    def padded_columns(self) -> int:
        return _upwards(self.columns, math.lcm(self.mix.width, self.score.lanes))


def supports(attention: Attention, target: Target) -> bool:
    """Whether `emit_attention` can make this one: one dtype, heads of a known size, plain loads, nothing empty."""
    sums = attention.value.dtype
    operands = (attention.q, attention.k, attention.v)
    if sums not in target.products or len({load.dtype for load in operands}) != 1:
        return False
    if attention.d.extent.as_int() is None or attention.e.extent.as_int() is None:
        return False
    axes = (*attention.batch, attention.m, attention.n, attention.d, attention.e)
    if any(axis.extent.as_int() == 0 for axis in axes):
        return False
    if requires(attention.value) or any(index.indirects() for index in indices(attention.value)):
        return False
    inner = ((attention.m, attention.d), (attention.n, attention.d), (attention.n, attention.e))
    return all(_is_plain(attention, *each) for each in zip(operands, inner, strict=True))


def is_worth_it(attention: Attention, target: Target) -> bool:
    """Whether one kernel is faster than two products around a softmax: many scores, one query, or open lengths."""
    rows, columns = attention.m.extent.as_int(), attention.n.extent.as_int()
    sizes = (attention.d.extent.as_int(), attention.e.extent.as_int())
    if any(size is None or size > LARGEST_HEAD for size in sizes):
        return False
    if rows is None or columns is None or rows == 1:
        return True
    bounds = bounds_of(attention)
    fewer = bounds.begin is not None or bounds.end is not None
    return 2 * rows * columns >= (2 if fewer else 3) * target.tiled_scores


def _is_plain(attention: Attention, load: Load, axes: tuple[Axis, Axis]) -> bool:
    """Whether an operand is read everywhere, at an address affine in its two axes."""
    if load.mask is not None:
        return False
    offset = operand_offset(attention, load)
    return not offset.indirects() and all(offset.coefficient(axis.name) is not None for axis in axes)


def extents_of(attention: Attention) -> dict[str, Index]:
    axes = (*attention.batch, attention.m, attention.n, attention.d, attention.e)
    return {axis.name: axis.extent for axis in axes}


def operand_offset(attention: Attention, load: Load) -> Index:
    """Where an operand is read, in elements of its buffer."""
    return simplify(offset_in(load.buffer, load.index), extents_of(attention))


def params_of(attention: Attention) -> tuple[Buffer, ...]:
    """The buffers that the template's function takes, each once."""
    operands = (attention.q, attention.k, attention.v, *loads(attention.value))
    seen = {load.buffer.name: load.buffer for load in operands}
    seen[attention.out.name] = attention.out
    return tuple(seen.values())


def choose_blocks(attention: Attention, target: Target) -> Blocks:
    """Tiles and blocks. Where a length is open they are those of long ones."""
    dtype = attention.value.dtype
    depth, columns = attention.d.extent.as_int(), attention.e.extent.as_int()
    assert depth is not None and columns is not None, "heads of a known size"
    m = attention.m.extent.as_int()
    n = attention.n.extent.as_int()
    keys = target.attention_keys
    vectors = target.tiles[0].vectors if n is None or n > keys else choose_vectors(n, target, dtype)
    strip = target.attention_strip if m is None else balanced_rows(m, target.attention_strip)
    # Numbers of a half type are multiplied as such where there is an instruction for it, and widened elsewhere.
    source = dtype if target.dot(attention.q.dtype) is None else attention.q.dtype
    score = Tile.of(balanced_rows(strip, max_rows(vectors, target)), vectors, target, source)
    width = choose_vectors(columns, target, dtype)
    mix = Tile.of(balanced_rows(strip, max_rows(width, target)), width, target, source)
    together = math.lcm(score.rows, mix.rows)
    if together < strip:
        strip = _upwards(strip, together)
    # A block of keys and values together stays in the second-level cache.
    fitting = target.attention_bytes // (2 * max(depth, columns) * itemsize(dtype))
    keys = max(score.width, min(keys, fitting) // score.width * score.width)
    if n is not None:
        keys = min(keys, _upwards(n, score.width))
    most = min(target.attention_rows, target.attention_bytes // ((depth + columns) * itemsize(dtype)))
    bounds = bounds_of(attention)
    plain = bounds.end is None and bounds.begin is None and scale_of(bounds.value) is not None
    return Blocks(
        strip,
        _strips(attention, strip, max(1, most // strip), target),
        keys,
        score,
        mix,
        depth,
        columns,
        *_units(attention, score),
        mask_of(bounds.value),
        plain and n is not None and n % score.width == 0,
        _lie_as_panels(attention, mix, columns),
    )


def _units(attention: Attention, score: Tile) -> tuple[float, float]:
    """What differences of scores are multiplied by for powers of 2, and what q is multiplied by before."""
    scale = scale_of(bounds_of(attention).value)
    unit = math.log2(math.e) * (1.0 if scale is None else scale)
    # A q that grows may become infinite, a half one would be rounded, and scores that are more than scaled products are
    # what they say.
    return (unit, 1.0) if scale is None or unit > 1 or score.steps > 1 else (1.0, unit)


def _lie_as_panels(attention: Attention, mix: Tile, columns: int) -> bool:
    """Whether rows of v are those of the one panel that they would be copied to."""
    offset = operand_offset(attention, attention.v)
    row = offset.coefficient(attention.n.name)
    dense = offset.coefficient(attention.e.name) == ONE and row is not None and row.as_int() == mix.width
    return dense and columns == mix.width and attention.v.dtype == mix.dtype


def few_blocks(attention: Attention, target: Target, rows: int) -> Blocks | None:
    """Blocks for so few queries that keys and values are read as they lie; None if they cannot be."""
    dtype = attention.value.dtype
    depth, columns = attention.d.extent.as_int(), attention.e.extent.as_int()
    assert depth is not None and columns is not None, "heads of a known size"
    lanes = target.lanes(dtype)
    k, v = (operand_offset(attention, load) for load in (attention.k, attention.v))
    in_rows = k.coefficient(attention.d.name) == ONE and v.coefficient(attention.e.name) == ONE
    if rows > target.attention_few or not in_rows:
        return None
    # Rows of v are cut into whole vectors, short ones if need be.
    short = math.gcd(columns, lanes)
    most = max(1, target.registers * 5 // 8 // rows)
    vectors = next(count for count in range(most, 0, -1) if columns // short % count == 0)
    keys = _upwards(target.attention_few_keys, lanes)
    n = attention.n.extent.as_int()
    keys = keys if n is None else min(keys, _upwards(n, lanes))
    score, mix = Tile.of(rows, 1, target, dtype), Tile(rows, vectors, short, dtype, dtype)
    return Blocks(
        rows,
        1,
        keys,
        score,
        mix,
        depth,
        columns,
        *_units(attention, score),
        mask_of(bounds_of(attention).value),
    )


def _strips(attention: Attention, strip: int, most: int, target: Target) -> int:
    """Strips of a work item: `most`, or fewer if there were too few work items."""
    m = attention.m.extent.as_int()
    if m is None:
        return most
    heads = 1
    for axis in attention.batch:
        heads *= axis.extent.as_int() or 1
    total = -(-m // strip)
    while most > 1 and heads * -(-total // most) < target.attention_items:
        most -= 1
    return -(-total // -(-total // most))


def bounds_of(attention: Attention) -> Bounds:
    """What the score says of the keys that are looked at, where it is -inf for all others."""
    value = attention.value
    if not isinstance(value, Op) or value.name != "where" or not _is_closed(value.args[2]):
        return Bounds(None, None, value)
    begin: Index | None = None
    end: Index | None = None
    rest: list[Expr] = []
    for condition in _conditions(value.args[0]):
        facts = facts_of(condition)
        bounding = len(facts) == 1 and not facts[0].indirects()
        # The first row of a block says where its keys begin, and the last one where they end.
        bounding = bounding and _grows(facts[0].without(attention.n.name), facts[0], attention)
        step = facts[0].coefficient(attention.n.name) if bounding else None
        sign = None if step is None else step.as_int()
        if sign == -1 and end is None:
            end = facts[0].without(attention.n.name) + 1
            continue
        if sign == 1 and begin is None:
            begin = -facts[0].without(attention.n.name)
        rest.append(condition)
    inside = value.args[1]
    if rest:
        together = rest[0]
        for condition in rest[1:]:
            together = Op("and", (together, condition), "bool")
        inside = Op("where", (together, inside, value.args[2]), value.dtype)
    return Bounds(begin, end, inside)


def mask_of(value: Expr) -> Expr | None:
    """The condition under which a score is not -inf, if it does not depend on the product."""
    if not isinstance(value, Op) or value.name != "where" or not _is_closed(value.args[2]):
        return None
    condition = value.args[0]
    return None if any(isinstance(node, Local) for node in walk_once(condition)) else condition


def scale_of(value: Expr) -> float | None:
    """The positive factor that is all that is done to a product."""
    if isinstance(value, Local):
        return 1.0
    if not isinstance(value, Op) or value.name != "mul" or not isinstance(value.args[0], Local):
        return None
    factor = value.args[1]
    if not isinstance(factor, Const) or not 0 < factor.value < math.inf:
        return None
    return float(factor.value)


def _grows(rest: Index, fact: Index, attention: Attention) -> bool:
    """Whether the bound that a fact is for n does not fall from one row to the next."""
    of_key, of_row = fact.coefficient(attention.n.name), rest.coefficient(attention.m.name)
    if of_key is None or of_row is None:
        return False
    key, row = of_key.as_int(), of_row.as_int()
    return key is not None and row is not None and key * row <= 0


def _conditions(condition: Expr) -> list[Expr]:
    """What a condition is a conjunction of."""
    if isinstance(condition, Op) and condition.name == "and":
        return [each for arg in condition.args for each in _conditions(arg)]
    return [condition]


def _is_closed(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == -math.inf


def _upwards(number: int, step: int) -> int:
    return -(-number // step) * step
