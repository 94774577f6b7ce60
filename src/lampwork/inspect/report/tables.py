"""What many parts of a report refer to by number: texts, frames of stacks; and the source lines that it shows."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lampwork.errors import Location

AROUND = 4
"""Source lines shown before and after one that is referred to."""

LONGEST_LINE = 400
"""Characters of a source line, at most: generated files have longer ones."""


@dataclass(slots=True)
class Tables:
    """Equal texts, frames and stacks are kept once."""

    texts: dict[str, int] = field(default_factory=dict[str, int])
    frames: dict[tuple[str, int, str], int] = field(default_factory=dict[tuple[str, int, str], int])
    stacks: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    lines: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    made: dict[tuple[str, Callable[[str], str]], str] = field(
        default_factory=dict[tuple[str, Callable[[str], str]], str]
    )

    def text(self, text: str) -> int:
        """The number of a text."""
        return self.texts.setdefault(text, len(self.texts))

    def made_of(self, text: str, make: Callable[[str], str]) -> str:
        """`make(text)`, once for equal texts."""
        key = text, make
        if key not in self.made:
            self.made[key] = make(text)
        return self.made[key]

    def stack(self, locations: Iterable[Location]) -> int:
        """The number of a stack, innermost last."""
        frames = tuple(self.frame(each) for each in locations)
        return self.stacks.setdefault(frames, len(self.stacks))

    def frame(self, location: Location) -> int:
        """The number of a line of a program."""
        key = location.file, location.line, location.function
        return self.frames.setdefault(key, len(self.frames))

    def refer(self, file: str, line: int) -> None:
        """Have the report show a line of source, with those around it."""
        self.lines.setdefault(file, set()).add(line)

    def data(self) -> dict[str, Any]:
        """The tables as a part of a report."""
        return {
            "texts": list(self.texts),
            "frames": [list(frame) for frame in self.frames],
            "stacks": [list(stack) for stack in self.stacks],
            "sources": excerpts(self.lines),
        }


def _lines(file: str) -> Sequence[str]:
    try:
        return linecache.getlines(file)
    except UnicodeEncodeError:  # a name that no file can have
        return ()


def excerpts(wanted: Mapping[str, Iterable[int]]) -> dict[str, list[dict[str, Any]]]:
    """The lines around the wanted ones, by file; a file that cannot be read, and a line past its end, is left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file, numbers in wanted.items():
        lines = _lines(file)
        shown = sorted(
            {
                each
                for number in numbers
                if 1 <= number <= len(lines)
                for each in range(max(1, number - AROUND), min(len(lines), number + AROUND) + 1)
            }
        )
        pieces: list[dict[str, Any]] = []
        for number in shown:
            text = lines[number - 1].rstrip("\r\n")[:LONGEST_LINE]
            if pieces and number == pieces[-1]["first"] + len(pieces[-1]["lines"]):
                pieces[-1]["lines"].append(text)
            else:
                pieces.append({"first": number, "lines": [text]})
        if pieces:
            found[file] = pieces
    return found
