"""Operators that are put off, and how they are done: tensors that meet in one make a row, rows alike make a kernel.

calls   mul_(0, 0.9); add_(0, 1, alpha=0.1); mul_(2, 0.9); add_(2, 3, alpha=0.1)
rows    (0, 1) and (2, 3), each of which is mul_(%0, NUMBER); add_(%0, %1, alpha=NUMBER) for 0.9 and 0.1
kernel  over both, as of a rule of `update`

Rows share no memory that is written to, so they may be done in any order; if they do share some, all calls are done one
by one, as they came. An empty tensor that a call has made is filled if anything but the list of them refers to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lampwork import _C, logs, pristine
from lampwork.optimizers.kernel import RowKernel
from lampwork.optimizers.trace import NUMBER, Recipe, Untraceable
from lampwork.optimizers.update import Updater

_SLOWNESS = 0.05  # nanoseconds per byte that is read or written
_NOTE = 6000.0  # nanoseconds to put a call off and do it later, on top of eager's
_LAUNCH = 20e3  # ... to group rows and run a kernel
_SIZES = {"f": 4, "d": 8, "h": 2, "b": 2, "?": 1}


class Pended(NamedTuple):
    """A call. codes: for each argument the place of a tensor, NUMBER, or another value alone in a tuple; the last ones
    are those of the keys. result: the place of what it makes, or -1. places: of all tensors in it."""

    name: str
    codes: tuple[Any, ...]
    keys: tuple[str, ...]
    numbers: tuple[float, ...]
    places: tuple[int, ...]
    result: int


class Numbers(tuple[float, ...]):
    """Floats that are equal if all of their bits are: a sum with -0.0 is not one with 0.0."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and tuple.__eq__(self, other) and _signs(self) == _signs(other)

    __hash__ = tuple.__hash__


def _signs(numbers: Numbers) -> list[str]:
    return [str(number) for number in numbers if not number]


class Row:
    """Tensors that meet in calls, and these calls. merged: it is part of another row."""

    __slots__ = ("calls", "merged", "places")

    def __init__(self) -> None:
        self.places: list[int] = []
        self.calls: list[Pended] = []
        self.merged = False


class Pending:
    """Calls, and their tensors by place, each with the letter of its dtype and its layout (csrc/rows.cpp).

    made, written: the places of what calls make, and write to. is_eager: some calls were done one by one.
    """

    def __init__(self) -> None:
        self.calls: list[Pended] = []
        self.tensors: list[Tensor] = []
        self.letters: list[str] = []
        self.layouts: list[bytes] = []
        self.made: set[int] = set()
        self.written: set[int] = set()
        self.is_eager = False

    def join(self, tensor: Tensor, letter: str, layout: bytes) -> int:
        """The place of a tensor that is new."""
        self.tensors.append(tensor)
        self.letters.append(letter)
        self.layouts.append(layout)
        return len(self.tensors) - 1

    def run(self, updater: Updater) -> float:
        """Do all calls. Gives the nanoseconds that it takes less than eager, by estimate."""
        # What is on now may have come after the calls.
        with pristine.no_grad():
            if not pristine.is_autocast_enabled("cpu"):
                return self._run(updater)
            with pristine.autocast("cpu", enabled=False):
                return self._run(updater)

    def _run(self, updater: Updater) -> float:
        held = self.made.intersection(_C.held_elsewhere(self.tensors))
        if _C.tensors_overlap(self.tensors, self.written):
            logs.emit("breaks", "operators of an optimizer's step run one by one: tensors share memory")
            self._run_eager(self.calls, held)
            return -_NOTE * len(self.calls)
        groups: dict[tuple[Recipe, str, Numbers], list[tuple[Row, list[int]]]] = {}
        for row in self._rows():
            key, columns = self._form(row, held)
            groups.setdefault(key, []).append((row, columns))
        try:
            kernels = [self._kernel(updater, *key, rows[0][1]) for key, rows in groups.items()]
        except BaseException:
            self._run_eager(self.calls, held)
            raise
        saved = -_LAUNCH * len(groups)
        for kernel, (key, rows) in zip(kernels, groups.items(), strict=True):
            if kernel is not None:
                saved += self._run_rows(kernel, key[2], rows)
            elif key[0].results or not self.written.isdisjoint(rows[0][1]):
                for row, _ in rows:
                    self._run_eager(row.calls, held)
                    saved -= _NOTE * len(row.calls)
        return saved

    def _rows(self) -> list[Row]:
        """The calls by the tensors that meet in them."""
        owners: list[Row | None] = [None] * len(self.tensors)
        rows: list[Row] = []
        for call in self.calls:
            row = owners[call.places[0]]
            if row is None:
                row = Row()
                rows.append(row)
            for place in call.places:
                owner = owners[place]
                if owner is row:
                    continue
                if owner is None:
                    row.places.append(place)
                else:
                    row.places += owner.places
                    row.calls += owner.calls
                    owner.merged = True
                    for each in owner.places:
                        owners[each] = row
                owners[place] = row
            row.calls.append(call)
        return [row for row in rows if not row.merged]

    def _form(self, row: Row, held: set[int]) -> tuple[tuple[Recipe, str, Numbers], list[int]]:
        """What rows of one kernel have in common: the recipe, the letters of its columns, the numbers. And the places
        of this row's columns."""
        made = self.made
        columns = [place for place in row.places if place not in made]
        names = {place: f"%{number}" for number, place in enumerate(columns)}
        calls: list[Any] = []
        numbers: list[float] = []
        for call in row.calls:
            coded = tuple([names[c] if type(c) is int else c if type(c) is str else c[0] for c in call.codes])
            if call.keys:
                split = len(coded) - len(call.keys)
                calls.append((call.name, coded[:split], tuple(zip(call.keys, coded[split:], strict=True))))
            else:
                calls.append((call.name, coded, ()))
            numbers += call.numbers
            if call.result >= 0:
                names[call.result] = f"%{len(names)}"
        letters = "".join([self.letters[place] for place in columns])
        results: list[tuple[int, str]] = []
        for place in row.places:
            if place in held:
                results.append((len(columns), names[place]))
                columns.append(place)
        return (Recipe(tuple(calls), tuple(results)), letters, Numbers(numbers)), columns

    def _kernel(
        self, updater: Updater, recipe: Recipe, letters: str, numbers: Numbers, places: Sequence[int]
    ) -> RowKernel | None:
        """What does the calls of rows that are alike, of which one has its columns in these places; None if nobody sees
        what they compute, or no kernel can do them."""
        if not recipe.results and self.written.isdisjoint(places):
            return None
        try:
            if any(self.letters[place] == "?" for place in places):
                raise Untraceable("a mask is kept")
            return updater.kernel_of(recipe, tuple(range(len(letters))), letters, list(numbers))
        except Untraceable as error:
            logs.emit("breaks", f"operators of an optimizer's step run one by one: {error}")
            return None

    def _run_rows(self, kernel: RowKernel, numbers: Numbers, rows: Sequence[tuple[Row, list[int]]]) -> float:
        """Run a kernel over rows."""
        first, places = rows[0]
        tensors = self.tensors
        columns = tuple([tensors[places[column]] for _, places in rows] for column in range(len(places)))
        given = kernel.given(numbers)
        _C.run_rows(
            kernel.code.address, columns, kernel.columns, [], list(range(len(rows))), given, kernel.written
        )
        ours = sum(_SIZES[self.letters[place]] * (1 + (place in self.written)) for place in places)
        eager = sum(
            _SIZES[self.letters[place]] for call in first.calls for place in (*call.places, call.places[0])
        )
        elements = sum(tensor.numel() for tensor in columns[0])
        return _SLOWNESS * (eager - ours) * elements - _NOTE * len(first.calls) * len(rows)

    def _run_eager(self, calls: Sequence[Pended], held: set[int]) -> None:
        """Do calls one by one."""
        self.is_eager = True
        values: dict[int, Tensor] = {}
        for call in calls:
            numbers = iter(call.numbers)
            given: list[Any] = []
            for code in call.codes:
                if type(code) is int:
                    given.append(values.get(code, self.tensors[code]))
                else:
                    given.append(next(numbers) if code == NUMBER else code[0])
            split = len(given) - len(call.keys)
            result = function_of(call.name)(
                *given[:split], **dict(zip(call.keys, given[split:], strict=True))
            )
            if call.result in held:
                self.tensors[call.result].copy_(result)
            elif call.result >= 0:
                values[call.result] = result


def function_of(name: str) -> Any:
    """The method of tensors or function of torch of a name as in `trace.Call`."""
    return getattr(torch, name[6:]) if name.startswith("torch.") else getattr(Tensor, name)
