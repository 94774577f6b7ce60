"""Worlds whose state lies in networks: parameters, buffers, hooks, flags, containers of modules, attributes."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from harness import program
from torch import nn

X = torch.tensor([[0.5, -1.5, 2.0, 1.0], [1.0, 0.25, -0.5, 3.0]])


def inputs():
    return (X.clone(),)


class Block(nn.Module):
    eps = 1e-5

    def __init__(self, width, act=F.gelu):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
        self.act, self.scale, self.residual = act, 0.5, True
        self.register_buffer("steps", torch.ones(width))

    def forward(self, x):
        y = self.act(self.linear(self.norm(x))) * self.scale + self.steps
        return x + y if self.residual else y


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(4), Block(4, torch.tanh)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
        self.drop, self.names, self.config = nn.Dropout(0.5), ["a", "b"], {"temperature": 2.0}

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.drop(x)
        return {name: self.heads[name](x) / self.config["temperature"] for name in self.names}


@program(inputs, factory=True)
def stack():
    return Stack().eval()


@program(inputs, factory=True)
def stack_in_a_closure():
    model = Stack().eval()

    def f(x):
        with torch.no_grad():
            return model(x)["a"]

    return f


@program(lambda: (X.clone(), Block(4).eval()))
def network_as_argument(x, m):
    return m(x) + m.eps


@program(inputs, factory=True)
def forward_of_a_network():
    model = Stack().eval()
    forward = model.forward

    def f(x):
        return forward(x)["b"]

    return f


@program(inputs, factory=True)
def sequential():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4), nn.Tanh()))


@program(inputs, factory=True)
def batch_norm_in_training():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()


class Recorder:
    def __init__(self):
        self.seen, self.gain = [], 2.0

    def forward_hook(self, module, args, out):
        self.seen.append(len(args))
        return out * self.gain

    def pre_hook(self, module, args):
        return (args[0] + 1,)


@program(inputs, factory=True)
def hooks():
    model, recorder = Block(4).eval(), Recorder()
    model.linear.register_forward_hook(recorder.forward_hook)
    model.norm.register_forward_pre_hook(recorder.pre_hook)
    model.register_forward_hook(lambda m, a, out: out - m.scale)
    model.register_forward_hook(functools.partial(_shifted, 3.0), with_kwargs=False)
    return model


def _shifted(by, module, args, out):
    return out + by


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, i):
        return self.out(self.embed(i))


@program(lambda: (torch.tensor([0, 3, 4]),), factory=True)
def tied_weights():
    return Tied().eval()


class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        object.__setattr__(self, "hidden", nn.Linear(4, 4))
        self.layers = [nn.Linear(4, 4), nn.ReLU()]
        self.lookup = {"final": nn.Linear(4, 4)}
        self.weight = torch.ones(4) * 2
        self.helper = Helper(3.0)

    def forward(self, x):
        x = self.hidden(x)
        for layer in self.layers:
            x = layer(x)
        return self.helper(self.lookup["final"](x) * self.weight)


class Helper:
    def __init__(self, k):
        self.k, self.w = k, torch.ones(4)

    def __call__(self, x):
        return x * self.k + self.w


@program(inputs, factory=True)
def unregistered():
    return Unregistered().eval()


class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        self.use_bias, self.kind, self.count = True, "relu", 2
        self.bias = nn.Parameter(torch.ones(4))
        self.extra = None

    @property
    def act(self):
        return {"relu": F.relu, "tanh": torch.tanh}.get(self.kind, torch.sigmoid)

    def forward(self, x):
        for _ in range(self.count):
            x = self.act(x)
        if self.use_bias:
            x = x + self.bias
        if self.extra is not None:
            x = x * self.extra
        return x if self.training else x * 2


@program(inputs, factory=True)
def conditional():
    return Conditional()


@program(inputs, factory=True)
def trained():
    return Conditional().train()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.heads, self.causal, self.p = 2, True, 0.0

    def forward(self, x):
        q, k, v = (m(x).view(x.shape[0], self.heads, -1).transpose(0, 1) for m in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=self.p).flatten()


@program(inputs, factory=True)
def attention():
    return Attention().eval()


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.cache, self.step = nn.Linear(4, 4), {}, 0

    def forward(self, x):
        if "w" not in self.cache:
            self.cache["w"] = torch.ones(4) * 2
        self.step += 1
        return self.linear(x) * self.cache["w"] + self.step


@program(inputs, factory=True)
def cache_in_a_network():
    return Cache().eval()


@program(inputs, factory=True)
def convolution():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.ReLU(), nn.MaxPool1d(2)).eval()

    def f(x):
        return model(x[:, None])

    return f


@program(inputs, factory=True)
def parametrized():
    linear = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(linear, "weight", Doubled())
    return linear


class Doubled(nn.Module):
    def forward(self, w):
        return w * 2


@program(inputs, factory=True)
def tensors_of_closures():
    w, b, frozen = torch.ones(4, requires_grad=True), torch.zeros(4), torch.full((4,), 2.0)
    views = torch.arange(8.0)
    row = views[4:]

    def f(x):
        return x * w + b * frozen + row, w.requires_grad, w.grad is None, row.shape[0]

    return f


@program(inputs, factory=True)
def recurrent():
    return nn.LSTM(4, 3, batch_first=True).eval()


@program(inputs, factory=True)
def transformer_layer():
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
