"""Graphs as data: nodes with their lines and modules, and what each pass changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.compiled.stages import Compilation
from lampwork.errors import Location
from lampwork.graph.nested import leaves
from lampwork.graph.origin import Origin
from lampwork.graph.printing import format_value, target_name
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.inspect.report.tables import Tables
from lampwork.partitioning import Part, why_taken
from lampwork.standard import operator
from lampwork.transforms.pipeline import PassRecord
from lampwork.transforms.replay import Change, Replay, Seen, Step, replay

LONGEST = 200
"""Characters of the arguments of a node, at most."""

FLAGS = ("constant", "random", "effect", "opaque")


def graphs_data(made: Compilation, tables: Tables) -> dict[str, Any]:
    """The graph that the passes were given, what each of them did, and the order of the nodes in the end."""
    found = replay(made.given(), made.graph, made.records, made.context())
    if found is None:
        return {
            "recorded": graph_data(made.given(), tables),
            "steps": [_counted(each) for each in made.records],
            "optimized": graph_data(made.graph, tables),
        }
    return _replayed(found, made.graph, made.records, tables)


def graph_data(graph: fx.Graph, tables: Tables) -> dict[str, Any]:
    """The nodes of a graph, in order."""
    return {"nodes": [node_data(Seen.of(node), tables) for node in graph.nodes]}


def _replayed(made: Replay, final: fx.Graph, records: Sequence[PassRecord], tables: Tables) -> dict[str, Any]:
    return {
        "recorded": {"nodes": [node_data(seen, tables) for seen in made.start]},
        "steps": [_step(step, each, tables) for step, each in zip(made.steps, records, strict=True)],
        "optimized": [node.name for node in final.nodes],
    }


def _counted(each: PassRecord) -> dict[str, Any]:
    """What a compilation keeps of a pass."""
    return {
        "pass": each.name,
        "seconds": each.seconds,
        "before": each.nodes_before,
        "after": each.nodes_after,
        "hits": dict(each.hits),
    }


def _step(step: Step, each: PassRecord, tables: Tables) -> dict[str, Any]:
    data = _counted(each)
    data["rewrites"] = [
        {
            "name": change.rewrite,
            **({"source": str(change.source)} if change.source is not None else {}),
            "note": f"at {change.node}" + ("" if change.line is None else f", {change.line}"),
            **_change(change, tables),
        }
        for change in step.changes
        if change.rewrite
    ]
    for change in step.changes:
        if not change.rewrite:
            data.update(_change(change, tables))
    if step.refusals:
        data["refused"] = [
            {"name": name, "why": reason, "times": times} for (name, reason), times in step.refusals.items()
        ]
    return data


def _change(change: Change, tables: Tables) -> dict[str, Any]:
    return {
        "removed": [node.name for node in change.removed],
        "added": [node_data(seen, tables) for seen in change.added],
        "changed": [[seen.node.name, node_data(seen, tables)] for seen in change.changed],
    }


# --- nodes ------------------------------------------------------------------------------------------------------------


def node_data(seen: Seen, tables: Tables) -> dict[str, Any]:
    """A node."""
    node, meta = seen.node, seen.meta
    data: dict[str, Any] = {
        "id": node.name,
        "op": _operator(node),
        "kind": _kind(node, meta),
        "inputs": [each.name for each in dict.fromkeys(leaves((seen.args, dict(seen.kwargs)), fx.Node))],
        **_spec_data(meta.get("val")),
    }
    if node.op == "call_function":
        data["args"] = _arguments(seen)
    flags = [name for name in FLAGS if meta.get(name)]
    if flags:
        data["flags"] = flags
    location: Location | None = meta.get("location")
    if location is not None:
        data |= {"file": location.file, "line": location.line}
        tables.refer(location.file, location.line)
    origin: Origin | None = meta.get("origin")
    if origin is not None:
        data |= {"module": origin.module, "stack": tables.stack(origin.stack)}
        data |= {"type": origin.module_type} if origin.module_type else {}
    return data


def _operator(node: fx.Node) -> str:
    """`aten::linear`, `aten::add.Tensor`, `getitem`; "" for what is no call."""
    if node.op != "call_function":
        return ""
    if isinstance(node.target, torch._ops.OpOverload):
        schema = node.target._schema
        return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return target_name(node.target)


def _kind(node: fx.Node, meta: Mapping[str, Any]) -> str:
    if node.op == "placeholder":
        return "bound" if meta.get("bound") else "input"
    if node.op == "output":
        return "output"
    return "constant" if meta.get("constant") else "op"


def _arguments(seen: Seen) -> str:
    if seen.node.target is operator.getitem:
        return f"{format_value(seen.args[0])}[{seen.args[1]}]"
    named = [f"{name}={format_value(value)}" for name, value in seen.kwargs.items()]
    text = ", ".join([*map(format_value, seen.args), *named])
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _spec_data(val: Any) -> dict[str, Any]:
    if isinstance(val, TensorSpec):
        return {
            "dtype": str(val.dtype).removeprefix("torch."),
            "shape": [size if type(size) is int else str(size) for size in val.shape],
            "bytes": bytes_of(val),
            **({"device": str(val.device)} if val.device.type != "cpu" else {}),
        }
    if isinstance(val, list | tuple):
        return {"results": [_spec_data(each) for each in cast("list[Any]", val)]}
    return {}


def bytes_of(spec: TensorSpec) -> int:
    """Of the elements, for the values that symbols had when the region was captured."""
    count = spec.dtype.itemsize
    for size in cast("tuple[Any, ...]", spec.shape):
        count *= size.hint if isinstance(size, SymbolicInt) else size
    return count


# --- who takes what ---------------------------------------------------------------------------------------------------


def partition_data(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The parts, in an order in which they run, and why not another backend took each."""
    return [
        {
            "backend": part.backend.name,
            "nodes": [node.name for node in part.nodes],
            **({"why": "; ".join(reasons)} if reasons else {}),
        }
        for part, reasons in zip(parts, why_taken(parts), strict=True)
    ]


def nodes_of(graphs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes in the data of `graphs_data`, as often as they occur."""
    for key in ("recorded", "optimized"):
        found: Any = graphs.get(key)
        if isinstance(found, dict):
            yield from cast("dict[str, Any]", found)["nodes"]
    for step in graphs["steps"]:
        for change in (step, *step.get("rewrites", ())):
            yield from change.get("added", ())
            yield from (node for _, node in change.get("changed", ()))
