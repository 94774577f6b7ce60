"""Symbolic ints as torch's C++ knows them: the nodes of `torch.SymInt`, `SymFloat` and `SymBool`.

The protocol is the one of torch.fx.experimental.sym_node.SymNode, without sympy: results are nodes again, truth values
are asked for through `guard_bool`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from lampwork.graph.symbols import Symbolic, SymbolicFloat, SymbolicInt, is_float, map_symbols
from lampwork.loops.ir.polynomial import ZERO, Index
from lampwork.standard import math, operator


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The method that gives `function` of a node and another one, as a node."""

    def method(self: Any, other: Any) -> Any:
        return self._node(function(self._operand(), _value(other)))

    return method


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The method that gives the truth value `function` of a node and another one, as a node."""

    def method(self: Any, other: Any) -> Any:
        return self.wrap_bool(function(self._operand(), _value(other)))

    return method


class _Answers:
    """What every node answers alike. A node has `_operand()`, the number it stands for, and `_node(number)`, a node of
    another one."""

    __slots__ = ()

    def is_symbolic(self) -> bool:
        return True

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def has_hint(self) -> bool:
        return True

    add = _arithmetic(operator.add)
    sub = _arithmetic(operator.sub)
    mul = _arithmetic(operator.mul)
    mod = _arithmetic(operator.mod)
    floordiv = _arithmetic(operator.floordiv)
    truediv = int_truediv = float_truediv = _arithmetic(operator.truediv)
    pow = float_pow = _arithmetic(operator.pow)

    eq = _comparison(operator.eq)
    ne = _comparison(operator.ne)
    gt = _comparison(operator.gt)
    lt = _comparison(operator.lt)
    ge = _comparison(operator.ge)
    le = _comparison(operator.le)

    def neg(self: Any) -> Any:
        return self._node(-self._operand())

    def abs(self: Any) -> Any:
        return self._node(abs(self._operand()))

    def bool_(self: Any) -> bool:
        return bool(self._operand())

    def clone(self) -> Self:
        return self


class Node(_Answers, SymbolicInt):
    """A symbolic int, or a constant, as torch's C++ and its SymInt class know it: the node of a `torch.SymInt`.

    torch asks its nodes for results that are nodes again, and for truth values through `guard_bool`. Truth values are
    decided at once, so a node of one is a constant. What divides or takes roots gives a float, a `ScalarNode`.
    """

    __slots__ = ()

    # --- what it is ---------------------------------------------------------------------------------------------------

    def is_int(self) -> bool:
        return True

    def is_float(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> int | None:
        return self.index.as_int()

    def str(self) -> str:
        # A program that prints a size prints a number.
        return str(self.fix())

    def _graph_repr(self) -> str:
        return str(self.fix())

    def wrap_int(self, number: int) -> Node:
        return Node(self.scope, Index.const(number), number)

    def wrap_float(self, number: float) -> Any:
        return ScalarNode(number, self)

    def wrap_bool(self, number: bool) -> Any:
        return ScalarNode(number, self)

    def guard_int(self, file: str, line: int) -> int:
        return self.fix()

    def int_(self) -> int:
        return self.fix()

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def _node(self, value: Any) -> Any:
        if isinstance(value, SymbolicInt):
            return Node(value.scope, value.index, value.hint)
        return self.wrap_int(value) if type(value) is int else ScalarNode(value, self)

    def _operand(self) -> SymbolicInt:
        return self

    int_floordiv = _Answers.floordiv
    pow_by_natural = _Answers.pow
    lshift = _arithmetic(operator.lshift)
    rshift = _arithmetic(operator.rshift)
    bitwise_and = _arithmetic(operator.and_)
    bitwise_or = _arithmetic(operator.or_)
    bitwise_xor = _arithmetic(operator.xor)

    def pos(self) -> Node:
        return self

    floor = ceil = trunc = sym_int = pos

    def round(self, ndigits: int | None = None) -> Any:
        return self._node(round(self, ndigits))

    def sym_float(self) -> Any:
        return ScalarNode(SymbolicFloat.apply(self.scope, float, self), self)

    def is_integer(self) -> Any:
        return self.wrap_bool(True)

    def sym_min(self, other: Any) -> Any:
        number = _value(other)
        return self if self <= number else self._node(number)

    def sym_max(self, other: Any) -> Any:
        number = _value(other)
        return self if self >= number else self._node(number)

    def sym_sum(self, args: Sequence[Any]) -> Any:
        return self._node(sum(_value(arg) for arg in args))

    # --- layouts ------------------------------------------------------------------------------------------------------

    def is_contiguous(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        return self.wrap_bool(_is_dense(_values(sizes), _values(strides), range(len(sizes))))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        return self.wrap_bool(len(sizes) == 4 and _is_dense(_values(sizes), _values(strides), (0, 2, 3, 1)))

    def is_channels_last_contiguous_3d(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        return self.wrap_bool(
            len(sizes) == 5 and _is_dense(_values(sizes), _values(strides), (0, 2, 3, 4, 1))
        )

    is_channels_last_strides_2d = is_channels_last_contiguous_2d
    is_channels_last_strides_3d = is_channels_last_contiguous_3d

    def is_non_overlapping_and_dense(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        steps = _values(strides)
        order = sorted(range(len(steps)), key=lambda dim: -_hint(steps[dim]))
        return self.wrap_bool(_is_dense(_values(sizes), steps, order))

    def is_non_overlapping_and_dense_indicator(self, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
        return self.wrap_int(int(self.is_non_overlapping_and_dense(sizes, strides).value))


def _hint(value: Any) -> int:
    return value.hint if isinstance(value, SymbolicInt) else value


def _value(node: Any) -> Any:
    """The number behind a node."""
    if isinstance(node, Node):
        constant = node.index.as_int()
        return node if constant is None else constant
    return node.value


def _values(nodes: Sequence[Any]) -> list[Any]:
    return [_value(node) for node in nodes]


def _is_dense(sizes: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    """Whether elements lie without gaps, the dimensions of `order` from the outermost in."""
    step: Any = 1
    for dim in reversed(order):
        if sizes[dim] == 1:
            continue
        if strides[dim] != step:
            return False
        step = step * sizes[dim]
    return True


class ScalarNode(_Answers):
    """A float, symbolic or not, or a truth value among torch's symbolic numbers."""

    __slots__ = ("near", "value")

    def __init__(self, value: bool | float | SymbolicFloat, near: Node) -> None:
        self.value = value
        self.near = near

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return is_float(self.value)

    def is_bool(self) -> bool:
        return isinstance(self.value, bool)

    def is_constant(self) -> bool:
        # torch unwraps constant truth values, and only those.
        return isinstance(self.value, bool)

    @property
    def hint(self) -> Any:
        return self.value.hint if isinstance(self.value, SymbolicFloat) else self.value

    def str(self) -> str:
        return repr(self._number())

    def _graph_repr(self) -> str:
        return repr(self._number())

    def _number(self) -> bool | float:
        return self.value.fix() if isinstance(self.value, SymbolicFloat) else self.value

    def maybe_as_float(self) -> float | None:
        return self.value if isinstance(self.value, float) else None

    def maybe_as_bool(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    def guard_bool(self, file: str, line: int) -> bool:
        return bool(self.value)

    expect_true = guard_size_oblivious = guard_or_false = guard_or_true = statically_known_true = guard_bool

    def guard_float(self, file: str, line: int) -> float:
        return float(self.value)

    def wrap_int(self, number: int) -> Node:
        return self.near.wrap_int(number)

    def wrap_float(self, number: float) -> ScalarNode:
        return ScalarNode(number, self.near)

    def wrap_bool(self, number: bool) -> ScalarNode:
        return ScalarNode(number, self.near)

    def _node(self, value: Any) -> Any:
        return self.near._node(value)

    def _operand(self) -> bool | float | SymbolicFloat:
        return self.value

    def sym_not(self) -> ScalarNode:
        return ScalarNode(not self.value, self.near)

    def sym_and(self, other: Any) -> ScalarNode:
        return ScalarNode(bool(self.value) and bool(other.value), self.near)

    def sym_or(self, other: Any) -> ScalarNode:
        return ScalarNode(bool(self.value) or bool(other.value), self.near)

    and_, or_ = sym_and, sym_or

    def sym_ite(self, chosen: Any, other: Any) -> Any:
        return chosen if self.value else other

    def trunc(self) -> Any:
        return self._node(math.trunc(self._number()))

    def floor(self) -> Any:
        return self._node(math.floor(self._number()))

    def ceil(self) -> Any:
        return self._node(math.ceil(self._number()))

    def round(self, ndigits: int | None = None) -> Any:
        return self._node(round(self._number(), ndigits))

    def is_integer(self) -> ScalarNode:
        return self.wrap_bool(float(self._number()).is_integer())


# --- to torch and back ------------------------------------------------------------------------------------------------


def symint(number: SymbolicInt) -> torch.SymInt:
    """A symbolic int for torch's functions."""
    return torch.SymInt(Node(number.scope, number.index, number.hint))


def symfloat(number: SymbolicFloat) -> torch.SymFloat:
    """A symbolic float for torch's functions."""
    return torch.SymFloat(ScalarNode(number, Node(number.scope, ZERO, 0)))


def symbol(number: Symbolic) -> torch.SymInt | torch.SymFloat:
    """A symbolic number for torch's functions."""
    return symint(number) if isinstance(number, SymbolicInt) else symfloat(number)


def symints(numbers: Sequence[Any]) -> Any:
    """Sizes or strides as torch takes them: symbolic ones as torch.SymInt."""
    if all(type(number) is int for number in numbers):
        return numbers
    return tuple(symint(number) if isinstance(number, SymbolicInt) else number for number in numbers)


def from_torch(value: Any) -> Any:
    """`value` with every torch.SymInt, SymFloat and SymBool in its lists, tuples and dicts as this module's kind."""
    kind = type(value)
    if kind is torch.SymInt:
        return SymbolicInt.of(value)
    if kind is torch.SymFloat or kind is torch.SymBool:
        return value.node.value
    if kind is list:
        return [from_torch(item) for item in value]
    if kind is tuple or kind is torch.Size:
        return tuple(from_torch(item) for item in value)
    if kind is dict:
        return {key: from_torch(item) for key, item in value.items()}
    return value


def to_torch(value: Any) -> Any:
    """`value` with every symbolic int in its lists, tuples, dicts and slices as a torch.SymInt."""
    return map_symbols(value, symbol)
