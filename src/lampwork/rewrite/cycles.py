"""Rewrites that undo each other: found by the expressions that one value has been."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import fx

from lampwork.graph.symbols import Symbolic

_QUIET = 8
"""How many rewrites of one value are taken for granted: most values see one or two, and comparing costs."""
_REPEATS = 2
"""How often an expression comes back before it is called a cycle: once may be chance."""
_NODES = 24
"""Expressions are compared down to nodes that the rewrites did not make, or until they have so many."""


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
            line = self._lines.pop(before, None) or _Line()
            if after not in made:
                # A node that was there before: the graph has become smaller.
                continue
            self._lines[after] = line
            line.growth += len(made) >= covered
            expression = self._expression(after) if len(line.steps) >= _QUIET else None
            line.steps.append((name, expression))
            if expression is not None:
                count = line.seen[expression] = line.seen.get(expression, 0) + 1
                if count > _REPEATS:
                    worst = worst or _since(line, expression)
            if line.growth > self.limit:
                worst = worst or tuple(dict.fromkeys(n for n, _ in line.steps[-_NODES:]))
        return worst

    def _expression(self, node: fx.Node) -> Any:
        """What `node` computes, in terms of nodes that were there before: equal for equal trees of operations."""
        flat: list[Any] = []
        room = _NODES
        work: list[Any] = [node]
        while work:
            value = work.pop()
            if isinstance(value, fx.Node):
                if room and value in self.made:
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


def _since(line: _Line, expression: Any) -> tuple[str, ...]:
    """The rewrites between the last two times that the value was `expression`, the last of which is now."""
    names: list[str] = []
    for name, reached in reversed(line.steps):
        if names and reached == expression:
            break
        names.append(name)
    return tuple(dict.fromkeys(reversed(names)))
