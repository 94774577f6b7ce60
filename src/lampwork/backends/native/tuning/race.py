"""What is measured once and then known: verdicts, winners of this process and on disk, the budget of a graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lampwork import logs
from lampwork.backends.native.tuning.progress import Progress
from lampwork.backends.native.tuning.store import DamagedEntry, Store, Winner
from lampwork.config import Config
from lampwork.errors import CodegenError
from lampwork.folders import cache_folder
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
    """Winners of this process, by folder and key: with or without a store, each product is measured once."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.winners: Recent[tuple[str, str], Winner] = Recent(4096)


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
        folder = cache_folder(config)
        self._store = None if folder is None else Store(folder / "tuning")
        self._complaints: list[str] = []
        self.deadline = time.perf_counter() + config.tuning_seconds

    def winners(
        self, contestants: Mapping[str, Contestant], run: Callable[[Any], Winner | str]
    ) -> Iterator[tuple[str, TunedProduct]]:
        """(key, verdict) of each. `run`: the winner of one that nothing is known of, or why there is none."""
        known = {key: self._look_up(key) for key in contestants}
        if self._complaints and self._store is not None:
            logs.emit(
                "tuning",
                f"{len(self._complaints)} entries of the store in {self._store.folder} are of no use and measured "
                f"again; the first one: {self._complaints[0]}",
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

    def _look_up(self, key: str) -> Winner | None:
        place = (str(self._store), key)
        winner = known.winners.get(place)
        if winner is None and self._store is not None:
            try:
                winner = self._store.get(key)
                if winner is not None and winner.variant != CALLED:
                    self._check(winner.variant)
            except (DamagedEntry, CodegenError) as error:
                self._complaints.append(str(error))
                return None
            if winner is not None:
                known.winners.put(place, winner)
        return winner

    def _keep(self, key: str, winner: Winner) -> None:
        known.winners.put((str(self._store), key), winner)
        if self._store is not None:
            try:
                self._store.put(key, winner)
            except OSError as error:
                logs.emit("tuning", f"the store in {self._store.folder} is not written: {error}")
