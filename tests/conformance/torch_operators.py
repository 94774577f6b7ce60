"""Operators from torch.library: opaque nodes of the graph, with their gradients and their writes."""

from __future__ import annotations

import custom_operators as own
import torch
import torch.nn as nn
from harness import program

ops = torch.ops.lampwork_conformance


def plain():
    return (torch.randn(4, 3),)


def wanting_grad():
    return (torch.randn(4, 3, requires_grad=True),)


@program(plain)
def custom_operator(x):
    return own.twice(x + 1) * 2


@program(plain)
def custom_operator_by_its_name(x):
    return ops.twice(x) + 1, ops.twice.default(x)


@program(plain, breaks=1)
def custom_operator_without_fake_kernel(x):
    return own.without_fake(x + 1) * 2


@program(wanting_grad, backward=True)
def custom_operator_with_gradient(x):
    return own.scaled(x * 2, 3.0) + own.scaled(x) + x


@program(wanting_grad, within=torch.no_grad)
def custom_operator_with_gradient_not_wanted(x):
    return own.scaled(x, factor=3.0)


@program(plain)
def custom_operator_that_writes(x):
    y = x * 2
    own.increment(y, 3)
    return y + 1


@program(plain)
def custom_operator_that_writes_an_argument(x):
    own.increment(x, 3)
    return x + 1


@program(plain)
def custom_operator_that_writes_through_a_view(x):
    y = x * 2
    own.increment(y[0], 3)
    return y


@program(plain)
def custom_operator_that_writes_two(x):
    y, z = x * 2, x * 3
    return own.fill_both(y, z), y, z


@program(plain)
def custom_operator_with_a_list_of_results(x):
    return [part + 1 for part in own.pieces(x, 2)]


@program(plain)
def custom_operator_with_two_results(x):
    mean, variance = own.moments(x)
    return (x - mean[:, None]) / (variance[:, None] + 1).sqrt()


@program(plain, breaks=1)
def custom_operator_with_a_shape_from_data(x):
    return own.where_positive(x).sum() + 1


@program(lambda: (torch.randn(3), torch.randn(3)), again=lambda: (torch.randn(3), None))
def custom_operator_with_optional_arguments(x, bias):
    return own.optional_bias(x, bias, [1, 2, 3])


@program(plain, again=lambda: (torch.randn(5, 3),))
def custom_operator_that_raises(x):
    return own.picky(x + 1)


@program(plain)
def operator_by_schema(x):
    return ops.times(x, 3.0) + 1


@program(wanting_grad, backward=True)
def operator_composed_of_others(x):
    return ops.composed(x, 3.0) + 1


@program(wanting_grad, backward=True, breaks=1)
def custom_operator_that_writes_under_autograd(x):
    y = x * 2
    own.increment(y.detach(), 1)
    return y


@program(plain)
def custom_operator_that_writes_twice(x):
    own.increment(x, 1)
    y = x[0]
    own.increment(y, 2)
    own.increment(x[:, 1], 3)
    return y + x, y


@program(plain, breaks=1)
def custom_operator_that_writes_overlapping_views(x):
    return own.fill_both(x[0], x[0]), x


@program(plain, breaks=1)
def operator_that_gives_a_view(x):
    return ops.row(x, 1) + 1


@program(plain)
def operator_that_gives_its_written_argument(x):
    y = x * 2
    return ops.accumulate(y, x) + 1, y


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return torch.sigmoid(self.layer(x)) * own.scaled(self.layer(x), 0.5)


@program(wanting_grad, factory=True, backward=True)
def custom_operator_in_a_module():
    return Gated()


@program(plain)
def operators_found_by_name(x):
    add = torch.ops.aten.add.Tensor
    return add(x, x, alpha=2), torch.ops.aten.relu(x), getattr(torch.ops.aten, "neg")(x)


@program(plain)
def operators_of_prims(x):
    return torch.ops.prims.mul(x, x)


@program(lambda: (torch.tensor([-0.0, float("-inf"), float("inf"), 2.0, -3.0] * 5),))
def powers_that_are_no_roots(x):
    return (
        x ** torch.tensor(0.5),
        x.double() ** torch.tensor(-0.5).double(),
        x.half() ** 0.5,
        x.half() ** -0.5,
    )
