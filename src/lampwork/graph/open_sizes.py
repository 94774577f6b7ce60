"""Sizes that stay open, tried out on eager: what a call's own sizes say of other sizes.

before: group_norm(x[s0, s1, s2], 2, weight[s3], bias[s4])     s1, s3 and s4 are 6 on this call
after:  the same, with the conditions s1 == s3 and s1 == s4

A probe (`probes.py`) speaks of the sizes at hand. So each symbol among the sizes of a call is given other values that
the conditions so far allow for, and eager is asked again. Where it refuses, sizes that are equal on this call are to be
equal on all: those that eager takes together with the symbol, and no more. If that does not help, the symbol is fixed.
So no rule can forget to say which sizes have to agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from lampwork.graph.probes import takes
from lampwork.graph.spec import TensorSpec, with_sizes
from lampwork.graph.symbols import Condition, Scope, SymbolicFloat, SymbolicInt, map_symbols
from lampwork.loops.ir.polynomial import Index, Sym
from lampwork.loops.ir.symbols import evaluate


def confine_sizes(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], scope: Scope) -> None:
    """Note what conditions the sizes of `op(*args, **kwargs)` have to meet, with TensorSpecs in place of tensors.

    To be called once the rule of the operator has noted its own, and eager has taken the call as it is.
    """
    values = (*args, *kwargs.values())
    if not (names := _symbols(values, scope)):
        return
    key = (op, _look(values, scope), tuple(kwargs), len(scope.equal))
    if key in scope.tried:
        return
    call = _Call(op, args, kwargs, scope)
    for name in names:
        call.settle(name)
    scope.tried.add(key)


class _Call:
    def __init__(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], scope: Scope) -> None:
        self._op, self._args, self._kwargs, self._scope = op, args, kwargs, scope

    def settle(self, name: str) -> None:
        """Confine a symbol until eager takes the call with whatever value it is given."""
        while (value := self._refused(name)) is not None:
            scope = self._scope
            together = self._together(name, value) or self._together(name, 2 * scope.hints[name])
            for other in together:
                scope.decide("==", Index.sym(name) - Index.sym(other))
            if not together:
                scope.decide("==", Index.sym(name) - scope.hints[name])

    def _refused(self, name: str) -> int | None:
        """A value of the symbol, alone, that the conditions allow for and eager does not."""
        if name in self._scope.equal:
            return None
        for value in self._candidates(name):
            if self._takes({name: value}) is False:
                return value
        return None

    def _candidates(self, name: str) -> tuple[int, ...]:
        """Larger than all sizes of the call, one more, one less: operators compare. A multiple: they divide."""
        hint = self._scope.hints[name]
        largest = max(_numbers((*self._args, *self._kwargs.values())))
        return (max(largest, hint) + 1, hint + 1, hint - 1, 2 * hint)

    def _together(self, name: str, value: int) -> list[str]:
        """The fewest of the symbols that equal this one now, so that eager takes `value` for all of them."""
        scope = self._scope
        names = _symbols((*self._args, *self._kwargs.values()), scope)
        group = [other for other in names if other != name and scope.hints[other] == scope.hints[name]]
        if not group or not self._takes(dict.fromkeys((name, *group), value)):
            return []
        for other in list(group):
            rest = [each for each in group if each != other]
            if self._takes(dict.fromkeys((name, *rest), value)):
                group = rest
        return group

    def _takes(self, changed: Mapping[str, int]) -> bool | None:
        """Whether eager takes the call with these values of symbols; None if it is not asked, as a condition forbids
        them."""
        values = self._values(changed)
        if values is None:
            return None

        def number(symbol: Any) -> Any:
            if isinstance(symbol, SymbolicFloat):
                return symbol.hint
            return symbol.evaluate(values)

        return takes(self._op, _concrete(self._args, number), _concrete(self._kwargs, number))

    def _values(self, changed: Mapping[str, int]) -> dict[str, int] | None:
        """Values of all symbols that meet the conditions, with some changed; None if there are none to be found.

        A symbol that is no size of the call (a stride) takes the value that a condition prescribes.
        """
        scope, values = self._scope, {**self._scope.hints, **changed}
        given = {*_symbols((*self._args, *self._kwargs.values()), scope), *changed}
        todo = list(changed)
        while todo:
            name = todo.pop()
            if values[name] < scope.lowest.get(name, values[name]):
                return None
            for condition in scope.conditions_on(name):
                if condition.holds(values):
                    continue
                solved = _solved(condition, values, given) if condition.op == "==" else None
                if solved is None:
                    return None
                todo.append(solved)
                given.add(solved)
        for old, index in scope.equal.items():
            values[old] = SymbolicInt(scope, index, 0).evaluate(values)
        return values


def _solved(condition: Condition, values: dict[str, int], given: set[str]) -> str | None:
    """Meet `condition` by another value of a symbol that is not given. Returns the symbol, None if there is none."""
    for atoms, coefficient in condition.index.terms:
        if len(atoms) == 1 and isinstance(atoms[0], Sym) and coefficient in (1, -1):
            name = atoms[0].name
            if (
                name not in given
                and sum(name in Index(((m, c),)).symbols() for m, c in condition.index.terms) == 1
            ):
                values[name] -= coefficient * evaluate(condition.index, values)
                return name
    return None


def _concrete(value: Any, number: Any) -> Any:
    if type(value) is TensorSpec:
        return with_sizes(value, number)
    if isinstance(value, (list, tuple)):
        return [_concrete(item, number) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {k: _concrete(v, number) for k, v in cast("dict[str, Any]", value).items()}
    return map_symbols(value, number)


def _sizes(value: Any) -> Iterator[Any]:
    if type(value) is TensorSpec:
        yield from value.shape
    elif isinstance(value, (list, tuple)):
        for item in cast("list[Any]", value):
            yield from _sizes(item)


def _symbols(value: Any, scope: Scope) -> list[str]:
    """The free symbols among the sizes of tensors, in order."""
    found: dict[str, None] = {}
    for size in _sizes(value):
        if isinstance(size, SymbolicInt):
            found.update(dict.fromkeys(sorted(scope.canonical(size.index).symbols())))
    return [name for name in found if name not in scope.derived]


def _numbers(value: Any) -> list[int]:
    return [size.hint if isinstance(size, SymbolicInt) else size for size in _sizes(value)]


def _look(value: Any, scope: Scope) -> Any:
    """What a call looks like: equal for calls that are tried out alike."""
    if type(value) is TensorSpec:
        return (tuple([_look(size, scope) for size in value.shape]), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple([_look(item, scope) for item in cast("list[Any]", value)])
    if isinstance(value, SymbolicInt):
        return scope.canonical(value.index)
    return repr(value)
