"""Programs around graph breaks, compared with eager: results, arguments, printed text, exceptions and user frames."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regions
from capture_reference import Reference, same

OURS = str(Path(__file__).resolve().parents[3] / "src" / "lampwork")
HARNESS = (str(Path(__file__)), str(Path(__file__).with_name("capture_reference.py")), regions.__file__)


@dataclass(frozen=True)
class Outcome:
    """What the caller of a program can see."""

    result: Any
    error: tuple[type, str] | None
    frames: tuple[tuple[str, str, int], ...]
    text: str
    warned: tuple[tuple[str, int], ...]
    logged: tuple[str, ...]


def outcome(fn: Callable[..., Any], args: Any) -> Outcome:
    text = io.StringIO()
    log = _Collect()
    logger = logging.getLogger("breaks")
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    result: Any = None
    error = None
    frames: tuple[tuple[str, str, int], ...] = ()
    with contextlib.redirect_stdout(text), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = fn(*args)
        except Exception as raised:  # noqa: BLE001
            error = (type(raised), str(raised))
            frames = user_frames(raised)
        finally:
            logger.removeHandler(log)
    lines = tuple((str(w.message), w.lineno) for w in warned)
    return Outcome(result, error, frames, text.getvalue(), lines, tuple(log.lines))


class _Collect(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.lineno} {record.getMessage()}")


def user_frames(error: BaseException) -> tuple[tuple[str, str, int], ...]:
    """The frames of a traceback that are the program's, as (file, function, line)."""
    return tuple(
        (frame.filename, frame.name, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS)
        and frame.filename not in HARNESS
        and "torch" not in Path(frame.filename).parts
    )


def plain_reference(fn: Callable[..., Any]) -> Reference:
    """A reference whose resume functions run in plain Python."""
    reference = Reference(fn)
    reference.options.compile_resume = None
    return reference


def check_breaks(
    fn: Callable[..., Any],
    *calls: tuple[Any, ...],
    breaks: list[str] | None = None,
    regions: int | None = None,
    refused: bool = False,
) -> Reference:
    """Each call twice, compiled, and once with the rest after the first break in plain Python: as eager.

    `breaks`: the codes of the breaks of all calls, in order. `regions`: how many were captured in all.
    """
    for call in calls:
        _compare(plain_reference(fn), fn, call)
    reference = Reference(fn)
    for call in calls:
        for _ in range(2):
            _compare(reference, fn, call)
    found = everything(reference)
    if not refused:
        refusals = [refusal for one in found for refusal in one.refusals]
        assert not refusals, refusals
    if breaks is not None:
        assert [record.code for record in reference.records] == breaks, "\n".join(map(str, reference.records))
    if regions is not None:
        assert sum(len(one.regions) for one in found) == regions
    return reference


def everything(reference: Reference) -> list[Reference]:
    """A reference, its resume functions and its compiled callees."""
    found: dict[int, Reference] = {}
    work = [reference]
    while work:
        one = work.pop()
        if id(one) not in found:
            found[id(one)] = one
            work.extend(one.children.values())
    return list(found.values())


def _compare(compiled: Callable[..., Any], fn: Callable[..., Any], call: tuple[Any, ...]) -> None:
    eager_args = copy.deepcopy(call)
    expected = outcome(fn, eager_args)
    args = copy.deepcopy(call)
    got = outcome(compiled, args)
    assert got.error == expected.error, (got.error, expected.error)
    assert got.text == expected.text, (got.text, expected.text)
    assert got.frames == expected.frames, (got.frames, expected.frames)
    assert got.warned == expected.warned, (got.warned, expected.warned)
    assert got.logged == expected.logged, (got.logged, expected.logged)
    same(got.result, expected.result)
    same(args, eager_args)
