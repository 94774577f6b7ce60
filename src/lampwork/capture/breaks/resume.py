"""Resume functions: the rest of a frame after a graph break, as a function of what is alive there.

Capture goes on in the original's own bytecode, at the point: a `Resume` sets up the frame. So however often a loop
breaks, there is one resume function for each point in the loop. Where the rest runs in plain Python, code is made that
puts the stack back and goes on as the original does.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.breaks.assemble import Point, SlotKind, free_names, resume_code
from lampwork.capture.model.frame import Decoded, Frame
from lampwork.capture.model.values import LASTI, NULL, Previous, ResumeCache
from lampwork.capture.model.within import OUTSIDE, Within

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter


class Resume:
    """The rest of `function` from `point` on. Called, it runs in plain Python; `frame` is how capture starts.

    `starts`: it is the whole of a function that a region made, called as a function of its own. `within`: the module
    whose `forward` runs there.
    """

    def __init__(
        self,
        function: types.FunctionType,
        decoded: Decoded,
        point: Point,
        resume_cache: ResumeCache,
        *,
        starts: bool = False,
        within: Within = OUTSIDE,
    ) -> None:
        self.function = function
        self.decoded = decoded
        self.point = point
        self.resume_cache = resume_cache
        self.starts = starts
        self.within = within
        self._rewrite: Callable[[types.CodeType], types.CodeType] | None = None
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__ = function.__module__
        self._made: types.FunctionType | None = None

    @property
    def __code__(self) -> types.CodeType:
        return self._plain().__code__

    def __call__(self, *args: Any) -> Any:
        function, given = self.plain(args)
        return function(*given)

    def plain(self, args: tuple[Any, ...]) -> tuple[types.FunctionType, tuple[Any, ...]]:
        """The Python function that a call runs, and the arguments that it takes."""
        function = self._plain()
        held = [name for name in self.point.cells if name in function.__code__.co_freevars]
        if not held:
            return function, args
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        positions = [self.point.arguments.index(name) for name in held]
        cells.update(zip(held, (args[i] for i in positions), strict=True))
        closure = tuple(cells[name] for name in free_names(self.decoded, self.point))
        bound = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, closure)
        return bound, tuple(value for i, value in enumerate(args) if i not in positions)

    def rewrite(self, change: Callable[[types.CodeType], types.CodeType]) -> None:
        """Run in plain Python as `change(code)` from now on."""
        self._rewrite, self._made = change, None

    def _plain(self) -> types.FunctionType:
        """The rest as a Python function; its cells are the original's, and empty ones for those of the point."""
        if self._made is None:
            function, code = self.function, resume_code(self.decoded, self.point)
            if self._rewrite is not None:
                code = self._rewrite(code)
            known = dict(zip(self.decoded.code.co_freevars, function.__closure__ or (), strict=False))
            closure = tuple(known.get(name) or types.CellType() for name in code.co_freevars)
            made = types.FunctionType(code, function.__globals__, function.__name__, None, closure)
            made.__qualname__, made.__module__ = function.__qualname__, function.__module__
            self._made = made
        return self._made

    def frame(self, interp: Interpreter, values: list[Any]) -> Frame:
        """The frame of a capture, about to run the instruction at the point; `values` are the unread arguments."""
        point = self.point
        given = iter(values)
        frame = Frame(self.decoded, self.function, {}, self.function.__closure__ or ())
        for name in point.locals:
            frame.locals[name] = next(given)
        for name in point.cells:
            frame.cells[name] = interp.force(next(given))
        for kind in point.slots:
            if kind == "null":
                frame.stack.append(NULL)
            elif kind == "lasti":
                frame.stack.append(LASTI)
            elif kind == "value":
                frame.stack.append(next(given))
            else:
                frame.stack.append(Previous(frame.handled))
                frame.handled = interp.force(next(given))
        frame.ip = point.index
        return frame


def slot_kind(value: Any) -> SlotKind:
    """What kind of slot a value on the interpreter's stack takes."""
    if value is NULL:
        return "null"
    if value is LASTI:
        return "lasti"
    return "previous" if type(value) is Previous else "value"


def slot_arguments(stack: list[Any], handled: BaseException | None) -> list[Any]:
    """The arguments for the slots of a stack: its values, and for each saved exception the one handled from there
    up."""
    found: list[Any] = []
    above: BaseException | None = handled
    for value in reversed(stack):
        kind = slot_kind(value)
        if kind == "previous":
            found.append(above)
            above = cast(Previous, value).error
        elif kind == "value":
            found.append(value)
    return found[::-1]


class Pending(tuple[Any, ...]):
    """What a resume function returns at a graph break instead of going on itself: a continuation and its arguments.

    So the stack does not grow with each iteration of a loop that breaks."""

    __slots__ = ()


def drive(pending: type[Pending], continuation: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
    """Run a continuation, then the resume function that it names, then the continuation that this one ends in, and so
    on to the result. The runtime has the same without a Python frame of its own."""
    call = continuation(*args)
    while True:
        result = call[0](*call[1:])
        if type(result) is not pending:
            return result
        call = result[0](*result[1:])


_OF_PENDING = frozenset({"wait", "trigger_wait", "elem", "completed"})


def after_waiting(resume: Resume, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments with plain tensors for those that a collective may still be writing, as what broke the graph gives
    them (`AsyncCollectiveTensor`); None where there is none, or the function asks for what only such tensors have."""
    if not any(type(arg).__name__ == "AsyncCollectiveTensor" for arg in args):
        return None
    if not _OF_PENDING.isdisjoint(resume.function.__code__.co_names):
        return None
    wait = torch.ops._c10d_functional.wait_tensor.default
    return tuple(wait(arg) if type(arg).__name__ == "AsyncCollectiveTensor" else arg for arg in args)
