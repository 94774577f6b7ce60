"""`lampwork.compare`: one model, run in several ways, side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lampwork import pristine
from lampwork.api import arguments_of, check_model, compile, function_of, original_of
from lampwork.backends.protocol import Backend
from lampwork.compiled.module import CompiledModule
from lampwork.compiled.stance import set_stance
from lampwork.errors import OptionError, text_of
from lampwork.inspect.comparison import Column, Comparison
from lampwork.progress import Progress
from lampwork.runtime import Compiled, trim_memory
from lampwork.standard import copy, math
from lampwork.swapping.difference import compare as differences
from lampwork.swapping.difference import tensors_of
from lampwork.timing import resident_bytes, resident_peak, rounds

_WIDE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def compare(
    model: Callable[..., Any], columns: Mapping[str, Any], inputs: Any, *, seconds: float = 2.0
) -> Comparison:
    """Run a model in several ways and show them side by side: time of a call, first call, memory, error.

        print(lampwork.compare(model, {"eager": None, "lampwork": {}, "torch.compile": torch.compile}, x))

    Calls are timed in turn, in this process, with the grad mode and the threads of the caller. Each column has inputs
    of its own, random numbers start at the same seed, and buffers are put back before each column. A column that
    raises says so, and the others go on.

    Args:
        model: a module or function; of what is compiled already, the original.
        columns: a mapping from names to ways to run the model:

            * None or "eager": the model as it is;
            * the name of a backend, a Backend, or a list of these: `compile(model, backend=...)`;
            * a mapping: `compile(model, **mapping)`;
            * a module, or what `compile` returned: called in place of the model;
            * any other callable: it takes the model and returns what to call. A module is copied for it, so it may
              change that.

        inputs: the arguments of a call: a tensor, a tuple of arguments, a dict of keyword arguments.
        seconds: for each column, after which no further round starts; five are made whatever it says.

    Raises:
        OptionError: no columns, a column of no known kind, `seconds` that is no time, or a model that cannot be called.
    """
    check_model(model, "compare")
    _check(columns, seconds)
    original = original_of(model)
    arguments = arguments_of(inputs)
    with Progress("compare") as progress, _as_it_was(original) as reset, _seeded(arguments):
        progress.at("the reference")
        reference, kind = _reference(original, arguments)
        reset()
        runs = [_Run(name, _copied(arguments)) for name in columns]
        for number, (run, way) in enumerate(zip(runs, columns.values(), strict=True)):
            progress.at(f"{run.name}, {number + 1} of {len(runs)}: its first call")
            run.begin(original, way, reference)
            reset()
        able = [run for run in runs if not run.failure]
        progress.at(f"rounds of {', '.join(run.name for run in able)}")
        times = rounds([(run, ()) for run in able], seconds * len(able), _waiting(arguments))
    for run, found in zip(able, times, strict=True):
        run.times = found
    return Comparison(
        tuple(run.column(runs[0].times) for run in runs),
        kind,
        max((len(run.times) for run in able), default=0),
        pristine.is_grad_enabled(),
        pristine.get_num_threads(),
    )


def _check(columns: Any, seconds: Any) -> None:
    if not isinstance(columns, Mapping) or not columns:
        raise OptionError(
            f"compare() takes a mapping of names to ways to run the model, got {columns!r}",
            fix='pass for example {"eager": None, "lampwork": {}}',
        )
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise OptionError(f"seconds is {seconds!r}, expected a number from 0 on", fix="leave it out for 2")
    for name, way in cast("Mapping[Any, Any]", columns).items():
        if not isinstance(name, str):
            raise OptionError(f"{name!r} is no name of a column", fix="names are strings")
        if _takes_the_model(way) and not callable(way):
            raise OptionError(
                f"column {name!r} is {way!r}, which is no way to run a model",
                fix="pass None, a backend, keywords of compile, or a callable that takes the model",
            )


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class _Run:
    """A column as it is measured. Called, it makes one call, unless one has failed."""

    name: str
    arguments: Arguments
    call: Callable[..., Any] | None = None
    first: float = math.nan
    peak: int | None = None
    error: float = math.nan
    failure: str = ""
    note: str = ""
    times: list[float] = field(default_factory=list[float])

    def __call__(self) -> None:
        self._try(self._call)

    def begin(self, model: Any, way: Any, reference: Any) -> None:
        """Make it, call it for the first time, and see what that takes."""
        if _takes_the_model(way) and isinstance(model, nn.Module):
            # The weights too: a cast of a module, for one, exchanges the data of its parameters.
            model = copy.deepcopy(model)
        trim_memory()
        before = _memory(self.arguments)
        self._try(lambda: self._first_call(model, way, reference))
        if not self.failure:
            self.peak = _peak(self.arguments, self, before)

    def column(self, first: list[float]) -> Column:
        """What was measured, against the times of the first column."""
        if self.failure:
            return Column(self.name, failure=self.failure)
        ratios = [a / b for a, b in zip(first, self.times, strict=False)]
        return Column(
            self.name,
            statistics.median(self.times),
            statistics.median(ratios) if ratios else math.nan,
            self.first,
            self.peak,
            self.error,
            note=self.note,
            noise=_noise(ratios),
        )

    def _first_call(self, model: Any, way: Any, reference: Any) -> None:
        start = time.perf_counter()
        self.call = _made(model, way)
        with _seeded(self.arguments):
            output = self._call()
            _waiting(self.arguments)()
        self.first = time.perf_counter() - start
        # What another call overwrites is looked at before that.
        self.error = max((d.relative for d in differences(reference, output)), default=math.nan)
        self.note = _note(self.call)
        for _ in range(2):
            self._call()

    def _call(self) -> Any:
        args, kwargs = self.arguments
        return cast("Callable[..., Any]", self.call)(*args, **kwargs)

    def _try(self, step: Callable[[], object]) -> None:
        if self.failure:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001  (whatever it is: the column says so, and the others go on)
            self.failure = text_of(error)


def _noise(ratios: list[float]) -> float:
    if len(ratios) < 2:
        return math.nan
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / 2


_MODELS = (Compiled, CompiledModule, nn.Module)
_BACKENDS = (str, list, tuple, Backend)


def _takes_the_model(way: Any) -> bool:
    return way is not None and not isinstance(way, (*_MODELS, *_BACKENDS, Mapping))


def _made(model: Any, way: Any) -> Callable[..., Any]:
    """What a column calls."""
    if way is None or (isinstance(way, str) and way == "eager"):
        return model
    if isinstance(way, _MODELS):
        return cast("Callable[..., Any]", way)
    if isinstance(way, Mapping):
        return compile(model, **cast("Mapping[str, Any]", way))
    if isinstance(way, _BACKENDS):
        return compile(model, backend=cast(Any, way))
    made = way(model)
    if not callable(made):
        raise OptionError(
            f"it made {type(made).__name__} of the model, which cannot be called",
            fix="return a module or a function",
        )
    return made


def _note(call: Any) -> str:
    """What of a compiled function did not run compiled."""
    if not isinstance(call, (Compiled, CompiledModule)):
        return ""
    try:
        function = function_of(call)
    except TypeError:  # torch.compile's, or another's
        return ""
    functions = list(function.tree())
    eager = [f"ran eager: {each.refusals[-1]}" for each in functions if each.refusals]
    breaks = sum(len(entry.breaks) for each in functions for entry in each.entries)
    return "; ".join([*([f"{breaks} graph break{'' if breaks == 1 else 's'}"] if breaks else []), *eager])


# --- the reference ----------------------------------------------------------------------------------------------------


def _reference(model: Any, arguments: Arguments) -> tuple[Any, str]:
    """The output in float64, if the model can be computed in that, and what it is."""
    with set_stance("force_eager"):
        try:
            wide = copy.deepcopy(model).double() if isinstance(model, nn.Module) else model
            args, kwargs = pytree.tree_map_only(Tensor, _widened, _copied(arguments))
            with _seeded(arguments):
                return _kept(wide(*args, **kwargs)), "float64"
        except Exception:  # noqa: BLE001  (code that names another dtype; `kind` says what the reference is)
            args, kwargs = _copied(arguments)
    try:
        with set_stance("force_eager"), _seeded(arguments):
            return _kept(model(*args, **kwargs)), "eager"
    except Exception:  # noqa: BLE001  (a column that runs it says so)
        return (), "nothing"


def _widened(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.double()
    return tensor.to(_WIDE.get(tensor.dtype, tensor.dtype))


def _kept(output: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors_of(output)}


# --- as if nothing had run --------------------------------------------------------------------------------------------


def _copied(arguments: Arguments) -> Arguments:
    """Arguments with tensors of their own, as a model may write into them."""

    def fresh(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(Tensor, fresh, arguments)


@contextmanager
def _seeded(arguments: Arguments) -> Generator[None]:
    """Random numbers that are the same each time, and leave the caller's as they are."""
    card = _card(arguments)
    with torch.random.fork_rng(devices=[] if card is None else [card]):
        pristine.manual_seed(0)
        yield


@contextmanager
def _as_it_was(model: Any) -> Generator[Callable[[], None]]:
    """Gives what puts the buffers of a model back, which is done at the end too."""
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    saved = [(buffer, buffer.detach().clone()) for buffer in buffers]

    def reset() -> None:
        with pristine.no_grad():
            for buffer, value in saved:
                if not pristine.equal(buffer, value):
                    buffer.copy_(value)

    try:
        yield reset
    finally:
        reset()


# --- devices ----------------------------------------------------------------------------------------------------------


def _card(arguments: Arguments) -> torch.device | None:
    """The CUDA device that the inputs are on."""
    devices = [t.device for _, t in tensors_of(list(pytree.tree_leaves(arguments)))]
    return next((device for device in devices if device.type == "cuda"), None)


def _waiting(arguments: Arguments) -> Callable[[], object]:
    card = _card(arguments)
    return (lambda: None) if card is None else (lambda: torch.cuda.synchronize(card))


def _memory(arguments: Arguments) -> int:
    card = _card(arguments)
    return resident_bytes() if card is None else torch.cuda.memory_allocated(card)


def _peak(arguments: Arguments, run: Callable[[], object], before: int) -> int | None:
    """Bytes above `before` during three calls."""

    def calls() -> None:
        for _ in range(3):
            run()

    card = _card(arguments)
    if card is None:
        most = resident_peak(calls)
        return max(0, most - before) if most else None
    torch.cuda.reset_peak_memory_stats(card)
    calls()
    return max(0, torch.cuda.max_memory_allocated(card) - before)
