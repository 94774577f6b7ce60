"""What is known about a `Recurrence` before a line of it is emitted: which ones have a template, the tile, and how the
weights lie in panels."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import offset_in, stays_inside
from lampwork.loops.ir.definitions import extents_of
from lampwork.loops.ir.index import ONE, Index, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, DType, Load, Panels, Recurrence, RecurrenceGradient
from lampwork.records import record

_MOST_ROWS = 8
_LEAST_SUMS = 8
"""So many sums have to be under way: with fewer, each step over k takes as long."""


@record
class Shape:
    """The tile of one of the products: `rows` at most, times `group` gates of `vectors` vectors.

    A panel of the weight holds, for each k, so many units of a gate, then the same units of the next one: the gates of
    a unit are then in the same lane of several accumulators. Where the registers hold too few rows of all gates, a
    panel is multiplied in several passes, each for a group of the gates.
    """

    rows: int
    gates: int
    group: int
    vectors: int
    lanes: int

    @property
    def units(self) -> int:
        """Units of a panel."""
        return self.vectors * self.lanes

    @property
    def passes(self) -> int:
        return self.gates // self.group

    @property
    def columns(self) -> int:
        """Columns of a pass."""
        return self.group * self.units

    def place(self, gate: int) -> int:
        """Where the sums of a gate's first unit and row are; those of the next row are `columns` further."""
        return gate // self.group * self.rows * self.columns + gate % self.group * self.units


def choose_shape(gates: int, units: int, rows: int | None, target: Target, dtype: DType) -> Shape:
    """The tile of a product with `gates` * `units` columns: the one with the fewest loads for all rows, and of equal
    ones that with more rows. rows: of the batch, None if it is not known."""
    lanes = target.lanes(dtype)
    vectors = 1 if gates > 1 else min(target.tiles[0].vectors, -(-units // lanes))
    found: list[tuple[float, int, int]] = []
    for group in (each for each in range(1, gates + 1) if gates % each == 0):
        wide = group * vectors
        # Beside the accumulators: a row of the panel, a factor, and a product where it is no part of the sum.
        spare = 1 if target.has_fma else 2
        most = max(1, min((target.registers - wide - spare) // wide, _MOST_ROWS, rows or _MOST_ROWS))
        tiles = 1 / most if rows is None else -(-rows // most)
        found.append((tiles * (wide + most) * (gates // group), -most, group))
    _, most, group = min(found)
    return Shape(-most, gates, group, vectors, lanes)


def gate_shape(node: Recurrence, target: Target) -> Shape:
    """The tile of the product with the state."""
    return choose_shape(node.gates, size_of(node.u), node.b.extent.as_int(), target, node.x.dtype)


def project_shape(node: Recurrence, target: Target) -> Shape:
    """The tile of the projection."""
    return choose_shape(1, size_of(node.k), node.b.extent.as_int(), target, node.x.dtype)


def gradient_shape(node: RecurrenceGradient, target: Target) -> Shape:
    """The tile of a gradient's product, whose columns are the units: the one with the fewest operations, those past the
    last unit among them, and of equal ones that with more rows, then with more columns."""
    units, rows = size_of(node.u), node.b.extent.as_int()
    lanes = target.lanes(node.grad.dtype)
    spare = 1 if target.has_fma else 2
    found: list[tuple[float, int, int]] = []
    for vectors in range(1, min(target.registers // 2, -(-units // lanes)) + 1):
        most = (target.registers - vectors - spare) // vectors
        for height in range(1, min(most, _MOST_ROWS, rows or _MOST_ROWS) + 1):
            tiles = 1 / height if rows is None else -(-rows // height)
            panels = -(-units // (vectors * lanes))
            found.append((tiles * panels * max(height * vectors, _LEAST_SUMS), -height, -vectors))
    _, height, vectors = min(found)
    return Shape(-height, 1, 1, -vectors, lanes)


def size_of(axis: Axis) -> int:
    """The extent of an axis that has to be a number.

    Raises CodegenError if it is not.
    """
    size = axis.extent.as_int()
    if not size:
        raise CodegenError(f"a recurrence over {axis.extent} units")
    return size


@record
class Offsets:
    """Where the operands lie in their buffers, in elements; each runs along its last axis with a stride of 1."""

    x: Index
    h: Index
    c: Index | None
    bias: Index | None
    out: Index
    kept: Index | None
    count: Index | None
    start: Index | None


def offsets_of(node: Recurrence) -> Offsets:
    """Raises CodegenError for an operand that the template cannot address, or that is not proven to exist."""
    d, b, n, u, k = node.d, node.b, node.n, node.u, node.k
    out = Load(node.out, node.index)
    return Offsets(
        offset_along(node.x, (d, *node.steps, n)),
        offset_along(node.h, (d, b, k)),
        None if node.c is None else offset_along(node.c, (d, b, u)),
        None if node.bias is None else offset_along(node.bias, (d, u)),
        offset_along(out, (d, *node.steps, k)),
        None
        if node.kept is None
        else offset_along(Load(node.kept, node.kept_index), (d, *node.steps, node.p)),
        None if node.count is None else offset_along(node.count, (node.t,)),
        None if node.start is None else offset_along(node.start, (node.t,)),
    )


def offset_along(load: Load, axes: Sequence[Axis]) -> Index:
    """Where an operand lies in its buffer. Raises CodegenError as `offsets_of` does."""
    extents = extents_of(axes)
    offset = simplify(offset_in(load.buffer, load.index), extents)
    what = f"{load.buffer.name} of a recurrence"
    runs = axes[-1].extent == ONE or offset.coefficient(axes[-1].name) == ONE
    if load.mask is not None or offset.indirects() or not runs:
        raise CodegenError(f"{what} is not contiguous, got the offset {offset}")
    if not stays_inside(load.buffer, load.index, extents, None):
        raise CodegenError(f"{what} is not proven to hold {offset}")
    return offset


def panels_of(load: Load, shape: Shape, depth: Axis, units: int) -> Panels:
    """The buffer of a packed weight.

    Raises CodegenError if it is not packed as this target wants it.
    """
    panels = -(-units // shape.units)
    buffer = load.buffer
    wanted = (panels, shape.passes, size_of(depth), shape.columns)
    if not isinstance(buffer, Panels) or tuple(size.as_int() for size in buffer.shape[1:]) != wanted:
        raise CodegenError(f"the weight {buffer.name} of a recurrence is not packed in panels of {wanted}")
    return buffer


def params_of(node: Recurrence) -> tuple[Buffer, ...]:
    """The buffers of the ABI: what is read, then what is written."""
    operands = (node.x, node.w, node.h, node.c, node.bias, node.project, node.count, node.start)
    seen = {load.buffer.name: load.buffer for load in operands if load is not None}
    seen[node.out.name] = node.out
    seen[node.memory.name] = node.memory
    if node.kept is not None:
        seen[node.kept.name] = node.kept
    return tuple(seen.values())
