"""Variables with conditions, choices, optional and repeated ops, views seen through, several outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphkit import find, record
from torch import Tensor, fx

from lampwork.errors import PassError
from lampwork.patterns import anything, constant, either, maybe, number, repeated, scaled, tensor, through
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewriter, rule, rule_of
from lampwork.rewriting.matching.match import Match, matches
from lampwork.transforms.split_constants import SplitConstants
from lampwork.verdict import Verdict

F = torch.nn.functional
X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)
M = torch.linspace(-1, 1, 12).reshape(3, 4)
W = torch.linspace(-1, 1, 20).reshape(4, 5)


def found(
    pattern: Callable[..., Any], fn: Callable[..., Any], *inputs: Tensor, bound: Any = ()
) -> list[Match]:
    """The matches at the first output."""
    graph = record(fn, *inputs, bound=bound)
    SplitConstants().run(graph, PassContext())
    root = next(n for n in graph.nodes if n.op == "output").args[0][0]
    return list(matches(rule_of(pattern, lambda: None, name="probe").pattern, root))


# --- variables ------------------------------------------------------------------------------------------------------


def test_dtype_and_rank() -> None:
    def pattern(x=tensor(rank=3, dtype=torch.float32)):
        return torch.relu(x)

    assert found(pattern, torch.relu, X)
    assert not found(pattern, torch.relu, M)
    assert not found(pattern, torch.relu, X.double())


def test_one_of_several_dtypes() -> None:
    def pattern(x=tensor(dtype=(torch.float32, torch.float64))):
        return torch.relu(x)

    assert found(pattern, torch.relu, X.double()) and not found(pattern, torch.relu, X.half())


def test_shapes_with_names() -> None:
    def pattern(x=tensor(shape=(None, "k")), w=tensor(shape=("k", 5))):
        return x @ w

    (match,) = found(pattern, torch.matmul, M, W)
    assert match.size("k") == 4
    assert not found(pattern, torch.matmul, M, W[:, :3])
    assert not found(lambda x=tensor(shape=("k", "k")): torch.relu(x), torch.relu, M)
    assert found(lambda x=tensor(shape=("k", "k")): torch.relu(x), torch.relu, M[:, :3])


def test_leading_sizes_of_any_number() -> None:
    def pattern(x=tensor(shape=(..., 3, 4))):
        return torch.relu(x)

    assert (
        found(pattern, torch.relu, M) and found(pattern, torch.relu, X) and not found(pattern, torch.relu, W)
    )


def test_predicates() -> None:
    def pattern(x=tensor(where=lambda spec: spec.numel > 12), c=number(where=lambda c: c > 0)):
        return x * c

    (match,) = found(pattern, lambda x: x * 3, X)
    assert match["c"] == 3
    assert not found(pattern, lambda x: x * -3, X) and not found(pattern, lambda x: x * 3, M)


def test_a_predicate_that_raises_is_named() -> None:
    with pytest.raises(PassError, match="the predicate of c raised ZeroDivisionError"):
        found(lambda x=tensor(), c=number(where=lambda c: 1 / 0): x * c, lambda x: x * 3, X)


def test_numbers_and_constants() -> None:
    assert found(lambda x=tensor(), c=number(): x * c, lambda x: x * torch.tensor(2.0), X)[0]["c"] == 2
    assert not found(lambda x=tensor(), c=number(): x * c, lambda x, y: x * y, X, X)
    for fn, bound in ((lambda x: x * 2, ()), (lambda x, w: x * w.exp(), (X,))):
        assert found(lambda x=tensor(), c=constant(): x * c, fn, X, bound=bound)
    assert not found(lambda x=tensor(), c=constant(): torch.atan2(x, c), torch.atan2, X, X)
    assert found(lambda x=tensor(), c=constant(rank=3): torch.atan2(x, c), torch.atan2, X, bound=(X,))
    assert not found(lambda x=tensor(), c=constant(rank=2): torch.atan2(x, c), torch.atan2, X, bound=(X,))


def test_variables_without_names_match_each_by_itself() -> None:
    assert found(lambda x: tensor() @ tensor() + x, lambda x, y: x @ y + 1, M, W)


def test_anything() -> None:
    (match,) = found(lambda x=tensor(), d=anything(): x.sum(d), lambda x: x.sum([0, 1]), X)
    assert match["d"] == [0, 1]


def test_the_same_tensor_computed_twice() -> None:
    """Before common subexpressions are merged, equal ones are two nodes."""
    pattern = lambda x: x * torch.sigmoid(x)  # noqa: E731
    assert found(pattern, lambda x: torch.exp(x + 1) * torch.sigmoid(torch.exp(x + 1)), X)
    assert not found(pattern, lambda x: torch.exp(x + 1) * torch.sigmoid(torch.exp(x + 2)), X)
    assert not found(pattern, lambda x: torch.rand_like(x) * torch.sigmoid(torch.rand_like(x)), X)


def test_text_form_of_conditions() -> None:
    for text, fits, not_so in (
        ("relu(x:float32)", X, X.double()),
        ("relu(x:[_, 3, 4])", X, X[:, :2]),
        ("relu(x:[n, n])", M[:, :3], M),
        ("relu(x:[..., 4])", X, X[..., :2]),
        ("relu(x:float64[_, _])", M.double(), X.double()),
        ("relu(x:float[3, 4])", M, X),
    ):
        rewriter = Rewriter([rule(text, "x", name="probe")])
        for value, expected in ((fits, 1), (not_so, 0)):
            graph = record(lambda x: torch.relu(x) + 1, value)
            assert rewriter.run(graph, PassContext()) == expected, text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relu(x:[2, )", "expected a size, a name, _ or ... at column 10"),
        ("relu(x:[2, ...])", "expected a size, a name, _ or ... at column"),
        ("relu(x:float31)", "expected one of the kinds"),
        ("relu(x:any[2])", "a tensor kind before the shape"),
    ],
)
def test_text_form_errors(text: str, message: str) -> None:
    with pytest.raises(PassError) as error:
        rule(text, "x")
    assert message in str(error.value)


# --- choices --------------------------------------------------------------------------------------------------------


def test_maybe() -> None:
    def pattern(x, y, mask):
        return torch.softmax(maybe(torch.add, x @ y, mask, name="masked"), -1)

    (match,) = found(pattern, lambda x, y, m: ((x @ y) + m).softmax(-1), M, W, torch.ones(5))
    assert (
        match.has("masked")
        and match.has("mask")
        and match["mask"].name == "x2"
        and match.count("masked") == 1
    )
    (match,) = found(pattern, lambda x, y: (x @ y).softmax(-1), M, W)
    assert not match.has("masked") and not match.has("mask") and match["mask"] is None


def test_maybe_by_name_of_the_op() -> None:
    pattern = lambda x: maybe("relu", x + 1) * 2  # noqa: E731
    assert found(pattern, lambda x: torch.relu(x + 1) * 2, X)[0].has("relu")
    assert not found(pattern, lambda x: (x + 1) * 2, X)[0].has("relu")


def test_maybe_at_the_root() -> None:
    pattern = lambda x: maybe(torch.relu, x @ x)  # noqa: E731
    square = M[:, :3]
    assert len(found(pattern, lambda x: torch.relu(x @ x), square)[0].nodes) == 2
    assert len(found(pattern, lambda x: x @ x, square)[0].nodes) == 1
    rewriter = Rewriter([rule_of(pattern, lambda x, match: x if match.has("relu") else -x, name="probe")])
    graph = record(lambda x: torch.relu(x @ x) + 1, square)
    assert rewriter.run(graph, PassContext()) == 1


def test_either() -> None:
    def pattern(x):
        return either(F.silu(x), x * torch.sigmoid(x), name="form") + 1

    (match,) = found(pattern, lambda x: F.silu(x) + 1, X)
    assert match.count("form") == 0
    (match,) = found(pattern, lambda x: torch.sigmoid(x) * x + 1, X)
    assert match.count("form") == 1
    assert not found(pattern, lambda x: torch.sigmoid(x) + 1, X)


def test_repeated() -> None:
    pattern = lambda x: repeated(torch.relu, x, at_least=2)  # noqa: E731
    for times in range(1, 5):

        def chain(x: Tensor, times: int = times) -> Tensor:
            for _ in range(times):
                x = torch.relu(x)
            return x

        matched = found(pattern, chain, X)
        assert [m.count("n") for m in matched] == list(range(times, 1, -1))
        if matched:
            assert matched[0]["x"].op == "placeholder" and len(matched[0].nodes) == times


def test_repeated_none_and_with_variables() -> None:
    pattern = lambda x, b: torch.exp(repeated(lambda t: t + b, x, at_least=0))  # noqa: E731
    assert found(pattern, lambda x, b: torch.exp(x + b + b), X, X)[0].count("n") == 2
    assert found(pattern, torch.exp, X)[0].count("n") == 0
    # Each step adds the same tensor.
    assert found(pattern, lambda x, b, c: torch.exp(x + c + b), X, X, X)[0].count("n") == 1


def test_through_views_and_casts() -> None:
    def pattern(x, y):
        return torch.exp(through(x @ y, name="path"))

    (match,) = found(pattern, lambda x, y: torch.exp((x @ y).reshape(5, 3).t().double()), M, W)
    assert [n.target for n in match["path"].nodes][0] is torch.ops.aten._to_copy.default
    assert len(match["path"]) == 3 and match["x"].name == "x0" and len(match.nodes) == 5
    assert found(pattern, lambda x, y: torch.exp(x @ y), M, W)[0]["path"].nodes == ()
    # A cast that loses bits is not seen through, nor are parts.
    assert not found(pattern, lambda x, y: torch.exp((x @ y).half()), M, W)
    assert not found(pattern, lambda x, y: torch.exp((x @ y)[:2]), M, W)
    assert not found(
        lambda x, y: torch.exp(through(x @ y, views=False)), lambda x, y: (x @ y).t().exp(), M, W
    )
    assert not found(
        lambda x, y: torch.exp(through(x @ y, casts=False)), lambda x, y: (x @ y).double().exp(), M, W
    )


def test_a_path_puts_the_views_on_another_term() -> None:
    def pattern(x, y, c=number()):
        return through(x @ y, casts=False, name="path") * c

    rewriter = Rewriter([rule_of(pattern, lambda x, y, c, path: path((x * c) @ y), name="probe")])
    graph = record(lambda x, y: (x @ y).reshape(5, 3).t() * 3 + 1, M, W)
    assert rewriter.run(graph, PassContext()) == 1
    assert [n.name for n in graph.nodes if n.op == "call_function"][:2] == ["mul_1", "matmul_1"]
    got = fx.Interpreter(fx.GraphModule(torch.nn.Module(), graph)).run(M, W)[0]
    torch.testing.assert_close(got, (M @ W).reshape(5, 3).t() * 3 + 1)


@pytest.mark.parametrize(
    "fn", [lambda x: x * 0.125, lambda x: 0.125 * x, lambda x: x / 8, lambda x: x / torch.tensor(8.0)]
)
def test_scaled(fn: Callable[..., Any]) -> None:
    (match,) = found(lambda x=tensor(), c=number(): scaled(x, c), fn, X)
    assert match["c"] == 0.125 and match["x"].name == "x0"
    assert found(lambda x: scaled(x, 0.125), fn, X) and not found(lambda x: scaled(x, 8), fn, X)


def test_scaled_is_by_numbers_only() -> None:
    assert not found(lambda x, c: scaled(x, c), lambda x, y: x * y, X, X)
    assert not found(lambda x, c: scaled(x, c), lambda x: x / 0, X)


# --- several outputs ------------------------------------------------------------------------------------------------


def qkv(x, a, b, c):
    return F.linear(x, a), F.linear(x, b), F.linear(x, c)


def test_several_outputs_with_a_common_operand() -> None:
    w = torch.ones(5, 4)
    graph = record(lambda x, a, b, c: tuple(torch.relu(F.linear(x, w)) for w in (a, b, c)), M, w, w, w)
    linears = [n for n in graph.nodes if n.target is torch.ops.aten.linear.default]
    pattern = rule_of(qkv, lambda x: (x, x, x), name="probe").pattern
    first = next(iter(matches(pattern, linears[0])))
    assert first.roots == tuple(linears) and first.root is linears[0]
    assert [first[n].name for n in "xabc"] == ["x0", "x1", "x2", "x3"]
    assert first.only_use()
    # Another order is another match.
    assert len(list(matches(pattern, linears[0]))) == 2


def test_an_inner_node_as_output() -> None:
    def pattern(x):
        s = torch.exp(x)
        return torch.relu(s), s

    graph = record(lambda x: (torch.relu(torch.exp(x)), torch.exp(x + 1)), X)
    (match,) = matches(rule_of(pattern, lambda x: (x, x), name="probe").pattern, find(graph, "relu"))
    assert match.roots == (find(graph, "relu"), find(graph, "exp"))


def test_outputs_of_a_common_node() -> None:
    def pattern(x):
        s = torch.exp(x)
        return s + 1, torch.relu(s)

    graph = record(lambda x: (lambda s: (s + 1, torch.relu(s), torch.relu(x)))(torch.exp(x)), X)
    (match,) = matches(rule_of(pattern, lambda x: (x, x), name="probe").pattern, find(graph, "add"))
    assert [n.name for n in match.roots] == ["add", "relu"]


def test_commuted_operands_of_which_several_fit() -> None:
    """Each way to read a + b is tried, however deep the ways differ."""
    pattern = lambda x, y: (torch.relu(x) + x) * (y + torch.relu(y))  # noqa: E731
    graph = lambda x, y: (y.relu() + y) * (x + x.relu())  # noqa: E731
    assert len(found(pattern, graph, X, X)) == 2
    pattern = lambda x: (x + tensor()) * torch.relu(x)  # noqa: E731
    assert found(pattern, lambda x, y: torch.relu(y) * (x + y), X, X)[0]["x"].name == "x1"


def test_checks_see_all_of_it() -> None:
    def check(match: Match) -> Verdict | bool:
        seen.append((match.count("n"), match.has("act"), match.size("d")))
        return match.has("act")

    def pattern(x=tensor(shape=(..., "d"))):
        return maybe(torch.tanh, repeated(torch.relu, x), name="act")

    def replacement(x, n, d):
        seen.append((n, d))
        return torch.exp(x)

    seen: list[Any] = []
    graph = record(lambda x: torch.tanh(torch.relu(torch.relu(x))) + 1, X)
    rewriter = Rewriter([rule_of(pattern, replacement, name="probe", check=check)])
    assert rewriter.run(graph, PassContext()) == 1
    assert seen[-2:] == [(2, True, 4), (2, 4)]


def test_a_pattern_that_shares_its_parts_is_not_unfolded() -> None:
    def doubled(x: Any) -> Any:
        for _ in range(40):
            x = x + x
        return x

    assert len(found(doubled, doubled, X)) == 1


def test_a_pattern_with_too_many_ways_is_given_up() -> None:
    def total(*xs: Any) -> Any:
        found = xs[0]
        for x in xs[1:]:
            found = found + x
        return found

    def pattern(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):  # noqa: E741
        return torch.exp(total(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p))

    assert 0 < len(found(pattern, lambda *xs: torch.exp(total(*xs)), *[X] * 16)) <= 4096


def test_replacements_may_use_methods() -> None:
    def replacement(x: Any) -> Any:
        return torch.exp(x.double().float().contiguous().transpose(0, 1).mT.abs())

    graph = record(lambda x: torch.exp(torch.abs(x.abs())) + 1, M)
    rewriter = Rewriter([rule_of(lambda x: torch.exp(torch.abs(x.abs())), replacement, name="probe")])
    assert rewriter.run(graph, PassContext()) == 1
    got = fx.Interpreter(fx.GraphModule(torch.nn.Module(), graph)).run(M)[0]
    torch.testing.assert_close(got, torch.exp(M.abs()) + 1)
