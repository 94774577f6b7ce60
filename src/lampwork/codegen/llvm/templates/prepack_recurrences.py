"""The weights of recurrent layers, rearranged into the panels that the template reads.

    before:  w[gate * units + unit, k]
    after:   w.panels[d, unit // 16, gate // 2, k, gate % 2 * 16 + unit % 16]      zero past the last unit

where a tile has 2 gates of 16 units.

A constant weight is rearranged in the constant part: once, and again when it changes. Others are on each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.codegen.llvm.templates.recurrent_plan import Shape, gate_shape, project_shape, size_of
from lampwork.codegen.target import Target
from lampwork.loops.ir.addresses import dense_strides
from lampwork.loops.ir.expr import move
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import (
    Axis,
    Const,
    Definition,
    IndexValue,
    Load,
    Map,
    Op,
    Panels,
    Recurrence,
)


def prepack_recurrences(
    main: Sequence[Definition], constant: Sequence[Definition], fixed: frozenset[str], target: Target
) -> tuple[list[Definition], list[Definition]]:
    """`main` with every Recurrence reading panels, which either part makes. fixed: as for `CodeGenerator.prepack`."""
    changed: list[Definition] = []
    added: list[Definition] = []
    for number, definition in enumerate(main):
        if not isinstance(definition, Recurrence):
            changed.append(definition)
            continue
        node = definition
        name = f"{node.w.buffer.name}.panels{number}"
        packing = _packing(name, node.w, gate_shape(node, target), node, node.k, node.n, node.u)
        (added if node.w.buffer.name in fixed else changed).append(packing)
        node = replace(node, w=replace(node.w, buffer=packing.out))
        if node.project is not None:
            name = f"{node.project.buffer.name}.panels{number}"
            shape = project_shape(node, target)
            packing = _packing(name, node.project, shape, node, node.u, node.k, node.k)
            (added if node.project.buffer.name in fixed else changed).append(packing)
            node = replace(node, project=replace(node.project, buffer=packing.out))
        changed.append(node)
    return changed, [*constant, *added]


def _packing(
    name: str, weight: Load, shape: Shape, node: Recurrence, depth: Axis, column: Axis, unit: Axis
) -> Map:
    """The panels of a weight over `depth` and `column`, of which each gate has the extent of `unit`."""
    units = size_of(unit)
    panels = -(-units // shape.units)
    numbers = (panels, shape.passes)
    sizes = (node.d.extent, *map(Index.const, numbers), depth.extent, Index.const(shape.columns))
    out = Panels(name, weight.dtype, sizes, dense_strides(sizes), shape.columns)
    panel, part, gate, lane = (Index.var(name) for name in ("panel", "part", "gate", "lane"))
    at = panel * shape.units + lane
    axes = (
        node.d,
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
    index = (Index.var(node.d.name), panel, part, Index.var(depth.name), gate * shape.units + lane)
    return Map(out, axes, index, value)
