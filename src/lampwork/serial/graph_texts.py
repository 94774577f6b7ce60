"""Graphs as texts, for keys: equal for graphs of which `graph_to_json` writes equal nodes, and for no others.

A text is only compared, never read, so it is made in a fraction of the time that JSON takes:

    linear aten::linear.default(%0, %1, None) ; torch.float32 (4, 8) (8, 1)

Nodes are written by their numbers, what has a repr that tells it from all else by that, anything else as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import fx

from lampwork.errors import SerialError
from lampwork.graph.devices import CPU
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope, SymbolicFloat, SymbolicInt
from lampwork.literals import literal_text
from lampwork.records import record
from lampwork.serial.graphs import FLAGS, meta_to_json, target_to_json
from lampwork.serial.specs import spec_to_json, symbolic_to_json
from lampwork.serial.values import plain_to_json, to_text

_INT = frozenset({int})
_ALONE = frozenset({int, float, bool, str, type(None)})
"""Types of values that are told from all others by their repr, but for what `literal_text` adds of a nan."""
_UNWRITTEN = frozenset({"val", "location", "origin", "recorded_as", "known"})
_FLAGS = frozenset(FLAGS)


@record
class GraphText:
    """What is written of a graph. `scope`: where its symbols belong, as `scope_of` says; None if it has none."""

    nodes: str
    scope: Scope | None


def graph_text(graph: fx.Graph) -> GraphText:
    """The text of a graph.

    Raises:
        SerialError: a node, or an argument, has no serial form.
    """
    writer = _Writer()
    lines: list[str] = []
    for node in graph.nodes:
        try:
            lines.append(writer.node(node))
        except SerialError as error:
            raise SerialError(f"{node.name}: {error.cause}", fix=error.fix) from error
    return GraphText("\n".join(lines), writer.scope)


class _Writer:
    def __init__(self) -> None:
        self.scope: Scope | None = None
        self._nodes: dict[fx.Node, str] = {}
        self._targets: dict[Any, str] = {}

    def node(self, node: fx.Node) -> str:
        self._nodes[node] = f"%{len(self._nodes)}"
        meta = node.meta
        op = node.op
        if op == "call_function":
            target = self._targets.get(node.target)
            if target is None:
                target = self._targets[node.target] = target_to_json(node.target)
            head = f"{node.name} {target}{self._argument(node.args)}"
        elif op == "placeholder":
            head = node.name
        else:
            head = f"{node.name} {op}{self._argument(node.args)}"
        if kwargs := node.kwargs:
            head += "".join(f" {key}={self._argument(kwargs[key])}" for key in sorted(kwargs))
        if "val" in meta:
            head += f" ; {self._spec(meta['val'])}"
        return head if meta.keys() <= _UNWRITTEN else head + self._rest(meta)

    def _argument(self, value: Any) -> str:
        kind = type(value)
        if kind is fx.Node:
            return self._nodes[value]
        if kind in _ALONE:
            return ascii(value) if value == value else literal_text(value)
        if isinstance(value, (list, tuple)):
            inside = ", ".join(map(self._argument, cast("list[Any]", value)))
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        if isinstance(value, (SymbolicInt, SymbolicFloat)):
            self._note(value)
            return to_text(symbolic_to_json(value)).decode()
        if kind is slice:
            return f"slice{self._argument((value.start, value.stop, value.step))}"
        return to_text(plain_to_json(value)).decode()

    def _spec(self, val: Any) -> str:
        if isinstance(val, TensorSpec):
            sizes = (*val.shape, *val.strides)
            if not _INT.issuperset(map(type, sizes)):
                for size in sizes:
                    if isinstance(size, SymbolicInt):
                        self._note(size)
                return to_text(spec_to_json(val)).decode()
            found = f"{val.dtype} {val.shape} {val.strides}"
            if val.device != CPU:
                found += f" {val.device}"
            return f"{found} requires_grad" if val.requires_grad else found
        if isinstance(val, tuple):
            return f"({', '.join(map(self._spec, cast('tuple[Any, ...]', val)))})"
        return to_text(spec_to_json(val)).decode()

    def _note(self, number: SymbolicInt | SymbolicFloat) -> None:
        if self.scope is None:
            self.scope = number.scope

    def _rest(self, meta: Mapping[str, Any]) -> str:
        """What is written of a node beyond its spec."""
        if meta.keys() - _UNWRITTEN <= _FLAGS:
            return "".join([f" {name}" for name in FLAGS if meta.get(name)])
        return f" {to_text(meta_to_json(meta)).decode()}"
