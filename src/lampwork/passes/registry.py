"""What users registered: rewrites and passes, known to the whole process, with their switches and their counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from lampwork.config import Config
from lampwork.passes.switches import Switches
from lampwork.rewrite.driver import Rule

Kind = Literal["rewrite", "pass", "sequence"]
Listener = Callable[[], None]


@dataclass(slots=True, eq=False)
class Registered:
    """A rewrite, a pass or a sequence of them, as `lampwork.rewrite`, `register_pass` and `sequence` return it.

    `hits`: how often it changed a graph, in all compilations so far; `refused`: how often it matched and was not
    applied. `source`: where it was written. `enabled` is its switch for all compilations that do not name it in
    `passes="+name"` or `"-name"`.
    """

    name: str
    kind: Kind
    registry: Registry = field(repr=False)
    source: str = ""
    enabled: bool = True
    hits: int = 0
    refused: int = 0
    rule: Rule | None = field(default=None, repr=False)

    def enable(self) -> None:
        """Use it from the next call of every compiled function on."""
        self._switch(True)

    def disable(self) -> None:
        """Leave it out from the next call of every compiled function on."""
        self._switch(False)

    def unregister(self) -> None:
        """Forget it."""
        self.registry.remove(self)

    def _switch(self, on: bool) -> None:
        if self.enabled is not on:
            self.enabled = on
            self.registry.changed()


@dataclass(slots=True, eq=False)
class Registry:
    """What is registered, by name, in the order of registration; safe to use from several threads."""

    items: dict[str, Registered] = field(default_factory=dict[str, Registered])
    listeners: list[Listener] = field(default_factory=list[Listener])
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add(self, item: Registered) -> Registered:
        """Make `item` known, in place of one of the same name."""
        with self.lock:
            self.items.pop(item.name, None)
            self.items[item.name] = item
        self.changed()
        return item

    def remove(self, item: Registered) -> None:
        with self.lock:
            if self.items.get(item.name) is not item:
                return
            del self.items[item.name]
        self.changed()

    def changed(self) -> None:
        """Tell those who depend on what is registered."""
        for listener in list(self.listeners):
            listener()

    def rules(self, config: Config) -> tuple[Rule, ...]:
        """The rewrites that are on under `config`."""
        with self.lock:
            if not self.items:
                return ()
            items = list(self.items.values())
        switches = Switches.of(config.passes)
        return tuple(
            item.rule for item in items if item.rule is not None and switches.on(item.name, item.enabled)
        )

    def count(self, name: str, hits: int = 0, refused: int = 0) -> None:
        """Add to the counts of a rewrite or pass, if it is registered."""
        item = self.items.get(name)
        if item is not None:
            with self.lock:
                item.hits += hits
                item.refused += refused


# Registration is a matter of the whole process by definition, as backends' is.
_process = Registry()


def registry() -> Registry:
    """The process's registry."""
    return _process


def make(name: str, kind: Kind, **rest: Any) -> Registered:
    """Register in the process's registry."""
    return _process.add(Registered(name, kind, _process, **rest))
