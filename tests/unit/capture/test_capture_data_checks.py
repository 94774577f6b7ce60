"""Checks of data by torch's own functions end no region, and raise what eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lampwork

Tensor = torch.Tensor
ones = torch.ones


def checked(x: Tensor, n: Tensor) -> Tensor:
    y = x * 2
    torch._check_tensor_all(x > 0)
    torch._check_tensor_all_with(ValueError, n * 2 == 6, lambda: f"n is {n}")
    return y + 1


def by_name(x: Tensor, n: Tensor) -> Tensor:
    torch._check_tensor_all_with(error_type=KeyError, cond=n == 3, message=lambda: "three")
    torch._check_tensor_all(cond=x > 0, message=lambda: "positive")
    return x + n


def after_a_write(x: Tensor, n: Tensor) -> Tensor:
    x.add_(1)
    torch._check_tensor_all(x > 1)
    return x.mul_(n) + 1


def told_apart(x: Tensor, n: Tensor) -> Tensor:
    """As libraries do: with the message where nothing compiles."""
    if torch.compiler.is_compiling():
        torch._check_tensor_all(n * x.shape[0] == x.numel())
    else:
        torch._check_tensor_all_with(ValueError, n * x.shape[0] == x.numel(), lambda: f"{n} does not fit")
    return x + n


def last(x: Tensor, n: Tensor) -> None:
    torch._check_tensor_all((x > 0) & (n == 3))


GOOD = [(ones(4, 3), torch.tensor(3)), (torch.rand(4, 3) + 0.5, torch.tensor(3))]
BAD = [(-ones(4, 3), torch.tensor(3)), (ones(4, 3), torch.tensor(4)), (-ones(4, 3), torch.tensor(5))]


def outcome(fn: Callable[..., Any], x: Tensor, n: Tensor) -> tuple[Any, Tensor]:
    x = x.clone()
    try:
        return fn(x, n.clone()), x
    except Exception as error:  # noqa: BLE001  (compared)
        return (type(error), str(error)), x


@pytest.mark.parametrize("fn", [checked, by_name, after_a_write, told_apart, last])
def test_no_region_ends(fn: Callable[..., Any]) -> None:
    before = lampwork.stats()["breaks"]
    compiled = lampwork.compile(fn)
    for given in (*GOOD, *BAD, *GOOD):
        (got, left), (wanted, kept) = outcome(compiled, *given), outcome(fn, *given)
        assert torch.equal(left, kept)
        assert torch.equal(got, wanted) if isinstance(wanted, Tensor) else got == wanted
    assert lampwork.stats()["breaks"] == before
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("fn", [checked, by_name, after_a_write])
def test_other_backends_check_as_well(fn: Callable[..., Any]) -> None:
    compiled = lampwork.compile(fn, backend="eager", options={"strict": False})
    for given in (*GOOD, *BAD, *GOOD):
        (got, left), (wanted, kept) = outcome(compiled, *given), outcome(fn, *given)
        assert torch.equal(left, kept)
        assert torch.equal(got, wanted) if isinstance(wanted, Tensor) else got == wanted


def test_nothing_to_check() -> None:
    compiled = lampwork.compile(checked, dynamic=False)
    assert compiled(ones(0, 3), torch.tensor(3)).shape == (0, 3)
    assert torch.equal(compiled(ones(2, 3), torch.tensor(3)), ones(2, 3) * 3)


def test_gradients() -> None:
    def fn(x: Tensor, n: Tensor) -> Tensor:
        torch._check_tensor_all(x > 0)
        return (x * n).square().sum()

    compiled, x = lampwork.compile(fn), ones(4, 3, requires_grad=True)
    compiled(x, torch.tensor(3)).backward()
    assert torch.equal(x.grad, torch.full((4, 3), 18.0))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(-ones(4, 3, requires_grad=True), torch.tensor(3))


@pytest.mark.parametrize("wrong", [ones(3), 1, True, None, [True]], ids=repr)
def test_what_is_no_condition_is_refused_as_by_eager(wrong: Any) -> None:
    def fn(x: Tensor) -> Tensor:
        torch._check_tensor_all(wrong)
        return x + 1

    with pytest.raises(TypeError) as expected:
        fn(ones(2))
    with pytest.raises(TypeError) as raised:
        lampwork.compile(fn)(ones(2))
    assert str(raised.value) == str(expected.value)


def test_a_tensor_from_outside() -> None:
    held = torch.tensor([True, True])

    def fn(x: Tensor) -> Tensor:
        torch._check_tensor_all(held)
        return x + 1

    compiled = lampwork.compile(fn)
    assert torch.equal(compiled(ones(2)), ones(2) + 1)
    held[1] = False
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(ones(2))
    held[1] = True
    assert torch.equal(compiled(ones(2)), ones(2) + 1)
