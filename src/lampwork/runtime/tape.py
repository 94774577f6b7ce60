"""Backward of a region: its graph is run again under autograd, cut as `segments` says, and each segment's node
differentiates its stretch of that run. So gradients are eager's, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from lampwork import counters, pristine
from lampwork.differentiation.joint import Asked
from lampwork.differentiation.saved import Probe, Saved, Savings, written_message
from lampwork.differentiation.segments import Segments, memory_of, requires_grad
from lampwork.errors import RuntimeFailure
from lampwork.graph.collectives import is_start, started_by, waits
from lampwork.graph.concrete import spec_at
from lampwork.graph.interpret import compute, last_uses, resolve
from lampwork.graph.islands import Island
from lampwork.graph.reach import needed
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_sizes
from lampwork.graph.within import devices_cast
from lampwork.runtime import nodes
from lampwork.runtime.doubles import Doubles
from lampwork.runtime.generators import State, accelerators, drawing_from
from lampwork.runtime.opaque import opaque
from lampwork.runtime.trained import Trained, laid_out


@dataclass(eq=False)
class Rerun:
    """How one graph is run again. Shared by all calls, of other sizes too where the graph has symbols for them.

    `mutated`: numbers of the inputs that the region writes. `written`: input number → node of its content after the
    region ran, of those that it writes as in-place operators do, which eager notes in the version of the input.
    `gathered`: numbers of the weights that a backward found in other memory, with the content that they had.
    `doubles`: backwards that are differentiable, where they can be compiled.
    """

    segments: Segments
    placeholders: tuple[fx.Node, ...]
    mutated: frozenset[int]
    written: Mapping[int, fx.Node]
    random: bool
    graph: fx.Graph
    savings: Savings | None = None
    gathered: frozenset[int] = frozenset()
    doubles: Doubles | None = None

    @cached_property
    def nodes(self) -> tuple[fx.Node, ...]:
        """What must be computed: what gradients depend on, and all that draws random numbers."""
        wanted = {node for node in self.graph.nodes if node.meta.get("random")}
        wanted = needed(wanted.union(self.segments.label, self.segments.views))
        # All results of an operator: the memory of one that needs no gradient may be saved as well.
        wanted.update(user for node in tuple(wanted) for user in node.users if user.target is getitem)
        return tuple(node for node in self.graph.nodes if node in wanted and node.op == "call_function")

    @cached_property
    def draws_on(self) -> frozenset[torch.device]:
        """The devices besides the CPU on which random numbers are drawn."""
        return accelerators(self.graph)

    @cached_property
    def waits(self) -> tuple[fx.Node, ...]:
        """What collectives give."""
        return waits(self.graph)

    @cached_property
    def shown_waits(self) -> frozenset[fx.Node]:
        """Those of them that the caller gets to see."""
        shown = frozenset(map(memory_of, self.segments.results))
        # An island may give the very same memory.
        given = {cast(fx.Node, node.args[0]) for node in shown if node.target is getitem}
        return frozenset(wait for wait in self.waits if wait in shown or started_by(wait) in given)

    @cached_property
    def last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        return last_uses(self.graph)

    @property
    def saved_roots(self) -> Mapping[fx.Node, fx.Node]:
        """Owners of memory that eager saves, as far as that is known, and the result that is the whole of it. A caller
        may write to it through `.data`."""
        roots = {root: root for root in self.segments.roots}
        for number in self.plain:
            # Of what a view of a part is of, no tensor is at hand.
            result = self.segments.results[number]
            root = memory_of(result)
            if _look_alike(result, root):
                roots.setdefault(root, result)
        if self.savings is None:
            return roots
        return {root: result for root, result in roots.items() if root in self.savings.roots}

    @property
    def saved_writes(self) -> Mapping[fx.Node, int]:
        """What the region wrote to inputs, if eager saves it, as far as that is known, and the input's number."""
        saved = None if self.savings is None else self.savings.roots
        return {
            content: number for number, content in self.written.items() if saved is None or content in saved
        }

    @cached_property
    def unnoticed(self) -> tuple[int, ...]:
        """Numbers of the inputs that the region writes without eager's notice, as a batch norm its statistics."""
        overwritten = {node.meta["overwrites"][0] for node in self.graph.nodes if node.meta.get("overwrites")}
        return tuple(n for n in sorted(self.mutated) if self.placeholders[n].name not in overwritten)

    @cached_property
    def plain(self) -> tuple[int, ...]:
        """Positions of results without gradients in memory of the region's own, which a caller may write to as well."""
        return tuple(
            number
            for number, node in enumerate(self.segments.results)
            if (root := memory_of(node)).op != "placeholder" and root not in self.segments.roots
        )

    @cached_property
    def sources(self) -> tuple[tuple[int | None, ...], ...]:
        """For each segment the numbers of the placeholders that its sources are, None where they are computed."""
        place = {node: number for number, node in enumerate(self.placeholders)}
        return tuple(tuple(map(place.get, segment.sources)) for segment in self.segments.segments)

    @cached_property
    def places(self) -> Mapping[fx.Node, tuple[int, ...]]:
        """Where the versions of a node's memory stand in a tape's `versions`."""
        found: dict[fx.Node, tuple[int, ...]] = {}
        watched = [*self.placeholders, *self.segments.roots]
        watched += [memory_of(self.segments.results[number]) for number in self.plain]
        for number, node in enumerate(watched):
            found[node] = (*found.get(node, ()), number)
        for number, content in self.written.items():
            found[content] = (number,)
        return found


@dataclass(slots=True, eq=False)
class Tape:
    """What one call keeps for its backward.

    `kept`: the tensors of the placeholders; those at `copied` are copies made at the call. `before`: what the memory
    of the others held. `versions`: of the placeholders, then of the tensors of `segments.roots`, then of the results
    `rerun.plain`. `state`: of the random number generators, before the call. `numbers`: the values of the symbols that
    the graph still has. `leaves`: number of a placeholder in whose place an alias is kept → the leaf itself, as eager
    saves it. `trained`: what made the results, and has `saved` tensors for its backwards, None once they are dropped.
    `watch`: is told what is asked of a segment's backward. `received`: what collectives gave.
    """

    rerun: Rerun
    kept: list[Tensor]
    copied: frozenset[int]
    before: Any
    versions: Any
    state: State | None
    numbers: Mapping[str, int] | None
    leaves: Mapping[int, Tensor]
    trained: Trained | None = None
    saved: Sequence[Tensor | None] = ()
    watch: Callable[[int, Asked], None] | None = None
    received: dict[fx.Node, Tensor] = field(default_factory=dict[fx.Node, Tensor])
    _values: dict[fx.Node, Tensor] = field(default_factory=dict[fx.Node, Tensor])
    _results: dict[int, tuple[list[Tensor], list[Tensor]]] = field(
        default_factory=dict[int, "tuple[list[Tensor], list[Tensor]]"]
    )
    _done: set[int] = field(default_factory=set[int])
    _lock: Any = field(default_factory=threading.RLock)
    _roots: tuple[tuple[fx.Node, ...], list[Tensor], Any] = ((), [], None)

    def hold_roots(self, roots: Mapping[fx.Node, Tensor]) -> None:
        """Note the tensors of results, and of written inputs, whose memory eager saves."""
        tensors = [tensor.detach() for tensor in roots.values()]
        self._roots = tuple(roots), tensors, nodes.hold(tensors, bytes([3] * len(tensors)))

    def go_on(
        self, roots: tuple[fx.Node, ...], tensors: list[Tensor], held: Any, done: Iterable[int]
    ) -> None:
        """Go on for a call that ran without this tape: as `hold_roots`, with what was held of the tensors, and with
        segments that are done."""
        self._roots = roots, tensors, held
        self._done.update(done)

    def rehearse(self) -> None:
        """Run every backward as if it were asked for all gradients, of gradients that are one."""
        for segment in self.rerun.segments.segments:
            ones = [_ones(self._spec(node)) if requires_grad(node) else None for node in segment.results]
            with pristine.no_grad():
                self._differentiate(segment.number, ones, (True,) * len(segment.sources), False, None)

    def _spec(self, node: fx.Node) -> Any:
        """What is known of a node's value on this call."""
        val = node.meta["val"]
        return val if self.numbers is None else spec_at(val, self.numbers)

    def backward(self, number: int) -> Callable[..., Any]:
        """The backward of one segment, as `_C.attach` takes it."""

        @opaque
        def differentiate(
            grads: list[Tensor | None], needed: Sequence[bool], keep: bool, node: Any
        ) -> tuple[list[Tensor | None], bool]:
            with self._lock:
                return self._differentiate(number, grads, needed, keep, node)

        return differentiate

    def _differentiate(
        self, number: int, grads: list[Tensor | None], needed: Sequence[bool], keep: bool, node: Any
    ) -> tuple[list[Tensor | None], bool]:
        moved: dict[int, tuple[int, int]] = nodes.moved(self.versions)
        connected = pristine.is_grad_enabled()
        if self.rerun.savings is not None:
            self._check_written(number, needed, moved, self.rerun.savings)
        if connected:
            compiled = self._run_double(number, grads, needed, node)
        else:
            compiled = self._run_compiled(number, grads, needed, moved, keep)
        if compiled is not None:
            if not keep:
                self._finish(number)
            return compiled, number not in cast(Savings, self.rerun.savings).again
        counters.add("eager_backwards")
        if number not in self._results:
            self._done.discard(number)
            self._run(None)
        savings = self.rerun.savings
        assert savings is not None
        self._check_written(number, needed, moved, savings)
        results, stands = self._results[number]
        if connected:
            results, stands = self._connect(number, node)
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if grad is not None and result.requires_grad
        ]
        wanted = [i for i, flag in enumerate(needed) if flag]
        gradients: list[Tensor | None] = [None] * len(needed)
        if pairs and wanted:
            found = torch.autograd.grad(
                [result for result, _ in pairs],
                [stands[i] for i in wanted],
                [grad for _, grad in pairs],
                create_graph=connected,
                retain_graph=keep or connected,
                allow_unused=True,
            )
            for i, gradient in zip(wanted, found, strict=True):
                gradients[i] = gradient
        if self.watch is not None and not connected:
            self.watch(number, self._asked(number, grads, needed, gradients))
        if self.rerun.doubles is not None and connected and not pristine.is_anomaly_enabled():
            asked = self._asked(number, grads, needed, gradients)
            self.rerun.doubles.note(number, self.numbers, asked, grads)
            if self._saves_what_it_gives(number):
                # The graph that was run again has results of its own, which the caller cannot differentiate by.
                gradients = self._run_double(number, grads, needed, node) or gradients
        if not keep:
            self._finish(number)
        return gradients, number not in savings.again

    def _asked(
        self,
        number: int,
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
    ) -> Asked:
        results = self.rerun.segments.segments[number].results
        return Asked.of([node.meta["val"] for node in results], grads, needed, gradients)

    def _run_double(
        self, number: int, grads: Sequence[Tensor | None], needed: Sequence[bool], node: Any
    ) -> list[Tensor | None] | None:
        """The gradients, as functions of what the segment starts from and of `grads`; None where they are not compiled,
        or something was written since."""
        rerun = self.rerun
        if rerun.doubles is None or rerun.savings is None or pristine.is_anomaly_enabled():
            return None
        found = None if self._before().changed else rerun.doubles.find(number, self.numbers, grads, needed)
        if found is None:
            return None
        double, tangents = found
        held = dict(zip(*self._roots[:2], strict=True))
        taken = {i: held.get(rerun.segments.segments[number].results[i]) for i in double.results}
        given = {i: value for i, value in taken.items() if value is not None}
        if len(given) < len(taken):
            return None
        counters.add("double_backwards")
        places = rerun.sources[number]
        computed: Sequence[Tensor] = ()
        if double.values is not None:
            with _as_recorded(self.state):
                computed = double.values([self.kept[place] for place in double.given])
        rest = iter(computed)
        values = [next(rest) if place is None else self.kept[place] for place in places]
        stands = [nodes.with_edge(value, node, i) for i, value in enumerate(values)]
        results = {i: nodes.with_edge(value, node, -1 - i) for i, value in given.items()}
        with _as_recorded(self.state):
            return double(self.kept, list(zip(places, stands, strict=True)), results, tangents)

    def _saves_what_it_gives(self, number: int) -> bool:
        """Whether eager's formulas take a result of the segment which the caller can hold."""
        segments = self.rerun.segments
        saved = {each.root for each in cast(Savings, self.rerun.savings).saved.get(number, ())}
        return not saved.isdisjoint(set(segments.segments[number].results).intersection(segments.roots))

    def _run_compiled(
        self,
        number: int,
        grads: list[Tensor | None],
        needed: Sequence[bool],
        moved: Mapping[int, tuple[int, int]],
        keep: bool,
    ) -> list[Tensor | None] | None:
        """The gradients from the segment's compiled backward; None if there is none for what is asked, or if what it
        reads was written or dropped since."""
        trained = self.trained
        compiled = None if trained is None else trained.backwards.get(number)
        if trained is None or compiled is None or (number in self._done and compiled.saved):
            return None
        if trained.deterministic != pristine.are_deterministic_algorithms_enabled():
            return None
        tangents = laid_out(compiled.asked, grads, needed)
        written = any(place in moved for root in trained.exposed for place in self.rerun.places[root])
        if tangents is None or written or self._before().changed:
            return None
        program = compiled.program.result()
        if program is None:
            return None
        counters.add("compiled_backwards")
        given = compiled.given(self.kept, self.saved, tangents)
        if not keep:
            # From here on it is the program that holds what no other segment needs.
            self._done.add(number)
            others = [each.saved for other, each in trained.backwards.items() if other not in self._done]
            needed_yet = frozenset[int]().union(*others)
            self.saved = [tensor if i in needed_yet else None for i, tensor in enumerate(self.saved)]
        tangents.clear()
        grads.clear()
        return compiled.run(program, given)

    def _finish(self, number: int) -> None:
        """Free what only this segment's backward needs."""
        self._results.pop(number, None)
        self._done.add(number)
        if len(self._done) == len(self.rerun.segments.segments):
            self._values.clear()
            self.received = {}
            self.saved = ()

    def _check_written(
        self,
        number: int,
        needed: Sequence[bool],
        moved: Mapping[int, tuple[int, int]],
        savings: Savings,
    ) -> None:
        """
        Raises:
            RuntimeError: eager saves a tensor for this segment that was written since.
        """
        wanted = sum(1 << i for i, flag in enumerate(needed) if flag)
        for saved in savings.saved.get(number, ()):
            if not saved.sources & wanted:
                continue
            versions = self._versions_of(saved, moved)
            if versions is not None and saved.text is None:
                return self._check_written(number, needed, moved, self._looked_at())
            if versions is not None and saved.text is not None:
                raise RuntimeError(written_message(saved.text, *versions))
        return None

    def _versions_of(self, saved: Saved, moved: Mapping[int, tuple[int, int]]) -> tuple[int, int] | None:
        """Which version was saved, and which there is now; None if it is the same."""
        if saved.lost:
            return 0, 1
        rerun = self.rerun
        for place in rerun.places.get(saved.root, ()):
            # What an input held before the region itself wrote to it was copied.
            copied = place in rerun.mutated and place not in rerun.unnoticed
            copied = copied and saved.root is rerun.placeholders[place]
            if place in moved and not copied:
                return moved[place]
        return None

    def _looked_at(self) -> Savings:
        """What eager saves on a call with these sizes."""
        probe, known = Probe(self.rerun.graph, self.rerun.segments), (self._results, self._values)
        self._results, self._values = {}, {}
        self._run_nodes(None, probe, Before({}, {}, {}))
        self._results, self._values = known
        return probe.savings()

    def _connect(self, number: int, node: Any) -> tuple[list[Tensor], list[Tensor]]:
        """The segment's results as functions of stand-ins for its sources, whose gradients go where the sources' go."""
        stands: dict[fx.Node, Tensor] = {}
        for i, source in enumerate(self.rerun.segments.segments[number].sources):
            value: Tensor = nodes.with_edge(self._values[source], node, i)
            stands[source] = torch.ops.aten.alias.default(
                value
            )  # unlike that of a view, its gradient may be sparse
        return self._run((number, stands)), list(stands.values())

    def _run(self, only: tuple[int, Mapping[fx.Node, Tensor]] | None) -> list[Tensor]:
        """Run the graph again. `only`: a segment with stand-ins for its sources, whose results are given; else the
        results of all segments that are not done are kept."""
        rerun = self.rerun
        before = self._before()
        if rerun.savings is None:
            probe, known = Probe(rerun.graph, rerun.segments), dict(self._results)
            answer = self._run_nodes(only, probe, before)
            rerun.savings = probe.savings()
            if not before.changed:
                return answer
            self._results = known
        if not before.changed:
            return self._run_nodes(only, None, before)
        with torch.autograd.graph.saved_tensors_hooks(before.pack, before.present):
            return self._run_nodes(only, None, before)

    def _before(self) -> Before:
        """
        Raises:
            RuntimeFailure: what was written or freed is not there: there was no memory for a copy of it, or it is a
                weight or a large tensor of a device, which is not copied.
        """
        contents: dict[int, Tensor | None] = nodes.changed(self.before, self.kept)
        for number, content in contents.items():
            if number in self.rerun.gathered and not self.kept[number].untyped_storage().nbytes():
                name = self.rerun.placeholders[number].name
                raise RuntimeFailure(
                    f"the memory of {name} was freed after forward, and is not there for backward"
                )
            if content is None:
                raise RuntimeFailure(
                    f"{self.rerun.placeholders[number].name} was written between forward and backward, and what it "
                    "held is not there any more",
                    fix="write to it after backward, or pass a clone of it",
                )
        self.rerun.gathered |= {n for n, content in contents.items() if self._is_gathered(n, content)}
        roots, tensors, held = self._roots
        written = nodes.changed(held, tensors) if roots else {}
        known = cast("dict[int, Tensor]", contents)
        return Before(known, {roots[i]: tensors[i] for i in written}, self._moved(known))

    def _is_gathered(self, number: int, content: Tensor | None) -> bool:
        """Whether a weight has other memory than at forward, and the same content: `fully_shard` frees it after forward
        and gathers it again for backward."""
        now, kind = self.kept[number], _BITS.get(self.kept[number].itemsize)
        if content is None or kind is None or nodes.modes_are_on():
            return False
        if not self.rerun.placeholders[number].meta.get("bound") or now.stride() != content.stride():
            return False
        if content.untyped_storage().resizable():
            return False  # it was given the memory of another tensor, as by `x.data = other`
        sizes = {tensor.untyped_storage().nbytes() for tensor in (now, content)}
        return len(sizes) == 1 and pristine.equal(now.detach().view(kind), content.view(kind))

    def _moved(self, contents: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The tensors that were given other memory since, or are laid out in theirs in another way, as by
        `x.data = other`."""
        # What is held of a tensor is a copy, which cannot be resized, if it was written; else its old memory.
        moved = {
            number: self.kept[number]
            for number, content in contents.items()
            if number not in self.copied and content.untyped_storage().resizable()
        }
        for number, leaf in self.leaves.items():
            if _place(leaf) != _place(self.kept[number]):
                moved[number] = leaf
        return moved

    def _run_nodes(
        self,
        only: tuple[int, Mapping[fx.Node, Tensor]] | None,
        probe: Probe | None,
        before: Before,
    ) -> list[Tensor]:
        with _as_recorded(self.state):
            return self._compute_nodes(only, probe, before)

    def _compute_nodes(
        self,
        only: tuple[int, Mapping[fx.Node, Tensor]] | None,
        probe: Probe | None,
        before: Before,
    ) -> list[Tensor]:
        segments = self.rerun.segments
        label = segments.label
        inside, stands = only if only is not None else (-1, {})
        values: dict[fx.Node, Any] = {}
        for number, (node, tensor) in enumerate(zip(self.rerun.placeholders, self.kept, strict=True)):
            leaf = _fitting(before.contents.get(number, tensor), self._spec(node))
            if number in before.moved:
                before.is_saved_for(leaf, before.moved[number])
            elif number in before.contents:
                before.stands_for(leaf, tensor)
            values[node] = leaf.requires_grad_() if requires_grad(node) else leaf
            if only is None and requires_grad(node):
                self._values[node] = leaf
            if probe is not None:
                probe.note(node, leaf)
                probe.leaf(node, leaf)
        results: dict[fx.Node, Tensor] = {}
        seen_by_segment = {**values, **stands}
        for node in self.rerun.nodes:
            mine = label.get(node) == inside
            seen = seen_by_segment if mine else values
            value = self._computed(node, seen)
            if node in before.roots:
                before.stands_for(value, before.roots[node])
            if probe is not None:
                probe.note(node, value)
            if node in segments.cuts or (node in segments.views and requires_grad(node)):
                results[node] = value
                value = value.detach().requires_grad_()
                if probe is not None:
                    probe.leaf(node, value)
                if only is None:
                    self._values[node] = value
            values[node] = value
            if only is not None:
                seen_by_segment[node] = stands.get(node, value)
            for dead in self.rerun.last_uses.get(node, ()):
                values.pop(dead, None)
                if only is not None:
                    seen_by_segment.pop(dead, None)
        if only is not None:
            return [results[node] for node in segments.segments[inside].results]
        for segment in segments.segments:
            if segment.number not in self._results and segment.number not in self._done:
                self._results[segment.number] = (
                    [results[node] for node in segment.results],
                    [self._values[source] for source in segment.sources],
                )
        return []

    def _computed(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        """The value of a node; of one that starts a collective, what that gave: other processes may not run theirs
        again."""
        if not is_start(node.target):
            return compute(node, values, self.numbers)
        given = [self.received[wait] for wait in self.rerun.waits if started_by(wait) is node]
        if isinstance(node.target, Island):
            return node.target.run(resolve(node.args, values), given)
        with _Received(given):
            return compute(node, values, self.numbers)


class _Received(TorchDispatchMode):
    """A collective gives what it gave before; autograd takes it for the same operator."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self._given = given

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see Recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not is_start(func):
            return func(*args, **(kwargs or {}))
        made = [tensor.detach() for tensor in self._given]
        return made if str(func._schema.returns[0].type) == "List[Tensor]" else made[0]


@dataclass(slots=True, eq=False)
class Before:
    """What was written between forward and backward without eager's notice, as through `.data`. Eager's graph has been
    computed by then from what memory held before; but what it saves, it shares with the caller.

    `contents`: number of a placeholder → what it held. `roots`: result → its memory. `moved`: number of a placeholder →
    its tensor, if that has other memory now. Where eager saves the tensor itself it sees that memory, where it saves a
    view of it, the old.
    """

    contents: Mapping[int, Tensor]
    roots: Mapping[fx.Node, Tensor]
    moved: Mapping[int, Tensor]
    _now: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, "tuple[Tensor, Tensor]"])
    _itself: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, "tuple[Tensor, Tensor]"])

    @property
    def changed(self) -> bool:
        return bool(self.contents or self.roots or self.moved)

    def is_saved_for(self, leaf: Tensor, moved: Tensor) -> None:
        """`leaf` itself, but no view of it, is saved in the place of `moved`."""
        self._itself[id(leaf)] = (leaf, moved.detach())

    def pack(self, tensor: Tensor) -> Tensor:
        """What is saved in the place of a tensor."""
        _, moved = self._itself.get(id(tensor), (tensor, tensor))
        return moved

    def stands_for(self, old: Tensor, now: Tensor) -> None:
        """`old` is saved in the place of `now`."""
        if old.stride() == now.stride() and old.dtype == now.dtype:
            self._now[old.untyped_storage()._cdata] = (old.detach(), now.detach())

    def present(self, saved: Tensor) -> Tensor:
        """A saved tensor with what its memory holds now."""
        old, now = self._now.get(saved.untyped_storage()._cdata, (saved, saved))
        if now is saved or saved.dtype != now.dtype:
            return saved
        offset = saved.storage_offset() - old.storage_offset() + now.storage_offset()
        return now.as_strided(saved.size(), saved.stride(), offset)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where the elements of a tensor are."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


def _look_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether their values have the same shape, strides and dtype, whatever the sizes."""
    left, right = one.meta["val"], other.meta["val"]
    return (
        left.dtype is right.dtype
        and same_sizes(left.shape, right.shape)
        and same_sizes(left.strides, right.strides)
    )


def _ones(spec: TensorSpec) -> Tensor:
    return pristine.full((), 1, dtype=spec.dtype, device=spec.device).expand(spec.shape)


def _fitting(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """An alias of what stands for a placeholder. One whose values nobody needs is not held: where it was given other
    memory, of another shape or dtype, anything of its old looks will do."""
    if tensor.dtype is spec.dtype and tensor.shape == spec.shape:
        return tensor.detach()
    stand_in = pristine.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=spec.device)
    return stand_in.zero_()


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> the dtype that tells apart all of its values."""


@contextmanager
def _as_recorded(state: State | None) -> Generator[None]:
    """Run operators as they were recorded: below autocast, with the random numbers of the call, and leave the
    generator as it is."""
    with (
        drawing_from(state),
        # Nothing requires grad in inference mode, in which the caller of backward may be.
        pristine.inference_mode(False),
        pristine.enable_grad(),
        below_autocast(),
        _without_anomalies(),
        _outside_vmap(),
    ):
        yield


@contextmanager
def _outside_vmap() -> Generator[None]:
    """`is_grads_batched` maps backward over gradients. Forward has none, and what it draws is drawn once."""
    functions = cast(Any, torch)._C
    levels = functions._vmapmode_increment_nesting()
    for _ in range(levels):
        functions._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(levels - 1):
            functions._vmapmode_increment_nesting()


@contextmanager
def _without_anomalies() -> Generator[None]:
    """Where the graph ran forward, nobody asked for the tracebacks that anomaly mode notes."""
    if not pristine.is_anomaly_enabled():
        yield
        return
    checks = pristine.is_anomaly_check_nan_enabled()
    pristine.set_anomaly_enabled(False)
    try:
        yield
    finally:
        pristine.set_anomaly_enabled(True, checks)


@contextmanager
def below_autocast() -> Generator[None]:
    """Casts are part of a recorded graph, and must not be made again."""
    with ExitStack() as stack:
        for kind in devices_cast():
            stack.enter_context(pristine.autocast(kind, enabled=False))
        yield
