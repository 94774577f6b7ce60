"""`compiled.entries`: a read-only view of the compiled versions of a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from lampwork.capture.model.printing import format_guard, format_guards
from lampwork.capture.model.region import Guard, Record, Region
from lampwork.compiled.stages import Stages
from lampwork.display import Block, Folded, Listing, Shown, Table
from lampwork.errors import Location
from lampwork.graph.printing import target_name
from lampwork.runtime import Compiled, Executable
from lampwork.runtime import Entry as Served


class Guards(Listing[Guard]):
    """The guards of one version, a tuple of Guard: `source`, `kind`, `expected` and the user's `line` that needs it.
    `str()` lists them, followed by the symbols and conditions of the version."""

    text: str

    @staticmethod
    def of(region: Region) -> Guards:
        guards = Guards((*region.guards, *region.slow_guards))
        guards.text = format_guards(region)
        return guards

    def _line(self, item: Guard) -> str:
        return format_guard(item)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, repr=False)
class Entry(Shown):
    """One compiled version, which serves all calls that meet its guards: from the start of the function to its end or
    its first graph break. Read-only.

    `breaks`: the record of the graph break at its end, if there is one. `stages`: its stages, like `compiled.stages`.
    """

    name: str
    breaks: tuple[Record, ...]
    stages: Stages
    region: Region
    served: Served

    @property
    def guards(self) -> Guards:
        """The conditions on which this version serves a call."""
        return Guards.of(self.region)

    @property
    def hits(self) -> int:
        """How many calls this version has served."""
        return self.served.hits

    @property
    def refreshes(self) -> int | None:
        """How often what depends on weights alone was computed again, because one had changed; None where nobody
        counts that. Versions for other sizes share it."""
        programs = [self.served.program, *(program for _, program in self.served.specializations)]
        return max(
            (each.stats["constant_refreshes"] for each in programs if isinstance(each, Executable)),
            default=None,
        )

    @property
    def regions(self) -> tuple[Entry, ...]:
        """This version, followed by the versions it continues in: those of resume functions after its graph break and
        of callees that are compiled separately. Each is listed once."""
        found: dict[int, Entry] = {}
        work: list[Entry] = [self]
        while work:
            entry = work.pop()
            if id(entry) in found:
                continue
            found[id(entry)] = entry
            for step in reversed(entry.region.recipe.steps):
                if step.kind == "const" and isinstance(step.payload, Compiled):
                    work.extend(reversed(entries_of(step.payload)))
        return tuple(found.values())

    @property
    def operators(self) -> Mapping[str, int]:
        """How often each ATen operator occurs in the recorded graph, most frequent first."""
        if self.stages.aten is None:
            return {}
        names = (target_name(node.target) for node in self.stages.aten.nodes if _is_operator(node))
        counts = Counter(names)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def lines(self) -> tuple[Location, ...]:
        """The lines of the user's program that the operators come from, in order and without duplicates."""
        if self.stages.aten is None:
            return ()
        found = (node.meta.get("location") for node in self.stages.aten.nodes if _is_operator(node))
        return tuple(dict.fromkeys(location for location in found if location is not None))

    def _brief(self) -> str:
        region = self.region
        found = (
            f"{self.name}: {_count(sum(self.operators.values()), 'operator')}, {_count(self.hits, 'call')}"
        )
        found += f", {_count(len(region.guards) + len(region.slow_guards), 'guard')}"
        return found + "".join(f", ends in a break in line {record.line}" for record in self.breaks)

    def _blocks(self) -> Iterable[Block]:
        yield self._brief()
        yield Table(("operators", ""), tuple((str(count), name) for name, count in self.operators.items()))
        yield Folded("guards", str(self.guards))
        for record in self.breaks:
            yield f"ends in a break: {record}"
        yield Folded("stages", self.stages.summary())

    def __str__(self) -> str:
        return f"{self.name}: {sum(self.operators.values())} operators, {self.hits} calls\n{self.guards}"


class Entries(Listing[Entry]):
    """The versions of a function, oldest first."""

    __slots__ = ()

    def _blocks(self) -> Iterable[Block]:
        if not self:
            yield "nothing is compiled yet; call the function once"
            return
        head = ("version", "operators", "calls", "guards", "compiled in", "ends in a break")
        yield Table(head, tuple(map(_row, self)))


def _row(entry: Entry) -> tuple[str, ...]:
    region = entry.region
    return (
        entry.name,
        str(sum(entry.operators.values())),
        str(entry.hits),
        str(len(region.guards) + len(region.slow_guards)),
        f"{sum(entry.stages.seconds.values()):.2f} s",
        ", ".join(f"[{record.code}] line {record.line}: {record.cause}" for record in entry.breaks),
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _is_operator(node: fx.Node) -> bool:
    return node.op == "call_function" and target_name(node.target) != "getitem"


def entries_of(compiled: Callable[..., Any]) -> tuple[Entry, ...]:
    """The versions of a compiled callable; () for anything else."""
    return getattr(compiled, "entries", ())
