"""What the fuzzer of state written and read within a region found (tests/fuzz/written_state.py), each in its smallest
form: a program runs eager and compiled, call after call, and shows the same."""

from __future__ import annotations

import collections
import copy
import functools
import re
import types
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import lampwork

X = torch.ones(2)


class Plain:
    v = 1


def outcome(thunk: Any) -> Any:
    try:
        return thunk()
    except Exception as error:  # noqa: BLE001  (told to the caller)
        return type(error).__name__, str(error)


def names_of_native_classes():
    objects = [types.SimpleNamespace(), functools.partial(outcome), collections.deque(), Plain()]

    def f(x):
        found = [outcome(lambda each=each: each.u) for each in objects]
        found += [outcome(lambda each=each: type(each).u) for each in objects]
        return x, found

    return f


def getattr_of_a_module():
    module = types.ModuleType("module")
    calls = [0]

    def f(x):
        found = [outcome(lambda: module.u)]
        calls[0] += 1
        if calls[0] == 3:
            module.__getattr__ = lambda name: 7
        return x, [*found, outcome(lambda: module.u)]

    return f


def getattr_of_a_module_set_between_calls():
    module = types.ModuleType("module")

    def f(x):
        return x, getattr(module, "u", 0)

    def between(number):
        module.__getattr__ = lambda name: number

    f.between = between
    return f


def getattr_of_a_module_that_has_the_name():
    module = types.ModuleType("module")
    module.__getattr__ = lambda name: 3
    return lambda x: (x, sorted(module.__dict__), module.__class__, module.u)


def global_that_moves_to_the_end():
    module = types.ModuleType("module")
    module.a, module.b = 1, 2

    def f(x):
        del module.a
        module.a = 5
        return x

    f.told = lambda: list(vars(module))
    return f


def attribute_of_the_class_of_a_module_deleted():
    class Module(types.ModuleType):
        v = 1

    module = Module("module")
    return lambda x: (x, outcome(lambda: delattr(module, "v")), module.v)


def functional_call_with_a_part_that_is_not_there():
    net = nn.Linear(2, 2)
    return lambda x: (x, outcome(lambda: torch.func.functional_call(net, {"a.weight": x}, (x,))))


def operators_in_place_that_fail():
    held = types.SimpleNamespace(function=outcome, plain=Plain())

    def f(x):
        def add(name):
            value = getattr(held, name)
            value += 1

        def times(name):
            value = getattr(held, name)
            value *= 2

        return x, [outcome(lambda n=n, g=g: g(n)) for n in ("function", "plain") for g in (add, times)]

    return f


def defaults_by_name_written():
    def called(x, *, n=1):
        return x + n

    def f(x):
        y = called(x)
        called.__kwdefaults__["n"] = 3
        return y * called(x)

    return f


def copies_of_what_answers_to_all_names():
    class Answering:
        def __init__(self):
            self.v = 1

        def __getattr__(self, name):
            return 12

    class Refusing(Answering):
        def __getattr__(self, name):
            raise AttributeError(name)

    objects = [Answering(), Refusing()]

    def f(x):
        copies = [outcome(lambda o=o, c=c: c(o).v) for o in objects for c in (copy.copy, copy.deepcopy)]
        return x, copies

    return f


def copy_of_what_is_behind_a_property():
    class Behind:
        @property
        def v(self):
            return 5

    behind = Behind()
    vars(behind)["v"] = 3
    return lambda x: (x, [(c(behind).v, vars(c(behind))) for c in (copy.copy, copy.deepcopy)])


def contents_of_an_empty_cell():
    cell = types.CellType()
    return lambda x: (x, outcome(lambda: cell.cell_contents))


def empty_slot_deleted():
    class Slotted:
        __slots__ = ("v",)

    slotted = Slotted()

    def delete():
        del slotted.v

    return lambda x: (x, outcome(delete), outcome(lambda: slotted.v))


def vars_of_what_has_no_dict():
    class Bare:
        __slots__ = ()

    bare = Bare()
    return lambda x: (x, outcome(lambda: vars(bare)))


def attribute_through_a_weak_proxy():
    kept = Plain()
    held = types.SimpleNamespace(proxy=weakref.proxy(kept))
    return lambda x, held=held: (x, outcome(lambda: held.proxy.v), kept.v)


def attribute_of_a_tensor_deleted():
    t = torch.ones(2)

    def f(x):
        del t.v
        return x, hasattr(t, "v")

    def between(number):
        t.v = number

    f.between = between
    between(0)
    return f


def list_in_itself():
    items: list[Any] = [1, 2]

    def f(x):
        numbered = list(enumerate(items))
        items.append(items)
        return x, len(numbered)

    return f


def functional_call_after_a_part_was_tied():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x)

    torch.manual_seed(0)
    net, other = Net(), Net()

    def f(x):
        net.add_module("w", net.a)
        y = torch.func.functional_call(net, dict(other.named_parameters()), (x,))
        return y.detach(), net.a.weight is other.a.weight

    return f


PROGRAMS = [
    value
    for value in list(globals().values())
    if isinstance(value, types.FunctionType) and value.__module__ == __name__ and value is not outcome
]


def shown(make: Any, compiled: bool) -> list[str]:
    f = make()
    run = lampwork.compile(f) if compiled else f
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(4):
            found.append(re.sub("0x[0-9a-f]+", "", repr(outcome(lambda: run(X)))))
            found.append(repr(getattr(f, "told", list)()))
            getattr(f, "between", lambda number: None)(number)
    # The compiler's own failures, and what it takes for the program's.
    return found + [str(each.message) for each in caught if "LW119" in str(each.message)]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_what_a_region_reads_is_what_it_wrote(make, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    assert shown(make, True) == shown(make, False)


@pytest.mark.parametrize(
    "made",
    [
        lambda n: (n, 2),
        lambda n: [n, 2],
        lambda n: {"a": 1, "b": 2},
        lambda n: {1, 2},
        lambda n: {"a": X, "b": n},
    ],
    ids=["tuple", "list", "dict", "set", "dict of tensors"],
)
def test_a_container_that_each_call_makes_anew_is_read_on_each_call(made):
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.state = made(0)

        def forward(self, x):
            n = len(self.state)
            self.state = made(n)
            return x + n

    keeping = lampwork.compile(Keeping(), backend="eager")
    regions = lampwork.stats()["regions"]
    for _ in range(6):
        assert keeping(X).tolist() == [3.0, 3.0]
    assert lampwork.stats()["regions"] - regions == 2
