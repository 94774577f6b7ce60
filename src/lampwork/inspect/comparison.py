"""What `lampwork.compare` measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from lampwork.display import Block, Shown, Table
from lampwork.display.units import bytes_text, time_text
from lampwork.records import record
from lampwork.standard import math


@record
class Column(Shown):
    """One way to run a model.

    `seconds`: of a call, the median of all rounds. `speedup`: the seconds of the first column divided by these, the
    median of the rounds; `noise`: half of what lies between the quartiles of these. `first_call`: seconds,
    compilation included. `peak_bytes`: how much more of the process was in memory during calls than before this
    column was made: what it keeps for itself, and what a call needs (on a CUDA device: of that device); None where
    the system does not say. `error`: the largest difference from the reference, by the largest magnitude there, of
    the output where it is worst; NaN if there are no tensors. `failure`: why there are no figures. `note`: what did
    not run compiled.
    """

    name: str
    seconds: float = math.nan
    speedup: float = math.nan
    first_call: float = math.nan
    peak_bytes: int | None = None
    error: float = math.nan
    failure: str = ""
    note: str = ""
    noise: float = math.nan

    def _brief(self) -> str:
        if self.failure:
            return f"{self.name}: {self.failure}"
        return f"{self.name}: {time_text(self.seconds)} a call, {_ratio(self.speedup)}"


@record
class Comparison(Shown):
    """What `compare` measured. `str()` is a table; `comparison["name"]` is one of its columns.

    `reference`: what errors are measured against: "float64", the model computed in that, or "eager" where it cannot be.
    `grad`: whether gradients were on. `threads`: of torch.
    """

    columns: tuple[Column, ...]
    reference: str
    rounds: int
    grad: bool
    threads: int

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{name!r}; the columns are {', '.join(c.name for c in self.columns)}")

    def to_dict(self) -> dict[str, Any]:
        """The content as dicts, lists, strings and numbers."""
        return asdict(self)

    def _brief(self) -> str:
        return ", ".join(
            f"{c.name} {'failed' if c.failure else time_text(c.seconds)}"
            + ("" if math.isnan(c.speedup) else f" ({_ratio(c.speedup)})")
            for c in self.columns
        )

    def _blocks(self) -> Iterable[Block]:
        head = ("", "a call", "ratio", "first call", "memory peak", f"error against {self.reference}")
        yield Table(head, tuple(map(_row, self.columns)))
        for column in self.columns:
            if column.failure:
                yield f"{column.name} failed: {column.failure}"
            if column.note:
                yield f"{column.name}: {column.note}"
        grad = "on" if self.grad else "off"
        yield (
            f"medians of {self.rounds} rounds in turn, {self.threads} thread{'' if self.threads == 1 else 's'}, "
            f"gradients {grad}; ratio: how many times as fast as {self.columns[0].name}"
        )

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))


def _row(column: Column) -> tuple[str, ...]:
    if column.failure:
        return (column.name, "failed", "-", "-", "-", "-")
    return (
        column.name,
        time_text(column.seconds),
        _ratio(column.speedup),
        time_text(column.first_call),
        "-" if column.peak_bytes is None else bytes_text(column.peak_bytes),
        "-" if math.isnan(column.error) else f"{column.error:.1e}",
    )


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}x"
