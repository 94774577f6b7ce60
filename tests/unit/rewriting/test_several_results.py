"""Operators of several results at the root of a pattern, and of a replacement: texts, functions and classes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graphkit import record, run
from torch import Tensor

import lampwork
from lampwork.config import Config
from lampwork.errors import LampworkError, PassError, RewriteError
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import registry
from lampwork.rewriting.apply.driver import Rewriter, rule_of

F = torch.nn.functional
ops = torch.ops.several_test
_library = torch.library.Library("several_test", "DEF")
_library.define("add_sub(Tensor x, Tensor y) -> (Tensor, Tensor)")
_library.define("halves(Tensor x) -> Tensor[]")
_library.define("three(Tensor x, Tensor y) -> (Tensor, Tensor, Tensor)")
for _key in ("CPU", "Meta"):
    _library.impl("add_sub", lambda x, y: (x + y, x - y), _key)
    _library.impl("three", lambda x, y: (x + y, x - y, x.exp()), _key)
    _library.impl("halves", lambda x: [t.clone() for t in x.chunk(2, -1)], _key)

X, Y = torch.randn(3, 4), torch.randn(3, 4)
W, V = torch.randn(4, 4), torch.randn(4, 4)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing stays registered."""
    yield
    for item in registry().all():
        item.unregister()


def fires(item: Any, program: Callable[..., Any], *args: Tensor, hits: int = 1) -> str:
    """The rewrite fires in a program, which gives the same as before; the optimized graph."""
    compiled = lampwork.compile(program, backend="eager", options={"strict": True, "verify": "numeric"})
    with torch.no_grad():
        got, want = compiled(*args), program(*args)
    torch.testing.assert_close(got, want)
    assert item.hits == hits
    return compiled.stages.optimized


def both(x: Tensor, y: Tensor) -> Any:
    return (x + y) * 2, (x - y) * 3


class Pair:
    def pattern(x: Tensor, y: Tensor):
        return x + y, x - y

    def replacement(x, y):
        return ops.add_sub(x, y)


class Unpacked:
    def pattern(x: Tensor, y: Tensor):
        return x - y, x + y

    def replacement(x, y):
        total, rest = ops.add_sub(x, y)
        return rest, total


INTO = {
    "a text": ("add(x, y), sub(x, y)", "several_test.add_sub(x, y)"),
    "a text in parentheses": ("(add(x, y), sub(x, y))", "several_test.add_sub(x, y)"),
    "a text by index": (
        "(sub(x, y), add(x, y))",
        "several_test.add_sub(x, y)[1], several_test.add_sub(x, y)[0]",
    ),
    "functions": (lambda x, y: (x + y, x - y), lambda x, y: ops.add_sub(x, y)),
    "a list": (lambda x, y: [x + y, x - y], lambda x, y: [*ops.add_sub(x, y)]),
    "a class": (Pair,),
    "a class that unpacks": (Unpacked,),
}


@pytest.mark.parametrize("form", INTO)
def test_the_replacement_gives_several(form: str) -> None:
    graph = fires(lampwork.rewrite(*INTO[form]), both, X, Y)
    assert graph.count("several_test.add_sub") == 1


class Apart:
    def pattern(x: Tensor, y: Tensor):
        return ops.add_sub(x, y)

    def replacement(x, y):
        return x + y, x - y


OUT_OF = {
    "a text": ("several_test.add_sub(x, y)", "add(x, y), sub(x, y)"),
    "functions": (lambda x, y: ops.add_sub(x, y), lambda x, y: (x + y, x - y)),
    "a class": (Apart,),
}


@pytest.mark.parametrize("form", OUT_OF)
def test_the_pattern_gives_several(form: str) -> None:
    graph = fires(lampwork.rewrite(*OUT_OF[form]), lambda x, y: ops.add_sub(x, y), X, Y)
    assert "several_test" not in graph and "getitem" not in graph


@pytest.mark.parametrize("used", [0, 1])
def test_only_one_of_them_is_read(used: int) -> None:
    graph = fires(lampwork.rewrite(Apart), lambda x, y: ops.add_sub(x, y)[used] * 2, X, Y)
    assert "several_test" not in graph
    assert ("aten.sub" in graph, "aten.add" in graph) == (used == 1, used == 0)


def test_one_operator_in_place_of_another() -> None:
    item = lampwork.rewrite(
        lambda x: torch.sort(x, 1), lambda x: torch.topk(x, 4, 1, largest=False, sorted=True)
    )
    assert "topk" in fires(item, lambda x: torch.sort(x, 1)[0] + 1, X)
    assert "sort" in fires(item, lambda x: torch.sort(x, 0)[0] + 1, X)


def test_a_list_of_tensors() -> None:
    apart = lampwork.rewrite(lambda x: ops.halves(x), lambda x: (x[:, :2] * 1.0, x[:, 2:] * 1.0))
    fires(apart, lambda x: [t + 1 for t in ops.halves(x)], X)
    apart.unregister()
    whole = lampwork.rewrite(
        lambda x: (x.sin(), x.cos()), lambda x: ops.halves(torch.cat([x.sigmoid(), x.tanh()], -1))
    )
    compiled = lampwork.compile(
        lambda x: (x.sin() + 1, x.cos() * 2), backend="eager", options={"strict": True}
    )
    torch.testing.assert_close(compiled(X), (X.sigmoid() + 1, X.tanh() * 2))
    assert whole.hits == 1


def projections(x: Tensor, w: Tensor, v: Tensor) -> Any:
    return F.linear(x, w) + 1, F.linear(x, v) * 2


def _unpacked(x: Any, w: Any, v: Any) -> Any:
    first, second = F.linear(x, torch.cat([w, v])).chunk(2, -1)
    return first, second


PARTS = {
    "chunk": lambda x, w, v: F.linear(x, torch.cat([w, v])).chunk(2, -1),
    "chunk, unpacked": _unpacked,
    "split by a size": lambda x, w, v: F.linear(x, torch.cat([w, v])).split(4, -1),
    "split by sizes": lambda x, w, v: torch.split(F.linear(x, torch.cat([w, v])), [4, 4], dim=-1),
    "unbind": lambda x, w, v: (x @ torch.stack([w, v]).mT).unbind(0),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_replacement_gives_the_parts_of_a_tensor(name: str) -> None:
    merged = lampwork.rewrite(lambda x, w, v: (F.linear(x, w), F.linear(x, v)), PARTS[name])
    fires(merged, projections, X, W, V)


def test_texts_with_the_parts_of_a_tensor() -> None:
    item = lampwork.rewrite(
        "linear(x, w, None), linear(x, v, None)", "chunk(linear(x, cat([w, v]), None), 2, 1)"
    )
    fires(item, projections, X, W, V)


def glu_by_parts(x: Any) -> Any:
    a, b = torch.chunk(x, 2, -1)
    return a * torch.sigmoid(b)


PARTED: dict[str, tuple[Any, Any]] = {
    "a text": ("chunk(sin(x), 2, 1)", "slice(sin(x), 1, 0, 2), cos(slice(x, 1, 2, 4))"),
    "functions": (
        lambda x: torch.chunk(x.sin(), 2, 1),
        lambda x: (x.sin()[:, :2], x[:, 2:].cos()),
    ),
    "by sizes": (
        lambda x: x.sin().split([2, 2], 1),
        lambda x: (x.sin()[:, :2], x[:, 2:].cos()),
    ),
}


@pytest.mark.parametrize("form", PARTED)
def test_the_pattern_gives_the_parts_of_a_tensor(form: str) -> None:
    """Graphs have them as slices."""
    item = lampwork.rewrite(*PARTED[form])

    def program(x: Tensor) -> Any:
        a, b = x.sin().chunk(2, 1)
        return a + 1, b * 2

    got = lampwork.compile(program, backend="eager", options={"strict": True})(X)
    torch.testing.assert_close(got, (X[:, :2].sin() + 1, X[:, 2:].cos() * 2))
    assert item.hits == 1


def test_a_pattern_unpacks_its_parts() -> None:
    item = lampwork.rewrite(glu_by_parts, lambda x: F.glu(x, -1))
    assert "glu" in fires(item, lambda x: glu_by_parts(x.sin()) + 1, X)


def test_a_list_of_parts_is_an_argument() -> None:
    item = lampwork.rewrite(lambda x: torch.neg(torch.sin(x)), lambda x: torch.stack((-x).sin().unbind(0)))
    fires(item, lambda x: -x.sin() + 1, X)


def test_gradients_pass_through() -> None:
    lampwork.rewrite(Pair)
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    sum(t.sum() for t in lampwork.compile(both, options={"strict": False})(x, y)).backward()  # type: ignore[union-attr]
    torch.testing.assert_close((x.grad, y.grad), (torch.full_like(X, 5.0), torch.full_like(Y, -1.0)))


# --- what is wrong ---------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, Any, str, str]] = {
    "two for one": ("sin(x)", "sin(x), cos(x)", "has 1 result, the replacement .* 2 results", "leave 1 of"),
    "one for two": ("sin(x), cos(x)", "x", "has 2 results, the replacement 'x' 1 result", "commas"),
    "an operator of two for one": ("sin(x)", "sort(x)", "has 1 result.* 2 results", r"\[0\]"),
    "no such result": ("sort(x)[2]", "x", r"sort\(x\) has 2 results, so there is no \[2\]", "first one"),
    "no number": ("sort(x)[i]", "x", "expected the number of a result", ""),
    "parts without a number": ("chunk(x, n:number, 1)", "x", "how many is not known here", r"parts\[0\]"),
    "parts to unpack": (
        lambda x: torch.cat([*x.unbind(0)]),
        lambda x: x,
        r"unbind\(x\) cannot be iterated over: how many parts",
        r"parts\[0\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_number_is_an_error_at_once(name: str) -> None:
    pattern, replacement, message, fix = WRONG[name]
    with pytest.raises(PassError, match=message) as error:
        lampwork.rewrite(pattern, replacement)
    assert not registry().all()
    assert re.search(fix, error.value.fix)


def test_a_number_that_only_the_graph_tells() -> None:
    lampwork.rewrite(lambda x: torch.sin(x), lambda x: torch.sort(x, 1))
    with pytest.raises(RewriteError, match="its replacement has 2 results, its pattern 1") as error:
        lampwork.compile(lambda x: x.sin(), options={"strict": True})(X)
    assert "results[0]" in error.value.fix


def test_messages_show_terms_as_they_are_written() -> None:
    with pytest.raises(LampworkError) as error:
        rule_of(lambda x, y: ops.add_sub(x + 1, y)[2], lambda x: x, name="mine")
    assert "several_test.add_sub(add(x, 1), y) has 2 results" in error.value.cause
    assert repr(torch.ops.aten.add.Tensor) not in str(error.value)


@pytest.mark.parametrize("seed", range(12))
def test_results_stay_in_order_fuzz(seed: int) -> None:
    """An operator of two results and one of one become one of three, whatever is read between them."""

    def program(x: Tensor, y: Tensor) -> Any:
        rnd, pool = random.Random(seed), [x * 1.5]
        for kind in rnd.sample(["one", "two"], 2):
            for _ in range(rnd.randint(0, 2)):
                pool.append(rnd.choice(pool).sin() + rnd.choice(pool))
            two = kind == "two"
            used = rnd.choice([(0,), (1,), (0, 1), (1, 0)])
            pool += [ops.add_sub(x, y)[i] for i in used] if two else [x.exp()]
        pool += [rnd.choice(pool) * rnd.choice(pool) for _ in range(3)]
        return rnd.sample(pool, 3)

    one, two = lambda x: x.exp(), lambda x, y: ops.add_sub(x, y)
    for mine in (
        rule_of(lambda x, y: (two(x, y), one(x)), lambda x, y: ops.three(x, y)),
        rule_of(lambda x, y: (one(x), two(x, y)), lambda x, y: (ops.three(x, y)[2], [*ops.three(x, y)][:2])),
    ):
        graph = record(lambda x, y: tuple(program(x, y)), X, Y)
        want, ctx = run(graph, X, Y), PassContext(Config(strict=True))
        Rewriter([mine]).run(graph, ctx)
        verify(graph)
        assert sum(ctx.hits.values()) == 1
        torch.testing.assert_close(run(graph, X, Y), want)
