"""How long the steps of compiled regions take, seen in the calls that a program makes anyway: for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from lampwork.display import Shown
from lampwork.inspect.profile.spans import SPAN, WHAT
from lampwork.locks import new_lock
from lampwork.records import record
from lampwork.runtime import begin_profile, end_profile
from lampwork.runtime.program import CallAten, CallKernel, Program

_lock = new_lock()
_open: list[Watch] = []
"""The one that sees something now, if there is one."""


class Watch:
    """`with Watch() as watch: model(x)`, then `watch.times()`. It sees nothing while somebody profiles: a profile that
    runs already goes on, and one that begins meanwhile takes over."""

    def __init__(self) -> None:
        self._raw: Sequence[Any] = ()

    def __enter__(self) -> Watch:
        with _lock:
            if begin_profile():
                _open.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            self._end()

    def _end(self) -> None:
        if self in _open:
            _open.remove(self)
            self._raw = end_profile()

    def times(self) -> Times:
        """Of all programs that it has seen."""
        return Times.of(self._raw)


def begin_instead_of_watch() -> bool:
    """Begin a profile; a watch ends with what it has seen. False if a profile runs already."""
    with _lock:
        for watch in tuple(_open):
            watch._end()
        return begin_profile()


@record(eq=False)
class ProgramTimes:
    """Medians, in seconds, of all its runs. steps: of each call among the instructions, in order; None for one that was
    not seen. rest: of what a run does besides, for memory and results."""

    runs: int
    rest: float
    steps: tuple[float | None, ...]

    @property
    def run(self) -> float:
        """Of a run as a whole, but for constants that were computed on the way."""
        return self.rest + sum(step or 0.0 for step in self.steps)


@record(eq=False)
class Times(Shown):
    """What a watch has seen of programs of the CPU, by what they were made of and for which sizes."""

    seen: Mapping[tuple[Any, ...], ProgramTimes]

    def _brief(self) -> str:
        runs = sum(each.runs for each in self.seen.values())
        return f"{runs} {'run' if runs == 1 else 'runs'} seen"

    @staticmethod
    def of(raw: Sequence[tuple[int, bytes, list[str], list[Program], int]]) -> Times:
        """Of what `_C.end_profile` gave."""
        found: dict[tuple[Any, ...], _Seen] = {}
        for _, data, _, programs, _ in raw:
            spans = np.frombuffer(data, SPAN)
            spans = spans[(spans["within"] == 0) & np.isin(spans["what"], (_RUN, _CALL))]
            for number, program in enumerate(programs):
                if program.family is None or program.device is not None:
                    continue  # on a card the spans are of launching
                found.setdefault(_key(program), _Seen()).add(program, spans[spans["of"] == number])
        return Times({key: seen.median() for key, seen in found.items() if seen.ran})

    def get(self, program: Program) -> ProgramTimes | None:
        """Those of a program, and of what differs from it in nothing but where its memory lies."""
        return self.seen.get(_key(program))


UNSEEN = Times({})
_RUN, _CALL = WHAT.index("run"), WHAT.index("call")


def _key(program: Program) -> tuple[Any, ...]:
    return program.family, tuple(value.shape for value in program.values)


class _Seen:
    """Of programs of one key: the nanoseconds of each run, without its calls, and those of each call."""

    def __init__(self) -> None:
        self.rest: list[Any] = []
        self.steps: list[list[Any]] = []

    @property
    def ran(self) -> bool:
        """Whether there are runs of its own: constants are computed in those of others."""
        return any(map(len, self.rest))

    def add(self, program: Program, spans: Any) -> None:
        self.rest.append(spans["self"][spans["what"] == _RUN])
        calls = spans[spans["what"] == _CALL]
        order = np.argsort(calls["index"], kind="stable")
        numbers, own = calls["index"][order], calls["self"][order]
        places = [
            at for at, each in enumerate(program.instructions) if isinstance(each, CallKernel | CallAten)
        ]
        first, last = (np.searchsorted(numbers, places, side) for side in ("left", "right"))
        self.steps = self.steps or [[] for _ in places]
        for step, start, end in zip(self.steps, first.tolist(), last.tolist(), strict=True):
            step.append(own[start:end])

    def median(self) -> ProgramTimes:
        rest = np.concatenate(self.rest)
        return ProgramTimes(len(rest), _seconds(rest), tuple(map(_median, self.steps)))


def _median(each: list[Any]) -> float | None:
    together = np.concatenate(each)
    return _seconds(together) if len(together) else None


def _seconds(nanoseconds: Any) -> float:
    return float(np.median(nanoseconds)) / 1e9
