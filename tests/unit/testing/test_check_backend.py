"""The battery for backends: right ones pass, and for each check there is a wrong one that only it needs to catch."""

from __future__ import annotations

import itertools
import operator
import threading
import time
from typing import Any

import pytest
import torch

from lampwork import No, Yes
from lampwork.errors import OptionError
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.testing import ConformanceError, check_backend

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
    assert str(report).startswith("backend plain: 17 passed, 0 failed, 0 skipped\nok   protocol: ")


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


def test_a_verdict_that_is_none() -> None:
    class Vague(Plain):
        def supports(self, node: Any) -> Any:
            return None

    assert "protocol" in failures(Vague(), "protocol")


def test_a_verdict_that_changes() -> None:
    class Fickle(Plain):
        count = itertools.count()

        def supports(self, node: Any) -> Any:
            return Yes() if next(self.count) % 2 else No("odd")

    assert "yes one time and no another" in failures(Fickle(), "protocol")["protocol"]


def test_a_graph_that_is_changed() -> None:
    class Careless(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)
            for node in graph.nodes:
                if node.target is aten.mul.Tensor:
                    node.target = aten.add.Tensor
            return run

    assert "changed the graph" in failures(Careless(), "right answers")["right answers"]


def test_wrong_answers() -> None:
    class Rough(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)
            return lambda *tensors: [t * 1.001 if t.is_floating_point() else t for t in run(*tensors)]

    assert "error" in failures(Rough(), "right answers")["right answers"]


def test_inputs_that_are_written() -> None:
    class Writing(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)

            def scribble(*tensors: Any) -> Any:
                results = [r.clone() for r in run(*tensors)]
                tensors[0].detach().mul_(2)
                return results

            return scribble

    assert "right answers" in failures(Writing(), "right answers")


def test_results_in_buffers_that_are_used_again() -> None:
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

    assert "changed an earlier result" in failures(Frugal(), "results are fresh")["results are fresh"]


def test_weights_kept_from_the_first_call() -> None:
    class Frozen(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)
            bound = [n.meta.get("bound") for n in graph.nodes if n.op == "placeholder"]
            first: list[Any] = []

            def frozen(*tensors: Any) -> Any:
                first[:] = first or [t.detach().clone() for t in tensors]
                return run(*(old if b else new for b, old, new in zip(bound, first, tensors, strict=True)))

            return frozen

    assert "changed weights" in failures(Frozen(), "changed weights")


def test_a_cache_key_that_forgets_literals() -> None:
    class Hasty(Plain):
        def __init__(self) -> None:
            self.made: dict[Any, Any] = {}

        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            key = tuple(str(n.target) for n in graph.nodes)
            return self.made.setdefault(key, super().compile(graph, example_inputs, options))

    assert "cache keys" in failures(Hasty(), "cache keys")


def test_layouts_that_are_ignored() -> None:
    class Dense(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)

            def flat(*tensors: Any) -> Any:
                wrong = [t.as_strided(t.shape, torch.empty(t.shape).stride()) for t in tensors]
                return run(*wrong)

            return flat

    assert "layouts" in failures(Dense(), "layouts")


def test_state_shared_between_threads() -> None:
    class Shared(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)
            busy = threading.Lock()

            def guarded(*tensors: Any) -> Any:
                if not busy.acquire(blocking=False):
                    raise RuntimeError("two calls at once")
                try:
                    time.sleep(0.001)
                    return run(*tensors)
                finally:
                    busy.release()

            return guarded

    assert list(failures(Shared(), "right answers", "threads")) == ["threads"]


def test_an_output_too_few() -> None:
    class Short(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)
            return lambda *tensors: run(*tensors)[:-1]

    assert "right answers" in failures(Short(), "right answers")


def test_no_elements_and_no_dimensions() -> None:
    class Picky(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)

            def checked(*tensors: Any) -> Any:
                if any(t.numel() == 0 or t.dim() == 0 for t in tensors):
                    raise ValueError("an empty tensor, or a scalar")
                return run(*tensors)

            return checked

    found = failures(Picky(), "empty graphs", "scalars", "dynamic shapes")
    assert set(found) == {"empty graphs", "scalars", "dynamic shapes"}


def test_special_numbers_that_get_lost() -> None:
    class Clean(Plain):
        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            run = super().compile(graph, example_inputs, options)
            return lambda *tensors: [
                torch.nan_to_num(r) if r.is_floating_point() and r.dim() == 2 else r for r in run(*tensors)
            ]

    assert "special numbers" in failures(Clean(), "special numbers")


def test_a_getitem_it_does_not_expect() -> None:
    class Single(Plain):
        takes = (*Plain.takes, aten.topk.default, operator.getitem)

        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            if any(n.target is operator.getitem for n in graph.nodes):
                raise NotImplementedError("several outputs")
            return super().compile(graph, example_inputs, options)

    assert "several outputs" in failures(Single(), "right answers")["right answers"]
