"""Clipping of gradients in compiled functions, against eager and float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

import lampwork
from lampwork import _C

SHAPES = [(8,), (64, 33), (1,), (), (5, 3, 2, 2), (3000,), (40000,)]
INF, NAN = float("inf"), float("nan")


def parameters(dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> list[nn.Parameter]:
    numbers = torch.Generator().manual_seed(3)
    found = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for param in found:
        param.grad = torch.randn(param.shape, generator=numbers, dtype=torch.float64).to(dtype)
    return found


def assert_same(
    function: Callable[[list[nn.Parameter]], Any], params: list[nn.Parameter], *, exact: bool = False
) -> None:
    """A function compiled does what it does in eager: to gradients, with what it returns or raises."""
    theirs = copy.deepcopy(params)
    for mine, other in zip(params, theirs, strict=True):
        other.grad = copy.deepcopy(mine.grad)
    outcomes: list[Any] = []
    for run, given in ((lampwork.compile(function), params), (function, theirs)):
        try:
            outcomes.append(run(given))
        except (RuntimeError, TypeError, ValueError) as error:
            outcomes.append((type(error), str(error)))
    tight: dict[str, Any] = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-7}
    if isinstance(outcomes[1], Tensor):
        torch.testing.assert_close(*outcomes, equal_nan=True, **tight)
    else:
        assert outcomes[0] == outcomes[1]
    for mine, other in zip(params, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, equal_nan=True, **tight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", [2.0, 2, INF])
@pytest.mark.parametrize("most", [0.5, 1e6])
def test_norms_that_are_ours(dtype: torch.dtype, order: float, most: float) -> None:
    params = parameters(dtype)
    numbers = torch.cat([param.grad.flatten().double() for param in params if param.grad is not None])
    exact = torch.linalg.vector_norm(numbers, float(order))
    norm = _C.total_norm([param.grad for param in params if param.grad is not None], float(order))
    assert norm is not None and norm.dtype == dtype and norm.shape == ()
    torch.testing.assert_close(norm.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert_same(lambda given: clip_grad_norm_(given, most, order), params)


@pytest.mark.parametrize("order", [1.0, 3.0, 0.0, -INF, NAN])
def test_other_orders_are_eagers(order: float) -> None:
    assert_same(lambda given: clip_grad_norm_(given, 0.5, order), parameters(), exact=True)


@pytest.mark.parametrize("special", [NAN, INF, -INF, -0.0, 1e30, 1e-30, -NAN])
@pytest.mark.parametrize("order", [2.0, INF])
@pytest.mark.parametrize("error_if_nonfinite", [False, True])
@pytest.mark.parametrize("place", [0, 2999])
def test_special_numbers(special: float, order: float, error_if_nonfinite: bool, place: int) -> None:
    params = parameters(shapes=[(3000,), (4,)])
    assert params[0].grad is not None
    params[0].grad[place] = special
    assert_same(lambda given: clip_grad_norm_(given, 1.0, order, error_if_nonfinite), params)


@pytest.mark.parametrize("special", [1e19, 1e-25])
def test_squares_out_of_range(special: float) -> None:
    params = parameters(shapes=[(100,), (7,)])
    for param in params:
        param.grad = torch.full_like(param, special)
    assert_same(lambda given: clip_grad_norm_(given, 1.0), params)


@pytest.mark.parametrize("most", [0.0, -1.0, INF, NAN, 1])
def test_special_limits(most: float) -> None:
    assert_same(lambda given: clip_grad_norm_(given, most), parameters())
    assert_same(lambda given: clip_grad_value_(given, most), parameters())


@pytest.mark.parametrize("foreach", [None, False, True])
def test_values(foreach: bool | None) -> None:
    params = parameters()
    assert params[1].grad is not None
    params[1].grad[0, :4] = torch.tensor([NAN, INF, -INF, -0.0])
    for value in (0.5, 0.25, 2):
        assert_same(lambda given, value=value: clip_grad_value_(given, value, foreach), params, exact=True)


@pytest.mark.parametrize("shapes", [[], [(0,)], [(0,), (3,)], [(1,)]])
@pytest.mark.parametrize("order", [2.0, INF])
def test_few_elements(shapes: Any, order: float) -> None:
    assert_same(lambda given: clip_grad_norm_(given, 0.5, order), parameters(shapes=shapes))
    assert_same(lambda given: clip_grad_value_(given, 0.5), parameters(shapes=shapes))


def test_layouts_and_dtypes() -> None:
    def changed(change: Callable[[list[nn.Parameter]], None]) -> list[nn.Parameter]:
        params = parameters()
        change(params)
        return params

    def none(params: list[nn.Parameter]) -> None:
        params[1].grad = None

    def transposed(params: list[nn.Parameter]) -> None:
        params[1].grad = torch.randn(33, 64).t()

    def expanded(params: list[nn.Parameter]) -> None:
        params[1].grad = torch.ones(()).expand(64, 33)

    def sliced(params: list[nn.Parameter]) -> None:
        params[1].grad = torch.randn(64, 66)[:, ::2]

    def halves(params: list[nn.Parameter]) -> None:
        params[0] = parameters(torch.bfloat16, [(8,)])[0]

    def doubles(params: list[nn.Parameter]) -> None:
        params[0] = parameters(torch.float64, [(8,)])[0]

    def complexes(params: list[nn.Parameter]) -> None:
        params[0] = parameters(torch.complex64, [(8,)])[0]

    for change in (none, transposed, sliced, halves, doubles, complexes, expanded):
        for foreach in (None, False, True):
            assert_same(
                lambda given, foreach=foreach: clip_grad_norm_(given, 1.0, 2.0, False, foreach),
                changed(change),
            )
    for change in (none, transposed, sliced, halves, doubles):
        assert_same(lambda given: clip_grad_value_(given, 0.5), changed(change))


def test_a_gradient_that_is_there_twice() -> None:
    def twice(params: list[nn.Parameter]) -> Tensor:
        clip_grad_value_([*params, params[1]], 0.7)
        return clip_grad_norm_([*params, params[1]], 1.0)

    assert_same(twice, parameters())


def test_in_two_steps_and_of_one_tensor() -> None:
    def by_hand(params: list[nn.Parameter]) -> Tensor:
        norm = get_total_norm([param.grad for param in params if param.grad is not None])
        clip_grads_with_norm_(params, 0.5, norm)
        return norm

    assert_same(by_hand, parameters())
    assert_same(lambda params: clip_grad_norm_(params[1], 0.5), parameters())
    assert_same(lambda params: clip_grad_norm_((param for param in params), 0.5), parameters())


def test_bad_arguments() -> None:
    assert_same(lambda params: clip_grad_norm_(params, "much"), parameters())  # pyright: ignore
    assert_same(lambda params: clip_grad_norm_(params, 1.0, "more"), parameters())  # pyright: ignore
    assert_same(lambda params: clip_grad_norm_(params, 1.0, "inf"), parameters())  # pyright: ignore
    assert_same(lambda params: clip_grad_value_(params, "much"), parameters())  # pyright: ignore


def test_warnings_are_eagers() -> None:
    def nothing() -> Tensor:
        return clip_grad_norm_((param for param in ()), 1.0)

    for function in (lampwork.compile(nothing), nothing):
        with pytest.warns(UserWarning, match="no gradient clipping") as caught:
            function()
        assert caught[0].filename == __file__


def test_writes_are_seen() -> None:
    params = parameters(shapes=[(4,), (3,)])
    grads = [param.grad for param in params]
    for most in (0.1, 1e6):
        before = [grad._version for grad in grads if grad is not None]
        lampwork.compile(lambda most=most: clip_grad_norm_(params, most))()
        assert [grad._version for grad in grads if grad is not None] == [count + 1 for count in before]


def test_it_is_ours_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("total_norm", "clip_to_norm", "run_rows"):
        real = getattr(_C, name)
        monkeypatch.setattr(_C, name, lambda *args, name=name, real=real: called.append(name) or real(*args))
    params = parameters()

    def clips(model: list[nn.Parameter]) -> None:
        clip_grad_value_(model, 0.5)
        clip_grad_norm_(model, 1.0)

    compiled = lampwork.compile(clips)
    for _ in range(2):
        compiled(params)
    assert called == ["run_rows", "total_norm", "clip_to_norm"] * 2
    with lampwork.set_stance("force_eager"):
        compiled(params)
    assert len(called) == 6


def test_threads() -> None:
    params = parameters(shapes=[(100_000,), (3,), (70_001,)])
    grads = [param.grad for param in params if param.grad is not None]
    threads = torch.get_num_threads()
    try:
        norms: list[float] = []
        for number in (1, 3):
            torch.set_num_threads(number)
            found = _C.total_norm(grads, 2.0)
            assert found is not None
            norms.append(found.item())
        assert norms[0] == norms[1]
        assert math.isclose(
            norms[0], torch.cat([grad.double() for grad in grads]).norm().item(), rel_tol=1e-6
        )
        assert_same(lambda given: clip_grad_norm_(given, 1.0), params)
    finally:
        torch.set_num_threads(threads)
