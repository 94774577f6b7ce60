"""Worlds whose state lies in containers and in native objects."""

from __future__ import annotations

import collections
import contextvars
import threading
import types
import weakref

import torch
from harness import program

X = torch.tensor([0.5, -1.5, 2.0])


def inputs():
    return (X.clone(),)


CONFIG = {"k": 2.0, "layers": [1.0, 2.0], "act": torch.relu, "nested": {"deep": {"w": torch.ones(3)}}}
LIST = [1.0, 2.0, 3.0]
TUPLE = (1.0, [2.0], {"a": 3.0})
ORDERED = collections.OrderedDict(a=2.0, b=3.0)
DEFAULTS = collections.defaultdict(lambda: 5.0, a=1.0)
DEQUE = collections.deque([1.0, 2.0], maxlen=4)
SET = {1, 2, 3}
FROZEN = frozenset({"a", "b"})
COUNTER = collections.Counter("aab")
PROXY = types.MappingProxyType({"a": 1.0, "b": 2.0})
CHAIN = collections.ChainMap({"a": 1.0}, {"a": 2.0, "b": 3.0})
SPACE = types.SimpleNamespace(k=2.0, inner=types.SimpleNamespace(w=3.0))
LOCAL = threading.local()
LOCAL.k = 2.0
VARIABLE = contextvars.ContextVar("VARIABLE", default=2.0)
FLAG = False
NAME = "mean"
NOTHING = None


@program(inputs)
def dicts(x):
    x = CONFIG["act"](x * CONFIG["k"]) + CONFIG["nested"]["deep"]["w"]
    for layer in CONFIG["layers"]:
        x = x + layer
    return x, len(CONFIG), "k" in CONFIG, CONFIG.get("missing", 1.0)


@program(inputs)
def lists_and_tuples(x):
    for v in LIST:
        x = x * v
    return x + TUPLE[1][0] + TUPLE[2]["a"], LIST[-1], len(LIST), 2.0 in LIST, LIST.index(2.0), LIST[::-1]


@program(inputs)
def ordered(x):
    for i, (_, v) in enumerate(ORDERED.items()):
        x = x * v + i
    return x, next(iter(ORDERED)), list(ORDERED), DEFAULTS["a"] + x


@program(inputs)
def deques_and_sets(x):
    return x * DEQUE[0] + DEQUE[-1], len(SET), 2 in SET, x + len(FROZEN), COUNTER["a"] + x, x * sum(SET)


@program(inputs)
def proxies_and_chains(x):
    return x * PROXY["a"] + len(PROXY), x + CHAIN["a"] + CHAIN["b"]


@program(inputs)
def namespaces(x):
    return x * SPACE.k + SPACE.inner.w, hasattr(SPACE, "other"), vars(SPACE)["k"] + x


@program(inputs)
def globals_of_all_kinds(x):
    if FLAG:
        x = x + 100
    y = x.mean() if NAME == "mean" else x.sum()
    return y, x if NOTHING is None else x + NOTHING


@program(inputs)
def thread_locals(x):
    return x * LOCAL.k


@program(inputs)
def context_variables(x):
    return x * VARIABLE.get()


class Node:
    def __init__(self, k):
        self.k, self.children, self.parent = k, [], None

    def add(self, child):
        child.parent = weakref.ref(self)
        self.children.append(child)
        return self

    def total(self):
        return self.k + sum(c.total() for c in self.children)


@program(inputs, factory=True)
def trees():
    root = Node(1.0).add(Node(2.0)).add(Node(3.0).add(Node(4.0)))
    leaf = root.children[0]

    def f(x):
        parent = leaf.parent()
        return x * root.total(), x + parent.k if parent is not None else x

    return f


class Target:
    def __init__(self, k):
        self.k = k


@program(inputs, factory=True)
def weak_references():
    kept = [Target(2.0), Target(3.0)]
    ref = weakref.ref(kept[0])
    table = weakref.WeakValueDictionary({"a": kept[1]})

    def f(x):
        o = ref()
        return (x if o is None else x * o.k), (table["a"].k + x if "a" in table else x)

    return f


class Store(dict):
    factor = 2.0

    def __getitem__(self, key):
        return super().__getitem__(key) * self.factor

    def __missing__(self, key):
        return 1.0


class Items(list):
    def total(self):
        return sum(self)


class Text(str):
    unit = 2.0

    def size(self):
        return len(self) * self.unit


class Number(float):
    extra = 1.0

    def more(self):
        return self + self.extra


@program(inputs, factory=True)
def subclasses_of_containers():
    store, items, text, number = Store(a=1.0, b=2.0), Items([1.0, 2.0]), Text("abc"), Number(2.5)

    def f(x):
        return x * store["a"] + items.total(), x + text.size() + number.more(), x * number

    return f


@program(lambda: (X.clone(), {"a": 1.0, "b": [2.0, X.clone()]}, [3.0, (4.0, {"c": 5})]))
def containers_as_arguments(x, d, items):
    return x * d["a"] + d["b"][1] * items[0] + items[1][1]["c"], len(d), len(items)


@program(inputs, factory=True)
def state_that_grows():
    state = {"step": 0, "history": [], "mean": torch.zeros(3)}

    def f(x):
        state["step"] += 1
        state["history"].append(state["step"])
        state["mean"] = state["mean"] * 0.5 + x
        return state["mean"] * state["step"]

    return f


@program(lambda: (X.clone(), X.clone() + 1, 3, 0.5, "sum", True, None, torch.float64, [1, 2]))
def arguments_of_all_kinds(x, y, n, p, how, flag, nothing, dtype, dims):
    z = x * n + y * p
    z = z.sum() if how == "sum" else z.mean()
    if flag:
        z = z + 1
    if nothing is not None:
        z = z * nothing
    return z.to(dtype), x.repeat(*dims)
