"""Python functions that come from outside: a version serves all functions of one `def` or `lambda`, as far as the
program does not look at which of them it has."""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import types
import weakref

import pytest
import torch

import lampwork

X = torch.ones(3)


def scaled(k):
    return lambda t: t * k


def shifted(t):
    return t + 1


def wrapped(k):
    @functools.wraps(shifted)
    def inner(t):
        return shifted(t) * k

    return inner


def calls(x, f):
    return f(x)


def calls_first(x, fs):
    return fs[0](x)


def calls_attribute(x, holder):
    return holder.f(x)


def default(k):
    return lambda t, k=k: t * k


def keyword(k):
    return lambda t, *, k=k, z=3: t * k + z


def partial(k):
    return functools.partial(lambda t, u, v=2: t * u + v, u=k)


def method(k):
    return types.MethodType(lambda self, t: t * self + k, k)


def in_list(k):
    return [scaled(k)]


def in_namespace(k):
    return types.SimpleNamespace(f=scaled(k))


def number(k):
    return k


def tensor(k):
    return torch.full((3,), float(k))


@pytest.mark.parametrize("held", [number, tensor])
@pytest.mark.parametrize(
    ("fn", "make"),
    [
        (calls, scaled),
        (calls, default),
        (calls, keyword),
        (calls, wrapped),
        (calls, partial),
        (calls, method),
        (calls_first, in_list),
        (calls_attribute, in_namespace),
    ],
)
def test_a_version_serves_all_functions_of_one_def(fn, make, held):
    compiled = lampwork.compile(fn)
    for k in range(2, 22):
        assert torch.equal(compiled(X, make(held(k))), fn(X, make(held(k))))
    assert versions_of(compiled) <= 2


def versions_of(compiled):
    return compiled.on_miss.__self__.versions


def test_versions_do_not_keep_functions():
    compiled, dead = lampwork.compile(calls), []
    for k in range(2, 6):
        for make in (scaled, default, keyword, wrapped):
            function = make(k)
            compiled(X, function)
            dead.append(weakref.ref(function))
    del function
    gc.collect()
    assert not any(reference() for reference in dead)


def test_functions_in_known_objects_go_by_code_once_they_are_replaced():
    holder = types.SimpleNamespace(f=scaled(2))
    compiled = lampwork.compile(lambda x: holder.f(x))
    for k in range(2, 30):
        holder.f = scaled(float(k))
        assert torch.equal(compiled(X), X * k)
    assert versions_of(compiled) <= 3


def with_code(f, g):
    f.__code__ = g.__code__
    return f


def with_module(f, name):
    f.__module__ = name
    return f


def with_attribute(f, value):
    f.gain = value
    return f


def other_wrapped(f, inner):
    f.__wrapped__ = inner
    return f


CODE = (lambda t: t * GAIN).__code__  # noqa: F821


def in_globals(gain):
    return types.FunctionType(CODE, {"GAIN": gain})


def optional(*defaults):
    return types.FunctionType((lambda t, k: t * k).__code__, globals(), "optional", defaults or None)


@pytest.mark.parametrize(
    ("fn", "functions"),
    [
        (calls, (scaled(2), with_code(scaled(2), (lambda k: lambda t: t + k)(2)))),
        (calls, (in_globals(2.0), in_globals(3.0))),
        (calls, (optional(2), optional(3))),
        (lambda x, f: f(x) if f.__defaults__ else x, (optional(2), optional())),
        (lambda x, f: x * len(f.__module__), (with_module(scaled(2), "a"), with_module(scaled(2), "bcd"))),
        (lambda x, f: x * len(f.__name__), (wrapped(2), scaled(2))),
        (lambda x, f: x * getattr(f, "gain", 7), (scaled(2), with_attribute(scaled(2), 3))),
        (lambda x, f: f.__wrapped__(x), tuple(other_wrapped(scaled(2), scaled(k)) for k in (3, 4))),
        (lambda x, f: x * f.__closure__[0].cell_contents, (scaled(2), scaled(3))),
        (lambda x, f: x * f.__kwdefaults__["k"], (keyword(2), keyword(5))),
    ],
)
def test_what_differs_between_functions_of_one_def_is_seen(fn, functions):
    compiled = lampwork.compile(fn)
    for function in (*functions, *functions):
        assert torch.equal(compiled(X, function), fn(X, function))


class Plain:
    """Equal to itself only."""

    gain = 2


@pytest.mark.parametrize("kind", [lambda: scaled(2), Plain])
@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: lambda x, o: x + (o is a),
        lambda a, b: lambda x, o: x + (o == a),
        lambda a, b: lambda x, o: x + (o != a),
        lambda a, b: lambda x, o: x + (o in (a,)),
        lambda a, b: lambda x, o: x + (o in [b, a]),
        lambda a, b: (lambda table: lambda x, o: x + (o in table))({a: 1.0}),
        lambda a, b: (lambda table: lambda x, o: x + table.get(o, 5.0))({a: 1.0}),
        lambda a, b: (lambda table: lambda x, o: x + ((o, 1) in table))({(a, 1): 1.0}),
        lambda a, b: lambda x, o: x + (id(o) == id(a)),
        lambda a, b: lambda x, o: x + (hash(o) == hash(a)),
        lambda a, b: lambda x, o: x + [b, a, o].index(o),
        lambda a, b: lambda x, o: x + ([b, o] == [b, a]),
        lambda a, b: lambda x, o: x + ({1: o} == {1: a}),
        lambda a, b: lambda x, o: x + len({a, o, b}),
        lambda a, b: lambda x, o: x + (repr(o) == repr(a)),
        lambda a, b: lambda x, o: x + (f"{[o]}" == str([a])),
    ],
)
def test_which_object_it_is_is_guarded_where_the_program_looks(make, kind):
    a, b, c = kind(), kind(), kind()
    for order in ((a, b, c), (c, b, a)):
        fn = make(a, b)
        compiled = lampwork.compile(fn)
        for each in (*order, *order):
            assert torch.equal(compiled(X, each), fn(X, each))


def test_an_object_found_in_two_ways_is_one_object_on_later_calls():
    known, other = Plain(), Plain()
    known.gain, other.gain = 2, 5
    fn = lambda x, o: x * o.gain + known.gain  # noqa: E731
    compiled = lampwork.compile(fn)
    for each in (known, other, known):
        assert torch.equal(compiled(X, each), fn(X, each))


def counter():
    n = 0

    def add():
        nonlocal n
        n += 1
        return n

    return add, lambda: n


def test_closures_that_share_a_cell_are_told_from_those_that_do_not():
    fn = lambda x, add, get: x * add() + get() * 10 + add()  # noqa: E731
    compiled = lampwork.compile(fn)
    for shared in (True, False, True, False):
        pairs = [(counter(), counter()) for _ in range(2)]
        results = [
            f(X, a[0], (a if shared else b)[1]) for f, (a, b) in zip((fn, compiled), pairs, strict=True)
        ]
        assert torch.equal(*results)
        assert [(a[1](), b[1]()) for a, b in pairs] == [(2, 0)] * 2


def test_methods_of_one_name_from_two_classes_are_told_apart():
    fn = lambda x, copy: x * (type(copy()) is dict)  # noqa: E731
    compiled = lampwork.compile(fn)
    table = collections.OrderedDict(a=2, b=3)
    for copy in (table.copy, dict.copy.__get__(table), table.copy):
        assert torch.equal(compiled(X, copy), fn(X, copy))


def test_an_empty_cell_is_seen_when_it_is_filled():
    def maker(fill):
        def inner(t):
            try:
                return t * k
            except NameError:
                return t - 1

        if fill:
            k = 3
        return inner

    compiled = lampwork.compile(calls)
    for fill in (False, True, False):
        assert torch.equal(compiled(X, maker(fill)), maker(fill)(X))


def test_defaults_that_inspect_reads_of_a_function_that_was_replaced():
    def plain(x, b=2, *, d=4):
        return x + b + d

    def other(x, b=7, *, d=4):
        return x - b

    place = {"fn": plain}

    def fn(x):
        bound = inspect.signature(place["fn"]).bind(x)
        bound.apply_defaults()
        return place["fn"](*bound.args, **bound.kwargs)

    def change(**slots):
        for name, value in slots.items():
            setattr(plain, name, value)

    compiled = lampwork.compile(fn)
    for step in (
        lambda: None,
        lambda: place.update(fn=other),
        lambda: place.update(fn=plain),
        lambda: change(__defaults__=(3,)),
        lambda: change(__defaults__=(2,)),
        lambda: plain.__kwdefaults__.update(d=5),
        lambda: change(__kwdefaults__={"d": 4}),
    ):
        step()
        for _ in range(2):
            torch.testing.assert_close(compiled(X), fn(X))


@pytest.mark.parametrize("way", ["argument", "item", "attribute", "closure", "method"])
def test_compiled_functions_that_a_call_brings_along_are_told_apart(way):
    class Scale:
        def __init__(self, k):
            self.k = k

        def __call__(self, x):
            return x * self.k

        def scale(self, x):
            return x * self.k

    def given(k):
        made = lampwork.compile(Scale(k).scale if way == "method" else scaled(k))
        if way == "item":
            return [made]
        if way == "attribute":
            return types.SimpleNamespace(f=made)
        return (lambda x: made(x)) if way == "closure" else made

    def fn(x, held):
        if way == "item":
            return held[0](x) + 1
        return held.f(x) + 1 if way == "attribute" else held(x) + 1

    compiled = lampwork.compile(fn)
    for k in (1.0, 2.0, 3.0, 2.0):
        assert torch.equal(compiled(X, given(k)), X * k + 1)
