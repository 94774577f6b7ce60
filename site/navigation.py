"""The navigation is what docs/index.md links to: headings and bold items are captions, links entries, in that order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tests read the index where there is no Sphinx
    from sphinx.application import Sphinx

LINK = re.compile(r"\[([^\]]+)\]\(([\w./]+)\.md(?:#[\w-]*)?\)")
CAPTION = re.compile(r"^(?:## (.*)|\* \*\*(.*?)\*\*)", re.M)
# Opened from disk or served, the site begins at its top.
START = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Lampwork</title>
<meta http-equiv="refresh" content="0; url={page}"><a href="{page}">Lampwork</a></html>
"""


def entries(index: str) -> dict[str, list[tuple[str, str]]]:
    """By caption: (title, page) of each link beneath it. A page is listed where it comes first."""
    found: dict[str, list[tuple[str, str]]] = {}
    seen: set[str] = set()
    captions = list(CAPTION.finditer(index))
    for caption, after in zip(captions, [*captions[1:], None], strict=True):
        for title, page in LINK.findall(index[caption.end() : after.start() if after else None]):
            if page not in seen:
                found.setdefault(caption[1] or caption[2], []).append((title, page))
                seen.add(page)
    return found


def add_toctrees(app: Sphinx, name: str, source: list[str]) -> None:
    if name != app.config.root_doc:
        return
    for heading, pages in entries(source[0]).items():
        lines = [f"{title[0].upper()}{title[1:]} <{page}>" for title, page in pages]
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {heading}", "", *lines, "```\n"])


def write_start(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        Path(app.outdir, "index.html").write_text(START.format(page=f"{app.config.root_doc}.html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_toctrees)
    app.connect("build-finished", write_start)
    return {"parallel_read_safe": True}
