"""Values that are equal and not the same: a guard tells apart what a program can, and runs none of its code."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import math
import re

import numpy as np
import pytest
import torch

import lampwork
from lampwork._C import strictly_equal

X = torch.ones(1)


class Whole(int):
    __hash__ = int.__hash__

    def __eq__(self, other):
        raise AssertionError("a guard asks the program")

    def __repr__(self):
        raise AssertionError("a guard asks the program")


class Real(float):
    __hash__ = float.__hash__
    __eq__ = Whole.__eq__
    __repr__ = Whole.__repr__


class Text(str):
    __slots__ = ()
    __hash__ = str.__hash__
    __eq__ = Whole.__eq__
    __repr__ = Whole.__repr__


class Price(decimal.Decimal):
    __hash__ = decimal.Decimal.__hash__
    __eq__ = Whole.__eq__


class Key:
    def __init__(self, k):
        self.k = k

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return True


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


NOON = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.timezone.utc)
# In each row all are the same object twice, or differ from one another.
DIFFERENT = [
    [1, True, 1.0, 1 + 0j, Whole(1), Whole(2), Real(1), Real(2), "1", b"1", Text("1"), Text("2")],
    [0.0, -0.0, math.nan, -math.nan, complex(0.0, -0.0), complex(0.0, 0.0), complex(-0.0, 0.0)],
    [(1,), (True,), (1.0,), [1], (1, 2), (0.0,), (-0.0,), ((1,),), ([1],)],
    [{1}, {True}, {1.0}, frozenset({1}), frozenset({True}), {1, 2}],
    [frozenset({frozenset({1})}), frozenset({frozenset({1.0})})],
    [range(0), range(1, 1), range(0, 4, 2), range(0, 3, 2), slice(1), slice(True), slice(None, 1, 1)],
    [{"a": 1}, {"a": True}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {frozenset({1}): 1}, {frozenset({True}): 1}],
    [decimal.Decimal("1.0"), decimal.Decimal("1.00"), fractions.Fraction(1), Colour.RED, Colour.GREEN],
    [NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=1))), NOON.replace(fold=1), NOON.date()],
    [np.float32(0.0), np.float32(-0.0), np.float64(0.0), np.float64(-0.0), np.int64(0), np.dtype("int8")],
    [re.compile("a"), re.compile("a", re.I), list[int], tuple[int], int | str],
    [torch.float32, torch.float64, torch.device("cpu"), torch.device("cpu", 0), torch.Size((1,)), torch.strided],
]  # fmt: skip


@pytest.mark.parametrize("row", DIFFERENT, ids=lambda row: str(type(row[0]).__name__))
def test_a_guard_tells_apart_what_a_program_can(row):
    for i, value in enumerate(row):
        for j, other in enumerate(row):
            assert strictly_equal(value, other) == (i == j)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 1.5, lambda: math.nan, lambda: "a" * len(DIFFERENT), lambda: (1, 2.0, "x"), lambda: {1, 2},
        lambda: Whole(300), lambda: Real(1.5), lambda: Text("text"), lambda: range(2, 9), lambda: np.float32(2.5),
        lambda: decimal.Decimal("1.00"), lambda: NOON.replace(year=1), lambda: torch.device("cpu", 0),
        lambda: {"a": [1]}, lambda: frozenset(({1: 2}.keys(), 3)[1:]),
    ],
)  # fmt: skip
def test_a_value_that_was_made_anew_is_the_same(make):
    assert strictly_equal(make(), make())


def test_what_compares_in_python_is_equal_to_itself_only():
    key = Key(1)
    assert strictly_equal(key, key)
    assert not strictly_equal(key, Key(1))
    assert not strictly_equal({key: 1}, {Key(1): 1})


@pytest.mark.parametrize(
    ("program", "values"),
    [
        (lambda x, v: x * math.copysign(1, v), (math.nan, -math.nan)),
        (lambda x, v: (x, repr(v)), ({1}, {True})),
        (lambda x, v: (x, repr(v)), (frozenset({1}), frozenset({1.0}))),
        (lambda x, v: (x, repr(v)), (range(0), range(1, 1))),
        (lambda x, v: (x, repr(v)), (decimal.Decimal("1.0"), decimal.Decimal("1.00"))),
        (lambda x, v: (x, repr(v)), ({frozenset({1}): 2}, {frozenset({True}): 2})),
        (lambda x, v: (x, str(v)), (NOON, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=1))))),
        (lambda x, v: x * float(v), (fractions.Fraction(1, 2), fractions.Fraction(1, 3))),
        (lambda x, v: x * next(iter(v)).k, ({Key(1): 0}, {Key(2): 0})),
        (lambda x, v: x * v, (Whole(2), Whole(5), Whole(9))),
        (lambda x, v: x * float(v), (Real(2), Real(5), Real(9))),
        (lambda x, v: x * len(v), (Text("a"), Text("bc"), Text(""))),
        (lambda x, v: (x, v + 1), (Price("1.0"), Price("1.00"))),
        (lambda x, v: (x, list(v)), (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1))),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_equal_values_are_told_apart(program, values, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    compiled = lampwork.compile(program)
    for value in values * 2:
        assert str(compiled(X, value)) == str(program(X, value))
