"""Pictures of tables as SVG: a heat map, and bars beside each other or end to end.

Each has a title and a description for those who do not see it, takes its colours from whether the reader's page is
light or dark, and writes its numbers out.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from lampwork.records import record
from lampwork.standard import math

ROW, LABEL, CHAR = 22, 130, 7.2
"""Height of a row, width of its label, and of a character."""

_LIGHT = """
.t{fill:#1f2328}.i{fill:#ffffff}.m{fill:#59636e}.g{stroke:#d1d9e0}
.c0{fill:#f6f8fa}.p1{fill:#ddf4ff}.p2{fill:#b6e3ff}.p3{fill:#80ccff}.p4{fill:#54aeff}
.n1{fill:#fff1e5}.n2{fill:#ffd8b5}.n3{fill:#ffb77c}.n4{fill:#fb8f44}
.s0{fill:#0969da}.s1{fill:#bc4c00}.s2{fill:#1a7f37}.s3{fill:#8250df}.s4{fill:#bf8700}.s5{fill:#cf222e}.s6{fill:#6e7781}
"""
_DARK = """
.t{fill:#e6edf3}.i{fill:#0d1117}.m{fill:#9198a1}.g{stroke:#3d444d}
.c0{fill:#161b22}.p1{fill:#0c2d6b}.p2{fill:#0d419d}.p3{fill:#1158c7}.p4{fill:#1f6feb}
.n1{fill:#3d1300}.n2{fill:#5a1e02}.n3{fill:#762d0a}.n4{fill:#9b4215}
.s0{fill:#4493f8}.s1{fill:#f0883e}.s2{fill:#3fb950}.s3{fill:#ab7df8}.s4{fill:#d29922}.s5{fill:#f85149}.s6{fill:#9198a1}
"""
SERIES = 7
"""Colours of series; more of them begin again."""

STEPS = (0.03, 0.1, 0.3, 1.0)
"""Logarithms from which a cell of a heat map has the next colour."""


@record
class Cell:
    """`text`: the number as it is written; `ratio`: what the colour says, 1 being none."""

    text: str
    ratio: float = 1.0


@record
class Picture:
    """`title`, `says`: for those who do not see it."""

    title: str
    says: str
    width: float
    height: float
    body: Sequence[str]

    def __str__(self) -> str:
        width, height = math.ceil(self.width), math.ceil(self.height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img" aria-labelledby="title says" '
                'font-family="system-ui, sans-serif" font-size="12">',
                f'<title id="title">{_text(self.title)}</title>',
                f'<desc id="says">{_text(self.says)}</desc>',
                f"<style>{_LIGHT}@media (prefers-color-scheme: dark){{{_DARK}}}</style>",
                *self.body,
                "</svg>\n",
            ]
        )


def heat_map(
    title: str, says: str, rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[Cell]]
) -> Picture:
    """A row for each name, a column for each; colours go from 1 to both sides, by the logarithm."""
    side = 52
    head = max((len(name) for name in columns), default=0) * CHAR * 0.66 + 14
    body: list[str] = []
    for number, name in enumerate(columns):
        x = LABEL + number * side + side / 2
        body.append(
            f'<text class="t" transform="translate({x:.1f} {head - 6:.1f}) rotate(-45)">{_text(name)}</text>'
        )
    for at, (name, line) in enumerate(zip(rows, cells, strict=True)):
        y = head + at * ROW
        body.append(_label(name, y))
        for number, cell in enumerate(line):
            x = LABEL + number * side
            body.append(
                f'<rect class="{_shade(cell.ratio)}" x="{x}" y="{y:.1f}" width="{side - 1}" height="{ROW - 1}"/>'
            )
            body.append(_written(cell.text, x + side / 2, y, "middle"))
    width = LABEL + len(columns) * side + head * 0.8
    return Picture(title, says, width, head + len(rows) * ROW + 4, body)


def bars(
    title: str,
    says: str,
    rows: Sequence[str],
    series: Sequence[str],
    values: Sequence[Sequence[float | None]],
    mark: float | None = None,
) -> Picture:
    """For each name, a bar of each series, with its number. `mark`: where a line stands."""
    known = [value for line in values for value in line if value is not None]
    most = max([*known, mark or 0.0], default=0.0) or 1.0
    span, thick = 420.0, 12
    group = thick * len(series) + 8
    body = _legend(series)
    top = 24.0
    for at, (name, line) in enumerate(zip(rows, values, strict=True)):
        y = top + at * group
        body.append(_label(name, y + (thick * len(series) - ROW) / 2))
        for number, value in enumerate(line):
            place = y + number * thick
            length = 0.0 if value is None else span * value / most
            body.append(
                f'<rect class="s{number % SERIES}" x="{LABEL}" y="{place:.1f}" width="{length:.1f}" '
                f'height="{thick - 2}"/>'
            )
            written = "not measured" if value is None else f"{value:.2f}"
            body.append(
                f'<text class="t" font-size="10" x="{LABEL + length + 4:.1f}" y="{place + thick - 3:.1f}">'
                f"{written}</text>"
            )
    height = top + len(rows) * group
    if mark is not None:
        x = LABEL + span * mark / most
        body.append(f'<line class="g" x1="{x:.1f}" y1="{top - 4:.1f}" x2="{x:.1f}" y2="{height:.1f}"/>')
    return Picture(title, says, LABEL + span + 80, height + 4, body)


def shares(
    title: str, says: str, rows: Sequence[str], series: Sequence[str], values: Sequence[Sequence[float]]
) -> Picture:
    """For each name one bar, divided among the series; parts that have room for it have their percentage."""
    span = 480.0
    body = _legend(series)
    top = 24.0
    for at, (name, line) in enumerate(zip(rows, values, strict=True)):
        y, x, total = top + at * ROW, float(LABEL), sum(line) or 1.0
        body.append(_label(name, y))
        for number, value in enumerate(line):
            length = span * value / total
            if not length:
                continue
            body.append(
                f'<rect class="s{number % SERIES}" x="{x:.1f}" y="{y:.1f}" width="{length:.1f}" '
                f'height="{ROW - 3}"/>'
            )
            if length > 30:
                body.append(
                    f'<text class="i" font-size="10" text-anchor="middle" x="{x + length / 2:.1f}" '
                    f'y="{y + 14:.1f}">{100 * value / total:.0f} %</text>'
                )
            x += length
    return Picture(title, says, LABEL + span + 20, top + len(rows) * ROW + 4, body)


def _legend(series: Sequence[str]) -> list[str]:
    found: list[str] = []
    x = float(LABEL)
    for number, name in enumerate(series):
        found.append(f'<rect class="s{number % SERIES}" x="{x:.1f}" y="4" width="10" height="10"/>')
        found.append(f'<text class="t" x="{x + 14:.1f}" y="13">{_text(name)}</text>')
        x += 14 + len(name) * CHAR + 16
    return found


def _label(name: str, y: float) -> str:
    return f'<text class="t" x="{LABEL - 8}" y="{y + 15:.1f}" text-anchor="end">{_text(name)}</text>'


def _written(text: str, x: float, y: float, anchor: str) -> str:
    shade = "m" if text in ("=", "-") else "t"
    return f'<text class="{shade}" x="{x:.1f}" y="{y + 15:.1f}" text-anchor="{anchor}">{_text(text)}</text>'


def _shade(ratio: float) -> str:
    if not ratio > 0:
        return "c0"
    distance = abs(math.log(ratio))
    step = sum(distance >= each for each in STEPS)
    return "c0" if not step else f"{'p' if ratio > 1 else 'n'}{step}"


def _text(text: str) -> str:
    return html.escape(text)
