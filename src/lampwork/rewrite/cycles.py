"""Rewrites that undo each other: found by the expressions that one value has been."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import fx

from lampwork.graph.symbols import Symbolic

_REPEATS = 2
"""How often an expression comes back before it is called a cycle: once may be chance."""
_DEPTH = 16
"""Expressions are compared down to nodes that the rewrites did not make, or so many ops deep."""


@dataclass(slots=True)
class _Line:
    """The rewrites of one value in order, and how often it has been each expression."""

    steps: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    seen: dict[Any, int] = field(default_factory=dict[Any, int])
    growth: int = 0


@dataclass(slots=True)
class Lineages:
    """What became of each value that was rewritten. `limit`: how many rewrites of one value that do not make the
    graph smaller are too many."""

    limit: int
    made: set[fx.Node] = field(default_factory=set[fx.Node])
    _lines: dict[fx.Node, _Line] = field(default_factory=dict[fx.Node, _Line])

    def step(
        self,
        name: str,
        old: Sequence[fx.Node],
        new: Sequence[fx.Node],
        made: Collection[fx.Node],
        covered: int,
    ) -> tuple[str, ...]:
        """Note that the rewrite `name` puts `new` in the place of `old`, making the nodes `made` for the `covered`
        ones of the match; called while both are in the graph. Returns the rewrites of the cycle that this closes, or
        of the line that does not end; () if all is well."""
        self.made.update(made)
        worst: tuple[str, ...] = ()
        for before, after in zip(old, new, strict=True):
            line = self._lines.pop(before, None)
            if after not in made:
                # A node that was there before: the graph has become smaller.
                continue
            if line is None:
                line = _Line()
                line.seen[self._expression(before)] = 1
            self._lines[after] = line
            line.growth += len(made) >= covered
            expression = self._expression(after)
            line.steps.append((name, expression))
            count = line.seen[expression] = line.seen.get(expression, 0) + 1
            if count > _REPEATS:
                worst = worst or _since(line, expression)
            elif line.growth > self.limit:
                worst = worst or tuple(dict.fromkeys(n for n, _ in line.steps[-32:]))
        return worst

    def _expression(self, node: fx.Node, depth: int = _DEPTH) -> Any:
        return (node.target, self._value(node.args, depth), self._value(node.kwargs, depth))

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, fx.Node):
            return self._expression(value, depth - 1) if depth and value in self.made else value
        if isinstance(value, list | tuple):
            return tuple(self._value(v, depth) for v in cast("Sequence[Any]", value))
        if isinstance(value, dict):
            return tuple((k, self._value(v, depth)) for k, v in cast("dict[str, Any]", value).items())
        if isinstance(value, int | float):
            # 1, 1.0 and True are different arguments, and so are 0.0 and -0.0.
            return (type(value), repr(value))
        return str(value) if isinstance(value, Symbolic) else value


def _since(line: _Line, expression: Any) -> tuple[str, ...]:
    """The rewrites between the last two times that the value was `expression`, the last of which is now."""
    names: list[str] = []
    for name, reached in reversed(line.steps):
        if names and reached == expression:
            break
        names.append(name)
    return tuple(dict.fromkeys(reversed(names)))
