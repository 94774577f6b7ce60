"""What a definition does besides giving a result: write to arguments, draw random numbers, raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lampwork.loops.ir.bounds import facts_of
from lampwork.loops.ir.expr import definition_exprs, indices, requires
from lampwork.loops.ir.index import ONE, ZERO, Index, Indirect, Var, simplify
from lampwork.loops.ir.nodes import Definition, Expr, Extern, IndexValue, Load, Map, Op
from lampwork.loops.ir.traverse import rewrite, walk_once


def is_needed_anyway(definition: Definition) -> bool:
    """Whether a definition has to run although nobody reads what it makes."""
    if isinstance(definition, Extern):
        return bool(definition.mutates) or definition.random or definition.raises
    return may_fail(definition)


def may_fail(definition: Definition) -> bool:
    """Whether the code of a definition fails for some data: where an index taken from it is out of range, or a value
    does not meet what is required of it."""
    if isinstance(definition, Map) and any(index.indirects() for index in definition.index):
        return True
    return any(
        requires(expr) or any(index.indirects() for index in indices(expr))
        for expr in definition_exprs(definition)
    )


def checked(expr: Expr) -> set[Indirect]:
    """The indices from data that evaluating an expression checks, whatever the masks of its loads are.

    before: where(i0 < 4, a[at(v, 5)], b[i0 - 4] where i0 >= 4)        after: {at(v, 5)}
    """
    found: set[Indirect] = set()
    for node in walk_once(expr, data=False):
        if isinstance(node, IndexValue):
            found.update(node.index.indirects())
        elif isinstance(node, Load) and node.mask is None:
            # A stride of 0 makes no difference between positions.
            places = zip(node.index, node.buffer.strides, strict=True)
            found.update(a for position, stride in places if stride != ZERO for a in position.indirects())
    return found


def at_one_place(expr: Expr) -> Expr:
    """The expression without indices from data along dimensions whose elements are all one: they make no difference,
    and whoever has them checks them elsewhere.

    before: where(at(v, 9) < 4, a[at(v, 9)], b[at(v, 9) - 4] where at(v, 9) >= 4), b of stride 0        after: b[0]
    """

    def on_load(load: Load) -> Expr:
        places = zip(load.index, load.buffer.strides, load.buffer.shape, strict=True)
        index = tuple(
            ZERO if stride == ZERO and size.as_int() != 0 and position.indirects() else position
            for position, stride, size in places
        )
        return load if index == load.index else replace(load, index=index)

    return rewrite(expr, {Load: on_load})


def reads_all(load: Load, extents: Mapping[str, Index]) -> bool:
    """Whether a load reads every element of its buffer as the loop variables run over their extents.

    before: x[i0 - 1] where 1 <= i0 < 7, i0 < 8, of 6 elements        after: True
    """
    place = load.index
    if load.mask is not None:
        box = _box(load.mask, extents)
        if box is None:
            return False
        lowest, extents = box
        place = tuple(each.substitute(lowest) for each in place)
    return reaches_all(place, load.buffer.shape, extents)


def _box(mask: Expr, extents: Mapping[str, Index]) -> tuple[dict[str, Index], dict[str, Index]] | None:
    """The mask as a range for each loop variable: (variable -> itself and its lowest value, extents); None if it says
    anything else."""
    conditions = [mask]
    low = dict.fromkeys(extents, 0)
    high = {name: extent.as_int() for name, extent in extents.items()}
    while conditions:
        condition = conditions.pop()
        if isinstance(condition, Op) and condition.name == "and":
            conditions.extend(condition.args)
            continue
        facts = facts_of(condition)
        if not facts:
            return None
        for fact in facts:
            name, *others = fact.variables() or ("",)
            step = fact.coefficient(name)
            sign = None if step is None else step.as_int()
            if others or sign not in (1, -1) or not fact.without(name).is_const:
                return None
            if sign == 1:
                low[name] = max(low[name], -fact.constant)
                continue
            most = high[name]
            high[name] = fact.constant + 1 if most is None else min(most, fact.constant + 1)
    within: dict[str, Index] = {}
    for name, extent in extents.items():
        most = high[name]
        within[name] = extent - low[name] if most is None else Index.const(most - low[name])
    return {name: Index.var(name) + start for name, start in low.items() if start}, within


def reaches_all(place: Sequence[Index], shape: Sequence[Index], extents: Mapping[str, Index]) -> bool:
    """Whether `place` runs over every element of an array of this shape as its variables run over their extents.

    before: (i1, i0), shape (n, m), i0 < m, i1 < n        after: True
    before: (i0, 0), shape (n, 2)                         after: False
    """
    flat = ZERO
    for position, size in zip(place, shape, strict=True):
        flat = flat * size + position
    flat = simplify(flat, extents)
    digits: list[tuple[Index, Index]] = []
    for name in flat.variables():
        step = flat.coefficient(name)
        extent = extents.get(name)
        if step is None or step.variables() or extent is None:
            return False
        if extent != ONE:
            digits.append((step, extent))
    if flat.constant or any(not any(isinstance(a, Var) for a in m) for m, _ in flat.terms):
        return False
    reached = ONE
    while digits:
        following = next((digit for digit in digits if digit[0] == reached), None)
        if following is None:
            return False
        digits.remove(following)
        reached = reached * following[1]
    total = ONE
    for size in shape:
        total = total * size
    return reached == total
