"""The terms patterns and replacements are made of: variables, literals and calls of ATen ops.

A term is also a stand-in for a tensor: operators, `torch.*` functions, `torch.nn.functional.*`, `torch.ops.aten.*` and
tensor methods applied to it give a `Call` of the ATen op of the same name, so that a pattern can be written as plain
PyTorch code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.errors import PassError
from lampwork.graph.spec import TensorSpec
from lampwork.rewrite import schema

Kind = Literal["tensor", "int", "float", "bool", "const", "number", "any"]
KINDS: tuple[Kind, ...] = ("tensor", "int", "float", "bool", "const", "number", "any")

# Keyword arguments of torch.nn.functional that the ATen ops do not have and that change nothing here.
_PYTHON_ONLY = ("inplace", "_stacklevel")


class Term:
    """Base of all terms."""

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Call:
        kwargs = {k: v for k, v in (kwargs or {}).items() if not (k in _PYTHON_ONLY and not v)}
        if isinstance(func, OpOverload | OpOverloadPacket):
            return call(func, *args, **kwargs)
        return call(str(func.__name__), *args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: call(name, self, *args, **kwargs)

    def __add__(self, other: Any) -> Call:
        return call("add", self, other)

    def __radd__(self, other: Any) -> Call:
        return call("add", self, other)

    def __sub__(self, other: Any) -> Call:
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> Call:
        return call("rsub", self, other)

    def __mul__(self, other: Any) -> Call:
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> Call:
        return call("mul", self, other)

    def __truediv__(self, other: Any) -> Call:
        return call("div", self, other)

    def __matmul__(self, other: Any) -> Call:
        return call("matmul", self, other)

    def __pow__(self, other: Any) -> Call:
        return call("pow", self, other)

    def __neg__(self) -> Call:
        return call("neg", self)

    def __lt__(self, other: Any) -> Call:
        return call("lt", self, other)

    def __le__(self, other: Any) -> Call:
        return call("le", self, other)

    def __gt__(self, other: Any) -> Call:
        return call("gt", self, other)

    def __ge__(self, other: Any) -> Call:
        return call("ge", self, other)

    def __and__(self, other: Any) -> Call:
        return call("bitwise_and", self, other)

    def __or__(self, other: Any) -> Call:
        return call("bitwise_or", self, other)

    def __invert__(self) -> Call:
        return call("bitwise_not", self)

    def __getitem__(self, index: int) -> Call:
        return call(operator.getitem, self, index)


@dataclass(frozen=True, slots=True, eq=False)
class Var(Term):
    """A value to be matched; used twice it must be the same value. Kinds:

    tensor  a tensor                  int, float, bool  a tensor with such a dtype
    const   a tensor that depends on bound tensors and literals only
    number  a Python number           any               whatever stands there: a list, a dtype, None, a tensor
    """

    name: str
    kind: Kind = "tensor"


@dataclass(frozen=True, slots=True, eq=False)
class Lit(Term):
    """A literal. A number equals numbers of any kind but bool, and tensors filled with it; 0 is not -0.0."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Leaf(Term):
    """In a replacement: a node of the graph."""

    node: fx.Node

    @property
    def spec(self) -> TensorSpec:
        return cast(TensorSpec, self.node.meta["val"])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Term):
    """An op applied to terms (or to lists of terms, or plain values).

    `values` has, for each overload the call may mean, one entry per parameter. An Ellipsis among them stands for
    anything.
    """

    name: str
    values: Mapping[Any, tuple[Any, ...]]

    def __hash__(self) -> int:
        return id(self)


def _packet(name: str) -> Any:
    """The op a name like "add", "add.Tensor" or "mkldnn._linear_pointwise" means."""
    parts = name.split(".")
    if hasattr(torch.ops.aten, parts[0]):
        found: Any = getattr(torch.ops.aten, parts[0])
        parts = parts[1:]
    else:
        found = getattr(torch.ops, parts[0])
        if len(parts) > 1:
            if not hasattr(found, parts[1]):
                raise PassError(f"no op is called {name!r}", fix="name an op of torch.ops.aten")
            found = getattr(found, parts[1])
        parts = parts[2:]
    for part in parts:
        found = getattr(found, part)
    if not isinstance(found, OpOverloadPacket | OpOverload):
        raise PassError(f"no op is called {name!r}", fix="name an op of torch.ops.aten")
    return found


def call(target: Any, *args: Any, **kwargs: Any) -> Call:
    """A call of an op: an overload, a packet (any of its overloads), a name, or operator.getitem.

    Raises:
        PassError: there is no such op, or none of its overloads takes these arguments.
    """
    if target is operator.getitem or target == "getitem":
        return Call("getitem", {operator.getitem: tuple(args)})
    op = _packet(target) if isinstance(target, str) else target
    candidates: tuple[Any, ...] = (op,) if isinstance(op, OpOverload) else schema.overloads(op)
    rest = bool(args) and args[-1] is Ellipsis
    values: dict[Any, tuple[Any, ...]] = {}
    for overload in candidates:
        if rest:
            missing = len(schema.signature(overload).parameters) - (len(args) - 1) - len(kwargs)
            if missing < 0:
                continue
            bound = _bind_with_rest(overload, args[:-1], kwargs)
        else:
            bound = schema.bind(overload, args, kwargs)
        if bound is not None:
            values[overload] = bound
    if not values:
        raise PassError(f"no overload of {op} takes the arguments {args} {kwargs}")
    return Call(schema.packet_name(candidates[0]), values)


def _bind_with_rest(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    parameters = schema.signature(overload).parameters
    if any(all(p.name != name for p in parameters) for name in kwargs):
        return None
    values: list[Any] = list(args)
    values.extend(kwargs.get(p.name, Ellipsis) for p in parameters[len(args) :])
    return tuple(values)
