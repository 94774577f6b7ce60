"""Arguments of a wrong kind: a typed error that says what was expected, and nothing is registered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.approximation import low_rank
from lampwork.errors import LampworkError, OptionError, PassError
from lampwork.patterns import tensor
from lampwork.plugins.registry import registry

X = torch.ones(2)
GELU = nn.Sequential(nn.GELU())


def fn(x):
    return x.relu()


def compiled(**keywords: Any) -> Callable[[], Any]:
    return lambda: lampwork.compile(fn, **keywords)


def rewritten(*args: Any, **keywords: Any) -> Callable[[], Any]:
    return lambda: lampwork.rewrite(*(args or ("neg(neg(x))", "x")), **keywords)


def approximated(**keywords: Any) -> Callable[[], Any]:
    return lambda: lampwork.approximate(GELU, "gelu-to-relu", calibration=X, budget=1, **keywords)


class NeedsArguments:
    name = "needs"

    def __init__(self, given: int) -> None:
        self.given = given

    def run(self, graph: Any, ctx: Any) -> None:
        pass


class Misspelled:
    def patern(x):
        return torch.relu(torch.sigmoid(x))

    def replacement(x):
        return torch.sigmoid(x)


class MisspelledCheck:
    def pattern(x):
        return torch.relu(torch.sigmoid(x))

    def replacement(x):
        return torch.sigmoid(x)

    def chek(match):
        return False


class Texts:
    pattern = "sin(x)"
    replacement = "cos(x)"


class Listed:
    name = "listed"
    passes = 3

    def supports(self, node: Any) -> bool:
        return True

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        return fn


CASES: dict[str, tuple[Callable[[], Any], type[LampworkError], str]] = {
    "option without a name": (compiled(options={1: 2}), OptionError, "unknown option 1"),
    "verify as a list": (compiled(options={"verify": [1]}), OptionError, "'verify' takes .*got \\[1\\]"),
    "verify as a float": (compiled(options={"verify": 1.0}), OptionError, "'verify' takes .*got 1.0"),
    "dynamic as a tensor": (compiled(dynamic=X), OptionError, "dynamic takes True, False or None"),
    "passes of a backend": (compiled(backend=Listed), OptionError, "backend listed: passes is 3"),
    "mode in two places": (
        compiled(mode="default", options={"mode": "max-autotune"}),
        OptionError,
        "mode='default', but option 'mode' is 'max-autotune'",
    ),
    "negative budget": (
        compiled(mode="max-autotune", options={"tuning_seconds": -1}),
        OptionError,
        "'tuning_seconds' takes a number of seconds, 0 or more, got -1",
    ),
    "no budget": (
        compiled(mode="max-autotune", options={"tuning_seconds": float("nan")}),
        OptionError,
        "'tuning_seconds' takes a number of seconds, 0 or more, got nan",
    ),
    "budget of a mode that measures nothing": (
        compiled(mode="reduce-overhead", options={"tuning_seconds": 5}),
        OptionError,
        "'tuning_seconds' means nothing with mode='reduce-overhead'",
    ),
    "instruction set": (
        compiled(options={"isa": "avx1024"}),
        OptionError,
        "'isa' takes .*got 'avx1024'",
    ),
    "explain of None": (lambda: lampwork.explain(None), OptionError, r"explain\(\) takes .*got NoneType"),
    "explain of a class": (lambda: lampwork.explain(nn.Linear), OptionError, r"explain\(\) takes a module"),
    "stance": (lambda: lampwork.set_stance(3), OptionError, "unknown stance 3"),
    "one text": (rewritten("neg(neg(x))"), PassError, r"the rewrite of 'neg\(neg\(x\)\)' has no replacement"),
    "one function": (rewritten(fn), PassError, "the rewrite of the function fn has no replacement"),
    "a replacement alone": (lambda: lampwork.rewrite(replacement="x"), PassError, "got None and 'x'"),
    "a text and a function": (rewritten("neg(neg(x))", fn), PassError, "takes two texts"),
    "tensors": (rewritten(X, X), PassError, "takes two texts.*got a Tensor and a Tensor"),
    "a class and a text": (rewritten(Misspelled, "x"), PassError, "the class Misspelled has its own"),
    "patern": (rewritten(Misspelled), PassError, "misspelled has `patern`, and no `pattern`"),
    "patern of an object": (rewritten(Misspelled()), PassError, "misspelled has `patern`, and no `pattern`"),
    "chek": (rewritten(MisspelledCheck), PassError, "misspelled_check has `chek`, and no `check`"),
    "no parts": (rewritten(nn.Linear), PassError, "rewrite linear has no `pattern`"),
    "texts in a class": (
        rewritten(Texts),
        PassError,
        "`pattern` of rewrite texts is 'sin\\(x\\)', not a function",
    ),
    "tolerance": (rewritten(tolerance=-1), PassError, "the tolerance of a rewrite is -1"),
    "tolerance as a text": (rewritten(tolerance="0.1"), PassError, "the tolerance of a rewrite is '0.1'"),
    "check of nothing": (
        rewritten(check=lambda: True),
        PassError,
        "the check of rewrite .* takes \\(\\), and is",
    ),
    "an operator in a text": (rewritten("sin(x) + 1", "x"), PassError, "expected an expression at column 6"),
    "a function of torch in a text": (
        rewritten("torch.sin(x)", "x"),
        PassError,
        "no op is called 'torch.sin'",
    ),
    "another variable": (
        rewritten("sin(x)", "cos(xx)"),
        PassError,
        "uses 'xx', which the pattern does not bind",
    ),
    "one argument of a pass": (
        lambda: lampwork.register_pass(lambda graph: None),
        OptionError,
        "takes \\(graph\\), and is called with the graph and the context",
    ),
    "a class that is no pass": (
        lambda: lampwork.register_pass(Texts),
        OptionError,
        "the class Texts is no pass",
    ),
    "a builtin": (rewritten(torch.relu, fn), PassError, "is no function of a rewrite"),
    "a partial": (rewritten(functools.partial(torch.add, 1), fn), PassError, "is no function of a rewrite"),
    "check": (rewritten(check="yes"), PassError, "check of a rewrite is 'yes'"),
    "priority": (rewritten(priority="high"), PassError, "priority of a rewrite is 'high'"),
    "name of a rewrite": (rewritten(name=3), OptionError, "3 is no name"),
    "after": (rewritten(after=3), OptionError, "after takes the name of a pass, got 3"),
    "before": (rewritten(before=["algebra"]), OptionError, "before takes the name of a pass"),
    "name of a pass": (lambda: lampwork.register_pass(fn, name=3), OptionError, "3 is no name"),
    "class of a pass": (
        lambda: lampwork.register_pass(NeedsArguments),
        OptionError,
        "pass NeedsArguments cannot be made without arguments",
    ),
    "name of a sequence": (lambda: lampwork.sequence(3, ["dead-code"]), OptionError, "3 is no name"),
    "enabled": (rewritten(enabled="no"), OptionError, "enabled is 'no', expected a bool"),
    "enabled of a decorator": (
        lambda: lampwork.rewrite(enabled=0),
        OptionError,
        "enabled is 0, expected a bool",
    ),
    "enabled of a pass": (
        lambda: lampwork.register_pass(fn, enabled="no"),
        OptionError,
        "enabled is 'no', expected a bool",
    ),
    "enabled of a sequence": (
        lambda: lampwork.sequence("mine", ["dead-code"], enabled=None),
        OptionError,
        "enabled is None, expected a bool",
    ),
    "no steps": (lambda: lampwork.sequence("mine", []), OptionError, "sequence mine has no steps"),
    "two switches as a name": (rewritten(name="a,-b"), OptionError, "'a,-b' is no name .* could not switch"),
    "a newline behind a name": (rewritten(name="mine\n"), OptionError, r"'mine\\n' is no name"),
    "a space before the name of a pass": (
        lambda: lampwork.register_pass(lambda graph, ctx: None, name=" a"),
        OptionError,
        "' a' is no name",
    ),
    "a bracket in a name": (rewritten(name="a(b"), OptionError, r"'a\(b' is no name"),
    "a comma behind the name of a sequence": (
        lambda: lampwork.sequence("a,", ["dead-code"]),
        OptionError,
        "'a,' is no name",
    ),
    "static sizes of a number": (
        lambda: lampwork.mark_static(3),
        OptionError,
        r"mark_static\(\) takes a tensor, got 3",
    ),
    "a text as a dimension": (
        lambda: lampwork.mark_dynamic(X, "a"),
        OptionError,
        r"mark_dynamic\(\) takes a dimension or several, got 'a'",
    ),
    "no dimension": (lambda: lampwork.mark_dynamic(X, None), OptionError, "takes a dimension or several"),
    "a bound": (
        lambda: lampwork.mark_dynamic(X, 0, min="2"),
        OptionError,
        r"mark_dynamic\(\) takes an int for min, got '2'",
    ),
    "switches": (lambda: lampwork.passes(["-algebra"]).__enter__(), OptionError, r"passes\(\) takes a text"),
    "dtype of a variable": (lambda: tensor(dtype="float32"), PassError, "the dtype of a variable"),
    "rank of a variable": (lambda: tensor(rank="4"), PassError, "the rank of a variable is '4'"),
    "shape of a variable": (lambda: tensor(shape=3), PassError, "the shape of a variable is 3"),
    "predicate of a variable": (lambda: tensor(where=3), PassError, "the where of a variable is 3"),
    "metric": (approximated(metric=3), OptionError, "metric is 3"),
    "speed-up": (approximated(min_speedup="2"), OptionError, "min_speedup is '2'"),
    "energy": (lambda: low_rank(energy="0.9"), OptionError, "energy is '0.9'"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_says_what_was_expected(case: str) -> None:
    call, kind, message = CASES[case]
    with pytest.raises(kind, match=message) as raised:
        call()
    assert raised.value.fix
    assert not registry().all()


def test_a_limit_longer_than_any_timer_is_none() -> None:
    rewrite = lampwork.rewrite("neg(neg(x))", "x", name="mine")
    try:
        options = {"backend_timeout": 10**12, "pass_timeout": 10**12}
        compiled = lampwork.compile(fn, backend=lambda gm, inputs: gm.forward, options=options)
        assert torch.equal(compiled(X), fn(X))
    finally:
        rewrite.unregister()


def test_a_dump_that_cannot_be_written_is_the_options_fault() -> None:
    with pytest.raises(OptionError, match="option 'dump' takes a folder to write to, got"):
        lampwork.compile(fn, options={"dump": __file__})


def test_a_pass_that_drops_specs_left_an_invalid_graph() -> None:
    def drop(graph: Any, ctx: Any) -> None:
        for node in graph.nodes:
            node.meta.clear()

    item = lampwork.register_pass(drop)
    try:
        with pytest.raises(PassError, match="pass drop .* left an invalid graph: node .* has no TensorSpec"):
            lampwork.compile(fn, options={"strict": True})(X)
    finally:
        item.unregister()
