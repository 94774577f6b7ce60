"""Patterns that say nothing, or what no graph has: errors that name the rewrite and the line of its pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lampwork.errors import PassError
from lampwork.patterns import either, maybe, number, repeated, tensor, through
from lampwork.rewriting.apply.driver import rule, rule_of

F = torch.nn.functional


def bare(x):
    return x


def nothing(x):
    return None


def literals_only(x=number()):
    return 2


def unused(x, y):
    return torch.relu(x)


def unknown_method(x):
    return x.sofmax(-1)


def unknown_overload(x):
    return torch.ops.aten.add.Tenser(x, x)


def branches(x):
    return torch.relu(x) if x > 0 else x


def iterates(x):
    return torch.cat([torch.relu(t) for t in x])


def computes_with_sizes(x):
    return x / x.size(-1) ** 0.5


def sizes_of_a_call(x):
    return x.view((x + 1).shape[0], -1)


def maybe_nothing(x):
    return maybe(torch.relu, x)


def either_bare(x, y):
    return either(x + y, y)


def repeated_zero_times(x):
    return repeated(torch.relu, x, at_least=0)


def through_bare(x):
    return through(x)


def step_does_nothing(x):
    return torch.exp(repeated(lambda t: t, x))


def one_choice(x):
    return torch.exp(either(x + 1))


def too_many_arguments(x):
    return torch.ops.aten.relu(x, 1, 2)


def bad_shape(x=tensor(shape=(2, "d"))):
    return torch.relu(x) @ tensor(shape=(..., 2.5))


def indexes_with_tensors(x, i):
    return x[i]


def raises(x):
    raise ValueError("no")


def several_with_nothing_in_common(x, y):
    return torch.relu(x), torch.relu(y)


WRONG: dict[Callable[..., Any], tuple[str, str]] = {
    bare: ("is not a call of an op", ""),
    nothing: ("is not a call of an op", ""),
    literals_only: ("is not a call of an op", ""),
    unused: ("never uses its parameter 'y'", "take it out"),
    unknown_method: ("no op is called 'sofmax'", "did you mean 'softmax'?"),
    unknown_overload: ("raised AttributeError", ""),
    branches: ("gt(x, 0) has no value to branch on", "either(...)"),
    iterates: ("cannot be iterated over", "by index"),
    computes_with_sizes: ("a pattern does not know sizes", "c=number()"),
    sizes_of_a_call: ("the sizes of its variables only", "-1"),
    maybe_nothing: ("matches any value", "leave out"),
    either_bare: ("matches any value", "leave out"),
    repeated_zero_times: ("matches any value", "leave out"),
    through_bare: ("matches any value", "leave out"),
    step_does_nothing: ("the step of repeated() applies no op", ""),
    one_choice: ("either() takes two options or more, got 1", ""),
    too_many_arguments: ("no overload of aten.relu takes the arguments (x, 1, 2)", ""),
    bad_shape: ("2.5 in the shape of a variable", "a str"),
    indexes_with_tensors: ("cannot index with tensors", "aten.index"),
    raises: ("raised ValueError: no", ""),
    several_with_nothing_in_common: ("output 1 of a pattern has nothing in common", "a variable of theirs"),
}


@pytest.mark.parametrize("pattern", WRONG, ids=lambda fn: fn.__name__)
def test_a_wrong_pattern(pattern: Callable[..., Any]) -> None:
    message, fix = WRONG[pattern]
    with pytest.raises(PassError) as error:
        rule_of(pattern, lambda: None, name="mine")
    assert message in error.value.cause and "mine" in error.value.cause
    assert fix in error.value.fix
    assert error.value.location is not None
    assert error.value.location.file == __file__
    assert error.value.location.line == pattern.__code__.co_firstlineno


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("x", "is not a call of an op", ""),
        ("sofmax(x, 1)", "no op is called 'sofmax'", "did you mean 'softmax'?"),
        ("add.Tenser(x, y)", "no op is called 'add.Tenser'", "did you mean 'add.Tensor'?"),
        ("mine.op(x)", "no op is called 'mine.op'", "namespace.op"),
        ("relu(x, 1)", "no overload of aten.relu takes the arguments (x, 1)", ""),
    ],
)
def test_a_wrong_text(text: str, message: str, fix: str) -> None:
    with pytest.raises(PassError) as error:
        rule(text, "x")
    assert message in error.value.cause and fix in error.value.fix
