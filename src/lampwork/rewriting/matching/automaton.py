"""Which patterns may match where: a tree automaton over all patterns of a set of rules.

Every subpattern is a *shape*, equal ones are the same. The *state* of a value is the set of shapes that it may be, a
bit mask, and that of a node follows from its op and the states of its operands (bottom-up, as in Hoffmann and
O'Donnell, "Pattern matching in trees", 1982; here the automaton is made as graphs ask for it). So a node costs a few
look-ups, however many patterns there are.

The states leave out what takes a closer look (kinds of variables, one variable used twice, predicates): where the
automaton says no, a pattern does not match; where it says yes, `match.matches` has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.symbols import Symbolic
from lampwork.rewriting import schema
from lampwork.rewriting.language.term import Call, Lit, Term
from lampwork.rewriting.matching.equivalences.spellings import spellings
from lampwork.rewriting.matching.planner import COMMUTATIVE
from lampwork.rewriting.matching.values import fill_value
from lampwork.standard import math

Shapes = tuple[int, ...] | None
"""The shapes that a term stands for any one of; None: whatever there is."""

_LARGEST = 1 << 16
"""So many answers are kept of a kind; then they are forgotten and asked for anew."""
_FILLING = ("full", "full_like", "scalar_tensor", "zeros", "zeros_like", "ones", "ones_like")


@dataclass(slots=True)
class _Position:
    """An operand of an op: the shapes of the op that take anything there, and those that want a certain shape."""

    anything: int = 0
    wanting: dict[int, int] = field(default_factory=dict[int, int])
    wanted: int = 0
    known: dict[int, int] = field(default_factory=dict[int, int])

    def accepts(self, state: int) -> int:
        """The shapes of the op that an operand in this state suits."""
        seen = state & self.wanted
        found = self.known.get(seen)
        if found is None:
            found = self.anything
            for shape in _bits(seen):
                found |= self.wanting[shape]
            if len(self.known) >= _LARGEST:
                self.known.clear()
            self.known[seen] = found
        return found


@dataclass(slots=True)
class _Op:
    """The shapes with a certain op (or list length) at the root. `checked`: the operands that any of them cares for."""

    arity: int
    defaults: tuple[Any, ...]
    names: tuple[str, ...]
    fills: bool
    all: int = 0
    commutative: int = 0
    positions: list[_Position] = field(default_factory=list[_Position])
    checked: list[tuple[int, _Position]] = field(default_factory=list[tuple[int, _Position]])


@dataclass(slots=True)
class PatternAutomaton:
    """The automaton of a list of patterns.

    `state(node, states)` gives the state of a node from those of its operands (a missing one counts as "nothing"),
    `candidates(state)` the numbers of the patterns that may match at it, in order.
    """

    _count: int = 0
    _ops: dict[Any, _Op] = field(default_factory=dict[Any, _Op])
    _lists: dict[int, _Op] = field(default_factory=dict[int, _Op])
    _shapes: dict[Any, int] = field(default_factory=dict[Any, int])
    _calls: dict[Call, Shapes] = field(default_factory=dict[Call, Shapes])
    _literals: dict[Any, int] = field(default_factory=dict[Any, int])
    _all_literals: int = 0
    _roots: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    _root_mask: int = 0
    _everywhere: list[int] = field(default_factory=list[int])
    _known: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

    @staticmethod
    def of(patterns: Iterable[Term]) -> PatternAutomaton:
        automaton = PatternAutomaton()
        for number, pattern in enumerate(patterns):
            shapes = automaton._shapes_of(pattern)
            if shapes is None:
                automaton._everywhere.append(number)
                continue
            for shape in shapes:
                automaton._roots.setdefault(shape, []).append(number)
                automaton._root_mask |= 1 << shape
        for name in _FILLING if automaton._literals else ():
            # A tensor filled with a number is matched as that number.
            target = getattr(torch.ops.aten, name).default
            if target not in automaton._ops:
                automaton._ops[target] = _op(target, len(schema.signature(target).parameters))
        for op in (*automaton._ops.values(), *automaton._lists.values()):
            op.checked = [(i, p) for i, p in enumerate(op.positions) if p.wanting]
        return automaton

    def knows(self, target: Any) -> bool:
        """Whether any pattern has this op."""
        return target in self._ops or bool(self._everywhere)

    def candidates(self, state: int) -> tuple[int, ...]:
        """The patterns that may match at a node in this state, the first one first."""
        roots = state & self._root_mask
        found = self._known.get(roots)
        if found is None:
            if len(self._known) >= _LARGEST:
                self._known.clear()
            numbers = {*self._everywhere, *(n for shape in _bits(roots) for n in self._roots[shape])}
            found = self._known[roots] = tuple(sorted(numbers))
        return found

    def state(self, node: fx.Node, states: Mapping[fx.Node, int]) -> int:
        """The shapes that `node` may be."""
        op = self._ops.get(node.target)
        if op is None:
            return 0
        if op.fills and (filled := fill_value(node)) is not None:
            return self._literal_state(filled) | self._call_state(op, node, states)
        return self._call_state(op, node, states)

    def _call_state(self, op: _Op, node: fx.Node, states: Mapping[fx.Node, int]) -> int:
        if schema.is_pinned(node):
            return 0
        if op.commutative:
            return self._commutative_state(op, node, states)
        found = op.all
        for i, position in op.checked:
            found &= position.accepts(self._value_state(_operand(op, node, i), states))
            if not found:
                return 0
        return found

    def _commutative_state(self, op: _Op, node: fx.Node, states: Mapping[fx.Node, int]) -> int:
        left = self._value_state(_operand(op, node, 0), states)
        right = self._value_state(_operand(op, node, 1), states)
        first, second = op.positions[0], op.positions[1]
        found = first.accepts(left) & second.accepts(right)
        found |= first.accepts(right) & second.accepts(left) & op.commutative
        for i, position in op.checked:
            if found and i > 1:
                found &= position.accepts(self._value_state(_operand(op, node, i), states))
        return found

    def _value_state(self, value: Any, states: Mapping[fx.Node, int]) -> int:
        if isinstance(value, fx.Node):
            return states.get(value, 0)
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            op = self._lists.get(len(items))
            if op is None:
                return 0
            found = op.all
            for i, position in op.checked:
                found &= position.accepts(self._value_state(items[i], states))
            return found
        return self._literal_state(value)

    def _literal_state(self, value: Any) -> int:
        key = _literal_key(value)
        return self._all_literals if key is None else self._literals.get(key, 0)

    # --- building ---------------------------------------------------------------------------------------------------

    def _shapes_of(self, term: Any) -> Shapes:
        if isinstance(term, Call):
            return self._call_shapes(term)
        if isinstance(term, list | tuple):
            return (self._list_shape(cast("Sequence[Any]", term)),)
        if term is Ellipsis:
            return None
        if isinstance(term, Term) and not isinstance(term, Lit):
            return self._shapes_of_any(term)
        key = _literal_key(term.value if isinstance(term, Lit) else term)
        if key is None:
            return None
        shape = self._shape(("literal", key))
        self._literals[key] = 1 << shape
        self._all_literals |= 1 << shape
        return (shape,)

    def _shapes_of_any(self, term: Term) -> Shapes:
        """Of a term that stands for one of several: those of all of them."""
        found: list[int] = []
        alternatives = term.alternatives()
        if alternatives is None:
            return None
        for alternative in alternatives:
            shapes = self._shapes_of(alternative)
            if shapes is None:
                return None
            found.extend(shapes)
        return tuple(dict.fromkeys(found))

    def _call_shapes(self, term: Call) -> Shapes:
        """Of all that a call may be spelled as."""
        if term in self._calls:
            return self._calls[term]
        self._calls[term] = found = self._shapes_of_spellings(term)
        return found

    def _shapes_of_spellings(self, term: Call) -> Shapes:
        found: list[int] = []
        for spelling in spellings(term):
            if isinstance(spelling, Call) and spelling.form == "final":
                found.append(self._call_shape(spelling))
                continue
            shapes = self._shapes_of(spelling)
            if shapes is None:
                return None
            found.extend(shapes)
        return tuple(dict.fromkeys(found))

    def _call_shape(self, term: Call) -> int:
        # Operands are shared between overloads.
        known: dict[int, Shapes] = {}

        def operand(t: Any) -> Shapes:
            if id(t) not in known:
                known[id(t)] = self._shapes_of(t)
            return known[id(t)]

        rows = {target: tuple(map(operand, terms)) for target, terms in term.values.items()}
        shape = self._shape(("call", tuple(rows.items())))
        for target, row in rows.items():
            op = self._ops.get(target)
            if op is None:
                op = self._ops[target] = _op(target, len(row))
            self._enter(op, shape, row)
            if term.name in COMMUTATIVE and len(row) > 1:
                op.commutative |= 1 << shape
        return shape

    def _list_shape(self, terms: Sequence[Any]) -> int:
        row = tuple(map(self._shapes_of, terms))
        shape = self._shape(("list", row))
        op = self._lists.get(len(row))
        if op is None:
            op = self._lists[len(row)] = _Op(len(row), (), (), False, positions=_positions(len(row)))
        self._enter(op, shape, row)
        return shape

    def _shape(self, key: Any) -> int:
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = self._count
            self._count += 1
        return found

    @staticmethod
    def _enter(op: _Op, shape: int, row: tuple[Shapes, ...]) -> None:
        if len(row) != op.arity:
            return
        op.all |= 1 << shape
        for position, shapes in zip(op.positions, row, strict=True):
            if shapes is None:
                position.anything |= 1 << shape
                continue
            for wanted in shapes:
                position.wanting[wanted] = position.wanting.get(wanted, 0) | 1 << shape
                position.wanted |= 1 << wanted


def _op(target: Any, arity: int) -> _Op:
    parameters = schema.signature(target).parameters
    return _Op(
        arity,
        tuple(p.default for p in parameters),
        tuple(p.name for p in parameters),
        schema.packet_name(target) in _FILLING,
        positions=_positions(arity),
    )


def _positions(count: int) -> list[_Position]:
    return [_Position() for _ in range(count)]


def _operand(op: _Op, node: fx.Node, i: int) -> Any:
    if i < len(node.args):
        return node.args[i]
    if node.kwargs and op.names[i] in node.kwargs:
        return node.kwargs[op.names[i]]
    return op.defaults[i]


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _literal_key(value: Any) -> Any:
    """Equal for what `match.literal_matches` holds to be equal; None where it takes more than that to tell."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | float):
        if value != value:
            return "nan"
        return (value, math.copysign(1.0, value)) if value == 0 else value
    if isinstance(value, Symbolic | list | tuple | fx.Node):
        return None
    return (type(value), value)
