"""Numbers of a graph stay within int64: compiled code reckons so, Python does not.

before: x * (n * n), compiled for every n        after: the same, with the condition that n*n fits int64

A call that does not meet it is compiled anew, with its numbers, and eager says what comes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import fx

from lampwork.graph.nested import leaves
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope, Symbolic, SymbolicInt, map_symbols
from lampwork.loops.ir.polynomial import Atom, FloorDiv, Index, Mod, Sym

_FEW = 1 << 31  # what may be added to the size of a tensor without a thought
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def confine_to_int64(graph: fx.Graph, scope: Scope) -> None:
    """Have every number that a graph computes of symbols fit int64, and what its tensors take in bytes."""
    confined: set[Index] = set()
    for node in graph.nodes:
        for index in _indices(node, scope):
            if index not in confined and not _is_safe(index, scope):
                confined.add(index)
                scope.require("fits", index)


def _indices(node: fx.Node, scope: Scope) -> Iterator[Index]:
    found: list[Index] = []

    def note(number: Symbolic) -> Symbolic:
        if isinstance(number, SymbolicInt):
            found.append(scope.canonical(number.index))
        return number

    if node.op == "call_function":
        map_symbols((node.args, node.kwargs), note)
        for spec in leaves(node.meta.get("val"), TensorSpec):
            yield from _memory(spec, scope)
    yield from found


def _memory(spec: TensorSpec, scope: Scope) -> Iterator[Index]:
    """The bytes and the strides of a tensor whose sizes the program reckons from its numbers. Of other tensors' sizes
    no more is made than there is memory for."""
    numbers = [size for size in (*spec.shape, *spec.strides) if isinstance(size, SymbolicInt)]
    if not any(scope.numbers & size.symbols() for size in numbers):
        return
    elements = Index.const(spec.dtype.itemsize)
    for size in spec.shape:
        elements = elements * (scope.canonical(size.index) if isinstance(size, SymbolicInt) else size)
    yield elements
    for stride in spec.strides:
        if isinstance(stride, SymbolicInt):
            yield scope.canonical(stride.index)


def _is_safe(index: Index, scope: Scope) -> bool:
    """Whether it is a symbol, or little more than the size of a tensor."""
    rest = index - index.constant
    if rest.terms == ():
        return True
    (monomial, coefficient), *others = rest.terms
    if others or coefficient != 1 or len(monomial) != 1 or not isinstance(monomial[0], Sym):
        return False
    return index.constant == 0 or (monomial[0].name not in scope.numbers and abs(index.constant) < _FEW)


def can_evaluate(index: Index, values: Mapping[str, int]) -> bool:
    """Whether the runtime (IndexProgram of csrc/symbols.cpp) can: every number on the way fits int64, and nothing is
    divided by what is not positive."""
    return _evaluated(index, values) is not None


def _evaluated(index: Index, values: Mapping[str, int]) -> int | None:
    total = 0
    for monomial, coefficient in index.terms:
        product: int | None = _kept(coefficient)
        for atom in monomial:
            value = _atom(atom, values)
            product = None if product is None or value is None else _kept(product * value)
        if product is None or _kept(total + product) is None:
            return None
        total += product
    return total


def _atom(atom: Atom, values: Mapping[str, int]) -> int | None:
    if isinstance(atom, Sym):
        return _kept(values[atom.name])
    assert isinstance(atom, (FloorDiv, Mod))
    a, b = _evaluated(atom.a, values), _evaluated(atom.b, values)
    if a is None or b is None or b <= 0:
        return None
    return a // b if isinstance(atom, FloorDiv) else a % b


def _kept(value: int) -> int | None:
    return value if _LOWEST <= value <= _HIGHEST else None
