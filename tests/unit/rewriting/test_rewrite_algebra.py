"""The algebra: each rule fires, gives eager's bits, and has a twin that must not fire."""

from __future__ import annotations

import math

import pytest
import torch
from graphkit import assert_equal, assert_same, ops, record, run

from lampwork.plugins.context import PassContext
from lampwork.rewriting.algebra import algebra_rules
from lampwork.rewriting.apply.driver import Rewriter
from lampwork.transforms.common_subexpressions import CommonSubexpressions

aten = torch.ops.aten
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 1e-40, -1e-40, 1e30, math.inf, -math.inf, math.nan]


def floats(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(SPECIAL).repeat_interleave(12).to(dtype).reshape(12, 12).contiguous()


def more() -> torch.Tensor:
    return torch.tensor(SPECIAL).repeat(12).reshape(12, 12)


def ints() -> torch.Tensor:
    return torch.tensor([-(2**31), -7, -1, 0, 1, 2, 9, 2**31 - 1], dtype=torch.int32)


def bytes_() -> torch.Tensor:
    return torch.tensor([0, 1, 2, 127, 128, 255], dtype=torch.uint8)


def bools() -> torch.Tensor:
    return torch.tensor([True, False, True, True])


def rewritten(fn, *inputs):
    graph = record(fn, *inputs)
    ctx = PassContext()
    Rewriter(algebra_rules()).run(graph, ctx)
    return graph, ctx


# (before, expected, inputs); a relu in front keeps results from being arguments.
FIRES = {
    "mul one": (lambda x: torch.relu(x) * 1, lambda x: torch.relu(x), floats),
    "one mul": (lambda x: 1.0 * torch.relu(x), lambda x: torch.relu(x), floats),
    "mul ones": (lambda x: torch.relu(x) * torch.ones(12, 12), lambda x: torch.relu(x), floats),
    "div one": (lambda x: torch.exp(x) / 1, lambda x: torch.exp(x), floats),
    "sub zero": (lambda x: torch.neg(x) - 0.0, lambda x: torch.neg(x), floats),
    "add minus zero": (lambda x: torch.neg(x) + -0.0, lambda x: torch.neg(x), floats),
    "add zero int": (lambda x: torch.neg(x) + 0, lambda x: torch.neg(x), ints),
    "mul zero int": (lambda x: torch.neg(x) * 0 + x, lambda x: torch.zeros_like(torch.neg(x)) + x, ints),
    "pow one": (lambda x: torch.exp(x) ** 1, lambda x: torch.exp(x), floats),
    "pow two": (lambda x: x**2, lambda x: x * x, floats),
    "pow two int": (lambda x: x**2, lambda x: x * x, ints),
    "pow three": (lambda x: x**3, lambda x: x * x * x, floats),
    "pow half": (lambda x: x**0.5, lambda x: x.sqrt(), floats),
    "pow minus half": (lambda x: x**-0.5, lambda x: x.rsqrt(), floats),
    "pow minus one": (lambda x: x**-1, lambda x: x.reciprocal(), floats),
    "mul minus one": (lambda x: x * -1, lambda x: -x, floats),
    "neg neg": (lambda x: -(-torch.exp(x)), lambda x: torch.exp(x), floats),
    "add neg": (lambda x: x.exp() + (-x), lambda x: x.exp() - x, floats),
    "sub neg": (lambda x: x.exp() - (-x), lambda x: x.exp() + x, floats),
    "neg sub int": (lambda x: -(x - (x + 3)), lambda x: (x + 3) - x, ints),
    "mul neg neg": (lambda x: (-x) * (-x.exp()), lambda x: x * x.exp(), floats),
    "div neg neg": (lambda x: (-x) / (-x.exp()), lambda x: x / x.exp(), floats),
    "abs neg": (lambda x: torch.abs(-x), lambda x: x.abs(), floats),
    "abs abs": (lambda x: x.abs().abs(), lambda x: x.abs(), floats),
    "abs squared": (lambda x: x.abs() * x.abs(), lambda x: x * x, floats),
    "relu relu": (lambda x: x.relu().relu(), lambda x: x.relu(), floats),
    "relu abs": (lambda x: x.abs().relu(), lambda x: x.abs(), floats),
    "floor ceil": (lambda x: x.ceil().floor(), lambda x: x.ceil(), floats),
    "round round": (lambda x: x.round().round(), lambda x: x.round(), floats),
    "sign sign": (lambda x: x.sign().sign(), lambda x: x.sign(), floats),
    "maximum same": (lambda x: torch.maximum(x.exp(), x.exp()), lambda x: x.exp(), floats),
    "maximum absorbed": (
        lambda x: torch.maximum(x, torch.maximum(x.exp(), x)),
        lambda x: torch.maximum(x, x.exp()),
        floats,
    ),
    "not not": (lambda x: torch.logical_not(torch.logical_not(~x)), lambda x: ~x, bools),
    "bit not": (lambda x: ~~(x + 1), lambda x: x + 1, ints),
    "not eq": (lambda x: torch.logical_not(x == 1), lambda x: x != 1, floats),
    "not lt int": (lambda x: torch.logical_not(x < (x + 1)), lambda x: x >= (x + 1), ints),
    "where same": (lambda x: torch.where(x > 0, x.exp(), x.exp()), lambda x: x.exp(), floats),
    "where true": (
        lambda x: torch.where(torch.ones(12, 12, dtype=torch.bool), x.exp(), x),
        lambda x: x.exp(),
        floats,
    ),
    "where not": (
        lambda x: torch.where(~(x > 0), x, x.exp()),
        lambda x: torch.where(x > 0, x.exp(), x),
        floats,
    ),
    "where where": (
        lambda x: torch.where(x > 0, torch.where(x > 0, x.exp(), x), -x),
        lambda x: torch.where(x > 0, x.exp(), -x),
        floats,
    ),
    "and true": (lambda x: (~x) & True, lambda x: ~x, bools),
    "xor self": (lambda x: (x + 1) ^ (x + 1), lambda x: torch.zeros_like(x + 1), ints),
    "div by 8": (lambda x: x / 8, lambda x: x * 0.125, floats),
    "div by 8 bf16": (lambda x: x.bfloat16() / 8, lambda x: x.bfloat16() * 0.125, floats),
}


def merged(fn, *inputs):
    """The recorded graph, equal nodes merged, as rules that want one node twice need it."""
    graph = record(fn, *inputs)
    CommonSubexpressions().run(graph, PassContext())
    return graph


@pytest.mark.parametrize("name", FIRES)
def test_fires_and_keeps_every_bit(name: str) -> None:
    before, expected, make = FIRES[name]
    x = make()
    graph = merged(before, x)
    ctx = PassContext()
    count = Rewriter(algebra_rules()).run(graph, ctx)
    assert count > 0 and ctx.hits.total() == count
    assert_same(graph, merged(expected, x))
    assert_equal(run(graph, x), [before(x)])


NEVER = {
    "add zero keeps the sign of -0.0": (lambda x: torch.neg(x) + 0.0, floats),
    "sub minus zero": (lambda x: torch.neg(x) - (-0.0), floats),
    "mul zero of floats": (lambda x: torch.neg(x) * 0, floats),
    "sub itself of floats": (lambda x: x - x, floats),
    "mul one changes the dtype": (lambda x: torch.neg(x) * 1.0, ints),
    "div one changes the dtype": (lambda x: torch.neg(x) / 1, ints),
    "mul ones broadcasts": (lambda x: torch.neg(x) * torch.ones(3, 12, 12), floats),
    "mul ones changes the dtype": (lambda x: x.neg() * torch.ones(12, 12, dtype=torch.float64), floats),
    "pow of other exponents": (lambda x: x**2.5, floats),
    "pow half of integers": (lambda x: x**0.5, ints),
    "log exp": (lambda x: x.exp().log(), floats),
    "exp log": (lambda x: x.log().exp(), floats),
    "not lt with nan": (lambda x: torch.logical_not(x < 0), floats),
    "where of others": (lambda x: torch.where(x > 0, x, x.exp()), floats),
    "where broadcasts": (lambda x: torch.where(x > 0, x[0], x[0]), floats),
    "div by 10": (lambda x: x / 10, floats),
    "div by 8 of integers": (lambda x: x / 8, ints),
    "add neg with alpha": (lambda x: torch.add(x.exp(), -x, alpha=2), floats),
    "logical and of numbers": (lambda x: torch.logical_and(x, x), floats),
    "mul one of an argument": (lambda x: x * 1, floats),
    "abs neg of unsigned numbers wraps": (lambda x: torch.abs(-x), bytes_),
    "add neg of bytes to floats": (lambda x: x.float() + (-x), bytes_),
    "sub neg of bytes from longs": (lambda x: x.long() - (-x), bytes_),
    "div neg neg of bytes": (lambda x: (-x) / (-(x + 1)), bytes_),
    "mul neg neg of bytes and longs": (lambda x: (-x) * (-x.long()), bytes_),
    "cos neg of bytes": (lambda x: torch.cos(-x), bytes_),
    "neg sub of ints and floats keeps -0.0": (lambda x: -(x - (x + 0.0)), ints),
    "div by the smallest number": (lambda x: x / 2.0**-149, floats),
}


@pytest.mark.parametrize("name", NEVER)
def test_does_not_fire(name: str) -> None:
    before, make = NEVER[name]
    x = make()
    graph = record(before, x)
    ctx = PassContext()
    Rewriter(algebra_rules()).run(graph, ctx)
    assert not ctx.hits, ctx.hits
    assert_same(graph, record(before, x))
    assert_equal(run(graph, x), [before(x)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, 1])
def test_powers_in_other_dtypes(dtype: torch.dtype, exponent: float) -> None:
    x = torch.cat([floats(dtype).flatten(), torch.linspace(-5, 5, 777, dtype=torch.float64).to(dtype)])
    graph, ctx = rewritten(lambda x: x**exponent + x, x)
    assert ctx.hits or (dtype is torch.float16 and exponent in (3, 0.5, -0.5))
    assert_equal(run(graph, x), [x**exponent + x])


def test_every_rule_fires_somewhere() -> None:
    """A rule that cannot fire is dead text."""
    x, i, b = floats(), ints(), bools()
    y = more()

    def a(x, y):
        s, t = x.exp(), y.exp()
        yield torch.div(s, -1)
        yield torch.sub(s, 0)
        yield torch.cos(-s)
        yield torch.ceil(torch.floor(s))
        yield torch.floor(torch.floor(s))
        yield torch.ceil(torch.ceil(s))
        yield torch.trunc(torch.trunc(s))
        yield torch.minimum(s, torch.minimum(s, t))
        yield torch.minimum(t, t)
        yield torch.logical_not(torch.ne(s, t))
        yield torch.where(s > t, s, torch.where(s > t, t, x))
        yield torch.where(torch.logical_not(s > t), s, t)
        yield torch.where(torch.zeros(12, 12, dtype=torch.bool), s, t.cos())
        yield torch.masked_fill(s.cos(), torch.zeros(12, 12, dtype=torch.bool), 3.0)

    def c(i):
        j = i + 1
        yield torch.sub(j, 0, alpha=3)
        yield j | 0
        yield j ^ 0
        yield j & -1
        yield j & 0
        yield j & j
        yield j | j
        yield j - j
        yield j >> 0
        yield j << 0
        for compare in (torch.lt, torch.le, torch.gt, torch.ge):
            yield torch.logical_not(compare(i, j))

    def d(b):
        n = ~b
        yield n | False
        yield torch.logical_and(n, torch.ones(4, dtype=torch.bool))
        yield torch.logical_or(n, torch.zeros(4, dtype=torch.bool))
        yield torch.logical_xor(n, torch.zeros(4, dtype=torch.bool))
        yield torch.logical_and(n, n)
        yield torch.logical_or(n, n)

    hits = PassContext()
    rewriter = Rewriter(algebra_rules())
    for fn, args in ((a, (x, y)), (c, (i,)), (d, (b,))):
        # One at a time: a result that another one is computed from may not be replaced.
        for number in range(len(list(fn(*args)))):

            def one(*args, fn=fn, number=number):
                return list(fn(*args))[number]

            graph = merged(one, *args)
            rewriter.run(graph, hits)
            assert_equal(run(graph, *args), [one(*args)])
    for before, _, make in FIRES.values():
        rewriter.run(merged(before, make()), hits)
    never = {r.name for r in algebra_rules()} - set(hits.hits)
    assert not never


def test_a_refusal_says_why() -> None:
    x = floats()
    graph = record(lambda x: x / 10, x)
    ctx = PassContext()
    Rewriter(algebra_rules()).run(graph, ctx)
    assert ("divide_by_power_of_two", "10 is not a power of two") in ctx.refusals
    assert ops(graph) == ["div"]
