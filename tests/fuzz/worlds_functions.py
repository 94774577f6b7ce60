"""Worlds whose state lies in functions: closures, defaults, partials, bound methods, caches, registries."""

from __future__ import annotations

import functools
import math
import operator

import torch
import torch.nn.functional as F
from harness import program

X = torch.tensor([0.5, -1.5, 2.0])


def inputs():
    return (X.clone(),)


def scaled(x, k=2.0, *, bias=1.0):
    return x * k + bias


def activated(x, act=torch.relu):
    return act(x)


SCALE = 3.0
OFFSETS = [1.0, 2.0]


@program(inputs, factory=True)
def closure_of_numbers():
    k, names, table = 2.0, ["a", "b"], {"a": 1.0, "b": 2.0}

    def f(x):
        for name in names:
            x = x * k + table[name]
        return x

    return f


@program(inputs, factory=True)
def closure_of_functions():
    def double(x):
        return x * 2

    def shift(x, by=1.0):
        return x + by

    steps = [double, shift, torch.sin]

    def f(x):
        for step in steps:
            x = step(x)
        return x

    return f


@program(inputs, factory=True)
def nested_closures():
    k = 1.5

    def outer(x):
        def inner(y):
            return y * k + SCALE

        return inner(x) + inner(x + 1)

    return outer


@program(inputs)
def defaults_of_callees(x):
    return scaled(x) + activated(x) + scaled(x, 3.0)


@program(inputs, factory=True)
def defaults_of_the_root():
    def f(x, k=2.0, sizes=(1, 2), *, mode="add", table={"w": 0.5}):
        x = x * k + table["w"]
        return x + sizes[0] if mode == "add" else x - sizes[1]

    return f


def counted(x):
    counted.calls += 1
    return x * counted.gain


counted.calls = 0
counted.gain = 2.0


@program(inputs)
def attributes_of_functions(x):
    return counted(x) + 1, counted.calls


@program(inputs, factory=True)
def partials():
    f = functools.partial(scaled, k=3.0)
    g = functools.partial(torch.add, other=2.0)
    h = functools.partial(functools.partial(scaled, bias=0.0), k=4.0)

    def run(x):
        return f(x), g(x), h(x) + f.keywords["k"]

    return run


@program(inputs, factory=True)
def partial_as_the_root():
    return functools.partial(scaled, k=3.0, bias=0.5)


class Recorder:
    limit = 3

    def __init__(self, gain):
        self.gain, self.seen = gain, []

    def store(self, x):
        if len(self.seen) < self.limit:
            self.seen.append(float(len(self.seen)))
        return x * self.gain

    @staticmethod
    def twice(x):
        return x * 2

    @classmethod
    def limited(cls, x):
        return x + cls.limit


@program(inputs, factory=True)
def bound_methods():
    store = Recorder(2.0).store
    others = {"twice": Recorder.twice, "limited": Recorder.limited, "own": Recorder(3.0).store}

    def f(x):
        x = store(x)
        for name in others:
            x = others[name](x)
        return x

    return f


@program(inputs, factory=True)
def bound_method_as_the_root():
    return Recorder(2.0).store


@functools.lru_cache(maxsize=4)
def table(n):
    return sum(OFFSETS) * n


@program(inputs)
def cached_function(x):
    return x * table(2) + table(3), table.cache_info().hits


@functools.singledispatch
def convert(v):
    return 1.0


@convert.register
def _(v: int):
    return v * 2.0


@convert.register(str)
def _(v):
    return len(v) * 1.0


@program(inputs)
def single_dispatch(x):
    return x * convert(3) + convert("abc") + convert(None)


def traced(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        wrapper.count += 1
        return f(*args, **kwargs) * wrapper.gain

    wrapper.count, wrapper.gain = 0, 2.0
    return wrapper


@traced
def decorated_callee(x):
    return x + 1


@program(inputs)
def decorated(x):
    return decorated_callee(x), decorated_callee.count


REGISTRY = {"relu": F.relu, "exp": torch.exp, "scaled": scaled, "lambda": lambda x: x - 1}
ORDER = ("relu", "scaled", "lambda")


@program(inputs)
def registry_of_functions(x):
    for name in ORDER:
        x = REGISTRY[name](x)
    return x


@program(inputs)
def functions_of_torch(x):
    return torch.exp(x), F.softmax(x, 0), torch.cat([x, x]), x.sin(), F.gelu(x), torch.where(x > 0, x, -x)


@program(inputs)
def functions_of_math(x):
    return (
        x * math.sqrt(4.0) + math.pi,
        x + operator.mul(2, 3),
        x - max(1, 2),
        x * len(OFFSETS),
        round(2.6) + x,
    )


@program(inputs, factory=True)
def callable_in_map_and_sort():
    k = [2.0]

    def scale(v):
        return v * k[0]

    def f(x):
        values = sorted([3.0, 1.0, 2.0], key=lambda v: -v * k[0])
        return x + sum(map(scale, values)), x * values[0]

    return f


class Callable:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k


@program(inputs, factory=True)
def callable_object_as_the_root():
    return Callable(2.0)


@program(inputs, factory=True)
def callable_objects():
    first, rest = Callable(2.0), [Callable(3.0), Callable(0.5)]

    def f(x):
        x = first(x)
        for g in rest:
            x = g(x)
        return x

    return f


@program(inputs, factory=True)
def generator_over_state():
    weights = [1.0, 2.0, 3.0]

    def each():
        for w in weights:
            yield w * SCALE

    def f(x):
        return x + sum(each()), x * sum(w for w in weights if w > 1)

    return f


@program(inputs, factory=True)
def recursive():
    depth = 3

    def down(x, n):
        return x if n == 0 else down(x * 2 + n, n - 1)

    def f(x):
        return down(x, depth)

    return f
