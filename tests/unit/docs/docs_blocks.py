"""Fenced blocks of Markdown pages: taken out, run, and compared with the output shown beneath them."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Block:
    """A ```python block, the number of its first line of code (from 1), and the ```text block that follows it at once:
    lines that its output must hold, in this order. `...` within a line stands for anything, on its own for lines."""

    code: str
    line: int
    shown: str | None


def blocks_of(text: str) -> list[Block]:
    found: list[Block] = []
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
    matches = list(fence.finditer(text))
    for number, match in enumerate(matches):
        after = matches[number + 1] if number + 1 < len(matches) else None
        if match[1] != "python":
            continue
        follows = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
        shown = after[2] if after is not None and follows else None
        found.append(Block(match[2], text[: match.start()].count("\n") + 2, shown))
    return found


def run_block(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    """What the block prints, to either stream. Its line numbers are those of the page."""
    code = compile("\n" * (block.line - 1) + block.code, page.name, "exec")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        exec(code, namespace)
    return out.getvalue()


def missing(shown: str, printed: str) -> str | None:
    """The first shown line that the output lacks from where the one before was found; None if all are there."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    place = 0
    for line in shown.splitlines():
        wanted = " ".join(line.split())
        if not wanted or wanted == "...":
            continue
        pattern = re.compile(".*".join(map(re.escape, wanted.split("..."))))
        hits = [i for i in range(place, len(lines)) if pattern.fullmatch(lines[i])]
        if not hits:
            return line
        place = hits[0] + 1
    return None
