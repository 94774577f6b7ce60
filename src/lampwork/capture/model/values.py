"""The few things that are not ordinary Python objects on the interpreter's stack."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lampwork.capture.model.dropped import is_seen
from lampwork.capture.model.errors import FrameRefused
from lampwork.capture.model.flow import leaves_otherwise
from lampwork.capture.model.region import Source
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter
    from lampwork.capture.model.frame import Frame


class Null:
    """What PUSH_NULL pushes. One instance, `NULL`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<NULL>"


NULL = Null()


class Lasti:
    """The offset of an instruction that raised, which a handler keeps below the exception. One instance, `LASTI`:
    nothing of the region depends on it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<offset>"


LASTI = Lasti()


@dataclass(slots=True, eq=False)
class Previous:
    """What PUSH_EXC_INFO saves: the exception that was being handled before."""

    error: BaseException | None


StandIn = Callable[[types.FunctionType], Callable[..., Any] | None]
"""Gives what is called in place of a function of torch at a graph break; None if it is the function itself."""


@dataclass(slots=True, eq=False)
class ResumeCache:
    """What a function and all its resume functions share: the compiled resume functions, by function and point, and
    the continuations, by code, globals and plan, with the code that they are of."""

    resumes: dict[Any, Callable[..., Any]] = field(default_factory=dict[Any, Callable[..., Any]])
    continuations: dict[Any, tuple[types.FunctionType, types.CodeType]] = field(
        default_factory=dict[Any, tuple[types.FunctionType, types.CodeType]]
    )


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
class Appended:
    """The `append` of an outside list that the region has not read: what it is called with is added when the region is
    done, however long the list is by then."""

    items: list[Any]


@dataclass(slots=True, eq=False)
class Callback:
    """A Python function as native code sees it: calling it comes back into the interpreter."""

    interpreter: Interpreter
    function: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.interpreter.call(self.function, list(args), kwargs)


class StandsFor:
    """What native code is given in place of an object. `is_begun`: native code has called methods of the object, and
    would call them again if it were given the object itself."""

    __slots__ = ("value",)
    is_begun = False

    def __init__(self, value: Any) -> None:
        self.value = value


class Generator:
    """The generator object of an inlined generator function: a real iterator that runs an interpreted frame. `loop`:
    the frame and the FOR_ITER that read it last."""

    __slots__ = ("finished", "frame", "interpreter", "loop", "started")

    def __init__(self, interpreter: Interpreter, frame: Frame) -> None:
        self.interpreter = interpreter
        self.loop: tuple[Frame, int] | None = None
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
        receiver = self._delegate()
        if receiver is not None:
            try:
                if not isinstance(error, GeneratorExit):
                    if hasattr(type(receiver), "throw"):
                        return self._call(receiver, "throw", error)
                elif hasattr(type(receiver), "close"):
                    self._call(receiver, "close")
            except StopIteration as stop:
                return self._after_delegate(stop)
            except Exception as raised:  # noqa: BLE001  (whatever it raises instead is thrown into this generator)
                error = raised
        self.frame.pending = error
        return self._resume()

    def is_watching(self) -> bool:
        """Whether closing it, or dropping it, runs a handler of it now."""
        return self.started and not self.finished and is_seen(self.frame, self.frame.ip - 1)

    def check_break(self, frame: Frame) -> None:
        """See to it that a generator which a graph break takes on has no handlers to run where it is dropped: what a
        region is called with lives until it ends, whatever it does. A loop of the frame that only ends with the
        generator does not drop it.

        Raises:
            FrameRefused: it has, or may come to have.
        """
        instructions = self.frame.decoded.instructions
        watches = any(i.name == "YIELD_VALUE" and is_seen(self.frame, n) for n, i in enumerate(instructions))
        if not watches or self.finished:
            return
        if (
            self.loop is None
            or self.loop[0] is not frame
            or leaves_otherwise(frame.decoded, frame.ip, self.loop[1])
        ):
            raise self.refusal()

    def refusal(self) -> FrameRefused:
        """The error of a region that must not have this generator."""
        return FrameRefused("LW121", f"a generator of {self.frame.function.__qualname__}")

    def _delegate(self) -> Any:
        """The iterator that a suspended `yield from` reads; None if the generator does not stand at one."""
        following = self.frame.decoded.instructions[self.frame.ip]
        # The two low bits of RESUME: 0 at the start of a function, 1 after yield, 2 after yield from, 3 after await.
        return self.frame.stack[-1] if following.name == "RESUME" and following.arg & 3 > 1 else None

    def _call(self, receiver: Any, name: str, *args: Any) -> Any:
        method = getattr(receiver, name)
        if type(receiver) is Generator:
            return method(*args)
        return self.interpreter.call(method, list(args), {})

    def _after_delegate(self, stop: StopIteration) -> Any:
        """Go on after a `yield from` whose iterator ended when something was thrown into it."""
        frame = self.frame
        instructions = frame.decoded.instructions
        handler = frame.decoded.excepts[frame.ip - 1]
        if handler is not None and instructions[handler.target].name == "CLEANUP_THROW":
            frame.pending = stop
        else:
            send = instructions[frame.ip + 1].arg
            frame.stack[-1] = stop.value
            frame.ip = instructions[send].arg
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
        except StopIteration as stop:
            raise RuntimeError("generator raised StopIteration") from stop
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

# Types whose operators are native and free of effects on anything but their own operand.
PLAIN: frozenset[type] = CONSTANTS | {
    TraceTensor,
    torch.SymInt,
    torch.SymFloat,
    list,
    dict,
    tuple,
    set,
    frozenset,
    slice,
}

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
