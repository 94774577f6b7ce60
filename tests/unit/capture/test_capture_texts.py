"""Texts of objects from outside: native code makes them from state that must be guarded, whichever way it is asked."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import operator
import types

import pytest
import torch

import lampwork

X = torch.ones(2)


class Items(list):
    pass


class Table(dict):
    pass


class Named:
    pass


def function():
    pass


def renamed(target, k):
    target.__qualname__ = f"q{k}"
    return target


MADE = {
    "namespace": lambda k: types.SimpleNamespace(a=k),
    "nested": lambda k: [types.SimpleNamespace(b=types.SimpleNamespace(a=k))],
    "exception": lambda k: ValueError(k),
    "exceptions": lambda k: [ValueError(k)],
    "OSError": lambda k: OSError(k, "none"),
    "UnicodeError": lambda k: UnicodeDecodeError("utf8", b"abc", 0, 1, f"r{k}"),
    "SyntaxError": lambda k: SyntaxError("m", ("f", k, 1, "t")),
    "group": lambda k: ExceptionGroup("g", [ValueError(k)]),
    "partial": lambda k: functools.partial(len, k),
    "list": lambda k: Items([k]),
    "dict": lambda k: Table(a=k),
    "deque": lambda k: collections.deque([k], maxlen=k + 3),
    "OrderedDict": lambda k: collections.OrderedDict([(1, k)]),
    "defaultdict": lambda k: collections.defaultdict(int, {1: k}),
    "proxy": lambda k: types.MappingProxyType({"a": k}),
    "view": lambda k: {k: 1}.items(),
    "count": lambda k: itertools.count(k),
    "itemgetter": lambda k: operator.itemgetter(k),
    "function": lambda k: renamed(function, k),
    "class": lambda k: renamed(Named, k),
}

WAYS = {
    "str": lambda x, v: (x + 1, str(v)),
    "repr": lambda x, v: (x + 1, repr(v)),
    "ascii": lambda x, v: (x + 1, ascii(v)),
    "f-string": lambda x, v: (x + 1, f"{v}"),
    "percent": lambda x, v: (x + 1, "%s" % (v,)),
    "format": lambda x, v: (x + 1, "{!r:>3}".format(v)),
    "in a list": lambda x, v: (x + 1, repr([v])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MADE)
def test_a_text_changes_with_its_object(kind: str, way: str) -> None:
    compiled = lampwork.compile(WAYS[way], options={"strict": False})
    for k in (1, 2, 1, 3):
        value = MADE[kind](k)
        assert compiled(X, value)[1] == WAYS[way](X, value)[1]


def test_texts_of_exceptions_after_a_break_in_a_loop() -> None:
    def texts(x):
        errors = [ValueError("a", 1), ValueError(Named())]
        return x, [str(error)[:6] for error in errors]

    assert lampwork.compile(texts, options={"strict": False})(X)[1] == texts(X)[1]


def test_the_class_of_a_known_object_is_replaced() -> None:
    class Scale:
        def __call__(self, x):
            return x * 2

    class Shift(Scale):
        def __call__(self, x):
            return x + 7

    scale = Scale()
    compiled = lampwork.compile(scale)
    assert compiled(X)[0] == 2
    scale.__class__ = Shift
    assert compiled(X)[0] == 8
    scale.__class__ = Scale
    assert compiled(X)[0] == 2


def test_a_keyword_default_comes_back() -> None:
    def scaled(x, *, k=2):
        return x * k

    def called(x):
        try:
            return scaled(x)
        except TypeError as error:
            return str(error)

    compiled = lampwork.compile(called)
    del scaled.__kwdefaults__["k"]
    assert "keyword-only" in compiled(X)
    scaled.__kwdefaults__["k"] = 3
    assert compiled(X)[0] == 3


def test_an_object_without_attributes_is_copied() -> None:
    empty = Named()
    compiled = lampwork.compile(lambda x: (copy.deepcopy(empty), x + 1))
    assert vars(compiled(X)[0]) == {}
    empty.k = 1
    assert vars(compiled(X)[0]) == {"k": 1}


def test_reversed_ends_where_an_index_is_out_of_range() -> None:
    class Pages:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return (1, 2)[i]

    def turned(x):
        return x + 1, list(reversed(Pages()))

    assert lampwork.compile(turned)(X)[1] == turned(X)[1] == []
