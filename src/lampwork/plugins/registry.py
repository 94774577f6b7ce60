"""What users registered: rewrites, passes and sequences of them, with their switches and counts."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from lampwork import logs
from lampwork.display import Shown
from lampwork.errors import Location, OptionError
from lampwork.locks import new_lock
from lampwork.plugins.fingerprint import content_hash
from lampwork.plugins.switches import Switches
from lampwork.records import record
from lampwork.rewriting.apply.driver import Rule

Kind = Literal["rewrite", "pass", "sequence"]


@record
class Place:
    """Where in the pipeline something runs: behind the first pass called `anchor`, or `before` it."""

    anchor: str
    before: bool = False

    def __str__(self) -> str:
        return f"{'before' if self.before else 'after'} {self.anchor}"


@dataclass(slots=True, eq=False, repr=False)
class Registered(Shown):
    """A rewrite, a pass or a sequence of them, as `lampwork.rewrite`, `register_pass` and `sequence` return it.

    `enabled` is its switch in all compilations that do not name it in `passes="+name"` or `"-name"`. `hits`: how often
    it changed a graph, in all compilations so far; `refused`: how often it matched and was not applied. `plugin`: what
    was registered: a function, a class, a pair of texts. `source`: where it was written.
    """

    name: str
    kind: Kind
    plugin: Any = field(repr=False)
    registry: Registry = field(repr=False)
    source: Location | None = None
    enabled: bool = True
    place: Place | None = None
    sequence: str = ""
    rule: Rule | None = field(default=None, repr=False)
    step: Any = field(default=None, repr=False)
    members: tuple[Registered | str, ...] = ()
    hits: int = 0
    refused: int = 0
    _first_hash: str = field(default="", repr=False)

    def _brief(self) -> str:
        state = "on" if self.enabled else "off"
        return f"{self.kind} {self.name}, {state}, {self.hits} hits, {self.refused} refused, {self.source}"

    @property
    def hash(self) -> str:
        """Of its code and all that the code reaches (see plugins.fingerprint): part of the key of each compilation."""
        return content_hash(self.__lampwork_content__())

    def __lampwork_content__(self) -> Any:
        """What of it counts, also where another plug-in refers to it."""
        return self.kind, self.name, str(self.place), self.plugin

    @property
    def version(self) -> str:
        """The hash as of when it was registered."""
        if not self._first_hash:
            self._first_hash = self.hash
        return self._first_hash

    def enable(self) -> None:
        """Use it from the next call of every compiled function on.

        Raises:
            OptionError: it is no longer registered.
        """
        now = self.registry.items.get(self.name)
        if now is not self:
            why = "has been unregistered" if now is None else "was replaced by another of its name"
            raise OptionError(
                f"the {self.kind} {self.name} {why}, so it cannot be enabled",
                fix="register it again; disable() leaves out what is to come back",
            )
        self._switch(True)

    def disable(self) -> None:
        """Leave it out from the next call of every compiled function on. What was compiled with it is kept aside, and
        serves again when it is enabled."""
        self._switch(False)

    def unregister(self) -> None:
        """Forget it, from the next call of every compiled function on."""
        self.registry.remove(self)

    def _switch(self, on: bool) -> None:
        if self.enabled is not on:
            self.enabled = on
            self.registry.changed()

    def __str__(self) -> str:
        state = "" if self.enabled else ", disabled"
        return f"{self.kind} {self.name}: {self.hits} hits, {self.refused} refused{state}"


@record
class Selection:
    """What of the registered is on in one compilation: a snapshot. `rules`: the rewrites without a place of their own,
    which the pass `rewrites` applies. `placed`: all that has one, in the order of registration."""

    items: tuple[Registered, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(i.rule for i in self.items if i.rule is not None and i.place is None and not i.sequence)

    @property
    def placed(self) -> tuple[Registered, ...]:
        return tuple(i for i in self.items if i.place is not None and not i.sequence)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.items)

    def members(self, sequence: Registered) -> tuple[Registered | str, ...]:
        """What of a sequence is on."""
        on = set(self.items)
        return tuple(
            m for m in sequence.members if isinstance(m, str) or (m in on and m.sequence == sequence.name)
        )


@dataclass(slots=True, eq=False, repr=False)
class Registry(Shown):
    """What is registered, by name, in the order of registration; safe to use from several threads.

    `generation` grows with every change. `retired`: the names of what is no longer registered. `reserved`: those of the
    passes that backends bring. `tally`: hits and refusals of the rewrites of the tree, by name.
    """

    items: dict[str, Registered] = field(default_factory=dict[str, Registered])
    retired: set[str] = field(default_factory=set[str])
    reserved: frozenset[str] = frozenset()
    listeners: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    generation: int = 0
    tally: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    lock: threading.RLock = field(default_factory=new_lock)

    def add(self, item: Registered) -> Registered:
        """Make `item` known, in the place of one of the same name."""
        with self.lock:
            before = self.items.get(item.name)
            if before is not None:
                logs.emit("passes", f"{item.kind} {item.name} is registered again: {item.source}")
                self._forget(before)
            for member in item.members:
                if isinstance(member, Registered):
                    self.items[member.name] = member
            self.items[item.name] = item
        self.changed()
        return item

    def remove(self, item: Registered) -> None:
        """Forget `item` and, of a sequence, its members."""
        with self.lock:
            self._forget(item)
        self.changed()

    def _forget(self, item: Registered) -> None:
        members = [m for m in item.members if isinstance(m, Registered) and m.sequence == item.name]
        for one in (item, *members):
            if self.items.get(one.name) is one:
                del self.items[one.name]
                self.retired.add(one.name)

    def reserve(self, names: Iterable[str]) -> None:
        """Make names of passes of backends known: valid as switches, and not for plug-ins."""
        with self.lock:
            self.reserved = self.reserved.union(names)

    def changed(self) -> None:
        """Tell those who depend on what is registered, or on."""
        with self.lock:
            self.generation += 1
        for listener in tuple(self.listeners):
            listener()

    def all(self) -> tuple[Registered, ...]:
        with self.lock:
            return tuple(self.items.values())

    def names(self) -> frozenset[str]:
        """All names that there are or were."""
        with self.lock:
            return frozenset(self.items) | self.retired

    def select(self, switches: str) -> Selection:
        """What is on in compilations with `passes=switches`."""
        items = self.all()
        if not items:
            return _NOTHING
        found = Switches.of(switches)
        return Selection(tuple(i for i in items if found.on(i.name, i.enabled)))

    def key(self, switches: str) -> str:
        """A name for what is on in compilations with `passes=switches`, "" if nothing is."""
        items = self.select(switches).items
        if not items:
            return ""
        return hashlib.sha256("".join(i.version for i in items).encode()).hexdigest()

    def count(self, selection: Selection, hits: Counter[str], refused: Counter[str]) -> None:
        """Add to the counts of what was on in a compilation, and of the rewrites of the tree."""
        registered = {item.name: item for item in selection.items}
        with self.lock:
            for kind, counts in (("hits", hits), ("refused", refused)):
                ours = self.tally.setdefault(kind, Counter())
                for name, count in counts.items():
                    item = registered.get(name)
                    if item is None:
                        ours[name] += count
                    else:
                        setattr(item, kind, getattr(item, kind) + count)


_NOTHING = Selection()

# Registration is a matter of the whole process by definition, as backends' is.
_process = Registry()


def registry() -> Registry:
    """The process's registry."""
    return _process
