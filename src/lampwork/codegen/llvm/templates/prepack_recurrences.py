"""The weights of recurrent layers, rearranged into the panels that the template reads.

    before:  w[gate * units + unit, k]
    after:   w.panels[d, unit // 16, gate // 2, k, gate % 2 * 16 + unit % 16]      zero past the last unit

where a tile has 2 gates of 16 units. Of a gradient, whose product runs over the gates:

    before:  w[n, unit]
    after:   w.panels[0, unit // 64, 0, n, unit % 64]

A constant weight is rearranged in the constant part: once, and again when it changes. Others are on each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from lampwork.codegen.llvm.templates.recurrent_plan import (
    Shape,
    gate_shape,
    gradient_shape,
    project_shape,
    size_of,
)
from lampwork.codegen.target import Target
from lampwork.loops.ir.addresses import dense_strides
from lampwork.loops.ir.expr import move
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Const,
    Definition,
    IndexValue,
    Load,
    Map,
    Op,
    Panels,
    Recurrence,
    RecurrenceGradient,
)


def prepack_recurrences(
    main: Sequence[Definition], constant: Sequence[Definition], fixed: frozenset[str], target: Target
) -> tuple[list[Definition], list[Definition]]:
    """`main` with every Recurrence and RecurrenceGradient reading panels, which either part makes.

    fixed: as for `CodeGenerator.prepack`.
    """
    changed: list[Definition] = []
    added: list[Definition] = []
    for number, definition in enumerate(main):
        for load, packing in _packings(definition, number, target):
            (added if load.buffer.name in fixed else changed).append(packing)
            definition = _reading(cast(Any, definition), load, packing.out)
        changed.append(definition)
    return changed, [*constant, *added]


def _packings(definition: Definition, number: int, target: Target) -> list[tuple[Load, Map]]:
    """The weights of a definition and what packs them."""
    if isinstance(definition, RecurrenceGradient):
        node = definition
        shape = gradient_shape(node, target)
        return [(node.w, _packing(number, node.w, shape, Axis("d", ONE), node.n, node.u, node.u))]
    if not isinstance(definition, Recurrence):
        return []
    node = definition
    found = [(node.w, _packing(number, node.w, gate_shape(node, target), node.d, node.k, node.n, node.u))]
    if node.project is not None:
        shape = project_shape(node, target)
        found.append((node.project, _packing(number, node.project, shape, node.d, node.u, node.k, node.k)))
    return found


def _reading(
    node: Recurrence | RecurrenceGradient, load: Load, panels: Buffer
) -> Recurrence | RecurrenceGradient:
    """The node with the panels in the place of a weight."""
    packed = replace(load, buffer=panels)
    if load is node.w:
        return replace(node, w=packed)
    assert isinstance(node, Recurrence)
    return replace(node, project=packed)


def _packing(
    number: int, weight: Load, shape: Shape, direction: Axis, depth: Axis, column: Axis, unit: Axis
) -> Map:
    """The panels of a weight over `depth` and `column`, of which each gate has the extent of `unit`."""
    units = size_of(unit)
    panels = -(-units // shape.units)
    numbers = (panels, shape.passes)
    sizes = (direction.extent, *map(Index.const, numbers), depth.extent, Index.const(shape.columns))
    name = f"{weight.buffer.name}.panels{number}"
    out = Panels(name, weight.dtype, sizes, dense_strides(sizes), shape.columns)
    panel, part, gate, lane = (Index.var(name) for name in ("panel", "part", "gate", "lane"))
    at = panel * shape.units + lane
    axes = (
        direction,
        Axis("panel", Index.const(panels)),
        Axis("part", Index.const(shape.passes)),
        depth,
        Axis("gate", Index.const(shape.group)),
        Axis("lane", Index.const(shape.units)),
    )
    extents = {axis.name: axis.extent for axis in axes}
    value = move(weight, {column.name: (part * shape.group + gate) * units + at}, extents)
    if units % shape.units:
        there = Op("lt", (IndexValue(at, "i64"), Const(units, "i64")), "bool")
        value = replace(value, mask=there)
    index = (Index.var(direction.name), panel, part, Index.var(depth.name), gate * shape.units + lane)
    return Map(out, axes, index, value)
