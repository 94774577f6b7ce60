"""What the schema of an ATen op says of a graph node: its arguments by name, what it aliases, what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.graph.islands import Island
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt, same_size
from lampwork.literals import literal_text
from lampwork.records import record
from lampwork.standard import functools, operator

MISSING: Any = object()
"""The default of an argument that has none."""


@record
class Parameter:
    """One argument of an op. `accepts` is "tensor", "number", "text" or "other"; `optional`: it takes None too."""

    name: str
    default: Any
    keyword_only: bool
    accepts: str
    optional: bool


@record
class Signature:
    """`aliased`: the number of the argument that the results are views of, -1 where the results are new."""

    parameters: tuple[Parameter, ...]
    aliased: int
    mutates: bool
    random: bool

    def position(self, name: str) -> int:
        for i, parameter in enumerate(self.parameters):
            if parameter.name == name:
                return i
        return -1


_GETITEM = Signature(
    (Parameter("self", MISSING, False, "other", False), Parameter("index", MISSING, False, "other", False)),
    aliased=-1,
    mutates=False,
    random=False,
)


_ISLAND = Signature((), aliased=-1, mutates=False, random=False)


def schema_of(overload: Any) -> Any:
    """torch's FunctionSchema of an overload."""
    return overload._schema


def _accepts(type_text: str) -> str:
    if type_text in ("Tensor", "Optional[Tensor]"):
        return "tensor"
    if type_text in ("number", "float", "int", "bool", "Optional[number]", "Optional[float]"):
        return "number"
    return "text" if type_text in ("str", "Optional[str]") else "other"


@functools.lru_cache(maxsize=4096)
def signature(target: Any) -> Signature:
    """The signature of a node's target: an OpOverload or operator.getitem."""
    if target is operator.getitem:
        return _GETITEM
    if isinstance(target, Island):
        return _ISLAND
    overload = cast(OpOverload, target)
    declared = schema_of(overload)
    parameters: list[Parameter] = []
    aliased = -1
    mutates = False
    returns_alias = any(r.alias_info is not None for r in declared.returns)
    for i, argument in enumerate(declared.arguments):
        text = str(argument.type)
        default: Any = argument.default_value if argument.has_default_value() else MISSING
        info = argument.alias_info
        if info is not None:
            mutates = mutates or bool(info.is_write)
            if returns_alias and aliased < 0:
                aliased = i
        parameters.append(
            Parameter(
                argument.name, default, argument.kwarg_only, _accepts(text), text.startswith("Optional[")
            )
        )
    random = torch.Tag.nondeterministic_seeded in overload.tags
    return Signature(tuple(parameters), aliased, mutates, random)


def bind(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """One value per parameter, defaults filled in; None if the arguments do not fit the signature."""
    parameters = signature(target).parameters
    if len(args) > len(parameters):
        return None
    values: list[Any] = list(args)
    used = 0
    for parameter in parameters[len(args) :]:
        if parameter.name in kwargs:
            values.append(kwargs[parameter.name])
            used += 1
        elif parameter.default is MISSING:
            return None
        else:
            values.append(parameter.default)
    return tuple(values) if used == len(kwargs) else None


def bound_args(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a call_function node, one per parameter of its schema."""
    values = bind(node.target, node.args, node.kwargs)
    return () if values is None else values


def unbind(target: Any, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The shortest (args, kwargs) that bind to `values`: trailing defaults are left out."""
    parameters = signature(target).parameters
    positional = [p for p in parameters if not p.keyword_only]
    count = len(positional)
    while count and same_literal(values[count - 1], positional[count - 1].default):
        count -= 1
    kwargs = {
        p.name: v
        for p, v in zip(parameters, values, strict=True)
        if p.keyword_only and not same_literal(v, p.default)
    }
    return tuple(values[:count]), kwargs


def same_literal(a: Any, b: Any) -> bool:
    """Equal and of the same kind: 1, 1.0 and True differ, as do 0.0 and -0.0; lists equal tuples; nan equals nan of
    the same bits."""
    if a is b:
        return True
    if isinstance(a, fx.Node) or isinstance(b, fx.Node):
        return False
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        left, right = cast("Sequence[Any]", a), cast("Sequence[Any]", b)
        return len(left) == len(right) and all(same_literal(x, y) for x, y in zip(left, right, strict=True))
    if isinstance(a, float):
        return isinstance(b, float) and literal_text(a) == literal_text(b)
    if isinstance(a, SymbolicInt) and isinstance(b, SymbolicInt):
        return same_size(cast(int, a), cast(int, b))
    return type(a) is type(b) and bool(a == b)


@functools.lru_cache(maxsize=4096)
def packet_name(target: Any) -> str:
    """ "add" for aten.add.Tensor, "mkldnn.linear" outside of aten, "getitem" for operator.getitem."""
    if target is operator.getitem:
        return "getitem"
    namespace, _, name = str(schema_of(target).name).partition("::")
    return name if namespace == "aten" else f"{namespace}.{name}"


@functools.lru_cache(maxsize=1024)
def overloads(packet: OpOverloadPacket) -> tuple[OpOverload, ...]:
    """The overloads of a packet that take and return tensors and write to none of them."""
    found: list[OpOverload] = []
    for name in packet.overloads():
        if name.endswith("out"):
            continue
        overload = cast(OpOverload, getattr(packet, name))
        declared = schema_of(overload)
        if not declared.is_mutable and any("Tensor" in str(r.type) for r in declared.returns):
            found.append(overload)
    return tuple(found)


def is_pinned(node: fx.Node) -> bool:
    """Random or with an effect: kept once, in its place among its like."""
    if node.op != "call_function":
        return True
    return bool(node.meta.get("random") or node.meta.get("effect"))


def spec_of(value: Any) -> TensorSpec | None:
    """The spec of a node with one tensor result, else None."""
    if not isinstance(value, fx.Node):
        return None
    spec = value.meta.get("val")
    return spec if isinstance(spec, TensorSpec) else None
