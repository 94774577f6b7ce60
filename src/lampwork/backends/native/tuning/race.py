"""What is measured once and then known: verdicts, winners of this process and on disk, the budget of a graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lampwork import logs
from lampwork.backends.native.tuning.progress import Progress
from lampwork.backends.native.tuning.winner import (
    DamagedWinner,
    Winner,
    winner_from_bytes,
    winner_to_bytes,
)
from lampwork.cache import Key, store
from lampwork.config import Config
from lampwork.errors import CodegenError
from lampwork.locks import new_lock
from lampwork.lower.context import CALLED
from lampwork.recent import Recent
from lampwork.records import record


@record
class TunedProduct:
    """A verdict. `source`: "measured", "kept" (a winner of an earlier measurement), or why there is none."""

    title: str
    nodes: tuple[str, ...]
    winner: Winner | None
    source: str

    def __str__(self) -> str:
        count = f" ({len(self.nodes)} times)" if len(self.nodes) > 1 else ""
        start = f"{self.title}{count}: "
        if self.winner is None:
            return f"{start}the model's choice, {self.source}"
        times = f"{self.winner.model_seconds * 1e6:.1f} us"
        if not self.winner.variant:
            return f"{start}the model's choice is the best, {times} ({self.source})"
        gain = self.winner.model_seconds / self.winner.seconds
        faster = f"{gain:.2f} times as fast as the model's choice of {times}"
        return f"{start}{self.winner.variant}, {faster} ({self.source})"


@dataclass(slots=True)
class Tuning:
    """What was found, where it is not the model's choice. `variants`: by the name of a node. `grids`: of a card's
    kernels, by what `grid_key` says of them."""

    variants: dict[str, str] = field(default_factory=dict[str, str])
    grids: dict[str, str] = field(default_factory=dict[str, str])
    verdicts: list[TunedProduct] = field(default_factory=list[TunedProduct])

    @property
    def is_of_use(self) -> bool:
        """Whether anything is another choice than the model's."""
        return bool(self.variants or self.grids)


class Known:
    """Winners of this process, by the cache's place and key: with or without a cache, each product is measured once."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.winners: Recent[tuple[str, Key], Winner] = Recent(4096)


known = Known()
"""Its lock is held while something is measured: two measurements at a time would measure each other."""


def forget() -> None:
    """Forget the winners that this process remembers; those on disk stay."""
    with known.lock:
        known.winners = Recent(4096)


@record
class Contestant:
    """Something that there are several ways to compute. `what`: which; `nodes`: names of those that are it."""

    title: str
    what: Any
    nodes: tuple[str, ...] = ()


class Race:
    """Finds winners, for at most `config.tuning_seconds`.

    check: called with the name of a winner that was kept; raises CodegenError if there is no such variant any more.
    """

    def __init__(self, config: Config, check: Callable[[str], object]) -> None:
        self._config, self._check = config, check
        self._store = store(config)
        self._place = "" if self._store is None else self._store.place
        self._complaints: list[str] = []
        self.deadline = time.perf_counter() + config.tuning_seconds

    def winners(
        self, contestants: Mapping[Key, Contestant], run: Callable[[Any], Winner | str]
    ) -> Iterator[tuple[Key, TunedProduct]]:
        """(key, verdict) of each. `run`: the winner of one that nothing is known of, or why there is none."""
        known = {key: self._look_up(key) for key in contestants}
        if self._complaints:
            logs.emit(
                "tuning",
                f"{len(self._complaints)} winners of the cache are of no use and measured again; the first one: "
                f"{self._complaints[0]}",
            )
        missing = [key for key, winner in known.items() if winner is None]
        progress = Progress(len(missing))
        try:
            for key, each in contestants.items():
                winner, source = known[key], "kept"
                if winner is None and time.perf_counter() >= self.deadline:
                    source = f"as the {self._config.tuning_seconds:g} seconds of tuning are spent"
                elif winner is None:
                    progress.step(each.title)
                    found, source = run(each.what), "measured"
                    if isinstance(found, str):
                        source = found
                    else:
                        winner = found
                        self._keep(key, winner)
                verdict = TunedProduct(each.title, each.nodes, winner, source)
                logs.emit("tuning", str(verdict))
                yield key, verdict
        finally:
            progress.finish()

    def _look_up(self, key: Key) -> Winner | None:
        winner = known.winners.get((self._place, key))
        if winner is not None or self._store is None:
            return winner
        content = self._store.get(key)
        if content is None:
            return None
        try:
            winner = winner_from_bytes(content)
            if winner.variant != CALLED:
                self._check(winner.variant)
        except (DamagedWinner, CodegenError) as error:
            self._complaints.append(f"{key}: {error}")
            return None
        return known.winners.put((self._place, key), winner)

    def _keep(self, key: Key, winner: Winner) -> None:
        known.winners.put((self._place, key), winner)
        if self._store is not None:
            self._store.put(key, winner_to_bytes(winner))
