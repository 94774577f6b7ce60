"""`tune`: for each distinct product of a graph, the variant that is fastest here.

    before:  linear(x, w) with x of 128 x 768 and w of 3072 x 768, the model's choice of a tile: 8 rows of 3 vectors
    after:   the same with the variant "tile 4x6", in 91 % of the time

A product is measured alone, on random numbers, by the very pipeline that compiles the whole graph: so every candidate
is right by construction, and one that fails to compile is out of the race.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, fx

from lampwork import logs, pristine
from lampwork.backends.native.tuning.measure import measure
from lampwork.backends.native.tuning.product import Product, product_of, shape_of
from lampwork.backends.native.tuning.progress import Progress
from lampwork.backends.native.tuning.store import DamagedEntry, Store, Winner, machine_key
from lampwork.codegen.target import Target
from lampwork.codegen.variants import Shape, candidates, refinements, varied
from lampwork.config import Config
from lampwork.errors import BackendError, CodegenError
from lampwork.folders import cache_folder
from lampwork.locks import new_lock
from lampwork.loops.ir.definitions import outs_of
from lampwork.lower.context import CALLED
from lampwork.lower.lowering import lower_graph
from lampwork.recent import Recent
from lampwork.records import record
from lampwork.runtime import Executable
from lampwork.runtime.program import Program

LEAST_GAIN = 1.04
"""How many times as fast as the model's choice a variant must have been: less is noise."""
LEAST_GAIN_CALLED = 1.15
"""... and a call of ATen, which computes what follows the product in passes of their own."""


@record
class Candidate:
    """A product compiled with a variant. `texts`: what its templates were compiled from, without their names: equal for
    variants that make no difference."""

    program: Program
    texts: tuple[str, ...]


Compile = Callable[[fx.Graph, Mapping[str, str]], Candidate]
"""(graph, variants by node) -> the program for the sizes at hand."""


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
    """What `tune` found. `variants`: by the name of a node, where they are not the model's choice."""

    variants: dict[str, str] = field(default_factory=dict[str, str])
    verdicts: list[TunedProduct] = field(default_factory=list[TunedProduct])


class _Known:
    """Winners of this process, by folder and key: with or without a store, each product is measured once."""

    def __init__(self) -> None:
        self.lock = new_lock()
        self.winners: Recent[tuple[str, str], Winner] = Recent(4096)


_known = _Known()


def forget() -> None:
    """Forget the winners that this process remembers; those on disk stay."""
    with _known.lock:
        _known.winners = Recent(4096)


def tune(graph: fx.Graph, target: Target, config: Config, compile_alone: Compile) -> Tuning:
    """Measure the products of a graph that are not known yet, for at most `config.tuning_seconds`."""
    found: dict[str, Product] = {}
    nodes: dict[str, list[str]] = {}
    machine = machine_key(target, pristine.get_num_threads())
    for node in graph.nodes:
        product = product_of(node)
        if product is not None:
            key = f"{machine} | {product.key}"
            found.setdefault(key, product)
            nodes.setdefault(key, []).append(node.name)
    tuning = Tuning()
    # One measurement at a time: two would measure each other.
    with _known.lock:
        race = _Race(target, config, compile_alone)
        for key, winner, source in race.winners(found):
            verdict = TunedProduct(found[key].title, tuple(nodes[key]), winner, source)
            tuning.verdicts.append(verdict)
            logs.emit("tuning", str(verdict))
            if winner is not None and winner.variant:
                tuning.variants.update(dict.fromkeys(nodes[key], winner.variant))
    return tuning


class _Race:
    def __init__(self, target: Target, config: Config, compile_alone: Compile) -> None:
        self._target, self._config, self._compile = target, config, compile_alone
        folder = cache_folder(config)
        self._store = None if folder is None else Store(folder / "tuning")
        self._complaints: list[str] = []

    def winners(self, products: Mapping[str, Product]) -> Iterable[tuple[str, Winner | None, str]]:
        """(key, winner, source) of each."""
        known = {key: self._look_up(key) for key in products}
        if self._complaints and self._store is not None:
            logs.emit(
                "tuning",
                f"{len(self._complaints)} entries of the store in {self._store.folder} are of no use and measured "
                f"again; the first one: {self._complaints[0]}",
            )
        missing = [key for key, winner in known.items() if winner is None]
        progress = Progress(len(missing))
        deadline = time.perf_counter() + self._config.tuning_seconds
        try:
            for key, product in products.items():
                winner = known[key]
                if winner is not None:
                    yield key, winner, "kept"
                elif time.perf_counter() >= deadline:
                    yield key, None, f"as the {self._config.tuning_seconds:g} seconds of tuning are spent"
                else:
                    progress.step(product.title)
                    winner = self._run(product, deadline)
                    if isinstance(winner, str):
                        yield key, None, winner
                    else:
                        self._keep(key, winner)
                        yield key, winner, "measured"
        finally:
            progress.finish()

    # --- what is known ------------------------------------------------------------------------------------------------

    def _look_up(self, key: str) -> Winner | None:
        place = (str(self._store), key)
        winner = _known.winners.get(place)
        if winner is None and self._store is not None:
            try:
                winner = self._store.get(key)
                if winner is not None and winner.variant != CALLED:
                    varied(self._target, winner.variant)
            except (DamagedEntry, CodegenError) as error:
                self._complaints.append(str(error))
                return None
            if winner is not None:
                _known.winners.put(place, winner)
        return winner

    def _keep(self, key: str, winner: Winner) -> None:
        _known.winners.put((str(self._store), key), winner)
        if self._store is not None:
            try:
                self._store.put(key, winner)
            except OSError as error:
                logs.emit("tuning", f"the store in {self._store.folder} is not written: {error}")

    # --- measuring ----------------------------------------------------------------------------------------------------

    def _run(self, product: Product, deadline: float) -> Winner | str:
        """The winner; or why there is none."""
        shape = self._shape(product)
        if shape is None:
            return "as it is no template"
        made: dict[str, Executable] = {}
        texts: set[tuple[str, ...]] = set()
        inputs, bound = product.tensors()
        self._add(product, [*candidates(shape, self._target), CALLED], made, texts, bound, deadline)
        if "" not in made:
            return "which did not compile alone"
        taken = self._measure(made, inputs)
        best = min((name for name in taken if name != CALLED), key=taken.__getitem__)
        if time.perf_counter() < deadline:
            more: dict[str, Executable] = {}
            self._add(product, refinements(best, shape, self._target), more, texts, bound, deadline)
            if more:
                finalists = {
                    name: made[name] for name in {"", best, min(taken, key=taken.__getitem__)}
                } | more
                taken = self._measure(finalists, inputs)
        least = {"": 1.0, CALLED: LEAST_GAIN_CALLED}
        best = min(taken, key=lambda name: taken[name] * least.get(name, LEAST_GAIN))
        return Winner(best, taken[best], taken[""])

    def _shape(self, product: Product) -> Shape | None:
        target = self._target
        lowered = lower_graph(product.graph, target.products, target.tiled_scores)
        fixed = {out.name for each in lowered.constant for out in outs_of(each)}
        for buffer, is_bound in zip(lowered.placeholders, product.bound, strict=True):
            if buffer is not None and is_bound:
                fixed.add(buffer.name)
        return shape_of(lowered.definitions, frozenset(fixed))

    def _add(
        self,
        product: Product,
        names: Iterable[str],
        made: dict[str, Executable],
        texts: set[tuple[str, ...]],
        bound: Sequence[Tensor],
        deadline: float,
    ) -> None:
        """Compile the product with each variant that makes a difference."""
        for name in names:
            if name and time.perf_counter() >= deadline:
                return
            try:
                candidate = self._compile(product.graph, {"product": name} if name else {})
            except BackendError as error:
                logs.emit(
                    "tuning", f"{product.title}: the variant {name or 'of the model'} is left out: {error}"
                )
                continue
            if candidate.texts in texts or candidate.program.n_scalars:
                continue
            texts.add(candidate.texts)
            made[name] = Executable(candidate.program, tuple(bound))

    def _measure(self, made: Mapping[str, Executable], inputs: Sequence[Tensor]) -> dict[str, float]:
        with pristine.no_grad():
            return measure({name: _call(run, inputs) for name, run in made.items()}, kept="")


def _call(run: Executable, inputs: Sequence[Tensor]) -> Callable[[], object]:
    return lambda: run(inputs)
