"""Blocks of code of Markdown pages: taken out, run, and compared with the output shown beneath them."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from lampwork import cli
from lampwork.plugins import registry as plugins

ROOT = Path(__file__).parents[3]
REASON = re.compile(r"<!--\s*not run:\s+(.+?)\s*-->\s*", re.S)
RUN = ("python", "console")


@dataclass(frozen=True, slots=True)
class Block:
    """A block, and the number of its first line of code (from 1).

    `shown`: of a ```python block the ```text block that follows it at once: lines that its output must hold, in this
    order. `...` within a line stands for anything, on its own for lines. A ```console block shows output beneath each
    of its commands, `$ lampwork …`. `language`: "" where it is only indented. `reason`: why it is not run, as the
    comment before it says, `<!-- not run: … -->`.
    """

    code: str
    line: int
    shown: str | None = None
    language: str = "python"
    reason: str | None = None


def all_blocks(text: str) -> list[Block]:
    tokens = [t for t in MarkdownIt("commonmark").parse(text) if not t.type.endswith("_close")]
    found: list[Block] = []
    for number, token in enumerate(tokens):
        if token.type not in ("fence", "code_block"):
            continue
        before = tokens[number - 1].content if number and tokens[number - 1].type == "html_block" else ""
        reason = REASON.fullmatch(before)
        language = token.info.strip()
        assert token.map is not None
        line = token.map[0] + (2 if token.type == "fence" else 1)
        previous = found[-1] if number and tokens[number - 1].type == "fence" else None
        if language == "text" and previous is not None and previous.language in ("python", "py"):
            found[-1] = Block(previous.code, previous.line, token.content, previous.language, previous.reason)
        else:
            found.append(Block(token.content, line, None, language, reason[1] if reason else None))
    return found


def blocks_of(text: str) -> list[Block]:
    """Those that are run."""
    return [block for block in all_blocks(text) if block.language in RUN and block.reason is None]


def run_block(block: Block, page: Path, namespace: dict[str, Any]) -> str:
    """What the block prints, to either stream. Its line numbers are those of the page."""
    code = compile("\n" * (block.line - 1) + block.code, page.name, "exec")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        exec(code, namespace)
    return out.getvalue()


def script_of(block: Block) -> str | None:
    """The name of a block that begins with `# name.py`: a file for the commands of its page, which run it."""
    name = re.match(r"# (\w+\.py)\n", block.code)
    return name[1] if name is not None and block.language == "python" else None


def run_commands(block: Block, folder: Path) -> list[tuple[str, str]]:
    """Runs each command `$ lampwork …` of a ```console block in the folder, in this process, which has torch already:
    (what is shown beneath it, what it printed). What its script registers is gone after it."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block.code, flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        program, *words = shlex.split(command)
        assert program == "lampwork", f"only commands of lampwork are run, not {command}"
        before, out = set(plugins.registry().all()), io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            cli.main(words)
        for item in set(plugins.registry().all()) - before:
            item.unregister()
        found.append((shown, out.getvalue()))
    return found


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
