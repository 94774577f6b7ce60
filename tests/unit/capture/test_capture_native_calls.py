"""Native code that calls back, walks mappings or sorts does so through the interpreter, and as Python does."""

from __future__ import annotations

import collections
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

import lampwork

X = torch.ones(2)
PATTERN = re.compile("a")
SEEN: list[Any] = []


def replacement(match, k=1):
    SEEN.append(k)
    return str(k)


class Replacing:
    def __init__(self):
        self.calls = 0

    def __call__(self, match):
        self.calls += 1
        return str(self.calls)


REPLACING = Replacing()


@pytest.mark.parametrize(
    "substitute",
    [
        lambda n: PATTERN.sub(lambda match: str(n), "aba"),
        lambda n: PATTERN.subn(repl=lambda match: str(n), string="aba"),
        lambda n: re.Pattern.sub(PATTERN, lambda match: str(n), "aba"),
        lambda n: re.sub("a", lambda match: str(n), "aba"),
        lambda n: PATTERN.sub(replacement, "aba"),
        lambda n: PATTERN.sub(functools.partial(replacement, k=n), "aba"),
        lambda n: re.sub("a", functools.partial(replacement, k=n), "aba"),
        lambda n: PATTERN.sub(REPLACING, "aba"),
        lambda n: re.subn("a", REPLACING, "aba"),
        lambda n: PATTERN.sub(r"<\g<0>>", "aba"),
    ],
)
def test_substitution_calls_functions_of_the_region(substitute: Callable[[int], Any]) -> None:
    def run(f: Callable[..., Any]) -> list[Any]:
        REPLACING.calls = 0
        SEEN.clear()
        return [(f(X, n), list(SEEN), REPLACING.calls) for n in (1, 2, 2)]

    def f(x, n):
        return substitute(n)

    assert run(lampwork.compile(f)) == run(f)


class Pairs(tuple):
    pass


class Walked:
    def __iter__(self):
        return iter([1, 2])


def tuples(x):
    made = [Pairs((1, 2)), Pairs(), Pairs(Walked())]
    try:
        made.append(Pairs((1, 2), 3))
    except TypeError as error:
        made.append(str(error))
    return made


class Failing:
    def __init__(self, k):
        self.k = k

    def __lt__(self, other):
        if 7 in (self.k, other.k):
            raise KeyError(self.k)
        return self.k < other.k


def list_written_by_its_key(x):
    items = [3, 1, 2]

    def key(item):
        items.append(item)
        return item

    try:
        items.sort(key=key)
    except ValueError as error:
        return str(error), items
    return items


def list_seen_by_its_key(x):
    items, sizes = [3, 1, 2], []
    items.sort(key=lambda item: (sizes.append(len(items)), item)[1])
    return items, sizes


def list_half_sorted(x):
    found = []
    for reverse in (False, True):
        items = [Failing(k) for k in (5, 4, 3, 9, 7, 1, 2)]
        try:
            items.sort(reverse=reverse)
        except KeyError as error:
            found.append((error.args, [item.k for item in items]))
    return found


def sort_with_other_arguments(x):
    try:
        [2, 1].sort(other=1)
    except TypeError:
        return "refused"


@pytest.mark.parametrize(
    "function",
    [tuples, list_written_by_its_key, list_seen_by_its_key, list_half_sorted, sort_with_other_arguments],
)
def test_as_python_does(function: Callable[..., Any]) -> None:
    compiled = lampwork.compile(function)
    for _ in range(2):
        assert compiled(X) == function(X)


class Doubled(Mapping[str, int]):
    def __init__(self, table: dict[str, int]) -> None:
        self.table = table

    def __getitem__(self, key: str) -> int:
        return self.table[key] * 2

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


class Pretending(dict):
    def keys(self):
        return ["zz"]

    def __getitem__(self, key):
        return 5


class Iterating(Pretending):
    def __iter__(self):
        return iter(["zz"])


class Keyed:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return key * 2


class Filled(dict):
    def __init__(self, given):
        super().__init__(given)


def taken_over(x, given):
    def gathered(**named):
        return list(named.items())

    updated, joined, ordered = {"q": 0}, {"q": 0}, collections.OrderedDict(q=0)
    updated.update(given)
    joined |= given
    ordered.update(given)
    return [
        list(table.items())
        for table in (
            dict(given),
            {**given},
            updated,
            joined,
            ordered,
            collections.OrderedDict(given),
            collections.defaultdict(list, given),
            collections.Counter(given),
            Filled(given),
        )
    ] + [gathered(**given)]


@pytest.mark.parametrize(
    "given",
    [
        collections.UserDict(ab=1),
        collections.ChainMap({"ab": 1}, {"cd": 2}),
        Doubled({"ab": 3}),
        Pretending(ab=1),
        Iterating(ab=1),
        collections.Counter("aab"),
        {"ab": 1},
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_dicts_take_of_mappings(given: Any) -> None:
    assert lampwork.compile(taken_over)(X, given) == taken_over(X, given)


def test_objects_with_keys_are_mappings() -> None:
    def f(x):
        return dict(Keyed()), {**Keyed()}

    assert lampwork.compile(f)(X) == f(X)


def test_torch_may_lie_outside_of_the_environment():
    """As in a virtual environment that shares the packages of the system: `sysconfig` names other folders."""
    program = """
import sysconfig, torch
place = sysconfig.get_path
sysconfig.get_path = lambda name, *rest: "/nowhere" if name in ("purelib", "platlib") else place(name, *rest)
import lampwork
embed = torch.nn.Embedding(4, 6)
lampwork.compile(lambda x: embed(x).unflatten(-1, (2, 3)), fullgraph=True)(torch.tensor([1, 2]))
print(lampwork.stats()["breaks"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "0\n", done.stderr
