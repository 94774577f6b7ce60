"""Graphs as JSON: what comes back is the same graph, compiles to the same program, and damage is an error of ours."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from compiled_parts import Seen, compile_all, seen
from graphkit import record
from test_serial_layouts import damaged

from lampwork import config
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.protocol import CompileOptions
from lampwork.errors import SerialError
from lampwork.graph.concrete import scope_of
from lampwork.graph.copying import copy_graph
from lampwork.graph.hashing import structural_hash
from lampwork.graph.printing import format_graph
from lampwork.serial import Modules, from_text, graph_from_json, graph_to_json, layout_to_json, to_text
from lampwork.serial.graphs import META

_ = seen


def without_notes(text: str) -> list[str]:
    return [line.partition("  #")[0] for line in text.splitlines()]


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_comes_back_is_the_same_graph(seen: Seen, dynamic: bool) -> None:
    compile_all(dynamic)
    assert len(seen.graphs) >= 6
    for graph, written, shown in zip(seen.graphs, seen.written, seen.texts, strict=True):
        text = to_text(written)
        back = graph_from_json(from_text(text))
        assert to_text(graph_to_json(back)) == text
        assert structural_hash(back) == structural_hash(graph)
        assert without_notes(format_graph(back)) == without_notes(shown)
        scope, was = scope_of(back), scope_of(graph)
        assert (scope is None) == (was is None)
    assert any(scope_of(graph) for graph in seen.graphs) == dynamic


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_to_the_same_program(seen: Seen, dynamic: bool) -> None:
    """So nothing that the compiler reads is left out."""
    compile_all(dynamic)
    for written in list(seen.written):
        with config.using(verify=""):
            layouts = []
            for _ in range(2):
                made: Any = NativeBackend().compile(
                    graph_from_json(written), (), CompileOptions(config.current())
                )
                layouts.append(layout_to_json(made.layout, Modules()))
        assert len({to_text(each) for each in layouts}) == 1


class Noting(dict[str, Any]):
    """A node's meta that notes what is asked for."""

    asked: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


def test_the_compiler_reads_no_other_meta(seen: Seen) -> None:
    compile_all()
    compile_all(dynamic=True)
    asked: set[str] = set()
    Noting.asked = asked
    for graph in list(seen.graphs):
        copy = copy_graph(graph)
        for node in copy.nodes:
            node.meta = Noting(node.meta)
        NativeBackend().compile(copy, (), CompileOptions(config.current()))
    assert {"val", "constant", "bound", "n_shown"} <= asked
    # Lines and labels: for errors, profiles and the names of steps.
    assert asked <= META | {"location", "origin"}


def test_damage_is_an_error_of_ours(seen: Seen) -> None:
    compile_all(dynamic=True)
    rng, refused, tried = random.Random(0), 0, 0
    for written in seen.written:
        for _ in range(60):
            tried += 1
            try:
                graph_from_json(from_text(to_text(damaged(written, rng))))
            except SerialError:
                refused += 1
    assert tried > 300 and refused > tried * 0.6


def base() -> Any:
    return graph_to_json(record(lambda x: x.relu().sum(-1), torch.ones(4, 6)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["nodes"][1].update(target="aten::relu.nowhere"), "nodes[1]: an operator that torch has"),
        (lambda d: d["nodes"][1].update(target="os::system.default"), "nodes[1]: an operator that torch has"),
        (lambda d: d["nodes"][1].update(args=[{"n": 1}]), "nodes[1]: the number of an earlier node"),
        (lambda d: d["nodes"][1].update(flags=["fast"]), "nodes[1]: one of bound, random"),
        (lambda d: d["nodes"][1].update(val={"dtype": "float32", "shape": [4]}), "nodes[1]: an object with"),
        (lambda d: d["nodes"][1].update(name="x0"), "nodes[1]: a name that no node has"),
        (lambda d: d["nodes"][1].pop("val"), "a valid graph was expected: node relu has no TensorSpec"),
        (lambda d: d["nodes"].pop(), "a valid graph was expected: the graph has no output node"),
        (lambda d: d["nodes"][0].update(op="get_attr"), "nodes[0]: placeholder, call or output was expected"),
        (
            lambda d: d["nodes"][0]["val"].update(shape=[[[1, ["s0"]]], 6]),
            "an index of symbols that there are",
        ),
        (lambda d: d.update(scope={}), "scope: an object with"),
    ],
)
def test_errors_say_what_was_expected(change: Any, says: str) -> None:
    written = from_text(to_text(base()))
    change(written)
    with pytest.raises(SerialError) as raised:
        graph_from_json(written)
    assert says in raised.value.cause


def test_powers_are_not_computed_without_end() -> None:
    written = from_text(to_text(base()))
    written["scope"] = {
        "symbols": [{"name": "s0", "hint": 9}],
        "equal": [],
        "derived": [["f0", {"x": ["operator.pow", {"i": [[1, ["s0"]]]}, 10**15]}]],
        "conditions": [],
    }
    with pytest.raises(SerialError, match="a power up to 1024"):
        graph_from_json(written)


def test_what_has_no_form() -> None:
    graph = record(lambda x: x.relu(), torch.ones(4))
    node = next(node for node in graph.nodes if node.op == "call_function")
    node.kwargs = {"x": object()}
    with pytest.raises(SerialError, match=r"relu: a builtins.object has no serial form"):
        graph_to_json(graph)
    node.kwargs, node.target = {}, print
    with pytest.raises(SerialError, match="is no operator"):
        graph_to_json(graph)
