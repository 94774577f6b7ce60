"""Reductions of whole tensors that read what other reductions make of their rows: by row first.

    before: m[i] = max over j of x[i, j]; s = sum over i, j of f(x[i, j], m[i])
    after:  m[i] = …; p[i] = sum over j of f(x[i, j], m[i]); s = sum over i of p[i]

So the loss behind a norm or a softmax is computed in the loop over its rows, which nobody then has to keep. On a card
that goes for sums of one value a row, too, that read the rows again:

before: m[i] = max over j of x[i, j]; s = sum over i of f(x[i, y[i]], m[i])
after:  m[i] = …; p[i] = f(x[i, y[i]], m[i]); s = sum over i of p[i]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lampwork.loops.fusion.work import Work
from lampwork.loops.ir.definitions import points
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import Axis, Buffer, Definition, Load, Map, Reduce
from lampwork.loops.ir.symbols import likely


def split_sums(work: Work) -> Work:
    """The definitions with such reductions by row, if there are any."""
    found: list[Definition] = []
    splits = False
    for number, definition in work.alive():
        rows = _rows_of(number, definition, work) if isinstance(definition, Reduce) else ()
        if isinstance(definition, Reduce) and rows:
            splits = True
            found.extend(
                _by_rows(definition, rows) if len(rows) < len(definition.over) else _by_row(definition)
            )
            name = definition.out.name
            work.decide(f"reduce {name} by row", True, "it reads what is made of the rows", name)
        else:
            found.append(definition)
    if not splits:
        return work
    result = Work(found, work.outputs, work.machine, work.hints)
    result.decisions = work.decisions
    return result


def _rows_of(number: int, whole: Reduce, work: Work) -> tuple[Axis, ...]:
    """The reduced axes that are the rows of another reduction over the same data; none where rows are short."""
    if whole.axes or whole.op in ("argmax", "argmin") or work.reads[number] & (work.mutated | work.shared):
        return ()
    for maker, load in _reductions_read(whole, work):
        names = [place.as_var() for place in load.index]
        rows = tuple(axis for axis in whole.over if axis.name in names)
        inner = tuple(axis for axis in whole.over if axis.name not in names)
        size = likely(points(inner), work.hints)
        made = work.definitions[maker]
        if (
            isinstance(made, Reduce)
            and work.reads[number] & work.reads[maker]
            and len(rows) == len(made.axes) == len(set(names) - {None})
            and {axis.extent for axis in rows} == {axis.extent for axis in made.axes}
            and (inner or work.machine.processors)
            and (size is None or size >= work.machine.long_axis or not inner)
        ):
            return rows
    return ()


def _reductions_read(whole: Reduce, work: Work) -> Iterator[tuple[int, Load]]:
    """The definitions among what a reduction reads that are reductions, with where it reads them."""
    for load in loads(whole.value):
        maker = work.maker.get(load.buffer.name)
        if maker is not None and isinstance(work.definitions[maker], Reduce):
            yield maker, load


def _by_row(whole: Reduce) -> tuple[Map, Reduce]:
    partial, index = _one_a_row(whole, whole.over)
    return Map(partial, whole.over, index, whole.value), replace(whole, value=Load(partial, index))


def _by_rows(whole: Reduce, rows: tuple[Axis, ...]) -> tuple[Reduce, Reduce]:
    partial, index = _one_a_row(whole, rows)
    inner = tuple(axis for axis in whole.over if axis not in rows)
    first = Reduce(partial, rows, inner, index, whole.op, whole.value, None)
    return first, replace(whole, over=rows, value=Load(partial, index))


def _one_a_row(whole: Reduce, rows: tuple[Axis, ...]) -> tuple[Buffer, tuple[Index, ...]]:
    """A buffer of a value a row, and where it has that of a row."""
    strides: list[Index] = []
    step = ONE
    for axis in reversed(rows):
        strides.append(step)
        step = step * axis.extent
    shape = tuple(axis.extent for axis in rows)
    partial = Buffer(f"{whole.out.name}_rows", whole.value.dtype, shape, tuple(reversed(strides)))
    return partial, tuple(Index.var(axis.name) for axis in rows)
