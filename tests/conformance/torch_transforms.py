"""torch.func, checkpointing, custom autograd functions, gradients taken inside the program."""

from __future__ import annotations

import copy
import warnings

import torch
import torch.nn as nn
import torch.utils.checkpoint as checkpoints
from harness import program


def plain():
    return (torch.randn(2, 3),)


def wanting_grad():
    return (torch.randn(2, 3, requires_grad=True),)


# Its first use in a process warns.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.func.jacfwd(torch.sin)(torch.zeros(1))


class Net(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 3)
        self.drop = nn.Dropout(p)

    def forward(self, x, scale=1.0):
        return self.b(self.drop(torch.relu(self.a(x)))) * scale


# --- torch.func -------------------------------------------------------------------------------------------------------


@program(plain, breaks=1)
def grad(x):
    return torch.func.grad(lambda y: (y**2).sum())(x) + 1


@program(plain, breaks=1)
def grad_and_value(x):
    return torch.func.grad_and_value(lambda y: (y**2).sum())(x)


@program(plain, breaks=1)
def grad_of_one_argument_with_aux(x):
    def loss(weight, data):
        y = weight * data
        return y.sum(), y

    return torch.func.grad(loss, argnums=1, has_aux=True)(x, x * 2)


@program(plain, breaks=1)
def vmap(x):
    return torch.vmap(lambda row: row * 2 + row.sum())(x)


@program(plain, breaks=1)
def vmap_over_several(x):
    return torch.func.vmap(torch.dot, in_dims=(0, 1), out_dims=0)(x, x.T) * 2


@program(plain, breaks=1)
def vmap_with_randomness(x):
    return torch.vmap(lambda row: row + torch.rand(3), randomness="different")(x)


@program(plain, breaks=1)
def jacrev(x):
    return torch.func.jacrev(torch.sin)(x)


@program(plain, breaks=1)
def jacfwd(x):
    return torch.func.jacfwd(torch.sin)(x)


@program(plain, breaks=1)
def hessian(x):
    return torch.func.hessian(lambda y: y.sin().sum())(x)


@program(plain, breaks=1)
def jvp(x):
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))


@program(plain, breaks=1)
def per_sample_gradients(x):
    def loss(weight, row):
        return (weight * row).sin().sum()

    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(torch.ones(3), x)


@program(plain, within=lambda: torch.autograd.forward_ad.dual_level(), regions=0)
def forward_mode_outside(x):
    dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
    return torch.autograd.forward_ad.unpack_dual(dual * dual).tangent


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.values = {name: p.detach() * 2 for name, p in self.layer.named_parameters()}

    def forward(self, x):
        return torch.func.functional_call(self.layer, self.values, (x,)), self.layer(x)


@program(wanting_grad, factory=True, backward=True)
def functional_call():
    return Doubled()


@program(
    lambda: (torch.randn(2, 3), {"weight": torch.randn(4, 3, requires_grad=True), "bias": torch.randn(4)}),
    factory=True,
    backward=True,
)
def functional_call_with_tensors_of_the_call():
    layer = nn.Linear(3, 4)
    return lambda x, values: torch.func.functional_call(layer, values, x)


@program(wanting_grad, factory=True, backward=True)
def functional_call_of_a_net():
    net = Net()

    def run(x):
        values = {name: value * 0.5 for name, value in net.named_parameters()}
        return torch.func.functional_call(net, values, (x,), {"scale": 3.0}) + net(x)

    return run


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


@program(plain, factory=True)
def functional_call_of_tied_weights():
    net = Tied()
    return lambda x: torch.func.functional_call(net, {"a.weight": torch.eye(3)}, (x,))


@program(plain, factory=True)
def functional_call_that_writes_buffers():
    net = nn.BatchNorm1d(3)

    def run(x):
        values = {**dict(net.named_parameters()), **{k: v.clone() for k, v in net.named_buffers()}}
        y = torch.func.functional_call(net, values, (x,))
        return y, values["running_mean"], net.running_mean

    return run


@program(plain, factory=True, breaks=1)
def functional_call_with_an_unknown_name():
    layer = nn.Linear(3, 4)

    def run(x):
        try:
            return torch.func.functional_call(layer, {"weights": torch.ones(4, 3)}, (x,), strict=True)
        except RuntimeError as error:
            return str(error)

    return run


@program(plain, factory=True, breaks=1)
def gradients_of_parameters():
    net = Net()

    def run(x):
        values = {name: value.detach() for name, value in net.named_parameters()}
        return torch.func.grad(lambda v: torch.func.functional_call(net, v, (x,)).sum())(values)

    return run


@program(plain, factory=True, breaks=1)
def ensemble():
    nets = [nn.Linear(3, 4) for _ in range(3)]
    values, buffers = torch.func.stack_module_state(nets)
    base = copy.deepcopy(nets[0])

    def run(x):
        return torch.vmap(
            lambda v, b, data: torch.func.functional_call(base, (v, b), (data,)), in_dims=(0, 0, None)
        )(values, buffers, x)

    return run


# --- checkpointing ----------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, reentrant, p=0.0):
        super().__init__()
        self.net = Net(p)
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoints.checkpoint(self.net, x, 2.0, use_reentrant=self.reentrant) + x


@program(wanting_grad, factory=True, backward=True)
def checkpoint():
    return Checkpointed(False)


@program(wanting_grad, factory=True, backward=True)
def checkpoint_reentrant():
    return Checkpointed(True)


@program(wanting_grad, factory=True, backward=True)
def checkpoint_with_dropout():
    return Checkpointed(False, 0.5)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh())

    def forward(self, x):
        return checkpoints.checkpoint_sequential(self.layers, 2, x, use_reentrant=False)


@program(wanting_grad, factory=True, backward=True)
def checkpoint_sequential():
    return Sequence()


# --- autograd functions -----------------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * 7


@program(wanting_grad, backward=True, breaks=1)
def own_function(x):
    return Square.apply(x * 2) + 1


@program(plain)
def own_function_without_gradients(x):
    return Square.apply(x * 2) + 1


@program(wanting_grad, within=torch.no_grad)
def own_function_within_no_grad(x):
    return Square.apply(x * 2) + 1


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * factor, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, grad, unused):
        return grad * ctx.factor * 2, None


@program(wanting_grad, backward=True, breaks=1)
def own_function_with_setup_context(x):
    return Scale.apply(x, 3.0)[0] * x


@program(plain)
def own_function_with_setup_context_without_gradients(x):
    return Scale.apply(x, 3.0)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


@program(wanting_grad, backward=True, breaks=1)
def straight_through_estimator(x):
    return StraightThrough.apply(x) * x


class Best(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        best = x.argmax(-1)
        ctx.mark_non_differentiable(best)
        ctx.rows = x.shape[0]
        return x * 2, best

    @staticmethod
    def backward(ctx, grad, unused):
        return grad * ctx.rows if ctx.needs_input_grad[0] else None


@program(wanting_grad, backward=True, breaks=1)
def own_function_with_an_integer_result(x):
    return Best.apply(x)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@program(wanting_grad, backward=True, breaks=1)
def own_function_that_writes(x):
    return InPlace.apply(x * 1)


class ReverseGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(Reverse.apply(x))


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


@program(wanting_grad, factory=True, backward=True, breaks=1)
def gradient_reversal_in_a_module():
    return ReverseGradient()


OUTSIDE = torch.ones(3, 3, requires_grad=True)


class UsesAGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x @ OUTSIDE, torch.is_grad_enabled()

    @staticmethod
    def backward(ctx, grad, unused):
        return grad @ OUTSIDE.T


@program(plain)
def own_function_that_uses_a_global(x):
    y, mode = UsesAGlobal.apply(x)
    return y, mode, y.requires_grad


class TakesAList(torch.autograd.Function):
    @staticmethod
    def forward(ctx, xs):
        return xs[0] * 2

    @staticmethod
    def backward(ctx, grad):
        return None


@program(wanting_grad)
def own_function_of_a_list(x):
    return TakesAList.apply([x])


class Same(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        CALLS.append(len(inputs))

    @staticmethod
    def backward(ctx, grad):
        return grad


CALLS = []


@program(plain, stable=False)
def own_function_that_returns_its_argument(x):
    y = Same.apply(x)
    return y is x, y


# --- gradients taken inside -------------------------------------------------------------------------------------------


@program(wanting_grad, backward=True, breaks=1)
def gradient_penalty(x):
    y = (x**3).sum()
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    return slope * 2


@program(wanting_grad, breaks=2)
def backward_inside(x):
    y = (x**3).sum()
    y.backward()
    return x.grad * 2


@program(plain, breaks=2)
def gradient_of_a_detached_copy(x):
    z = x.detach().clone().requires_grad_(True)
    y = (z * z).sum()
    return torch.autograd.grad(y, z)[0] + 1


@program(wanting_grad)
def gradient_is_absent(x):
    return x * 2 if x.detach().grad is None else x


@program(wanting_grad, within=lambda: torch.autograd.graph.save_on_cpu(), backward=True)
def saved_tensor_hooks_outside(x):
    return (x * x).exp()


@program(wanting_grad, backward=True)
def zeroed_gradients(x):
    if x.grad is not None:
        x.grad.zero_()
    return x * 2
