"""`operator`, `copy`, `math`, `random`-free tools, and objects with hooks of their own."""

from __future__ import annotations

import copy
import math
import operator
import types
import typing
from dataclasses import dataclass, field

import torch
from harness import program

X = torch.arange(3.0)


class Box:
    def __init__(self, value, items=()):
        self.value = value
        self.items = list(items)

    def __copy__(self):
        made = Box(self.value)
        made.copied = True
        return made


class Simple:
    def __init__(self, value):
        self.value = value
        self.nested = {"k": [1, 2]}


@dataclass
class State:
    k: int
    items: list = field(default_factory=list)
    inner: Simple | None = None


@program(lambda: (X, 3))
def operator_functions(x, n):
    return (
        operator.add(x, n),
        operator.mul(x, 2),
        operator.neg(x),
        operator.matmul(x, x),
        operator.getitem(x, 1),
        operator.eq(n, 3),
        operator.contains([1, 2], 2),
        operator.truth([]),
        operator.is_(x, x),
        operator.floordiv(7, n),
        operator.and_(6, n),
        operator.index(n),
    )


@program(lambda: (X,))
def operator_getters(x):
    rows = [{"a": 1, "b": x}, {"a": 0, "b": x + 1}]
    by_a = sorted(rows, key=operator.itemgetter("a"))
    both = operator.itemgetter(0, 2)(["p", "q", "r"])
    name = operator.attrgetter("value.shape")(Simple(x))
    upper = operator.methodcaller("upper")("abc")
    return by_a[0]["b"], both, name, upper, operator.methodcaller("mul", 2)(x)


@program(lambda: (X,))
def operator_in_place(x):
    items = [1]
    same = operator.iadd(items, [2])
    table = {}
    operator.setitem(table, "k", x * 2)
    operator.setitem(table, "j", 1)
    operator.delitem(table, "j")
    return (
        same is items,
        items,
        table,
        operator.concat([1], [2]),
        operator.countOf([1, 1], 1),
        operator.indexOf("abc", "c"),
    )


@program(lambda: (X, [1, [2, 3]]))
def copy_list(x, items):
    shallow, deep = copy.copy(items), copy.deepcopy(items)
    items[1].append(4)
    return x * len(shallow[1]), shallow is items, shallow[1] is items[1], deep


@program(lambda: (X, {"a": {"b": 1}}))
def copy_dict(x, table):
    deep = copy.deepcopy(table)
    deep["a"]["b"] = 2
    mine = table.copy()
    mine["c"] = x
    return x * table["a"]["b"], deep, list(mine)


@program(lambda: (Simple(X),))
def copy_object(s):
    c = copy.copy(s)
    c.value = c.value + 1
    return c.value, c.nested is s.nested, type(c).__name__


@program(lambda: (X,))
def copy_hook(x):
    c = copy.copy(Box(x, [1]))
    return c.value * 2, c.copied, c.items


@program(lambda: (State(2, [1, 2]),))
def deepcopy_dataclass(s):
    c = copy.deepcopy(s)
    c.items.append(3)
    c.k += 1
    return c, s.items


@program(lambda: (X,))
def deepcopy_shares_within(x):
    inner = [1]
    a = {"p": inner, "q": inner, "t": (inner, 2)}
    b = copy.deepcopy(a)
    b["p"].append(2)
    return b, b["p"] is b["q"], b["t"][0] is b["p"], inner, x + 1


@program(lambda: (X, 2.0), again=lambda: (X, 9.0))
def math_functions(x, f):
    return (
        x * math.sqrt(f),
        math.floor(f / 4),
        math.ceil(f / 4),
        math.log(f, 2),
        math.prod([2, 3, 4]),
        math.isclose(f, 2.0),
        math.gcd(12, 18),
        math.hypot(3, 4),
        math.inf > f,
        math.pi,
        math.comb(5, 2),
        math.trunc(-f),
        math.fsum([0.1] * 3),
        math.copysign(1, -f),
    )


@program(lambda: (X,))
def type_objects(x):
    kinds = [type(v) for v in (1, "a", x, None, [], int)]
    made = list[int]
    return x, [k.__name__ for k in kinds], type("a")("b"), made.__origin__ is list, isinstance(1, int | str)


@program(lambda: (X,))
def typing_tools(x):
    value = typing.cast(torch.Tensor, x)
    hints = typing.get_type_hints(State)
    return value * 2, sorted(hints), typing.get_args(typing.Optional[int])[0] is int


@program(lambda: (X,))
def mapping_proxy(x):
    table = {"a": 1}
    view = types.MappingProxyType(table)
    table["b"] = 2
    try:
        view["c"] = 3
    except TypeError as error:
        return x * view["b"], sorted(view), str(error)
    return None


@program(lambda: (X,))
def issubclass_and_mro(x):
    return (
        x,
        issubclass(bool, int),
        issubclass(State, object),
        [c.__name__ for c in bool.__mro__],
        int.__name__,
    )


@program(lambda: (X,))
def hasattr_getattr_on_tensor(x):
    return (
        x.sum() if hasattr(x, "sum") else x,
        getattr(x, "no_such", 5),
        hasattr(x, "ndim"),
        getattr(x, "shape"),
    )


@program(lambda: (X,))
def getattr_method_by_name(x):
    for name, args in (("add", (1,)), ("mul", (2,)), ("clamp", (0, 4))):
        x = getattr(x, name)(*args)
    return x


@program(lambda: (X,))
def bool_int_float_str(x):
    return (
        x,
        bool("a"),
        int(2.9),
        int("7"),
        float("1.5"),
        str(5),
        bool(None),
        int(True),
        complex("1+2j"),
        list("ab"),
    )


@program(lambda: (X,))
def hashes(x):
    return (
        x + 1,
        hash(5) == hash(5.0),
        hash("a") == hash("a"),
        hash((1, 2)) == hash((1, 2)),
        dict([(1, "i"), (1.0, "f"), (True, "b")]),
    )


class Handler:
    def __init__(self):
        self.calls = []

    def on_start(self, x):
        self.calls.append("start")
        return x + 1

    def on_end(self, x):
        self.calls.append("end")
        return x * 2


@program(lambda: (X, Handler()))
def events_by_name(x, handler):
    for event in ("start", "middle", "end"):
        hook = getattr(handler, f"on_{event}", None)
        if hook is not None:
            x = hook(x)
    return x, handler.calls


class Meter:
    def __init__(self):
        self.total = 0.0
        self.count = 0
        self.history = []

    def update(self, value, n=1):
        self.total = self.total + value * n
        self.count += n
        self.history.append(self.count)
        return self

    @property
    def average(self):
        return self.total / max(self.count, 1)


@program(lambda: (X, Meter()))
def running_meter(x, meter):
    meter.update(x.sum()).update(x.mean(), n=2)
    return meter.average


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.calls = 0
        self.seen = []
        self.last = None

    def forward(self, x, scale=1):
        self.calls += 1
        self.seen.append(x.shape[0])
        self.last = self.linear(x) * scale
        return self.last + self.calls


@program(lambda: (torch.ones(2, 3),), factory=True, stable=False)
def module_that_counts():
    return Layer()


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros(1))
        self.cache = {}

    def table(self, n):
        if n not in self.cache:
            self.cache[n] = torch.arange(float(n))
        return self.cache[n]

    def forward(self, x):
        self.steps += 1
        return x * self.weight + self.table(x.shape[-1])


@program(lambda: (torch.ones(2, 3),), factory=True, stable=False)
def module_with_table_cache():
    return Cached()


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(4, 4)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.named = torch.nn.ModuleDict({"a": torch.nn.ReLU(), "b": torch.nn.Tanh()})

    def forward(self, x, past=None, use_cache=True, **kwargs):
        q = self.q(x)
        if past is not None:
            q = torch.cat([past["q"], q])
        for i, layer in enumerate(self.layers):
            q = layer(q) + kwargs.get(f"bias_{i}", 0)
        for name, module in self.named.items():
            q = module(q) if name != "skip" else q
        return {"out": q, "past": {"q": q} if use_cache else None}


@program(
    lambda: (torch.ones(2, 4),),
    kwargs=lambda: {"past": {"q": torch.ones(1, 4)}, "bias_1": 2},
    factory=True,
)
def module_with_cache_dict():
    return Attention()
