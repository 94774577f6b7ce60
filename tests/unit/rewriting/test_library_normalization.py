"""Norms and softmax written out become their ops; twins that look like them stay."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from graphkit import ops
from librarykit import assert_becomes, assert_stays, rewritten

F = torch.nn.functional


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype) * 3 + 1


X = rows(2, 5, 16)
G, B = rows(16), rows(16) / 2

VARIANCE = {
    "pow": lambda x, c: c.pow(2).mean(-1, keepdim=True),
    "var": lambda x, c: x.var(-1, unbiased=False, keepdim=True),
    "correction": lambda x, c: torch.var(x, dim=(-1,), correction=0, keepdim=True),
    "sum": lambda x, c: (c * c).sum(-1, keepdim=True) / x.shape[-1],
    "square": lambda x, c: torch.square(x - x.mean(-1, keepdim=True)).mean(dim=2, keepdim=True),
}
AFFINE = {
    "weight first": lambda c, v, g, b: g * c / torch.sqrt(v + 1e-5) + b,
    "weight last": lambda c, v, g, b: c * torch.rsqrt(v + 1e-5) * g + b,
    "power": lambda c, v, g, b: b + g * (c / (v + 1e-5) ** 0.5),
    "negative power": lambda c, v, g, b: g * (c * (v + 1e-5).pow(-0.5)) + b,
}


@pytest.mark.parametrize(("variance", "affine"), list(itertools.product(VARIANCE, AFFINE)))
def test_layer_norm(variance: str, affine: str) -> None:
    def formula(x, g, b):
        c = x - x.mean(-1, keepdim=True)
        return AFFINE[affine](c, VARIANCE[variance](x, c), g, b)

    assert_becomes(formula, lambda x, g, b: F.layer_norm(x, (16,), g, b, 1e-5), [X], [G, B])


def plain(x, eps=1e-5, dims=(-1,), **options):
    mean = x.mean(dims, keepdim=True)
    return (x - mean) / torch.sqrt(x.var(dims, keepdim=True, correction=0) + eps)


def test_layer_norm_of_several_dimensions_and_without_weights() -> None:
    assert_becomes(plain, lambda x: F.layer_norm(x, (16,)), [X])
    assert_becomes(lambda x: plain(x, 1e-3, (-2, -1)), lambda x: F.layer_norm(x, (5, 16), eps=1e-3), [X])
    assert_becomes(lambda x, b: plain(x) + b, lambda x, b: F.layer_norm(x, (16,), None, b), [X], [B])


def test_layer_norm_in_float32_of_half_values() -> None:
    x = rows(4, 16, dtype=torch.bfloat16)
    assert_becomes(
        lambda x: plain(x.float()).to(x.dtype), lambda x: F.layer_norm(x.float(), (16,)).to(x.dtype), [x]
    )


def test_constant_rows_and_infinities_are_as_before() -> None:
    x = X.clone()
    x[0, 0], x[0, 1, 3], x[1, 2, 5] = 7.0, math.inf, math.nan
    graph, _ = rewritten(plain, [x])
    assert ops(graph) == ["layer_norm"]


STAYS = {
    "the sample's variance": lambda x: (x - x.mean(-1, True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5),
    "epsilon outside": lambda x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True, correction=0) + 1e-5),
    "other dimensions": lambda x: (
        (x - x.mean(-1, True)) / torch.sqrt(x.var(1, keepdim=True, correction=0) + 1e-5)
    ),
    "the first dimension": lambda x: plain(x, dims=(0,)),
    "a sum": lambda x: (x - x.sum(-1, True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5),
    "another tensor's variance": lambda x: (
        (x - x.mean(-1, True)) / torch.sqrt((x * 2).var(-1, keepdim=True, correction=0) + 1e-5)
    ),
    "squares of what is not centred": lambda x: (
        (x - x.mean(-1, True)) / torch.sqrt(x.pow(2).mean(-1, True) + 1e-5)
    ),
    "fourth powers": lambda x: x * torch.rsqrt(x.pow(4).mean(-1, True) + 1e-5),
    "rms of others": lambda x: x * torch.rsqrt(x.flip(0).pow(2).mean(-1, True) + 1e-5),
    "a negative epsilon": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, True) - 1e-5),
}


@pytest.mark.parametrize("twin", STAYS)
def test_what_only_looks_like_it_stays(twin: str) -> None:
    assert_stays(STAYS[twin], [X])


def test_a_weight_of_each_row_stays_outside() -> None:
    weight = rows(2, 1, 16)
    graph, _ = rewritten(lambda x, g: plain(x) * g, [X], [weight])
    assert ops(graph) == ["layer_norm", "mul"]
    graph, _ = rewritten(lambda x, g: plain(x) * g, [X], [rows(1)])
    assert ops(graph) == ["layer_norm", "mul"]


def test_a_norm_that_is_read_twice_keeps_its_weight_outside() -> None:
    def twice(x, g):
        y = plain(x)
        return y * g, torch.relu(y)

    graph, ctx = rewritten(twice, [X], [G])
    assert ops(graph) == ["layer_norm", "mul", "relu"]
    assert any("also read by" in why for _, why in ctx.refusals)


RMS = {
    "Llama": lambda x, g: g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "root": lambda x, g: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g,
    "power": lambda x, g: x * (x.square().mean(-1, keepdim=True) + 1e-6).pow(-0.5) * g,
    "sum": lambda x, g: g * (x / torch.sqrt((x**2).sum(-1, keepdim=True) / 16 + 1e-6)),
}


@pytest.mark.parametrize("spelling", RMS)
def test_rms_norm(spelling: str) -> None:
    assert_becomes(RMS[spelling], lambda x, g: F.rms_norm(x, (16,), g, 1e-6), [X], [G])


def grouped(x, g, b, groups=4):
    y = plain(x.view(x.shape[0], groups, -1))
    return y.view(x.shape) * g.view(1, -1, 1, 1) + b.view(1, -1, 1, 1)


def test_group_norm() -> None:
    x = rows(2, 16, 3, 3)
    graph, ctx = rewritten(grouped, [x], [G, B])
    assert [op for op in ops(graph) if op != "view"] == ["group_norm"]
    assert {"group_norm_formula", "weight_into_group_norm", "bias_into_group_norm"} <= ctx.hits.keys()


def test_groups_across_the_batch_stay() -> None:
    x = rows(4, 16, 3, 3)
    graph, ctx = rewritten(lambda x: plain(x.view(2, 8, -1)).view(x.shape), [x])
    assert "group_norm" not in ops(graph)
    assert any("no groups of the channels" in why for _, why in ctx.refusals)


def softmax(x, dim=-1):
    powers = torch.exp(x - x.amax(dim, keepdim=True))
    return powers / powers.sum(dim, keepdim=True)


def softmax_by_max(x):
    powers = torch.exp(x - torch.max(x, dim=-1, keepdim=True).values)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def log_softmax(x):
    centred = x - x.max(-1, keepdim=True)[0]
    return centred - torch.log(torch.exp(centred).sum(-1, keepdim=True))


def with_infinities() -> torch.Tensor:
    x = rows(6, 8) * 30
    x[0, :4], x[1], x[2, 3], x[3, 1] = -math.inf, -math.inf, math.inf, math.nan
    return x


def test_softmax_infinities_included() -> None:
    for formula in (softmax, softmax_by_max):
        assert_becomes(formula, lambda x: F.softmax(x, 1), [with_infinities()])
    assert_becomes(lambda x: softmax(x, 0), lambda x: F.softmax(x, 0), [with_infinities()])
    assert_becomes(log_softmax, lambda x: F.log_softmax(x, 1), [with_infinities()])


SOFTMAX_TWINS = {
    "no maximum": lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True),
    "the minimum": lambda x: (lambda e: e / e.sum(-1, keepdim=True))(torch.exp(x - x.amin(-1, True))),
    "another dimension's sum": lambda x: (lambda e: e / e.sum(0, keepdim=True))(
        torch.exp(x - x.amax(-1, True))
    ),
    "another dimension's maximum": lambda x: (lambda e: e / e.sum(-1, keepdim=True))(
        torch.exp(x - x.amax(0, True))
    ),
    "powers kept": lambda x: (lambda e: (e / e.sum(-1, keepdim=True), e))(torch.exp(x - x.amax(-1, True))),
    "logsumexp": lambda x: torch.log(torch.exp(x - x.amax(-1, True)).sum(-1, keepdim=True)),
    "the logarithm of softmax": lambda x: torch.log(F.softmax(x, -1)),
}


@pytest.mark.parametrize("twin", SOFTMAX_TWINS)
def test_what_only_looks_like_softmax_stays(twin: str) -> None:
    assert_stays(SOFTMAX_TWINS[twin], [rows(6, 8)])
