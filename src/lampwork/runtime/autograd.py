"""Results of a compiled region are differentiable as eager's are.

The forward runs compiled, and the results get autograd nodes (`segments`) whose backward, if it comes, runs the
region's ATen graph again under autograd (`tape`). So gradients are exactly eager's, for all inputs, parameters and
returned intermediates, and a caller who merely forgot `torch.no_grad` still gets the compiled speed.

Eager runs the graph itself, with its own autograd nodes, where that costs less, and where somebody watches what
autograd does while it happens.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork import counters, pristine
from lampwork.differentiation.buckets import Buckets, active_buckets, bucket_cuts
from lampwork.differentiation.foresight import foresee
from lampwork.differentiation.segments import Segment, Segments, cut, returned_roots, seen_from
from lampwork.graph.collectives import communicates, waits
from lampwork.graph.concrete import concrete_graph, spec_at
from lampwork.graph.devices import CPU
from lampwork.graph.interpret import compute as _compute
from lampwork.graph.interpret import last_uses
from lampwork.graph.islands import Sharding, localized
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import hint_of
from lampwork.graph.totality import may_raise
from lampwork.locks import new_lock
from lampwork.records import record
from lampwork.runtime import native, nodes
from lampwork.runtime.doubles import BuildDouble, Doubles
from lampwork.runtime.generators import state_of
from lampwork.runtime.opaque import opaque
from lampwork.runtime.opened import MOST_OPEN, BuildOpen, Opened
from lampwork.runtime.tape import Rerun, Tape, below_autocast
from lampwork.runtime.trained import Build, Native, Trained, Training

Run = Callable[..., Sequence[Tensor]]

COPIED_BYTES = 1 << 16
"""Inputs up to this size are copied at forward if gradients depend on their values: somebody may write to them before
backward comes through a pointer from before. Larger ones, and weights, are copied when they are written."""

AHEAD = False
"""Compile backward before the first one, and run it as later ones are: for tests that run it once."""

MOST_NUMBERS = 8
"""For how many values of the numbers that its program takes a region is trained."""

_CALL_OF_OPERATOR = torch._ops.OpOverload.__call__.__code__
_SELF, _ALIAS, _COPY = 0, 1, 2  # for nodes.keep
_NOT, _CONTENT, _COPY_NOW, _WHETHER_WRITTEN = 0, 1, 2, 3  # for nodes.hold


@record
class _Known:
    """What is to be known of training for these values of the symbols, by a call with these buckets; its rerun comes to
    know what eager saves."""

    training: Training
    rerun: Rerun
    numbers: Mapping[str, int]
    buckets: Buckets | None


@dataclass(eq=False)
class Differentiable:
    """How the results of one region are differentiated, whatever its sizes.

    Args:
        graph: the region's graph as recorded.
        n_inputs: how many of its placeholders are inputs; the others are bound.
        mutations: (placeholder number, result number) of the inputs that the region writes.
        pieces: numbers of the results that are views of which one operator gave several.
        fresh_versions: (result number, version) of those in fresh memory that the region writes in place.
        build: compiles forward and backward for what is asked of backward; None: backward runs the graph again.
        build_double: compiles a backward that is differentiable; None: backward runs the graph again for it.
        build_open: compiles forward and backward for all sizes at once; None: they are compiled for each size.
        joined: all results belong to one segment (`segments.cut`).
    """

    graph: fx.Graph
    n_inputs: int
    mutations: tuple[tuple[int, int], ...]
    pieces: tuple[int, ...] = ()
    fresh_versions: tuple[tuple[int, int], ...] = ()
    build: Build | None = None
    build_double: BuildDouble | None = None
    build_open: BuildOpen | None = None
    joined: bool = False
    _trainings: list[_Known] = field(default_factory=list["_Known"], init=False)
    _first: _Known | None = field(default=None, init=False)
    _opened: tuple[Opened, Rerun] | None = field(default=None, init=False)
    _lock: threading.RLock = field(default_factory=new_lock, init=False)

    def note(self, known: _Known) -> None:
        """Note what is to be known of training for some sizes."""
        if self._first is None:
            self._trainings = [*self._trainings[1 - MOST_NUMBERS :], known]

    @property
    def is_trained(self) -> bool:
        """Whether a backward has come, of whatever sizes."""
        if self._first is None:
            self._first = next((known for known in self._trainings if known.training.asked), None)
            if self._first is not None:
                self._trainings = []
        return self._first is not None

    def opened_for(self, buckets: Buckets | None) -> tuple[Opened, Rerun] | None:
        """As `opened`, for calls whose gradients come in these buckets."""
        found = self.opened()
        return (
            found
            if found is not None and self._first is not None and self._first.buckets == buckets
            else None
        )

    def opened(self) -> tuple[Opened, Rerun] | None:
        """What trains the region for all sizes, once a backward has come, and how its graph is run again; None if that
        cannot be had."""
        if self.build_open is not None and self.is_trained:
            with self._lock:
                build, self.build_open = self.build_open, None
                if build is not None and (first := self._first) is not None:
                    rerun = replace(self.call(None, lambda: self.graph), buckets=first.buckets).rerun
                    asked = dict(first.training.asked)
                    opened = build(rerun, asked, first.numbers, first.rerun.savings)
                    if opened is not None:
                        counters.add("trained")
                        rerun.savings = opened.savings.of(rerun.graph)
                        self._opened = opened, rerun
        return self._opened

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """Names of the nodes that a program must return after the graph's own results: among them what collectives
        give, which are not started again when the graph runs again."""
        results = set(_results(self.graph))
        wanted = dict.fromkeys((*returned_roots(self.graph), *waits(self.graph)))
        return tuple(node.name for node in wanted if node not in results)

    def call(
        self,
        program: Run | None,
        concrete: Callable[[], fx.Graph],
        sizes: Mapping[str, int] | None = None,
    ) -> DifferentiableCall:
        """`program` with results that are differentiable. `concrete` gives the graph with numbers for its symbols.
        `sizes`: what the program was made for, if it is one of several."""
        return DifferentiableCall(program, concrete, self, sizes=sizes or {})


@dataclass(eq=False)
class DifferentiableCall:
    """A compiled program whose results are differentiable.

    Args:
        program: the compiled forward: tensors (inputs, then bound) -> results of the graph, then those that
            `shared.needed` names. Writes to mutated inputs itself. None: eager runs the graph.
        concrete: gives the same function as a graph, pure, with numbers for all sizes.
        shared: what is the same for all sizes.
        buckets: backward gives the gradients of weights in buckets of these sizes.
        sizes: the values of the symbols that it is for, if there are others, for other sizes.
    """

    program: Run | None
    concrete: Callable[[], fx.Graph]
    shared: Differentiable
    buckets: Buckets | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    _symbols: Mapping[str, int] = field(default_factory=dict[str, int], init=False)
    _bucketed: DifferentiableCall | None = field(default=None, init=False)
    _how: tuple[bytes, bytes, frozenset[int]] | None = field(default=None, init=False)
    _trainings: dict[Any, Training] = field(default_factory=dict[Any, Training], init=False)
    _lock: threading.RLock = field(default_factory=new_lock, init=False)

    @property
    def graph(self) -> fx.Graph:
        return self.rerun.graph

    @opaque
    def __call__(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        results = self._in_buckets()._run_native(tensors)
        return self._run(self.program, tensors, None) if results is None else self._in_pieces(results)

    @opaque
    def run(
        self, tensors: list[Tensor], scalars: tuple[int, ...], numbers: Mapping[str, int]
    ) -> Sequence[Tensor]:
        """A call of a program that takes scalars. `numbers`: the values of all symbols that are in `graph`."""
        program = self.program
        given = None if program is None else lambda tensors: program(tensors, scalars)
        return self._run(given, tensors, numbers)

    def _run(
        self, program: Run | None, tensors: list[Tensor], numbers: Mapping[str, int] | None
    ) -> Sequence[Tensor]:
        # Autograd refuses to save inference tensors, weights too, and eager says so in forward.
        if program is None or _watched() or any(tensor.is_inference() for tensor in tensors):
            return self._in_pieces(self._run_eager(tensors, numbers))
        if (self.sizes or numbers is not None) and self._in_buckets()._is_passing(numbers):
            counters.add("passing_calls")
            return self._in_pieces(self._run_eager(tensors, numbers))
        return self._in_pieces(self._in_buckets()._run_compiled(program, tensors, numbers))

    def _in_pieces(self, results: Sequence[Tensor]) -> Sequence[Tensor]:
        """The results, those that are pieces as autograd leaves them."""
        for number in self.shared.pieces:
            if results[number].requires_grad and results[number]._is_view():
                nodes.forbid_writes(results[number])
        return results

    # --- compiled -----------------------------------------------------------------------------------------------

    def foresee(self) -> bool:
        """Compile forward and backward before the first call, if what backward will ask for is plain. Whether they
        are."""
        build = self.shared.build
        if build is None or _watched() or active_buckets() is not None:
            return False
        asked = foresee(self.rerun.segments)
        trained = build(self.rerun, asked) if asked else None
        if trained is None:
            return False
        training = self._trainings.setdefault((), Training(asked, foreseen=set(asked)))
        self._learn(training, trained)
        counters.add("trained")
        self.program = trained.forward
        return True

    def _learn(self, training: Training, trained: Trained) -> None:
        training.is_fresh = not (AHEAD or training.is_open)
        if trained.exposed and next(iter(trained.exposed)).graph is not self.rerun.graph:
            by_name = {node.name: node for node in self.rerun.graph.nodes}
            exposed = {by_name[node.name]: number for node, number in trained.exposed.items()}
            trained = replace(trained, exposed=exposed)
        training.trained = trained

    def _in_buckets(self) -> DifferentiableCall:
        """What serves a call: once a wrapper that reduces gradients in buckets has called, one that gives them so."""
        if self._bucketed is None and (buckets := active_buckets()) is not None:
            self._bucketed = replace(self, buckets=buckets)
        return self._bucketed or self

    def _run_compiled(
        self, program: Run, tensors: list[Tensor], numbers: Mapping[str, int] | None
    ) -> Sequence[Tensor]:
        training = self._training(numbers)
        rerun, symbols = self.rerun, self._all_symbols(numbers)
        segments = rerun.segments
        if AHEAD and training is not None and numbers is None and not (training.asked or rerun.waits):
            self._rehearse(training, tensors)
        trained = None if training is None else self._train(training, numbers)
        if trained is not None and numbers is None and (results := self._run_native(tensors)) is not None:
            return results
        state = state_of(rerun.draws_on) if rerun.random else None
        how, holding = self._ways(rerun)
        kept = nodes.keep(tensors, how)
        before = nodes.hold(kept, holding)
        unnoticed = [(tensors[number], tensors[number]._version) for number in rerun.unnoticed]
        saved: Sequence[Tensor] = ()
        with pristine.no_grad():
            if trained is None:
                # Where gradients come in buckets, this may be a forward that saves for a backward without.
                outputs = list(program(tensors))[: len(segments.results) + len(self._extra)]
            else:
                if training is not None:
                    training.is_fresh = False
                made_now = list(trained.forward(tensors))
                outputs = made_now[: trained.n_results]
                # A result that is saved too is saved as an alias: it will have the node, and the node what is saved.
                shown = frozenset(map(id, outputs))
                saved = [
                    each.detach() if id(each) in shown else each for each in made_now[trained.n_results :]
                ]
        for number, version in self.shared.fresh_versions:
            nodes.set_version(outputs[number], version)
        for tensor, version in unnoticed:
            nodes.set_version(tensor, version)
        made = dict(zip((*segments.results, *self._extra), outputs, strict=True))
        for number, node in enumerate(segments.results):
            if number in segments.detached or (outputs[number]._is_view() and not _is_view(node)):
                outputs[number] = outputs[number].detach()
        watched = [*tensors, *(made[root] for root in segments.roots), *(outputs[i] for i in rerun.plain)]
        copied = frozenset(i for i, way in enumerate(how) if way == _COPY)
        leaves = {number: tensors[number] for number in self._gradient_inputs if tensors[number].is_leaf}
        tape = Tape(rerun, kept, copied, before, nodes.versions(watched), state, symbols, leaves)
        tape.received = {node: made[node] for node in rerun.waits}
        for node in rerun.shown_waits:
            tape.received[node] = made[node].detach().clone()  # the caller may write to it
        if trained is not None:
            tape.trained, tape.saved = trained, saved
        if training is not None and (trained is None or training.foreseen):
            tape.watch = training.watch
        roots = {root: made[result] for root, result in rerun.saved_roots.items()}
        if trained is not None:
            roots.update(
                (root, outputs[number]) for root, number in trained.exposed.items() if root not in roots
            )
        roots.update((content, tensors[number]) for content, number in rerun.saved_writes.items())
        tape.hold_roots(roots)
        attached: dict[fx.Node, Tensor] = dict(zip(rerun.placeholders, tensors, strict=True))
        for item in segments.order:
            if isinstance(item, Segment):
                values = [_value(made.get(node), node, symbols) for node in item.results]
                sources = [attached[source] for source in item.sources]
                made_by = nodes.attach(
                    values, sources, tape.backward(item.number), item.name, item.is_composite
                )
                attached.update(zip(item.results, made_by, strict=True))
            else:
                with below_autocast():
                    attached[item] = _compute(item, attached, symbols)
        for number in self._viewing:
            if outputs[number]._is_view():
                nodes.allow_writes(outputs[number])
        return [
            attached[node] if node in segments.cuts or node in segments.views else outputs[number]
            for number, node in enumerate(segments.results)
        ]

    def _training(self, numbers: Mapping[str, int] | None) -> Training | None:
        """What is known of training for these numbers; None where backward is not compiled."""
        if self.shared.build is None:
            return None
        key = () if numbers is None else tuple(numbers.items())
        found = self._trainings.get(key)
        if found is not None:
            return found
        training = Training()
        with self._lock:
            known = {key: each.is_open for key, each in self._trainings.items()}
            if self._open(training, numbers):
                if sum(known.values()) >= MOST_OPEN:
                    del self._trainings[next(key for key, is_open in known.items() if is_open)]
            elif len(known) - sum(known.values()) >= MOST_NUMBERS:
                return None
            else:
                values = {**self.sizes, **(numbers or {})}
                self.shared.note(_Known(training, self.rerun, values, self.buckets))
            return self._trainings.setdefault(key, training)

    def _open(self, training: Training, numbers: Mapping[str, int] | None) -> bool:
        """Whether the region is trained for these sizes by what is compiled for all of them."""
        found = self.shared.opened_for(self.buckets)
        if found is None or training.trained is not None:
            return False
        opened, rerun = found
        values = {**self.sizes, **(numbers or {})}
        with self._lock:
            trained = opened.at(values)
            if trained is None:
                return False
            if "rerun" not in self.__dict__:
                self.rerun, self._symbols = rerun, self.sizes
            elif self.rerun.savings is None:
                self.rerun.savings = opened.savings.of(self.rerun.graph)
            training.is_open = True
            training.asked = {number: each.asked for number, each in trained.backwards.items()}
            self._learn(training, trained)
            if numbers is None:
                self.program = trained.forward
        return True

    def _all_symbols(self, numbers: Mapping[str, int] | None) -> Mapping[str, int] | None:
        """The values of the symbols that the graph has; `numbers`: of those that calls give. None if it has none."""
        return {**self._symbols, **(numbers or {})} if self._symbols else numbers

    def _is_passing(self, numbers: Mapping[str, int] | None) -> bool:
        """Whether a region that is trained has these sizes for the first time, or backward is not compiled for them:
        eager then runs forward once, where a compiled forward would be run again for backward."""
        if not self.shared.is_trained:
            return False
        key = () if numbers is None else tuple(numbers.items())
        is_new = key not in self._trainings
        training = self._training(numbers)
        return training is None or (is_new and training.trained is None)

    def _rehearse(self, training: Training, tensors: list[Tensor]) -> None:
        """Do as if a backward had asked for all gradients."""
        rerun = self.rerun
        kept = nodes.keep(tensors, bytes([_COPY] * len(tensors)))
        held = nodes.hold(kept, bytes(len(kept)))
        state = state_of(rerun.draws_on) if rerun.random else None
        tape = Tape(rerun, kept, frozenset(range(len(kept))), held, nodes.versions([]), state, None, {})
        tape.watch = training.watch
        with contextlib.suppress(RuntimeError):  # which the backward raises that is to come
            tape.rehearse()

    def _train(self, training: Training, numbers: Mapping[str, int] | None) -> Trained | None:
        """What trains the region, from the first call on after a backward. If numbers differ from call to call, only
        for those that come back."""
        if training.trained is not None or not training.asked or self.rerun.savings is None:
            return training.trained
        if self._open(training, numbers):
            return training.trained
        training.calls += 1
        if numbers is not None and training.calls == 1:
            return None
        with self._lock:
            build = self.shared.build
            if training.trained is None and build is not None:
                rerun, symbols = self.rerun, self._all_symbols(numbers)
                if symbols is not None:
                    rerun = self._rerun_of(concrete_graph(rerun.graph, symbols))
                trained = build(rerun, dict(training.asked))
                if trained is None:
                    self.shared.build = None
                    return None
                self._learn(training, trained)
                counters.add("trained")
                if numbers is None:
                    self.program = trained.forward  # nobody needs the other any more, or its packed weights
            return training.trained

    def _run_native(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """A call of a region that is trained, without Python on the way; None if it needs that."""
        training = self._trainings.get(())
        if training is None or training.trained is None or training.is_fresh:
            return None
        if self.rerun.gathered or self.rerun.draws_on:
            return None
        if not training.is_planned and self.rerun.savings is not None:
            training.is_planned = True
            training.native = self._planned(training, training.trained, tensors)
        return None if training.native is None else training.native(tensors)

    def _planned(self, training: Training, trained: Trained, tensors: list[Tensor]) -> Native | None:
        """The region's plan; None if there is more to do on a call than a plan can say."""
        rerun = self.rerun
        segments, shared = rerun.segments, self.shared
        if rerun.waits:
            return None
        numbers = {node: i for i, node in enumerate((*segments.results, *self._extra))}
        symbols = self._symbols or None
        found = native.stretches(rerun, trained, numbers, symbols)
        if found is None:
            return None
        views = tuple(item for item in segments.order if isinstance(item, fx.Node))
        place = {node: number for number, node in enumerate(rerun.placeholders)}
        bases = _bases(views)
        if any(base not in found[1] and base not in place for base in bases):
            return None
        made = tuple(base for base in bases if base in found[1])
        roots = {root: numbers[result] for root, result in rerun.saved_roots.items()}
        roots.update((root, number) for root, number in trained.exposed.items() if root not in roots)
        roots.update((content, -1 - number) for content, number in rerun.saved_writes.items())
        keeping, holding = self._ways(rerun)
        copied = frozenset(i for i, way in enumerate(keeping) if way == _COPY)
        apart = (
            2 if number in segments.detached else 0 if _is_view(node) else 1
            for number, node in enumerate(segments.results)
        )
        plan = native.native(
            native.Plan(
                trained.program,
                trained.given,
                tuple(tensors[shared.n_inputs :]),
                shared.n_inputs,
                trained.n_results,
                rerun.random,
                keeping,
                holding,
                self._gradient_inputs,
                (*(numbers[root] for root in segments.roots), *rerun.plain),
                tuple(roots.values()),
                shared.fresh_versions,
                rerun.unnoticed,
                bytes((*apart, *(0 for _ in made))),
                tuple(found[1].get(node, -1) for node in (*segments.results, *made)),
                found[0],
                native.TapeMaker(rerun, training, trained, copied, tuple(roots), symbols),
            )
        )
        if not views and not self._viewing:
            return plan
        return native.Viewed(
            plan,
            len(segments.results),
            made,
            tuple((base, place[base]) for base in bases if base in place),
            views,
            tuple((n, node) for n, node in enumerate(segments.results) if node in segments.views),
            self._viewing,
            symbols,
        )

    @cached_property
    def _viewing(self) -> tuple[int, ...]:
        """Positions of the results that the program itself makes as views: it runs without gradients, which autograd
        remembers of a view."""
        segments = self.rerun.segments
        return tuple(
            number
            for number, node in enumerate(segments.results)
            if node.op != "placeholder" and _is_view(node) and not {node} & (segments.cuts | segments.views)
        )

    @cached_property
    def _gradient_inputs(self) -> tuple[int, ...]:
        """Numbers of the inputs that require grad: kept as aliases, since what is written in place has a history that
        may lead back here, except for leaves."""
        rerun = self.rerun
        return tuple(
            number
            for number, node in enumerate(rerun.placeholders[: self.shared.n_inputs])
            if number not in rerun.mutated and node.meta["val"].requires_grad
        )

    def _ways(self, rerun: Rerun) -> tuple[bytes, bytes]:
        """How to keep each tensor, and how to hold its memory. Bound tensors live as long as the region, so they are
        kept themselves. A weight that is gathered again for backward is not held: it is freed in between."""
        gathered = rerun.gathered
        if rerun.savings is not None and self._how is not None and self._how[2] == gathered:
            return self._how[:2]
        keeping, holding = bytearray(), bytearray()
        for number, node in enumerate(rerun.placeholders):
            if number in rerun.mutated:
                keeping.append(_COPY)
                holding.append(_NOT)
                continue
            is_input = number < self.shared.n_inputs
            keeping.append(_ALIAS if is_input else _SELF)
            if number in gathered or (rerun.savings is not None and node not in rerun.savings.valued):
                holding.append(_NOT)
            else:
                # Writes to a device's memory are not seen: until it is known what backward needs, inputs and small
                # weights are copied.
                unseen = rerun.savings is None and node.meta["val"].device != CPU
                small = _bytes(node) <= COPIED_BYTES
                copied = (is_input or small) if unseen else (is_input and small)
                holding.append(_COPY_NOW if copied else _CONTENT)
        how = bytes(keeping), bytes(holding)
        if rerun.savings is not None:
            self._how = (*how, gathered)
        return how

    @cached_property
    def _extra(self) -> tuple[fx.Node, ...]:
        by_name = {node.name: node for node in self.graph.nodes}
        return tuple(by_name[name] for name in self.shared.needed)

    @cached_property
    def rerun(self) -> Rerun:
        """How the graph is run again: the one for all sizes, once the region is trained for these by what is."""
        return self._rerun_of(self.concrete())

    def _rerun_of(self, graph: fx.Graph) -> Rerun:
        shared = self.shared
        also = () if self.buckets is None or shared.joined else bucket_cuts(graph, self.buckets)
        doubles = None if shared.build_double is None else Doubles(shared.build_double, self._concrete)
        return Rerun(
            cut(graph, also, shared.joined),
            tuple(node for node in graph.nodes if node.op == "placeholder"),
            frozenset(number for number, _ in self.shared.mutations),
            self._written(graph),
            any(node.meta.get("random") for node in graph.nodes),
            graph,
            doubles=doubles,
        )

    def _concrete(self, numbers: Mapping[str, int] | None) -> tuple[fx.Graph, Segments]:
        """The graph with these values of its symbols, and its segments."""
        rerun = self.rerun
        if numbers is not None:
            rerun = self._rerun_of(concrete_graph(rerun.graph, numbers))
        return rerun.graph, rerun.segments

    def _written(self, graph: fx.Graph) -> Mapping[int, fx.Node]:
        """Input number → its content after the region, where eager notes the write in its version."""
        results = _results(graph)
        return {
            number: results[result]
            for number, result in self.shared.mutations
            if results[result].meta.get("overwrites") and results.count(results[result]) == 1
        }

    # --- eager --------------------------------------------------------------------------------------------------

    def _run_eager(self, tensors: list[Tensor], numbers: Mapping[str, int] | None) -> Sequence[Tensor]:
        """The graph, operator by operator, under autograd; inputs are written where the program writes them."""
        values: dict[fx.Node, Any] = dict(zip(self.rerun.placeholders, tensors, strict=True))
        symbols = self._all_symbols(numbers)
        contents = {node: number for number, node in self.rerun.written.items()}
        for number, _ in self.shared.mutations:
            if number not in self.rerun.written:
                # Eager's kernel writes to it without a new version, as statistics of a batch norm: what it saves of
                # it is not spoilt by the next call.
                values[self.rerun.placeholders[number]] = tensors[number].detach().clone()
        results = _results(self.graph)
        before = self._before(tensors)
        with below_autocast():
            for node in self._calls:
                try:
                    values[node] = _compute(node, values, symbols)
                except Exception as error:
                    # Eager repeats the call where only an operator raised: the function may have a handler for it.
                    if not self._communicates and _is_of_operator(error) and _restore(before):
                        nodes.operator_failed()
                    raise
                if node in contents:
                    buffer = tensors[contents[node]]
                    values[node] = buffer.copy_(values[node])
                for dead in self._dead.get(node, ()):
                    values.pop(dead, None)
            for number, result in self.shared.mutations:
                if number not in self.rerun.written:
                    with pristine.no_grad():
                        tensors[number].copy_(values[results[result]])
        return [values[node] for node in results]

    def _before(self, tensors: list[Tensor]) -> list[tuple[Tensor, Tensor, int]]:
        """What the region writes as it was before, with its version, if an operator may raise behind a write."""
        return [
            (tensors[number], tensors[number].detach().clone(), tensors[number]._version)
            for number in self._spoilt
        ]

    @cached_property
    def _spoilt(self) -> tuple[int, ...]:
        """Numbers of the inputs that are written before an operator that may raise."""
        contents = {node: number for number, node in self.rerun.written.items()}
        written: list[int] = []
        spoilt: tuple[int, ...] = ()
        for node in self._calls:
            if may_raise(node):
                spoilt = tuple(written)
            if node in contents:
                written.append(contents[node])
        return spoilt

    @cached_property
    def _communicates(self) -> bool:
        return communicates(self.graph)

    @cached_property
    def _calls(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.graph.nodes if node.op == "call_function")

    @cached_property
    def _dead(self) -> Mapping[fx.Node, list[fx.Node]]:
        return last_uses(self.graph)


def cut_off(numbers: tuple[int, ...]) -> Run:
    """Gives the inputs of these numbers, detached."""

    @opaque
    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensors[number].detach() for number in numbers]

    return run


def localizing(program: Run, dtensors: Sequence[tuple[int, Sharding | None]]) -> Run:
    """`program` of the local tensors, where DTensors are given: these get its gradients."""

    @opaque
    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        given = list(tensors)
        for number, gradient in dtensors:
            given[number] = localized(given[number], gradient)
        return program(given)

    return run


def without_gradients(program: Run, detached: tuple[int, ...]) -> Run:
    """`program` with the results at these places cut off from the tensors whose memory they share."""

    @opaque
    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        with pristine.no_grad():
            result = list(program(tensors))
        for i in detached:
            result[i] = result[i].detach()
        return result

    return run


def _results(graph: fx.Graph) -> tuple[fx.Node, ...]:
    return cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])


def _watched() -> bool:
    """Whether anomaly mode or hooks on saved tensors ask for what only eager's own nodes have."""
    autograd = cast(Any, torch)._C._autograd
    return pristine.is_anomaly_enabled() or autograd._top_saved_tensors_default_hooks(True) is not None


def _is_of_operator(error: BaseException) -> bool:
    """Whether an operator raised, not a hook on saved tensors, whose exception is genuine and whose effects have
    happened."""
    if not _watched():
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is _CALL_OF_OPERATOR


def _restore(before: list[tuple[Tensor, Tensor, int]]) -> bool:
    """Take writes back. Whether that was possible: a tensor that has become part of autograd's graph stays."""
    if any(tensor.grad_fn is not None for tensor, _, _ in before):
        return False
    for tensor, content, version in before:
        with pristine.no_grad():
            tensor.copy_(content)
        nodes.set_version(tensor, version)
    return True


def _value(tensor: Tensor | None, node: fx.Node, symbols: Mapping[str, int] | None) -> Tensor:
    """What stands for a segment's result: the program's, or, of a result that is in no caller's reach, its shape."""
    if tensor is None:
        spec = node.meta["val"] if symbols is None else spec_at(node.meta["val"], symbols)
        return pristine.empty((), dtype=spec.dtype, device=spec.device).expand(spec.shape)
    return tensor.detach() if tensor.requires_grad or tensor._is_view() else tensor


def _bases(views: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """What the views are made of, besides each other."""
    own = set(views)
    return tuple(dict.fromkeys(node for view in views for node in view.all_input_nodes if node not in own))


def _is_view(node: fx.Node) -> bool:
    """Whether eager calls the node's value a view, as far as the graph tells."""
    return node.op == "placeholder" or (
        seen_from(node) is not None and node.target is not torch.ops.aten.detach.default
    )


def _bytes(node: fx.Node) -> int:
    spec: TensorSpec = node.meta["val"]
    return hint_of(spec.numel) * spec.dtype.itemsize
