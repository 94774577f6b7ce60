"""Compiled modules in training and in their users' hands: optimizers, higher gradients, copies, transforms around."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn as nn

import lampwork


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return torch.tanh(self.layer(self.drop(x)))


def model():
    torch.manual_seed(0)
    return Model()


def both():
    """A module in eager, and its compiled twin."""
    return model(), lampwork.compile(model())


def close(ours, eager):
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(ours), leaves(eager), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9),
        lambda ps: torch.optim.Adam(ps, 0.1),
        lambda ps: torch.optim.AdamW(ps, 0.1, foreach=True),
        lambda ps: torch.optim.Adagrad(ps, 0.1),
    ],
    ids=["sgd", "adam", "adamw", "adagrad"],
)
def test_training_steps(optimizer):
    results = []
    for net in both():
        torch.manual_seed(1)
        steps = optimizer(net.parameters())
        losses = []
        for _ in range(4):
            steps.zero_grad()
            loss = net(torch.randn(2, 3)).square().sum()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            steps.step()
            losses.append(loss.detach())
        results.append((losses, dict(net.state_dict())))
    close(*results)


def test_gradients_accumulate():
    results = []
    for net in both():
        net.eval()
        for scale in (1.0, 2.0):
            net(torch.full((2, 3), scale)).sum().backward()
        results.append([p.grad for p in net.parameters()])
    close(*results)


def test_backward_twice_over_a_kept_graph():
    results = []
    for net in both():
        x = torch.ones(2, 3, requires_grad=True)
        y = net.eval()(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        results.append((x.grad, [p.grad for p in net.parameters()]))
    close(*results)


def test_second_derivatives():
    results = []
    for net in both():
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        (slope,) = torch.autograd.grad(net.eval()(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        results.append((x.grad, [p.grad for p in net.parameters()]))
    close(*results)


def test_hessian_vector_product():
    results = []
    for net in both():
        x = torch.linspace(-1, 1, 6).reshape(2, 3)
        results.append(
            torch.autograd.functional.vhp(lambda t, net=net: net.eval()(t).sum(), x, torch.ones(2, 3))
        )
    close(*results)


def test_gradients_checked_numerically():
    net = lampwork.compile(model().double().eval())
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(net, (x,))


def test_only_some_gradients_are_wanted():
    results = []
    for net in both():
        x = torch.ones(2, 3, requires_grad=True)
        net.layer.bias.requires_grad_(False)
        net.eval()(x).sum().backward(inputs=[net.layer.weight])
        results.append((net.layer.weight.grad, x.grad is None, net.layer.bias.grad is None))
    assert results[0][1:] == results[1][1:] == (True, True)
    close(results[0][0], results[1][0])


def test_tensors_that_depend_on_each_other():
    def f(a, b):
        return a * b + a

    results = []
    for run in (f, lampwork.compile(f)):
        a = torch.arange(3.0, requires_grad=True)
        b = a.exp()
        run(a, b).sum().backward()
        results.append(a.grad)
    close(*results)


def test_hooks_of_arguments_run_once():
    results = []
    for run in (torch.sin, lampwork.compile(lambda t: torch.sin(t))):
        leaf = torch.arange(3.0, requires_grad=True)
        x = leaf * 2
        x.register_hook(lambda grad: grad * 3)
        leaf.register_hook(lambda grad: grad * 5)
        run(x).sum().backward()
        results.append(leaf.grad)
    close(*results)


def test_flags_of_gradients_change_between_calls():
    net = lampwork.compile(model().eval())
    x = torch.ones(2, 3)
    assert net(x).requires_grad
    net.requires_grad_(False)
    assert not net(x).requires_grad
    assert net(x.clone().requires_grad_()).requires_grad
    with torch.no_grad():
        assert not net(x.clone().requires_grad_()).requires_grad


def test_weights_are_replaced_between_calls():
    eager, ours = both()
    eager.eval(), ours.eval()
    x = torch.ones(2, 3)
    for change in (
        lambda net: net.layer.weight.data.mul_(2),
        lambda net: setattr(net.layer, "bias", nn.Parameter(torch.ones(3))),
        lambda net: net.load_state_dict({k: v * 0.5 for k, v in net.state_dict().items()}),
        lambda net: setattr(net.layer.weight, "data", torch.eye(3)),
        lambda net: setattr(net, "layer", nn.Linear(3, 2, bias=False)) or nn.init.ones_(net.layer.weight),
        lambda net: net.double(),
    ):
        change(eager), change(ours)
        given = x.to(next(eager.parameters()).dtype)
        close(ours(given), eager(given))


def test_copies_of_a_compiled_module():
    net = model().eval()
    run = lampwork.compile(net)
    x = torch.randn(2, 3)
    run(x)
    stored = io.BytesIO()
    torch.save(run.state_dict(), stored)
    stored.seek(0)
    fresh = Model().eval()
    fresh.load_state_dict(torch.load(stored))
    for twin in (copy.deepcopy(run), pickle.loads(pickle.dumps(run)), fresh):
        close(twin(x), net(x))
    twin = copy.deepcopy(run)
    with torch.no_grad():
        twin.layer.weight.zero_()
    assert not torch.equal(twin(x), run(x))


# --- transforms and other compilers around a compiled function -------------------------------------------------------


@lampwork.compile
def compiled(x):
    return (x * x).sin()


def plain(x):
    return (x * x).sin()


@pytest.mark.parametrize(
    "use",
    [
        lambda f, x: torch.vmap(f)(x),
        lambda f, x: torch.func.grad(lambda t: f(t).sum())(x),
        lambda f, x: torch.func.jacrev(f)(x),
        lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
        lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(x)),
        lambda f, x: torch.vmap(torch.func.grad(lambda t: f(t).sum()))(x),
        lambda f, x: torch.autograd.functional.jacobian(f, x),
        lambda f, x: torch.utils.checkpoint.checkpoint(f, x.clone().requires_grad_(), use_reentrant=False),
        lambda f, x: torch.fx.experimental.proxy_tensor.make_fx(f)(x)(x),
    ],
    ids=["vmap", "grad", "jacrev", "jvp", "vjp", "vmap-grad", "jacobian", "checkpoint", "make_fx"],
)
def test_transforms_around(use):
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    close(use(compiled, x), use(plain, x))
    compiled(x)
    close(use(compiled, x), use(plain, x))


def test_dual_tensors():
    x = torch.linspace(-1, 1, 6)
    compiled(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(6))
        ours, eager = (torch.autograd.forward_ad.unpack_dual(f(dual)) for f in (compiled, plain))
        assert ours.tangent is not None
        close((ours.primal, ours.tangent), (eager.primal, eager.tangent))


def test_fake_tensors():
    x = torch.linspace(-1, 1, 6)
    compiled(x)
    with torch._subclasses.FakeTensorMode() as mode:
        assert type(compiled(mode.from_tensor(x))) is torch._subclasses.FakeTensor


def test_inside_of_torch_compile():
    x = torch.linspace(-1, 1, 6)
    torch._dynamo.reset()
    outer = torch.compile(lambda t: compiled(t + 1) * 2, backend="eager")
    for _ in range(2):
        close(outer(x), plain(x + 1) * 2)


def test_export_and_trace_see_the_original():
    x = torch.linspace(-1, 1, 6)
    close(torch.jit.trace(compiled, x)(x), plain(x))


def test_torch_compile_does_not_trace_the_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    inner = lampwork.compile(lambda t: (t * t).sin())
    outer = torch.compile(lambda t: inner(t + 1) * 2, backend="eager")
    x = torch.linspace(-1, 1, 6, requires_grad=True)
    outer(x).sum().backward()
    assert torch._dynamo.utils.counters["frames"]["total"] <= 4
