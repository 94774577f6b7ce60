"""The methods of iteration and length are called when, and as often as, CPython calls them."""

from __future__ import annotations

import collections
import functools
import itertools
import math

import pytest
import torch

import lampwork

X = torch.ones(2)


class Counted:
    """Its own iterator, which notes what is asked of it."""

    def __init__(self, n, asked, name=""):
        self.n, self.asked, self.name = n, asked, name

    def __iter__(self):
        self.asked.append(self.name + "iter")
        self.i = 0
        return self

    def __next__(self):
        self.asked.append(self.name + "next")
        if self.i >= self.n:
            raise StopIteration
        self.i += 1
        return self.i


class Sized(Counted):
    def __len__(self):
        self.asked.append(self.name + "len")
        return self.n


class Hinting(Counted):
    def __length_hint__(self):
        self.asked.append(self.name + "hint")
        return 3


class Indexed:
    def __init__(self, n, asked, name=""):
        self.n, self.asked, self.name = n, asked, name

    def __getitem__(self, i):
        self.asked.append(f"{self.name}{i}")
        if i >= self.n:
            raise IndexError
        return i + 1

    def __len__(self):
        self.asked.append(self.name + "len")
        return self.n


def first_and_rest(a):
    first, *rest = a
    return first, rest


def first_rest_and_last(a):
    first, *rest, last = a
    return first, rest, last


def both(a):
    first, second = a
    return first, second


def extended(made, a):
    made.extend(a)
    return made


def added(made, a):
    made += a
    return made


def arguments(*args):
    return args


def of_reversed(a):
    made = reversed(a)
    return [*made]


ONE = {
    "list": list,
    "tuple": tuple,
    "display": lambda a: [0, *a],
    "tuple display": lambda a: (0, *a),
    "set display": lambda a: {0, *a},
    "arguments": lambda a: arguments(*a),
    "more arguments": lambda a: arguments(0, *a),
    "extend": lambda a: extended([0], a),
    "+=": lambda a: added([0], a),
    "deque": lambda a: list(collections.deque(a, 2)),
    "sorted": lambda a: sorted(a, key=lambda v: -v),
    "sum": sum,
    "max": max,
    "any": any,
    "in": lambda a: 1 in a,
    "prod": math.prod,
    "reduce": lambda a: functools.reduce(lambda x, y: x + y, a),
    "first and rest": first_and_rest,
    "first, rest and last": first_rest_and_last,
    "both": both,
    "set": set,
    "frozenset": frozenset,
    "union": lambda a: {0}.union(a),
    "issuperset": lambda a: {2, 3}.issuperset(a),
    "isdisjoint": lambda a: {1, 3}.isdisjoint(a),
    "issubset": lambda a: {1, 3}.issubset(a),
    "difference": lambda a: {1, 5}.difference(a),
    "fromkeys": lambda a: dict.fromkeys(a, 1),
    "join": lambda a: ",".join(map(str, a)),
    "enumerate": lambda a: list(enumerate(a)),
    "filter": lambda a: list(filter(None, a)),
    "islice": lambda a: list(itertools.islice(a, 1)),
    "groupby": lambda a: [(key, list(group)) for key, group in itertools.groupby(a)],
    "tee": lambda a: [list(part) for part in itertools.tee(a)],
    "pairwise": lambda a: list(itertools.pairwise(a)),
    "cycle": lambda a: list(itertools.islice(itertools.cycle(a), 5)),
    "accumulate": lambda a: list(itertools.accumulate(a)),
    "batches": lambda a: list(itertools.zip_longest(a, [1, 2, 3])),
    "loop": lambda a: [i for i in a],
}
TWO = {
    "chain": lambda a, b: list(itertools.chain(a, b)),
    "chain that stops": lambda a, b: list(itertools.islice(itertools.chain(a, b), 1)),
    "from_iterable": lambda a, b: list(itertools.chain.from_iterable([a, b])),
    "product": lambda a, b: list(itertools.product(a, b)),
    "zip": lambda a, b: list(zip(a, b)),  # noqa: B905
    "map": lambda a, b: list(map(lambda x, y: x + y, a, b)),
    "union": lambda a, b: set().union(a, b),
    "arguments": lambda a, b: arguments(*a, *b),
    "compress": lambda a, b: list(itertools.compress(a, b)),
}


def check(function, *kinds):
    notes = []
    for run in (function, lampwork.compile(lambda x, *values: (x * 2, function(*values)))):
        asked: list[str] = []
        values = [kind(2 + i, asked, "ab"[i]) for i, kind in enumerate(kinds)]
        results = []
        for _ in range(3):
            result = run(*values) if run is function else run(X, *values)[1]
            results.append(result)
            asked.append("|")
        notes.append((results, asked))
    assert notes[0] == notes[1]


@pytest.mark.parametrize("kind", (Counted, Sized, Hinting, Indexed))
@pytest.mark.parametrize("name", ONE)
def test_one_iterable(name, kind):
    check(ONE[name], kind)


@pytest.mark.parametrize("name", TWO)
def test_two_iterables(name):
    check(TWO[name], Sized, Counted)


REVERSED = {
    "all": of_reversed,
    "first": lambda a: next(reversed(a)),
    "none": lambda a: reversed(a) is None,  # asks for the length at once
}


@pytest.mark.parametrize("name", REVERSED)
def test_reversed(name):
    check(REVERSED[name], Indexed)


class BadLength:
    def __init__(self, error):
        self.error = error

    def __iter__(self):
        return iter([1, 2])

    def __len__(self):
        raise self.error


@pytest.mark.parametrize("name", ("list", "tuple", "display", "extend", "+=", "sorted", "arguments"))
def test_a_length_that_raises(name):
    function = ONE[name]
    compiled = lampwork.compile(lambda x, a: (x * 2, function(a)))
    with pytest.raises(ValueError, match="no length"):
        compiled(X, BadLength(ValueError("no length")))
    # Python goes without a length where it is told that there is none.
    assert compiled(X, BadLength(TypeError("none")))[1] == function([1, 2])


@pytest.mark.parametrize("kind", (Sized, Indexed))
def test_a_graph_break_while_native_code_iterates(kind):
    class Breaking(kind):
        def __getitem__(self, i):
            torch._dynamo.graph_break()
            return super().__getitem__(i)

        def __next__(self):
            torch._dynamo.graph_break()
            return super().__next__()

    def f(x, a):
        total = x * 2
        for i, value in zip(range(9), a):  # noqa: B905
            total = total + i * value
        for value in reversed([*a]):
            total = total * value
        return total, list(a)

    asked: list[str] = []
    expected = f(X, Breaking(2, asked))
    for _ in range(2):
        now: list[str] = []
        result = lampwork.compile(f)(X, Breaking(2, now))
        torch.testing.assert_close(result[0], expected[0])
        assert result[1] == expected[1] and now == asked


def test_a_set_gives_its_items_in_its_order():
    """That of the table, which is larger for a set that took its items one by one than for a copy of it."""
    grown = set()
    for n in (17, 2, 3, 4, 5):
        grown.add(n)
    shrunk = set(range(20))
    shrunk -= set(range(3, 16))
    assert tuple(set(grown)) != tuple(grown)
    before = lampwork.stats()["breaks"]
    for held in (grown, shrunk, {*grown, 33}):
        compiled = lampwork.compile(lambda x, held=held: (x * (17 in held), list(held), len(held)))
        for _ in range(2):
            assert compiled(X)[1:] == (list(held), len(held))
    assert lampwork.stats()["breaks"] == before
