"""What is put or added at places from data, against eager bit by bit: duplicates, special values, strides, errors."""

from __future__ import annotations

import pytest
import torch
from bits import assert_as_eager, calls
from hypothesis import given, settings
from hypothesis import strategies as st

import lampwork

torch.manual_seed(11)
T = torch.tensor
X = torch.randn(7, 5)
ROWS = T([3, 0, 3, 6, 3, 1])
SOURCE = torch.randn(6, 5)
PLACES = torch.randint(0, 7, (6, 5))
COLUMNS = torch.randint(0, 5, (7, 4))

OWN = {
    "index_add": (lambda x, i, s: x.index_add(0, i, s), (X, ROWS, SOURCE)),
    "index_add in place": (lambda x, i, s: x.index_add_(0, i, s), (X, ROWS, SOURCE)),
    "index_add in the middle": (
        lambda x, i, s: x.index_add(1, i, s),
        (torch.randn(2, 3, 4), T([2, 2, 0, 2]), torch.randn(2, 4, 4)),
    ),
    "index_add of numbers": (lambda x, i, s: x.index_add(0, i, s), (X[:, 0], ROWS, SOURCE[:, 0])),
    "index_add to zeros": (lambda i, s: torch.zeros(9, 5).index_add_(0, i, s), (ROWS, SOURCE)),
    "index_add to ones": (lambda i, s: s.new_full((9, 5), 1.5).index_add(0, i, s), (ROWS, SOURCE)),
    "index_add of what is computed": (
        lambda x, i, s: (x * 2).index_add(0, i // 2, s * 3) + 1,
        (X, ROWS, SOURCE),
    ),
    "index_add of integers": (
        lambda x, i, s: x.index_add(0, i, s),
        (X.mul(9).long(), ROWS, SOURCE.mul(9).long()),
    ),
    "index_put": (lambda x, i, s: x.index_put((i,), s), (X, ROWS, SOURCE)),
    "index_put adds": (lambda x, i, s: x.index_put((i - 7,), s, accumulate=True), (X, ROWS, SOURCE)),
    "index_put at two": (
        lambda x, i, j, s: x.index_put((i, j), s, accumulate=True),
        (X, ROWS, T([0, -1, 0, 2, 0, 2]), SOURCE[:, 0]),
    ),
    "index_put broadcast": (
        lambda x, i, j, s: x.index_put((i[:, None], j), s),
        (X, T([1, 3, 3]), T([0, 4]), T(2.0)),
    ),
    "index_put of numbers": (
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        (X[:, 0], PLACES, SOURCE),
    ),
    "index_put of a row": (lambda x, i, s: x.index_put((i,), s[0]), (X, PLACES, SOURCE)),
    "assignment": (lambda x, i, s: _assigned(x, i, s), (X, T([1, 3]), SOURCE[:2])),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (X, PLACES, SOURCE)),
    "scatter_add of more": (lambda x, i, s: x.scatter_add(0, i, s), (X, PLACES[:3], SOURCE)),
    "scatter_add of rows": (
        lambda x, i, s: x.scatter_add(0, i[:, None].expand_as(s), s),
        (X, ROWS, SOURCE),
    ),
    "scatter_add in the middle": (
        lambda x, i, s: x.scatter_add(-2, i, s),
        (torch.randn(2, 3, 4), torch.randint(0, 3, (2, 5, 4)), torch.randn(2, 5, 4)),
    ),
    "scatter_add to zeros": (lambda i, s: torch.zeros(9, 5).scatter_add_(0, i, s), (PLACES, SOURCE)),
    "sums": (lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), (X, PLACES, SOURCE)),
    "products": (lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), (X, PLACES, SOURCE)),
    "maxima": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), (X, PLACES, SOURCE)),
    "minima": (lambda x, i, s: x.scatter_reduce(1, i, s[:, :4], "amin"), (SOURCE, COLUMNS[:6], SOURCE)),
    "maxima of numbers": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), (X[:, 0], ROWS, SOURCE[:, 0])),
    "a value": (lambda x, i: x.scatter(1, i, 2.5), (X, COLUMNS)),
    "a value of integers": (lambda x, i: x.scatter(-1, i, 3), (X.long(), COLUMNS)),
    "one hot": (lambda i: torch.zeros(7, 5).scatter_(1, i, 1), (COLUMNS[:, :1],)),
}
ATEN = {
    "a factor": (lambda x, i, s: x.index_add(0, i, s, alpha=2), (X, ROWS, SOURCE)),
    "half precision": (lambda x, i, s: x.index_add(0, i, s), (X.half(), ROWS, SOURCE.half())),
    "a dimension between": (lambda x, i: _assigned(x, (slice(None), i), 3.0), (X, T([1, 2]))),
    "a mean": (lambda x, i, s: x.scatter_reduce(0, i, s, "mean"), (X, PLACES, SOURCE)),
    "without what is there": (
        lambda x, i, s: x.scatter_reduce(0, i, s, "sum", include_self=False),
        (X, PLACES, SOURCE),
    ),
    "along rows": (lambda x, i, s: x.scatter_add(1, i, s), (X, COLUMNS, torch.randn(7, 4))),
    "index_add of columns": (lambda x, i, s: x.index_add(-1, i, s), (X, T([4, 4, 0]), torch.randn(7, 3))),
    "index_add transposed": (lambda x, i, s: x.t().index_add(1, i, s.t()), (X, ROWS, SOURCE)),
    "nothing": (lambda x, i, s: x.index_add(0, i, s), (X, ROWS[:0], SOURCE[:0])),
}
BOTH = OWN | ATEN


def _assigned(x, i, s):
    x = x + 1
    x[i] = s
    return x


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("dynamic", [None, True])
def test_as_eager(name, dynamic):
    fn, inputs = BOTH[name]
    assert_as_eager(fn, *inputs, dynamic=dynamic)


@pytest.mark.parametrize("name", BOTH)
def test_who_is_called(name):
    fn, inputs = BOTH[name]
    namespaces = {target.partition("::")[0] for target in calls(fn, *inputs)}
    assert namespaces == {"lampwork" if name in OWN else "aten"}


@pytest.mark.parametrize("name", [name for name in OWN if name != "one hot"])
def test_special_values(name):
    fn, inputs = OWN[name]
    for number in (float("nan"), float("inf"), -0.0):
        special = [
            x.masked_fill(torch.rand(x.shape) < 0.4, number) if x.is_floating_point() else x for x in inputs
        ]
        assert_as_eager(fn, *special)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("bad", [99, -99])
def test_out_of_range(name, bad):
    fn, inputs = OWN[name]
    places = next(n for n, x in enumerate(inputs) if x.dtype is torch.int64 and (n or len(inputs) < 3))
    given = [x.clone() for x in inputs]
    given[places].view(-1)[-1] = bad
    assert_as_eager(fn, *given)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random(data):
    rank = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 6)) for _ in range(rank)]
    dim = data.draw(st.integers(-rank, rank - 1))
    count = data.draw(st.integers(0, 9))
    wanted = [*shape]
    wanted[dim] = count
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
    x, source = torch.randn(shape).mul(9).to(dtype), torch.randn(wanted).mul(9).to(dtype)
    place, rows = torch.randint(0, shape[dim], wanted), torch.randint(0, shape[dim], (count,))
    assert_as_eager(lambda x, i, s: x.index_add(dim, i, s), x, rows, source)
    assert_as_eager(lambda x, i, s: x.scatter_add(dim, i, s), x, place, source)
    reduce = data.draw(st.sampled_from(["sum", "prod", "amax", "amin"]))
    assert_as_eager(lambda x, i, s: x.scatter_reduce(dim, i, s, reduce), x, place, source)
    assert_as_eager(lambda x, i: x.scatter(dim, i, 2), x, place)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads):
    x, source = torch.randn(300, 64), torch.randn(4000, 64)
    rows, places = torch.randint(0, 300, (4000,)), torch.randint(0, 300, (4000, 64))
    expected = x.index_add(0, rows, source), x.scatter_add(0, places, source)
    compiled = lampwork.compile(
        lambda x, i, j, s: (x.index_add(0, i, s), x.scatter_add(0, j, s)), options={"strict": True}
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for found, wanted in zip(compiled(x, rows, places, source), expected, strict=True):
            assert torch.equal(found, wanted)
    finally:
        torch.set_num_threads(before)


def test_gradients():
    x, source = X.clone().requires_grad_(), SOURCE.clone().requires_grad_()
    lampwork.compile(lambda x, i, s: x.index_add(0, i, s).square().sum())(x, ROWS, source).backward()
    found = x.grad, source.grad
    x.grad = source.grad = None
    x.index_add(0, ROWS, source).square().sum().backward()
    assert torch.equal(found[0], x.grad) and torch.equal(found[1], source.grad)
