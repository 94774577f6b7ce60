"""`lampwork.profile()`: a context that measures what runs in it."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from lampwork.display import Block, Shown, Table
from lampwork.display.units import time_text
from lampwork.errors import ProfileError
from lampwork.inspect.machine.limits import Limits
from lampwork.inspect.profile.kept_limits import limits_of_machine, limits_reached
from lampwork.inspect.profile.memory import Held, memory_of
from lampwork.inspect.profile.rows import BEGIN, BY, By, Row, grouped, rows_of
from lampwork.inspect.profile.spans import WHAT, ThreadSpans, read
from lampwork.inspect.profile.table import HEADS, cells, format_text
from lampwork.inspect.profile.trace import trace_of
from lampwork.inspect.profile.watch import begin_instead_of_watch
from lampwork.runtime import end_profile, in_span
from lampwork.written import write_whole

MOST = 40
"""Rows that a table has, unless it is asked for others."""


class Profile(Shown):
    """What ran in a `with lampwork.profile() as p:`, in all threads. Made by `profile()`.

    wall: seconds from the beginning to the end. Everything else is worked out when it is first asked for.
    """

    def __init__(self) -> None:
        self.wall = 0.0
        self._state = "new"
        self._begin = 0
        self._thread = 0
        self._raw: list[Any] = []
        self._dropped: weakref.finalize[..., Profile]
        self._threads: tuple[ThreadSpans, ...] | None = None
        self._limits: Limits | None = None
        self._rows: tuple[Row, ...] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Profile:
        if self._state != "new":
            raise ProfileError(
                "a profile is entered a second time", fix="make a new one by lampwork.profile()"
            )
        if not begin_instead_of_watch():
            raise ProfileError(
                "a profile runs already",
                fix="end it before another begins: there is one at a time, for all threads",
            )
        self._state = "running"
        # One that nobody can end any more makes room for the next.
        self._dropped = weakref.finalize(self, end_profile)
        self._dropped.atexit = False
        self._begin = time.monotonic_ns()
        # Its first span is this thread's, so that the time of no span can be told from that of other threads.
        in_span(BEGIN, int)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = time.monotonic_ns()
        if self._state != "running":
            raise ProfileError(
                "a profile ends that has not begun"
                if self._state == "new"
                else "a profile ends a second time",
                fix="use it as `with lampwork.profile() as p:`",
            )
        self._dropped.detach()
        self._raw = end_profile()
        self.wall = (end - self._begin) / 1e9
        self._state = "done"

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def threads(self) -> tuple[ThreadSpans, ...]:
        """What each thread did."""
        self._require_end()
        with self._lock:
            if self._threads is None:
                self._threads = read(self._raw)
                self._raw = []
            return self._threads

    @property
    def limits(self) -> Limits:
        """What the machine can do at most, with as many threads as torch uses."""
        with self._lock:
            if self._limits is None:
                self._limits = limits_of_machine()
            return self._limits

    @property
    def rows(self) -> tuple[Row, ...]:
        """All kernels, ATen calls, eager operators and what else there is, the slowest first. In a program of one
        thread their seconds add up to `wall`."""
        if self._rows is None:
            rows = rows_of(self.threads, self._outside(), self.limits)
            limits = limits_reached(self.limits, max((row.limit or 0.0 for row in rows), default=0.0))
            if limits != self.limits:
                self._limits = limits
                rows = rows_of(self.threads, self._outside(), limits)
            self._rows = rows
        return self._rows

    @property
    def memory(self) -> dict[str, tuple[Held, ...]]:
        """By region, the bytes in use at each of its steps. Of several programs of a region, for other sizes or for its
        constants, the one that holds most."""
        found: dict[str, tuple[Held, ...]] = {}
        for thread in self.threads:
            for program in thread.programs:
                held = memory_of(program)
                known = found.get(program.name)
                if known is None or _peak(held) > _peak(known):
                    found[program.name] = held
        return found

    @property
    def lost(self) -> int:
        """How many spans there was no room for; they are in no row."""
        return sum(thread.lost for thread in self.threads)

    def table(self, by: By = "kernel", most: int | None = MOST) -> str:
        """The rows as text, the slowest first.

        Args:
            by: "kernel"; "module" or "line" puts the time of each step where its first node comes from.
            most: so many rows; None: all.

        Raises:
            ProfileError: there is no such `by`, or the profile has not ended.
        """
        shown, left_out = self._shown(by, most)
        return f"{self._head()}\n{format_text(shown, self.wall, left_out)}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data, of stable form: "format" is its version."""
        return {
            "format": 1,
            "wall": self.wall,
            "lost": self.lost,
            "threads": len(self.threads),
            "limits": {name: getattr(self.limits, name) for name in _LIMITS},
            "rows": [
                {
                    "name": row.name,
                    "kind": row.kind,
                    "region": row.region,
                    "calls": row.calls,
                    "seconds": row.seconds,
                    "flops": row.flops,
                    "bytes_read": row.bytes_read,
                    "bytes_written": row.bytes_written,
                    "limit": row.limit,
                    "module": row.module,
                    "line": row.line,
                    "nodes": list(row.nodes),
                }
                for row in self.rows
            ],
            "memory": {
                name: [[each.index, each.arena, each.fresh, each.heap] for each in held]
                for name, held in self.memory.items()
            },
        }

    def save(self, path: str | Path) -> None:
        """Write a trace that chrome://tracing and https://ui.perfetto.dev show.

        Raises:
            ProfileError: the file cannot be written.
        """
        self._write(path, trace_of(self.threads, self._begin))

    def save_numbers(self, path: str | Path) -> None:
        """Write what `to_dict` gives as JSON.

        Raises:
            ProfileError: the file cannot be written.
        """
        self._write(path, self.to_dict())

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        if self._state != "done":
            return f"<lampwork profile, {'running' if self._state == 'running' else 'not begun'}>"
        return (
            f"<lampwork profile of {time_text(self.wall)}; print it, or .table(by=...), .save('trace.json')>"
        )

    def _blocks(self) -> Iterable[Block]:
        if self._state != "done":
            yield repr(self)
            return
        shown, left_out = self._shown("kernel", MOST)
        yield self._head()
        yield Table(HEADS, tuple(cells(row, self.wall) for row in shown))
        if left_out:
            yield f"and {len(left_out)} more"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _require_end(self) -> None:
        if self._state != "done":
            raise ProfileError(
                "the profile has not ended" if self._state == "running" else "the profile has not begun",
                fix="run something in `with lampwork.profile() as p:` and look at `p` after it",
            )

    def _write(self, path: str | Path, document: Any) -> None:
        write_whole(path, json.dumps(document), "the profile", ProfileError)

    def _shown(self, by: By, most: int | None) -> tuple[Sequence[Row], Sequence[Row]]:
        if by not in BY:
            raise ProfileError(f"no table by {by!r}", fix=f"there are tables by {', '.join(map(repr, BY))}")
        if most is not None and most < 1:
            raise ProfileError(f"no table of {most} rows", fix="give 1 or more, or None for all")
        rows = grouped(self.rows, by)
        return rows[:most], () if most is None else rows[most:]

    def _outside(self) -> float:
        """The seconds of no span, in the thread that the profile began in."""
        for thread in self.threads:
            if BEGIN in thread.names:
                counted = thread.spans[thread.spans["within"] == 0]
                is_begin = (counted["what"] == WHAT.index("label")) & (
                    counted["of"] == thread.names.index(BEGIN)
                )
                return max(0.0, self.wall - float(counted["self"][~is_begin].sum()) / 1e9)
        return self.wall

    def _head(self) -> str:
        steps = sum(row.seconds for row in self.rows if row.region)
        share = f", {100 * steps / self.wall:.0f} % of it in compiled regions" if self.wall else ""
        threads = f", {len(self.threads)} threads" if len(self.threads) > 1 else ""
        lost = f"; {self.lost} spans had no room" if self.lost else ""
        return f"{time_text(self.wall)}{share}{threads}{lost}"


_LIMITS = ("threads", "gflops", "bf16", "int8", "read", "copy")


def _peak(held: Sequence[Held]) -> int:
    return max((each.total for each in held), default=-1)


def profile() -> Profile:
    """A context that measures all that runs in it, in all threads: `with lampwork.profile() as p: model(x)`, then
    `print(p)`. What is compiled meanwhile counts too: call a function once before, to measure it alone.

    Raises (on entering):
        ProfileError: a profile runs already.
    """
    return Profile()
