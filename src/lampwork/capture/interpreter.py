"""The concolic interpreter: real Python objects on the stack, trace tensors in place of tensors from outside."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.calls import call as calls
from lampwork.capture.model.errors import Break, FrameRefused, forget_frames, is_of_torch
from lampwork.capture.model.frame import Frame, Handler, bind_arguments, decode
from lampwork.capture.model.region import CellContents, Known
from lampwork.capture.model.values import CONSTANTS, LASTI, Appended, Generator, ResumeCache, Signal, StandIn
from lampwork.capture.model.within import OUTSIDE, Within
from lampwork.capture.semantics import attributes
from lampwork.capture.semantics.symbolic import NumbersNeeded, is_refusal
from lampwork.capture.state.births import Births
from lampwork.capture.state.contexts import Contexts
from lampwork.capture.state.dynamic import Dynamic
from lampwork.capture.state.effects import Effects
from lampwork.capture.state.effort import CALL, Effort
from lampwork.capture.state.environment import Environment
from lampwork.capture.state.guards import GuardBuilder
from lampwork.capture.state.module_names import ModuleRoots
from lampwork.capture.state.warned import heard
from lampwork.capture.state.whereabouts import Whereabouts
from lampwork.errors import CaptureError, DataDependentError, Location, UnsupportedOpError
from lampwork.frames import has_stack
from lampwork.graph.record import Recorder

if TYPE_CHECKING:
    from lampwork.capture.breaks.resume import Resume

_MISSING = object()


@dataclass(slots=True)
class CaptureOptions:
    """What capture takes from its caller.

    `compile_function` gives the compiled version of a Python function or module that a graph break calls in the
    `forward` of a module (None: it is called as it is); `compile_resume` that of a resume function. `stand_in` gives
    what is called in place of a function of torch, if there is something. `dynamic` says which sizes and ints are left
    open (None: none). `resume_cache` keeps what is made for graph breaks; `drive` is what runs continuations (None:
    `resume.drive`). `trains_dtensors`: calls on DTensors that require grad are captured. `is_native`: Lampwork's
    own backend takes what is recorded: it computes what CUDA devices draw where it is read, and has eager make a call
    again whose data it refuses. `roots`: where the paths of
    modules begin (None: in what is captured). `within`: the module whose `forward` calls what is captured.
    """

    compile_function: Callable[[Callable[..., Any], Within], Callable[..., Any]] | None = None
    compile_resume: Callable[[Resume], Callable[..., Any]] | None = None
    dynamic: Dynamic | None = None
    resume_cache: ResumeCache = field(default_factory=ResumeCache)
    drive: Callable[..., Any] | None = None
    stand_in: StandIn | None = None
    trains_dtensors: bool = True
    is_native: bool = False
    roots: ModuleRoots | None = None
    within: Within = OUTSIDE


class Interpreter:
    """One capture in progress.

    `frames` are the active frames, root first. `stop_at`: how many instructions of the root frame to run before
    stopping (None: to its return); capture runs a region again with it, to end before a graph break. `paused`: the
    break before which the root frame stopped of its own accord. `raised` and `births`: by id, the instruction of the
    root frame at which an exception was caught or a generator made, and with `tracks_births` every object that the
    root frame had on its stack. `resumed`: the resume function that is captured, if
    it is one.
    """

    def __init__(
        self,
        recorder: Recorder,
        table: Mapping[str, Handler],
        options: CaptureOptions,
        births: Births,
        stop_at: int | None = None,
    ) -> None:
        self.recorder = recorder
        self.table = table
        self.options = options
        self.stop_at = stop_at
        self.frames: list[Frame] = []
        self.guards = GuardBuilder()
        self.environment = Environment(
            recorder, self.guards, births, options.dynamic, options.trains_dtensors
        )
        self.whereabouts = Whereabouts(self.frames, self.environment, options.roots or ModuleRoots())
        self.whereabouts.within = options.within
        recorder.scope.where = self.guards.line = self.whereabouts.line
        recorder.where = self.whereabouts.place
        self.effects = Effects(self.environment)
        self.effort = Effort()
        self.contexts = Contexts()
        self.force = self.environment.force
        self.lookup, self.python_method = self.environment.lookup, self.environment.python_method
        self.attributes: dict[tuple[int, str], Any] = {}
        self.plain: set[type] = set()  # the classes of objects whose attributes are read as those of most are
        self.globals: dict[tuple[int, str], Any] = {}
        self.ordinary: dict[
            int, types.FunctionType
        ] = {}  # those that are interpreted, whatever their arguments
        self.inside_cells: dict[int, types.CellType] = {}
        self.gives_numbers: set[int] = set()  # ids of objects whose numbers are being asked for
        self.inside_functions: dict[int, types.FunctionType] = {}
        self.kept: list[Any] = []
        self.natives: dict[int, types.FunctionType] = {}
        self.raising: dict[int, BaseException] = {}
        self.resume_cache = options.resume_cache
        self.resumed: Resume | None = None
        self.paused: Break | None = None
        self.raised: dict[int, int] = {}
        self.births: dict[int, int] = {}
        self._generators: list[Generator] = []
        self.tracks_births = False
        self.heard = heard()
        self.heard.clear()

    # --- running frames -------------------------------------------------------------------------------------------

    def run(self, frame: Frame) -> Signal:
        """Run a frame until it returns or yields; its value is in `frame.value`.

        Raises:
            Break: the region must end before the root frame's current instruction.
            FrameRefused: the stack of the thread has no room for another frame.
            BaseException: what the interpreted program raised and did not catch.
        """
        if not has_stack():
            raise FrameRefused("LW124", frame.function.__qualname__, self.user_location())
        self.frames.append(frame)
        frame.called()
        steps, warned = frame.decoded.steps, self.heard
        try:
            self.effort.spend(self, CALL)
            if frame.pending is not None:
                error, frame.pending = frame.pending, None
                self._unwind(frame, error)
            while True:
                try:
                    while True:
                        handler, arg = steps[frame.ip]
                        frame.ip += 1
                        signal = handler(self, frame, arg)
                        if warned:
                            raise warned.pop()
                        if signal is not None:
                            return signal
                except Break as stop:
                    stop.at(self.user_location(), len(self.frames))
                    raise
                except BaseException as error:  # noqa: BLE001  (whatever the program raises goes to its own handlers)
                    self._unwind(frame, error)
        finally:
            self.frames.pop()

    def run_root(self, frame: Frame) -> Signal:
        """As `run`, for the root frame: counts its instructions in `frame.steps` and stops at `stop_at`."""
        self.frames.append(frame)
        steps, warned = frame.decoded.steps, self.heard
        stop_at = self.stop_at
        while True:
            try:
                while True:
                    if frame.steps == stop_at:
                        return Signal.STOPPED
                    handler, arg = steps[frame.ip]
                    frame.ip += 1
                    signal = handler(self, frame, arg)
                    if warned:
                        raise warned.pop()
                    if self.tracks_births and frame.stack:
                        self._note_birth(frame.stack[-1])
                    frame.steps += 1
                    if signal is not None:
                        return signal
            except Break as stop:
                stop.at(self.user_location(), len(self.frames))
                raise
            except BaseException as error:  # noqa: BLE001  (whatever the program raises goes to its own handlers)
                self._unwind(frame, error)
                frame.steps += 1

    def _unwind(self, frame: Frame, error: BaseException) -> None:
        """Go to the handler of an exception, or let it out of the frame."""
        if isinstance(error, Break):
            raise error
        if self.heard:
            stop = self.heard.pop()
            stop.at(self.user_location(), len(self.frames))
            raise stop from error
        if isinstance(error, (DataDependentError, UnsupportedOpError)):
            code = "LW102" if isinstance(error, DataDependentError) else "LW106"
            stop = Break(code, error.cause)
            stop.at(self.user_location(), len(self.frames))
            raise stop from error
        if is_refusal(error) and self.environment.lifting.symbols:
            raise NumbersNeeded(cast(TypeError, error)) from error
        self._note_context(error)
        index = frame.ip - 1
        entry = frame.decoded.excepts[index]
        if is_of_torch(error) and any(f.decoded.excepts[f.ip - 1] is not None for f in self.frames):
            stop = Break("LW117", type(error).__name__)
            stop.at(self.user_location(), len(self.frames))
            raise stop from error
        if entry is None or isinstance(error, CaptureError):
            raise error
        self.raised.setdefault(id(error), self.frames[0].steps)
        self.kept.append(error)
        del frame.stack[entry.depth :]
        if entry.lasti:
            frame.stack.append(LASTI)
        frame.stack.append(error)
        frame.ip = entry.target

    def _note_birth(self, value: Any) -> None:
        """Remember at which instruction of the root frame an object came up first."""
        if id(value) not in self.births:
            self.births[id(value)] = self.frames[0].steps
            self.kept.append(value)

    def pause(self, frame: Frame, stop: Break) -> Signal:
        """End the region before the current instruction, which has done nothing yet.

        Raises:
            Break: where `frame` is not the root frame.
        """
        if len(self.frames) != 1:
            raise stop
        stop.at(self.user_location(), 1)
        frame.ip -= 1
        self.paused = stop
        return Signal.STOPPED

    def _note_context(self, error: BaseException) -> None:
        """Note, where it is first raised, which exception of the program was being handled at the time; what Python
        noted is the interpreter's own."""
        if id(error) in self.raising or self.environment.entry(error) is not None:
            return
        self.raising[id(error)] = error
        handled = self.handled()
        if handled is not error:
            error.__context__ = handled

    # --- calls ----------------------------------------------------------------------------------------------------

    def call(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """function(*args, **kwargs) in the region: interpreted, or natively if that is safe."""
        return self.force(calls.call(self, function, args, kwargs))

    def call_unread(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """As `call`; an argument of the region that is only passed through stays unread."""
        return calls.call(self, function, args, kwargs)

    def call_python(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Inline a Python function."""
        frame = self.make_frame(function, args, kwargs)
        self.run(frame)
        return frame.value

    def make_frame(self, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Frame:
        inside = id(function) in self.inside_functions
        if not inside:
            self.environment.functions.enter(function)
        decoded = decode(function.__code__, self.table)
        if decoded.is_async:
            raise Break("LW108", function.__qualname__)

        def default(value: Any, place: int | str) -> Any:
            # The defaults of a function that the region defined are values of the region.
            return self.force(value) if inside else self.environment.functions.default(function, value, place)

        values = bind_arguments(function, args, kwargs, self.force, default)
        return Frame(decoded, function, values, function.__closure__ or ())

    def bound_forward(self, module: Any) -> Any:
        """module.forward."""
        return attributes.load_attr(self, module, "forward")

    def make_generator(self, frame: Frame) -> Generator:
        made = Generator(self, frame)
        self.environment.births.add(made)
        self._note_birth(made)
        self._generators.append(made)
        return made

    def check_generators(self) -> None:
        """Eager runs the handlers of a generator when nothing refers to it any more, which need not be when a region
        ends.

        Raises:
            FrameRefused: a generator was left in a `try` or `with`.
        """
        for made in self._generators:
            if made.is_watching():
                raise made.refusal()

    def close(self) -> None:
        """Let go of all that the program may want to see die: what is left of a capture is a cycle of references."""
        for error in self.kept:
            if id(error) in self.raised and isinstance(error, BaseException) and id(error) in self.raising:
                forget_frames(error)  # The region's own, which it has handled.
        for frame in (*self.frames, *(made.frame for made in self._generators)):
            frame.clear()
        for table in (self.frames, self.kept, self._generators):
            table.clear()
        for table in (self.raising, self.attributes, self.globals, self.ordinary, self.inside_cells):
            table.clear()
        self.inside_functions.clear()
        self.environment.close()
        self.effects.close()
        self.recorder.close()

    # --- names ----------------------------------------------------------------------------------------------------

    def load_global(self, frame: Frame, name: str) -> Any:
        """A global or builtin.

        Raises:
            NameError: there is none of this name.
        """
        table = frame.globals
        key = (id(table), name)
        found = self.globals.get(key, _MISSING)
        if found is not _MISSING and id(table) not in self.environment.shadows.of_original:
            return found
        owner = cast(str, table.get("__name__", "globals"))
        # The globals of a script change all the time, so a version tag would not help there.
        slow = owner != "__main__"
        source = Known(table, f"globals of {owner}")
        value = attributes.load_item(self, table, source, name, name, slow=slow)
        if value is attributes.MISSING:
            builtins = Known(frame.builtins, "builtins")
            value = attributes.load_item(self, frame.builtins, builtins, name, name, slow=True)
            if value is attributes.MISSING:
                raise NameError(f"name {name!r} is not defined", name=name)
        if type(value) is not Appended:
            self.globals[key] = value
        return value

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        self.store_item(frame.globals, name, self.force(value))

    def store_item(self, table: dict[str, Any], name: str, value: Any) -> None:
        """Hold back a write to the globals of a module."""
        shadow = self.environment.shadows.of_original.get(id(table))
        if shadow is not None:
            shadow.copy[name] = value
        else:
            self.effects.write_global(table, name, value)
        self.forget_item(table, name)

    def delete_item(self, table: dict[str, Any], name: str) -> None:
        """Hold back that a name goes from the globals of a module, which has it."""
        shadow = self.environment.shadows.of_original.get(id(table))
        if shadow is not None:
            del shadow.copy[name]
        else:
            self.effects.delete_global(table, name)
        self.forget_item(table, name)

    def forget_item(self, table: dict[str, Any], name: str) -> None:
        """What was read of the globals of a module does not hold any more."""
        self.globals.pop((id(table), name), None)
        self.attributes.clear()

    def make_cell(self, *contents: Any) -> types.CellType:
        """A new cell of the region."""
        cell = types.CellType(*contents)
        self.inside_cells[id(cell)] = cell
        return cell

    def add_function(self, function: types.FunctionType) -> types.FunctionType:
        """Note a function that the region defined: it is made anew on each call."""
        self.inside_functions[id(function)] = function
        return function

    def load_cell(self, cell: types.CellType, name: str) -> Any:
        """The contents of a cell, of the region's own or of an outside closure.

        Raises:
            NameError: the cell is empty.
        """
        written = self.effects.cell_value(cell)
        if written is not None:
            return written.value
        known = self.environment.cells.get(id(cell))
        if known is not None:
            return self.environment.present(known[1])
        try:
            contents = cell.cell_contents
        except ValueError:
            if id(cell) not in self.inside_cells:
                self.environment.functions.guard_empty(cell)
            raise NameError(
                f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope",
                name=name,
            ) from None
        if id(cell) in self.inside_cells:
            return contents
        entry = self.environment.entry(cell)
        if entry is not None and not entry.known:
            # A cell that a graph break passed on to its resume function.
            return self.environment.read(contents, CellContents(entry.source), f"{entry.name}.cell_contents")
        source = CellContents(Known(cell, f"cell of {name}"))
        if type(contents) in CONSTANTS or self.environment.is_state(contents, source):
            return self.environment.read(contents, source, name)
        self.guards.add(source, "is", contents)
        found = self.environment.known(contents, name)
        if found is contents:
            self.environment.cells[id(cell)] = (cell, contents)
        return found

    def store_cell(self, cell: types.CellType, value: Any) -> None:
        if id(cell) in self.inside_cells:
            cell.cell_contents = value
        else:
            self.effects.write_cell(cell, self.force(value))

    # --- where we are ---------------------------------------------------------------------------------------------

    def user_location(self) -> Location:
        """The user's line that is at work."""
        return self.whereabouts.location()

    def handled(self) -> BaseException | None:
        """The exception that a bare `raise` would raise again."""
        for frame in reversed(self.frames):
            if frame.handled is not None:
                return frame.handled
        return None
