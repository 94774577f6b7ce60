"""Kernels of running sums, products, maxima and minima."""

from __future__ import annotations

from collections.abc import Mapping

from lampwork.errors import InvalidLoopsError
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.addresses import flat_load, stride_of
from lampwork.loops.ir.expr import cast_to, indices, move
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import make_kernel
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Kernel, Load, Local, Loop, Scan, ScanLoop, Stmt, Store
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.schedule.row_loops import wrap_parallel


def schedule_scan(group: Group, name: str, machine: Machine, hints: Mapping[str, int]) -> Kernel:
    """One kernel: parallel over the kept axes, a scan along the other; vector along a kept axis that is contiguous.

    before: out[i, j] = sum of x[i, j'] for j' <= j      after: parallel i: scan j
    before: out[i, j] = sum of x[i', j] for i' <= i      after: parallel-vector j: scan i
    """
    definition = group.definitions[0]
    if len(group.definitions) != 1 or not isinstance(definition, Scan):
        raise InvalidLoopsError("a scan group is exactly one Scan")
    axes = [axis for axis in definition.axes if axis.extent.as_int() != 1]
    units = {axis.name: Index.const(0) for axis in definition.axes if axis.extent.as_int() == 1}
    extents = {axis.name: axis.extent for axis in (*axes, definition.along)}
    value = rewrite(move(definition.value, units, extents), {Load: lambda load: flat_load(load, extents)})
    place = Load(definition.out, tuple(position.substitute(units) for position in definition.index))
    target = flat_load(place, extents)
    local = Local("running", value.dtype)
    store = Store(target.buffer, target.index, cast_to(local, definition.out.dtype))
    scan: Stmt = ScanLoop(definition.along, (), "running", definition.op, value, value.dtype, (store,))
    contiguous = [
        axis
        for axis in axes
        if stride_of(target.index[0], axis.name) == 1
        and all(stride_of(index, axis.name) in (0, 1) for index in indices(value))
    ]
    vector = contiguous[-1] if contiguous else None
    rest = [axis for axis in axes if axis is not vector]
    if vector is None:
        return make_kernel(name, wrap_parallel(rest, [scan], machine, hints), (), definition.out.name)
    if not rest:
        return make_kernel(name, [Loop(vector, "parallel-vector", (scan,))], (), definition.out.name)
    inside: list[Stmt] = [Loop(vector, "vector", (scan,))]
    return make_kernel(name, wrap_parallel(rest, inside, machine, hints), (), definition.out.name)
