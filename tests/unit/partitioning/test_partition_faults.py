"""Backends that do wrong: an error that names them, the node and the line; the model still runs right."""

from __future__ import annotations

import itertools
import time
import warnings

import pytest
import torch

import lampwork
from lampwork.errors import (
    BackendAnswerError,
    BackendCompileError,
    BackendResultError,
    BackendRunError,
    BackendTimeoutError,
    BackendWriteError,
)
from lampwork.graph.interpret import run_graph

aten = torch.ops.aten


class Exp:
    """Takes exp; `run` is what it compiles to, or `make` makes that."""

    name = "wrong"

    def __init__(self, run=None, make=None):
        self.run, self.make = run, make

    def supports(self, node):
        return node.target is aten.exp.default

    def compile(self, graph, example_inputs, options):
        return self.make() if self.make is not None else self.run


def fn(x):
    return x.sin().exp() * 2, x.cos()  # the line of every fault


LINE = fn.__code__.co_firstlineno + 1


def outside(x):
    raise ValueError("of the backend")


class Mute(Exception):
    """An exception that cannot be shown."""

    def __str__(self):
        raise RuntimeError("no text")


def mutely(*args):
    raise Mute


class Named(torch.Tensor):
    """A tensor with a class of its own."""


class Late:
    """Right for three calls."""

    RIGHT = 3

    def __init__(self, then):
        self.calls, self.then = 0, then

    def __call__(self, x):
        self.calls += 1
        return (x.exp(),) if self.calls <= self.RIGHT else self.then(x)


FAULTS = {
    "raises": (
        lambda: Exp(make=lambda: 1 / 0),
        BackendCompileError,
        "backend wrong failed: ZeroDivisionError: division by zero, compiling exp (node exp)",
    ),
    "raises what cannot be shown": (
        lambda: Exp(make=mutely),
        BackendCompileError,
        "backend wrong failed: Mute, compiling exp (node exp)",
    ),
    "raises on a call what cannot be shown": (
        lambda: Exp(mutely),
        BackendRunError,
        "backend wrong failed on a call: Mute, running exp (node exp)",
    ),
    "gives nothing to call": (
        lambda: Exp(3),
        BackendCompileError,
        "backend wrong returned int, which is not callable, for exp (node exp)",
    ),
    "hangs": (
        lambda: Exp(make=lambda: time.sleep(60)),
        BackendTimeoutError,
        "backend wrong did not finish compiling exp (node exp) in 1 seconds",
    ),
    "too many outputs": (
        lambda: Exp(lambda x: (x.exp(), x)),
        BackendResultError,
        "backend wrong returned 2 outputs, the graph has 1, running exp (node exp)",
    ),
    "another shape": (
        lambda: Exp(lambda x: (x.exp()[:1],)),
        BackendResultError,
        "backend wrong returned float32[1, 3] as output 0, expected float32[2, 3], running exp (node exp)",
    ),
    "another dtype": (
        lambda: Exp(lambda x: (x.exp().double(),)),
        BackendResultError,
        "backend wrong returned float64[2, 3] as output 0, expected float32[2, 3], running exp (node exp)",
    ),
    "another device": (
        lambda: Exp(lambda x: (torch.empty(2, 3, device="meta"),)),
        BackendResultError,
        "backend wrong returned output 0 on meta, expected cpu, running exp (node exp)",
    ),
    "a subclass": (
        lambda: Exp(lambda x: (x.exp().as_subclass(Named),)),
        BackendResultError,
        "backend wrong returned Named as output 0, expected a tensor, running exp (node exp)",
    ),
    "no tensor": (
        lambda: Exp(lambda x: None),
        BackendResultError,
        "backend wrong returned NoneType as output 0, expected a tensor, running exp (node exp)",
    ),
    "writes": (
        lambda: Exp(lambda x: (x.exp_(),)),
        BackendWriteError,
        "backend wrong wrote to its inputs, running exp (node exp)",
    ),
    "writes behind torch's back": (
        lambda: Exp(lambda x: (x.exp(), x.numpy().fill(0))[:1]),
        BackendWriteError,
        "backend wrong wrote to its inputs, running exp (node exp)",
    ),
    "raises on a call": (
        lambda: Exp(outside),
        BackendRunError,
        "backend wrong failed on a call: ValueError: of the backend, running exp (node exp)",
    ),
    "raises on a later call": (
        lambda: Exp(Late(outside)),
        BackendRunError,
        "backend wrong failed on a call: ValueError: of the backend, running exp (node exp)",
    ),
    "another shape later": (
        lambda: Exp(Late(lambda x: (x[0],))),
        BackendResultError,
        "backend wrong returned float32[3] as output 0, expected float32[2, 3], running exp (node exp)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_once_and_the_next_backend_takes_over(name) -> None:
    make, error, message = FAULTS[name]
    compiled = lampwork.compile(
        fn, backend=[make(), "native"], options={"strict": False, "backend_timeout": 1}
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(6):
            x = torch.randn(2, 3) * i
            before = x.clone()
            for got, want in zip(compiled(x), fn(before)):
                torch.testing.assert_close(got, want)
            torch.testing.assert_close(x, before, rtol=0, atol=0)
    (warned,) = [w for w in caught if issubclass(w.category, lampwork.LampworkWarning)]
    text = str(warned.message)
    assert text.startswith(f"fn goes on without it: [{error.code}] {__file__}:{LINE} in fn: {message}")
    assert "; native takes over\n" in text


@pytest.mark.parametrize("name", FAULTS)
def test_strict_raises_the_fault(name) -> None:
    make, error, message = FAULTS[name]
    compiled = lampwork.compile(fn, backend=[make(), "native"], options={"backend_timeout": 1})
    with pytest.raises(error) as caught:
        for _ in range(6):
            compiled(torch.randn(2, 3))
    assert caught.value.cause == message
    assert (caught.value.location.file, caught.value.location.line) == (__file__, LINE)


@pytest.mark.parametrize("strict", [False, True])
def test_inputs_written_to_after_the_checks_are_always_an_error_once(strict) -> None:
    late = Late(lambda x: (x.exp_(),))
    compiled = lampwork.compile(fn, backend=[Exp(late), "native"], options={"strict": strict})
    errors = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            x = torch.randn(2, 3)
            want = fn(x)
            try:
                torch.testing.assert_close(compiled(x), want)
            except BackendWriteError as error:
                errors.append(str(error))
    assert len(errors) == 1 and "which it had not done on the first calls" in errors[0]
    assert late.calls == Late.RIGHT + 1  # the next backend has taken over


def test_a_writer_is_not_run_for_an_equal_part_either() -> None:
    late = Late(lambda x: (x.exp_(),))

    def twice(x):
        return x.exp().sin().exp().cos()

    compiled = lampwork.compile(twice, backend=[Exp(late), "native"], options={"strict": False})
    errors = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            x = torch.randn(2, 3)
            want = twice(x)
            try:
                torch.testing.assert_close(compiled(x), want)
            except BackendWriteError as error:
                errors.append(error)
    assert len(errors) == 1 and late.calls == Late.RIGHT + 1
    (warned,) = [w for w in caught if issubclass(w.category, lampwork.LampworkWarning)]
    assert "; native takes over" in str(warned.message)


class Linear:
    """Does something to what it compiles linear layers for."""

    name = "linear"

    def __init__(self, touch, bakes_weights=False):
        self.touch, self.bakes_weights = touch, bakes_weights

    def supports(self, node):
        return node.target is aten.linear.default

    def compile(self, graph, example_inputs, options):
        self.touch([*example_inputs, *options.bound])
        return lambda *tensors: run_graph(graph, (*tensors, *options.bound))


def zero_all(tensors):
    for tensor in tensors:
        with torch.no_grad():
            tensor.zero_()


def test_examples_are_never_the_weights() -> None:
    layer = torch.nn.Linear(3, 3)
    kept = layer.weight.detach().clone()
    compiled = lampwork.compile(layer, backend=[Linear(zero_all), "native"])
    x = torch.randn(2, 3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), torch.nn.functional.linear(x, kept, layer.bias))
    assert torch.equal(layer.weight, kept)


def behind_torchs_back(tensors):
    for tensor in tensors:
        tensor.detach().numpy().fill(1)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("touch", [zero_all, behind_torchs_back])
def test_weights_written_to_while_compiling_are_always_an_error_once(touch, strict) -> None:
    layer = torch.nn.Linear(3, 3)
    compiled = lampwork.compile(layer, backend=[Linear(touch, True), "native"], options={"strict": strict})
    x = torch.randn(2, 3)
    with torch.no_grad():
        with pytest.raises(BackendWriteError, match="linear wrote to the weights while it compiled them in"):
            compiled(x)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), layer(x))


def test_weights_that_another_thread_trains_meanwhile_are_no_fault() -> None:
    layer, turns = torch.nn.Linear(3, 3), itertools.count()

    def trains(tensors):
        if next(turns) == 0:
            with torch.no_grad():
                layer.weight.mul_(2)

    compiled = lampwork.compile(layer, backend=[Linear(trains, True), "native"])
    x = torch.randn(2, 3)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda: torch.set_grad_enabled(not torch.is_grad_enabled()), "grad mode is "),
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "the number of threads is "),
    ],
)
def test_settings_that_a_call_changes_are_put_back(change, text) -> None:
    before = torch.is_grad_enabled(), torch.get_num_threads()
    backend = Exp(lambda x: (change(), x.exp())[1:])
    compiled = lampwork.compile(fn, backend=[backend, "native"], options={"strict": False})
    with pytest.warns(lampwork.LampworkWarning, match=f"settings in a call: {text}"):
        for _ in range(4):
            x = torch.randn(2, 3)
            torch.testing.assert_close(compiled(x), fn(x))
            assert before == (torch.is_grad_enabled(), torch.get_num_threads())


def test_what_eager_raises_too_is_no_fault() -> None:
    class Embeds(Exp):
        def supports(self, node):
            return node.target is aten.embedding.default

    table = torch.randn(3, 2)
    compiled = lampwork.compile(
        lambda i: torch.nn.functional.embedding(i, table),
        backend=Embeds(lambda i, table: (table[i] if i.max() < 3 else 1 / 0,)),
    )
    for number in range(2):
        torch.testing.assert_close(compiled(torch.tensor([number])), table[number : number + 1])
    with pytest.raises(IndexError):
        compiled(torch.tensor([7]))
    torch.testing.assert_close(compiled(torch.tensor([2])), table[2:])


def test_several_backends_fail_in_turn() -> None:
    class Other(Exp):
        name = "other"

    backends = [Exp(make=lambda: 1 / 0), Other(outside)]
    compiled = lampwork.compile(fn, backend=backends, options={"strict": False})
    x = torch.randn(2, 3)
    with pytest.warns(lampwork.LampworkWarning) as caught:
        for got, want in zip(compiled(x), fn(x)):
            torch.testing.assert_close(got, want)
    texts = [str(w.message) for w in caught]
    assert len(texts) == 2
    assert "wrong failed" in texts[0] and "; other takes over" in texts[0]
    assert "other failed on a call" in texts[1] and "; eager takes over" in texts[1]


def test_supports_that_raises() -> None:
    class Raises(Exp):
        def supports(self, node):
            raise KeyError("op")

    with pytest.raises(
        BackendAnswerError, match="backend wrong: supports raised KeyError: 'op' for node sin"
    ):
        lampwork.compile(fn, backend=Raises())(torch.randn(2, 3))
    with pytest.warns(lampwork.LampworkWarning, match="what comes after it takes over"):
        x = torch.randn(2, 3)
        result = lampwork.compile(fn, backend=Raises(), options={"strict": False})(x)
    torch.testing.assert_close(result, fn(x))


def test_memory_that_is_used_again_is_copied() -> None:
    buffer = torch.empty(2, 3)
    compiled = lampwork.compile(torch.exp, backend=Exp(lambda x: (torch.exp(x, out=buffer),)))
    inputs = [torch.randn(2, 3) for _ in range(5)]
    results = [compiled(x) for x in inputs]
    for got, x in zip(results, inputs):
        torch.testing.assert_close(got, x.exp())


def test_an_output_that_is_an_input_is_copied() -> None:
    class Adds(Exp):
        def supports(self, node):
            return node.target in (aten.add.Tensor, aten.clone.default)

    zero = torch.zeros(2, 3)
    compiled = lampwork.compile(lambda x, y: x + y, backend=Adds(lambda x, y: (x,)))
    for _ in range(4):
        x = torch.randn(2, 3)
        result = compiled(x, zero)
        result.fill_(7)
        assert not (x == 7).any()


def test_strides_of_results_are_eagers() -> None:
    def program(x):
        y = x.exp()
        return y, y.t()

    compiled = lampwork.compile(program, backend=Exp(lambda x: (x.exp().contiguous(),)))
    x = torch.randn(3, 2).t()
    for _ in range(4):
        first, second = compiled(x)
        assert first.stride() == (1, 2) and second.stride() == (2, 1)
        assert first.data_ptr() == second.data_ptr()
        torch.testing.assert_close(first, x.exp())


def test_results_share_memory_as_eagers_do() -> None:
    class All(Exp):
        def supports(self, node):
            return True

        def compile(self, graph, example_inputs, options):
            module = torch.fx.GraphModule(torch.nn.Module(), graph)
            return lambda *tensors: [out.clone() for out in module(*tensors)]

    def views(x):
        y = x.exp()
        return y, y.t(), x[0], x, x.view(-1)[1:], y.sum(0)

    compiled = lampwork.compile(views, backend=All())
    for _ in range(3):
        x = torch.randn(2, 3)
        results, expected = compiled(x), views(x)
        for got, want in zip(results, expected):
            torch.testing.assert_close(got, want)
        assert results[3] is x
        results[1].zero_()
        results[2].fill_(5)
        assert not results[0].any() and (x[0] == 5).all() and (results[4][:2] == 5).all()
        assert results[5].any()


def test_results_of_checked_runs_are_no_views():
    x = torch.randn(2, 3)
    compiled = lampwork.compile(lambda x: x.exp(), backend=Exp(lambda x: x.exp()))
    with torch.no_grad():
        results = [compiled(x) for _ in range(4)]
    assert [(r._is_view(), r._version) for r in results] == [(False, 0)] * 4
