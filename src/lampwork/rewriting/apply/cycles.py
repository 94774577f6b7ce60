"""Rewrites that undo each other: found by the expressions that one value has been."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import fx

from lampwork.graph.symbols import Symbolic
from lampwork.records import record
from lampwork.rewriting.matching.match import Match

_REPEATS = 2
"""How often an expression comes back before it is called a cycle: once may be chance."""
_GENERATIONS = 64
"""How many rewrites in a row of what rewrites made, none of which makes the graph smaller, are too many."""
_NODES = 16
"""Expressions are compared down to nodes that the rewrites did not make, or until they have so many."""


@record
class _Step:
    """`number` counts all steps of all values."""

    number: int
    name: str
    expression: Any


@record
class Endless:
    """Rewrites that undo each other, or one that always fits again. `closed`: with the last step the value is what it
    was before the first."""

    rewrites: tuple[str, ...]
    closed: bool


@dataclass(slots=True)
class _Line:
    """The rewrites of one value in order, and how often it has been each expression."""

    first: Any
    steps: list[_Step] = field(default_factory=list[_Step])
    seen: dict[Any, int] = field(default_factory=dict[Any, int])


@record
class _Origin:
    """Of a node that a rewrite made: the rewrite, and how many before it had only such nodes to work on."""

    name: str
    generation: int
    parent: _Origin | None


@dataclass(slots=True)
class Lineages:
    """What became of each value that was rewritten, and where each new node comes from. `limit`: so many rewrites in
    all are too many, whatever they do."""

    limit: int
    _origins: dict[fx.Node, _Origin] = field(default_factory=dict[fx.Node, _Origin])
    _lines: dict[fx.Node, _Line] = field(default_factory=dict[fx.Node, _Line])
    _count: int = 0

    def step(
        self,
        name: str,
        match: Match,
        old: Sequence[fx.Node],
        new: Sequence[fx.Node],
        made: Collection[fx.Node],
    ) -> Endless | None:
        """Note that the rewrite `name` puts `new` in the place of the results `old` of a match, making the nodes
        `made`; called while both are in the graph. None if all is well."""
        self._count += 1
        worst = self._descend(name, match, old, made)
        for before, after in zip(old, new, strict=True):
            line = self._lines.pop(before, None)
            if after not in made:
                # A node that was there before: the graph has become smaller.
                continue
            if line is None:
                line = _Line(self._expression(before))
                line.seen[line.first] = 1
            self._lines[after] = line
            expression = self._expression(after)
            line.steps.append(_Step(self._count, name, expression))
            count = line.seen[expression] = line.seen.get(expression, 0) + 1
            if count > _REPEATS:
                worst = worst or Endless(self._since(line, expression, match), expression == line.first)
        return worst

    def _descend(
        self, name: str, match: Match, old: Sequence[fx.Node], made: Collection[fx.Node]
    ) -> Endless | None:
        """Note where the nodes `made` come from. Rewrites that use up nodes which were there before come to an end, as
        do those that leave less than they find; others may go on for ever with what they make."""
        nodes = dict.fromkeys((*match.nodes, *old))
        gone = [n for n in nodes if n in match.roots or n in old or all(user in nodes for user in n.users)]
        parents = [found for n in match.nodes if (found := self._origins.get(n)) is not None]
        parent = max(parents, key=lambda o: o.generation, default=None)
        free = len(made) < len(gone) or any(n not in self._origins for n in gone)
        origin = _Origin(name, (parent.generation if parent else 0) + (not free), parent)
        for node in made:
            self._origins[node] = origin
        if origin.generation <= _GENERATIONS and self._count <= self.limit:
            return None
        names: list[str] = []
        link: _Origin | None = origin
        while link is not None and len(names) < _NODES:
            names.append(link.name)
            link = link.parent
        return Endless(tuple(dict.fromkeys(reversed(names))), closed=False)

    def _since(self, line: _Line, expression: Any, match: Match) -> tuple[str, ...]:
        """The rewrites of the match since its value was `expression` before, the last of which is now."""
        steps = line.steps[:-1]
        before = next((s.number for s in reversed(steps) if s.expression == expression), 0)
        inner = [found for n in match.nodes if (found := self._lines.get(n)) is not None]
        found = {s.number: s.name for part in (line, *inner) for s in part.steps if s.number > before}
        return tuple(dict.fromkeys(found[number] for number in sorted(found)))

    def _expression(self, node: fx.Node) -> Any:
        """What `node` computes, in terms of nodes that were there before: equal for equal trees of operations."""
        flat: list[Any] = []
        room = _NODES
        work: list[Any] = [node]
        while work:
            value = work.pop()
            if isinstance(value, fx.Node):
                if value is node or (room and value in self._origins):
                    room -= 1
                    flat.append(value.target)
                    work.extend((value.kwargs, value.args))
                else:
                    flat.append(value)
            elif isinstance(value, list | tuple):
                items = cast("Sequence[Any]", value)
                flat.append(len(items))
                work.extend(items)
            elif isinstance(value, dict):
                entries = cast("dict[str, Any]", value)
                flat.append(tuple(entries))
                work.extend(entries.values())
            elif isinstance(value, int | float):
                # 1, 1.0 and True are different arguments, and so are 0.0 and -0.0.
                flat.append((type(value), repr(value)))
            else:
                flat.append(str(value) if isinstance(value, Symbolic) else value)
        return tuple(flat)
