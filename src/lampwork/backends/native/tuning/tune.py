"""`tune`: for each distinct product of a graph, the variant that is fastest here.

    before:  linear(x, w) with x of 128 x 768 and w of 3072 x 768, the model's choice of a tile: 8 rows of 3 vectors
    after:   the same with the variant "tile 4x6", in 91 % of the time

A product is measured alone, on random numbers, by the very pipeline that compiles the whole graph: so every candidate
is right by construction, and one that fails to compile is out of the race.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor, fx

from lampwork import logs, pristine
from lampwork.backends.native.tuning.measure import measure
from lampwork.backends.native.tuning.product import Product, product_of, shape_of
from lampwork.backends.native.tuning.race import Contestant, Race, Tuning, forget, known
from lampwork.backends.native.tuning.winner import Winner, cpu_parts, tuning_key
from lampwork.cache import Key
from lampwork.codegen.target import Target
from lampwork.codegen.variants import Shape, candidates, refinements, varied
from lampwork.config import Config
from lampwork.errors import BackendError
from lampwork.loops.ir.definitions import outs_of
from lampwork.lower.context import CALLED
from lampwork.lower.lowering import lower_graph
from lampwork.records import record
from lampwork.runtime import Executable
from lampwork.runtime.program import Program

__all__ = ["Candidate", "Compile", "forget", "tune"]

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


def tune(graph: fx.Graph, target: Target, config: Config, compile_alone: Compile) -> Tuning:
    """Measure the products of a graph that are not known yet, for at most `config.tuning_seconds`."""
    found: dict[Key, Product] = {}
    nodes: dict[Key, list[str]] = {}
    machine = cpu_parts(target, pristine.get_num_threads())
    for node in graph.nodes:
        product = product_of(node)
        if product is not None:
            key = tuning_key(machine, product=product.key)
            found.setdefault(key, product)
            nodes.setdefault(key, []).append(node.name)
    tuning = Tuning()
    contestants = {
        key: Contestant(product.title, product, tuple(nodes[key])) for key, product in found.items()
    }
    with known.lock:
        race = Race(config, lambda variant: varied(target, variant))
        alone = _Alone(target, compile_alone, race.deadline)
        for _, verdict in race.winners(contestants, alone.winner):
            tuning.verdicts.append(verdict)
            if verdict.winner is not None and verdict.winner.variant:
                tuning.variants.update(dict.fromkeys(verdict.nodes, verdict.winner.variant))
    return tuning


@record
class _Alone:
    """Measures one product at a time."""

    target: Target
    compile: Compile
    deadline: float

    def winner(self, product: Product) -> Winner | str:
        """The winner; or why there is none."""
        shape = self._shape(product)
        if shape is None:
            return "as it is no template"
        made: dict[str, Executable] = {}
        texts: set[tuple[str, ...]] = set()
        inputs, bound = product.tensors()
        self._add(product, [*candidates(shape, self.target), CALLED], made, texts, bound)
        if "" not in made:
            return "which did not compile alone"
        taken = self._measure(made, inputs)
        best = min((name for name in taken if name != CALLED), key=taken.__getitem__)
        if time.perf_counter() < self.deadline:
            more: dict[str, Executable] = {}
            self._add(product, refinements(best, shape, self.target), more, texts, bound)
            if more:
                finalists = {
                    name: made[name] for name in {"", best, min(taken, key=taken.__getitem__)}
                } | more
                taken = self._measure(finalists, inputs)
        least = {"": 1.0, CALLED: LEAST_GAIN_CALLED}
        best = min(taken, key=lambda name: taken[name] * least.get(name, LEAST_GAIN))
        return Winner(best, taken[best], taken[""])

    def _shape(self, product: Product) -> Shape | None:
        target = self.target
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
    ) -> None:
        """Compile the product with each variant that makes a difference."""
        for name in names:
            if name and time.perf_counter() >= self.deadline:
                return
            try:
                candidate = self.compile(product.graph, {"product": name} if name else {})
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
