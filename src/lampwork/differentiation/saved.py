"""What eager saves for backward, read off the autograd graph of one run of a region: eager's, or one without data.

Two things depend on it. A tensor that eager saves must not have been written when backward comes, and eager raises if
it was; one that eager does not save may have been. And what was written matters only where a saved value is computed
from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from lampwork import pristine
from lampwork.differentiation.segments import Segments
from lampwork.graph.distributed import is_dtensor
from lampwork.graph.nested import leaves
from lampwork.graph.reach import needed
from lampwork.graph.tracetensor import TraceTensor
from lampwork.records import record


@record
class Saved:
    """A saved tensor: the graph node that owns its memory, how eager's message about it begins (None: it names sizes
    that are open), and the sources whose gradients need it (one bit for each of the segment's). `lost`: the region
    itself writes to it afterwards."""

    age: int
    root: fx.Node
    text: str | None
    sources: int
    lost: bool


@record
class Savings:
    """`saved`: for each segment what eager saves of nodes of the graph, in the order in which backward comes to it.
    `again`: segments that save nothing at all, so that eager runs them any number of times.
    `valued`: nodes whose values make a difference to gradients. `roots`: the nodes that own what is saved."""

    saved: Mapping[int, tuple[Saved, ...]]
    again: frozenset[int]
    valued: frozenset[fx.Node]
    roots: frozenset[fx.Node]

    def of(self, graph: fx.Graph) -> Savings:
        """The same of another copy of the graph, whose sizes differ."""
        twins = {node.name: node for node in graph.nodes}
        saved = {
            segment: tuple(replace(each, root=twins[each.root.name], text=None) for each in found)
            for segment, found in self.saved.items()
        }
        valued = frozenset(twins[node.name] for node in self.valued)
        return Savings(saved, self.again, valued, frozenset(twins[node.name] for node in self.roots))


@dataclass(slots=True)
class Probe:
    """Watches one eager run, node by node."""

    graph: fx.Graph
    segments: Segments
    _known: dict[int, Any] = field(default_factory=dict[int, Any])
    _roots: dict[int, tuple[Any, fx.Node]] = field(default_factory=dict[int, "tuple[Any, fx.Node]"])
    _made: list[tuple[fx.Node, Any]] = field(default_factory=list["tuple[fx.Node, Any]"])
    _leaves: dict[int, tuple[Tensor, fx.Node]] = field(default_factory=dict[int, "tuple[Tensor, fx.Node]"])

    def leaf(self, node: fx.Node, tensor: Tensor) -> None:
        """The run differentiates by `tensor` in the place of the node's value."""
        self._leaves[id(tensor)] = (tensor, node)

    def note(self, node: fx.Node, value: Any) -> None:
        """`value` was computed as the node's."""
        for tensor in leaves(value, Tensor):
            if tensor is value:  # of several results, each has a node of its own as well
                self._note_memory(node, tensor)
            function = grad_fn(tensor)
            if node.op != "placeholder" and function is not None:
                self._note_functions(node, function)

    def _note_memory(self, node: fx.Node, tensor: Tensor) -> None:
        key, held = _memory(tensor)
        owns = node.meta.get("overwrites") or node.meta.get("whole")
        if key not in self._roots or owns:
            self._roots[key] = (held, node)

    def _note_functions(self, node: fx.Node, function: Any) -> None:
        work = [function]
        while work:
            current = work.pop()
            if current is None or id(current) in self._known:
                continue
            self._known[id(current)] = current
            self._made.append((node, current))
            work.extend(following for following, _ in current.next_functions)

    def savings(self) -> Savings:
        """What the run so far has saved."""
        label = self.segments.label
        reach = _Reach(self._leaves)
        number_of = {node.name: number for number, node in enumerate(self.graph.nodes)}
        overwritten = _overwritten(self.graph, number_of)
        contents = _contents(self.graph)
        saved: dict[int, list[Saved]] = {}
        saving: set[int] = set()
        valued: set[fx.Node] = set()
        for node, function in self._made:
            for tensor in _saved_tensors(function):
                segment = label.get(node)
                if segment is None:
                    continue
                saving.add(segment)
                _, root = self._roots.get(_memory(tensor)[0], (None, None))
                if root is None:
                    valued.update(node.all_input_nodes)
                    continue
                valued.add(root)
                root = contents.get(root, root)
                leaves = reach.leaves(function)
                sources = self.segments.segments[segment].sources
                mask = sum(1 << i for i, source in enumerate(sources) if source in leaves)
                lost = number_of[node.name] < overwritten.get(root.name, -1)
                found = Saved(function._sequence_nr(), root, _text(tensor), mask, lost)
                saved.setdefault(segment, []).append(found)
        by_age = {
            segment: tuple(sorted(found, key=lambda item: -item.age)) for segment, found in saved.items()
        }
        segments = set(label.values())
        roots = frozenset(item.root for found in saved.values() for item in found)
        return Savings(by_age, frozenset(segments - saving), frozenset(needed(valued)), roots)


# torch's own: a tensor without data knows neither while it is recorded.
_grad_fn = cast(Any, torch)._C.TensorBase.grad_fn
_output_nr = cast(Any, torch)._C.TensorBase.output_nr


def grad_fn(tensor: Tensor) -> Any:
    """The autograd node that made the tensor, with data or without."""
    return _grad_fn.__get__(tensor)


def _memory(tensor: Tensor) -> tuple[int, Any]:
    """What the memory of a tensor is known by, and what keeps another from being known by the same."""
    if is_dtensor(type(tensor)):
        return _memory(cast(Any, tensor)._local_tensor)
    if isinstance(tensor, TraceTensor):
        return id(tensor.base), tensor.base
    storage = tensor.untyped_storage()
    return storage._cdata, StorageWeakRef(storage)


def _contents(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Value that was written through a view → the content of the memory that it was written to, where eager has it."""
    by_name = {node.name: node for node in graph.nodes}
    return {
        node: by_name[content]
        for node in graph.nodes
        if (content := node.meta.get("lies_in")) is not None and content in by_name
    }


def _overwritten(graph: fx.Graph, number_of: Mapping[str, int]) -> dict[str, int]:
    """Name of a content of memory → number of the first node from which on the memory has another version: it was
    computed to be written over that content, or a shape was changed in place."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        before, writer = node.meta.get("overwrites", (None, None))
        moves = [(node.name, moved) for moved in node.meta.get("new_versions", ())]
        if before is not None:
            moves.append((before, writer))
        for content, moved in moves:
            if moved in number_of:
                found[content] = min(number_of[moved], found.get(content, number_of[moved]))
    return found


@dataclass(slots=True)
class _Reach:
    """Which leaves the gradients of an autograd node go to."""

    nodes: Mapping[int, tuple[Tensor, fx.Node]]
    _found: dict[int, frozenset[fx.Node]] = field(default_factory=dict[int, "frozenset[fx.Node]"])

    def leaves(self, function: Any) -> frozenset[fx.Node]:
        work = [function]
        while work:
            current = work[-1]
            following = [item for item, _ in current.next_functions if item is not None]
            waiting = [item for item in following if id(item) not in self._found]
            if waiting:
                work.extend(waiting)
                continue
            work.pop()
            known = self.nodes.get(id(getattr(current, "variable", None)))
            own = frozenset[fx.Node]() if known is None else frozenset((known[1],))
            self._found[id(current)] = own.union(*(self._found[id(item)] for item in following))
        return self._found[id(function)]


def _saved_tensors(function: Any) -> Iterable[Tensor]:
    for name in dir(type(function)):
        if name.startswith("_saved_") or name == "saved_tensors":
            yield from leaves(getattr(function, name), Tensor)


_TYPES = {
    torch.bool: "Bool",
    torch.bfloat16: "BFloat16",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
"""Dtypes for which autograd's message has no class of tensors to name."""


def _text(tensor: Tensor) -> str | None:
    """How eager's message about a saved tensor that was written begins; None if it is not known before a call."""
    if any(type(size) is not int for size in tensor.shape):
        return None
    name = _TYPES.get(tensor.dtype)
    kind = tensor.type() if name is None else f"{tensor.device.type.upper()}{name}Type"
    text = f"[{kind} {list(tensor.shape)}]"
    function = grad_fn(tensor)
    if function is not None:
        text += f", which is output {_output_nr.__get__(tensor)} of {_operator(function)},"
    return text


def _operator(function: Any) -> str:
    """The name of an autograd node in eager's messages: Mul for MulBackward0."""
    return re.sub(r"Backward\d*$", "", function.name())


def written_message(text: str, was: int, now: int) -> str:
    """Eager's words for a saved tensor, `text`, that was written between forward and backward."""
    hint = (
        "the backtrace further above shows the operation that failed to compute its gradient. The variable in "
        "question was changed in there or anywhere later. Good luck!"
        if pristine.is_anomaly_enabled()
        else "enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{text} is at version {now}; expected version {was} instead. Hint: {hint}"
    )
