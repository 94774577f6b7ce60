"""What random programs and hard looks found wrong once, each in its smallest form; and what must not be guessed."""

from __future__ import annotations

import collections
import dataclasses
import functools
import typing

import torch
from harness import program

X = torch.arange(3.0)
SCALE = 2
TABLE = {"k": 1}


class Point:
    kind = "point"

    def __init__(self, k):
        self.k = k

    def __hash__(self):
        return self.k

    def __eq__(self, other):
        return isinstance(other, Point) and other.k == self.k

    @property
    def double(self):
        return self.k * 2


class Plain:
    def __init__(self, k=1):
        self.k = k

    def run(self, x):
        return x + self.k


@dataclasses.dataclass(frozen=True)
class Key:
    a: int
    b: str = "b"


@program(lambda: (X, 2), again=lambda: (X, 5))
def key_function_passes_an_argument_through(x, n):
    return max([x, x + 1], key=lambda t: n), list(map(lambda t: n, [1, 2]))


@program(lambda: (X, 2), again=lambda: (X, 5))
def hash_of_a_number_that_varies(x, n):
    return x * {Point(n): 3}[Point(n)], len({Point(n), Point(2)})


@program(lambda: (X, Plain(2)))
def attribute_deleted_and_set_again(x, p):
    p.other = 1
    del p.k
    p.k = 5
    return x * p.k, list(vars(p))


@program(lambda: (X, Plain(2)))
def attribute_set_again_after_new_ones(x, p):
    p.a = 1
    p.b = 2
    del p.a
    p.a = 3
    return x, p


@program(lambda: (X, 1))
def cell_variable_unbound(x, n):
    if n > 5:
        y = x
    try:
        return (lambda: y)()
    except NameError as error:
        return x, type(error).__name__, str(error)


@program(lambda: (X, 1))
def own_cell_variable_unbound(x, n):
    if n > 5:
        y = x

    def use():
        return y

    try:
        return y
    except UnboundLocalError as error:
        return x, str(error), use.__name__


# A key that compares in Python is itself only: what else it holds, none but the program knows.
@program(
    lambda: (X, Key(1), {Key(1): 2, Key(2): 3}),
    again=lambda: (X, Key(2), {Key(1): 2, Key(2): 3}),
    stable=False,
)
def key_object_from_outside(x, key, table):
    return x * table[key], key in table


KEYED = {Key(1): 2, Key(2): 3}


@program(lambda: (X, Key(1), KEYED), again=lambda: (X, Key(2), KEYED))
def key_object_and_the_same_table(x, key, table):
    return x * table[key], key in table


def other_in_table():
    p, q = Plain(), Plain()
    return X, p, {q: 1}


def same_in_table():
    p = Plain()
    return X, p, {p: 1}


@program(other_in_table, again=same_in_table, stable=False)
def identity_key_from_outside(x, p, table):
    return x * 2 if p in table else x * 3


def two_plain():
    p, q = Plain(1), Plain(2)
    return X, p, q


def one_plain_twice():
    p = Plain(1)
    return X, p, p


@program(two_plain, again=one_plain_twice)
def identity_keys_in_a_local_dict(x, p, q):
    seen = {p: 1}
    return x * len({**seen, q: 2}), q in seen


@program(lambda: (X, {0, 8}), again=lambda: (X, set([8, 0])))
def order_of_a_set(x, s):
    return x, [v for v in s]


@program(lambda: (X, {"a": 1, "b": 2}), again=lambda: (X, {"b": 2, "a": 1}))
def order_of_a_dict(x, table):
    return x * len(table), list(table)


@program(lambda: (X, [1, 2]), again=lambda: (X, collections.UserList([1, 2])))
def type_of_a_container(x, items):
    return x * len(items), type(items).__name__


@program(lambda: (X, 2), again=lambda: (X, 2.0))
def type_of_a_number(x, n):
    return x * n, type(n).__name__, n / 2


@program(lambda: (X, True), again=lambda: (X, 1))
def truth_or_one(x, flag):
    return x + flag, flag is True, str(flag)


@program(lambda: (X, 0.0), again=lambda: (X, -0.0))
def negative_zero(x, f):
    return x + f, str(f)


@program(lambda: (X, float("nan")), again=lambda: (X, 1.0))
def not_a_number(x, f):
    return x * 2 if f != f else x * 3


def patched_global(value):
    global SCALE
    SCALE = value
    return (X,)


@program(lambda: patched_global(2), again=lambda: patched_global(7))
def global_patched_between_calls(x):
    return x * SCALE


def patched_class(value):
    Plain.extra = value
    return X, Plain()


@program(lambda: patched_class(2), again=lambda: patched_class(7))
def class_attribute_patched_between_calls(x, p):
    return x * p.extra


def patched_method(function):
    Plain.late = function
    return X, Plain()


def plus(self, x):
    return x + self.k


def minus(self, x):
    return x - self.k


@program(lambda: patched_method(plus), again=lambda: patched_method(minus))
def method_patched_between_calls(x, p):
    return p.late(x)


def shadowed_method():
    p = Plain(4)
    p.run = functools.partial(torch.mul, other=3)
    return X, p


@program(lambda: (X, Plain(4)), again=shadowed_method)
def method_shadowed_on_the_instance(x, p):
    return p.run(x)


def with_attribute():
    p = Plain()
    p.maybe = 5
    return X, p


@program(lambda: (X, Plain()), again=with_attribute)
def attribute_that_may_be_missing(x, p):
    return x * getattr(p, "maybe", 2), hasattr(p, "maybe")


def patched_table(value):
    TABLE["k"] = value
    return (X,)


@program(lambda: patched_table(1), again=lambda: patched_table(4))
def global_dict_patched_between_calls(x):
    return x * TABLE["k"]


@program(lambda: (X, [X]), again=lambda: (X, [X + 1]))
def argument_in_an_argument(x, items):
    return items[0] is x, items[0] + x


@program(lambda: (X, [[1], [1]]), again=lambda: (X, [[1]] * 2))
def aliases_inside_an_argument(x, rows):
    rows[0].append(2)
    return x * len(rows[1])


@program(lambda: (X, "text"), again=lambda: (X, None))
def optional_text(x, text):
    return x * len(text or ""), text is None


@program(lambda: (X, (1, 2)), again=lambda: (X, [1, 2]))
def tuple_or_list(x, pair):
    return x + pair[0], isinstance(pair, tuple), pair * 2


@program(lambda: (X, Point(3)), again=lambda: (X, Point(4)))
def property_of_an_argument(x, p):
    return x * p.double, p.kind, p == Point(3), p in [Point(3)], p in {Point(3)}


@program(lambda: (X, X), again=lambda: (X, X.double()))
def dtype_of_an_argument(x, y):
    return x + y, y.dtype is torch.float32


@program(lambda: (torch.ones(2, 3),), again=lambda: (torch.ones(3, 2).t(),))
def strides_of_an_argument(x):
    return x + 1, x.is_contiguous(), x.stride()


@program(lambda: (X, range(3)), again=lambda: (X, range(1, 4)))
def range_argument(x, r):
    return [x * i for i in r], len(r), r[0]


@program(lambda: (X, slice(0, 2)), again=lambda: (X, slice(1, 3)))
def slice_argument(x, s):
    return x[s] * 2, s.start


@program(lambda: (X, Plain), again=lambda: (X, Point))
def class_argument(x, cls):
    return x * cls(3).k, cls.__name__


def shared_value():
    y = X + 1
    return y, y


@program(lambda: (X, X + 1), again=shared_value)
def one_tensor_or_two(a, b):
    c = a.clone()
    c += b
    return c, a is b


@program(lambda: (X + 1, X + 1), again=shared_value)
def write_to_one_of_two(a, b):
    a += 1
    return a * 2, b * 3


class Counting:
    def __init__(self, k):
        self.k = k
        self.asked = 0

    def __eq__(self, other):
        self.asked += 1
        return self.k == getattr(other, "k", None)

    def __lt__(self, other):
        self.asked += 1
        return self.k < other.k

    def __bool__(self):
        self.asked += 1
        return self.k > 1

    def __str__(self):
        self.asked += 1
        return f"c{self.k}"

    __hash__ = None


def counting():
    return X, [Counting(3), Counting(1), Counting(2)]


@program(counting)
def comparisons_with_effects(x, items):
    found = items.index(Counting(1)), Counting(2) in items, items.count(items[0])
    return x * found[0], found, [c.k for c in sorted(items)], max(items).k


@program(counting)
def searches_that_fail_with_effects(x, items):
    found = []
    for search in (items.remove, tuple(items).index):
        try:
            search(Counting(9))
        except ValueError as error:
            found.append(str(error))
    return x * len(found), found


@program(counting)
def truth_and_text_with_effects(x, items):
    return x * any(items), all(items), list(map(str, items)), f"{items[0]} {items[1]!s}", "%s" % items[2]


@program(counting)
def equal_lists_with_effects(x, items):
    return x, items == [Counting(3), Counting(1), Counting(5)], (items[0],) != (items[1],)


class Duck(type):
    asked = 0

    def __instancecheck__(cls, value):
        return hasattr(value, "quack")

    def __subclasscheck__(cls, other):
        return other.__name__.startswith("D")


class Quacks(metaclass=Duck):
    pass


def quacking():
    p = Plain()
    p.quack = True
    return X, p


@program(lambda: (X, Plain()), again=quacking)
def own_instance_check(x, p):
    return x * 2 if isinstance(p, Quacks) else x * 3, issubclass(Duck, Quacks), isinstance(p, (int, Quacks))


@typing.runtime_checkable
class HasQuack(typing.Protocol):
    quack: bool


@program(lambda: (X, Plain()), again=quacking)
def runtime_protocol(x, p):
    return x * 2 if isinstance(p, HasQuack) else x * 3


@program(lambda: (X, [1, 2, 3]))
def sort_key_looks_at_the_list(x, items):
    items.sort(key=lambda v: -v * len([w for w in (3, 2)]))
    return x + items[0], items


@program(lambda: (X, [X, X + 1]), again=lambda: (X, [X + 1, X]))
def tensors_sorted_by_position(x, items):
    order = sorted(range(len(items)), key=lambda i: -i)
    return [items[i] * 2 for i in order]


@program(lambda: (X, "a"), again=lambda: (X, "b"))
def match_args_of_text(x, kind):
    table = {"a": lambda t: t + 1, "b": lambda t: t * 2}
    return (table.get(kind) or table["a"])(x)


@program(lambda: (X, Plain(3)))
def method_of_a_class_called_with_self(x, p):
    return Plain.run(p, x), Plain.run(self=p, x=x), type(p).run(p, x)


@program(lambda: (X, [Plain(1), Plain(2)]))
def identity_in_a_list(x, items):
    p = items[1]
    return items.index(p), p in items, items.count(p), x, items.remove(p), len(items)


@program(lambda: (X, {"p": Plain(1)}))
def object_inside_a_dict_written(x, table):
    table["p"].k += 4
    table["q"] = table["p"]
    return x * table["q"].k, table["p"] is table["q"]


A, B = typing.TypeVar("A"), typing.TypeVar("B")


class Box(typing.Generic[A]):
    pass


@program(lambda: (X, A), again=lambda: (X, B))
def type_parameter_passed_in(x, parameter):
    return x + 1, Box[parameter], Box[(parameter,)].__args__
