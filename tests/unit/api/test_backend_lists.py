"""compile(backend=[...]): names, classes, objects and functions, in order."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import lampwork
from lampwork.backends.registry import get_backend, resolve_backends
from lampwork.errors import OptionError
from lampwork.graph.interpret import run_graph
from lampwork.runtime import Executable

aten = torch.ops.aten
X = torch.randn(3, 4)


class Takes:
    """Takes the operators of its class."""

    name = "takes"
    ops = (aten.exp.default,)

    def supports(self, node):
        return lampwork.Yes() if node.target in self.ops else lampwork.No("another op")

    def compile(self, graph, example_inputs, options):
        return lambda *tensors: run_graph(graph, tensors)


class Cos(Takes):
    name = "cos"
    ops = (aten.cos.default,)


def fn(x):
    return (x.exp().cos() + x.cos().exp()).sum(0)


def owners(compiled):
    """Backend names, part by part."""
    return [line.split(": ")[1].split(",")[0] for line in compiled.stages.partition.splitlines()]


def test_in_order_and_eager_last() -> None:
    compiled = lampwork.compile(fn, backend=[Takes, Cos()])
    torch.testing.assert_close(compiled(X), fn(X))
    assert owners(compiled) == ["takes", "cos", "takes", "eager"]
    compiled = lampwork.compile(fn, backend=(Cos, "native"))
    torch.testing.assert_close(compiled(X), fn(X))
    assert owners(compiled) == ["native", "cos", "native"]


def test_a_backend_that_takes_nothing_costs_nothing() -> None:
    class Nothing(Takes):
        name, ops = "nothing", ()

    compiled = lampwork.compile(fn, backend=[Nothing, "native"])
    torch.testing.assert_close(compiled(X), fn(X))
    assert type(compiled.entries[0].served.program) is Executable


def test_functions_in_lists() -> None:
    def mine(gm, example_inputs):
        assert all(isinstance(tensor, torch.Tensor) for tensor in example_inputs)
        return gm.forward

    compiled = lampwork.compile(fn, backend=[Cos, mine, "native"])
    torch.testing.assert_close(compiled(X), fn(X))
    assert set(owners(compiled)) == {"cos", "test_functions_in_lists.<locals>.mine"}


def test_backends_that_people_know() -> None:
    def traced(gm, example_inputs):
        return torch.jit.trace(gm, example_inputs)

    def frozen(gm, example_inputs):
        return torch.jit.optimize_for_inference(torch.jit.trace(gm.eval(), example_inputs))

    def fake(gm, example_inputs):
        gm.graph.lint()
        gm.recompile()
        return gm

    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU()).eval()
    indices = torch.tensor([[1, 2, 6]])
    for backend in (traced, frozen, fake):
        compiled = lampwork.compile(model, backend=backend)
        with torch.no_grad():
            for _ in range(4):
                torch.testing.assert_close(compiled(indices), model(indices))


def test_registering() -> None:
    @lampwork.register_backend
    class Registered(Takes):
        name = "registered"

    assert issubclass(Registered, Takes)
    assert isinstance(get_backend("registered"), Registered)
    assert lampwork.register_backend(mine := Registered()) is mine
    assert get_backend("registered") is mine
    assert resolve_backends(["registered", mine, "eager"]) == (mine, get_backend("eager"))
    compiled = lampwork.compile(fn, backend=["registered"])
    torch.testing.assert_close(compiled(X), fn(X))


@pytest.mark.parametrize(
    "backend, message",
    [
        ([], "backend is an empty list"),
        (["nativ"], "unknown backend 'nativ'"),
        (["native", 3], "backend takes a name, a Backend or a function, got int"),
        (
            type("Wants", (Takes,), {"__init__": lambda self, x: None}),
            "Wants cannot be made without arguments",
        ),
        (type("Wrong", (Takes,), {"min_block_size": -1}), "min_block_size is -1"),
    ],
)
def test_bad_choices(backend, message) -> None:
    with pytest.raises(OptionError, match=message):
        lampwork.compile(fn, backend=backend)


def test_supports_may_answer_true_and_false() -> None:
    class Plain(Takes):
        name = "plain"

        def supports(self, node):
            return node.target is aten.exp.default

    compiled = lampwork.compile(fn, backend=[Plain, "native"])
    torch.testing.assert_close(compiled(X), fn(X))
    assert owners(compiled) == ["native", "plain", "native"]


def test_dynamic_sizes_compile_per_size_and_stay_right() -> None:
    shapes = []

    class Sized(Takes):
        name = "sized"

        def compile(self, graph, example_inputs, options):
            shapes.append(tuple(example_inputs[0].shape))
            return super().compile(graph, example_inputs, options)

    compiled = lampwork.compile(fn, backend=[Sized, "native"], dynamic=True)
    for size in (3, 5, 3, 9, 5):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(compiled.entries) == 1
    assert {size for size, _ in shapes} == {3, 5, 9}
    again = lampwork.compile(fn, backend=[Sized, "native"])
    torch.testing.assert_close(again(X), fn(X))
    assert len(shapes) == len(set(shapes))


def test_written_inputs_and_random_numbers() -> None:
    class Adds(Takes):
        name, ops = "adds", (aten.add.Tensor, aten.mul.Tensor)

    def program(x, y):
        x.add_(y).mul_(2)
        y.copy_(x.t().contiguous().t())
        return torch.rand(3) + torch.rand(3), x, x.t()

    compiled = lampwork.compile(program, backend=[Adds, "native"])
    for seed in range(4):
        x, y = torch.randn(3, 3), torch.randn(3, 3)
        x2, y2 = x.clone(), y.clone()
        torch.manual_seed(seed)
        expected = program(x2, y2)
        torch.manual_seed(seed)
        results = compiled(x, y)
        for got, want in zip((*results, x, y), (*expected, x2, y2), strict=True):
            torch.testing.assert_close(got, want)
        assert results[1] is x and results[2].data_ptr() == x.data_ptr()


def test_gradients_go_through_foreign_parts() -> None:
    class Linear(Takes):
        name, ops = "linear", (aten.linear.default,)

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled = lampwork.compile(model, backend=[Linear, "native"])
    for _ in range(3):
        model.zero_grad()
        compiled(X).sum().backward()
        mine = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(X).sum().backward()
        for got, p in zip(mine, model.parameters(), strict=True):
            torch.testing.assert_close(got, p.grad)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)


def test_threads_call_one_list() -> None:
    compiled = lampwork.compile(fn, backend=[Takes, Cos, "native"])
    failures = []

    def work(seed):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        for _ in range(20):
            if not torch.allclose(compiled(x), fn(x), atol=1e-6):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_inference_mode_and_autocast() -> None:
    class Linear(Takes):
        name, ops = "linear", (aten.linear.default,)

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    compiled = lampwork.compile(model, backend=[Linear, "native"])
    for _ in range(4):
        with torch.inference_mode():
            torch.testing.assert_close(compiled(X), model(X))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(X), model(X))
        with torch.no_grad():
            torch.testing.assert_close(compiled(X), model(X))


def test_operators_that_a_backend_keeps_stay_as_they_were_written() -> None:
    class Keeps(Takes):
        name = "keeps"
        ops = (aten.transpose.int, aten.mm.default, aten.neg.default)
        keep_ops = (aten.transpose, aten.mm.default, aten.neg.default)

    weight = torch.randn(4, 4)

    def program(x):
        return (x.transpose(0, 1) @ x).mm(weight), (-(-x)).exp()

    compiled = lampwork.compile(program, backend=[Keeps, "native"])
    torch.testing.assert_close(compiled(X), program(X))
    for op in ("transpose", "mm", "neg x2"):
        assert any(op in line for line in compiled.stages.partition.splitlines() if "keeps" in line)
    plain = lampwork.compile(program, backend="native")
    torch.testing.assert_close(plain(X), program(X))
    assert not any(op in plain.stages.partition for op in ("transpose", "mm", "neg"))
    plan = lampwork.partition(program, X, [Keeps, "native"])
    assert plan.coverage[0].nodes == 4
