"""What a function makes is made by each call, whatever it is; what cannot be made from a region ends it."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import os
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lampwork

X = torch.ones(2)


class Counting(nn.Module):
    """A module without tensors that has state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Holder:
    held: Any = None


def module_across_a_break(x):
    made = Counting()
    y = made(x)
    if y.sum() > 0:
        y = made(y)
    return y.tolist(), made.calls


def module_with_a_hook(x):
    made, seen = nn.ReLU(), []
    made.register_forward_hook(lambda *args: seen.append(1))
    made(made(x))
    return len(seen), len(made._forward_hooks)


def stored_module(x):
    Holder.held = nn.Dropout()
    return Holder.held


MADE_AFRESH: dict[str, Callable[..., Any]] = {
    "module": lambda x: nn.ReLU(),
    "modules": lambda x: nn.Sequential(nn.ReLU(), Counting()),
    "stored module": stored_module,
    "named tuple class": lambda x: collections.namedtuple("Pair", "a b"),
    "enumeration": lambda x: enum.Enum("Colour", "RED BLUE"),
    "member of an enumeration": lambda x: enum.Enum("Colour", "RED BLUE").RED,
    "Python module": lambda x: types.ModuleType("made"),
    "object": lambda x: object(),
}


@pytest.mark.parametrize("name", MADE_AFRESH)
def test_each_call_makes_its_own(name: str) -> None:
    compiled = lampwork.compile(MADE_AFRESH[name], options={"strict": False})
    made = [compiled(X) for _ in range(3)]
    assert len(set(map(id, made))) == 3
    assert len({str(type(one)) for one in made}) == 1


def test_what_was_there_before_stays_the_same() -> None:
    for there in (nn.ReLU(), Counting, torch.relu, os.path, dict, test_each_call_makes_its_own):
        compiled = lampwork.compile(lambda x, there=there: (x + 1, there))
        assert all(compiled(X)[1] is there for _ in range(3))


@pytest.mark.parametrize("function", [module_across_a_break, module_with_a_hook])
def test_state_of_a_made_module_is_that_of_one_call(function: Callable[..., Any]) -> None:
    compiled = lampwork.compile(function, options={"strict": False})
    for _ in range(3):
        assert compiled(X) == function(X)


class Stripped(str):
    def __new__(cls, text):
        made = super().__new__(cls, text.strip())
        made.width = len(text)
        return made


class Whole(int):
    def __new__(cls, number):
        return super().__new__(cls, number + 1)


class Negative(float):
    def __new__(cls, number):
        return super().__new__(cls, -number)


class Wave(complex):
    def __new__(cls, number):
        return super().__new__(cls, number)


class Data(bytes):
    def __new__(cls, data):
        return super().__new__(cls, data)


class Members(frozenset):
    def __new__(cls, items):
        made = super().__new__(cls, items)
        made.count = len(items)
        return made


class Pair(tuple):
    def __new__(cls, items):
        made = super().__new__(cls, items)
        made.count = len(items)
        return made


class Slotted:
    __slots__ = ("k",)

    def __new__(cls, k):
        made = super().__new__(cls)
        made.k = k
        return made


GIVEN = [
    (Stripped, " a "), (Whole, 3), (Negative, 0.0), (Wave, 1j), (Data, b"ab"), (Members, (1, 2)), (Pair, (1, 2)),
    (Slotted, 4),
]  # fmt: skip


def described(value: Any) -> tuple[Any, ...]:
    """The class of an object, what it is, and what it holds besides."""
    return (
        type(value),
        repr(value) if type(value) is not Slotted else value.k,
        getattr(value, "__dict__", None),
    )


@pytest.mark.parametrize(("kind", "content"), GIVEN, ids=lambda given: str(given))
def test_objects_with_a_native_base(kind: Any, content: Any) -> None:
    """Their own `__new__` does not run again to rebuild them."""

    def returned(x):
        return x + 1, kind(content)

    def across_a_break(x):
        made = kind(content)
        print(end="")
        return x + 1, made

    for function in (returned, across_a_break):
        compiled = lampwork.compile(function)
        for _ in range(3):
            assert described(compiled(X)[1]) == described(kind(content))


def match_across_a_break(x):
    match = re.match(r"(\d+)", "12ab")
    print(end="")
    return x.tolist(), int(match.group(1)), match.span()


def match_in_bytes_that_change(x):
    data = bytearray(b"12ab")
    match = re.match(rb"(\d+)", data)
    print(end="")
    data[0] = 51
    return x.tolist(), match.group(1)


def pattern_across_a_break(x):
    pattern = re.compile("a(b)")
    print(end="")
    return x.tolist(), pattern.groups, pattern


def matches_across_a_break(x):
    matches = re.finditer("a", "aba")
    print(end="")
    return x.tolist(), [match.span() for match in matches]


def copied_natives(x):
    try:
        return copy.copy(re.match("a", "a")).group(), copy.deepcopy(re.compile("a")).pattern
    except TypeError as error:
        return str(error)


def dataclass_with_annotations_in_text(x):
    @dataclasses.dataclass
    class Made:
        a: int = 3

    return x.tolist(), Made().a


@pytest.mark.parametrize(
    "function",
    [
        match_across_a_break,
        match_in_bytes_that_change,
        pattern_across_a_break,
        matches_across_a_break,
        copied_natives,
        dataclass_with_annotations_in_text,
        lambda x: dataclasses.make_dataclass("Made", [("a", int)])(3).a,
        lambda x: os.path.expandvars("$HOME"),
    ],
)
def test_objects_of_native_classes(function: Callable[..., Any]) -> None:
    compiled = lampwork.compile(function, options={"strict": False})
    for _ in range(3):
        assert compiled(X) == function(X)
