"""What the region reads of classes: every look-up along an MRO goes through `Classes`, which notes its guards.

A class, its bases and what they have under a name may all be changed between calls. One version tag of CPython stands
for all of that (`tp_version_tag`), so the guards made here cost one comparison per class and call.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import ClassAttr, Known
from lampwork.capture.state.guards import GuardBuilder
from lampwork.graph.tracetensor import TraceTensor

MISSING: Any = object()

_NOBODYS = "\0"  # no name of an attribute
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: nobody can change such a class or its bases
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NATIVE = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType)


def is_immutable(cls: type) -> bool:
    """Whether neither the class nor its bases can ever change."""
    return bool(cls.__flags__ & _IMMUTABLE)


def no_attribute(obj: Any, name: str) -> AttributeError:
    """What eager raises where `obj` has nothing under the name. Native classes have names of their own there, with
    their module or without, so one that nobody has is asked for."""
    getter: Any = type.__getattribute__ if isinstance(obj, type) else object.__getattribute__
    try:
        getter(obj, _NOBODYS)
    except AttributeError as error:
        return AttributeError(str(error).replace(_NOBODYS, name))
    raise RuntimeError(f"a {type(obj).__name__} has an attribute {_NOBODYS!r}")


def is_allocated_by(base: type, kind: type) -> bool:
    """Whether `base.__new__(kind)` allocates an object of `kind` and no more: where native code of a class in between
    adds to what an object holds, Python refuses, and its own types are made by themselves."""
    if base is not kind and kind.__module__ == "builtins":
        return False
    if kind.__new__ is not base.__new__ and not isinstance(kind.__new__, types.FunctionType):
        return False
    if hasattr(kind, "__del__"):
        return False  # The one made here would run it.
    try:
        cast(Any, base).__new__(kind)
    except TypeError:
        return False
    return True


class Classes:
    """The class attributes that one capture depends on. `reached` is called with each that is found."""

    def __init__(self, guards: GuardBuilder, reached: Callable[[Any], None]) -> None:
        self._guards = guards
        self._reached = reached
        self._found: dict[tuple[type, str], tuple[Any, type]] = {}
        self._guarded: set[type] = set()

    def lookup(self, cls: type, name: str) -> tuple[Any, type]:
        """The class attribute `name` along the MRO, unbound, and the class that has it; (MISSING, cls) if none."""
        key = (cls, name)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _along_mro(cls, name)
            if not is_immutable(cls):
                self._guard(cls, name)
                self._reached(found[0])
        return found

    def method(self, cls: type, name: str) -> types.FunctionType | None:
        """The Python function that implements a dunder of a class; None if it is native or missing. Symbolic numbers
        are numbers: that theirs are Python is torch's business, as it is of tensors, unless the program replaced it.

        Raises:
            Break: LW103: the program put something else than a function in the place of a method of tensors.
        """
        if cls in _SYMBOLIC:
            return None
        if issubclass(cls, torch.Tensor):
            return self._replaced(torch.Tensor if cls is TraceTensor else cls, name)
        found, _ = self.lookup(cls, name)
        return found if isinstance(found, types.FunctionType) else None

    def _replaced(self, cls: type, name: str) -> types.FunctionType | None:
        found, _ = self.lookup(cls, name)
        if found is MISSING or found is None or isinstance(found, _NATIVE):
            return None
        if not isinstance(found, types.FunctionType):
            raise Break("LW103", f"{cls.__name__}.{name}, which is a {type(found).__name__},")
        home = found.__globals__.get("__name__")
        return None if type(home) is str and home.partition(".")[0] == "torch" else found

    def guard_bases(self, cls: type) -> None:
        """The region depends on what the class inherits from: isinstance, super, the MRO itself."""
        cls = torch.Tensor if cls is TraceTensor else cls
        if cls not in self._guarded and not is_immutable(cls):
            self._guarded.add(cls)
            self._guards.add(_source(cls), "mro", cls.__mro__, slow=True)

    def _guard(self, cls: type, name: str) -> None:
        self.guard_bases(cls)
        cls = torch.Tensor if cls is TraceTensor else cls
        found, _ = _along_mro(cls, name)
        missing = found is MISSING
        expected = ClassAttr(name, None if missing else found, missing)
        self._guards.add(_source(cls), "class_attr", expected, slow=True)


def _source(cls: type) -> Known:
    return Known(cls, cls.__qualname__)


def _along_mro(cls: type, name: str) -> tuple[Any, type]:
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found, base
    return MISSING, cls
