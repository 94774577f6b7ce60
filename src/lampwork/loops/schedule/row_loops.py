"""Loops over rows: leading axes collapsed into the one parallel loop of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.loops.ir.expr import move
from lampwork.loops.ir.index import ONE, ZERO, Index, simplify
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Loop, Stmt
from lampwork.loops.ir.symbols import likely


def collapse(axes: Sequence[Axis], name: str) -> tuple[Axis, dict[str, Index]]:
    """One axis for several, in row-major order, and what to put for the variables of the several.

    before: i < 3, j < 4      after: p < 12, i = p // 4, j = p % 4
    """
    if len(axes) == 1:
        return axes[0], {}
    total = ONE
    for axis in axes:
        total = total * axis.extent
    whole = Axis(name, total)
    rest = Index.var(name)
    mapping: dict[str, Index] = {}
    for axis in reversed(axes[1:]):
        mapping[axis.name] = rest % axis.extent
        rest = rest // axis.extent
    mapping[axes[0].name] = rest
    return whole, {axis: simplify(index, {name: total}) for axis, index in mapping.items()}


def wrap_parallel(
    rows: Sequence[Axis], body: list[Stmt], machine: Machine, hints: Mapping[str, int]
) -> list[Stmt]:
    """`body` in loops over `rows`: the leading rows collapsed into one parallel loop, the others serial.

    A division by a symbolic extent is slow: such axes are collapsed only where the iterations are few without them.

    before: rows i < 12, j < 128      after: parallel p < 1536, with i = p // 128, j = p % 128 in the body
    """
    if not rows:
        return body
    count, product = 0, 1
    while count < len(rows) and product < machine.many_items:
        extent = rows[count].extent
        if count and any(row.extent == ZERO for row in rows[: count + 1]):
            break  # nothing is divided by it
        if count and extent.as_int() is None and product >= machine.few_items:
            break
        product *= likely(extent, hints) or machine.many_items
        count += 1
    outer, mapping = collapse(rows[:count], f"{rows[count - 1].name}p")
    if mapping:
        body = [move(stmt, mapping, {outer.name: outer.extent}) for stmt in body]
    for axis in reversed(rows[count:]):
        body = [Loop(axis, "serial", tuple(body))]
    return [Loop(outer, "parallel", tuple(body))]
