"""`...` and `rest()`: the arguments of a call that a pattern does not give, in the replacement and in the check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graphkit import ops as names_in
from graphkit import record
from torch import Tensor

import lampwork
from lampwork import No, Yes
from lampwork.config import Config
from lampwork.errors import LampworkError, PassError
from lampwork.patterns import either, rest
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import registry
from lampwork.rewriting.apply.driver import Rewriter, rule, rule_of
from lampwork.rewriting.language import functions as tree
from lampwork.rewriting.matching.match import matches, nearest_miss_in
from lampwork.testing import check_rewrite

F = torch.nn.functional
aten = torch.ops.aten
_library = torch.library.Library("rest_test", "DEF")
_library.define("conv(Tensor x, Tensor w, Tensor? b, *, int[2] padding=0, int[2] stride=1) -> Tensor")
for _key in ("CPU", "Meta"):
    _library.impl(
        "conv", lambda x, w, b, padding=(0, 0), stride=(1, 1): F.conv2d(x, w, b, stride, padding), _key
    )

X, W, B = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3), torch.randn(4)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing stays registered."""
    yield
    for item in registry().all():
        item.unregister()


def negated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return -F.conv2d(x, w, b, stride=2, padding=1)


class MinusIntoWeights:
    def pattern(x: Tensor, w: Tensor, b: Tensor, options=rest()):
        return -F.conv2d(x, w, b, options)

    def replacement(x, w, b, options):
        return F.conv2d(x, -w, -b, options)


FORMS = {
    "a text": ("neg(conv2d(x, w, b, ...))", "conv2d(x, neg(w), neg(b), ...)"),
    "a text with a name": (
        "neg(conv2d(x, w, b, ...options))",
        "conv2d(x, neg(w), neg(b), ...options)",
    ),
    "functions": (
        lambda x, w, b, options=rest(): -F.conv2d(x, w, b, options),
        lambda x, w, b, options: F.conv2d(x, -w, -b, options),
    ),
    "functions, in the call": (
        lambda x, w, b: -torch.conv2d(x, w, b, rest("options")),
        lambda x, w, b, options: torch.conv2d(x, -w, -b, options),
    ),
    "a class": (MinusIntoWeights,),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "given",
    [{}, {"stride": 2, "padding": (1, 0)}, {"padding": "same", "dilation": 2}, {"groups": 2}],
    ids=str,
)
def test_any_arguments(form: str, given: dict[str, Any]) -> None:
    item = lampwork.rewrite(*FORMS[form])
    w = W[:, : 4 // given.get("groups", 1)].contiguous()

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return -F.conv2d(x, w, b, **given) + 1

    compiled = lampwork.compile(program, backend="eager", options={"strict": True})
    torch.testing.assert_close(compiled(X, w, B), program(X, w, B), rtol=1e-4, atol=1e-5)
    assert item.hits == 1


def test_a_check_reads_them() -> None:
    seen: list[Any] = []

    def check(match: Any) -> Any:
        seen.append(match["options"])
        return Yes() if match["options"]["groups"] == 1 else No("groups")

    mine = rule_of(*FORMS["functions"], name="mine", check=check)
    graph, ctx = record(negated, X, W, B), PassContext(Config(strict=True))
    assert Rewriter([mine]).run(graph, ctx) == 1
    assert seen == [{"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1}]
    graph = record(lambda x, w, b: -F.conv2d(x, w, b, groups=4), X, W[:, :1].contiguous(), B)
    assert Rewriter([mine]).run(graph, ctx) == 0 and ctx.refusals["mine", "groups"] == 1


def test_a_replacement_reads_them_one_by_one() -> None:
    def into(x: Any, w: Any, b: Any, options: Any) -> Any:
        return torch.ops.rest_test.conv(x, w, b, stride=options["stride"], padding=options["padding"])

    mine = lampwork.rewrite(lambda x, w, b, options=rest(): F.conv2d(x, w, b, options), into)
    compiled = lampwork.compile(negated, backend="eager", options={"strict": True})
    torch.testing.assert_close(compiled(X, W, B), negated(X, W, B))
    assert mine.hits == 1 and "rest_test.conv" in compiled.stages.optimized


def test_what_the_call_gives_itself_comes_first() -> None:
    mine = rule_of(
        lambda x, w, b, options=rest(): -F.conv2d(x, w, b, options),
        lambda x, w, b, options: -aten.conv2d(x, w, None, options, groups=1),
    )
    graph = record(negated, X, W, B)
    assert Rewriter([mine]).run(graph, PassContext(Config(strict=True))) == 1
    (conv,) = [n for n in graph.nodes if n.target is aten.conv2d.default]
    assert conv.args[2:] == (None, [2, 2], [1, 1])


def test_a_name_stands_for_the_same_arguments() -> None:
    def pair(x: Any, v: Any, w: Any, options: Any = rest()) -> Any:
        return F.conv2d(x, v, None, options), F.conv2d(x, w, None, options)

    def merged(x: Any, v: Any, w: Any, options: Any) -> Any:
        return F.conv2d(x, torch.cat([v, w]), None, options).chunk(2, 1)

    mine = rule_of(pair, merged)
    for second, hits in ((2, 1), (1, 0)):

        def program(x: Tensor, v: Tensor, w: Tensor, stride: int = second) -> Any:
            return F.conv2d(x, v, None, 2) + 1, F.conv2d(x, w, None, stride) * 2

        graph = record(program, X, W, W + 1)
        assert Rewriter([mine]).run(graph, PassContext(Config(strict=True))) == hits
    miss = nearest_miss_in(mine.pattern, graph)
    assert miss is not None and miss.reason.startswith("argument 'stride' of conv2d")
    assert "expected stride as before in ...options, got [1, 1]" in miss.reason


def test_tensors_are_among_them() -> None:
    mine = rule_of(
        lambda x, size, options=rest(): aten.layer_norm(x, size, options) * 2,
        lambda x, size, options: 2 * aten.layer_norm(x, size, options).neg().neg(),
    )
    graph = record(lambda x, w, b: F.layer_norm(x, (8,), w, b) * 2, X, torch.ones(8), torch.zeros(8))
    (match,) = matches(mine.pattern, next(n for n in graph.nodes if n.target is aten.mul.Tensor))
    assert [n.name for n in (match["options"]["weight"], match["options"]["bias"])] == ["x1", "x2"]
    Rewriter([mine]).run(graph, PassContext(Config(strict=True)))
    assert "neg" in names_in(graph)


def test_without_a_name_it_is_anything() -> None:
    mine = rule("neg(conv2d(x, w, b, ...))", "x")
    assert next(matches(mine.pattern, next(reversed(list(record(negated, X, W, B).nodes))).args[0][0]), None)


def test_it_is_a_call_of_that_op_only() -> None:
    """linear(x, w, ...rest) has a bias in the rest, which x @ w.t() has nowhere."""
    mine = rule_of(lambda x, w, options=rest(): aten.linear(x, w, options).relu(), lambda x, w: x)
    for program, found in ((lambda x, w: F.linear(x, w).relu(), 1), (lambda x, w: (x @ w.t()).relu(), 0)):
        graph = record(program, torch.ones(2, 3), torch.ones(3, 3))
        assert len([m for n in graph.nodes for m in matches(mine.pattern, n)]) == found


def test_one_int_stands_for_a_list() -> None:
    """Graphs have stride=[2, 2] where a model, or a pattern, says 2."""
    mine = rule_of(lambda x, w, b: F.conv2d(x, w, b, 2, 1), lambda x, w, b: x)
    graph = record(negated, X, W, B)
    assert any(next(matches(mine.pattern, n), None) for n in graph.nodes if n.op == "call_function")
    for fn, argument, wanted in (
        (lambda x, w, b: F.conv2d(x, w, b, 2, 0), "padding", "0, got 1"),
        (lambda x, w, b: F.conv2d(x, w, b, 1, 1), "stride", "1, got 2"),
        (lambda x, w, b: F.conv2d(x, w, b, 2, 1, 1, 2), "groups", "2, got 1"),
        (lambda x, w, b: F.conv2d(x, w, b, 2, 1, 2, 1), "dilation", "2, got 1"),
    ):
        miss = nearest_miss_in(rule_of(fn, lambda x, w, b: x).pattern, graph)
        assert miss is not None and miss.reason == f"argument {argument!r} of conv2d: expected {wanted}"


def test_the_battery_makes_samples() -> None:
    mine = rule_of(
        lambda x, options=rest(): -aten.softshrink(x, options),
        lambda x, options: aten.softshrink(-x, options),
    )
    assert check_rewrite(mine, only=["fires", "same results"]).ok


WRONG: dict[str, tuple[Any, Any, str, str]] = {
    "not last": (
        lambda x, w, options=rest(): F.conv2d(x, options, w),
        lambda x: x,
        "the rest of the arguments, ...options, is not the last one of conv2d",
        "put it last",
    ),
    "a text, not last": ("conv2d(x, ...o, w)", "x", "...o, is not the last one of conv2d", "put it last"),
    "by name": (
        lambda x, options=rest(): F.layer_norm(x, (4,), options),
        lambda x: x,
        "is not the last one of layer_norm",
        "torch.ops.aten.layer_norm",
    ),
    "in another order than the op": (
        lambda x, options=rest(): tree.F.batch_norm(x, options),
        lambda x: x,
        "torch.nn.functional.batch_norm has other arguments than the op",
        "call torch.ops.aten.batch_norm",
    ),
    "in a list": (
        lambda x, options=rest(): torch.cat([x.sin(), options]),
        lambda x: x,
        "...options, is not the last argument of a call",
        "behind the arguments",
    ),
    "unused": (
        lambda x, w, options=rest(): F.conv2d(x, w),
        lambda x: x,
        "never uses its parameter 'options'",
        "take it out",
    ),
    "dots where torch takes none": (
        lambda x, w: F.conv2d(x, w, None, ...),
        lambda x: x,
        "raised TypeError",
        "write rest()",
    ),
    "another name": (
        "conv2d(x, w, ...option)",
        "conv2d(x, w, ...options)",
        "uses 'options', which the pattern does not bind",
        "did you mean 'option'?",
    ),
    "not in the pattern": (
        "conv2d(x, w)",
        "conv2d(x, w, ...)",
        "the pattern 'conv2d(x, w)' has it 0 times",
        "name it",
    ),
    "in the pattern twice": (
        "conv2d(conv2d(x, w, ...), v, ...)",
        "conv2d(x, w, ...)",
        "has it 2 times",
        "...options",
    ),
    "no name": (lambda x: rest(3), lambda x: x, "the name of the rest of the arguments is 3", "rest("),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_an_error_at_once(name: str) -> None:
    pattern, replacement, message, fix = WRONG[name]
    with pytest.raises(PassError, match=re.escape(message)) as error:
        lampwork.rewrite(pattern, replacement)
    assert fix in error.value.fix


WRONG_IN_GRAPHS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "no such argument": (
        lambda x, w, b, o: F.conv2d(x, w, b, o["strides"]),
        "the rest of the arguments ...o has no 'strides'",
        "it has stride, padding, dilation, groups",
    ),
    "an op without one of them": (
        lambda x, w, b, o: torch.ops.rest_test.conv(x, w, b, o),
        "rest_test.conv has no argument 'dilation', which is among ...o in the replacement "
        "rest_test.conv(neg(x0), x1, x2, ...o)",
        "options['stride']",
    ),
    "dots in place of it": (
        lambda x, w, b, o: aten.conv2d(x, w, b, ...),
        "the replacement leaves arguments open with '...'",
        "options=rest()",
    ),
    "outside of a call": (lambda x, w, b, o: [o], "...o is not the last argument of a call", ""),
}


@pytest.mark.parametrize("name", WRONG_IN_GRAPHS)
def test_a_wrong_replacement_of_it(name: str) -> None:
    replacement, message, fix = WRONG_IN_GRAPHS[name]
    mine = rule_of(
        lambda x, w, b, o=rest(): F.conv2d(-x, w, b, o),
        lambda x, w, b, o: replacement(-x, w, b, o),
        name="mine",
    )
    graph = record(lambda x, w, b: F.conv2d(-x, w, b, 2), X, W, B)
    with pytest.raises(LampworkError, match=re.escape(message)) as error:
        Rewriter([mine]).run(graph, PassContext(Config(strict=True)))
    assert fix in error.value.fix


def test_an_option_that_was_not_taken_has_none() -> None:
    mine = rule_of(
        lambda x, w, o=rest(): torch.neg(either(F.conv2d(x, w, None, o), x.sin(), name="which")),
        lambda match, x, w, o: x.sin() * -1.0 if match.count("which") else F.conv2d(x, -w, None, o),
    )
    for program, op in ((lambda x, w: -x.sin(), "mul"), (lambda x, w: -F.conv2d(x, w, None, 2), "conv2d")):
        graph = record(program, X, W)
        assert Rewriter([mine]).run(graph, PassContext(Config(strict=True))) == 1
        assert names_in(graph)[-1] == op
