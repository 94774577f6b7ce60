"""Writes inside a region that autograd is to see, or not to see: gradients, histories and errors are eager's."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import lampwork
from lampwork.runtime import autograd

pytestmark = pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")


@pytest.fixture(autouse=True, params=["nodes of our own", "compiled backward"])
def strategy(request, monkeypatch):
    """Each test runs with a first backward that is eager's, and with backwards that are compiled before the first."""
    monkeypatch.setattr(autograd, "AHEAD", request.param == "compiled backward")


def outcome(fn, x):
    """The results of a call and the gradient that comes of them, or what is raised."""
    x = x.detach().requires_grad_()
    try:
        results = [result for result in tree_leaves(fn(x)) if isinstance(result, torch.Tensor)]
        for result in results:
            if result.requires_grad:
                result.cos().sum().backward(retain_graph=True)
    except RuntimeError as error:
        return [str(error).partition(": [")[0]]  # the rest names the operator and counts the writes
    kept = [result.detach() for result in results]
    return [*kept, x.grad, [(r.requires_grad, r.is_leaf, r._is_view(), r.stride()) for r in results]]


def check(fn, x):
    compiled = lampwork.compile(fn, options={"strict": False})
    for a, b in zip(outcome(fn, x), outcome(compiled, x), strict=True):
        torch.testing.assert_close(b, a) if isinstance(a, torch.Tensor) else None
        assert isinstance(a, torch.Tensor) or a == b


LAYOUTS = {
    "row-major": torch.arange(12.0).view(3, 4),
    "transposed": torch.arange(12.0).view(4, 3).t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.as_strided((2,), (1,), 0),
        lambda y: y.as_strided((2, 2), (1, 3), 1),
        lambda y: y[1:].as_strided((2, 2), (3, 1)),
        lambda y: y.t()[1:, 1:],
        lambda y: y[1],
        lambda y: y[:, ::2],
        lambda y: y.diagonal(1),
        lambda y: y.unsqueeze(1).transpose(0, 2),
        lambda y: y.permute(1, 0).squeeze(),
        lambda y: y.unfold(0, 1, 1),
        lambda y: y.unsqueeze(0).expand(1, 3, 4),
        lambda y: y.movedim(0, 1).flatten()[2:],
    ],
)
def test_gradients_of_writes_through_views(view, layout):
    def fn(x):
        y = x * 2
        view(y).mul_(x[0, 1]).add_(1)
        return y

    check(fn, LAYOUTS[layout])


def reshaped_then_written(x):
    v = (x * 2).t_()
    with torch.no_grad():
        v.add_(1)
    return v


def reshaped_then_written_through_a_view(x):
    v = (x * 2).unsqueeze_(0)
    w = v[0, 1]
    with torch.no_grad():
        w.add_(1)
    return v, w


def reshaped_and_written_in_a_block(x):
    v = x * 2
    with torch.no_grad():
        v.unsqueeze_(0).add_(1)
    return v.requires_grad, v


def reshaped_in_a_block(x):
    v = x * 2
    with torch.no_grad():
        v.unsqueeze_(0)
    return v


def view_written_in_a_block(x):
    v = (x * 2)[1:]
    with torch.no_grad():
        v.t()[0].add_(1)
    return v


@pytest.mark.parametrize(
    "fn",
    [
        reshaped_then_written,
        reshaped_then_written_through_a_view,
        reshaped_and_written_in_a_block,
        reshaped_in_a_block,
        view_written_in_a_block,
    ],
)
def test_histories_of_what_is_written_without_gradients(fn):
    check(fn, LAYOUTS["row-major"])


W = torch.arange(9.0).view(3, 3).requires_grad_()


def saved_result_of_a_view(x):
    y = x * 2
    y[0].sigmoid_()
    y.add_(1)
    return y


def saved_result_of_a_view_of_a_view(x):
    y = x * 2
    y.view(-1)[:5].tanh_()
    y.add_(2)
    return y


def saved_argument_that_was_written(x):
    y = x * 2
    v = y[0]
    v.add_(1)
    z = v * v.sum()
    y.mul_(2)
    return y, z


def read_again_after_the_write(x):
    y = x * 2
    v = y[0]
    v.add_(1)
    y.mul_(2)
    return y, v * v.sum()


def saved_copy(x):
    y = torch.zeros(3, 4)
    y[1].copy_(x[0])
    z = y[1].exp() * y[1]
    y[0].add_(1)
    return z


def saved_and_reshaped(x):
    y = x[:, :3] * 1
    z = y @ W
    y.unsqueeze_(0)
    return z


def reshaped_and_saved(x):
    y = x[:, :3] * 1
    y.t_()
    return y @ y.t()


def saved_result_and_no_write_after(x):
    y = x * 2
    y.add_(1)
    y[0].sigmoid_()
    return y


@pytest.mark.parametrize(
    "fn",
    [
        saved_result_of_a_view,
        saved_result_of_a_view_of_a_view,
        saved_argument_that_was_written,
        read_again_after_the_write,
        saved_copy,
        saved_and_reshaped,
        reshaped_and_saved,
        saved_result_and_no_write_after,
    ],
)
def test_saved_values_that_the_region_overwrites(fn):
    check(fn, LAYOUTS["row-major"])


@pytest.mark.parametrize("write", [lambda y: y.add_(1), lambda y: y[0].mul_(2), lambda y: None])
def test_a_value_saved_through_a_view_is_overwritten_by_the_caller(write):
    def look(transform):
        def fn(x):
            y = x * 2
            y[0].sigmoid_()
            return y

        def made(x):
            y = transform(fn)(x)
            write(y)
            return y

        return made

    x = LAYOUTS["row-major"]
    for a, b in zip(outcome(look(lambda fn: fn), x), outcome(look(lampwork.compile), x), strict=True):
        torch.testing.assert_close(b, a) if isinstance(a, torch.Tensor) else None
        assert isinstance(a, torch.Tensor) or a == b


def without_gradient(x):
    return torch.histc(x, 3), torch.special.bessel_j0(x) * 2, x * 1


def seen_as_another_dtype(x):
    y = x * 2
    v = y.view(torch.bfloat16)
    return y, v, v * 2


def written_as_another_dtype(x):
    y = x * 2
    y.view(torch.int32).mul_(1)
    return y


@pytest.mark.parametrize("fn", [without_gradient, seen_as_another_dtype, written_as_another_dtype])
def test_what_has_no_gradient(fn):
    check(fn, LAYOUTS["row-major"])


def _overwrite(write):
    """A function that writes to what `exp` saved."""

    def program(x):
        y = x.exp()
        write(y, x)
        return y.tanh().square().mean()

    return program


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "write",
    [
        lambda y, x: y[0].copy_(x[1]),
        lambda y, x: y[:, :2].copy_(x[:, 1:3]),
        lambda y, x: y.__setitem__(0, 1),
        lambda y, x: y.__setitem__((slice(None), torch.tensor([0, 1])), 1),
        lambda y, x: y[0].zero_(),
        lambda y, x: y.t()[0].fill_(2),
        lambda y, x: y.zero_(),
        lambda y, x: y.add_(1),
    ],
    ids=["row", "columns", "item", "index", "zero of a row", "fill of a column", "zero", "add"],
)
def test_a_saved_tensor_that_is_overwritten_raises(layout, write):
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _overwrite(write)(LAYOUTS[layout].clone().requires_grad_()).backward()
    check(_overwrite(write), LAYOUTS[layout])


def test_what_is_not_saved_may_be_overwritten():
    def program(x):
        y, z = x * 2, torch.zeros(3, 4)
        y[0] = 1
        z[:, :2].copy_(x[:, :2].exp())
        return (y + z).tanh().square().mean()

    check(program, LAYOUTS["row-major"])


def _sums_in_the_memory_of_booleans(x):
    numbers = x.view(torch.uint8)
    numbers.cumsum_(-1)
    return numbers, x.sum(), ~x


def _numbers_for_booleans(x):
    y = x.clone()
    y.view(torch.int8)[1:].fill_(7)
    return y.view(torch.uint8) * 2, y.to(torch.int64), x.view(torch.int8).sum()


@pytest.mark.parametrize("program", (_sums_in_the_memory_of_booleans, _numbers_for_booleans))
def test_booleans_written_as_numbers(program):
    compiled = lampwork.compile(program)
    for _ in range(3):
        x = torch.rand(300) > 0.3
        given = x.clone()
        torch.testing.assert_close(compiled(given), program(x))
        assert torch.equal(given.view(torch.uint8), x.view(torch.uint8))
