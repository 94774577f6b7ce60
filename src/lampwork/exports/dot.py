"""Drawings in Graphviz's language: modules are clusters, what one kernel computes has one colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lampwork.exports.drawing import Drawing, Drawn, colour, ends

_SHAPES = {"input": "ellipse", "weight": "note", "operator": "box", "output": "ellipse"}


def texts(drawings: Sequence[Drawing], path: Path) -> dict[Path, str]:
    """The file: one graph, in which several regions stand beside each other."""
    lines = [
        f"digraph {quoted(path.stem)} {{",
        '  node [fontname="Helvetica", fontsize=10, style=filled, fillcolor=white];',
        '  edge [fontname="Helvetica", fontsize=8, color="#555555"];',
        '  compound=true; rankdir=TB; fontname="Helvetica";',
    ]
    for number, drawing in enumerate(drawings):
        lines += _lines(drawing, f"g{number}", alone=len(drawings) == 1)
    return {path: "\n".join([*lines, "}"]) + "\n"}


def quoted(text: str) -> str:
    """A text as an id or a label of DOT. Only quotes are escaped there, but labels read backslashes too."""
    kept = "".join(sign if sign.isprintable() else " " for sign in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(lines: Sequence[str]) -> str:
    """Several lines: the line ends are DOT's own escapes, so they come between texts that are escaped."""
    return '"' + "\\n".join(quoted(line)[1:-1] for line in lines if line) + '"'


@dataclass(slots=True)
class _Cluster:
    """The nodes of a module, and the modules in it."""

    path: str
    nodes: list[Drawn] = field(default_factory=list[Drawn])
    inner: dict[str, _Cluster] = field(default_factory=dict[str, "_Cluster"])

    def at(self, path: str) -> _Cluster:
        found = self
        for part in path.split(".") if path else ():
            inside = f"{found.path}.{part}" if found.path else part
            found = found.inner.setdefault(part, _Cluster(inside))
        return found


def _lines(drawing: Drawing, prefix: str, *, alone: bool) -> Iterator[str]:
    root = _Cluster("")
    for node in drawing.nodes:
        root.at(node.module).nodes.append(node)
    if alone:
        yield f"  label={quoted(drawing.name)};"
        yield from _cluster(root, drawing, prefix, "  ")
    else:
        yield f"  subgraph {quoted(f'cluster_{prefix}')} {{"
        yield f"    label={quoted(drawing.name)};"
        yield from _cluster(root, drawing, prefix, "    ")
        yield "  }"
    given = {node.id: node.values for node in drawing.nodes}
    for node in drawing.nodes:
        for source, output in node.reads:
            values = given.get(source, ())
            label = f" [label={quoted(values[output])}]" if output < len(values) else ""
            yield f"  {quoted(f'{prefix}/{source}')} -> {quoted(f'{prefix}/{node.id}')}{label};"


def _cluster(cluster: _Cluster, drawing: Drawing, prefix: str, space: str) -> Iterator[str]:
    last = ends(drawing)
    for node in cluster.nodes:
        yield f"{space}{quoted(f'{prefix}/{node.id}')} [{_attributes(node, drawing, last)}];"
    for inner in cluster.inner.values():
        kind = drawing.kinds.get(inner.path, "")
        yield f"{space}subgraph {quoted(f'cluster_{prefix}/{inner.path}')} {{"
        title = f"{inner.path} ({kind})" if kind else inner.path
        yield f'{space}  label={quoted(title)}; color="#888888"; style=rounded;'
        yield from _cluster(inner, drawing, prefix, f"{space}  ")
        yield f"{space}}}"


def _attributes(node: Drawn, drawing: Drawing, last: dict[int, str]) -> str:
    lines = [node.label]
    if node.kind in ("input", "weight"):
        lines += node.values
    for number in node.kernels:
        kernel = drawing.kernels[number]
        time = f", {kernel.seconds * 1e6:.3g} µs" if kernel.seconds is not None else ""
        lines.append(f"kernel {number}{time}" if last[number] == node.id else f"kernel {number}")
    found = [f"label={_label(lines)}", f"shape={_SHAPES[node.kind]}"]
    if node.kernels:
        found.append(f"fillcolor={quoted(colour(node.kernels[-1]))}")
    tip = [node.id, node.line, *(f"kernel {n}: {drawing.kernels[n].name}" for n in node.kernels)]
    return ", ".join([*found, f"tooltip={_label(tip)}"])
