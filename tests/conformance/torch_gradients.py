"""Gradients where values and their history part: writes behind autograd's back, overwritten tensors, cut histories."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from harness import program


def wanting_grad():
    return (torch.randn(2, 3, requires_grad=True),)


@program(wanting_grad, backward=True, breaks=1)
def write_through_detach(x):
    y = x * 2
    y.detach().add_(1)
    return y * x


@program(wanting_grad, backward=True, breaks=1)
def write_to_data(x):
    y = x * 2
    y.data.mul_(3)
    return y * x


@program(wanting_grad, backward=True, breaks=2)
def write_within_no_grad(x):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y * x


@program(wanting_grad, backward=True, breaks=1)
def item_assigned_within_no_grad(x):
    y = x * 2
    with torch.no_grad():
        y[0] = 5
    return y


@program(wanting_grad, backward=True, breaks=1)
def tensor_filled(x):
    y = x * 2
    y.fill_(3)
    return y, y.requires_grad


@program(wanting_grad, backward=True)
def item_assigned(x):
    y = x * 2
    y[0] = 5
    y[1, 1:] = x[0, 1:]
    return y * y


@program(wanting_grad, backward=True)
def tensor_without_history_is_written(x):
    y = torch.zeros(2, 3)
    y[0] = x[1]
    y += x
    return y * 2, y.requires_grad


@program(wanting_grad, backward=True)
def history_is_cut(x):
    y = (x * 2).detach()
    return y * x, y.requires_grad


@program(wanting_grad, backward=True)
def part_without_gradient(x):
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True)
    return x / scale


@program(wanting_grad, backward=True)
def branches_that_join(x):
    a, b = x.sin(), x.cos()
    return a * b + a.detach() * x - b


@program(wanting_grad, backward=True)
def functions_with_ties_and_kinks(x):
    return x.relu(), x.abs(), x.clamp(-0.5, 0.5), x.max(-1).values, torch.maximum(x, -x), x.sort(-1).values


@program(wanting_grad, backward=True)
def indices_and_gradients(x):
    index = torch.tensor([[0, 2], [1, 1]])
    return x.gather(1, index), x[:, index], x.index_select(1, index[0]), F.one_hot(index, 3) * x[:, None]


@program(wanting_grad, backward=True)
def integers_beside_gradients(x):
    values, places = x.topk(2)
    return values, places, x.argmax(), (x > 0).sum()


@program(lambda: (torch.randn(3, 3, requires_grad=True), torch.randn(3, requires_grad=True)), backward=True)
def linear_algebra_and_gradients(a, b):
    m = a @ a.T + 3 * torch.eye(3)
    return torch.linalg.solve(m, b), torch.linalg.norm(a), m.logdet(), torch.einsum("ij,j->i", a, b)


@program(lambda: (torch.randn(2, 3, dtype=torch.float64, requires_grad=True),), backward=True)
def gradients_through_casts(x):
    return x.float() * 2, x.to(torch.bfloat16).sum(), x.half().float()


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, numbers):
        return self.head(torch.tanh(self.table(numbers)))


@program(lambda: (torch.tensor([1, 5, 5]),), factory=True, backward=True)
def tied_weights_and_gradients():
    return Shared()


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        with torch.no_grad():
            features = self.body(x)
        return self.head(features)


@program(wanting_grad, factory=True, backward=True)
def frozen_body():
    return Frozen()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x):
        state = torch.zeros_like(x)
        for step in range(3):
            state = self.cell(x, state)
            if step == 1:
                state = state.detach()
        return state


@program(wanting_grad, factory=True, backward=True)
def truncated_backpropagation():
    return Recurrent()


def plain_and_wanting():
    return torch.randn(2, 3), torch.randn(2, 3, requires_grad=True)


@program(plain_and_wanting, backward=True, breaks=1)
def argument_takes_on_a_history(x, y):
    x.add_(y)
    return x * 2


@program(plain_and_wanting, backward=True, breaks=1)
def argument_takes_on_a_copy(x, y):
    x.copy_(y)
    return y * 2


@program(plain_and_wanting, backward=True, breaks=1)
def row_of_an_argument_takes_on_a_history(x, y):
    x[0] = y[0]
    return y.sum()


@program(plain_and_wanting, backward=True)
def argument_takes_on_a_value(x, y):
    x.add_(y.detach())
    return x * y


class Accumulates(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total += x.sum(0)
        return self.total * 2


@program(wanting_grad, factory=True, breaks=1, stable=False)
def buffer_takes_on_a_history():
    return Accumulates()


@program(wanting_grad, backward=True, breaks=1)
def leaf_made_inside(x):
    z = torch.ones(3, requires_grad=True)
    return x * z, z.requires_grad, z.is_leaf


@program(wanting_grad, backward=True)
def results_that_alias_and_differentiate(x):
    y = x * 2
    return y, y.view(3, 2), y, x, x.view(6)
