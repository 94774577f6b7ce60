"""Biases of products of float32 on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import CUDA, compile_on, record_on, run_on_cpu, without_lazy_init
from graphkit import find, ops
from torch import Tensor

from lampwork.backends.native.passes.bias_behind_product import BiasBehindProduct
from lampwork.codegen.gpu.nvidia import describe
from lampwork.graph.record import Recorder
from lampwork.graph.recorded import Recorded
from lampwork.graph.spec import TensorSpec
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.runtime.program import CallAten, CallKernel
from lampwork.transforms.split_constants import SplitConstants

NAME = BiasBehindProduct.name
MAKE = torch.Generator().manual_seed(0)


def passed(
    fn: Callable[..., Any],
    *shape: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cuda:0",
    tf32: bool = False,
    turned: bool = False,
    foreign: bool = False,
) -> tuple[Recorded, PassContext]:
    """The graph of fn(x, w, b) after the pass; results are eager's, bit for bit on one processor. `turned`: w is
    [columns, rows]."""
    depth = shape[-1]
    wide = (depth, 24) if turned else (24, depth)
    x, w, b = ((torch.randn(each, generator=MAKE) / 4).to(dtype) for each in (shape, wide, (24,)))
    recorded = record_on(fn, [x], [device], [w, b], [device] * 2)
    ctx = PassContext(foreign=lambda node: foreign)
    step = BiasBehindProduct(lambda device, config: replace(describe(90), tf32=tf32))
    for each in (SplitConstants(), step, SplitConstants()):
        each.run(recorded.graph, ctx)
        verify(recorded.graph)
    (found,) = run_on_cpu(recorded, [x], [w, b])
    eager, exact = fn(x, w, b), fn(x.double(), w.double(), b.double())
    assert found.stride() == eager.stride()
    torch.testing.assert_close(found.double(), exact, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-2)
    return recorded, ctx


def gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return F.layer_norm(y + x.sum(-1, keepdim=True), (24,))


def through_views(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b).view(-1, 4, 6).transpose(0, 1).relu() * 2


@pytest.mark.parametrize("fn", [gelu, normed, through_views])
@pytest.mark.parametrize("shape", [(8, 16), (2, 5, 16), (1, 16), (2, 1, 3, 1)])
def test_what_follows_adds_the_bias(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    recorded, ctx = passed(fn, *shape)
    assert ctx.hits == {NAME: 1}
    layer = find(recorded.graph, "linear")
    assert layer.args[2:] in ((), (None,)) and find(recorded.graph, "add") in layer.users
    program = compile_on(recorded.graph)
    calls = [step for step in program.instructions if isinstance(step, CallAten)]
    assert len(calls) == 1 and any(isinstance(step, CallKernel) for step in program.instructions)


def test_products_that_lie_as_they_are_read() -> None:
    recorded, ctx = passed(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), 8, 16, turned=True)
    assert ctx.hits == {NAME: 1} and {"mm", "add"} <= {*ops(recorded.graph)}


def read_by_a_call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b).view(1, -1, 2, 12).transpose(1, 2)
    return F.scaled_dot_product_attention(y, y, y)


def read_by_both(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return y.relu() @ y.transpose(0, 1)


EXACT = "products of torch.float32 end in their bias"


@pytest.mark.parametrize(
    ("fn", "options", "why"),
    [
        (gelu, {"device": "cpu"}, ""),
        (gelu, {"tf32": True}, EXACT),
        (gelu, {"dtype": torch.bfloat16}, "products of torch.bfloat16 end in their bias"),
        (gelu, {"dtype": torch.float64}, "products of torch.float64 end in their bias"),
        (gelu, {"foreign": True}, "a backend from outside takes it"),
        (lambda x, w, b: F.linear(x, w, b), {}, "what reads it is no kernel of ours"),
        (lambda x, w, b: F.linear(x, w, b).view(2, 4, 24), {}, "what reads it is no kernel of ours"),
        (read_by_a_call, {}, "what reads it is no kernel of ours"),
        (read_by_both, {}, "what reads it is no kernel of ours"),
        (lambda x, w, b: F.gelu(F.linear(x, w)), {}, ""),
        (lambda x, w, b: F.linear(x.select(0, 0), w, b).exp(), {}, "it is no product of matrices"),
        (lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2.0).exp(), {}, ""),
        (lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5).exp(), {}, ""),
        (lambda x, w, b: torch.addmm(b.narrow(0, 0, 1), x, w.t().narrow(1, 0, 1)).exp(), {}, None),
        (lambda x, w, b: torch.addmm(x.narrow(1, 0, 1), x, w.t()).exp(), {}, "it is no product of matrices"),
    ],
)
def test_what_stays(fn: Callable[..., Any], options: dict[str, Any], why: str | None) -> None:
    _, ctx = passed(fn, 8, 16, **options)
    if why is None:
        assert ctx.hits == {NAME: 1}
        return
    assert not ctx.hits
    reasons = [reason for _, reason in ctx.refusals]
    assert (len(reasons) == 1 and reasons[0].startswith(why)) if why else not reasons


NOTHING = "it may be a sum of nothing, which eager leaves out: the bias keeps its -0"


@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_of_nothing_keeps_its_bias(turned: bool) -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(-0.0 * b.abs(), x, w).exp() if turned else F.linear(x, w, b).exp()

    _, ctx = passed(fn, 8, 0, turned=turned)
    assert not ctx.hits and [reason for _, reason in ctx.refusals] == [NOTHING]


@pytest.mark.parametrize(
    ("lowest", "known", "hits"),
    [(0, False, {}), (1, False, {NAME: 1}), (2, False, {NAME: 1}), (0, True, {NAME: 1})],
)
def test_an_open_depth_may_be_nothing(lowest: int, known: bool, hits: dict[str, int]) -> None:
    """`known`: the depth of the weight is a number."""
    x, w, b = torch.randn(8, 16), torch.randn(24, 16), torch.randn(24)
    with without_lazy_init(), Recorder() as rec:
        depth = rec.scope.symbol(16, lowest)
        rows, columns, bias = (replace(TensorSpec.of(each), device=CUDA) for each in (x, w, b))
        rows = replace(rows, shape=(8, depth), strides=(depth, 1))
        columns = columns if known else replace(columns, shape=(24, depth), strides=(depth, 1))
        given = [
            rec.input(each, f"x{n}", spec=of)
            for n, (each, of) in enumerate(((x, rows), (w, columns), (b, bias)))
        ]
        result = gelu(*given)
    graph, ctx = rec.finish([result]).graph, PassContext()
    before = list(rec.scope.conditions)
    BiasBehindProduct(lambda device, config: describe(90)).run(graph, ctx)
    assert ctx.hits == hits and rec.scope.conditions == before
    assert [reason for _, reason in ctx.refusals] == ([] if hits else [NOTHING])


@pytest.mark.parametrize(
    ("bias", "hits"),
    [
        (lambda x, b: b.narrow(0, 0, 1), {NAME: 1}),
        (lambda x, b: b.unsqueeze(0), {}),
        (lambda x, b: x.sum(1, keepdim=True), {}),
        (lambda x, b: b.select(0, 0), {}),
    ],
    ids=["(1,)", "(1, N)", "(M, 1)", "()"],
)
def test_biases_of_addmm_that_broadcast(bias: Callable[..., Tensor], hits: dict[str, int]) -> None:
    _, ctx = passed(lambda x, w, b: torch.addmm(bias(x, b), x, w).exp(), 8, 16, turned=True)
    assert ctx.hits == hits


def test_in_autocast_a_product_of_float32_is_one_of_a_half_type() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            return F.linear(x, w, b).float().exp()
        finally:
            torch.set_autocast_enabled("cuda", False)

    x, w, b = torch.randn(8, 16), torch.randn(24, 16), torch.randn(24)
    graph, ctx = record_on(fn, [x], bound=[w, b]).graph, PassContext()
    BiasBehindProduct(lambda device, config: describe(90)).run(graph, ctx)
    assert not ctx.hits
    assert [reason for _, reason in ctx.refusals] == ["products of torch.bfloat16 end in their bias"]


def test_gradients_keep_their_layers() -> None:
    x = torch.randn(8, 16, generator=MAKE)
    w, b = torch.randn(24, 16, generator=MAKE).requires_grad_(), torch.randn(24, generator=MAKE)
    recorded = record_on(gelu, [x], bound=[w, b])
    ctx = PassContext()
    BiasBehindProduct(lambda device, config: describe(90)).run(recorded.graph, ctx)
    assert not ctx.hits and [reason for _, reason in ctx.refusals] == ["gradients are recorded"]


def test_fuel_is_counted() -> None:
    x, w, b = torch.randn(8, 16), torch.randn(24, 16), torch.randn(24)
    recorded = record_on(
        lambda x, w, b: F.linear(gelu(x, w, b), w.t(), b.narrow(0, 0, 16)).exp(), [x], bound=[w, b]
    )
    ctx = PassContext(fuel=1)
    BiasBehindProduct(lambda device, config: describe(90)).run(recorded.graph, ctx)
    assert ctx.hits == {NAME: 1} and ops(recorded.graph).count("linear") == 2
