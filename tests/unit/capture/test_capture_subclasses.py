"""Containers of subclasses: what is read of them is guarded, and native code does with them what it does in eager."""

from __future__ import annotations

import collections
import functools
import operator
import types

import pytest
import torch

import lampwork

X = torch.arange(6.0).reshape(2, 3)


class Items(list):
    pass


class Table(dict):
    pass


class Members(set):
    pass


class Ordered(collections.OrderedDict):
    pass


class Line(collections.deque):
    pass


class Sum(dict):
    """Asked for its keys, it gives others than it has."""

    def __iter__(self):
        return iter("zz")

    def keys(self):
        return ["q"]

    def __getitem__(self, key):
        return 9


class Odd(set):
    def __iter__(self):
        return iter([4])


def changed(held):
    """Make an item more, of the kind that is there."""
    if isinstance(held, dict):
        held["more"] = 7
    elif isinstance(held, set):
        held.add(7)
    else:
        held.append(held[0])


READS = {
    "list == list": (Items([1, 2]), lambda o: o == [1, 2]),
    "list != list": (Items([1, 2]), lambda o: o != Items([1, 2])),
    "list < list": (Items([1, 2]), lambda o: o < [1, 2, 0]),
    "list + list": (Items([1, 2]), lambda o: [0] + o),
    "list * 2": (Items([1, 2]), lambda o: 2 * o),
    "operator.add": (Items([1, 2]), lambda o: operator.add(o, [3])),
    "list +=": (Items([1, 2]), lambda o: functools.reduce(operator.iadd, [o], [0])),
    "list.__getitem__": (Items([1, 2]), lambda o: list.__getitem__(o, -1) + list.__len__(o)),
    "repr": (Items([1, 2]), repr),
    "dict ==": (Table(a=1), lambda d: d == {"a": 1}),
    "dict |": (Table(a=1), lambda d: d | {"b": 2}),
    "{} |": (Table(a=1), lambda d: {"b": 2} | d),
    "dict.keys() &": (Table(a=1), lambda d: d.keys() & {"a", "more"}),
    "set |": (Members([1]), lambda s: s | {5}),
    "<= set": (Members([1, 2]), lambda s: {1, 7} <= s),
    "set ==": (Members([1]), lambda s: s == {1}),
    "deque ==": (Line([1, 2]), lambda q: q == collections.deque([1, 2])),
    "deque +": (Line([1, 2]), lambda q: q + collections.deque([3])),
    "ordered ==": (Ordered(a=1, b=2), lambda d: d == collections.OrderedDict(a=1, b=2)),
    "ordered": (Ordered(a=1, b=2), list),
    "torch.zeros": (Items([1, 2]), lambda o: torch.zeros(o)),
    "torch.full": (Items([1, 2]), lambda o: torch.full(o, 2.0)),
    "torch.tensor": (Items([1, 2]), lambda o: torch.tensor(o)),
    "torch.stack": (Items([torch.ones(2)]), lambda o: torch.stack(o)),
    "index": (Items([1, 0]), lambda o: X[o]),
    "repeat": (Items([1, 2]), lambda o: torch.ones(2).repeat(o)),
    "expand": (Items([2, 2]), lambda o: torch.ones(1).expand(o)),
    "sum": (Items([1, 0]), lambda o: torch.ones(3, 3, 3, 3).sum(o[:2])),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("held", ("known", "argument"))
def test_a_container_of_a_subclass_is_read_again_on_each_call(read, held):
    first, function = READS[read]
    container = type(first)(first)
    if held == "known":
        compiled = lampwork.compile(lambda x: (x * 2, function(container)))
        call = lambda: compiled(X)  # noqa: E731
    else:
        of_argument = lampwork.compile(lambda x, o: (x * 2, function(o)))
        call = lambda: of_argument(X, container)  # noqa: E731
    for _ in range(3):
        for _ in range(2):
            result, expected = call()[1], function(container)
            assert type(result) is type(expected)
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(result, expected)
            else:
                assert result == expected
        changed(container)


@pytest.mark.parametrize("kind", (Items, Line, collections.namedtuple("Pair", "a")._make))
def test_which_objects_a_container_of_a_subclass_holds_matters_to_operators(kind):
    class Thing:
        pass

    one, other = Thing(), Thing()
    compiled = lampwork.compile(lambda x, held, thing: (x * 2, thing in held, held == kind([thing])))
    for held, thing in (([one], other), ([one], one), ([other], one), ([other], other)):
        assert compiled(X, kind(held), thing)[1:] == (held[0] is thing,) * 2


def test_which_objects_an_ordered_dict_holds_matters_to_operators():
    class Thing:
        pass

    one, other = Thing(), Thing()
    compiled = lampwork.compile(lambda x, held, thing: (x * 2, held == Ordered(a=thing, b=1)))
    for held, thing in ((one, other), (one, one)):
        assert compiled(X, Ordered(a=held, b=1), thing)[1] == (held is thing)
    reverse = Ordered(b=1, a=one)
    assert not compiled(X, reverse, one)[1]


def test_sizes_in_a_list_of_a_subclass_that_differ_between_calls():
    compiled = lampwork.compile(lambda x, size: (torch.zeros(size), x * 2))
    for size in ([2, 3], [3, 2], [4, 4], [4]):
        assert compiled(X, Items(size))[0].shape == torch.Size(size)


def test_what_a_region_writes_to_an_item_of_a_subclass_is_seen_by_operators():
    def f(x, o):
        o[0].append(3)
        return x * 2, o == [[1, 3]]

    assert lampwork.compile(f, fullgraph=True)(X, Items([[1]]))[1]


def test_order_of_an_ordered_dict_of_a_subclass():
    held = Ordered(a=1, b=2)
    compiled = lampwork.compile(lambda x: (x * 2, list(held)))
    assert compiled(X)[1] == ["a", "b"]
    held.move_to_end("a")
    assert compiled(X)[1] == ["b", "a"]


def test_attributes_and_items_of_a_dict_of_a_subclass_are_both_written_and_read():
    class Config(dict):
        __slots__ = ("__dict__", "scale")

    def f(x, config):
        config.count += 1
        config.scale = config["step"] * config.count
        return x * config.scale

    compiled = lampwork.compile(f, fullgraph=True)
    for fn in (f, compiled):
        config = Config(step=2)
        config.count, config.scale = 0, None
        for count in (1, 2, 3):
            torch.testing.assert_close(fn(X, config), X * 2 * count)
            assert (config.count, config.scale) == (count, 2 * count)
        config["step"] = 5
        torch.testing.assert_close(fn(X, config), X * 20)


def test_a_dict_of_a_subclass_that_is_its_own_namespace():
    class Config(dict):
        def __init__(self, **items):
            super().__init__(**items)
            self.__dict__ = self

    config = Config(scale=2.0)

    def f(x):
        config.count = config.scale + 1
        return x * config.scale * config["count"]

    compiled = lampwork.compile(f)
    torch.testing.assert_close(compiled(X), X * 6)
    config.scale = 3.0
    torch.testing.assert_close(compiled(X), X * 12)
    assert config == {"scale": 3.0, "count": 4.0}


COPIES = {
    "OrderedDict": Ordered(a=1),
    "defaultdict": type("Default", (collections.defaultdict,), {})(int, a=1),
    "deque": Line([1], 3),
    "dict": Table(a=1),
    "set": Members([1]),
    "list": Items([1]),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_has_the_class_that_python_gives_it(name):
    held = COPIES[name]
    compiled = lampwork.compile(lambda x: (x * 2, held.copy(), type(held.copy())))
    for _ in range(2):
        _, made, kind = compiled(X)
        assert kind is type(made) is type(held.copy())
        assert made == held.copy() and made is not held


STORAGE = {
    "set()": lambda: set(Odd([1, 2])),
    "frozenset()": lambda: frozenset(Odd([1, 2])),
    "display": lambda: {*Odd([1, 2])},
    "union": lambda: {0}.union(Odd([1, 2])),
    "|=": lambda: operator.ior({0}, Odd([1, 2])),
    "update": lambda: Members.update(made := {0}, Odd([1, 2])) or made,
    "intersection": lambda: {1, 4}.intersection(Odd([1, 2])),
    "issubset": lambda: {1}.issubset(Odd([1, 2])),
    "list": lambda: list(Odd([1, 2])),
    "reversed": lambda: list(reversed(Sum(a=1))),
    "set of a dict": lambda: set(Sum(a=1)),
    "dict()": lambda: dict(Sum(a=1)),
    "len": lambda: len(Odd([1, 2])) + len(Sum(a=1)),
}


@pytest.mark.parametrize("name", STORAGE)
def test_native_code_reads_a_subclass_that_overrides_iteration_as_it_does_in_eager(name):
    function = STORAGE[name]
    compiled = lampwork.compile(lambda x: (x * 2, function()))
    for _ in range(2):
        assert compiled(X)[1] == function()


def test_an_ordered_dict_that_overrides_getitem_is_asked_for_its_items():
    class Doubling(collections.OrderedDict):
        def __getitem__(self, key):
            return super().__getitem__(key) * 2

    held = Doubling(a=1)
    compiled = lampwork.compile(lambda x: (x * 2, {**held}, dict(held)))
    assert compiled(X)[1:] == ({**held}, dict(held))


class Parent:
    def value(self):
        return self.held


class Child(Parent):
    def value(self):
        return -1


def stored_views():
    table = {"a": 1}
    values, keys, items = table.values(), table.keys(), table.items()
    return lambda x: (x * 2, sum(values), list(keys), len(items)), lambda: table.update(b=5)


def stored_super():
    child = Child()
    child.held = 1
    parent = super(Child, child)
    return lambda x: (x * 2, parent.value()), lambda: setattr(child, "held", 7)


def stored_methodcaller():
    size = [2, 3]
    view = operator.methodcaller("view", size)
    return lambda x: view(x).shape, size.reverse


def stored_methodcaller_with_names():
    dims = [0]
    total = operator.methodcaller("sum", dim=dims)
    return lambda x: total(x).shape, lambda: dims.__setitem__(0, 1)


def stored_itemgetter():
    rows = [0]
    take = operator.itemgetter(rows)
    return lambda x: take(x).shape, lambda: rows.append(1)


def stored_partial_of_a_native_function():
    size = [2, 2]
    make = functools.partial(torch.full, size, fill_value=2.0)
    return lambda x: (x * 2, make().shape), lambda: size.append(3)


def stored_method_of_a_list():
    items = [1, 2]
    count = items.count
    return lambda x: (x * 2, count(1)), lambda: items.append(1)


def stored_proxy_that_is_compared():
    table = {"a": 1}
    proxy = types.MappingProxyType(table)
    return lambda x: (x * 2, proxy == {"a": 1}, proxy | {}), lambda: table.update(b=2)


def stored_memoryview():
    data = bytearray(b"ab")
    view = memoryview(data)
    return lambda x: (x * 2, view[0], bytes(view)), lambda: data.__setitem__(0, 65)


@pytest.mark.parametrize(
    "make",
    [
        stored_views,
        stored_super,
        stored_methodcaller,
        stored_methodcaller_with_names,
        stored_itemgetter,
        stored_partial_of_a_native_function,
        stored_method_of_a_list,
        stored_proxy_that_is_compared,
        stored_memoryview,
    ],
)
@pytest.mark.parametrize("place", ("closure", "attribute"))
def test_what_lies_behind_a_stored_native_object_is_read_again(make, place, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")  # Some cannot be read, and the function runs eager.
    function, change = make()
    holder = type("Holder", (), {})()
    holder.function = function
    compiled = lampwork.compile(function if place == "closure" else lambda x: holder.function(x))
    for _ in range(2):
        for _ in range(2):
            assert str(compiled(X)) == str(function(X))
        change()
