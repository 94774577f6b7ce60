"""Each pass: before, expected, a twin that must not fire, numbers against eager."""

from __future__ import annotations

import operator

import pytest
import torch
from graphkit import assert_equal, assert_same, find, ops, record, run, structure

from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.rewriting.schema import is_pinned
from lampwork.transforms.algebra import Algebra
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.constant_folding import ConstantFolding
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.split_constants import SplitConstants

aten = torch.ops.aten


def apply(graph, *passes, fuel=-1):
    ctx = PassContext(fuel=fuel)
    for p in passes:
        p.run(graph, ctx)
        verify(graph)
    return ctx


def x34() -> torch.Tensor:
    return torch.arange(12, dtype=torch.float64).reshape(3, 4) - 5.5


# --- dead-code ------------------------------------------------------------------------------------


def test_dead_code_goes() -> None:
    graph = record(lambda x: (x.exp(), (x + 1).neg())[0], x34())
    ctx = apply(graph, DeadCode())
    assert ops(graph) == ["exp"] and ctx.hits["dead-code"] == 2


def test_random_ops_are_never_dead() -> None:
    graph = record(lambda x: (torch.rand_like(x), x.exp())[1], x34())
    apply(graph, DeadCode())
    assert ops(graph) == ["rand_like", "exp"]


def test_fuel_stops_a_pass() -> None:
    graph = record(lambda x: (x.exp(), (x + 1).neg())[0], x34())
    ctx = apply(graph, DeadCode(), fuel=1)
    assert ops(graph) == ["exp", "add"] and ctx.fuel == 0


# --- common-subexpressions ------------------------------------------------------------------------


def test_equal_nodes_merge() -> None:
    graph = record(lambda x: (x.exp() + 1) * (x.exp() + 1), x34())
    apply(graph, CommonSubexpressions())
    assert ops(graph) == ["exp", "add", "mul"]
    assert_equal(run(graph, x34()), [(x34().exp() + 1) ** 2])


def test_literals_of_other_kinds_do_not_merge() -> None:
    def program(x):
        return (
            torch.stack([x + 0.0, x + -0.0]),
            (x > 1).sum() + (x > True).sum(),
            x.sum(0) + x.sum(0, keepdim=True),
        )

    graph = record(program, x34())
    apply(graph, CommonSubexpressions())
    assert ops(graph).count("add") == 4 and ops(graph).count("sum") == 4


def test_results_do_not_merge() -> None:
    graph = record(lambda x: (x.exp(), x.exp()), x34())
    ctx = apply(graph, CommonSubexpressions())
    assert ops(graph) == ["exp", "exp"] and not ctx.hits
    assert ctx.refusals["common-subexpressions", "the result exp_1 would become the same tensor as exp"] == 1


def test_views_of_results_do_not_merge_their_memory() -> None:
    graph = record(lambda x: (x.exp().t(), x.exp()[0]), x34())
    apply(graph, CommonSubexpressions())
    assert ops(graph).count("exp") == 2


def test_random_ops_do_not_merge() -> None:
    graph = record(lambda x: torch.rand_like(x) - torch.rand_like(x), x34())
    apply(graph, CommonSubexpressions())
    assert ops(graph).count("rand_like") == 2


def test_multi_output_ops_merge_with_their_items() -> None:
    graph = record(lambda x: x.sort(0)[0] + x.sort(0)[0], x34())
    apply(graph, CommonSubexpressions(), DeadCode())
    assert ops(graph) == ["sort", "getitem", "add"]
    assert_equal(run(graph, x34()), [x34().sort(0)[0] * 2])


# --- remove-noops ---------------------------------------------------------------------------------

NOOPS = {
    "clone": lambda x: x.exp().clone().neg(),
    "clone of an argument": lambda x: x.clone().neg(),
    "cast to the same dtype": lambda x: aten._to_copy.default(x.exp(), dtype=torch.float64).neg(),
    "expand to the same shape": lambda x: x.exp().expand(3, 4).neg(),
    "view to the same shape": lambda x: x.exp().view(3, 4).neg(),
    "permutation of nothing": lambda x: x.exp().permute(0, 1).neg(),
    "whole slice": lambda x: x.exp()[:, 0:4].neg(),
    "squeeze of nothing": lambda x: x.exp().squeeze(1).neg(),
    "detach": lambda x: x.exp().detach().neg(),
    "dropout": lambda x: torch.nn.functional.dropout(x.exp(), 0.5, False).neg(),
}


@pytest.mark.parametrize("name", NOOPS)
def test_noops_go(name: str) -> None:
    fn = NOOPS[name]
    graph = record(fn, x34())
    apply(graph, RemoveNoops())
    assert ops(graph)[-1] == "neg" and len(ops(graph)) == (1 if "argument" in name else 2)
    assert_equal(run(graph, x34()), [fn(x34())])


KEPT = {
    "the result is a copy of an argument": lambda x: x.clone(),
    "a view of the result is a view of a copy": lambda x: x.clone()[0],
    "one of two results is a copy of the other": lambda x: (lambda y: (y, y.clone()))(x.exp()),
    "the copy changes the strides": lambda x: x.t().exp().clone(memory_format=torch.contiguous_format).neg(),
    "the cast changes the dtype": lambda x: x.exp().to(torch.float32).neg(),
    "the slice drops something": lambda x: x.exp()[:, 0:3].neg(),
    "dropout draws": lambda x: torch.nn.functional.dropout(x.exp(), 0.5, True).neg(),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_the_caller_can_tell_apart_stays(name: str) -> None:
    fn = KEPT[name]
    graph = record(fn, x34())
    before = structure(graph)
    ctx = apply(graph, RemoveNoops())
    assert structure(graph) == before and not ctx.hits


def test_a_result_that_aliases_an_argument_still_does() -> None:
    graph = record(lambda x: x.view(12).view(3, 4).t(), x34())
    apply(graph, Canonicalize(), RemoveNoops(), Algebra())
    x = x34()
    result = run(graph, x)[0]
    assert result.data_ptr() == x.data_ptr() and result.stride() == (1, 4)


def test_a_detach_that_stops_gradients_stays() -> None:
    x = x34().requires_grad_()
    from lampwork.graph.record import Recorder

    with Recorder() as rec:
        result = (rec.input(x, "x").exp().detach() * 2).neg()
    graph = rec.finish([result]).graph
    apply(graph, RemoveNoops())
    if find(graph, "exp").meta["val"].requires_grad:
        assert "detach" in ops(graph)


# --- constant-folding -----------------------------------------------------------------------------


def test_literal_tensors_fold() -> None:
    def program(x):
        c = (torch.full((4,), 2.0, dtype=torch.float64) * 3 - 1).sqrt()
        return (
            x
            + c.expand(3, 4)
            + torch.zeros(3, 4).to(torch.float64)[0]
            + torch.ones(1, dtype=torch.int32).view(())
        )

    graph = record(program, x34())
    apply(graph, ConstantFolding(), DeadCode())
    assert sorted(set(ops(graph))) == ["add", "full"]
    assert_equal(run(graph, x34()), [program(x34())])


def test_folding_rounds_as_the_dtype_does() -> None:
    def program(x):
        return (
            x + torch.full((4,), 0.1, dtype=torch.bfloat16) * 3 + torch.full((), 200, dtype=torch.uint8) * 2
        )

    graph = record(program, x34())
    apply(graph, ConstantFolding())
    assert ops(graph).count("mul") == 0
    assert_equal(run(graph, x34()), [program(x34())])


def test_what_is_not_filled_with_one_number_stays() -> None:
    def program(x):
        return x + torch.arange(4) * 2 + torch.ones(2, 4).sum(0) + torch.rand(4) * 0

    graph = record(program, x34())
    ctx = apply(graph, ConstantFolding())
    assert not ctx.hits


# --- split-constants ------------------------------------------------------------------------------


def constants(graph):
    return [n.name for n in graph.nodes if n.meta.get("constant")]


def test_what_depends_on_bound_tensors_only_is_constant() -> None:
    def program(x, w, v):
        packed = torch.cat([w.t(), v.exp()], 1)
        return x @ packed + torch.arange(8).cos().double()

    graph = record(
        program, x34(), bound=[torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)]
    )
    apply(graph, SplitConstants())
    assert set(constants(graph)) >= {"t", "exp", "cat", "cos"}
    assert not find(graph, "matmul").meta.get("constant")
    assert not any(n.meta.get("constant") for n in graph.nodes if n.op == "placeholder")


def test_results_and_their_memory_are_not_constant() -> None:
    def program(x, w):
        e = w.exp()
        return x @ e, e.t()[0], w.t(), w.cos()

    graph = record(program, x34(), bound=[torch.randn(4, 4, dtype=torch.float64)])
    apply(graph, SplitConstants())
    assert constants(graph) == []


def test_random_and_cheap_literals_are_not_constant() -> None:
    def program(x, w):
        return x * torch.full((4,), 2.0) + torch.rand_like(w) + torch.arange(4)

    graph = record(program, x34(), bound=[torch.randn(3, 4)])
    apply(graph, SplitConstants())
    assert constants(graph) == []


def test_a_literal_that_a_constant_needs_is_constant() -> None:
    graph = record(
        lambda x, w: x @ (w + torch.full((4,), 2.0)).exp(),
        x34(),
        bound=[torch.randn(4, 4, dtype=torch.float64)],
    )
    apply(graph, SplitConstants())
    assert set(constants(graph)) == {"full", "add", "exp"}


# --- canonicalize ---------------------------------------------------------------------------------

W, B = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
linear = torch.nn.functional.linear

CANONICAL = {
    "transpose": (lambda x: x.transpose(0, -1).exp(), lambda x: x.permute(1, 0).exp()),
    "t": (lambda x: x.t().exp(), lambda x: x.permute(1, 0).exp()),
    "mT": (lambda x: x.mT.exp(), lambda x: x.permute(1, 0).exp()),
    "movedim": (
        lambda x: x.view(3, 2, 2).movedim(2, 0).exp(),
        lambda x: x.view(3, 2, 2).permute(2, 0, 1).exp(),
    ),
    "permute": (lambda x: x.permute(-1, 0).exp(), lambda x: x.permute(1, 0).exp()),
    "softmax dim": (lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, 1)),
    "sum dims": (lambda x: x.sum((-1, -2)), lambda x: x.sum((1, 0))),
    "cat dim": (lambda x: torch.cat([x, x], -1), lambda x: torch.cat([x, x], 1)),
    "default": (lambda x: aten.add.Tensor(x, x, alpha=1), lambda x: x + x),
    "add.Scalar": (lambda x: aten.add.Scalar(x, 2), lambda x: x + 2),
    "sub.Scalar alpha": (lambda x: aten.sub.Scalar(x, 2, 3), lambda x: torch.sub(x, 2, alpha=3)),
    "0-dim literal": (lambda x: x * torch.full((), 2.0, dtype=torch.float64), lambda x: x * 2.0),
    "slice": (lambda x: x[:, -3:-1].exp(), lambda x: x[:, 1:3].exp()),
    "slice beyond": (lambda x: x[:, 1:100].exp(), lambda x: x[:, 1:4].exp()),
    "select": (lambda x: x[-1].exp(), lambda x: x[2].exp()),
    "mm": (lambda x, w, b: torch.mm(x, w.t()), lambda x, w, b: linear(x, w)),
    "matmul": (lambda x, w, b: x.view(1, 3, 4) @ w.t(), lambda x, w, b: linear(x.view(1, 3, 4), w)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w.t()), lambda x, w, b: linear(x, w, b)),
    "reduced cast": (lambda x: x.to(torch.float32), lambda x: x.to(dtype=torch.float32)),
    "dropout": (lambda x: torch.dropout(x.exp(), 0.5, False).neg(), lambda x: x.exp().neg()),
    "_softmax": (lambda x: aten._softmax.default(x, 1, False), lambda x: torch.softmax(x, 1)),
    "window beyond the border": (
        lambda x: torch.nn.functional.avg_pool2d(x.view(1, 3, 4), 9, ceil_mode=True),
        lambda x: torch.nn.functional.avg_pool2d(x.view(1, 3, 4), (3, 4), (3, 4)),
    ),
    "zeros": (
        lambda x: x + torch.zeros(4),
        lambda x: x + aten.full.default([4], 0.0, dtype=torch.float32, device=torch.device("cpu")),
    ),
}


@pytest.mark.parametrize("name", CANONICAL)
def test_canonical_forms(name: str) -> None:
    before, expected = CANONICAL[name]
    x = x34()
    bound = [W, B] if before.__code__.co_argcount == 3 else []
    graph = record(before, x, bound=bound)
    apply(graph, SplitConstants(), Canonicalize(), DeadCode())
    assert_same(graph, record(expected, x, bound=bound))
    for actual, wanted in zip(run(graph, x, *bound), [before(x, *bound)]):
        assert actual.stride() == wanted.stride()
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)


def test_a_product_with_a_constant_matrix_is_linear() -> None:
    graph = record(lambda x, w, b: torch.addmm(b, x, w), x34(), bound=[W.t().contiguous(), B])
    apply(graph, SplitConstants(), Canonicalize())
    assert ops(graph) == ["permute", "linear"] and find(graph, "permute").meta["constant"]
    torch.testing.assert_close(run(graph, x34(), W.t().contiguous(), B)[0], linear(x34(), W, B))


NOT_CANONICAL = {
    "matmul of two activations": lambda x, w, b: x @ (w.t() * x.sum()),
    "addmm with beta": lambda x, w, b: torch.addmm(b, x, w.t(), beta=2),
    "addmm with a matrix": lambda x, w, b: torch.addmm(x.sum(1, keepdim=True).expand(3, 5), x, w.t()),
    "integers": lambda x, w, b: x.to(torch.int64) @ w.t().to(torch.int64),
    "window beyond the padding": lambda x, w, b: torch.nn.functional.avg_pool2d(
        x.view(1, 3, 4), 9, ceil_mode=True, padding=1
    ),
    "window with a divisor": lambda x, w, b: torch.nn.functional.avg_pool2d(
        x.view(1, 3, 4), 9, ceil_mode=True, divisor_override=2
    ),
    "0-dim tensor that rounds": lambda x, w, b: x.to(torch.bfloat16) * torch.full((), 0.1),
    "0-dim tensor that promotes": lambda x, w, b: (
        x.to(torch.int64) * torch.full((), 2.0, dtype=torch.float64)
    ),
}


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_what_has_no_simpler_form(name: str) -> None:
    fn = NOT_CANONICAL[name]
    graph = record(fn, x34(), bound=[W, B])
    apply(graph, SplitConstants(), Canonicalize())
    assert "linear" not in ops(graph)
    if "window" in name:
        assert list(find(graph, "avg_pool2d").args[1]) == [9, 9]
    if "0-dim" in name:
        assert isinstance(find(graph, "mul").args[1], torch.fx.Node)
    assert_equal(run(graph, x34(), W, B), [fn(x34(), W, B)])


def test_results_keep_their_strides() -> None:
    def fn(x):
        return x.t(), x.t().clone(), x.t().reshape(12), x.view(3, 4, 1).expand(3, 4, 2)

    graph = record(fn, x34())
    apply(graph, Canonicalize(), RemoveNoops(), Algebra())
    assert_equal(run(graph, x34()), list(fn(x34())))


# --- algebra of views -----------------------------------------------------------------------------

VIEWS = {
    "permute permute": (
        lambda x: x.view(3, 2, 2).permute(2, 0, 1).permute(1, 0, 2).exp(),
        lambda x: x.view(3, 2, 2).permute(0, 2, 1).exp(),
    ),
    "permute back": (lambda x: x.permute(1, 0).permute(1, 0).exp(), lambda x: x.exp()),
    "view view": (lambda x: x.view(12).view(2, 6).exp(), lambda x: x.view(2, 6).exp()),
    "view back": (lambda x: x.view(12).view(3, 4).exp(), lambda x: x.exp()),
    "expand expand": (
        lambda x: x.view(1, 3, 4).expand(2, 3, 4).expand(5, 2, 3, 4).exp(),
        lambda x: x.view(1, 3, 4).expand(5, 2, 3, 4).exp(),
    ),
    "slice slice": (lambda x: x[:, 1:4][:, 1:2].exp(), lambda x: x[:, 2:3].exp()),
    "squeeze unsqueeze": (lambda x: x.unsqueeze(1).squeeze(1).exp(), lambda x: x.exp()),
    "cat of one": (lambda x: torch.cat([x], 0).exp(), lambda x: x.exp()),
    "cast through a wider dtype": (
        lambda x: x.to(torch.float16).to(torch.float32).to(torch.bfloat16),
        lambda x: x.to(torch.float16).to(torch.bfloat16),
    ),
    "cast there and back": (
        lambda x: x.to(torch.float32).to(torch.float64).to(torch.float32).neg(),
        lambda x: x.to(torch.float32).neg(),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_compose(name: str) -> None:
    before, expected = VIEWS[name]
    graph = record(before, x34())
    wanted = record(expected, x34())
    apply(graph, Canonicalize(), Algebra())
    apply(wanted, Canonicalize())
    assert_same(graph, wanted)
    assert_equal(run(graph, x34()), [before(x34())])


NOT_VIEWS = {
    "cast through a narrower dtype": lambda x: x.to(torch.float32).to(torch.float64),
    "cast through an integer": lambda x: x.to(torch.int32).to(torch.float64),
    "int64 through float": lambda x: x.to(torch.int64).to(torch.float64).to(torch.int64),
    "slices of two dimensions": lambda x: x[1:2][:, 1:2].exp(),
    "squeeze of another dimension": lambda x: x.unsqueeze(1).squeeze(0).exp(),
    "view of a permuted copy": lambda x: x.t().clone(memory_format=torch.contiguous_format).view(12).exp(),
}


@pytest.mark.parametrize("name", NOT_VIEWS)
def test_views_that_do_not_compose(name: str) -> None:
    fn = NOT_VIEWS[name]
    graph = record(fn, x34())
    apply(graph, Canonicalize())
    before = structure(graph)
    apply(graph, Algebra())
    assert structure(graph) == before
    assert_equal(run(graph, x34()), [fn(x34())])


def test_nothing_random_is_pinned_by_mistake() -> None:
    graph = record(lambda x: torch.sort(x.exp())[0], x34())
    assert not any(is_pinned(n) for n in graph.nodes if n.op == "call_function")
    assert any(n.target is operator.getitem for n in graph.nodes)
