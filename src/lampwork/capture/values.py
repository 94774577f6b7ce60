"""The few things that are not ordinary Python objects on the interpreter's stack."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lampwork.capture.region import Source

if TYPE_CHECKING:
    from lampwork.capture.frame import Frame
    from lampwork.capture.interpreter import Interpreter


class Null:
    """What PUSH_NULL pushes. One instance, `NULL`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<NULL>"


NULL = Null()


class Signal(enum.Enum):
    """Why a frame stopped running; its value is in `frame.value`."""

    RETURN = 1
    YIELD = 2
    STOPPED = 3


@dataclass(slots=True, eq=False)
class Lazy:
    """An argument of the call that nothing has looked into yet: no guard is needed while it is only passed around."""

    value: Any
    source: Source
    source_name: str


@dataclass(slots=True, eq=False)
class Callback:
    """A Python function as native code sees it: calling it comes back into the interpreter."""

    interpreter: Interpreter
    function: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.interpreter.call(self.function, list(args), kwargs)


class Generator:
    """The generator object of an inlined generator function: a real iterator that runs an interpreted frame."""

    __slots__ = ("finished", "frame", "interpreter", "started")

    def __init__(self, interpreter: Interpreter, frame: Frame) -> None:
        self.interpreter = interpreter
        self.frame = frame
        self.started = False
        self.finished = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if self.finished:
            raise StopIteration
        # The first value lands under the POP_TOP that follows RETURN_GENERATOR; it must be None, as in Python.
        if not self.started and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        self.started = True
        self.frame.stack.append(value)
        return self._resume()

    def throw(self, error: Any, value: BaseException | None = None, trace: Any = None) -> Any:
        """generator.throw, also in its old form of type, value and traceback."""
        if value is not None:
            error = value
        elif isinstance(error, type):
            error = error()
        if self.finished:
            raise error
        if not self.started:
            self.finished = True
            raise error
        self.frame.pending = error
        return self._resume()

    def close(self) -> None:
        if self.finished or not self.started:
            self.finished = True
            return
        try:
            self.throw(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def _resume(self) -> Any:
        finished = True
        try:
            signal = self.interpreter.run(self.frame)
            finished = signal is Signal.RETURN
        finally:
            self.finished = finished
        if finished:
            raise StopIteration(self.frame.value)
        return self.frame.value


# Immutable values whose meaning is their value: guarded by `equals`, or by `is` where there is one of each.
CONSTANTS: frozenset[type] = frozenset(
    {
        int,
        float,
        bool,
        complex,
        str,
        bytes,
        type(None),
        type(Ellipsis),
        type(NotImplemented),
        range,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.Size,
        torch.finfo,
        torch.iinfo,
    }
)

# Objects that are themselves, wherever they come from: guarded by `is`, then known.
IDENTITIES: tuple[type, ...] = (
    torch.nn.Module,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CodeType,
    type,
    enum.Enum,
)


def is_constant(value: Any) -> bool:
    return type(value) in CONSTANTS or isinstance(value, enum.Enum)


def code_of(function: Callable[..., Any]) -> types.CodeType:
    """The code object of a Python function."""
    return function.__code__  # type: ignore[attr-defined]
