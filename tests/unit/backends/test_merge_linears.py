"""Linear layers of one input become one where that wins."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from devices import record_on, run_on_cpu
from graphkit import find, ops, record, run
from torch import Tensor

import lampwork
from lampwork.backends.native.passes.merge_linears import MergeLinears
from lampwork.codegen.gpu.nvidia import describe as describe_card
from lampwork.codegen.llvm.isa.x86 import describe, host_target
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.split_constants import SplitConstants

F = torch.nn.functional
AVX512, AVX2 = describe("avx512"), describe("avx2")


def no_card(device: torch.device, config: Config) -> Target:
    raise AssertionError(f"{device} was not asked for")


def weights(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) / 8 for shape in shapes]


def merged(fn, x: Tensor, bound: list[Tensor], target: Target = AVX512):
    """The graph after the pass for a target, and its context; results are compared with those before."""
    graph = record(fn, x, bound=bound)
    want = run(graph, x, *bound)
    ctx = PassContext()
    for step in (SplitConstants(), MergeLinears(lambda config: target, no_card), SplitConstants()):
        step.run(graph, ctx)
        verify(graph)
    for got, expected in zip(run(graph, x, *bound), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        assert got.stride() == expected.stride()
    return graph, ctx


def qkv(x, wq, bq, wk, wv, bv):
    q, k, v = F.linear(x, wq, bq), F.linear(x, wk), F.linear(x, wv, bv)
    return torch.tanh(q) + torch.sigmoid(k) * torch.exp(v)


def test_query_key_and_value_of_few_rows_merge_with_their_biases() -> None:
    x = torch.randn(1, 16, 64, dtype=torch.float64)
    bound = weights((64, 64), (64,), (64, 64), (64, 64), (64,))
    graph, ctx = merged(qkv, x, bound)
    assert ctx.hits["merge-linears"] == 1
    assert ops(graph).count("linear") == 1 and ops(graph).count("slice") == 3
    linear = find(graph, "linear")
    assert [str(n.meta["val"]) for n in linear.args[1:]] == ["float64[192, 64]", "float64[192]"]
    assert all(n.meta.get("constant") for n in linear.args[1:])
    assert [n.args[2:] for n in linear.users] == [(0, 64), (64, 128), (128, 192)]


def test_weights_computed_from_others_are_brought_before_the_product() -> None:
    def program(x, a, b):
        return torch.relu(x @ (a * 2)) * torch.relu(x @ (b + 1)), x @ (a * 2).t()[:4].t()

    def canonical(x, a, b):
        first = F.linear(x, (a * 2).t())
        second = F.linear(x, (b + 1).t())
        return torch.relu(first) * torch.relu(second)

    graph, ctx = merged(canonical, torch.randn(16, 64, dtype=torch.float64), weights((64, 64), (64, 64)))
    assert ctx.hits["merge-linears"] == 1


def rows(n: int, *widths: int):
    def program(x, *layers):
        out = x.sum(-1, keepdim=True)
        for w in layers:
            out = out * torch.tanh(F.linear(x, w)).sum(-1, keepdim=True)
        return out

    x = torch.randn(n, 64, dtype=torch.float64)
    return program, x, weights(*((w, 64) for w in widths))


@pytest.mark.parametrize(
    ("n", "widths", "fires"),
    [
        (16, (64, 64, 64), True),  # the edges of three make a panel
        (1, (64, 64, 64), True),  # one call
        (1, (64, 64), False),
        (16, (48, 48, 48), False),  # no edges
        (16, (64, 64), True),
        (128, (64, 64, 64), True),
        (129, (64, 64, 64), False),
        (16, (96, 64), False),
    ],
)
def test_it_fires_where_it_was_measured_to_win(n: int, widths: tuple[int, ...], fires: bool) -> None:
    _, ctx = merged(*rows(n, *widths))
    assert ctx.hits["merge-linears"] == int(fires), ctx.refusals


def test_the_panels_are_those_of_the_target() -> None:
    _, ctx = merged(*rows(16, 64, 64), AVX2)
    assert not ctx.hits, "64 columns are whole panels of 16"
    _, ctx = merged(*rows(16, 60, 60), AVX2)
    assert ctx.hits["merge-linears"] == 1
    _, ctx = merged(*rows(1, 60, 60, 60), replace(AVX2, products=frozenset()))
    assert ctx.refusals == {("merge-linears", "products of torch.float64 are calls of ATen on avx2"): 1}


def test_results_of_the_graph_keep_their_layers() -> None:
    def program(x, a, b):
        return F.linear(x, a), F.linear(x, b)

    graph, ctx = merged(program, torch.randn(16, 64, dtype=torch.float64), weights((64, 64), (64, 64)))
    assert ops(graph) == ["linear", "linear"]
    assert any("leaves the graph" in why for _, why in ctx.refusals)


def test_weights_of_the_call_and_shared_weights_stay() -> None:
    x, w = torch.randn(16, 64, dtype=torch.float64), weights((64, 64))[0]
    graph = record(lambda x, a, b: torch.relu(F.linear(x, a)) + torch.relu(F.linear(x, b)), x, w, w.clone())
    ctx = PassContext()
    MergeLinears(host_target, no_card).run(graph, ctx)
    assert not ctx.hits and any("computed in the graph" in why for _, why in ctx.refusals)

    _, ctx = merged(
        lambda x, a, b: torch.relu(F.linear(x, a)) + torch.relu(F.linear(x, b)) + b.sum(), x, [w, w.clone()]
    )
    assert any("other readers" in why for _, why in ctx.refusals)


def test_memory_that_is_read_by_strides_stays_as_it_is() -> None:
    def program(x, a, b):
        windows = F.linear(x, a).as_strided((8, 2, 64), (128, 64, 1))
        return torch.relu(windows).sum() + torch.relu(F.linear(x, b))

    _, ctx = merged(program, torch.randn(16, 64, dtype=torch.float64), weights((64, 64), (64, 64)))
    assert not ctx.hits and any("by strides" in why for _, why in ctx.refusals)


def test_other_inputs_stay_apart() -> None:
    _, ctx = merged(
        lambda x, a, b: torch.relu(F.linear(x, a)) + torch.relu(F.linear(x + 1, b)),
        torch.randn(16, 64, dtype=torch.float64),
        weights((64, 64), (64, 64)),
    )
    assert not ctx.hits


def test_open_sizes_and_gradients_are_left_alone() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(64, 64) for _ in range(3))

        def forward(self, x):
            return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))

    torch.manual_seed(0)
    model = Attention()
    compiled = lampwork.compile(model, dynamic=False)
    x = torch.randn(2, 2, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        assert "merge-linears: 1 rewrites" in compiled.stages.text("passes")
        # The weights are watched as before.
        with torch.no_grad():
            model.k.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        opened = lampwork.compile(model, dynamic=True)
        torch.testing.assert_close(opened(x), model(x))
        assert "merge-linears: 0 rewrites" in opened.stages.text("passes")

    trained = lampwork.compile(copy.deepcopy(model), dynamic=False)
    trained(x).sum().backward()
    assert "merge-linears: 0 rewrites" in trained.stages.text("passes")


# --- on cards ---------------------------------------------------------------------------------------------------------


def merged_on_card(fn, x: Tensor, bound: list[Tensor], processors: int = 132, **fields: int):
    """The same for a graph on a card."""
    recorded = record_on(fn, [x], bound=bound)
    target = replace(describe_card(90, processors), **fields)
    ctx = PassContext()
    for step in (
        SplitConstants(),
        MergeLinears(host_target, lambda device, config: target),
        SplitConstants(),
    ):
        step.run(recorded.graph, ctx)
        verify(recorded.graph)
    want = fn(x.double(), *(each.double() for each in bound)).double()
    tolerance = 0.05 if x.dtype is torch.bfloat16 else 1e-5
    (got,) = run_on_cpu(recorded, [x], bound)
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
    return recorded.graph, ctx


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_small_products_on_a_card_become_one_call(dtype: torch.dtype) -> None:
    x = torch.randn(2, 200, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    bound = [each.to(dtype) for each in weights((64, 64), (64,), (64, 64), (64, 64), (64,))]
    graph, ctx = merged_on_card(qkv, x, bound)
    assert ctx.hits == {"merge-linears": 1} and ops(graph).count("linear") == 1
    assert all(each.meta.get("constant") for each in find(graph, "linear").args[1:])


@pytest.mark.parametrize(
    ("n", "widths", "fields", "why"),
    [
        (512, (64, 64), {"processors": 4}, "fill the card"),  # four tiles each
        (512, (64, 64), {"processors": 5}, "fill the card"),  # two turns either way
        (384, (64, 64), {"processors": 6}, ""),
        (129, (64, 200), {}, ""),
        (16, (64, 64), {"merged_bytes": 65535}, "too large"),
        (16, (64, 64), {"merged_bytes": 65536}, ""),
        (0, (64, 64), {}, "empty"),
    ],
)
def test_products_that_fill_a_card_stay(n: int, widths: tuple[int, ...], fields, why: str) -> None:
    _, ctx = merged_on_card(*rows(n, *widths), **fields)
    assert ctx.hits["merge-linears"] == (not why), ctx.refusals
    assert not why or any(why in reason for _, reason in ctx.refusals)


def test_weights_that_are_cast_are_cast_once_on_a_card() -> None:
    def fn(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        x, a, b = x.to(torch.bfloat16), a.to(torch.bfloat16), b.to(torch.bfloat16)
        return torch.relu(F.linear(x, a)) + torch.tanh(F.linear(x, b))

    graph, ctx = merged_on_card(
        fn, torch.randn(8, 64, dtype=torch.bfloat16), [w.float() for w in weights((64, 64), (64, 64))]
    )
    assert ctx.hits == {"merge-linears": 1}


def test_layers_of_several_devices_stay() -> None:
    x, bound = torch.randn(8, 64, dtype=torch.float64), weights((64, 64), (64, 64))
    recorded = record_on(
        lambda x, a, b: torch.relu(F.linear(x, a.to(x.device))) + F.linear(x, b.to(x.device)).exp(),
        [x],
        bound=bound,
        bound_devices=["cpu", "cuda:0"],
    )
    ctx = PassContext()
    step = MergeLinears(host_target, lambda device, config: describe_card(90))
    for each in (SplitConstants(), step):
        each.run(recorded.graph, ctx)
        verify(recorded.graph)
    (got,) = run_on_cpu(recorded, [x], bound)
    a, b = bound
    torch.testing.assert_close(got, torch.relu(F.linear(x, a)) + F.linear(x, b).exp())
