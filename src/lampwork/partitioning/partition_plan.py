"""What a partition would be, why, and what would change it, without compiling anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from lampwork.backends.protocol import Backend
from lampwork.capture.model.region import Record
from lampwork.display import Block, Folded, Shown, Table
from lampwork.errors import BackendError, Location
from lampwork.partitioning.account import DryRun, PartEstimate, estimate_lines, estimates
from lampwork.partitioning.assign import Answers
from lampwork.partitioning.parts import Part, calls_in, partition
from lampwork.records import record
from lampwork.rewriting.flops import flops
from lampwork.rewriting.schema import packet_name

BLOCK_SIZES = (1, 2, 5, 10)
"""What `PartitionPlan.block_sizes` tries."""

TRIED_OPS = 20
"""Of how many refused operators `PartitionPlan.missing` looks for a set."""

MORE_OPS = 5
"""For how many refused operators `PartitionPlan.one_more` says what would be if they were taken."""


@record
class Share(Shown):
    """How much of a model one backend has: operators, parts, and floating point operations of a call (None where a
    size is not known)."""

    backend: str
    nodes: int
    parts: int
    flops: int | None


@record
class RefusalGroup(Shown):
    """A reason for which `backend` refused calls of `op`: how many, and the user's line of the first."""

    backend: str
    op: str
    reason: str
    nodes: int
    location: Location | None


@record
class Change(Shown):
    """What a change would give: `text` says which; `nodes` are those of `backend`, `parts` its parts, `all_parts`
    those of all."""

    text: str
    backend: str
    nodes: int
    parts: int
    all_parts: int


@record
class Missing:
    """Operators of which `backend` would have to take all calls for each region to be one part, found greedily: first
    those that leave the fewest parts, then without those that turn out not to be needed. There may be smaller sets."""

    backend: str
    operators: tuple[str, ...]


@record
class RegionPlan(Shown):
    """One captured region: its graph after the passes, and the parts it would be cut into."""

    name: str
    graph: fx.Graph
    parts: tuple[Part, ...]
    answers: Answers


@dataclass(slots=True)
class Faults:
    """A Report that collects."""

    found: list[BackendError] = field(default_factory=list[BackendError])

    def __call__(self, error: BackendError, instead: str, *, calling: bool = False) -> None:
        self.found.append(error)


@record
class PartitionPlan(Shown):
    """How a model would be divided between backends. Print it, or call `dry_run`.

    `regions`: the captured regions, more than one if there are graph breaks. `faults`: where a backend answered
    nonsense. `records`: graph breaks and what could not be captured.
    """

    backends: tuple[str, ...]
    regions: tuple[RegionPlan, ...]
    faults: tuple[BackendError, ...] = ()
    records: tuple[Record, ...] = ()

    @staticmethod
    def of(
        graphs: Iterable[tuple[str, fx.Graph]], backends: Sequence[Backend], records: Sequence[Record] = ()
    ) -> PartitionPlan:
        """The plan for graphs as they are after the passes."""
        faults = Faults()
        regions: list[RegionPlan] = []
        for name, graph in graphs:
            answers = Answers(graph, tuple(backends), faults)
            regions.append(
                RegionPlan(name, graph, tuple(partition(graph, backends, answers=answers)), answers)
            )
        return PartitionPlan(
            tuple(b.name for b in backends), tuple(regions), tuple(faults.found), tuple(records)
        )

    def dry_run(self) -> DryRun:
        """An account of coverage, parts, every reason for a refusal, and what would change them; print it."""
        found = [each for region in self.regions for each in _estimates(region)]
        return DryRun(tuple(found), str(self))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all regions, in order."""
        return tuple(part for region in self.regions for part in region.parts if part.nodes)

    @property
    def nodes(self) -> int:
        """How many operators are divided: all but those that depend on weights only."""
        return sum(calls_in(part.nodes) for part in self.parts)

    @property
    def coverage(self) -> tuple[Share, ...]:
        """What each backend has; those with nothing too."""
        return _shares(self.parts, self.backends)

    @property
    def refusals(self) -> tuple[RefusalGroup, ...]:
        """Why backends refused operators that came to them, the most frequent reasons first."""
        groups: dict[tuple[str, str, str], list[fx.Node]] = {}
        for region in self.regions:
            for node, taker in _takers(region):
                for refusal in region.answers.refusals(node, taker):
                    key = (refusal.backend, refusal.op, refusal.reason)
                    groups.setdefault(key, []).append(node)
        found = [
            RefusalGroup(*key, len(nodes), nodes[0].meta.get("location")) for key, nodes in groups.items()
        ]
        return tuple(sorted(found, key=lambda group: -group.nodes))

    @property
    def block_sizes(self) -> tuple[Change, ...]:
        """What there would be with other values of `min_block_size`, for each backend that is not ours."""
        return tuple(
            self._changed(f"min_block_size = {size}", number, min_block_size=size)
            for number in self._foreign()
            for size in BLOCK_SIZES
        )

    @property
    def one_more(self) -> tuple[Change, ...]:
        """What there would be if a backend took one more operator, for those it refused most often."""
        found: list[Change] = []
        for number in self._foreign():
            name = self.backends[number]
            counts: Counter[str] = Counter()
            for group in self.refusals:
                if group.backend == name:
                    counts[group.op] += group.nodes
            for op, _ in counts.most_common(MORE_OPS):
                found.append(self._changed(f"{op} supported as well", number, also=(op,)))
        return tuple(found)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """For each backend that is not ours: the operators that keep regions from being one part of it. Backends for
        which no set does that, which need none, or which refuse more than `TRIED_OPS` operators are left out."""
        found: list[Missing] = []
        for number in self._foreign():
            name = self.backends[number]
            refused = list(dict.fromkeys(group.op for group in self.refusals if group.backend == name))
            operators = self._missing(number, refused) if 0 < len(refused) <= TRIED_OPS else ()
            if operators:
                found.append(Missing(name, tuple(operators)))
        return tuple(found)

    def _missing(self, number: int, refused: Sequence[str]) -> list[str]:
        def left(operators: Sequence[str]) -> tuple[int, int]:
            """How many parts there are too many, and how many operators others have."""
            change = self._changed("", number, also=operators)
            return change.all_parts - len(self.regions), self.nodes - change.nodes

        if left(refused) != (0, 0):
            return []
        chosen: list[str] = []
        while left(chosen) != (0, 0):
            rest = [op for op in refused if op not in chosen]
            chosen.append(min(rest, key=lambda op: left([*chosen, op])))
        for op in list(chosen):
            without = [other for other in chosen if other != op]
            if left(without) == (0, 0):
                chosen = without
        return chosen

    def _foreign(self) -> list[int]:
        answers = self.regions[0].answers if self.regions else None
        return [i for i in range(len(self.backends)) if answers is not None and not answers.traits(i).trusted]

    def _changed(self, text: str, number: int, **change: Any) -> Change:
        parts: list[Part] = []
        for region in self.regions:
            answers = region.answers.varied(number, **change)
            parts += [p for p in partition(region.graph, answers.backends, answers=answers) if p.nodes]
        name = self.backends[number]
        share = next(share for share in _shares(parts, (name,)) if share.backend == name)
        return Change(text, name, share.nodes, share.parts, len(parts))

    def _brief(self) -> str:
        shares = ", ".join(f"{share.backend} {share.nodes}" for share in self.coverage)
        return f"{_head(self)}; operators by backend: {shares}"

    def _blocks(self) -> Iterable[Block]:
        yield _head(self)
        yield Table(("backend", "operators", "parts", "of the arithmetic"), tuple(_share_rows(self)))
        yield from (f"not captured in one piece: {entry}" for entry in self.records)
        if self.refusals:
            rows = [(g.backend, g.op, str(g.nodes), g.reason, str(g.location or "")) for g in self.refusals]
            yield Table(("refused by", "operator", "times", "why", "first at"), tuple(rows))
        yield from (fault.cause for fault in self.faults)
        changes = (*self.block_sizes, *self.one_more)
        if changes:
            rows = [(c.backend, c.text, str(c.nodes), str(c.parts), str(c.all_parts)) for c in changes]
            yield Table(("backend", "with", "operators", "parts", "parts in all"), tuple(rows))
        for region in self.regions:
            yield Folded(f"parts of {region.name}", "\n".join(_part_lines(region.parts)))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _estimates(region: RegionPlan) -> list[PartEstimate]:
    return estimates([part for part in region.parts if part.nodes], region.answers)


def _takers(region: RegionPlan) -> Iterable[tuple[fx.Node, int]]:
    numbers = {id(backend): i for i, backend in enumerate(region.answers.backends)}
    for part in region.parts:
        for node in part.nodes:
            if calls_in([node]):
                yield node, numbers[id(part.backend)]


def _shares(parts: Sequence[Part], names: Sequence[str]) -> tuple[Share, ...]:
    found: dict[str, Share] = {name: Share(name, 0, 0, 0) for name in names}
    for part in parts:
        name = part.backend.name
        before = found.get(name, Share(name, 0, 0, 0))
        counts = [flops(node) for node in part.nodes if calls_in([node])]
        known = [count for count in counts if count is not None]
        total = None if before.flops is None or len(known) < len(counts) else before.flops + sum(known)
        found[name] = Share(name, before.nodes + len(counts), before.parts + 1, total)
    return tuple(found.values())


def _head(plan: PartitionPlan) -> str:
    return f"{len(plan.regions)} regions, {plan.nodes} operators, {len(plan.parts)} parts"


def _share_rows(plan: PartitionPlan) -> Iterable[tuple[str, str, str, str]]:
    """Backend, operators, parts, and the part of the arithmetic: "" where that is not known."""
    shares = plan.coverage
    total = sum(share.flops or 0 for share in shares)
    known = all(share.flops is not None for share in shares) and total > 0
    for share in shares:
        percent = 100 * share.nodes / plan.nodes if plan.nodes else 0
        arithmetic = f"{100 * (share.flops or 0) / total:.1f} %" if known else ""
        yield share.backend, f"{share.nodes} operators ({percent:.1f} %)", f"{share.parts} parts", arithmetic


def _lines(plan: PartitionPlan) -> Iterable[str]:
    yield _head(plan)
    for backend, operators, parts, arithmetic in _share_rows(plan):
        share = f", {arithmetic} of the arithmetic" if arithmetic else ""
        yield f"{backend}: {operators} in {parts}{share}"
    for entry in plan.records:
        yield f"not captured in one piece: {entry}"
    for region in plan.regions:
        yield f"\nparts of {region.name}:"
        yield from _part_lines(region.parts)
        yield from estimate_lines(_estimates(region))
    if plan.refusals:
        yield "\nrefused:"
    for group in plan.refusals:
        where = f", first at {group.location}" if group.location is not None else ""
        yield f"  {group.backend}, {group.op} x{group.nodes}: {group.reason}{where}"
    for fault in plan.faults:
        yield f"  {fault.cause}"
    changes = (*plan.block_sizes, *plan.one_more)
    if changes:
        yield "\nwhat would change it:"
    for change in changes:
        yield (
            f"  {change.backend}, {change.text}: {change.nodes} operators in {change.parts} parts "
            f"({change.all_parts} in all)"
        )
    for missing in plan.missing:
        yield f"  {missing.backend}, to be all of one part (found greedily): {', '.join(missing.operators)}"


def _part_lines(parts: Sequence[Part]) -> Iterable[str]:
    """One line for all parts that look alike."""
    numbers: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        numbers.setdefault(part_text(part), []).append(number)
    for text, found in numbers.items():
        shown = ", ".join(map(str, found[:3])) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        yield f"  {text}: {'part' if len(found) == 1 else 'parts'} {shown}"


def part_text(part: Part) -> str:
    """Backend, and operators by frequency."""
    counts = Counter(packet_name(n.target) for n in part.nodes if calls_in([n]))
    ops = ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.most_common())
    return f"{part.backend.name}: {ops or 'nothing'}"
