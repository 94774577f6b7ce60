"""A joint graph divided into a forward that saves tensors and the backwards that take them.

What backward needs of forward is either saved, or computed again from what is saved (see `saving`), just before it is
needed.

before: mm = x @ w; gelu = gelu(mm); mm_1 = gelu @ v      backward needs mm, gelu
after:  saved: mm                                         backward computes gelu again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Literal

import torch
from torch import fx

from lampwork.differentiation.joint import Joint, Stretch
from lampwork.differentiation.postponed import postponed
from lampwork.differentiation.saving import Saving, saved_dtype
from lampwork.differentiation.statistics import write_out_log_softmax
from lampwork.graph.concrete import concrete_graph, spec_at
from lampwork.graph.nodes import add_call, copy_node
from lampwork.graph.origin import place_of
from lampwork.graph.reach import needed
from lampwork.graph.spec import TensorSpec
from lampwork.graph.totality import may_raise
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import storage_root, view_base
from lampwork.rewriting.apply.edit import Infer
from lampwork.rewriting.apply.layout import propagate_strides, with_strides
from lampwork.rewriting.schema import is_pinned

aten = torch.ops.aten


@record
class Given:
    """Where an input of a backward comes from: the placeholder of the region, the saved tensor, the gradient of the
    result, or the segment's source or result of this number."""

    kind: Literal["kept", "saved", "tangent", "source", "result"]
    number: int


@record
class Backward:
    """`graph`: its placeholders stand for `inputs`. `gradients`: for each source of the segment the number of the
    result that is its gradient, -1 where there is none."""

    graph: fx.Graph
    inputs: tuple[Given, ...]
    gradients: tuple[int, ...]


@record
class Split:
    """A divided joint graph.

    `forward`: takes the region's placeholders in the order `inputs`, weights that are trained before those that stay,
    which alone are bound; returns the region's results, then what is saved. `saved`: its specs, by the names of nodes.
    `exposed`: numbers of the region's results whose memory is saved too: the caller may write to it.
    `backwards`: by number of segment. `again`: names of the operators that backward computes again, views
    apart. `budget`: the part of `default_bytes`, which are saved by default, that may be saved.
    """

    forward: fx.Graph
    inputs: tuple[int, ...]
    saved: Mapping[str, TensorSpec]
    exposed: tuple[int, ...]
    backwards: Mapping[int, Backward]
    again: tuple[str, ...]
    budget: float
    default_bytes: int

    @property
    def saved_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.saved.values())

    def at(self, numbers: Mapping[str, int]) -> Split:
        """The same with these values of its symbols."""
        backwards = {
            number: replace(backward, graph=concrete_graph(backward.graph, numbers))
            for number, backward in self.backwards.items()
        }
        saved = {name: spec_at(spec, numbers) for name, spec in self.saved.items()}
        forward = concrete_graph(self.forward, numbers)
        return replace(self, forward=forward, saved=saved, backwards=backwards)


def split(joint: Joint, trained: frozenset[fx.Node], budget: float = 1.0) -> Split:
    """Divide a joint graph. `trained`: the placeholders that are differentiated by. `budget`: the part of the bytes
    that would be saved by default which may be."""
    late = joint.late(tangent for stretch in joint.stretches.values() for tangent in stretch.tangents)
    ends = {g for stretch in joint.stretches.values() for g in stretch.gradients if g is not None}
    write_out_log_softmax(joint.graph, late)
    choice = Saving.of(joint.graph, late, needed(ends), ends).within(budget)
    saved = choice.nodes
    inputs = sorted(joint.placeholders, key=lambda node: _stays(node, trained))
    forward, values = _copy(joint, inputs, saved, trained)
    kept = {node: _as_saved(forward, values[node], saved_dtype(node)) for node in saved}
    exposed = tuple(i for i, node in enumerate(joint.results) if storage_root(node) in kept)
    output = forward.output((*(values[node] for node in joint.results), *kept.values()))
    output.meta["n_shown"] = len(joint.results)
    numbers = {node: number for number, node in enumerate(saved)}
    builders = {n: _Backward(joint, stretch, numbers, kept) for n, stretch in joint.stretches.items()}
    backwards = {number: builder.build() for number, builder in builders.items()}
    again = dict.fromkeys(name for builder in builders.values() for name in builder.again)
    order = tuple(joint.placeholders.index(node) for node in inputs)
    specs = {node.name: kept[node].meta["val"] for node in saved}
    return Split(forward, order, specs, exposed, backwards, tuple(again), budget, choice.default_bytes)


def lay_out_saved(halves: Split, results: Sequence[TensorSpec], infer: Infer) -> None:
    """Have the backwards read what is saved in the strides in which the forward, after its passes, leaves it.

    `results`: the specs of what the forward returns then.

    before: forward saves %c: (4, 64, 56, 56) channels last, backward reads %c: (4, 64, 56, 56) row-major
    after:  backward reads %c: (4, 64, 56, 56) channels last; its gradients have the strides that they had
    """
    saved = results[len(results) - len(halves.saved) :]
    for backward in halves.backwards.values():
        placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
        changed: list[fx.Node] = []
        for node, given in zip(placeholders, backward.inputs, strict=True):
            was: TensorSpec = node.meta["val"]
            if given.kind != "saved":
                continue
            made = saved[given.number]
            if made.strides != was.strides:
                node.meta.update(val=with_strides(was, made.strides), eager_val=was)
                changed.append(node)
        propagate_strides(backward.graph, infer, changed)


def _stays(node: fx.Node, trained: frozenset[fx.Node]) -> bool:
    """Whether the placeholder is a bound tensor that training does not move, so that it pays to pack it."""
    return bool(node.meta.get("bound")) and node not in trained


def _as_saved(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """The node's value in the dtype in which it is saved."""
    spec: TensorSpec = node.meta["val"]
    if dtype is spec.dtype:
        return node
    return _cast(graph, node, replace(spec, dtype=dtype), node)


def _cast(graph: fx.Graph, node: fx.Node, spec: TensorSpec, like: fx.Node) -> fx.Node:
    """The node's value as `spec` says; it comes from where `like` does."""
    kwargs = {"dtype": spec.dtype}
    made = add_call(graph, aten._to_copy.default, (node,), kwargs, "_to_copy", place_of(like))
    made.meta["val"] = spec
    return made


def _copy(
    joint: Joint, inputs: Iterable[fx.Node], saved: Iterable[fx.Node], trained: frozenset[fx.Node]
) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """The forward part of a joint graph, without an output."""
    late = joint.late(tangent for stretch in joint.stretches.values() for tangent in stretch.tangents)
    pinned = (n for n in joint.graph.nodes if n.op == "call_function" and _runs_anyway(n) and n not in late)
    kept = needed((*joint.results, *saved, *pinned))
    kept.update(user for node in tuple(kept) for user in node.users if user.target is getitem)
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        made = values[node] = graph.create_node("placeholder", node.name, (), {}, name=node.name)
        made.meta = {**node.meta, "bound": _stays(node, trained)}
    for node in joint.graph.nodes:
        if node.op == "call_function" and node in kept:
            values[node] = copy_node(graph, node, values.__getitem__)
    return graph, values


def _runs_anyway(node: fx.Node) -> bool:
    """Whether a node runs though nobody needs what it gives: eager may raise there."""
    return is_pinned(node) or (getattr(node.target, "namespace", "") != "lampwork" and may_raise(node))


@dataclass
class _Backward:
    """Builds the backward of one stretch: its nodes in their order, but for what is postponed, and what is computed
    again just before its use."""

    joint: Joint
    stretch: Stretch
    saved: Mapping[fx.Node, int]
    kept: Mapping[fx.Node, fx.Node]
    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: dict[Given, fx.Node] = field(default_factory=dict[Given, fx.Node])
    values: dict[fx.Node, fx.Node] = field(default_factory=dict[fx.Node, fx.Node])
    again: list[str] = field(default_factory=list[str])

    def build(self) -> Backward:
        for number, node in enumerate(self.stretch.tangents):
            self._input(node, Given("tangent", number))
        late = self.joint.late(self.stretch.tangents)
        ends = [g for g in self.stretch.gradients if g is not None]
        wanted = needed(ends)
        nodes = [node for node in self.joint.graph.nodes if node in wanted and node in late]
        last = postponed(nodes, wanted, set(ends))
        for node in nodes:
            if node.op == "call_function" and storage_root(node) not in last:
                self._value(node, late)
        results = list(dict.fromkeys(ends))
        for node in results:
            self._value(node, late)
        self.graph.output(tuple(self.values[node] for node in results))
        numbers = {node: number for number, node in enumerate(results)}
        gradients = tuple(-1 if g is None else numbers[g] for g in self.stretch.gradients)
        return Backward(self.graph, tuple(self.inputs), gradients)

    def _value(self, node: fx.Node, late: set[fx.Node]) -> fx.Node:
        """The node in this graph, with what it needs that is not there yet."""
        work = [node]
        while work:
            current = work[-1]
            if current in self.values:
                work.pop()
            elif current in self.saved:
                self._saved(current)
            elif current.op == "placeholder":
                self._input(current, Given("kept", self.joint.placeholders.index(current)))
            elif missing := [used for used in current.all_input_nodes if used not in self.values]:
                work.extend(missing)
            else:
                if current not in late and current.target is not getitem and view_base(current) is None:
                    self.again.append(current.name)
                self.values[current] = copy_node(self.graph, current, self.values.__getitem__)
        return self.values[node]

    def _saved(self, node: fx.Node) -> None:
        spec: TensorSpec = self.kept[node].meta["val"]
        made = self._input(node, Given("saved", self.saved[node]), spec)
        numbers: TensorSpec = node.meta["val"]
        if spec.dtype is not numbers.dtype:
            self.values[node] = _cast(self.graph, made, numbers, node)

    def _input(self, node: fx.Node, given: Given, spec: TensorSpec | None = None) -> fx.Node:
        last = next(reversed(self.inputs.values()), None)
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before():
            made = self.graph.create_node("placeholder", node.name, (), {}, name=node.name)
        made.meta.update(val=node.meta["val"] if spec is None else spec, bound=False)
        self.inputs[given] = self.values[node] = made
        return made
