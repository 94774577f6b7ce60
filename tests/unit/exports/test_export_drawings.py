"""`.json` for Model Explorer, and `.dot` for Graphviz."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from export_models import ODD_NAMES, Odd, TwoLayers, breaking
from torch import nn

import lampwork

FIELDS = {
    "collection": {"label", "graphs"},
    "graph": {"id", "nodes", "groupNodeAttributes"},
    "node": {"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata", "style"},
    "edge": {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"},
}
"""Those of Model Explorer's classes that are used: it refuses others."""


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The graphs of a file by name, checked: {graph: {node: its attributes}}."""
    collection = json.loads(path.read_text())
    assert collection.keys() <= FIELDS["collection"]
    found: dict[str, dict[str, Any]] = {}
    for graph in collection["graphs"]:
        assert graph.keys() <= FIELDS["graph"]
        nodes = {node["id"]: node for node in graph["nodes"]}
        assert len(nodes) == len(graph["nodes"])
        for node in nodes.values():
            assert node.keys() <= FIELDS["node"] and {"id", "label", "namespace"} <= node.keys()
            for edge in node["incomingEdges"]:
                assert edge.keys() == FIELDS["edge"] and edge["sourceNodeId"] in nodes
                assert int(edge["sourceNodeOutputId"]) < len(nodes[edge["sourceNodeId"]]["outputsMetadata"])
            for entry in node["attrs"]:
                assert entry.keys() == {"key", "value"} and isinstance(entry["value"], str)
            node["attributes"] = {entry["key"]: entry["value"] for entry in node["attrs"]}
        found[graph["id"]] = nodes
    return found


def statements(text: str) -> int:
    """Check the syntax of a DOT file as far as it is used; gives how many statements there are."""
    words = re.findall(r'"(?:[^"\\]|\\.)*"|->|[A-Za-z_0-9]+|[{}\[\];=,]|\S', text)
    assert words[0] == "digraph" and words[2] == "{" and words[-1] == "}"
    name = r'(?:"(?:[^"\\]|\\.)*"|[A-Za-z_0-9]+)'
    attributes = rf"(?:\[{name}={name}(?:,{name}={name})*\])?"
    statement = re.compile(rf"(?:{name}(?:->{name})?{attributes}|{name}={name});|subgraph{name}{{|}}")
    inside, place, count = "".join(words[3:]), 0, 0
    while place < len(inside):
        found = statement.match(inside, place)
        assert found is not None, inside[place : place + 80]
        place, count = found.end(), count + 1
    braces = [word for word in words if word in "{}"]
    assert braces.count("{") == braces.count("}")
    return count


@torch.no_grad()
def test_model_explorer(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    found = lampwork.export(TwoLayers().eval(), path, torch.randn(4, 8))
    assert [file.name for file in found.files] == ["model.json", "model.kernels.json", "model.times.json"]
    (nodes,) = read(path).values()
    linear = nodes["linear"]
    assert linear["namespace"] == "net/0" and linear["attributes"]["module"] == "net.0"
    assert "export_models.py" in linear["attributes"]["line"]
    assert linear["attributes"]["kernel"].startswith("0: gemm gelu")
    assert linear["style"] == nodes["gelu"]["style"] != nodes["linear_1"]["style"]
    assert {"key": "tensor_shape", "value": "float32[4, 16]"} in linear["outputsMetadata"][0]["attrs"]
    weight = next(node for node in nodes.values() if node["attributes"]["kind"] == "weight")
    assert (weight["namespace"], weight["label"]) == ("net/0", "weight")
    kernels = json.loads((tmp_path / "model.kernels.json").read_text())["TwoLayers#0"]
    assert kernels["results"]["gelu"]["value"] == kernels["results"]["linear"]["value"] == 0
    times = json.loads((tmp_path / "model.times.json").read_text())["TwoLayers#0"]["results"]
    # A kernel's time is said once.
    assert "linear" not in times and times["gelu"]["value"] > 0
    assert times.keys() <= nodes.keys()


def test_forward_and_backward(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.randn(5, 3)
    compiled = lampwork.compile(model)
    for _ in range(2):
        compiled(x).sum().backward()
    lampwork.export(compiled, tmp_path / "trained.json")
    graphs = read(tmp_path / "trained.json")
    assert list(graphs) == ["Sequential#0 forward", "Sequential#0 backward"]
    assert any("threshold_backward" in node["label"] for node in graphs["Sequential#0 backward"].values())
    found = lampwork.export(compiled, tmp_path / "module.dot", module="1")
    assert found.regions == ("Sequential#0 forward 1", "Sequential#0 backward 1")


def test_several_regions_in_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lampwork.export(breaking, tmp_path / "b.json", torch.randn(3, 3))
    first, second = read(tmp_path / "b.json")
    assert first == "breaking#0" and second.startswith("breaking_resume_")
    lampwork.export(breaking, tmp_path / "b.dot", torch.randn(3, 3))
    text = (tmp_path / "b.dot").read_text()
    assert text.count("cluster_g") == 2 and statements(text) > 10


@torch.no_grad()
def test_dot(tmp_path: Path) -> None:
    path = tmp_path / "model.dot"
    lampwork.export(TwoLayers().eval(), path, torch.randn(4, 8))
    text = path.read_text()
    assert statements(text) > 30
    assert 'subgraph "cluster_g0/net.0" {' in text and 'label="net.0 (Linear)"' in text
    assert re.search(r'"g0/linear" -> "g0/gelu" \[label="float32\[4, 16\]"\];', text)
    colours = dict(re.findall(r'"g0/(\w+)" \[.*?fillcolor="(#\w+)"', text))
    assert colours["linear"] == colours["gelu"] != colours["linear_1"]


@torch.no_grad()
def test_odd_names(tmp_path: Path) -> None:
    model, x = Odd().eval(), torch.randn(2, 3)
    lampwork.export(model, tmp_path / "odd.json", x)
    (nodes,) = read(tmp_path / "odd.json").values()
    assert {node["namespace"] for node in nodes.values()} >= {ODD_NAMES[0], "ünï∕x", ODD_NAMES[2]}
    lampwork.export(model, tmp_path / 'o"d\\d.dot', x)
    assert statements((tmp_path / 'o"d\\d.dot').read_text()) > 20


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@torch.no_grad()
def test_graphviz_draws_it(tmp_path: Path) -> None:
    for name, model, x in (("odd", Odd(), torch.randn(2, 3)), ("layers", TwoLayers(), torch.randn(4, 8))):
        path = tmp_path / f"{name}.dot"
        lampwork.export(model.eval(), path, x)
        drawn = subprocess.run(["dot", "-Tsvg", path], capture_output=True, text=True, check=True)
        assert "<svg" in drawn.stdout and not drawn.stderr
