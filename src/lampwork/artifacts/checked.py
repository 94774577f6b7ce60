"""JSON of a file that may come from anywhere: values are asked for by their types, and errors say where they stand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

from lampwork.errors import SerialError
from lampwork.loops.ir.polynomial import Index
from lampwork.records import record
from lampwork.serial.indices import index_from_json
from lampwork.standard import math

Refusal = Callable[[str], Exception]
"""Makes the error of a sentence's end: "has no object at entries.forward"."""

LARGEST = 2**63 - 1


def parsed(text: bytes, refusal: Refusal) -> Any:
    """What a JSON text says.

    Raises:
        Exception: by `refusal`: it is no JSON of UTF-8; a key comes twice; a number is none of JSON's.
    """

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"has the key {twice[:80]!r} twice")
        return found

    def constant(name: str) -> NoReturn:
        raise ValueError(f"has the number {name}")

    try:
        return json.loads(text.decode(), object_pairs_hook=object_of, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise refusal(f"is no JSON that can be read: {error}") from error


@record(eq=False)
class Place:
    """A value in a JSON text, and where it stands: "entries.forward.inputs[0]"."""

    value: Any
    where: str
    refusal: Refusal

    def wrong(self, expected: str) -> Exception:
        came = "nothing" if self.value is None else repr(self.value)
        return self.refusal(f"{self.where or 'the text'} is {came[:80]}, expected {expected}")

    def __getitem__(self, key: str) -> Place:
        """What an object has under a key; nothing where it has no such key."""
        found = self.object().get(key)
        return Place(found, f"{self.where}.{key}" if self.where else key, self.refusal)

    def __iter__(self) -> Iterator[Place]:
        """The items of a list."""
        return (Place(each, f"{self.where}[{n}]", self.refusal) for n, each in enumerate(self.list()))

    def items(self) -> Iterator[tuple[str, Place]]:
        return ((key, self[key]) for key in self.object())

    @property
    def is_there(self) -> bool:
        return self.value is not None

    def object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return cast("dict[str, Any]", self.value)

    def list(self) -> list[Any]:
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return cast("list[Any]", self.value)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def one_of(self, *texts: str) -> str:
        if self.value not in texts or not isinstance(self.value, str):
            raise self.wrong(f"one of {', '.join(texts)}")
        return self.value

    def number(self, below: int | None = None, at_least: int | None = 0) -> int:
        """An int of 64 bits, at least `at_least` and below `below`."""
        if type(self.value) is not int or not -LARGEST - 1 <= self.value <= LARGEST:
            raise self.wrong("a whole number")
        if (at_least is not None and self.value < at_least) or (below is not None and self.value >= below):
            raise self.wrong(f"a number from {at_least} to {LARGEST if below is None else below - 1}")
        return self.value

    def index(self) -> Index:
        """An index over symbols."""
        try:
            return index_from_json(self.value)
        except SerialError as error:
            raise self.refusal(f"{self.where}: {error.cause}") from error

    def plain(self) -> Any:
        """None, a bool, an int, a text, or a float as `plain_to_json` writes one."""
        value = self.value
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return self.number(at_least=None)
        if isinstance(value, float) and math.isfinite(value):
            return value
        raise self.wrong("null, true, false, a number or a text")
