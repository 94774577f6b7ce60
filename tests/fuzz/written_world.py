"""What random programs that write state and read it find defined: kinds of objects to write to, and helpers.

Executed anew for each side of each program.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import operator
import sys
import threading
import types
import typing
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import Buffer, Parameter

import lampwork

OTHER = types.ModuleType("other")
LEVEL = 1
CONTEXT: contextvars.ContextVar[Any] = contextvars.ContextVar("CONTEXT", default=0)


class Plain:
    v: Any = 1

    def __init__(self, w: Any = 2) -> None:
        self.w = w

    def get(self, name: str = "v") -> Any:
        return getattr(self, name, 0)

    def put(self, value: Any, name: str = "v") -> Any:
        setattr(self, name, value)
        return value

    def bump(self) -> Any:
        self.w = num(self.w) + 1
        return self.w


class Sub(Plain):
    w: Any = 5

    def put(self, value: Any, name: str = "v") -> Any:
        return super().put(value, name)

    @property
    def total(self) -> Any:
        return num(self.v) + num(self.w)


class Slotted:
    __slots__ = ("u", "v", "w")

    get, put, bump = Plain.get, Plain.put, Plain.bump

    def __init__(self) -> None:
        self.v, self.w = 1, 2


class Mixed(Slotted):
    """Slots and a dict."""


class Propped(Plain):
    @property
    def v(self) -> Any:
        return self.held

    @v.setter
    def v(self, value: Any) -> None:
        self.held = value
        self.w = num(self.w) + 1

    @v.deleter
    def v(self) -> None:
        del self.held

    held: Any = 7


class Kept:
    """A data descriptor that keeps its values in the instance, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return self if obj is None else obj.__dict__.get(self.name, self.count)

    def __set__(self, obj: Any, value: Any) -> None:
        self.count += 1
        obj.__dict__[self.name] = value

    def __delete__(self, obj: Any) -> None:
        del obj.__dict__[self.name]


class Described(Plain):
    v = Kept()


class Fallback(Plain):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__dict__.get("w", 3)


class Noting(Plain):
    """Its `__setattr__` and `__delattr__` note what they do."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__["noted"] = self.__dict__.get("noted", 0) + 1

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        object.__setattr__(self, "u", "gone")


class Asking(Plain):
    """Its `__getattribute__` looks into the `__dict__` first."""

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        return own[name] if name in own else object.__getattribute__(self, name)


class Own(dict):  # type: ignore[type-arg]
    """A dict with attributes, which may be its items."""

    v: Any = 1
    get_, put, bump = Plain.get, Plain.put, Plain.bump


class Row(list):  # type: ignore[type-arg]
    v: Any = 1
    get, put, bump = Plain.get, Plain.put, Plain.bump


class Missing(dict):  # type: ignore[type-arg]
    def __missing__(self, key: Any) -> Any:
        self[key] = len(self)
        return self[key]


class Local(threading.local):
    v: Any = 1
    w: Any = 2


class Place(types.ModuleType):
    v: Any = 1


@dataclasses.dataclass
class Data:
    v: Any = 1
    w: Any = 2
    u: Any = dataclasses.field(default_factory=list)

    get, put, bump = Plain.get, Plain.put, Plain.bump


@dataclasses.dataclass(slots=True)
class Tight:
    v: Any = 1
    w: Any = 2
    u: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: Any = 1
    w: Any = 2


class Trio(typing.NamedTuple):
    v: Any = 1
    w: Any = 2
    u: Any = 3


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Problem(Exception):
    v: Any = 1


class Meta(type):
    v: Any = 4

    @property
    def p(cls) -> Any:
        return cls.held

    @p.setter
    def p(cls, value: Any) -> None:
        cls.held = value

    def get(cls) -> Any:
        return cls.v


class Base(metaclass=Meta):
    held: Any = 1
    w: Any = 2

    def read(self) -> Any:
        return num(self.w) + 1

    @classmethod
    def put(cls, value: Any) -> None:
        cls.w = value

    @staticmethod
    def fixed() -> int:
        return 3


class Derived(Base):
    def read(self) -> Any:
        return num(super().read()) * 2


class Scale(nn.Module):
    """Numbers stay whole, so that no rounding is to be compared."""

    def __init__(self, n: int = 2) -> None:
        super().__init__()
        self.weight = Parameter(torch.full((2, 2), float(n)), requires_grad=False)
        self.register_buffer("b", torch.ones(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.b


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = Scale(1), Scale(3)
        self.register_buffer("b", torch.ones(2, 2))
        self.v: Any = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Scale(1), Scale(2)])
        self.chain = nn.Sequential(Scale(1), nn.ReLU())
        self.named = nn.ModuleDict({"a": Scale(1), "b": Scale(2)})
        self.params = nn.ParameterList([_parameter(1), _parameter(2)])
        self.table = nn.ParameterDict({"a": _parameter(1)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        for parameter in self.params:
            x = x + parameter
        return self.chain(x)


def _parameter(n: int) -> Parameter:
    return Parameter(torch.full((2, 2), float(n)), requires_grad=False)


def num(value: Any) -> Any:
    """A number or tensor of whatever a place holds."""
    if isinstance(value, (bool, int, float, torch.Tensor)):
        return value
    if isinstance(value, (str, list, tuple, dict, set)):
        return len(value)
    return 6 if value is None else 9


def small(value: Any) -> int:
    """A small number of whatever a place holds, that no tensor decides."""
    return int(num(value)) % 4 if not isinstance(value, torch.Tensor) else value.dim()


def function(x: Any, k: Any = 1, *, n: Any = 2) -> Any:
    return x * small(k) + small(n)


def other_function(x: Any, k: Any = 2, *, n: Any = 1) -> Any:
    return x + small(k) - small(n)


def counter(start: Any) -> Any:
    """A closure that counts, one that says how far, and one that forgets."""
    held = start

    def count(by: Any = 1) -> Any:
        nonlocal held
        held = num(held) + by
        return held

    def tell() -> Any:
        return held

    def forget() -> None:
        nonlocal held
        del held

    return count, tell, forget


def stepping(obj: Any, n: int = 4) -> Any:
    """A generator that reads and writes state of an object from step to step."""
    for i in range(n):
        try:
            got = yield getattr(obj, "v", 0)
            obj.w = i if got is None else got
        except KeyError:
            obj.v = "thrown"
    return "end"


@contextlib.contextmanager
def put_back(obj: Any, name: str, value: Any) -> Any:
    """An attribute is another within."""
    before = getattr(obj, name, None)
    setattr(obj, name, value)
    try:
        yield before
    finally:
        setattr(obj, name, before)


def twice(module: Any, args: Any, result: Any) -> Any:
    return result * 2


def plus(module: Any, args: Any) -> Any:
    return (args[0] + 1,)


def noting(module: Any, args: Any, result: Any) -> None:
    module.calls = getattr(module, "calls", 0) + 1


@lampwork.disable
def apart(value: Any) -> Any:
    """Not captured: a graph break."""
    return value


def outcome(thunk: Any) -> Any:
    """What a call gives, or how it fails."""
    try:
        return thunk()
    except Exception as error:  # noqa: BLE001  (told to the caller)
        return (type(error).__name__, str(error))


__all__ = [
    "Buffer",
    "collections",
    "copy",
    "functools",
    "itertools",
    "operator",
    "sys",
    "torch_module",
    "weakref",
]
