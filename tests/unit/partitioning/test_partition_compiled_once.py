"""What backends compile is kept: once for equal parts, settings and code; weights that are built in follow changes."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

import pytest
import torch
from torch import nn

import lampwork
from lampwork.graph.interpret import run_graph
from lampwork.partitioning import compiling

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(compiling, "_cache", compiling._Cache())


class Linear:
    """Takes linear layers, and counts what it compiles."""

    name = "linear"

    def __init__(self, scale=1.0):
        self.scale = scale
        self.compiled = 0
        self.graphs = []

    def supports(self, node):
        return node.target is aten.linear.default

    def compile(self, graph, example_inputs, options):
        self.compiled += 1
        self.graphs.append(graph)
        scale = self.scale
        return lambda *tensors: [out * scale for out in run_graph(graph, tensors)]


class Stateless:
    name = "stateless"

    def supports(self, node):
        return node.target is aten.linear.default

    def compile(self, graph, example_inputs, options):
        return lambda *tensors: run_graph(graph, tensors)


def layers(count, width=4):
    parts = [part for _ in range(count) for part in (nn.Linear(width, width), nn.Softsign())]
    return nn.Sequential(*parts).eval()


X = torch.randn(3, 4)


def compiles():
    stats = lampwork.stats()
    return stats["backend_compiles"], stats["backend_cache_hits"]


def test_equal_layers_compile_once() -> None:
    lampwork.reset_stats()
    backend, model = Linear(), layers(12)
    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(model, backend=[backend, "native"])(X), model(X))
        assert backend.compiled == 1
        # One of the native parts is compiled for itself, so that its stages can be looked at.
        assert compiles() == (3, 21)
        other = layers(3)
        torch.testing.assert_close(lampwork.compile(other, backend=[backend, "native"])(X), other(X))
    assert backend.compiled == 1


def test_other_sizes_settings_and_objects_compile_anew() -> None:
    backend, model = Linear(), layers(1)
    with torch.no_grad():
        lampwork.compile(model, backend=backend)(X)
        lampwork.compile(layers(1, 5), backend=backend)(torch.randn(3, 5))
        assert backend.compiled == 2
        backend.scale = 2.0
        torch.testing.assert_close(lampwork.compile(model, backend=backend)(X), model[1](2 * model[0](X)))
        assert backend.compiled == 3
        another = Linear()
        lampwork.compile(model, backend=another)(X)
        assert another.compiled == 1


def test_objects_without_state_are_one() -> None:
    model = layers(2)
    lampwork.reset_stats()
    with torch.no_grad():
        for _ in range(3):
            lampwork.compile(model, backend=[Stateless, "eager"])(X)
    assert compiles() == (2, 10)


def test_a_class_with_other_code_compiles_anew(monkeypatch) -> None:
    model = layers(1)
    with torch.no_grad():
        lampwork.compile(model, backend=Stateless)(X)
        monkeypatch.setattr(
            Stateless,
            "compile",
            lambda self, graph, inputs, options: lambda *t: [-out for out in run_graph(graph, t)],
        )
        torch.testing.assert_close(lampwork.compile(model, backend=Stateless)(X), model[1](-model[0](X)))


SCALE = 1.0


def test_functions_follow_what_they_reach(monkeypatch) -> None:
    """A global, what is closed over, the attributes of an object: also of what a function calls."""
    box = {"scale": 1.0}

    def scaled(gm, scale):
        return lambda *tensors: [out * scale for out in gm.forward(*tensors)]

    def with_global(gm, example_inputs):
        return scaled(gm, SCALE)

    def with_cell(gm, example_inputs):
        return scaled(gm, box["scale"])

    def calls_another(gm, example_inputs):
        return with_cell(gm, example_inputs)

    class Owner:
        scale = 1.0

        def compile(self, gm, example_inputs):
            return scaled(gm, self.scale)

        def __call__(self, gm, example_inputs):
            return self.compile(gm, example_inputs)

    owner, model = Owner(), layers(1)
    backends = [with_global, with_cell, calls_another, owner.compile, owner, partial(scaled_by, box)]
    for scale in (1.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        box["scale"] = owner.scale = scale
        for backend in backends:
            with torch.no_grad():
                want = model(X) * scale
                torch.testing.assert_close(lampwork.compile(model, backend=backend)(X), want)
    Owner.scale = 5.0
    fresh = Owner()
    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(model, backend=fresh.compile)(X), model(X) * 5)
        Owner.scale = 6.0
        torch.testing.assert_close(lampwork.compile(model, backend=fresh.compile)(X), model(X) * 6)


def scaled_by(box, gm, example_inputs):
    scale = box["scale"]
    return lambda *tensors: [out * scale for out in gm.forward(*tensors)]


def test_functions_that_keep_a_log_compile_equal_parts_once() -> None:
    seen, count = [], 0

    def logs(gm, example_inputs):
        nonlocal count
        count += 1
        seen.append(gm)
        return gm.forward

    lampwork.register_backend("logs", logs, supports=["aten.linear"])
    model, other = layers(6), layers(3, 5)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(lampwork.compile(model, backend=["logs", "eager"])(X), model(X))
            wide = torch.randn(3, 5)
            torch.testing.assert_close(lampwork.compile(other, backend=["logs", "eager"])(wide), other(wide))
    assert len(seen) == count == 2


LOGGER = logging.getLogger(__name__)


def test_what_a_function_reaches_is_looked_at_in_bounds() -> None:
    """A function that logs is one; one that reaches more than is looked at is compiled each time, and a logger is not
    looked into."""
    compiled = []

    def counted(gm, example_inputs):
        LOGGER.debug("compiling")
        compiled.append(1)
        return gm.forward

    class Large:
        def __init__(self):
            self.values = [[number] for number in range(5000)]
            self.made = 0

        def compile(self, gm, example_inputs):
            self.made += len(self.values) > 0
            return gm.forward

    large, model = Large(), layers(2)
    with torch.no_grad():
        for backend in (counted, large.compile):
            for _ in range(2):
                torch.testing.assert_close(lampwork.compile(model, backend=backend)(X), model(X))
    assert len(compiled) == 1 and large.made == 2


def test_backends_follow_collections_and_attributes_of_their_class() -> None:
    class Scaled(Linear):
        factor = 1.0

        def __init__(self):
            super().__init__()
            self.options = {"scale": 1.0, "names": ["a"]}

        def compile(self, graph, example_inputs, options):
            self.compiled += 1
            scale = self.options["scale"] * self.factor
            return lambda *tensors: [out * scale for out in run_graph(graph, tensors)]

    backend, model = Scaled(), layers(1)

    def check(factor):
        with torch.no_grad():
            want = model[1](model[0](X) * factor)
            torch.testing.assert_close(lampwork.compile(model, backend=backend)(X), want)

    check(1)
    backend.options["scale"] = 2.0
    check(2)
    Scaled.factor = 3.0
    check(6)
    check(6)
    assert backend.compiled == 3


def test_what_contains_itself_is_no_setting() -> None:
    backend, model = Linear(), layers(1)
    backend.itself = []
    backend.itself.append(backend.itself)
    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(model, backend=backend)(X), model(X))


def test_threads_compile_once() -> None:
    class Slow(Linear):
        def compile(self, graph, example_inputs, options):
            time.sleep(0.2)
            return super().compile(graph, example_inputs, options)

    backend, model, results = Slow(), layers(1), []

    def work():
        with torch.no_grad():
            results.append(lampwork.compile(model, backend=backend)(X))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.compiled == 1
    assert len(results) == 4
    with torch.no_grad():
        for result in results:
            torch.testing.assert_close(result, model(X))


def test_faults_are_kept_too_with_each_users_line() -> None:
    tries = []

    class Fails(Linear):
        def compile(self, graph, example_inputs, options):
            tries.append(graph)
            raise ValueError("not this")

    backend, weight = Fails(), torch.randn(4, 4)

    def fn(x):
        x = torch.nn.functional.linear(x, weight).cumsum(0)
        return torch.nn.functional.linear(x, weight)

    with pytest.warns(lampwork.LampworkWarning) as caught:
        result = lampwork.compile(fn, backend=backend, options={"strict": False})(X)
    torch.testing.assert_close(result, fn(X))
    first = fn.__code__.co_firstlineno
    texts = [str(w.message) for w in caught]
    assert [f":{first + 1 + i} in" in text for i, text in enumerate(texts)] == [True, True], texts
    assert len(tries) == 1


def test_no_more_are_kept_than_a_number() -> None:
    for number in range(compiling.CACHED + 10):
        compiling._cache.slot(number)
    assert len(compiling._cache.slots) == compiling.CACHED
    assert (
        compiling._cache.slots.get(compiling.CACHED + 9) is not None and compiling._cache.slots.get(0) is None
    )


class Baked(Linear):
    """Multiplies in NumPy by weights that it keeps."""

    name = "baked"
    bakes_weights = True

    def compile(self, graph, example_inputs, options):
        self.compiled += 1
        weight, bias = (tensor.clone() for tensor in options.bound)
        assert len(example_inputs) == 1
        return lambda x: (x @ weight.t() + bias,)


def test_weights_that_are_built_in_follow_changes() -> None:
    backend, model = Baked(), layers(2)
    compiled = lampwork.compile(model, backend=backend)

    def check(times):
        with torch.no_grad():
            for _ in range(2):
                torch.testing.assert_close(compiled(X), model(X))
        assert backend.compiled == times

    check(2)
    with torch.no_grad():
        model[0].weight.mul_(2)
    check(4)
    model[2].bias.data = torch.ones(4)
    check(6)
    model.load_state_dict(layers(2).state_dict())
    check(8)
    torch.optim.SGD(model.parameters(), 0.1).step()
    check(8)


def test_constants_are_computed_once_for_each_set_of_weights() -> None:
    ran = []

    class Product(Linear):
        def supports(self, node):
            return node.target in (aten.mm.default, aten.matmul.default, aten.linear.default)

        def compile(self, graph, example_inputs, options):
            ran.append([n for n in graph.nodes if n.op == "call_function"])
            return lambda *tensors: run_graph(graph, tensors)

    weight = nn.Parameter(torch.randn(4, 4))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return x @ (self.weight.exp() + 1)

    model, backend = Model(), Product()
    compiled = lampwork.compile(model, backend=backend, options={"passes": "-constant-folding"})
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(compiled(X), model(X))
            weight.mul_(0.5)
    assert [len(calls) for calls in ran] == [1]
