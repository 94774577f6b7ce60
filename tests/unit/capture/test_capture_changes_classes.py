"""What changes between two calls is seen by the second: what tensors and classes have, and have not."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import os
import typing

import pytest
import torch
from changes_check import check_change_is_seen
from children import failure
from torch import nn

import lampwork

X = torch.arange(6.0).reshape(2, 3)


def attribute_given_to_a_bound_tensor():
    weight = nn.Parameter(torch.ones(3))
    return lambda x: x * (2 if hasattr(weight, "tag") else 3), lambda: setattr(weight, "tag", 1)


def attribute_with_a_default_given_to_the_weight_of_a_module():
    model = nn.Linear(3, 3)
    return lambda x: x * getattr(model.weight, "scale", 3), lambda: setattr(model.weight, "scale", 5)


def attribute_that_was_missed_by_its_error():
    weight = torch.ones(3)

    def f(x):
        try:
            return x * weight.scale
        except AttributeError:
            return x * 7

    return f, lambda: setattr(weight, "scale", 2)


def attribute_taken_from_a_bound_tensor():
    weight = torch.ones(3)
    weight.tag = 1
    return lambda x: x * (2 if hasattr(weight, "tag") else 3), lambda: delattr(weight, "tag")


def attribute_of_a_bound_tensor_replaced():
    weight = torch.ones(3)
    weight.scale = 2.0
    return lambda x: x * weight.scale, lambda: setattr(weight, "scale", 3.0)


def attribute_given_to_the_class_of_parameters():
    weight = nn.Parameter(torch.ones(3))
    return lambda x: x * (2 if hasattr(weight, "_a_tag") else 3), lambda: setattr(nn.Parameter, "_a_tag", 1)


def namespace_of_a_bound_tensor():
    weight = torch.ones(3)
    return lambda x: x * (2 + len(vars(weight))), lambda: setattr(weight, "tag", 1)


def key_missing_from_the_namespace_of_a_bound_tensor():
    weight = torch.ones(3)
    return lambda x: x * weight.__dict__.get("scale", 3), lambda: setattr(weight, "scale", 5)


def method_hidden_by_an_attribute():
    weight = torch.ones(3)
    return lambda x: x * weight.sum(), lambda: setattr(weight, "sum", lambda: torch.tensor(7.0))


def key_missing_from_the_namespace_of_a_class():
    class Holder:
        pass

    return lambda x: x * (1 + ("scale" in vars(Holder))), lambda: setattr(Holder, "scale", 1)


def default_for_a_key_of_the_namespace_of_a_class():
    class Holder:
        pass

    return lambda x: x * Holder.__dict__.get("scale", 3), lambda: setattr(Holder, "scale", 5)


def names_in_the_namespace_of_a_class():
    class Holder:
        op_a = 1

    def f(x):
        return x * len([name for name in Holder.__dict__ if name.startswith("op_")])

    return f, lambda: setattr(Holder, "op_b", 1)


def values_in_the_namespace_of_a_class():
    class Holder:
        a = 1

    def f(x):
        return x + sum(value for value in vars(Holder).values() if isinstance(value, int))

    return f, lambda: setattr(Holder, "a", 3)


def members_of_an_object():
    class Holder:
        pass

    holder = Holder()
    return lambda x: x + len(inspect.getmembers(holder)), lambda: setattr(Holder, "scale", 1)


def annotations_of_a_class():
    class Holder:
        a: int

    def f(x):
        return x * len(typing.get_type_hints(Holder)) + len(inspect.get_annotations(Holder))

    return f, lambda: Holder.__annotations__.update(b=int)


def fields_of_a_dataclass():
    @dataclasses.dataclass
    class Holder:
        a: int = 1
        b: int = 2

    holder = Holder()
    return lambda x: x * len(dataclasses.fields(holder)), lambda: Holder.__dataclass_fields__.pop("b")


def class_that_is_no_dataclass_any_more():
    @dataclasses.dataclass
    class Holder:
        a: int = 1

    holder = Holder()
    return lambda x: x + dataclasses.is_dataclass(holder), lambda: delattr(Holder, "__dataclass_fields__")


def subclass_that_came():
    class Plugin:
        scale = 1

    class First(Plugin):
        scale = 2

    kept = [First]

    def f(x):
        return x * sum(plugin.scale for plugin in Plugin.__subclasses__())

    return f, lambda: kept.append(type("Second", (Plugin,), {"scale": 5}))


def bases_of_a_class_replaced():
    class Base: ...

    class Other(Base): ...

    class Holder(Base): ...

    return lambda x: x * len(Holder.mro()), lambda: setattr(Holder, "__bases__", (Other,))


def bound_tensor_that_is_conjugated():
    weight = torch.ones(3, dtype=torch.complex64)
    return lambda x: x * (2 if weight.is_conj() else 3), lambda: torch._C._set_conj(weight, True)


def _in_place(x):
    x = x * 1
    x += 1
    return x


def _first_row_cleared(x):
    x = x * 1
    x[0] = 0
    return x


def _unpacked(x):
    first, second = x
    return first * second


OPERATORS = {
    "__add__": lambda x: x + 1,
    "__radd__": lambda x: 1 + x,
    "__iadd__": _in_place,
    "__sub__": lambda x: x - x,
    "__rsub__": lambda x: 1 - x,
    "__mul__": lambda x: math.prod([x, x]) * 2,
    "__truediv__": lambda x: x / 2,
    "__pow__": lambda x: x**2,
    "__matmul__": lambda x: x @ x.T,
    "__mod__": lambda x: x % 2,
    "__floordiv__": lambda x: x // 2,
    "__and__": lambda x: (x > 1) & (x > 2),
    "__eq__": lambda x: x == 1,
    "__ne__": lambda x: x != 1,
    "__lt__": lambda x: x < 1,
    "__gt__": lambda x: 1 < x,
    "__getitem__": lambda x: x[0],
    "__setitem__": _first_row_cleared,
    "__iter__": _unpacked,
    "__len__": lambda x: x * len(x),
    "__neg__": lambda x: -x,
    "__abs__": lambda x: abs(x),
    "__deepcopy__": lambda x: copy.deepcopy(x) + 1,
    "__bool__": lambda x: x * (2 if torch.tensor(1.0) else 3),
}
ANSWERS = {"__len__": 7, "__bool__": False}


CHANGES = [
    attribute_given_to_a_bound_tensor,
    attribute_with_a_default_given_to_the_weight_of_a_module,
    attribute_that_was_missed_by_its_error,
    attribute_taken_from_a_bound_tensor,
    attribute_of_a_bound_tensor_replaced,
    attribute_given_to_the_class_of_parameters,
    namespace_of_a_bound_tensor,
    key_missing_from_the_namespace_of_a_bound_tensor,
    method_hidden_by_an_attribute,
    bound_tensor_that_is_conjugated,
    key_missing_from_the_namespace_of_a_class,
    default_for_a_key_of_the_namespace_of_a_class,
    names_in_the_namespace_of_a_class,
    values_in_the_namespace_of_a_class,
    members_of_an_object,
    annotations_of_a_class,
    fields_of_a_dataclass,
    class_that_is_no_dataclass_any_more,
    subclass_that_came,
    bases_of_a_class_replaced,
]


def in_a_child(test):
    """The test, run in a process of its own: CPython keeps the slots that a replaced method of torch.Tensor filled, and
    `torch.tensor([scalar])` fails for ever where `__getitem__` was replaced once, and put back."""

    @functools.wraps(test)
    def run(**arguments):
        def job():
            os.environ.pop("LAMPWORK_STRICT", None)
            test(**arguments)

        assert not failure([(test.__name__, job)])

    return run


@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@in_a_child
def test_change_is_seen(make):
    check_change_is_seen(make, X)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@in_a_child
def test_a_method_of_all_tensors_that_the_program_replaced_is_asked(name):
    fn, number = OPERATORS[name], [7.0]
    compiled = lampwork.compile(fn)
    before = fn(X)
    torch.testing.assert_close(compiled(X), before)

    def replaced(self, *others):
        if name == "__setitem__":
            self.fill_(number[0])
        if name == "__iter__":
            return iter([torch.tensor(number[0]), torch.tensor(2.0)])
        return ANSWERS.get(name, torch.full((3,), number[0]))

    setattr(torch.Tensor, name, replaced)
    for number[0] in (7.0, 8.0):
        after = fn(X)
        assert not torch.equal(before, after)
        assert torch.equal(compiled(X), after)


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@in_a_child
def test_a_method_of_all_parameters_is_asked():
    weight = nn.Parameter(torch.ones(3))

    def fn(x):
        return (x * weight + (weight - 1)).detach()

    compiled = lampwork.compile(fn)
    torch.testing.assert_close(compiled(X), fn(X))
    nn.Parameter.__rmul__ = lambda self, other: other + 7
    nn.Parameter.__sub__ = lambda self, other: other + 5
    torch.testing.assert_close(compiled(X), X + 7 + 6)


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_a_tensor_has_nothing_of_what_stands_for_it(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    weight = nn.Parameter(torch.ones(3))
    weight.mine = 1

    def f(x):
        inner = x * weight
        names = ("base", "spec", "node", "chain", "known", "is_cut", "__annotations__", "__module__")
        return [
            *((hasattr(t, name), str(getattr(t, name, None))) for t in (x, inner, weight) for name in names),
            sorted(vars(weight)),
            sorted(x.__dict__),
        ], inner

    expected, got = f(X), lampwork.compile(f)(X)
    assert got[0] == expected[0]
    torch.testing.assert_close(got[1], expected[1])


def test_what_a_region_writes_to_the_namespace_of_a_tensor_is_written():
    def f(x):
        table = x.__dict__
        table["count"] = table.get("count", 0) + 1
        return x * x.count

    compiled, x = lampwork.compile(f), torch.ones(3)
    for count in (1, 2, 3):
        torch.testing.assert_close(compiled(x), torch.full((3,), float(count)))
    assert x.count == 3


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_the_namespace_of_a_class_has_what_the_region_wrote(monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")

    class Holder:
        count = 0

    def f(x):
        table = vars(Holder)
        before = table["count"]
        Holder.count = before + 1
        return before, table["count"], vars(Holder)["count"], x * Holder.count

    compiled = lampwork.compile(f)
    for count in range(3):
        *numbers, product = compiled(X)
        assert numbers == [count, count + 1, count + 1]
        torch.testing.assert_close(product, X * (count + 1))


@pytest.mark.parametrize("dynamic", [None, True])
def test_native_methods_of_numbers_take_integers_that_are_open(dynamic):
    def f(x, n):
        return x, (5).__add__(n), (5).__lt__(n), (5).__rsub__(n), (2.5).__mul__(n)

    compiled = lampwork.compile(f, dynamic=dynamic)
    for n in (7, 8, 9):
        assert compiled(X, n)[1:] == f(X, n)[1:]


def test_errors_name_the_class_of_tensors_as_eager_does():
    def f(x):
        texts = []
        for operation in (lambda: x + object(), lambda: x < object(), lambda: object() @ x):
            try:
                operation()
            except TypeError as error:
                texts.append(str(error))
        try:
            texts.append([*x.dim()])
        except TypeError as error:
            texts.append(str(error))
        return texts, x + 1

    assert lampwork.compile(f)(X)[0] == f(X)[0]
