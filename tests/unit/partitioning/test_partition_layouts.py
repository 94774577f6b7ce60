"""What parts give to each other and to the caller has the place and the strides that the graph says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork
from lampwork.graph.interpret import run_graph

aten = torch.ops.aten


class Takes:
    """Takes one operator, and lays its results out in its own way."""

    name = "takes"

    def __init__(self, operator: Any, lay_out: Callable[[Tensor], Tensor] = lambda t: t) -> None:
        self.operator, self.lay_out = operator, lay_out

    def supports(self, node: Any) -> bool:
        return node.target is self.operator

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        return lambda *tensors: [self.lay_out(result) for result in run_graph(graph, tensors)]


def alike(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one.stride() == other.stride()


def one_view(x: Tensor) -> tuple[Tensor, ...]:
    v = x.view(6)
    return v, v + 1


def two_views(x: Tensor) -> tuple[Tensor, ...]:
    v = x.view(6)
    return v, x.t(), v + 1


def view_twice(x: Tensor) -> tuple[Tensor, ...]:
    v = x.view(6)
    return v, v, v + 1, v.view(3, 2), v + 2


@pytest.mark.parametrize("rest", ["native", "eager"])
@pytest.mark.parametrize("program", [one_view, two_views, view_twice])
def test_a_view_is_given_to_the_caller_and_to_another_part(program: Any, rest: str) -> None:
    compiled = lampwork.compile(program, backend=[Takes(aten.add.Tensor), rest])
    for _ in range(4):
        x = torch.randn(2, 3)
        results = compiled(x)
        alike(results, program(x))
        results[0].fill_(3)
        assert (x == 3).all()


def test_a_constant_is_given_to_the_caller_and_to_another_part() -> None:
    weight = torch.randn(3, 3)

    def program(x: Tensor) -> tuple[Tensor, ...]:
        w = weight.exp()
        return w, x + w, x.t(), w.t()

    compiled = lampwork.compile(program, backend=[Takes(aten.add.Tensor), "native"])
    for _ in range(4):
        x = torch.randn(3, 3)
        torch.testing.assert_close(compiled(x), program(x))
        weight.mul_(0.5)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda t: t.contiguous().clone(),
    "columns": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t.clone(),
    "with holes": lambda t: torch.stack([t, t], -1)[..., 0],
    "with a negative bit": lambda t: torch._neg_view(-t),
    "expanded": lambda t: t[:1].expand(t.shape) if bool((t == t[:1]).all()) else t,
}


def expanded(x: Tensor) -> tuple[Tensor, ...]:
    y = (x + 0).sum(1, keepdim=True).expand(4, 6)
    return y * 2, y


def windows(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.relu(x).unfold(1, 3, 1)
    return y * 2, y


def last_of_several(x: Tensor) -> tuple[Tensor, ...]:
    y = (x + 1)[:, :1].expand(3, 4, 6)[1:]
    return y.exp(), y


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("program", "operator"),
    [
        (expanded, aten.expand.default),
        (windows, aten.unfold.default),
        (windows, aten.relu.default),
        (last_of_several, aten.expand.default),
    ],
)
def test_strides_are_those_that_the_next_part_was_compiled_for(
    program: Any, operator: Any, layout: str
) -> None:
    compiled = lampwork.compile(program, backend=[Takes(operator, LAYOUTS[layout]), "native"])
    for _ in range(4):
        x = torch.randn(4, 6)
        got, want = compiled(x), program(x)
        torch.testing.assert_close(got, want)
        assert [t.stride() for t in got] == [t.stride() for t in want]
    assert ": takes, " in str(compiled.stages.partition)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_what_is_expanded(layout: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp().sum(1, keepdim=True) * y).sum()

    compiled = lampwork.compile(program, backend=[Takes(aten.expand.default, LAYOUTS[layout]), "native"])
    for _ in range(4):
        x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
        (want,) = torch.autograd.grad(program(x, y), [x])
        (got,) = torch.autograd.grad(compiled(x, y), [x])
        torch.testing.assert_close(got, want)
