"""Passes that backends bring: which pipelines they run in, in which places, and what may name them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import fx, nn

import lampwork
from lampwork.backends import registry as backends
from lampwork.backends.native.compile import NativeBackend
from lampwork.errors import OptionError
from lampwork.graph.interpret import run_graph
from lampwork.partitioning.foreign import pass_context
from lampwork.plugins import registry as plugins
from lampwork.plugins.registry import Place
from lampwork.transforms.pipeline import select_passes

aten = torch.ops.aten
X = torch.randn(3, 4)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for row in lampwork.rewrites():
        plugins.registry().items[row.name].unregister()


class Doubled:
    """relu(x) -> relu(relu(x)), to be seen by."""

    name = "doubled"

    def run(self, graph: fx.Graph, ctx) -> None:
        for node in list(graph.nodes):
            if node.target is aten.relu.default and ctx.spend(self.name, node):
                again = ctx.editor(graph, next(iter(node.users))).call(aten.relu.default, node)
                node.replace_all_uses_with(again, delete_user_cb=lambda user, again=again: user is not again)


class Mine:
    name = "mine"
    passes = ((Doubled(), Place("split-constants", before=True)),)

    def __init__(self) -> None:
        self.seen: list[str] = []

    def supports(self, node: fx.Node) -> bool:
        return True

    def compile(self, graph, example_inputs, options):
        self.seen = [str(node.target) for node in graph.nodes if node.op == "call_function"]
        return lambda *tensors: run_graph(graph, tensors)


def ran(compiled) -> list[str]:
    return [
        line.partition(":")[0] for line in compiled.stages.passes.splitlines() if not line.startswith(" ")
    ]


def test_the_native_backend_brings_what_only_it_wants() -> None:
    names = [step.name for step in select_passes("", backend_passes=NativeBackend().passes)]
    start = names.index("algebra")
    brought = [
        "merge-linears",
        "widen-convolution",
        "choose-layouts",
        "channels-last-convolution",
        "prepack-convolution",
        "channels-last-on-cards",
        "bias-behind-convolution",
        "gelu-in-product",
        "bias-behind-product",
        "known-masks",
    ]
    assert names[start : start + 12] == ["algebra", *brought, "remove-noops"]
    native, eager = lampwork.compile(torch.relu), lampwork.compile(torch.relu, backend="eager")
    native(X), eager(X)
    assert ran(native) == names
    assert ran(eager) == [name for name in names if name not in brought]
    both = pass_context(lampwork.config.current(), [Mine(), NativeBackend()])
    assert [step.name for step, _ in both.backend_passes] == [
        "doubled",
        *brought,
    ]


def test_convolutions_of_other_backends_are_left_as_they_were_written() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU()).eval()
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        eager = lampwork.compile(model, backend="eager")
        torch.testing.assert_close(eager(x), model(x))
        assert "channels_last" not in eager.stages.optimized
        native = lampwork.compile(model)
        torch.testing.assert_close(native(x), model(x))
        assert "channels_last" in native.stages.optimized


def test_a_backend_from_outside_brings_passes() -> None:
    backend = Mine()
    compiled = lampwork.compile(lambda x: torch.relu(x) + 1, backend=backend)
    assert torch.equal(compiled(X), torch.relu(X) + 1)
    assert backend.seen[:1] == ["aten.relu.default"] and ran(compiled)[:3] == [
        "dead-code",
        "doubled",
        "split-constants",
    ]
    off = lampwork.compile(lambda x: torch.relu(x) + 1, backend=backend, options={"passes": "-doubled"})
    off(X)
    assert "doubled" not in ran(off)


def test_names_are_known_before_the_native_backend_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_registry", backends._Lazy())
    monkeypatch.setattr(plugins.registry(), "reserved", frozenset())
    compiled = lampwork.compile(torch.relu, backend=Mine(), options={"passes": "-merge-linears"})
    assert torch.equal(compiled(X), torch.relu(X))
    monkeypatch.setattr(backends, "_registry", backends._Lazy())
    monkeypatch.setattr(plugins.registry(), "reserved", frozenset())
    with lampwork.passes("-prepack-convolution"):
        lampwork.compile(torch.relu)(X)


def test_names_of_backend_passes_are_switches_for_everyone() -> None:
    for backend in ("native", "eager"):
        options = {"passes": "-merge-linears,-prepack-convolution"}
        compiled = lampwork.compile(torch.relu, backend=backend, options=options)
        compiled(X)
        assert not {"merge-linears", "prepack-convolution"} & set(ran(compiled))
    with pytest.raises(OptionError, match="'merge-linears' is the name of a pass of Lampwork"):
        lampwork.register_pass(lambda graph, ctx: None, name="merge-linears")


def test_plug_ins_may_be_placed_by_them() -> None:
    lampwork.register_pass(lambda graph, ctx: None, name="behind", after="prepack-convolution")
    lampwork.sequence("row", ["merge-linears", ("abs(neg(x))", "abs(x)")])
    for backend, before in (("native", "prepack-convolution"), ("eager", "rewrites")):
        compiled = lampwork.compile(lambda x: (-x).abs(), backend=backend)
        assert torch.equal(compiled(X), X.abs())
        names = ran(compiled)
        assert "behind" in names
        if backend == "native":
            assert names[names.index("behind") - 1] == before


def test_wrong_passes_are_refused() -> None:
    class Wrong(Mine):
        passes = (Doubled(),)

    class Nowhere(Mine):
        passes = ((Doubled(), Place("nowhere")),)

    with pytest.raises(OptionError, match="backend mine: passes is"):
        lampwork.compile(torch.relu, backend=Wrong())
    with pytest.raises(OptionError, match="the pass doubled of a backend runs after nowhere"):
        lampwork.compile(torch.relu, backend=Nowhere())(X)


def test_a_backend_is_told_before_the_capture():
    told: list[str] = []

    class Told:
        name = "told"

        def prepare(self) -> None:
            told.append("prepared")

        def supports(self, node):
            return True

        def compile(self, graph, example_inputs, options):
            told.append("compiled")
            return lambda *tensors: run_graph(graph, tensors)

    x = torch.randn(3)
    compiled = lampwork.compile(lambda x: x + 1, backend=Told())
    assert told == []
    torch.testing.assert_close(compiled(x), x + 1)
    assert told == ["prepared", "compiled"]
