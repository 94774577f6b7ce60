"""While graphs are noted for `lampwork.minify`, a program does what it does in eager PyTorch, and later nothing is left
of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lampwork
from lampwork.minifying.noting import noting


def adds(t):
    return t.add_(1)


def writes_around_a_break(x, kept):
    y = (x * 2).tanh_() * 1.5
    kept.append(y.detach())
    kept[0].mul_(2)
    print(end="")
    part = y.view(-1)
    part.mul_(3)
    print(end="")
    return y, part[0], torch.dropout(y * 1, 0.5, True)


def continues(y, w):
    y.mul_(w.detach())
    print(end="")
    return y.add_(1)


def a_write():
    z = torch.zeros(3)
    result = lampwork.compile(adds)(z)
    return z, result is z, z._version


def statistics():
    norm = nn.BatchNorm1d(4)
    lampwork.compile(norm)(torch.randn(5, 4)).sum().backward()
    return norm.num_batches_tracked, norm.running_mean, norm.weight.grad


def random_numbers():
    return lampwork.compile(nn.Dropout())(torch.ones(6)), torch.rand(2)


def breaks():
    compiled, x, kept, found = lampwork.compile(writes_around_a_break), torch.randn(2, 3), [], []
    x.requires_grad_()
    for _ in range(2):
        y, first, dropped = compiled(x, kept)
        (y.sum() + first + dropped.sum()).backward()
        found += [y, first, first._base is y, x.grad.clone(), kept[-1], y._version]
    return found


def a_history():
    w = torch.randn(3, requires_grad=True)
    y = w * 2
    result = lampwork.compile(continues)(y, w)
    result.sum().backward()
    return result is y, w.grad, type(y.grad_fn).__name__


def open_sizes():
    def found(x):
        where = x.nonzero()
        print(end="")
        return where.sum() + x

    return (lampwork.compile(found)(torch.tensor([0, 1, 1])),)


def gets_an_exception():
    z = torch.zeros(3)

    def fails(t):
        t.add_(1)
        return t.view(5)

    with pytest.raises(RuntimeError):
        lampwork.compile(fails)(z)
    return (z,)


PROGRAMS = [
    a_write,
    statistics,
    random_numbers,
    breaks,
    a_history,
    open_sizes,
    gets_an_exception,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_a_program_runs_as_in_eager(program):
    torch.manual_seed(0)
    with lampwork.set_stance("force_eager"):
        expected = program()
    torch.manual_seed(0)
    with noting() as noted:
        found = program()
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert noted.cases or program is gets_an_exception


def test_a_later_graph_gets_what_an_earlier_one_wrote():
    z = torch.zeros(3)
    with noting() as noted:
        lampwork.compile(adds)(z)
        lampwork.compile(lambda t: t * 2)(z)
    assert [next(iter(case.tensors.values())).tolist() for case in noted.cases] == [[0.0] * 3, [1.0] * 3]


@pytest.fixture
def planted():
    made = lampwork.rewrite("mul(erf(x), 3.0)", "mul(erf(x), 4.0)", name="planted-while-noting")
    yield
    made.unregister()


def scaled(x):
    return torch.erf(x) * 3.0


def test_what_was_compiled_before_and_after(planted):
    x = torch.ones(3)
    right, wrong = torch.erf(x) * 3.0, torch.erf(x) * 4.0
    before = lampwork.compile(scaled)
    assert torch.allclose(before(x), wrong)
    entries = tuple(before.entries)
    with noting() as noted:
        made = lampwork.compile(scaled)
        assert torch.equal(before(x), right) and torch.equal(made(x), right)
        with noting() as inner:
            assert torch.equal(made(x), right)
    assert len(noted.cases) == 2 and len(inner.cases) == 1
    assert tuple(before.entries) == entries and not made.entries
    assert torch.allclose(before(x), wrong) and tuple(before.entries) == entries
    assert torch.allclose(made(x), wrong) and len(made.entries) == 1


def test_parts_behind_a_break_are_compiled_again_too(planted):
    def broken(x):
        print(end="")
        return scaled(x)

    x, broken = torch.ones(3), lampwork.compile(broken)
    with noting() as noted:
        assert torch.equal(broken(x), torch.erf(x) * 3.0)
    assert len(noted.cases) == 1 and "resume" in noted.cases[0].name
    assert torch.allclose(broken(x), torch.erf(x) * 4.0)
    for size in (4, 5, 6, 7):
        broken(torch.ones(size))
    assert len(broken.entries) <= 2


def test_an_exception_ends_it_too(planted):
    with pytest.raises(KeyError), noting():
        made = lampwork.compile(scaled)
        made(torch.ones(3))
        raise KeyError
    assert torch.allclose(made(torch.ones(3)), torch.erf(torch.ones(3)) * 4.0)


def test_stages_show_the_graph():
    with noting():
        made = lampwork.compile(scaled)
        made(torch.ones(3))
        assert "aten.erf" in made.stages.graph
