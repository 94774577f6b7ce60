"""Sizes left open are confined to those that eager takes: no rule has to say which of them agree."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lampwork
from lampwork.graph.open_sizes import confine_sizes
from lampwork.graph.shapes import infer
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.graph.symbols import Scope

aten = torch.ops.aten
CPU = torch.device("cpu")


def opened(scope: Scope, *sizes: int) -> TensorSpec:
    """A row-major tensor each of whose sizes is a symbol of its own."""
    shape = tuple(scope.symbol(size) for size in sizes)
    return TensorSpec(shape, contiguous_strides(shape), torch.float32, CPU)


def conditions(scope: Scope) -> list[str]:
    return [str(condition) for condition in scope.conditions]


def test_sizes_that_have_to_agree_are_equal() -> None:
    scope = Scope()
    x, weight, bias = opened(scope, 2, 6, 6), opened(scope, 6), opened(scope, 6)
    infer(
        aten.group_norm.default, (x, 2, weight, bias)
    )  # the rule says that 2 divides the channels, and no more
    confine_sizes(aten.group_norm.default, (x, 2, weight, bias), {}, scope)
    assert {name for c in scope.conditions for name in c.index.symbols()} == {"s1", "s3", "s4"}
    assert all(str(index) == "s1" for index in scope.equal.values()) and set(scope.equal) == {"s3", "s4"}
    # Batch and rows stay open, though the latter are as many as the channels.
    assert not any(name in "".join(conditions(scope)) for name in ("s0", "s2"))


def test_sizes_that_need_not_agree_stay_open() -> None:
    scope = Scope()
    confine_sizes(aten.relu.default, (opened(scope, 4, 4, 4),), {}, scope)
    confine_sizes(
        aten.embedding.default, (opened(scope, 4, 4), TensorSpec((4,), (1,), torch.int64, CPU)), {}, scope
    )
    assert not scope.conditions


def test_a_size_that_has_to_be_a_number_is_fixed() -> None:
    scope = Scope()
    x, weight = opened(scope, 2, 3, 6), opened(scope, 6)
    confine_sizes(aten.rms_norm.default, (x, [6], weight), {}, scope)
    assert {"s2 == 6", "s3 == 6"} <= set(conditions(scope))
    assert "s0" not in "".join(conditions(scope)) and "s1" not in "".join(conditions(scope))


def test_what_was_tried_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = Scope()
    x, weight = opened(scope, 2, 6, 6), opened(scope, 6)
    confine_sizes(aten.group_norm.default, (x, 2, weight), {}, scope)
    confine_sizes(aten.group_norm.default, (x, 2, weight), {}, scope)
    monkeypatch.setattr("lampwork.graph.open_sizes.takes", lambda *_: pytest.fail("asked eager again"))
    confine_sizes(aten.group_norm.default, (x, 2, weight), {}, scope)


def test_a_stride_follows_its_size() -> None:
    """The condition that a stride symbol equals a size does not hide that the size has to agree with another."""
    scope = Scope()
    x, weight = opened(scope, 2, 3, 6), opened(scope, 3, 6)
    stride = scope.symbol(6)
    scope.require("==", stride.index - weight.shape[1].index)
    confine_sizes(aten.layer_norm.default, (x, list(x.shape[1:]), weight), {}, scope)
    values = {**scope.hints, "s4": 7, str(stride): 7}
    assert not all(condition.holds(values) for condition in scope.conditions) or "s4" in scope.equal


def batch_norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, var)


R = torch.randn
CALLS: dict[str, tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]] = {
    "group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        [
            (R(2, 6, 5), R(6), R(6)),
            (R(2, 6, 5), R(7), R(7)),
            (R(2, 8, 5), R(8), R(8)),
            (R(2, 8, 5), R(6), R(6)),
        ],
    ),
    "batch_norm": (
        batch_norm,
        [(R(2, 6, 5), R(6), R(6) ** 2), (R(2, 6, 5), R(7), R(7) ** 2), (R(2, 4, 5), R(6), R(6) ** 2)],
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (3, 6), w, b),
        [(R(2, 3, 6), R(3, 6), R(3, 6)), (R(2, 3, 6), R(3, 7), R(3, 7)), (R(9, 3, 6), R(3, 6), R(2, 6))],
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), [(R(2, 6), R(6)), (R(2, 6), R(7)), (R(3, 6), R(6))]),
    "attention": (
        F.scaled_dot_product_attention,
        [
            # Of four dimensions, eager takes more values than keys, and reads past the end of the keys.
            (R(4, 5, 6),) * 3,
            (R(4, 5, 6), R(4, 5, 6), R(4, 7, 6)),
            (R(4, 5, 6), R(4, 5, 7), R(4, 5, 6)),
        ],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_eager_refuses_is_refused(name: str) -> None:
    """Whichever call comes first, with sizes open."""
    fn, calls = CALLS[name]
    for first, then in itertools.product(calls, calls):
        compiled = lampwork.compile(fn, dynamic=True, options={"strict": False})
        for args in (first, then):
            try:
                want = fn(*args)
            except RuntimeError as error:
                with pytest.raises(RuntimeError) as raised:
                    compiled(*args)
                assert str(raised.value) == str(error)
            else:
                torch.testing.assert_close(compiled(*args), want)
