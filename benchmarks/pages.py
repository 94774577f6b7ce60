"""Figures between the markers of a page: `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"


def put(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers `name` of a page.

    Raises:
        ValueError: the page does not have each marker once.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page.name} needs {begin} and {end} once each")
    head, rest = whole.split(begin)
    page.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}")
