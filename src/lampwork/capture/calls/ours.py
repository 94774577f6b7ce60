"""What of Lampwork's own Python may be part of a region: the layers and models that it makes, which are interpreted as
those of any library are. All else of it works on the process (options, counters, reports, files) or on the compiler
that is at work, so a call of it breaks the graph, without being named here."""

from __future__ import annotations

import types
from typing import Any

import torch

from lampwork.capture.calls.builtin_calls import FunctionContext
from lampwork.capture.calls.labels import Label
from lampwork.capture.calls.modules import call_with_hooks
from lampwork.capture.model.values import Generator, StandsFor
from lampwork.capture.semantics.protocols import differs
from lampwork.capture.semantics.repr_proxy import ReprProxy
from lampwork.capture.semantics.sequences import ComparisonKey, Ordered
from lampwork.graph.tracetensor import TraceTensor

_PACKAGE = "lampwork"
# What computes on tensors only: models and programs to measure and test with, and what layers call.
_COMPUTING = (
    "lampwork.approximation.int8_numbers",
    "lampwork.bench.",
    "lampwork.study.architectures.",
    "lampwork.testing.programs",
)

# What capture has the interpreter run in the place of native code and of torch's.
_INTERPRETED = frozenset({call_with_hooks, differs})
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
# What stands for the program's own objects while it is captured. Its methods come back into the interpreter themselves.
_STAND_INS = (
    TraceTensor, ComparisonKey, FunctionContext, Generator, Label, Ordered, ReprProxy, StandsFor,
)  # fmt: skip


def is_ours(home: str | None) -> bool:
    """Whether a module of this name is Lampwork's."""
    return type(home) is str and home.partition(".")[0] == _PACKAGE


def is_for_eager(function: types.FunctionType, args: list[Any]) -> bool:
    """Whether a call of a Python function is one of Lampwork that no region may hold."""
    home = function.__module__
    if not is_ours(home) or _computes(home) or function in _INTERPRETED or is_of_stand_in(function, args):
        return False
    if function.__name__ in _COMPREHENSIONS:  # a part of what is interpreted: nobody else can call it
        return False
    return not (args and _is_method_of_layer(function, args[0]))


def is_of_stand_in(function: types.FunctionType, args: list[Any]) -> bool:
    """Whether a function is called as a method of what stands for an object of the program. It runs as it is."""
    if not args:
        return False
    kind = type(args[0])
    return function.__module__ == kind.__module__ and issubclass(kind, _STAND_INS)


def is_made_by_eager(cls: type) -> bool:
    """Whether a class is one of Lampwork whose instances no region may make."""
    return is_ours(cls.__module__) and not _computes(cls.__module__) and not issubclass(cls, torch.nn.Module)


def _computes(home: str) -> bool:
    return home.startswith(_COMPUTING)


def _is_method_of_layer(function: types.FunctionType, receiver: Any) -> bool:
    """Whether a function is a method of the receiver's class, which is one of modules. What such a method reads, the
    weights and options of a layer, may be replaced, and is guarded as any module's."""
    kind = type(receiver)
    owner = function.__qualname__.rpartition(".")[0]
    return issubclass(kind, torch.nn.Module) and any(
        (base.__module__, base.__qualname__) == (function.__module__, owner) for base in kind.__mro__
    )
