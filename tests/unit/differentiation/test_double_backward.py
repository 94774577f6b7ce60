"""Gradients of gradients: a backward that is asked for twice with `create_graph=True` is compiled, in every order."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lampwork

CALLS = 5


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def mlp(inputs, outputs, act=nn.Tanh, width=7):
    return nn.Sequential(
        nn.Linear(inputs, width), act(), nn.Linear(width, width), act(), nn.Linear(width, outputs)
    ).double()


def looks(tensor):
    if tensor is None:
        return None
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return tensor.shape, 0 in tensor.shape or strides, tensor.dtype, tensor.requires_grad


def agree(make, doubles=True, calls=CALLS):
    """`make(transform)` gives a step, whose tensors are those of eager on each call. `doubles`: some were compiled."""
    torch.manual_seed(0)
    eager = make(lambda f: f)
    torch.manual_seed(0)
    step = make(lampwork.compile)
    before = lampwork.stats()["double_backwards"]
    for number in range(calls):
        torch.manual_seed(number)
        want = eager()
        state = torch.get_rng_state()
        torch.manual_seed(number)
        have = step()
        assert torch.equal(state, torch.get_rng_state())
        for w, h in zip(want, have, strict=True):
            assert looks(w) == looks(h)
            if w is not None:
                torch.testing.assert_close(h, w, rtol=1e-9, atol=1e-11)
    assert (lampwork.stats()["double_backwards"] > before) == doubles
    return lampwork.stats()["double_backwards"] - before


def test_forces():
    def make(transform):
        net, x, force = mlp(3, 1, nn.SiLU), leaf(5, 3), torch.randn(5, 3, dtype=torch.float64)
        f = transform(net)

        def step():
            net.zero_grad()
            energy = f(x).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
            (energy.square() + (slope + force).square().mean()).backward()
            return [slope, *(p.grad for p in net.parameters())]

        return step

    assert agree(make) == CALLS - 1


@pytest.mark.parametrize("rows", [0, 1, 6])
def test_gradient_penalty(rows):
    def make(transform):
        net = mlp(4, 1, lambda: nn.LeakyReLU(0.2))
        f = transform(net)

        def step():
            net.zero_grad()
            x = leaf(rows, 4)
            d = f(x)
            (slope,) = torch.autograd.grad(d, x, torch.ones_like(d), create_graph=True)
            (d.sum() + (slope.norm(dim=1) - 1).square().sum()).backward()
            return [slope, x.grad, *(p.grad for p in net.parameters())]

        return step

    agree(make)


def test_third_order():
    def make(transform):
        net, x = mlp(1, 1), leaf(6, 1)
        f = transform(net)

        def step():
            net.zero_grad()
            u = f(x)
            (ux,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            (uxx,) = torch.autograd.grad(ux.sum(), x, create_graph=True)
            (uxx + u).square().mean().backward()
            return [ux, uxx, *(p.grad for p in net.parameters())]

        return step

    assert agree(make) == (CALLS - 1) + (CALLS - 2)


def test_gradients_of_a_loss_by_its_weights():
    def make(transform):
        net, x, labels = mlp(4, 3), torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])
        weights = list(net.parameters())
        f = transform(lambda x: F.cross_entropy(net(x), labels))
        vector = [torch.randn_like(p) for p in weights]

        def step():
            slopes = torch.autograd.grad(f(x), weights, create_graph=True)
            return [*slopes, *torch.autograd.grad(slopes, weights, vector)]

        return step

    agree(make)


def test_a_step_of_inner_learning():
    def make(transform):
        w, b, x, y = leaf(3, 2), leaf(2), torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2).double()
        loss = transform(lambda w, b: F.mse_loss((x @ w + b).sigmoid(), y))

        def step():
            slopes = torch.autograd.grad(loss(w, b), [w, b], create_graph=True)
            fast = [p - 0.1 * slope for p, slope in zip((w, b), slopes, strict=True)]
            return [*slopes, *torch.autograd.grad(loss(*fast), [w, b])]

        return step

    agree(make)


def test_the_gradient_that_is_given_may_have_a_history():
    def make(transform):
        x, w = leaf(4), leaf(4)
        f = transform(lambda x: (x * w).sin() * x)

        def step():
            (slope,) = torch.autograd.grad(f(x), x, w.exp(), create_graph=True)
            return [slope, *torch.autograd.grad(slope.square().sum(), [x, w])]

        return step

    agree(make)


def test_a_segment_that_starts_from_the_result_of_another():
    def make(transform):
        x, w = leaf(4, 3), leaf(3, 3)

        def layers(x):
            h = torch.tanh(x @ w)
            return h, F.dropout(h @ w, 0.3).exp().sum()

        f = transform(layers)

        def step():
            h, y = f(x)
            by_h, by_x = torch.autograd.grad(y, [h, x], create_graph=True)
            return [by_h, by_x, *torch.autograd.grad(by_h.square().sum() + by_x.exp().sum(), [x, w])]

        return step

    agree(make)


def test_random_numbers_are_those_of_the_call():
    def make(transform):
        net = nn.Sequential(
            nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
        ).double()
        x, f = leaf(6, 4), transform(net)

        def step():
            (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            return [slope, *torch.autograd.grad(slope.square().sum(), [x, net[0].weight])]

        return step

    agree(make)


@pytest.mark.parametrize("layer", [nn.LayerNorm(8), nn.BatchNorm1d(8), nn.GroupNorm(2, 8)], ids=repr)
def test_norms(layer):
    def make(transform):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 8), copy.deepcopy(layer), nn.Softplus(), nn.Linear(8, 1)).double()
        x, f = leaf(6, 4), transform(net)

        def step():
            (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            found = torch.autograd.grad(slope.square().sum(), [x, net[0].weight, net[1].weight])
            return [slope, *found, *(buffer.clone() for buffer in net.buffers())]

        return step

    agree(make)


def test_convolutions():
    def make(transform):
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ELU(), nn.AvgPool2d(2), nn.Conv2d(4, 1, 2)).double()
        x, f = leaf(2, 2, 6, 6), transform(net)

        def step():
            (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            return [slope, *torch.autograd.grad(slope.square().sum(), [x, net[0].weight])]

        return step

    agree(make)


def test_what_is_detached_stays_so():
    def make(transform):
        x, w = leaf(5), leaf(5)
        f = transform(lambda x: (x.detach().exp() * x.tanh() * w).sum())

        def step():
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            return [slope, *torch.autograd.grad(slope.exp().sum(), [x, w])]

        return step

    agree(make)


def test_gradients_without_a_history_and_those_that_are_the_given_one():
    def make(transform):
        x, y, w = leaf(3, 4), leaf(3, 4), leaf(4)
        f = transform(lambda x, y: (x + y + w) * 1)

        def step():
            ones, weights = torch.ones(3, 4).double(), leaf(3, 4)
            plain = torch.autograd.grad(f(x, y), [x, y, w], ones, create_graph=True)
            given = torch.autograd.grad(f(x, y), [x, y, w], weights, create_graph=True)
            total = sum(g.square().sum() for g in given)
            return [*plain, *given, *torch.autograd.grad(total, [weights, x], allow_unused=True)]

        return step

    agree(make)


def test_layouts_of_gradients():
    def make(transform):
        x, w = leaf(5, 3), leaf(4, 3)
        f = transform(lambda x: (F.linear(x, w).t() * 2).exp())

        def step():
            by_x, by_w = torch.autograd.grad(f(x).sum(), [x, w], create_graph=True)
            return [by_x, by_w, *torch.autograd.grad(by_w.square().sum() + by_x.sum(), [x, w])]

        return step

    agree(make)


def test_other_sizes():
    def make(transform):
        net = mlp(3, 1)
        f = transform(net)
        rows = iter([2, 2, 2, 5, 5, 5, 5, 2, 7])

        def step():
            x = leaf(next(rows), 3)
            (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            return [slope, *torch.autograd.grad(slope.square().sum(), [x, net[0].weight])]

        return step

    assert agree(make, calls=9) >= 4


def test_hooks():
    def make(transform):
        net, heard = mlp(3, 1), []
        f = transform(net)
        net[2].weight.register_hook(lambda grad: heard.append(grad.sum().item()))

        def step():
            net.zero_grad()
            x = leaf(4, 3)
            h = x * 2
            h.register_hook(lambda grad: grad * 3)
            h.retain_grad()
            (slope,) = torch.autograd.grad(f(h).sum(), x, create_graph=True)
            slope.square().sum().backward()
            numbers = torch.tensor(heard, dtype=torch.float64)
            return [slope, x.grad, h.grad, numbers, *(p.grad for p in net.parameters())]

        return step

    agree(make)


def raised(act):
    with pytest.raises(RuntimeError) as error:
        act()
    return str(error.value).partition("\n")[0]


def test_what_was_freed_or_written_is_eagers_error():
    def run(transform):
        x, w = leaf(4), leaf(4)
        f = transform(lambda x: (x * w).exp().sum())
        texts = []
        for _ in range(CALLS):
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            total = slope.square().sum()
            total.backward(retain_graph=True)
            total.backward()
            texts.append(raised(total.backward))
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            with torch.no_grad():
                w.mul_(2)
            texts.append(raised(slope.sum().backward)[:80])
        return texts, x.grad, w.grad

    torch.manual_seed(0)
    want = run(lambda f: f)
    torch.manual_seed(0)
    have = run(lampwork.compile)
    assert want[0] == have[0]
    torch.testing.assert_close(have[1:], want[1:])


def test_what_is_written_before_the_first_backward():
    def make(transform):
        x, w = leaf(4), leaf(4)
        f = transform(lambda x: (x * w).sin().sum())

        def step():
            y = f(x)
            w.data.mul_(1.5)
            (slope,) = torch.autograd.grad(y, x, create_graph=True)
            return [slope, *torch.autograd.grad(slope.square().sum(), [x, w])]

        return step

    agree(make, doubles=False)


def test_functions_with_a_backward_of_their_own():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0].cos()

    def make(transform):
        x, w = leaf(4), leaf(4)
        f = transform(lambda x: (Twice.apply((x * w).tanh() * 3) * w.exp()).sum())

        def step():
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            return [slope, *torch.autograd.grad(slope.square().sum(), [x, w])]

        return step

    agree(make)


def test_batched_and_checked():
    w = leaf(3)
    f = lampwork.compile(lambda x: (x * w).sin().cumsum(0))
    x = leaf(3)
    for _ in range(3):
        assert torch.autograd.gradcheck(f, (x,), check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, (x,), check_batched_grad=True)


def test_special_values():
    def make(transform):
        x = torch.tensor(
            [0.0, -0.0, float("inf"), float("nan"), -2.0], dtype=torch.float64, requires_grad=True
        )
        f = transform(lambda x: (x.abs() * x.exp()).sum())

        def step():
            (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
            found = torch.autograd.grad(slope.sum(), x)[0]
            return [slope.nan_to_num(7, 8, 9), found.nan_to_num(7, 8, 9)]

        return step

    agree(make)


def test_results_show_in_stats_that_backward_was_compiled():
    lampwork.reset_stats()
    x, f = leaf(4), lampwork.compile(lambda x: (x.sin() * x).exp().sum())
    for _ in range(4):
        torch.autograd.grad(f(x), x, create_graph=True)[0].sum().backward()
    stats = lampwork.stats()
    assert (stats["double_backwards"], stats["eager_backwards"]) == (3, 2)


FORMULAS = {  # which take their result
    "tanh": torch.tanh,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True) * x,
    "reciprocal": lambda x: (x * x + 1).reciprocal(),
    "relu": torch.relu,
}


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
def test_a_returned_result_that_formulas_take_is_what_they_are_differentiated_by(formula):
    """Its hooks hear of that gradient, it is retained, and `grad` may ask for it, from the first time on."""

    def make(transform):
        x, w = leaf(4, 3), leaf(3, 3)

        @transform
        def both(x, w):
            hidden = formula(x @ w)
            return hidden, (hidden * x[:, :1]).sin().sum()

        def step():
            x.grad = w.grad = None
            hidden, y = both(x, w)
            (first,) = torch.autograd.grad(y, x, create_graph=True)
            asked = torch.autograd.grad(first.square().sum(), [hidden, w], create_graph=True)
            hidden.register_hook(lambda grad: grad * 1.5)
            hidden.retain_grad()
            (first.sin().sum() + asked[1].sum()).backward()
            return [
                hidden.detach(),
                first.detach(),
                *(a.detach() for a in asked),
                hidden.grad,
                x.grad,
                w.grad,
            ]

        return step

    agree(make)
