"""A pattern written with one op of torch matches graphs that spell it another way, and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphkit import record
from torch import Tensor, fx

from lampwork.plugins.context import PassContext
from lampwork.rewriting.language.rules import rule_of
from lampwork.rewriting.matching.match import Match, matches
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.split_constants import SplitConstants

F = torch.nn.functional


def canonical(graph: fx.Graph) -> fx.Graph:
    """The graph as rewrites of users find it."""
    for step in (SplitConstants(), Canonicalize(), RemoveNoops(), CommonSubexpressions()):
        step.run(graph, PassContext())
    return graph


def pattern_of(fn: Callable[..., Any]) -> Any:
    return rule_of(fn, lambda: None, name="probe").pattern


def matched(
    pattern: Callable[..., Any], fn: Callable[..., Any], *inputs: Tensor, bound: Any = ()
) -> list[Match]:
    """The matches at the first output, in the canonical graph; the recorded one must have as many.

    What the pattern computes of what its variables stand for is what the graph computes: bit for bit, but for rsqrt,
    whose last bit differs from that of 1 / sqrt here and there.
    """
    rtol = 2.0**-23 if "sqrt" in inspect.getsource(pattern) else 0.0
    found: list[list[Match]] = []
    for prepare in (lambda g: g, canonical):
        graph = prepare(record(fn, *inputs, bound=bound))
        root = next(n for n in graph.nodes if n.op == "output").args[0][0]
        found.append(list(matches(pattern_of(pattern), root)))
        values = computed(graph, *inputs, *bound)
        for match in found[-1]:
            given = {k: values[v] if isinstance(v, fx.Node) else v for k, v in match.values.items()}
            torch.testing.assert_close(pattern(**given), values[root], rtol=rtol, atol=0, equal_nan=True)
    assert bool(found[0]) == bool(found[1]), "recorded and canonical graph differ"
    return found[1]


def computed(graph: fx.Graph, *inputs: Tensor) -> dict[fx.Node, Any]:
    """What each node of a graph is."""
    values: dict[fx.Node, Any] = {}
    rest = iter(t.clone() for t in inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(rest)
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return values


X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
Q = torch.linspace(-1, 1, 2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
M = torch.linspace(-1, 1, 12).reshape(3, 4)
W = torch.linspace(-1, 1, 20).reshape(4, 5)
V = torch.linspace(0, 1, 5)

ALIKE: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "transpose of the last two": (
        lambda x: x.transpose(-1, -2),
        [
            (lambda x: x.mT, X),
            (lambda x: x.permute(0, 2, 1), X),
            (lambda x: x.swapaxes(1, 2), X),
            (lambda x: x.movedim(-1, 1), X),
            (lambda x: x.transpose(2, 1), X),
            (lambda x: x.t(), M),
            (lambda x: x.T, M),
        ],
    ),
    "permute": (
        lambda x: x.permute(0, 2, 1, 3),
        [
            (lambda x: x.transpose(1, 2), Q),
            (lambda x: x.movedim(1, 2), Q),
            (lambda x: x.permute(0, -2, 1, -1), Q),
        ],
    ),
    "mT": (lambda x: x.mT, [(lambda x: x.transpose(-2, -1), Q), (lambda x: x.permute(0, 1, 3, 2), Q)]),
    "T": (lambda x: x.T, [(lambda x: x.t(), M), (lambda x: x.permute(1, 0), M)]),
    "movedim": (lambda x: torch.movedim(x, 0, -1), [(lambda x: x.permute(1, 2, 0), X)]),
    "reshape": (
        lambda x: x.reshape(2, -1),
        [
            (lambda x: x.view(2, 12), X),
            (lambda x: x.flatten(1), X),
            (lambda x: x.mT.reshape(2, 12), X),
            (lambda x: x.mT.contiguous().view(2, -1), X),
        ],
    ),
    "view": (lambda x: x.view(2, 3, -1), [(lambda x: x.reshape(2, 3, 24), Q), (lambda x: x.flatten(2), Q)]),
    "view with the sizes of a variable": (
        lambda x: (x + 1).view(x.size(0), x.shape[1], -1),
        [(lambda x: (x + 1).view(2, 3, 24), Q)],
    ),
    "flatten": (lambda x: x.flatten(1), [(lambda x: x.reshape(2, -1), X), (lambda x: x.view(2, 12), X)]),
    "flatten all": (lambda x: x.flatten(), [(lambda x: x.reshape(-1), X), (lambda x: x.view(24), X)]),
    "unflatten": (lambda x: x.unflatten(-1, (2, 2)), [(lambda x: x.view(2, 3, 2, 2), X)]),
    "expand": (
        lambda x: x.expand(5, -1, 4),
        [(lambda x: x.expand(5, 3, 4), M), (lambda x: x.broadcast_to(5, 3, 4), M)],
    ),
    "contiguous": (
        lambda x: x.transpose(1, 2).contiguous(),
        [
            (lambda x: x.mT.contiguous(), X),
            (lambda x: x.transpose(1, 2).clone(memory_format=torch.contiguous_format), X),
        ],
    ),
    "contiguous of what is so": (lambda x: (x + 1).contiguous() * 2, [(lambda x: (x + 1) * 2, X)]),
    "slice": (
        lambda x: x[..., :2],
        [(lambda x: x[:, :, 0:2], X), (lambda x: x.narrow(-1, 0, 2), X), (lambda x: x.chunk(2, -1)[0], X)],
    ),
    "slice to the end": (
        lambda x: x[..., 2:],
        [(lambda x: x[:, :, 2:4], X), (lambda x: x.split(2, -1)[1], X)],
    ),
    "slice by steps": (
        lambda x: x[..., ::2],
        [(lambda x: x[:, :, 0:4:2], X), (lambda x: x[..., :3:2], X)],
    ),
    "narrow": (lambda x: torch.narrow(x, -1, 1, 2), [(lambda x: x[..., 1:3], X)]),
    "chunk": (
        lambda x: x.chunk(2, dim=-1)[1],
        [(lambda x: x[..., 2:], X), (lambda x: x.split([2, 2], -1)[1], X)],
    ),
    "split": (lambda x: x.split(2, dim=2)[0], [(lambda x: x.chunk(2, -1)[0], X), (lambda x: x[:, :, :2], X)]),
    "unbind": (lambda x: x.unbind(0)[1], [(lambda x: x[1], X), (lambda x: x.select(0, 1), X)]),
    "select": (lambda x: x[:, 0], [(lambda x: x.select(1, 0), X), (lambda x: x.unbind(1)[0], X)]),
    "unsqueeze": (lambda x: x[:, None], [(lambda x: x.unsqueeze(1), X), (lambda x: x.unsqueeze(-3), X)]),
    "unsqueeze at the end": (
        lambda x: x.unsqueeze(-1),
        [(lambda x: x[..., None], X), (lambda x: x.unsqueeze(3), X)],
    ),
    "softmax": (
        lambda x: F.softmax(x, dim=-1),
        [
            (lambda x: x.softmax(2), X),
            (lambda x: torch.softmax(x, -1, dtype=torch.float32), X),
            (lambda x: torch.ops.aten._softmax.default(x, -1, False), X),
        ],
    ),
    "softmax in another dtype": (
        lambda x: torch.softmax(x, -1, dtype=torch.float64),
        [(lambda x: x.double().softmax(-1), X), (lambda x: x.softmax(-1, torch.float64), X)],
    ),
    "cast": (
        lambda x: x.double(),
        [
            (lambda x: x.to(torch.float64), X),
            (lambda x: x.type(torch.float64), X),
            (lambda x, y: x.to(y), X, X.double()),
        ],
    ),
    "cast of what is so": (
        lambda x: x.float() * 2,
        [(lambda x: x * 2, X), (lambda x: x.float() * 2, X.double())],
    ),
    "mean": (
        lambda x: x.mean(-1, keepdim=True),
        [(lambda x: x.mean([2], True), X), (lambda x: x.mean(dim=(-1,), keepdim=True), X)],
    ),
    "mean of all": (lambda x: x.mean(), [(lambda x: x.mean((0, 1, 2)), X), (lambda x: torch.mean(x), X)]),
    "sum over two": (lambda x: x.sum((-1, -2)), [(lambda x: x.sum([1, 2]), X)]),
    "var": (
        lambda x: x.var(-1, unbiased=False, keepdim=True),
        [(lambda x: x.var(2, correction=0, keepdim=True), X), (lambda x: torch.var(x, [-1], False, True), X)],
    ),
    "var with its correction": (
        lambda x: torch.var(x, -1),
        [
            (lambda x: x.var(2), X),
            (lambda x: x.var(2, unbiased=True), X),
            (lambda x: x.var(-1, correction=1), X),
        ],
    ),
    "std": (lambda x: x.std(-1, correction=0), [(lambda x: x.std(-1, unbiased=False), X)]),
    "amax": (lambda x: x.amax(-1, keepdim=True), [(lambda x: x.max(-1, keepdim=True)[0], X)]),
    "max over a dimension": (
        lambda x: torch.max(x, -1)[0],
        [(lambda x: x.amax(2), X), (lambda x: x.max(2).values, X)],
    ),
    "maximum": (
        lambda x: torch.maximum(x, -x),
        [(lambda x: torch.max(x, -x), X), (lambda x: torch.max(-x, x), X)],
    ),
    "square": (
        lambda x: x.pow(2),
        [
            (lambda x: x * x, X),
            (lambda x: x.square(), X),
            (lambda x: x**2.0, X),
            (lambda x: torch.pow(x, 2), X),
        ],
    ),
    "product with itself": (lambda x: x * x, [(lambda x: x.pow(2), X), (lambda x: torch.square(x), X)]),
    "cube": (lambda x: x.pow(3), [(lambda x: x * x * x, X), (lambda x: x * (x * x), X)]),
    "product of three": (lambda x: x * x * x, [(lambda x: x.pow(3.0), X)]),
    "sqrt": (lambda x: x.sqrt(), [(lambda x: x.pow(0.5), X), (lambda x: x**0.5, X)]),
    "rsqrt": (
        lambda x: torch.rsqrt(x),
        [
            (lambda x: 1 / x.sqrt(), X),
            (lambda x: 1.0 / torch.sqrt(x), X),
            (lambda x: x.pow(-0.5), X),
            (lambda x: x.sqrt().reciprocal(), X),
            (lambda x: x.sqrt().pow(-1), X),
        ],
    ),
    "one over a root": (lambda x: 1 / torch.sqrt(x), [(lambda x: x.rsqrt(), X), (lambda x: x**-0.5, X)]),
    "inverse": (
        lambda x: 1 / x,
        [(lambda x: x.reciprocal(), X), (lambda x: x.pow(-1), X), (lambda x: 1.0 / x, X)],
    ),
    "number minus": (
        lambda x: 1 - x,
        [(lambda x: torch.rsub(x, 1), X), (lambda x: -x + 1, X), (lambda x: 1.0 - x, X)],
    ),
    "minus a number": (lambda x: x - 1, [(lambda x: x + -1, X), (lambda x: x.sub(1.0), X)]),
    "plus a number": (
        lambda x: x + 1,
        [(lambda x: 1 + x, X), (lambda x: x - (-1), X), (lambda x: x + torch.tensor(1.0), X)],
    ),
    "difference": (lambda x, y: x - y, [(lambda x, y: x + -y, X, X + 1), (lambda x, y: -y + x, X, X + 1)]),
    "sum with the negative": (lambda x, y: x + -y, [(lambda x, y: x - y, X, X + 1)]),
    "masked_fill": (
        lambda x, m: x.masked_fill(m, -1e9),
        [
            (lambda x, m: torch.where(m, -1e9, x), X, X > 0),
            (lambda x, m: torch.where(m, torch.tensor(-1e9), x), X, X > 0),
            (lambda x, m: (x + 1).masked_fill_(m, -1e9), X, X > 0),
        ],
    ),
    "where": (lambda x, m: torch.where(m, 0.0, x), [(lambda x, m: x.masked_fill(m, 0.0), X, X > 0)]),
    "clamp": (
        lambda x: x.clamp(min=0.5),
        [(lambda x: x.clamp_min(0.5), X), (lambda x: torch.clip(x, 0.5), X)],
    ),
    "relu6": (lambda x: F.relu6(x), [(lambda x: F.hardtanh(x, 0, 6), X), (lambda x: x.clamp(0, 6), X)]),
    "other names": (
        lambda x: torch.multiply(torch.negative(x), 3),
        [(lambda x: -x * 3, X), (lambda x: 3 * -x, X)],
    ),
    "in place": (
        lambda x: F.relu(x, inplace=True),
        [(lambda x: x.relu(), X), (lambda x: (x + 1).relu_(), X)],
    ),
    "matmul": (
        lambda x, y: x @ y,
        [
            (lambda x, y: torch.mm(x, y), M, W),
            (lambda x, y: torch.bmm(x, y.mT), X, X),
            (lambda x, y: x @ y.mT, Q, Q),
        ],
    ),
    "bmm": (lambda x, y: torch.bmm(x, y), [(lambda x, y: torch.matmul(x, y.mT), X, X)]),
    "mm": (lambda x, y: torch.mm(x, y), [(lambda x, y: x @ y, M, W)]),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (4,), w, b),
        [(lambda x, w, b: torch.layer_norm(x, [4], w, b, 1e-5), X, W[:, 0], W[:, 1])],
    ),
    "embedding": (
        lambda i, w: F.embedding(i, w),
        [(lambda i, w: F.embedding(i, w), torch.tensor([1, 2]), W)],
    ),
}
CASES = [(name, i) for name, (_, spelled) in ALIKE.items() for i in range(len(spelled))]


@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{n} {i}" for n, i in CASES])
def test_spelled_another_way(name: str, number: int) -> None:
    pattern, spelled = ALIKE[name]
    fn, *inputs = spelled[number]
    assert matched(pattern, fn, *inputs)


UNLIKE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "other dimensions": (lambda x: x.transpose(-1, -2), (lambda x: x.transpose(0, 1), X)),
    "a permutation of three": (lambda x: x.transpose(0, 1), (lambda x: x.permute(1, 2, 0), X)),
    "T of rank 3": (lambda x: x.T, (lambda x: x.permute(0, 2, 1), X)),
    "another shape": (lambda x: x.reshape(4, -1), (lambda x: x.reshape(2, 12), X)),
    "another order of sizes": (lambda x: x.view(x.size(1), -1), (lambda x: x.view(2, 12), X)),
    "flatten from another dimension": (lambda x: x.flatten(1), (lambda x: x.flatten(0, 1), X)),
    "view by another rank": (lambda x: x.unflatten(-1, (2, 2)), (lambda x: x.view(2, 2, 2, 3), X)),
    "contiguous of what is not so": (lambda x: x.mT.contiguous() * 2, (lambda x: x.mT * 2, X)),
    "another part": (lambda x: x[..., :2], (lambda x: x[..., 2:], X)),
    "part of another dimension": (lambda x: x[..., :1], (lambda x: x[:, :1], X)),
    "a part with a step": (lambda x: x[..., 0:4:2], (lambda x: x[..., 0:2], X)),
    "another step": (lambda x: x[..., ::2], (lambda x: x[..., 1::2], X)),
    "another chunk": (lambda x: x.chunk(2, -1)[1], (lambda x: x.chunk(4, -1)[1], X)),
    "softmax over another dimension": (lambda x: x.softmax(-1), (lambda x: x.softmax(1), X)),
    "softmax that casts": (lambda x: x.softmax(-1), (lambda x: x.softmax(-1, torch.float64), X)),
    "no cast where the dtype differs": (lambda x: x.float() * 2, (lambda x: x * 2, X.double())),
    "cast to another dtype": (lambda x: x.half(), (lambda x: x.double(), X)),
    "mean that keeps": (lambda x: x.mean(-1), (lambda x: x.mean(-1, keepdim=True), X)),
    "mean of some": (lambda x: x.mean(), (lambda x: x.mean((0, 1)), X)),
    "another correction": (lambda x: x.var(-1), (lambda x: x.var(-1, correction=0), X)),
    "indices of max": (lambda x: x.amax(-1), (lambda x: x.max(-1)[1], X)),
    "another power": (lambda x: x.pow(2), (lambda x: x.pow(3), X)),
    "product with another": (lambda x: x.pow(2), (lambda x: x * (x + 1), X)),
    "root of a root": (lambda x: x.rsqrt(), (lambda x: 1 / x, X)),
    "two over": (lambda x: 1 / x, (lambda x: 2 / x, X)),
    "minus a number the other way": (lambda x: x - 1, (lambda x: 1 - x, X)),
    "minus nothing, which keeps -0.0": (lambda x: x + 0.0, (lambda x: x - 0.0, X)),
    "difference with a factor": (lambda x, y: x - y, (lambda x, y: torch.sub(x, y, alpha=2), X, X + 1)),
    "another fill": (lambda x, m: x.masked_fill(m, -1e9), (lambda x, m: torch.where(m, x, -1e9), X, X > 0)),
    "x * sigmoid(x) is no silu": (lambda x: F.silu(x), (lambda x: x * torch.sigmoid(x), X)),
    "division is no product with the root": (
        lambda x, y: x / y.sqrt(),
        (lambda x, y: x * y.rsqrt(), X, X + 3),
    ),
    "matmul of rank 3": (lambda x, y: torch.mm(x, y), (lambda x, y: x @ y, X, W)),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_does_not_match(name: str) -> None:
    pattern, (fn, *inputs) = UNLIKE[name]
    assert not matched(pattern, fn, *inputs)


def test_a_named_overload_is_no_other_formula() -> None:
    aten = torch.ops.aten
    assert not matched(lambda x: aten.pow.Tensor_Scalar(x, 2), lambda x: x * x, X)
    assert not matched(lambda x, y: aten.sub.Tensor(x, y), lambda x, y: x + -y, X, X + 1)
    # But it is found where canonical graphs have it.
    assert matched(lambda x: aten.transpose.int(x, -1, -2), lambda x: x.mT, X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x @ w.t(),
        lambda x, w: torch.mm(x, w.T),
        lambda x, w: torch.matmul(x, w.transpose(-1, -2)),
        lambda x, w: F.linear(x, w),
    ],
)
def test_linear_by_its_products(fn: Callable[..., Any]) -> None:
    for pattern in (lambda x, w: F.linear(x, w), lambda x, w: x @ w.t(), lambda x, w: torch.mm(x, w.mT)):
        (match,) = matched(pattern, fn, M, bound=(W.t().contiguous(),))
        assert match["x"].name == "x0" and match["w"].name == "w0"


def test_a_product_with_a_constant_matrix() -> None:
    """Canonical graphs have it as linear(x, permute(w)), and the pattern gets w."""
    (match,) = matched(lambda x, w: x @ w, lambda x, w: x @ w, M, bound=(W,))
    assert match["w"].name == "w0"
    (match,) = matched(
        lambda b, x, w: torch.addmm(b, x, w), lambda x, w, b: torch.addmm(b, x, w), M, bound=(W, V)
    )
    assert (match["b"].name, match["w"].name) == ("w1", "w0")
    (match,) = matched(
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: torch.addmm(b, x, w.t()),
        M,
        bound=(W.t().contiguous(), V),
    )
    assert (match["b"].name, match["w"].name) == ("w1", "w0")


def test_which_dimensions_are_transposed() -> None:
    (match,) = matched(lambda x, a, b: x.transpose(a, b), lambda x: x.permute(0, 2, 1), X)
    assert (match["a"], match["b"]) == (1, 2)


def test_symbolic_sizes_make_no_conditions() -> None:
    import lampwork

    def fn(x: Tensor) -> Tensor:
        return (x + 1).reshape(x.size(0), 2, -1).transpose(1, 2).contiguous().flatten(1)

    compiled = lampwork.compile(fn, dynamic=True)
    compiled(torch.randn(4, 6))
    graph = (
        compiled.entries[0].region.graph if hasattr(compiled.entries[0], "region") else compiled.stages.aten
    )
    output = next(n for n in graph.nodes if n.op == "output").args[0][0]
    scope = next(
        s.scope
        for n in graph.nodes
        if n.op == "placeholder"
        for s in n.meta["val"].shape
        if not isinstance(s, int)
    )
    before = len(scope.conditions)
    pattern = pattern_of(lambda x: (x + 1).reshape(x.size(0), 2, -1).mT.contiguous().flatten(1))
    assert [m["x"].op for m in matches(pattern, output)] == ["placeholder"]
    assert not list(matches(pattern_of(lambda x: x.reshape(4, -1)), output))
    assert len(scope.conditions) == before
