"""Matching a term against a node of a graph."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.rewrite import schema
from lampwork.rewrite.term import Call, Lit, Term, Var
from lampwork.verdict import No, Verdict, Yes

COMMUTATIVE = frozenset(
    {
        "add",
        "mul",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "logical_and",
        "logical_or",
        "logical_xor",
    }
)

_FILLED = {
    torch.ops.aten.full.default: 1,
    torch.ops.aten.full_like.default: 1,
    torch.ops.aten.scalar_tensor.default: 0,
}
_ZEROS = (torch.ops.aten.zeros.default, torch.ops.aten.zeros_like.default)
_ONES = (torch.ops.aten.ones.default, torch.ops.aten.ones_like.default)


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern was found. `values`: what each variable stands for (a node, or a plain value);
    `nodes`: all nodes the pattern covers, the root first."""

    root: fx.Node
    values: dict[str, Any]
    nodes: tuple[fx.Node, ...]

    @property
    def roots(self) -> tuple[fx.Node, ...]:
        """One node for each output of the pattern."""
        return (self.root,)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def spec(self, name: str) -> TensorSpec:
        """The spec of the tensor that the variable `name` stands for."""
        return cast(TensorSpec, self.values[name].meta["val"])

    def only_use(self) -> Verdict:
        """Yes if nothing outside the match reads an inner node, so that the match can be replaced without repeating
        work."""
        inside = set(self.nodes)
        for node in self.nodes[1:]:
            for user in node.users:
                if user not in inside:
                    return No(f"{node.name} is also read by {user.name}")
        return Yes()


def fill_value(node: fx.Node) -> float | int | bool | None:
    """The number that a node made from literals fills its tensor with, None for all other nodes."""
    if node.op != "call_function":
        return None
    spec = schema.spec_of(node)
    if spec is None:
        return None
    if node.target in _ZEROS:
        return _converted(0, spec.dtype)
    if node.target in _ONES:
        return _converted(1, spec.dtype)
    position = _FILLED.get(cast(Any, node.target))
    if position is None or len(node.args) <= position:
        return None
    value = node.args[position]
    return _converted(value, spec.dtype) if isinstance(value, int | float) else None


def _converted(value: float | int | bool, dtype: torch.dtype) -> float | int | bool | None:
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_complex:
        return None
    if dtype.is_floating_point:
        # Rounded to the dtype: full([], 0.1, dtype=bfloat16) is not 0.1.
        return float(torch.tensor(value, dtype=dtype).item()) if isinstance(value, float) else float(value)
    return int(value)


def literal_matches(literal: Any, value: Any) -> bool:
    """Whether `value` (an argument of a node) is the literal of a pattern. Numbers equal across int and float, but not
    bool; 0 and -0.0 differ; a nan equals a nan; a node equals the number it is filled with."""
    if isinstance(value, fx.Node):
        filled = fill_value(value)
        return filled is not None and literal_matches(literal, filled)
    if isinstance(literal, bool) or isinstance(value, bool):
        return literal is value
    if isinstance(literal, int | float) and isinstance(value, int | float):
        if literal != literal:
            return value != value
        return literal == value and math.copysign(1.0, literal) == math.copysign(1.0, value)
    return schema.same_literal(literal, value)


def is_constant(value: Any) -> bool:
    """A node that depends on bound tensors and literals only: a bound placeholder or one marked as constant."""
    if not isinstance(value, fx.Node):
        return False
    if value.op == "placeholder":
        return bool(value.meta.get("bound"))
    return bool(value.meta.get("constant"))


def kind_matches(kind: str, value: Any) -> bool:
    """Whether an argument of a node is of a variable's kind (see term.Var)."""
    if kind == "any":
        return True
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    spec = schema.spec_of(value)
    if spec is None:
        return False
    match kind:
        case "int":
            return not (spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype is torch.bool)
        case "float":
            return spec.dtype.is_floating_point
        case "bool":
            return spec.dtype is torch.bool
        case "const":
            return is_constant(value)
        case _:
            return True


_Found = tuple[dict[str, Any], tuple[fx.Node, ...]]


def solutions(term: Any, value: Any, found: _Found) -> Iterator[_Found]:
    """All ways in which `value` (a node or an argument) can be `term`, given what the variables stand for so far."""
    if term is Ellipsis:
        yield found
    elif isinstance(term, Var):
        values, nodes = found
        if term.name in values:
            known = values[term.name]
            if known is value or (not isinstance(known, fx.Node) and schema.same_literal(known, value)):
                yield found
        elif kind_matches(term.kind, value):
            yield {**values, term.name: value}, nodes
    elif isinstance(term, Call):
        yield from _call_solutions(term, value, found)
    elif isinstance(term, list | tuple):
        terms = cast("Sequence[Any]", term)
        if isinstance(value, list | tuple) and len(cast("Sequence[Any]", value)) == len(terms):
            yield from _all_solutions(terms, cast("Sequence[Any]", value), found)
    elif literal_matches(term.value if isinstance(term, Lit) else term, value):
        yield found


def _call_solutions(term: Call, value: Any, found: _Found) -> Iterator[_Found]:
    if not isinstance(value, fx.Node) or value.op != "call_function" or schema.is_pinned(value):
        return
    wanted = term.values.get(cast(Any, value.target))
    if wanted is None:
        return
    actual = value.args if value.target is operator.getitem else schema.bound_args(value)
    if len(actual) != len(wanted):
        return
    inner = (found[0], (*found[1], value))
    yield from _all_solutions(wanted, actual, inner)
    if term.name in COMMUTATIVE and (len(actual) == 2 or schema.same_literal(actual[2], 1)):
        yield from _all_solutions(wanted, (actual[1], actual[0], *actual[2:]), inner)


def _all_solutions(terms: Sequence[Any], values: Sequence[Any], found: _Found) -> Iterator[_Found]:
    if not terms:
        yield found
        return
    for first in solutions(terms[0], values[0], found):
        yield from _all_solutions(terms[1:], values[1:], first)


def matches(term: Term, node: fx.Node) -> Iterator[Match]:
    """The ways in which the pattern `term` matches at `node`."""
    for values, nodes in solutions(term, node, ({}, ())):
        yield Match(node, values, nodes)


def why_not(term: Any, value: Any) -> Verdict:
    """Yes, or the first thing that keeps `value` from being `term` (operands in the order written)."""
    if next(solutions(term, value, ({}, ())), None) is not None:
        return Yes()
    if isinstance(term, Call):
        if not isinstance(value, fx.Node) or value.target not in term.values:
            return No(f"expected {term.name}, got {_describe(value)}")
        if schema.is_pinned(value):
            return No(f"{value.name} is random or has an effect")
        parameters = schema.signature(value.target).parameters
        for part, actual, parameter in zip(
            term.values[value.target], schema.bound_args(value), parameters, strict=False
        ):
            verdict = why_not(part, actual)
            if isinstance(verdict, No):
                return No(f"argument {parameter.name!r} of {value.name}: {verdict.reason}")
        return No(f"one variable would stand for different arguments of {value.name}")
    if isinstance(term, Var):
        return No(f"expected {term.kind} for {term.name}, got {_describe(value)}")
    return No(f"expected {getattr(term, 'value', term)!r}, got {_describe(value)}")


def _describe(value: Any) -> str:
    if isinstance(value, fx.Node):
        name = schema.packet_name(value.target) if value.op == "call_function" else value.op
        return f"{name} ({value.meta.get('val')})"
    return repr(value)
