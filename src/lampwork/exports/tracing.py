"""Records in torch's structured trace as Lampwork compiles, where the environment variable TORCH_TRACE names a folder.

Nothing imports this file where it does not.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch._guards import CompileContext, CompileId, compile_context
from torch._logging._internal import trace_structured
from torch._logging.structured import intern_string

from lampwork.capture.model.region import Record
from lampwork.compiled.entries import Entry
from lampwork.compiled.function import Function
from lampwork.compiled.listening import listeners
from lampwork.compiled.stages import Compilation, Stages
from lampwork.errors import warn
from lampwork.exports.trace import Said, said_of, said_of_half, said_of_refusal
from lampwork.standard import itertools

_FIRST = 100_000
"""Number of our first function: TorchDynamo numbers its frames from 0, in the same file."""


@dataclass(slots=True)
class _Tracing:
    """Numbers functions and versions, and writes what becomes of them."""

    frames: weakref.WeakKeyDictionary[Function, int] = field(
        default_factory=weakref.WeakKeyDictionary[Function, int]
    )
    versions: weakref.WeakKeyDictionary[Entry, int] = field(
        default_factory=weakref.WeakKeyDictionary[Entry, int]
    )
    _next: itertools.count[int] = field(default_factory=lambda: itertools.count(_FIRST))
    _counts: weakref.WeakKeyDictionary[Function, int] = field(
        default_factory=weakref.WeakKeyDictionary[Function, int]
    )

    def made(self, function: Function, entry: Entry) -> None:
        version = self.versions[entry] = self._version(function)
        _write(said_of(function, entry, self.frames[function], version))

    def refused(self, function: Function, record: Record) -> None:
        version = self._version(function)
        _write(said_of_refusal(function, record, self.frames[function], version))

    def half(self, stages: Stages, name: str, made: Compilation) -> None:
        for function, frame in list(self.frames.items()):
            for entry in function.entries:
                if entry.stages is stages and entry in self.versions:
                    _write(said_of_half(stages, name, frame, self.versions[entry], only=made))

    def _version(self, function: Function) -> int:
        if function not in self.frames:
            self.frames[function] = next(self._next)
        number = self._counts.get(function, 0)
        self._counts[function] = number + 1
        return number


def _write(said: Iterable[Said]) -> None:
    try:
        _hand_on(said)
    except OSError as error:
        listeners[:] = [each for each in listeners if not isinstance(each, _Tracing)]
        warn(
            f"nothing more is written to {os.environ.get('TORCH_TRACE')!r}, where TORCH_TRACE points: {error}"
        )


def _hand_on(said: Iterable[Said]) -> None:
    """
    Raises:
        OSError: torch cannot write to the folder.
    """
    for each in said:
        identity = CompileId(frame_id=each.frame, frame_compile_id=each.version)
        with compile_context(CompileContext(identity)):
            trace_structured(
                each.name,
                lambda each=each: dict(each.metadata(intern_string)),
                payload_fn=lambda each=each: each.text,
                record_logging_overhead=False,
            )


def begin() -> None:
    """Write from now on what is compiled."""
    if not any(isinstance(each, _Tracing) for each in listeners):
        listeners.append(_Tracing())
