"""Tables of modules, their hooks, shared namespaces and class attributes that a region writes and then makes use of."""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import lampwork

X = torch.arange(6.0).reshape(2, 3)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("b", torch.ones(3))

    def forward(self, x):
        return self.a(x) * self.b


class Plain:
    pass


def twice(module, args, result):
    return result * 2


def table_replaced():
    def f(m, x):
        y = m(x)
        m._modules = {"a": m.c, "c": m.a}
        return y + m(x)

    return f, Two()


def table_replaced_in_the_dict():
    def f(m, x):
        y = m(x)
        m.__dict__["_buffers"] = {"b": m.b * 3}
        return y + m(x)

    return f, Two()


def item_of_a_table_deleted():
    def f(m, x):
        y = m(x)
        kept = m._buffers.pop("b")
        y = y + hasattr(m, "b")
        m._buffers["b"] = kept
        return y + m(x)

    return f, Two()


def item_of_a_table_written_then_set():
    def f(m, x):
        m._buffers["b"] = m.b * 2
        m.b = m.b + 1
        return m(x)

    return f, Two()


def item_of_a_table_written_then_deleted():
    def f(m, x):
        m._modules["z"] = m.a
        y = m.z(x)
        del m.z
        return y + hasattr(m, "z")

    return f, Two()


def item_of_a_table_deleted_then_none():
    def f(m, x):
        kept = m._modules.pop("a")
        m.a = None
        y = x + ("a" in m.__dict__)
        del m.a
        m.a = kept
        return y + m(x)

    return f, Two()


def hooks_of_one_module():
    def f(m, x):
        y = m(x)
        m.a._forward_hooks[7] = twice
        y = y + m(x)
        del m.a._forward_hooks[7]
        return y + m(x)

    return f, Two()


def hooks_of_one_module_replaced():
    def f(m, x):
        kept = m.a._forward_hooks
        m.a._forward_hooks = {7: twice}
        y = m(x)
        m.a._forward_hooks = kept
        return y + m(x)

    return f, Two()


def hooks_of_one_module_missing():
    def f(m, x):
        kept = m.a._forward_hooks
        del m.a._forward_hooks
        try:
            y = m(x)
        except AttributeError as error:
            y = x + len(str(error))
        m.a._forward_hooks = kept
        return y + m(x)

    return f, Two()


def hooks_of_a_module_that_the_region_made():
    def f(m, x):
        made = nn.ReLU()
        made._forward_hooks[7] = twice
        return m(x) + made(x)

    return f, Two()


def hooks_of_all_modules():
    def f(m, x):
        y = m(x)
        torch_module._global_forward_hooks[7] = twice
        y = y + m(x)
        del torch_module._global_forward_hooks[7]
        return y + m(x)

    return f, Two()


def hooks_of_all_modules_replaced():
    def f(m, x):
        y, kept = m(x), torch_module._global_forward_hooks
        torch_module._global_forward_hooks = {7: twice}
        y = y + m(x)
        torch_module._global_forward_hooks = kept
        return y + m(x)

    return f, Two()


def table_of_two_modules():
    m = Two()
    m.c._parameters = m.a._parameters

    def f(m, x):
        y = m.c(x)
        m.a.bias = None
        y = y + m.c(x) + (m.c.bias is None)
        m.a.bias = kept
        return y + m.c(x)

    kept = m.a.bias
    return f, m


def dict_of_two_objects():
    first, second = Plain(), Plain()
    second.__dict__ = first.__dict__
    first.v = 1

    def f(objects, x):
        first, second = objects
        y = x + first.v + second.v
        first.v = 5
        y = y * second.v
        second.v = 7
        return y + first.v

    return f, (first, second)


def dict_of_two_objects_as_a_whole():
    first, second = Plain(), Plain()
    second.__dict__ = first.__dict__
    first.v = 1

    def f(objects, x):
        first, second = objects
        first.v = first.v + 1
        return x + vars(second)["v"]

    return f, (first, second)


def objects_without_a_dict():
    class Slotted:
        __slots__ = ("v",)

    def f(objects, x):
        for i, o in enumerate(objects):
            o.v = i + 2
        return x + objects[0].v * objects[1].v

    return f, (Slotted(), Slotted())


def attribute_of_a_metaclass():
    class Meta(type):
        k = 1

    class Made(metaclass=Meta):
        pass

    def f(cls, x):
        y = x + cls.k
        Meta.k = 5
        return y * cls.k

    return f, Made


def property_of_a_metaclass():
    class Meta(type):
        @property
        def k(cls):
            return cls.held

        @k.setter
        def k(cls, value):
            cls.held = value + 1

    class Made(metaclass=Meta):
        held = 1

    def f(cls, x):
        cls.k = 4
        return x + cls.k

    return f, Made


def attribute_of_the_class_of_a_local():
    class Local(threading.local):
        k = 3

    def f(local, x):
        y = x + local.k
        Local.k = 5
        y = y * local.k
        local.k = 7
        return y + local.k

    return f, Local()


def attribute_of_the_class_of_a_module():
    class Module(types.ModuleType):
        k = 3

    def f(module, x):
        y = x + module.k
        Module.k = 5
        return y * module.k

    return f, Module("module")


def part_under_two_names():
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    m[0] = m[1]

    def f(m, x):
        return torch.func.functional_call(m, {"0.weight": torch.eye(3)}, (x,)) + m(x)

    return f, m


PROGRAMS = [value for value in list(globals().values()) if isinstance(value, types.FunctionType)]
PROGRAMS = [program for program in PROGRAMS if program is not twice and program.__module__ == __name__]


def held(module: Any) -> Any:
    if not isinstance(module, nn.Module):
        return (
            {name: value for name, value in vars(module).items() if name == "v"}
            if type(module) is Plain
            else None
        )
    return {
        name: {table: list(part.__dict__[table]) for table in ("_modules", "_buffers", "_parameters")}
        | {"own": sorted(part.__dict__), "hooks": list(part._forward_hooks)}
        for name, part in module.named_modules()
    } | {name: value.tolist() for name, value in module.state_dict().items()}


def outcomes(make: Any, compiled: bool) -> list[Any]:
    torch.manual_seed(0)
    f, target = make()
    run = lampwork.compile(f) if compiled else f
    found: list[Any] = []
    for _ in range(2):
        found.append([round(value, 3) for value in run(target, X).flatten().tolist()])
        found.append([held(part) for part in target] if isinstance(target, tuple) else held(target))
    return found


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_what_a_region_wrote_is_what_it_goes_by(make, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    assert outcomes(make, True) == outcomes(make, False)
