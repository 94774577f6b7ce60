"""Module hooks, parametrizations, weight and spectral norm."""

from __future__ import annotations

import warnings

import torch
import torch.nn as nn
import torch.nn.utils.parametrizations as parametrizations
import torch.nn.utils.parametrize as parametrize
import torch.nn.utils.prune as prune
from harness import program


def plain():
    return (torch.randn(2, 3),)


def wanting_grad():
    return (torch.randn(2, 3, requires_grad=True),)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 3)

    def forward(self, x, scale=1.0):
        return self.b(torch.relu(self.a(x))) * scale


@program(wanting_grad, factory=True, backward=True)
def forward_hook():
    net = Net()
    net.a.register_forward_hook(lambda module, args, output: output * 2)
    return net


@program(wanting_grad, factory=True, backward=True)
def forward_pre_hook():
    net = Net()
    net.a.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return net


@program(wanting_grad, factory=True, backward=True)
def pre_hook_that_returns_no_tuple():
    net = Net()
    net.b.register_forward_pre_hook(lambda module, args: args[0] * 2)
    return net


@program(wanting_grad, kwargs=lambda: {"scale": 2.0}, factory=True, backward=True)
def hooks_with_kwargs_on_the_root():
    net = Net()
    net.register_forward_pre_hook(lambda m, args, kw: ((args[0] * 2,), {"scale": 3.0}), with_kwargs=True)
    net.register_forward_hook(lambda m, args, kw, out: out + kw.get("scale", 1.0), with_kwargs=True)
    return net


@program(wanting_grad, factory=True, backward=True)
def hook_prepended():
    net = Net()
    net.register_forward_hook(lambda module, args, output: output * 2)
    net.register_forward_hook(lambda module, args, output: output + 1, prepend=True)
    return net


@program(plain, factory=True)
def hook_removed():
    net = Net()
    handle = net.register_forward_hook(lambda module, args, output: output * 2)
    net.a.register_forward_hook(lambda module, args, output: output + 1)
    handle.remove()
    return net


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.shapes = []
        self.calls = 0
        self.layer.register_forward_hook(self.watch)

    def watch(self, module, args, output):
        self.calls += 1
        self.shapes.append(tuple(output.shape))

    def forward(self, x):
        return self.layer(x), len(self.shapes)


@program(plain, factory=True, stable=False)
def hook_that_counts_and_collects():
    return Watched()


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.seen = {}
        for name, layer in self.net.named_children():
            layer.register_forward_hook(self.keeper(name))

    def keeper(self, name):
        def keep(module, args, output):
            self.seen[name] = output

        return keep

    def forward(self, x):
        self.net(x)
        return dict(self.seen)


@program(plain, factory=True, stable=False)
def hooks_that_extract_features():
    return Features()


class Failing(nn.Module):
    def forward(self, x):
        raise ValueError("not today")


@program(plain, factory=True, regions=0)
def hook_always_called_on_failure():
    net = Failing()
    net.register_forward_hook(lambda module, args, output: print("called with", output), always_call=True)
    return net


@program(wanting_grad, factory=True)
def hook_always_called_on_success():
    net = Net()
    net.register_forward_hook(lambda module, args, output: output * 2, always_call=True)
    return net


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.failing = Failing()
        self.failing.register_forward_hook(lambda module, args, output: print("hook"), always_call=True)

    def forward(self, x):
        try:
            return self.failing(x)
        except ValueError:
            return x + 1


@program(plain, factory=True, breaks=1)
def hook_always_called_inside():
    return Inner()


@program(wanting_grad, factory=True, backward=True, breaks=1)
def full_backward_hook():
    net = Net()
    net.a.register_full_backward_hook(lambda module, given, wanted: (given[0] * 2,))
    return net


@program(wanting_grad, factory=True, backward=True, breaks=1)
def full_backward_pre_hook():
    net = Net()
    net.a.register_full_backward_pre_hook(lambda module, wanted: (wanted[0] * 2,))
    return net


@program(plain, factory=True, within=torch.no_grad)
def backward_hook_without_gradients():
    net = Net()
    net.a.register_full_backward_hook(lambda module, given, wanted: (given[0] * 2,))
    return net


@program(wanting_grad, factory=True, backward=True)
def hook_of_a_parameter():
    net = Net()
    net.a.weight.register_hook(lambda grad: grad * 5)
    return net


@program(wanting_grad, factory=True, backward=True)
def hook_after_accumulation():
    net = Net()

    def halve(parameter):
        parameter.grad = parameter.grad / 2

    net.a.weight.register_post_accumulate_grad_hook(halve)
    return net


@program(wanting_grad, backward=True, breaks=1)
def hook_of_an_intermediate(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    return y + 1


@program(wanting_grad, backward=True, breaks=1)
def retained_gradient(x):
    y = x * 2
    y.retain_grad()
    return y * 3, y


@program(plain, factory=True)
def state_dict_hooks():
    net = Net()
    net.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update(extra=torch.ones(1)))
    net.register_load_state_dict_pre_hook(lambda *args: None)
    return net


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).mT


@program(wanting_grad, factory=True, backward=True)
def parametrization():
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


class Exponential(nn.Module):
    def forward(self, weight):
        return weight.exp()

    def right_inverse(self, weight):
        return weight.abs().log()


@program(wanting_grad, factory=True, backward=True)
def two_parametrizations():
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", Exponential())
    return layer


@program(wanting_grad, factory=True, backward=True)
def parametrization_removed():
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.remove_parametrizations(layer, "weight")
    return layer


@program(wanting_grad, factory=True, backward=True)
def weight_norm():
    return parametrizations.weight_norm(nn.Linear(3, 4))


@program(wanting_grad, factory=True, backward=True)
def weight_norm_by_hook():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(3, 4), dim=1)


@program(wanting_grad, factory=True, backward=True)
def spectral_norm_in_training():
    return parametrizations.spectral_norm(nn.Linear(3, 4))


@program(wanting_grad, factory=True, backward=True)
def spectral_norm_in_evaluation():
    return parametrizations.spectral_norm(nn.Linear(3, 4)).eval()


@program(wanting_grad, factory=True, backward=True)
def spectral_norm_by_hook_in_training():
    return nn.utils.spectral_norm(nn.Linear(3, 4), n_power_iterations=2)


@program(wanting_grad, factory=True, backward=True)
def spectral_norm_by_hook_in_evaluation():
    return nn.utils.spectral_norm(nn.Linear(3, 4)).eval()


@program(wanting_grad, factory=True, backward=True)
def orthogonal_weight():
    return parametrizations.orthogonal(nn.Linear(3, 3))


@program(wanting_grad, factory=True, backward=True)
def pruned_weight():
    layer = nn.Linear(3, 4)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


@program(wanting_grad, factory=True, stable=False)
def global_forward_hook():
    net = Net()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 1.5)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

    handle.remove()
    return Wrapped()
