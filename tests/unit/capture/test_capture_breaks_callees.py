"""Graph breaks in callees of all kinds, with closures, generators and super(): both remainders stay compiled."""

from __future__ import annotations

import collections
import functools
import itertools

import numpy as np
import pytest
import torch
import torch.nn as nn
from break_check import check_breaks, everything
from capture_reference import Reference

X = torch.arange(6.0).reshape(2, 3)


def loud(y, k=1):
    z = y + k
    print("loud", k)
    return z * 2


def one_deep(x):
    y = x - 1
    return loud(y) + y


def level_three(x):
    x = x + 3
    print("three")
    return x * 3


def level_two(x):
    x = x + 2
    x = level_three(x)
    return x * 2


def level_one(x):
    x = x + 1
    x = level_two(x)
    return x - 1


def three_deep(x):
    x = x * 2
    y = level_one(x)
    return y + x


def keywords(x):
    return loud(k=3, y=x * 2) + 1


def starred(x):
    args = (x * 2,)
    return loud(*args, **{"k": 4}) + 1


def through_partial(x):
    return functools.partial(loud, k=5)(x * 2) + 1


PARTIAL = functools.partial(loud, k=6)


def through_known_partial(x):
    return PARTIAL(x * 2) + 1


def through_lambda(x):
    call = lambda v: loud(v) + 1  # noqa: E731
    return call(x * 2)


def closure_callee(x):
    scale = 3

    def inner(y):
        nonlocal scale
        scale += 1
        print("inner", scale)
        return y * scale

    x = inner(x + 1)
    x = inner(x) + scale
    return x, scale


def closure_over_tensor(x):
    w = x * 2

    def inner(y):
        print("inner")
        return y + w

    return inner(x) * w


def returns_closure(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    print(bump())
    y = x * bump()
    print(count)
    return y, bump(), count


def made_after_break(x):
    n = 2
    print("a")

    def inner(y):
        return y * n

    n = 3
    return inner(x) + 1


def decorator(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        print("before", fn.__name__)
        result = fn(*args, **kwargs)
        print("after")
        return result

    return wrapper


@decorator
def decorated(x):
    return x * 2


def calls_decorated(x):
    return decorated(x + 1) - 1


class Base:
    def __init__(self, k):
        self.k = k

    def run(self, x):
        print("base", self.k)
        return x + self.k

    @property
    def scale(self):
        print("scale")
        return self.k * 2

    @staticmethod
    def static(x):
        print("static")
        return x + 1

    @classmethod
    def make(cls, k):
        print("make", cls.__name__)
        return cls(k)

    def __add__(self, other):
        print("add")
        return other + self.k

    def __getitem__(self, key):
        print("item", key)
        return self.k + key

    def __call__(self, x):
        print("call")
        return x * self.k

    def __len__(self):
        print("len")
        return self.k

    def __bool__(self):
        print("bool")
        return self.k > 1

    def __contains__(self, value):
        print("in")
        return value == self.k

    def __iter__(self):
        print("iter")
        return iter([1, 2])

    def __eq__(self, other):
        print("eq")
        return True

    __hash__ = None


class Derived(Base):
    def run(self, x):
        x = x * 2
        print("derived")
        y = super().run(x)
        return y + 1

    def twice(self, x):
        print("twice")
        return super().run(super().run(x)), __class__.__name__


def method(x, obj):
    return obj.run(x * 2) + 1


def method_made_here(x):
    obj = Derived(3)
    y = obj.run(x)
    return y * obj.k


def zero_super(x, obj):
    return obj.twice(x)[0] + 1


def property_breaks(x, obj):
    return x * obj.scale


def static_breaks(x, obj):
    return obj.static(x * 2) + Base.static(x)


def classmethod_breaks(x):
    return x + Derived.make(4).k


def operator_breaks(x, obj):
    return obj + x * 2


def subscript_breaks(x, obj):
    return x + obj[2]


def call_breaks(x, obj):
    return obj(x + 1) * 2


def len_breaks(x, obj):
    return x + len(obj)


def bool_breaks(x, obj):
    return x + 1 if obj else x - 1


def contains_breaks(x, obj):
    return x + (3 in obj)


def iter_breaks(x, obj):
    for v in obj:
        x = x + v
    return x


def equal_breaks(x, obj):
    return x + (obj == 3)


def generator_in_region(x):
    def gen():
        for i in range(3):
            yield x * i

    total = x
    for item in gen():
        total = total + item
    print("done")
    return total


def generator_body_breaks(x):
    def gen():
        for i in range(3):
            print("item", i)
            yield i

    for item in gen():
        x = x + item
    return x


def generator_across_break(x):
    def gen():
        yield x + 1
        yield x + 2

    g = gen()
    first = next(g)
    print("between")
    return first + next(g)


def generator_consumer_breaks(x):
    def gen():
        for i in range(3):
            yield x * i

    for item in gen():
        print(item.sum().item())
        x = x + item
    return x


def generator_expression_breaks(x):
    return sum(print(i) or i for i in range(3)) + x


def yield_from_breaks(x):
    def inner():
        yield 1
        print("inner")
        yield 2

    def outer():
        yield 0
        yield from inner()

    return [x + i for i in outer()]


def returns_generator(x):
    y = x + 1
    return list(v * 2 for v in [y, y])


def counts(x):
    numbers = itertools.count(2)
    x = x + next(numbers)
    print("a")
    return x * next(numbers)


def cycles(x):
    letters = itertools.cycle([1, 2])
    next(letters)
    print("a")
    return x + next(letters) * 10 + next(letters)


def chained(x):
    it = itertools.chain([1, 2], (3,))
    x = x * next(it)
    print("a")
    for v in it:
        x = x + v
    return x


def recursion(x, n=3):
    if n == 0:
        return x
    print(n)
    return recursion(x + n, n - 1) * 2


def calls_recursion(x):
    return recursion(x) + 1


def converts(x):
    a = x.tolist()
    b = x.numpy()
    c = x.sum().item()
    return a, torch.from_numpy(b + 1), c, float(x.mean()), int(x.max()), bool(x.any())


def data_shapes(x):
    a = torch.nonzero(x > 2)
    b = x[x > 1] * 2
    c = torch.unique(x % 2)
    return a.shape, b + 1, c * 2, torch.masked_select(x, x > 3) + 1


def numpy_calls(x):
    return torch.as_tensor(np.sqrt(x.numpy())) + 1


def opens_file(x, path):
    x = x + 1
    with open(path, "w") as file:
        file.write(str(x.shape))
    with open(path) as file:
        for line in file:
            print(line)
            x = x * 2
    return x + 1


def walrus(x):
    if (s := x.sum().item()) > 3:
        return x * s
    return x


def conditional_expression(x):
    return (x + 1 if x.sum() > 3 else x - 1) * 2


def and_or(x):
    y = x.sum() > 3 and x + 1
    z = (x.sum() > 100) or x
    return y * 2, z * 3


def not_tensor(x):
    return x if not (x > 100).any() else -x


def chained_comparison(x):
    return x + 1 if 0 < x.sum() < 100 else x


def any_all(x):
    return x + 1 if any(v > 4 for v in x.flatten()) else x


def f_string(x):
    return x + 1, f"{x.sum().item():.1f} and {x.shape}"


def matches(x, value):
    match value:
        case {"k": k}:
            print("dict", k)
            return x + k
        case [a, *rest]:
            print("list", a, rest)
            return x * a
        case _:
            print("other")
            return x


def star_display(x):
    a = [1, 2]
    items = [*a, x.sum().item(), *map(lambda v: v + 1, a)]
    return items, {**{"p": x}, "q": x.max().item()}


def unpacks(x):
    a, b = x.tolist()
    (c, *d), e = a, b
    return x + c, d, e


def sorts(x):
    return sorted(x.flatten(), key=lambda v: -v.item())


def deletes(x):
    y = x + 1
    print("a")
    del y
    try:
        return y  # noqa: F821
    except UnboundLocalError as error:
        return x * len(str(error))


def keyword_only(x, *, k=2, **rest):
    print(k, rest)
    return x * k


def calls_keyword_only(x):
    return keyword_only(x + 1, k=3, z=4) + 1


GLOBAL = 1


def global_write(x):
    global GLOBAL
    GLOBAL = 5
    print(GLOBAL)
    GLOBAL += 1
    x = x * GLOBAL
    GLOBAL = 1
    return x


PROGRAMS = [
    (one_deep, ()),
    (three_deep, ()),
    (keywords, ()),
    (starred, ()),
    (through_partial, ()),
    (through_known_partial, ()),
    (through_lambda, ()),
    (closure_callee, ()),
    (closure_over_tensor, ()),
    (made_after_break, ()),
    (calls_decorated, ()),
    (method, (Derived(2),)),
    (method_made_here, ()),
    (zero_super, (Derived(2),)),
    (property_breaks, (Base(2),)),
    (static_breaks, (Base(2),)),
    (classmethod_breaks, ()),
    (operator_breaks, (Base(2),)),
    (subscript_breaks, (Base(2),)),
    (call_breaks, (Base(2),)),
    (len_breaks, (Base(2),)),
    (bool_breaks, (Base(2),)),
    (contains_breaks, (Base(2),)),
    (iter_breaks, (Base(2),)),
    (equal_breaks, (Base(2),)),
    (returns_closure, ()),
    (generator_in_region, ()),
    (generator_body_breaks, ()),
    (generator_across_break, ()),
    (generator_consumer_breaks, ()),
    (generator_expression_breaks, ()),
    (yield_from_breaks, ()),
    (returns_generator, ()),
    (counts, ()),
    (cycles, ()),
    (chained, ()),
    (calls_recursion, ()),
    (converts, ()),
    (data_shapes, ()),
    (numpy_calls, ()),
    (walrus, ()),
    (conditional_expression, ()),
    (and_or, ()),
    (not_tensor, ()),
    (chained_comparison, ()),
    (any_all, ()),
    (f_string, ()),
    (matches, ({"k": 2},)),
    (matches, ([2, 3, 4],)),
    (matches, (None,)),
    (star_display, ()),
    (unpacks, ()),
    (sorts, ()),
    (deletes, ()),
    (calls_keyword_only, ()),
    (global_write, ()),
]


@pytest.mark.parametrize(
    ("fn", "more"), PROGRAMS, ids=[f"{fn.__name__}-{i}" for i, (fn, _) in enumerate(PROGRAMS)]
)
def test_callees(fn, more):
    check_breaks(fn, (X, *more))


def test_files(tmp_path):
    check_breaks(opens_file, (X, str(tmp_path / "f.txt")))


def test_three_deep_every_frame_resumes():
    reference = check_breaks(three_deep, (X,), breaks=["LW104"] * 4)
    # A region before and after the break in each of the four frames.
    assert sum(len(one.regions) for one in everything(reference)) == 8


def test_zero_argument_super_in_modules():
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            print("parent")
            return self.linear(x)

    class Child(Parent):
        def forward(self, x):
            x = x * 2
            print("child")
            return super().forward(x) + 1

    torch.manual_seed(0)
    check_breaks(Child(), (X,))


def test_layers_in_a_loop():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return torch.relu(self.linear(x)) + x

    class Model(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.layers = nn.ModuleList([Layer() for _ in range(n)])

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x)
                print("layer", i)
            return x

    check_breaks(Model(6), (X,), breaks=["LW104"] * 6)


def test_native_method_that_its_class_overrides_is_called_behind_a_break():
    class Doubling(list):
        def append(self, value):
            super().append(value * 2)

    items = Doubling()
    Reference(items.append)(X)
    torch.testing.assert_close(list(items), [X * 2])


def test_super_that_breaks_finds_its_class():
    class Doubling(collections.deque):
        def append(self, value):
            super().append(value * 2)

    items = Doubling()
    Reference(lambda x: items.append(x))(X)
    torch.testing.assert_close(list(items), [X * 2])
