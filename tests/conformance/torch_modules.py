"""Modules: state that changes between and within calls, containers, parameters made inside, copies of compiled ones."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from harness import program


def plain():
    return (torch.randn(2, 3),)


def wanting_grad():
    return (torch.randn(2, 3, requires_grad=True),)


class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        self.count += 1
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean, self.count


@program(wanting_grad, factory=True, backward=True)
def buffers_written_in_place():
    return RunningMean()


class ReplacedMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return x - self.mean


@program(wanting_grad, factory=True, backward=True, stable=False)
def buffer_replaced():
    return ReplacedMean()


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        self.kept = x if self.kept is None else torch.cat([self.kept, x])
        return self.kept.sum(0) * self.steps


@program(plain, factory=True, stable=False)
def cache_in_an_attribute():
    return Cache()


class Preallocated(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(8, 3), persistent=False)

    def forward(self, x, start):
        self.keys[start : start + x.shape[0]] = x
        return self.keys[: start + x.shape[0]].sum(0)


@program(lambda: (torch.randn(2, 3), 0), factory=True, again=lambda: (torch.randn(2, 3), 2))
def cache_in_a_buffer():
    return Preallocated()


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 1)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3) * i) for i in range(3)])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.ones(3))})

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = layer(x) * scale + self.named["shift"]
        x = self.layers[-1](self.layers[:2][0](x))
        return {name: head(x) for name, head in self.heads.items()}, len(self.layers), "a" in self.heads


@program(wanting_grad, factory=True, backward=True)
def containers():
    return Containers()


class LooksAtItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        total = sum(p.numel() for p in self.parameters())
        decay = sum((p**2).sum() for name, p in self.named_parameters() if name.endswith("weight"))
        kinds = [type(m).__name__ for m in self.modules()]
        return self.drop(self.net(x)) / total + decay, kinds, self.training, len(list(self.children()))


@program(wanting_grad, factory=True, backward=True)
def module_that_looks_at_itself():
    return LooksAtItself()


class Switches(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.drop.eval()
        y = self.drop(x)
        self.drop.train()
        return y + self.drop(x)


@program(plain, factory=True)
def module_that_switches_modes():
    return Switches()


class Interpolates(nn.Module):
    def forward(self, x):
        x = F.interpolate(x[:, None], scale_factor=2.0, mode="bilinear", align_corners=False)
        x = F.pad(x, (1, 1, 0, 0), mode="reflect")
        return F.grid_sample(
            x, F.affine_grid(torch.eye(2, 3)[None], [1, 1, 3, 3], False), align_corners=False
        )


@program(lambda: (torch.randn(1, 4, 4, requires_grad=True),), factory=True, backward=True)
def images_are_resampled():
    return Interpolates()


@program(plain, breaks=1, stable=False)
def parameter_made_inside(x):
    scale = nn.Parameter(torch.full((3,), 2.0))
    return x * scale, type(scale).__name__, scale.requires_grad


@program(plain, breaks=1, stable=False)
def module_made_inside(x):
    layer = nn.Linear(3, 2)
    return layer(x)


@program(plain)
def module_without_parameters_made_inside(x):
    return nn.ReLU()(nn.Softmax(dim=-1)(x)) + nn.Identity()(x)


class Weighted(nn.Module):
    """A parameter used twice, one without gradient, a frozen one, an absent one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))
        self.register_parameter("bias", None)

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias) * self.frozen
        return F.linear(y, self.weight.T)


@program(wanting_grad, factory=True, backward=True)
def parameters_of_all_sorts():
    return Weighted()


@program(plain, within=torch.no_grad)
def parameter_made_inside_without_gradients(x):
    scale = nn.Parameter(x * 2)
    frozen = nn.Parameter(x, requires_grad=False)
    kinds = type(scale).__name__, isinstance(scale, nn.Parameter), scale.is_leaf
    return x * scale, scale, scale.requires_grad, frozen, frozen.requires_grad, kinds


@program(plain, within=torch.no_grad)
def module_made_inside_without_gradients(x):
    layer = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU())
    return layer(x), layer, [name for name, _ in layer.named_parameters()]


@program(plain, within=torch.inference_mode, breaks=1, stable=False)
def module_made_inside_and_kept_across_a_break(x):
    layer = nn.Linear(3, 2)
    print(layer.in_features)
    return layer(x)


class BuildsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = None

    def forward(self, x):
        if self.layer is None:
            self.layer = nn.Linear(x.shape[-1], 2)
        return self.layer(x)


@program(plain, factory=True, within=torch.no_grad, stable=False)
def module_that_builds_itself_on_the_first_call():
    return BuildsItself()
