"""Drawings as graphs of Model Explorer: a collection of graphs in JSON, and node data beside it.

The format is that of `model_explorer.graph_builder`: a node has an id, a label, the namespace of its layer with
slashes, attributes, edges that come in, and what it gives. Node data give a node a number and a colour.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lampwork.exports.drawing import Drawing, Drawn, Kernel, colour, ends


def texts(drawings: Sequence[Drawing], path: Path) -> dict[Path, str]:
    """The files: the graphs in `path`, and beside it which kernel computes a node, and how long that took if a call was
    seen. The time of a kernel is that of its last node, so that the times of layers add up."""
    files = {path: _text({"label": path.stem, "graphs": [_graph(each) for each in drawings]})}
    kernels = {each.name: _numbers(each) for each in drawings if each.kernels}
    if kernels:
        files[path.with_name(f"{path.stem}.kernels.json")] = _text(kernels)
    times = {each.name: _times(each) for each in drawings if any(k.seconds is not None for k in each.kernels)}
    if times:
        files[path.with_name(f"{path.stem}.times.json")] = _text(times)
    return files


def _text(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _graph(drawing: Drawing) -> dict[str, Any]:
    attributes = {_namespace(path): {"class": kind} for path, kind in drawing.kinds.items() if path and kind}
    return {
        "id": drawing.name,
        "nodes": [_node(node, drawing.kernels) for node in drawing.nodes],
        "groupNodeAttributes": {"": {"kernels": str(len(drawing.kernels))}, **attributes},
    }


def _namespace(module: str) -> str:
    """Layers are separated by slashes, so a slash in a name becomes another sign."""
    return module.replace("/", "∕").replace(".", "/")


def _node(node: Drawn, kernels: Sequence[Kernel]) -> dict[str, Any]:
    attributes = {
        "name": node.id,
        "kind": node.kind,
        "module": node.module,
        "arguments": node.text,
        "line": node.line,
        "kernel": ", ".join(
            f"{number}: {kernels[number].name} ({kernels[number].kind})" for number in node.kernels
        ),
    }
    found: dict[str, Any] = {
        "id": node.id,
        "label": node.label,
        "namespace": _namespace(node.module),
        "attrs": _attributes(attributes),
        "incomingEdges": [
            {"sourceNodeId": source, "sourceNodeOutputId": str(output), "targetNodeInputId": str(place)}
            for place, (source, output) in enumerate(node.reads)
        ],
        "outputsMetadata": [
            {"id": str(number), "attrs": _attributes(_value(value, node.id))}
            for number, value in enumerate(node.values)
        ],
    }
    if node.kernels:
        found["style"] = {"backgroundColor": colour(node.kernels[-1])}
    return found


def _value(value: str, name: str) -> dict[str, str]:
    """`float32[4, 8](1, 4)` in the parts that Model Explorer shows on edges."""
    dtype, _, shape = value.partition("[")
    return {"tensor_shape": f"{dtype}[{shape}", "dtype": dtype, "tensor_name": name}


def _attributes(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items() if value]


def _numbers(drawing: Drawing) -> dict[str, Any]:
    results = {
        node.id: {"value": node.kernels[-1], "bgColor": colour(node.kernels[-1])}
        for node in drawing.nodes
        if node.kernels
    }
    return {"name": "kernel", "results": results}


def _times(drawing: Drawing) -> dict[str, Any]:
    last = ends(drawing)
    microseconds: dict[str, float] = {}
    for kernel in drawing.kernels:
        if kernel.seconds is not None and kernel.number in last:
            node = last[kernel.number]
            microseconds[node] = microseconds.get(node, 0.0) + kernel.seconds * 1e6
    return {
        "name": "time (µs)",
        "results": {node: {"value": round(value, 3)} for node, value in microseconds.items()},
        "gradient": [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#f28b82"}],
    }
