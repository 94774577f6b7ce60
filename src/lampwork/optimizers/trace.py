"""Which operators a rule runs, without running them.

trace = Trace()
param, grad = trace.operand(), trace.operand()
param.mul_(1 - lr * decay).add_(grad, alpha=-lr)
trace.calls     # (("mul_", ("%0", NUMBER), ()), ("add_", ("%0", "%1"), (("alpha", NUMBER),)))
trace.numbers   # [1 - lr * decay, -lr]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lampwork.optimizers.tape import Number
from lampwork.records import record

NUMBER = "number"
"""Stands for a float in a call: its value is one of the trace's numbers, in the order of the calls."""

POINTWISE = frozenset(
    [
        "abs",
        "add",
        "addcdiv",
        "addcmul",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "copy",
        "div",
        "exp",
        "lerp",
        "log",
        "maximum",
        "minimum",
        "mul",
        "neg",
        "pow",
        "reciprocal",
        "rsqrt",
        "sigmoid",
        "sign",
        "sqrt",
        "square",
        "sub",
        "tanh",
        "zero",
        "fill",
        "true_divide",
        "multiply",
        "subtract",
    ]
)
"""The operators that a trace knows, as methods, as methods that write in place, and as functions of torch."""

CPU = torch.device("cpu")

Call = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""A method of a tensor, or a function where it begins with "torch."; positional and keyword arguments: names of
operands, NUMBER, or numbers and None as they are."""


class Untraceable(Exception):
    """A rule does what no operand can follow; the text says what."""


@record
class Recipe:
    """What a kernel depends on besides dtypes.

    results: the operands that it leaves in empty places of its columns, by column.
    scalars: how many of the tensors that it is given are scalars of the trace: the last ones.
    """

    calls: tuple[Call, ...]
    results: tuple[tuple[int, str], ...] = ()
    scalars: int = 0


def lies_on(device: torch.device, tensor: Tensor) -> bool:
    """Whether a kernel of a device, other than the CPU, reads a tensor where it lies; else it is on the CPU.

    Raises:
        Untraceable: it is on another device.
    """
    if tensor.device.type == "cpu":
        return False
    if tensor.device != device:
        raise Untraceable("an operator is given a tensor of another device")
    return True


class Trace:
    """The calls that operands have seen.

    scalars: tensors of one element on the device, which a kernel reads there: "$0", "$1", ... stand for them.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.calls: list[Call] = []
        self.numbers: list[float | Number] = []
        self.scalars: list[Tensor] = []
        self._count = 0

    def operand(self) -> Operand:
        """A new operand; those that a rule is given are made first."""
        return Operand(self, self._name())

    def count(self) -> Operand:
        """An operand that stands for a step count on the device."""
        return Advanced(self, self._name())

    def _name(self) -> str:
        self._count += 1
        return f"%{self._count - 1}"

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note a call. Gives what it would: the operand written to, or a new one."""
        out = kwargs.get("out")
        coded = tuple([self._coded(arg) for arg in args])
        keywords = tuple([(key, self._coded(arg)) for key, arg in kwargs.items()]) if kwargs else ()
        self.calls.append((name, coded, keywords))
        if out is not None:
            return out
        return args[0] if name.endswith("_") else self.operand()

    def _coded(self, arg: Any) -> Any:
        kind = type(arg)
        if kind is Operand:
            return arg.name
        if kind is float or kind is Number:
            self.numbers.append(arg)
            return NUMBER
        if kind is int or kind is bool or arg is None:
            return arg
        if isinstance(arg, Tensor) and arg.numel() == 1 and not arg.requires_grad and arg.is_floating_point():
            if lies_on(self.device, arg):
                return self._scalar(arg)
            self.numbers.append(arg.item())
            return NUMBER
        raise Untraceable(f"an operator is given {kind.__name__}")

    def _scalar(self, tensor: Tensor) -> str:
        if tensor.dim() or type(tensor) is not Tensor:
            raise Untraceable("an operator is given a tensor of another kind or shape")
        for place, known in enumerate(self.scalars):
            if known is tensor:
                return f"${place}"
        self.scalars.append(tensor)
        return f"${len(self.scalars) - 1}"


def _method(name: str) -> Callable[..., Any]:
    def method(self: Operand, *args: Any, **kwargs: Any) -> Any:
        return self.trace.call(name, (self, *args), kwargs)

    return method


class Operand:
    """Stands for a dense tensor. Whatever needs its data, shape or dtype raises Untraceable."""

    __slots__ = ("name", "trace")

    is_sparse = False
    requires_grad = False

    def __init__(self, trace: Trace, name: str) -> None:
        self.trace = trace
        self.name = name

    @property
    def device(self) -> torch.device:
        return self.trace.device

    def detach(self) -> Operand:
        return self

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"the rule reads '{name}' of a tensor")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        if func is torch.is_complex:
            return False
        if len(args) == 2 and not isinstance(args[0], Operand) and func in REFLECTED:
            return REFLECTED[func](args[1], args[0])  # a tensor, such as a learning rate, on the left
        operand = next((arg for arg in args if type(arg) is Operand), None)
        if operand is None or name not in POINTWISE or getattr(torch, name) is not func:
            raise Untraceable(f"the rule calls {name}")
        return operand.trace.call(f"torch.{name}", args, kwargs or {})


REFLECTED: dict[Any, Callable[[Any, Any], Any]] = {
    Tensor.div: lambda right, left: right.reciprocal().mul(left),
    Tensor.mul: lambda right, left: right.mul(left),
    Tensor.add: lambda right, left: right.add(left),
    Tensor.sub: lambda right, left: right.neg().add(left),
}
"""Operators of a tensor and an operand, by what calls them, given the operand first."""


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: Operand, *args: Any) -> Any:
        raise Untraceable(f"the rule needs the data of a tensor ({name})")

    return refuse


def _from_number(self: Operand, other: Any) -> Any:
    return self.neg().add(other)


def _number_to_the(self: Operand, other: Any) -> Any:
    return self.trace.call("torch.pow", (other, self), {})


def _number_by(self: Operand, other: Any) -> Any:
    return self.reciprocal().mul(other)  # as torch does it


for _name in POINTWISE:
    for _spelled in (_name, f"{_name}_"):
        if hasattr(Tensor, _spelled):
            setattr(Operand, _spelled, _method(_spelled))
for _name, _spelled in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow"}.items():
    setattr(Operand, f"__{_name}__", _method(_spelled))
    setattr(Operand, f"__i{_name}__", _method(f"{_spelled}_"))
for _name, _function in {
    "radd": _method("add"),
    "rmul": _method("mul"),
    "rsub": _from_number,
    "rtruediv": _number_by,
    "rpow": _number_to_the,
    "neg": _method("neg"),
    "abs": _method("abs"),
}.items():
    setattr(Operand, f"__{_name}__", _function)
_REFUSED = """
    bool float int complex index len iter array getitem setitem contains eq ne lt le gt ge matmul rmatmul imatmul
    floordiv rfloordiv mod rmod and or xor invert
"""
for _name in _REFUSED.split():
    setattr(Operand, f"__{_name}__", _refusal(_name))


class Advanced(Operand):
    """Stands for a step count on the device that has been advanced already: a rule's `step += 1` has nothing to do."""

    __slots__ = ()

    def __iadd__(self, other: Any) -> Operand:
        if type(other) is not int or other != 1:
            raise Untraceable("a step count is advanced by more than 1")
        return Operand(self.trace, self.name)

    def add_(self, other: Any) -> Operand:
        raise Untraceable("a step count is written to")
