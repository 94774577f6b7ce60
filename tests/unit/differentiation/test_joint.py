"""Joint graphs hold what autograd computes, and their halves compute it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import lampwork
from lampwork.differentiation.joint import Asked, Joint, dense, record_joint
from lampwork.differentiation.segments import Segments, cut, requires_grad
from lampwork.differentiation.split import Split, split
from lampwork.errors import UnsupportedOpError
from lampwork.graph.interpret import run_graph
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec


def recorded(fn: Callable[..., Any], *inputs: Tensor) -> fx.Graph:
    with Recorder() as rec:
        result = fn(*(rec.input(tensor, f"x{i}") for i, tensor in enumerate(inputs)))
    return rec.finish(list(result) if isinstance(result, (tuple, list)) else [result]).graph


def asked_of(segments: Segments, gradients: Sequence[Tensor | None]) -> dict[int, Asked]:
    """All gradients, of gradients of all results. `gradients`: eager's, of the inputs."""
    specs = [None if gradient is None else TensorSpec.of(gradient) for gradient in gradients]
    return {
        segment.number: Asked(
            tuple(dense(node.meta["val"]) if requires_grad(node) else None for node in segment.results),
            (False,) * len(segment.results),
            (True,) * len(segment.sources),
            tuple(
                specs[number_of(source)] if source.op == "placeholder" else spec_of(source)
                for source in segment.sources
            ),
        )
        for segment in segments.segments
    }


def number_of(placeholder: fx.Node) -> int:
    return int(placeholder.name[1:].partition("_")[0])


def spec_of(node: fx.Node) -> TensorSpec:
    return replace(node.meta["val"], requires_grad=False)


def eager(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
    """The first result, and the gradients of the sum of all."""
    result = fn(*inputs)
    results = list(result) if isinstance(result, tuple) else [result]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results]))
    return results[0], [next(found) if tensor.requires_grad else None for tensor in inputs]


def joint_of(fn: Callable[..., Any], *inputs: Tensor) -> tuple[Joint, Segments]:
    graph = recorded(fn, *inputs)
    segments = cut(graph)
    return record_joint(graph, segments, segments.results, asked_of(segments, eager(fn, inputs)[1])), segments


def gradients(halves: Split, inputs: Sequence[Tensor], segments: Segments) -> tuple[list[Tensor], list[Any]]:
    """The results of forward, and the gradients that the one segment's backward gives of gradients that are one."""
    (segment,) = segments.segments
    n_results = len(segments.results)
    plain = [tensor.detach() for tensor in inputs]
    made = run_graph(halves.forward, [plain[number] for number in halves.inputs])
    results, saved = made[:n_results], made[n_results:]
    backward = halves.backwards[segment.number]
    tangents = [torch.ones_like(results[segments.results.index(node)]) for node in segment.results]
    tables = {"kept": plain, "saved": saved, "tangent": tangents}
    found = run_graph(backward.graph, [tables[given.kind][given.number] for given in backward.inputs])
    return results, [None if number < 0 else found[number] for number in backward.gradients]


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (
        lambda x, w, b: torch.tanh(F.linear(x, w, b)).square(),
        lambda: (leaf(5, 4), leaf(3, 4), leaf(3)),
    ),
    "norm": (lambda x, w, b: F.gelu(F.layer_norm(x, (4,), w, b)), lambda: (leaf(5, 4), leaf(4), leaf(4))),
    "softmax": (lambda x, w: torch.softmax(x @ w, -1) @ w.t(), lambda: (leaf(2, 4), leaf(4, 6))),
    "convolution": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        lambda: (leaf(2, 3, 5, 5), leaf(4, 3, 3, 3)),
    ),
    "views": (lambda x: (x.t()[1:] * x.t()[:-1]).reshape(-1), lambda: (leaf(3, 5),)),
    "loss": (F.cross_entropy, lambda: (leaf(3, 4), torch.tensor([1, 0, 2]))),
    "used twice": (lambda x: x * x.sin() + x, lambda: (leaf(7),)),
    "embedding": (lambda w, i: F.embedding(i, w), lambda: (leaf(4, 3), torch.tensor([1, 1, 0]))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_halves_give_eagers_results_and_gradients(name: str) -> None:
    fn, make = PROGRAMS[name]
    inputs = make()
    joint, segments = joint_of(fn, *inputs)
    results, found = gradients(split(joint, frozenset(joint.placeholders)), inputs, segments)
    expected, wanted = eager(fn, inputs)
    torch.testing.assert_close(results[0], expected.detach())
    for source, ours in zip(segments.segments[0].sources, found, strict=True):
        torch.testing.assert_close(ours, wanted[number_of(source)])


def test_what_is_cheap_is_computed_again_and_products_are_not() -> None:
    joint, _ = joint_of(lambda x, w, v: F.gelu(x @ w) @ v, leaf(8, 4), leaf(4, 6), leaf(6, 3))
    halves = split(joint, frozenset(joint.placeholders))
    assert list(halves.saved) == ["mm"]
    assert halves.again == ("gelu",)


def test_masks_are_saved_as_booleans() -> None:
    joint, _ = joint_of(lambda x: F.dropout(x * x, 0.5), torch.randn(64, requires_grad=True))
    halves = split(joint, frozenset(joint.placeholders))
    assert [spec.dtype for spec in halves.saved.values()] == [torch.bool]
    draws = [node for node in halves.forward.nodes if node.meta.get("random")]
    assert len(draws) == 1
    assert not any(node.meta.get("random") for b in halves.backwards.values() for node in b.graph.nodes)


def test_what_is_computed_again_stands_just_before_its_use() -> None:
    def deep(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights:
            x = F.gelu(x @ weight)
        return x

    joint, _ = joint_of(deep, leaf(4, 4), *(leaf(4, 4) for _ in range(4)))
    halves = split(joint, frozenset(joint.placeholders))
    order = [node for node in halves.backwards[0].graph.nodes if node.op == "call_function"]
    for node in order:
        if node.name.startswith("gelu") and "backward" not in node.name:
            first = min(order.index(user) for user in node.users)
            assert first - order.index(node) <= 3, [n.name for n in order]


def test_a_result_is_saved_in_place_of_what_is_computed_from_it() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y, torch.sigmoid(y * 2).sum()

    joint, segments = joint_of(fn, leaf(4, 4), leaf(4, 4))
    halves = split(joint, frozenset(joint.placeholders))
    assert halves.exposed == (0,)
    assert len(segments.segments) == 2


def test_backwards_are_only_of_what_was_asked_for() -> None:
    inputs = leaf(4, 4), leaf(4, 4)
    graph = recorded(lambda x, w: (x @ w).relu(), *inputs)
    segments = cut(graph)
    (asked,) = asked_of(segments, inputs).values()
    asked = replace(asked, needed=(True, False), gradients=(asked.gradients[0], None))
    joint = record_joint(graph, segments, segments.results, {0: asked})
    assert joint.stretches[0].gradients[1] is None
    assert len([n for n in joint.graph.nodes if n.target is torch.ops.aten.mm.default]) == 2


def test_gradients_that_are_not_laid_out_as_eagers_are_refused() -> None:
    graph = recorded(lambda x: x * 2, leaf(3, 4))
    segments = cut(graph)
    (asked,) = asked_of(segments, [leaf(3, 4)]).values()
    spec = TensorSpec((3, 4), (1, 3), torch.float64, torch.device("cpu"))
    with pytest.raises(UnsupportedOpError, match="is recorded as"):
        record_joint(graph, segments, segments.results, {0: replace(asked, gradients=(spec,))})


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3), (3, 1), (3, 1)),
        ((2, 3), (1, 2), (1, 2)),
        ((2, 3), (0, 0), (3, 1)),
        ((2, 3), (6, 2), (3, 1)),
        ((2, 3, 4, 5), (60, 1, 15, 3), (60, 1, 15, 3)),
        ((), (), ()),
        ((0, 3), (3, 1), (3, 1)),
    ],
)
def test_dense(shape: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert dense(TensorSpec(shape, strides, torch.float32, torch.device("cpu"))).strides == expected


def test_what_may_raise_runs_though_nobody_needs_it() -> None:
    def checked(x: Tensor, labels: Tensor) -> Tensor:
        F.cross_entropy(x, labels)
        return x.exp()

    compiled = lampwork.compile(checked)
    for _ in range(3):
        x = torch.randn(4, 3, requires_grad=True)
        compiled(x, torch.tensor([0, 1, 1, 2])).sum().backward()
        with pytest.raises(IndexError, match="Target 7 is out of bounds"):
            compiled(x, torch.tensor([0, 1, 7, 2]))
