"""The battery for backends: right ones pass, and each promise has a backend that breaks it and is caught."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lampwork import No, Yes
from lampwork.errors import OptionError
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.testing import BACKEND_PROMISES, ConformanceError, check_backend

aten = torch.ops.aten


class Plain:
    """Takes pointwise operators and linear layers, and runs them as eager does."""

    name = "plain"
    takes = (aten.relu.default, aten.mul.Tensor, aten.add.Tensor, aten.linear.default, aten.abs.default)

    def supports(self, node: Any) -> Any:
        return Yes() if node.target in self.takes else No("not in the table")

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        kept = copy_graph(graph)

        def run(*tensors: Any) -> Any:
            return run_graph(kept, tensors)

        return run


def failures(backend: Any, *only: str) -> dict[str, str]:
    return {c.name: c.detail for c in check_backend(backend, only=only, raises=False).failed}


def test_a_right_backend_passes() -> None:
    report = check_backend(Plain)
    assert report.ok and not report.failed
    assert str(report).startswith("backend plain: 18 passed, 0 failed, 0 skipped\nok   protocol: ")


@pytest.mark.parametrize("name", ["eager", "native"])
def test_the_backends_of_the_tree_pass(name: str) -> None:
    from lampwork.backends.registry import get_backend

    check_backend(get_backend(name))


def test_a_function_with_the_signature_of_torch_passes() -> None:
    def through(gm: Any, example_inputs: Any) -> Any:
        return gm.forward

    check_backend(through)


def test_what_is_no_backend_is_an_error() -> None:
    with pytest.raises(OptionError, match="is no backend"):
        check_backend(3)


def test_the_error_names_the_first_failure_and_carries_the_report() -> None:
    class Silent(Plain):
        def supports(self, node: Any) -> Any:
            return No("never")

    with pytest.raises(ConformanceError) as caught:
        check_backend(Silent(), only=["protocol"])
    assert caught.value.report.failed[0].name == "protocol"
    assert "[LW600] backend plain fails the check 'protocol': it takes no node of any program" in str(
        caught.value
    )


def test_own_programs_count() -> None:
    class OnlyErf(Plain):
        takes = (aten.erf.default,)

    assert "protocol" in failures(OnlyErf(), "protocol")
    check_backend(OnlyErf, only=["protocol"], programs=[(lambda x: torch.erf(x) + 1, (torch.randn(3),))])


BROKEN: dict[str, tuple[type[Plain], str]] = {}
"""By promise: a backend that breaks it, and what the battery says."""


def breaks(promise: str, saying: str = "") -> Callable[[type[Plain]], type[Plain]]:
    def note(backend: type[Plain]) -> type[Plain]:
        BROKEN[promise] = (backend, saying)
        return backend

    return note


def test_every_promise_has_one_that_breaks_it() -> None:
    assert set(BROKEN) == {promise.text for promise in BACKEND_PROMISES}
    page = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()
    checks = {check.name for check in check_backend(Plain, skip=ALL_CHECKS, only=ALL_CHECKS).checks}
    assert {promise.check for promise in BACKEND_PROMISES} == checks == set(ALL_CHECKS)
    assert all(check in page for check in checks)


ALL_CHECKS = tuple(dict.fromkeys(promise.check for promise in BACKEND_PROMISES))


@pytest.mark.parametrize("promise", BACKEND_PROMISES, ids=lambda promise: promise.text.replace("`", ""))
def test_a_backend_that_breaks_it_fails(promise: Any) -> None:
    backend, saying = BROKEN[promise.text]
    found = failures(backend(), promise.check)
    assert promise.check in found and saying in found[promise.check], found


class Changing(Plain):
    """Does to what the right one makes what `change` does."""

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = super().compile(graph, example_inputs, options)
        return lambda *tensors: self.change(run(*tensors), tensors)

    def change(self, results: Any, tensors: Any) -> Any:
        raise NotImplementedError


@breaks("`supports` answers every node with Yes, No(reason) or a bool", "neither Yes() nor No(reason)")
class Vague(Plain):
    def supports(self, node: Any) -> Any:
        return None


@breaks("a No has a reason", "No without a reason")
class Terse(Plain):
    def supports(self, node: Any) -> Any:
        return super().supports(node) and Yes() or No("")


@breaks("`supports` gives one node the same answer each time", "yes one time and no another")
class Fickle(Plain):
    count = itertools.count()

    def supports(self, node: Any) -> Any:
        return Yes() if next(self.count) % 2 else No("odd")


@breaks("`supports` leaves the node as it is", "changed the node")
class Noting(Plain):
    def supports(self, node: Any) -> Any:
        node.meta["mine"] = True
        return super().supports(node)


@breaks("`compile` leaves the graph as it is", "changed the graph")
class Careless(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = super().compile(graph, example_inputs, options)
        for node in graph.nodes:
            if node.target is aten.mul.Tensor:
                node.target = aten.add.Tensor
        return run


@breaks("`clusters` leaves the graph as it is, and names nodes of it", "which is none of the nodes")
class Strangers(Plain):
    def clusters(self, graph: Any) -> Any:
        return [[next(iter(graph.nodes))]]


@breaks("`cost` gives a number of seconds for every node that it takes", "cost returned -1.0")
class Free(Plain):
    def cost(self, nodes: Any) -> Any:
        return -1.0


@breaks("`compile` compiles every graph of nodes that `supports` took", "one operator at most")
class Single(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        if sum(node.op == "call_function" for node in graph.nodes) > 1:
            raise NotImplementedError("one operator at most")
        return super().compile(graph, example_inputs, options)


@breaks("the function returns all outputs, in order")
class Short(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        return results[:-1]


@breaks("outputs have the shapes and dtypes of the graph's specs", "float64")
class Wide(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        return [result.double() for result in results]


@breaks("outputs are eager's, within rounding", "error")
class Rough(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        return [t * 1.001 if t.is_floating_point() else t for t in results]


@breaks("options of operators count where they are not the default", "options: ")
class Unadorned(Plain):
    """Takes every add for the plain one."""

    takes = (aten.add.Tensor, aten.sub.Tensor)

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        graph = copy_graph(graph)
        for node in graph.nodes:
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "alpha"}
        return super().compile(graph, example_inputs, options)


@breaks("a call leaves torch's settings as they are: grad mode, threads, default dtype", "grad mode")
class Meddling(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return results


def test_settings_are_looked_at_after_the_checked_runs_too() -> None:
    class Later(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)
            turn = itertools.count()

            def meddle(*tensors: Any) -> Any:
                if next(turn) > 2:
                    torch.set_num_threads(torch.get_num_threads() + 1)
                return run(*tensors)

            return meddle

    before = torch.get_num_threads()
    assert "the number of threads" in failures(Later(), "results are fresh")["results are fresh"]
    assert torch.get_num_threads() == before


@breaks("the function does not write to its inputs", "wrote to its inputs")
class Writing(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        results = [r.clone() for r in results]
        tensors[0].detach().mul_(2)
        return results


@breaks("outputs depend on the inputs of the call, not on the example inputs", "error")
class Traced(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        results = super().compile(graph, example_inputs, options)(*example_inputs)
        return lambda *tensors: [result.clone() for result in results]


@breaks("it is right whichever of its nodes it is given")
class Whole(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        calls = [node.target for node in graph.nodes if node.op == "call_function"]
        if calls == [aten.add.Tensor]:
            return lambda *tensors: [tensors[0] * 2]
        return super().compile(graph, example_inputs, options)


@breaks("results may share memory, and be read by other parts", "elements in one place")
class Loose(Plain):
    """Right for graphs in which elements have places of their own."""

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        if any(0 in tensor.stride() for tensor in example_inputs):
            raise ValueError("elements in one place")
        return super().compile(graph, example_inputs, options)


@breaks("weights that changed are read by the next call")
class Frozen(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = super().compile(graph, example_inputs, options)
        bound = [n.meta.get("bound") for n in graph.nodes if n.op == "placeholder"]
        first: list[Any] = []

        def frozen(*tensors: Any) -> Any:
            first[:] = first or [t.detach().clone() for t in tensors]
            return run(*(old if b else new for b, old, new in zip(bound, first, tensors, strict=True)))

        return frozen


class Keyed(Plain):
    """Keeps what it compiled under `key`."""

    def __init__(self) -> None:
        self.made: dict[Any, Any] = {}

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        return self.made.setdefault(self.key(graph), super().compile(graph, example_inputs, options))

    def key(self, graph: Any) -> Any:
        raise NotImplementedError


@breaks("other sizes are compiled for themselves, 0 and 1 too")
class Fixed(Plain):
    """Refuses sizes that it does not know."""

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        if any(0 in tensor.shape for tensor in example_inputs):
            raise ValueError("an empty tensor")
        return super().compile(graph, example_inputs, options)


@breaks("memory of a result is not used again", "changed an earlier result")
class Frugal(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = super().compile(graph, example_inputs, options)
        buffers: list[Any] = []
        turn = itertools.count()

        def reuse(*tensors: Any) -> Any:
            results = run(*tensors)
            if len(buffers) < 2:
                buffers.append([r.clone() for r in results])
            kept = buffers[next(turn) % len(buffers)]
            for buffer, result in zip(kept, results, strict=True):
                buffer.copy_(result)
            return list(kept)

        return reuse


@breaks("one object compiles many graphs, each of which may be run later")
class Latest(Plain):
    """Runs what it compiled last."""

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        self.run = super().compile(graph, example_inputs, options)
        return lambda *tensors: self.run(*tensors)


@breaks("a compiled function may run in several threads at once", "in thread")
class Shared(Plain):
    """Puts its inputs where it finds those of another thread."""

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = super().compile(graph, example_inputs, options)
        held: list[Any] = []

        def shared(*tensors: Any) -> Any:
            held[:] = tensors
            return run(*held)

        return shared


@breaks("what it keeps for equal graphs is told apart by every literal", "another literal")
class Hasty(Keyed):
    """Its operators have no literals but one: linear and relu have none, and `add` has its alpha."""

    takes = (aten.relu.default, aten.linear.default, aten.softmax.int)

    def key(self, graph: Any) -> Any:
        return tuple(
            (str(n.target), n.meta.get("val"), tuple(map(str, n.all_input_nodes))) for n in graph.nodes
        )


@breaks("what it keeps for equal graphs is told apart by shapes and dtypes")
class Shapeless(Keyed):
    """What it makes is for one shape."""

    def key(self, graph: Any) -> Any:
        return str(graph)

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = Plain.compile(self, graph, example_inputs, options)
        shapes = [(t.shape, t.dtype) for t in example_inputs]

        def fixed(*tensors: Any) -> Any:
            if [(t.shape, t.dtype) for t in tensors] != shapes:
                raise ValueError("made for other tensors")
            return run(*tensors)

        return self.made.setdefault(self.key(graph), fixed)


@breaks("what it keeps for equal graphs is told apart by which operand is which", "operands")
class Unordered(Keyed):
    takes = (aten.sub.Tensor, aten.div.Tensor)

    def key(self, graph: Any) -> Any:
        return tuple((str(n.target), n.meta.get("val"), str(sorted(map(str, n.args)))) for n in graph.nodes)


@breaks("gradients, where they are asked for, are eager's")
class Forward(Changing):
    """Right but for what only a backward computes: the gradient of a weight."""

    def supports(self, node: Any) -> Any:
        return Yes()

    def change(self, results: Any, tensors: Any) -> Any:
        return [t + 1 if t.shape in ((16, 8), (8, 16)) else t for t in results]


@breaks("arguments may be returned, and one result twice")
class Once(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        if len(example_inputs) == 1 and [n.target for n in graph.nodes if n.op == "call_function"] == [
            aten.add.Tensor,
            aten.relu.default,
        ]:
            raise ValueError("a result twice")
        return super().compile(graph, example_inputs, options)


@breaks("it is right where the program writes to its arguments")
class Immutable(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = super().compile(graph, example_inputs, options)
        if any(tensor.shape == (4, 3) for tensor in example_inputs):
            return lambda *tensors: [result + 1 for result in run(*tensors)]
        return run


def picky(refused: Callable[[Any], bool]) -> type[Plain]:
    class Picky(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)

            def checked(*tensors: Any) -> Any:
                if any(map(refused, tensors)):
                    raise ValueError("such a tensor")
                return run(*tensors)

            return checked

    return Picky


breaks("tensors may have no elements", "such a tensor")(picky(lambda t: t.numel() == 0))
breaks("tensors may have no dimensions", "such a tensor")(picky(lambda t: t.dim() == 0))


@breaks("it takes no dtype for another", "error")
class Narrow(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        return [t.half().to(t.dtype) if t.dtype is torch.float64 else t for t in results]


@breaks("integers are exact, also those that no float holds", "large torch.int64: ")
class Floating(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        return [t.double().to(t.dtype) if t.dtype is torch.int64 else t for t in results]


@breaks("zeros keep their sign", "0.0 where eager has -0.0")
class Unsigned(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        return [t + 0.0 if t.is_floating_point() else t for t in results]


@breaks("denormals are not taken for zero", "where eager has")
class Flushing(Changing):
    def change(self, results: Any, tensors: Any) -> Any:
        return [torch.where(t.abs() < 1e-38, t * 0, t) if t.dtype is torch.float32 else t for t in results]


@breaks("inputs have the strides of their specs, and an offset")
class Dense(Plain):
    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        run = super().compile(graph, example_inputs, options)
        return lambda *tensors: run(*(t.as_strided(t.shape, torch.empty(t.shape).stride()) for t in tensors))


@breaks("nan, infinities and denormals come out of each operator as eager's", "relu of nan")
class Maximum(Plain):
    """Its relu is `x > 0 ? x : 0`."""

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        kept = copy_graph(graph)

        def run(*tensors: Any) -> Any:
            values = dict(zip((n for n in kept.nodes if n.op == "placeholder"), tensors, strict=True))
            for node in kept.nodes:
                if node.op == "call_function":
                    args = [values.get(a, a) if hasattr(a, "op") else a for a in node.args]
                    relu = node.target is aten.relu.default
                    values[node] = (
                        torch.where(args[0] > 0, args[0], 0.0) if relu else node.target(*args, **node.kwargs)
                    )
                elif node.op == "output":
                    return [values[result] for result in node.args[0]]

        return run


def test_other_strides_of_what_is_empty_are_right() -> None:
    class Contiguous(Changing):
        """Gives tensors that are empty, or of one row, strides of its own."""

        def change(self, results: Any, tensors: Any) -> Any:
            return [t.new_empty(t.shape[::-1]).t() if t.numel() == 0 and t.dim() == 2 else t for t in results]

    assert not failures(Contiguous(), "empty graphs", "dynamic shapes")
