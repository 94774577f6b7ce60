"""Groups: definitions that share a loop over rows or over all points.

Each definition, in order, joins the group of something it reads (or a group that reads the same data), if

* what it reads of that group is made by the same row (rows groups) or the same point (pointwise groups),
* no other group must run in between, and
* nothing is lost: rows enough for the threads, stores that stay contiguous, groups of bounded size.

Joining means taking over the group's loop variables: rows keep their names, inner axes take the names of an inner
domain of the group that they agree with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from lampwork.errors import InvalidLoopsError
from lampwork.loops.fusion.align import Domain, join_pointwise, join_rows, to_rows
from lampwork.loops.fusion.effects import may_fail
from lampwork.loops.fusion.fuse_inline import inlined
from lampwork.loops.fusion.fuse_layout import Layout
from lampwork.loops.fusion.group import Group
from lampwork.loops.fusion.work import Work
from lampwork.loops.ir.definitions import mutated_by, name_of, outs_of, overwritten_by, reads_of
from lampwork.loops.ir.nodes import (
    Attention,
    Definition,
    Extern,
    Gemm,
    Map,
    PackB,
    Recurrence,
    RecurrenceGradient,
    Reduce,
    Scan,
)
from lampwork.records import record
from lampwork.standard import heapq

_MOST_MEMBERS = 24
_RECENT = 8  # groups that read a buffer, among which one over the same points is looked for


@dataclass(slots=True)
class _Draft:
    """A group while it grows. `after`: bits of the groups that must run before it, directly or not."""

    kind: Literal["pointwise", "rows", "single"]
    domain: Domain
    numbers: list[int]
    direct: set[int] = field(default_factory=set[int])
    after: int = 0


@record
class _Join:
    """A definition that may join the group of another one."""

    name: str
    onto: str

    def __str__(self) -> str:
        return f"join {self.name} to the group of {self.onto}"


def form_groups(work: Work, *, joins: bool = True) -> list[Group]:
    """The groups of all definitions, in an order in which they can run. `joins`: whether any has several."""
    former = _Former(work, joins)
    for number, definition in work.alive():
        former.add(number, definition)
    return former.finish()


class _Former:
    def __init__(self, work: Work, joins: bool) -> None:
        self.work = work
        self.joins = joins
        self.layout = Layout(work.hints, work.machine)
        self.drafts: list[_Draft] = []
        self.owner: dict[str, int] = {}  # buffer -> the group that makes it (the last, if several do)
        self.owners: dict[str, set[int]] = {}
        self.last_random = -1  # the group that draws random numbers last
        self.group_readers: dict[str, list[int]] = {}  # buffer -> groups that read it, latest last

    # --- one definition -----------------------------------------------------------------------------------------------

    def add(self, number: int, definition: Definition) -> None:
        needs = self._needs(number, definition)
        if isinstance(definition, Map | Reduce) and self._may_join(number, definition):
            for candidate in self._candidates(number):
                if self._join(candidate, number, definition, needs):
                    self._record(candidate, number)
                    return
        draft = _Draft(_kind(definition), Domain.of(definition), [number])
        self.drafts.append(draft)
        self._depend(len(self.drafts) - 1, needs)
        self._record(len(self.drafts) - 1, number)

    def _needs(self, number: int, definition: Definition) -> set[int]:
        """The groups that make what the definition reads, and those that must not be overtaken."""
        found: set[int] = set()
        for name in self.work.reads[number]:
            found |= self.owners.get(name, set())
        for name in (*mutated_by(definition), *overwritten_by(definition)):
            found.update(self.group_readers.get(name, ()))
        if self.last_random >= 0 and isinstance(definition, Extern) and definition.random:
            found.add(self.last_random)
        return found

    def _may_join(self, number: int, definition: Map | Reduce) -> bool:
        if not self.joins or definition.out.name in self.work.shared:
            return False
        return not self.work.reads[number] & self.work.mutated

    def _candidates(self, number: int) -> list[int]:
        """Groups to try: those that make what is read, latest first, then recent ones that read the same."""
        makers = {self.owner[name] for name in self.work.reads[number] if name in self.owner}
        beside = {
            group for name in self.work.reads[number] for group in self.group_readers.get(name, ())[-_RECENT:]
        }
        beside |= self._beside_on_card(self.work.definitions[number])
        ordered = sorted(makers, reverse=True) + sorted(beside - makers, reverse=True)
        return [group for group in ordered if self.drafts[group].kind != "single"]

    def _beside_on_card(self, definition: Definition | None) -> set[int]:
        """Recent groups that reduce as many points to one, whatever these are: a launch costs a card more than both."""
        if not self.work.machine.processors or not isinstance(definition, Reduce) or definition.axes:
            return set()
        extents = [axis.extent for axis in definition.over]
        found: set[int] = set()
        for group in range(max(len(self.drafts) - _RECENT, 0), len(self.drafts)):
            first = self.work.definitions[self.drafts[group].numbers[0]]
            if (
                isinstance(first, Reduce)
                and not first.axes
                and [axis.extent for axis in first.over] == extents
            ):
                found.add(group)
        return found

    def _join(self, candidate: int, number: int, definition: Map | Reduce, needs: set[int]) -> bool:
        draft = self.drafts[candidate]
        what = _Join(definition.out.name, self._name(draft))
        vertical = any(self.owner.get(name) == candidate for name in self.work.reads[number])
        if len(draft.numbers) >= _MOST_MEMBERS:
            return self._no(what, f"the group has {_MOST_MEMBERS} members", vertical)
        if any(self.drafts[need].after >> candidate & 1 for need in needs if need != candidate):
            return self._no(what, "another group must run in between", vertical)
        members = [self._member(each) for each in draft.numbers]
        joined = self._aligned(draft, members, definition, vertical)
        if isinstance(joined, str):
            return self._no(what, joined, vertical)
        kind, domain, renamed, renamed_members = joined
        if kind == "rows" and (reason := self.layout.too_few_rows(domain, [*renamed_members, renamed])):
            return self._no(what, reason, vertical)
        if kind == "rows" and not self._holds_columns(domain, renamed, renamed_members):
            reason = self.layout.deep_columns(domain, renamed, renamed_members)
            if reason:
                return self._no(what, reason, vertical)
        draft.kind, draft.domain = kind, domain
        for each, member in zip(draft.numbers, renamed_members, strict=True):
            if member is not self.work.definitions[each]:
                self.work.replace(each, member)
        self.work.replace(number, renamed)
        draft.numbers.append(number)
        self._depend(candidate, needs - {candidate})
        reason = "same rows" if kind == "rows" else "same points"
        return self.work.decide(str(what), True, reason, what.name, what.onto)

    def _holds_columns(
        self, domain: Domain, definition: Map | Reduce, members: Sequence[Map | Reduce]
    ) -> bool:
        """Whether the next pass down the columns finds in scratch what this definition or one before it made there."""
        makers = [*members, definition] if self._is_reduced(definition) else members
        return any(
            self.work.is_internal(each.out.name) and self.layout.holds_columns(domain, each, members)
            for each in makers
        )

    def _is_reduced(self, definition: Map | Reduce) -> bool:
        """Whether a reduction reads it, so that a block of its rows stays in scratch."""
        readers = self.work.readers_of(definition.out.name)
        return any(isinstance(self.work.definitions[number], Reduce) for number in readers)

    def _aligned(
        self, draft: _Draft, members: list[Map | Reduce], definition: Map | Reduce, vertical: bool
    ) -> tuple[Literal["pointwise", "rows"], Domain, Map | Reduce, list[Map | Reduce]] | str:
        """The definition, and the members, in common variables; or why that is not possible."""
        if draft.kind == "rows":
            joined = join_rows(draft.domain, members, definition, anyway=self.work.machine.processors > 0)
            if isinstance(joined, str):
                return joined
            return "rows", joined[0], joined[1], members
        maps = [member for member in members if isinstance(member, Map)]
        if isinstance(definition, Map):
            renamed = join_pointwise(maps, definition)
            if isinstance(renamed, str):
                return renamed
            if reason := self.layout.strided_store(maps, renamed):
                return reason
            return "pointwise", draft.domain, renamed, members
        if not vertical:
            return "a reduction beside Maps"
        converted = to_rows(maps, definition)
        if isinstance(converted, str):
            return converted
        return "rows", converted[0], definition, list(converted[1])

    def _no(self, what: _Join, reason: str, vertical: bool) -> bool:
        """Records refusals to join what is read; that two readers of one buffer do not match is nothing to tell."""
        if vertical:
            self.work.decide(str(what), False, reason, what.name, what.onto)
        return False

    def _member(self, number: int) -> Map | Reduce:
        definition = self.work.definitions[number]
        assert isinstance(definition, Map | Reduce)
        return definition

    def _name(self, draft: _Draft) -> str:
        first = self.work.definitions[draft.numbers[0]]
        return "?" if first is None else name_of(first)

    def _without_large(self, draft: _Draft, definitions: tuple[Definition, ...]) -> tuple[Definition, ...]:
        """The members of a group, with what nobody else reads and scratch cannot hold computed where it is read: that
        takes a card less time than memory does."""
        members, found = set(draft.numbers), list(definitions)
        for each in definitions:
            name = name_of(each)
            is_own = self.work.is_internal(name) and set(self.work.readers_of(name)) <= members
            (now,) = (other for other in found if name_of(other) == name)
            if not isinstance(now, Map) or not is_own or self.layout.fits_scratch(draft.domain, now, found):
                continue
            readers = _readers(found, name)
            results = [inlined(now, reader) for reader in readers]
            kept = [result for result in results if not isinstance(result, str)]
            if len(kept) < len(results) or now.onto is not None or may_fail(now):
                continue
            replaced = {name_of(reader): result for reader, result in zip(readers, kept, strict=True)}
            found = [replaced.get(name_of(other), other) for other in found if other is not now]
            what = f"compute {name} where it is read"
            self.work.decide(what, True, "its rows are too long for scratch", name)
        return tuple(found)

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _depend(self, group: int, needs: set[int]) -> None:
        """`group` runs after `needs`, and so does everything that runs after `group`."""
        draft = self.drafts[group]
        draft.direct |= needs
        new = draft.after
        for need in needs:
            new |= 1 << need | self.drafts[need].after
        if new == draft.after:
            return
        draft.after = new
        for later in self.drafts[group + 1 :]:
            if later.after >> group & 1:
                later.after |= new

    def _record(self, group: int, number: int) -> None:
        definition = self.work.definitions[number]
        assert definition is not None
        for out in outs_of(definition):
            self.owner[out.name] = group
            self.owners.setdefault(out.name, set()).add(group)
        for name in mutated_by(definition):
            self.owners.setdefault(name, set()).add(group)
        if isinstance(definition, Extern) and definition.random:
            self.last_random = group
        for name in self.work.reads[number]:
            readers = self.group_readers.setdefault(name, [])
            if group not in readers[-_RECENT:]:
                readers.append(group)

    def finish(self) -> list[Group]:
        """The groups in topological order, earliest definitions first."""
        waiting = [len(draft.direct) for draft in self.drafts]
        unblocks: list[list[int]] = [[] for _ in self.drafts]
        for group, draft in enumerate(self.drafts):
            for need in draft.direct:
                unblocks[need].append(group)
        ready = [(draft.numbers[0], group) for group, draft in enumerate(self.drafts) if not waiting[group]]
        heapq.heapify(ready)
        result: list[Group] = []
        while ready:
            _, group = heapq.heappop(ready)
            result.append(self._group(group))
            for later in unblocks[group]:
                waiting[later] -= 1
                if not waiting[later]:
                    heapq.heappush(ready, (self.drafts[later].numbers[0], later))
        if len(result) != len(self.drafts):
            raise InvalidLoopsError("fusion made groups that wait for each other")
        return result

    def _group(self, group: int) -> Group:
        draft = self.drafts[group]
        definitions = tuple(
            definition
            for number in draft.numbers
            if (definition := self.work.definitions[number]) is not None
        )
        if draft.kind == "rows" and self.work.machine.processors:
            definitions = self._without_large(draft, definitions)
        first = definitions[0]
        if draft.kind == "single":
            if isinstance(first, Gemm):
                return Group("gemm", definitions)
            if isinstance(first, Attention):
                return Group("attention", definitions)
            if isinstance(first, PackB):
                return Group("pack", definitions)
            if isinstance(first, Recurrence | RecurrenceGradient):
                return Group("recurrence", definitions)
            if isinstance(first, Map):
                return Group("pointwise", definitions)
            return Group("scan" if isinstance(first, Scan) else "extern", definitions)
        members = set(draft.numbers)
        private = {
            out.name
            for definition in definitions
            for out in outs_of(definition)
            if self.work.is_internal(out.name)
            and set(self.work.readers_of(out.name)) <= members
            and (draft.kind == "pointwise" or self.layout.fits_scratch(draft.domain, definition, definitions))
        }
        return Group(
            draft.kind, definitions, draft.domain.rows if draft.kind == "rows" else (), frozenset(private)
        )


def _readers(definitions: Sequence[Definition], name: str) -> list[Definition]:
    return [each for each in definitions if name in reads_of(each)]


def _kind(definition: Definition) -> Literal["pointwise", "rows", "single"]:
    if isinstance(definition, Map):
        return "pointwise" if definition.onto is None else "single"
    return "rows" if isinstance(definition, Reduce) else "single"
