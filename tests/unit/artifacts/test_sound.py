"""Graphs of files that are not trusted: what one states is not believed, and what it may do is compute."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.artifacts.container import METADATA
from lampwork.artifacts.sound import Unsound, check_operator
from lampwork.errors import ArtifactCallError, ArtifactError, ArtifactTrustError

GRAPH = "lampwork.graph.forward"
Change = Callable[[dict[str, Any], dict[str, Any]], Any]


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls.add_(1)
        return (x + y) * self.weight, x.sort(dim=1)[0], torch.cat([x, y], 1)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("sound") / "sums.lamp"
    rows = torch.export.Dim("rows", min=2, max=64)
    inputs = (torch.randn(3, 4), torch.randn(3, 4))
    lampwork.export(Sums(), inputs, dynamic_shapes=({0: rows}, {0: rows}), path=path)
    return path


def changed(kept: Path, tmp_path: Path, change: Change) -> Path:
    """The file with another graph and manifest, whole as the exporter would have written it."""
    content = kept.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    manifest = json.loads(header[METADATA]["manifest"])
    begin, end = header[GRAPH]["data_offsets"]
    graph = json.loads(data[begin:end])
    change(graph, manifest)
    text = json.dumps(graph).encode()
    # Its sections, one after another, with the graph as the last.
    behind = {
        name: span for name, span in header.items() if name != METADATA and span["data_offsets"][0] >= end
    }
    for span in behind.values():
        span["data_offsets"] = [place - (end - begin) for place in span["data_offsets"]]
    data = data[:begin] + data[end:]
    header[GRAPH] = {"dtype": "U8", "shape": [len(text)], "data_offsets": [len(data), len(data) + len(text)]}
    manifest["sections"][GRAPH] = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    header[METADATA]["manifest"] = json.dumps(manifest)
    written = json.dumps(header).encode()
    path = tmp_path / "changed.lamp"
    path.write_bytes(struct.pack("<Q", len(written)) + written + data + text)
    return path


def node_of(graph: dict[str, Any], target: str) -> dict[str, Any]:
    """The node with this target whose result has rows."""
    found = (node for node in graph["nodes"] if node.get("target") == target)
    return next(node for node in found if type(node["val"]) is list or node["val"]["shape"])


def larger(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    """A result that states more rows than there are: code for it would read beyond its operands."""
    node_of(graph, "aten::add.Tensor")["val"]["shape"][1] = 4000


def strided(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    node_of(graph, "aten::add.Tensor")["val"]["strides"] = [1, 4000]


def typed(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    node_of(graph, "aten::cat.default")["val"]["dtype"] = "float64"


def smaller_input(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    """The graph reads more of an input than calls are asked for."""
    manifest["entries"]["forward"]["inputs"][0]["shape"][1] = 2


def other_weight(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    bound = [node for node in graph["nodes"] if "bound" in node.get("flags", ())]
    bound[0]["val"]["dtype"] = "float64"


def bound_input(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    graph["nodes"][1]["flags"] = ["bound"]


def effect(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    node_of(graph, "aten::add.Tensor")["flags"] = ["effect"]


def constant(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    node_of(graph, "aten::add.Tensor")["flags"] = ["constant"]


def eager_layout(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    node = node_of(graph, "aten::add.Tensor")
    node["eager_val"] = {**node["val"], "strides": [9000, 1]}


def fewer_outputs(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    (results,) = graph["nodes"][-1]["args"]
    next(iter(results.values())).pop()


def silly_arguments(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    node_of(graph, "aten::sort.default")["args"][1] = {"s": "columns"}


def wrong_dimension(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    node_of(graph, "aten::sort.default")["args"][1] = 7


def written_elsewhere(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    """A result that is written to memory of another size."""
    manifest["entries"]["forward"]["writes"][0][1] = 0


def strange_symbol(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    graph["scope"]["symbols"].append({**graph["scope"]["symbols"][0], "name": "s9"})


LIES: list[Change] = [
    larger,
    strided,
    typed,
    smaller_input,
    other_weight,
    bound_input,
    effect,
    constant,
    eager_layout,
    fewer_outputs,
    silly_arguments,
    wrong_dimension,
    written_elsewhere,
    strange_symbol,
]


@pytest.mark.parametrize("change", LIES, ids=[each.__name__ for each in LIES])
def test_lies(kept: Path, tmp_path: Path, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: Any) -> Any:
        raise AssertionError("it was compiled")

    monkeypatch.setattr("lampwork.artifacts.compiling.compile_here", compiled)
    with pytest.raises(ArtifactError):
        lampwork.load(changed(kept, tmp_path, change))


def test_the_file_as_it_was_is_taken(kept: Path, tmp_path: Path) -> None:
    """That the changes above are what is refused, and nothing about how they are made."""
    loaded = lampwork.load(changed(kept, tmp_path, lambda graph, manifest: None))
    model = Sums()
    model.load_state_dict(loaded.state_dict())
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    torch.testing.assert_close(loaded(x, y), model(x, y), check_stride=False)


def unsaid(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Both forget that the two inputs have as many rows as one another."""
    rows = [[1, ["s1"]]]
    entry = manifest["entries"]["forward"]
    entry["conditions"], graph["scope"]["conditions"], graph["scope"]["equal"] = [], [], []
    entry["inputs"][1]["shape"][0] = rows
    graph["nodes"][1]["val"]["shape"][0] = rows


def test_conditions_that_are_left_out_are_found_again(kept: Path, tmp_path: Path) -> None:
    loaded = lampwork.load(changed(kept, tmp_path, unsaid))
    assert {str(each) for each in loaded.entries["forward"].spec.conditions} & {"s0 == s1", "s1 == s0"}
    loaded(torch.randn(3, 4), torch.randn(3, 4))
    with pytest.raises(ArtifactCallError):
        loaded(torch.randn(60, 4), torch.randn(2, 4))


@pytest.mark.parametrize(
    "operator",
    [
        "aten::from_file.default",
        "aten::save.default",
        "aten::add_.Tensor",
        "aten::copy_.default",
        "aten::manual_seed.default",
        "aten::_print.default",
        "aten::warn.default",
        "aten::item.default",
        "aten::_local_scalar_dense.default",
        "aten::set_.source_Storage",
        "profiler::_record_function_enter.default",
        "inductor::_alloc_from_pool.default",
    ],
)
def test_operators_with_effects(operator: str) -> None:
    namespace, _, rest = operator.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    op = getattr(packet, overload, None)
    if op is None:
        pytest.skip(f"this torch has no {operator}")
    with pytest.raises(Unsound) as caught:
        check_operator(op)
    assert caught.value.operator


def test_a_file_that_reads_files(kept: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\x07" * 16)

    def reading(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
        node = node_of(graph, "aten::sort.default")
        node["target"], node["args"] = "aten::from_file.default", [{"s": str(secret)}, False, 4]
        node.pop("operands", None)

    with pytest.raises(ArtifactTrustError, match="the operator aten.from_file.default") as caught:
        lampwork.load(changed(kept, tmp_path, reading))
    assert "trust=True" in caught.value.fix


def test_operators_of_the_process_are_not_the_file_s(kept: Path, tmp_path: Path) -> None:
    with torch.library._scoped_library("sound_test", "FRAGMENT") as library:
        library.define("launch(Tensor x) -> Tensor")
        library.impl("launch", lambda x: x, "CompositeExplicitAutograd")

        def launching(graph: dict[str, Any], manifest: dict[str, Any]) -> None:
            node = node_of(graph, "aten::add.Tensor")
            node["target"], node["args"] = "sound_test::launch.default", node["args"][:1]
            node.pop("operands", None)

        with pytest.raises(ArtifactTrustError, match=r"sound_test\.launch\.default"):
            lampwork.load(changed(kept, tmp_path, launching))
