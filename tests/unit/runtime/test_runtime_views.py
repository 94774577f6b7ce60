"""Results that view one another: what eager calls their base, and what it forbids to write."""

from __future__ import annotations

import pytest
import torch

import lampwork


def chained(x):
    y = x * 2
    z = y.view(-1)[2:]
    z.mul_(3)
    return y, z


def permuted(x):
    y = x * 2
    z = y.permute(1, 0)
    z.add_(2)
    return z, y, z[0]


def views_only(x):
    z = (x * 2).view(-1)
    u = z[1:]
    u.mul_(2)
    return z, u


def reshaped_in_place(x):
    y = x + 1
    y.t_()
    return y, y[0]


def reshaped_and_written(x):
    y = x + 1
    y.unsqueeze_(0)
    z = y.view(-1)[1:]
    z.mul_(2)
    return y, z


def split_and_written(x):
    y = x * 2
    y.t().mul_(2)
    return y, *y.split(1)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize(
    "fn", [chained, permuted, views_only, reshaped_in_place, reshaped_and_written, split_and_written]
)
def test_bases_are_eagers(fn, wanted):
    def look(fn):
        x, w = torch.arange(4.0).view(2, 2).requires_grad_(wanted), torch.tensor(2.0, requires_grad=True)
        results = fn(x)
        found = []
        for result in results:
            base = result._base
            seen = [i for i, other in enumerate(results) if other is base]
            found.append((seen, result._is_view(), None if base is None else (base.shape, base.stride())))
        try:
            results[-1].mul_(w)
            sum(result.sum() for result in results).backward()
            found += [w.grad.item(), None if x.grad is None else x.grad.tolist()]
        except RuntimeError as error:
            found.append(str(error)[-60:])
        return [*found, [result.requires_grad for result in results], [result.tolist() for result in results]]

    assert look(lampwork.compile(fn)) == look(fn)


@pytest.mark.parametrize("block", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("pieces", [lambda y: y.split(1), lambda y: y.unbind(), lambda y: y.chunk(2)])
def test_pieces_without_gradients_must_not_take_them_on(pieces, block):
    def look(transform):
        run = transform(lambda x: pieces(x * 2))
        with block():
            piece = run(torch.ones(2, 2))[0]
        piece.add_(1)
        with pytest.raises(RuntimeError) as caught:
            piece.mul_(torch.ones((), requires_grad=True))
        return str(caught.value)

    assert look(lampwork.compile) == look(lambda fn: fn)


LEAF = torch.ones((), requires_grad=True)


def _many_nodes():
    for _ in range(12):
        LEAF.sin()


@pytest.mark.parametrize("before", [lambda: None, _many_nodes], ids=["small", "with gradients elsewhere"])
@pytest.mark.parametrize(
    "results",
    [
        lambda v: (v.T, v.detach()),
        lambda v: (v[0], v.view_as(v)),
        lambda v: (v.T, v.detach(), v),
        lambda v: (v.detach(), v.detach()[0]),
    ],
)
def test_a_result_is_no_base_of_views_of_what_it_aliases(results, before):
    def look(transform):
        def fn(x):
            before()
            return results(x * 2)

        made = transform(fn)(torch.ones(2, 2))
        made[1].requires_grad_()
        made[0].mul_(torch.ones(2, requires_grad=True))
        return [(t._is_view(), t.requires_grad, t.is_leaf) for t in made]

    def outcome(transform):
        try:
            return look(transform)
        except RuntimeError as error:
            return str(error)

    assert outcome(lampwork.compile) == outcome(lambda fn: fn)


def copied(x):
    y = x.t().reshape(-1)
    return y, y[1:]


def copied_and_written(x):
    y = x.t().reshape(-1)
    y.mul_(3)
    return y, y.view(2, 2)


@pytest.mark.parametrize("before", [lambda: None, _many_nodes], ids=["small", "with gradients elsewhere"])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("fn", [lambda x: (torch.kron(x, x), x * 1), copied, copied_and_written])
def test_copies_in_another_shape_are_no_views(fn, wanted, before):
    def look(transform):
        def made(x):
            before()
            return fn(x + 1)

        x = torch.arange(4.0).view(2, 2).requires_grad_(wanted)
        first, second = transform(made)(x)
        seen = [first._is_view(), second._is_view(), second._base is first, first._version]
        if wanted:
            first.retain_grad()
            second.sum().backward(retain_graph=True)
            first.cos().sum().backward()
            seen += [first.grad.tolist() if first.grad is not None else None, x.grad.tolist()]
        return [*seen, first.detach_().requires_grad]

    assert look(lampwork.compile) == look(lambda fn: fn)
