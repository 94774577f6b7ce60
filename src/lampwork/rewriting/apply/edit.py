"""Editing a graph so that its contract holds: new nodes get specs and locations, old ones leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload

from lampwork.errors import CaptureError, PassError
from lampwork.graph.nodes import add_call
from lampwork.graph.origin import place_near
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Symbolic, SymbolicFloat, same_sizes
from lampwork.graph.totality import may_raise
from lampwork.rewriting import schema
from lampwork.rewriting.language.term import Call, Leaf, Lit, Var
from lampwork.rewriting.matching.values import is_constant
from lampwork.standard import operator

Infer = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
"""(target, args, kwargs) with nodes for tensors -> TensorSpec or a tuple of them."""


@dataclass(slots=True)
class Editor:
    """Makes nodes before `point`, which also lends them the place that it comes from. `made` lists them in order."""

    graph: fx.Graph
    infer: Infer
    point: fx.Node
    made: list[fx.Node] = field(default_factory=list[fx.Node])
    _built: dict[Call, fx.Node] = field(default_factory=dict[Call, fx.Node])

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node: an OpOverload or operator.getitem of nodes and literals."""
        if target is operator.getitem:
            spec = cast("tuple[Any, ...]", args[0].meta["val"])[cast(int, args[1])]
        else:
            spec = self.infer(target, args, kwargs)
        with self.graph.inserting_before(self.point):
            name = schema.packet_name(target).replace(".", "_")
            node = add_call(self.graph, target, args, kwargs, name, place_near(self.point))
        node.meta["val"] = spec
        inputs = node.all_input_nodes
        if inputs and all(is_constant(i) for i in inputs):
            node.meta["constant"] = True
        self.made.append(node)
        return node

    def reshape(self, node: fx.Node, shape: Sequence[int]) -> fx.Node:
        """`node` in another shape: a view of it, or of a row-major copy where no view does it."""
        if same_sizes(cast(TensorSpec, node.meta["val"]).shape, tuple(shape)):
            return node
        try:
            return self.call(torch.ops.aten.view.default, node, list(shape))
        except CaptureError:
            copy = self.call(torch.ops.aten.clone.default, node, memory_format=torch.contiguous_format)
            return self.call(torch.ops.aten.view.default, copy, list(shape))

    def build(self, term: Any, values: Mapping[str, Any]) -> Any:
        """The node or plain value that a replacement term means, variables taken from `values`. A call that stands in
        several places is made once."""
        if isinstance(term, Leaf):
            return term.node
        if isinstance(term, Lit):
            return term.value
        if isinstance(term, Var):
            return values[term.name]
        if isinstance(term, list | tuple):
            return [self.build(t, values) for t in cast("Sequence[Any]", term)]
        if not isinstance(term, Call):
            return term
        node = self._built.get(term)
        if node is None:
            node = self._built[term] = self._build_call(term, values)
        return node

    def _build_call(self, term: Call, values: Mapping[str, Any]) -> fx.Node:
        item = term.values.get(operator.getitem)
        if item is not None:
            return self.call(operator.getitem, *(self.build(a, values) for a in item))
        # Operands are built once, whichever overload is then chosen: terms are shared between overloads.
        cache: dict[int, Any] = {}

        def operand(t: Any) -> Any:
            if id(t) not in cache:
                cache[id(t)] = self.build(t, values)
            return cache[id(t)]

        best: tuple[int, OpOverload, list[Any]] | None = None
        for target, terms in term.values.items():
            args = [operand(t) for t in terms]
            score = _fit(target, args)
            if score is not None and (best is None or score < best[0]):
                best = (score, target, args)
        if best is None:
            raise PassError(f"no overload of {term.name} takes the operands of the replacement {term}")
        args, kwargs = schema.unbind(best[1], best[2])
        return self.call(best[1], *args, **kwargs)

    def discard(self) -> None:
        """Erase the nodes made, last first, that nothing else uses."""
        for node in reversed(self.made):
            if not node.users:
                self.graph.erase_node(node)
        self.made.clear()
        self._built.clear()


def _fit(target: OpOverload, args: Sequence[Any]) -> int | None:
    """How badly operands fit an overload: 0 exact; 1 per number in place of a tensor; None if not at all."""
    score = 0
    for parameter, value in zip(schema.signature(target).parameters, args, strict=True):
        if value is None:
            if not parameter.optional and parameter.default is not None:
                return None
        elif isinstance(value, fx.Node):
            if parameter.accepts != "tensor":
                return None
        elif isinstance(value, int | float | bool | Symbolic):
            if parameter.accepts == "tensor":
                score += 1
            elif parameter.accepts != "number" and isinstance(value, float | SymbolicFloat):
                return None
        elif isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            # Schemas declare them as ints.
            if parameter.accepts == "tensor":
                return None
        elif parameter.accepts != "other":
            return None
    # A call of only numbers is no tensor op.
    return score if any(_has_node(a) for a in args) or score == 0 else None


def _has_node(value: Any) -> bool:
    if isinstance(value, fx.Node):
        return True
    return isinstance(value, list | tuple) and any(map(_has_node, cast("Sequence[Any]", value)))


def replace(graph: fx.Graph, old: fx.Node, new: fx.Node) -> None:
    """Every use of `old` reads `new`; `old` and what only it used are erased."""
    old.replace_all_uses_with(new)
    erase_unused(graph, old)


def erase_unused(graph: fx.Graph, node: fx.Node) -> None:
    """Erase `node`, whose place another has taken, then its operands, as long as nobody reads them and they raise for
    no data."""
    work = [node]
    while work:
        current = work.pop()
        if current.users or current.op != "call_function" or schema.is_pinned(current):
            continue
        if current._erased or (current is not node and may_raise(current)):
            continue
        operands = current.all_input_nodes
        graph.erase_node(current)
        work.extend(operands)


def spec_change(old: Any, new: Any) -> str:
    """What of shape, dtype and device differs between two specs, "" if nothing."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        before, after = cast("tuple[Any, ...]", old), cast("tuple[Any, ...]", new)
        if len(before) != len(after):
            return f"{len(before)} results and {len(after)}"
        return next((c for c in map(spec_change, before, after) if c), "")
    if not isinstance(old, TensorSpec) or not isinstance(new, TensorSpec):
        return "a tuple of results and a single one"
    if (old.dtype, old.device) == (new.dtype, new.device) and same_sizes(old.shape, new.shape):
        return ""
    device = f" on {old.device} and {new.device}" if old.device != new.device else ""
    return f"{old} and {new}{device}"
