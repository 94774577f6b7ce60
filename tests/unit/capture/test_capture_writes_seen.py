"""What a region writes to an outside object, in each way there is, is seen by its later reads and by the caller."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import operator
import threading
import types

import pytest
import torch

import lampwork

X = torch.ones(2)


class Plain:
    pass


class Slotted:
    __slots__ = ("v",)


class Both:
    __slots__ = ("__dict__", "v")


class Named(dict):
    pass


class Kind(enum.Enum):
    A = 1


class Structure(ctypes.Structure):
    _fields_ = (("v", ctypes.c_int),)


def function():
    def inner():
        return 1

    return inner


def made_class():
    return type("Made", (), {})


HOLDERS = {
    "instance": Plain,
    "slots": Slotted,
    "slots and dict": Both,
    "subclass of dict": Named,
    "module of torch": lambda: torch.nn.Linear(1, 1),
    "module of Python": lambda: types.ModuleType("held"),
    "function": function,
    "class": made_class,
    "member of an enumeration": lambda: Kind.A,
    "thread local": threading.local,
    "namespace": types.SimpleNamespace,
    "exception": lambda: ValueError("held"),
    "partial": lambda: functools.partial(operator.add, 1),
    "structure of ctypes": Structure,
}
WRITES = {
    "statement": lambda o: setattr_statement(o),
    "setattr": lambda o: setattr(o, "v", 4),
    "method": lambda o: o.__setattr__("v", 4),
    "method of object": lambda o: object.__setattr__(o, "v", 4),
    "method of class": lambda o: type(o).__setattr__(o, "v", 4),
    "item of dict": lambda o: operator.setitem(o.__dict__, "v", 4),
    "item of vars": lambda o: vars(o).__setitem__("v", 4),
    "method of dict": lambda o: o.__dict__.__setitem__("v", 4),
    "method of class dict": lambda o: dict.__setitem__(o.__dict__, "v", 4),
    "update": lambda o: o.__dict__.update(v=4),
    "del": lambda o: delattr(o, "v"),
    "delete method": lambda o: o.__delattr__("v"),
    "delete method of object": lambda o: object.__delattr__(o, "v"),
    "delete item": lambda o: operator.delitem(o.__dict__, "v"),
    "delete method of dict": lambda o: o.__dict__.__delitem__("v"),
    "pop": lambda o: o.__dict__.pop("v"),
}
READS = {
    "attribute": lambda o: o.v,
    "getattr": lambda o: getattr(o, "v", 9),
    "hasattr": lambda o: 5 if hasattr(o, "v") else 7,
    "method": lambda o: o.__getattribute__("v"),
    "method of object": lambda o: object.__getattribute__(o, "v"),
    "item of dict": lambda o: o.__dict__["v"],
    "get": lambda o: vars(o).get("v", 11),
    "in": lambda o: 3 if "v" in o.__dict__ else 8,
}


def setattr_statement(o):
    o.v = 4


def outcome(f, make):
    """What a call gives, or its exception, and what the object then holds."""
    held = make()
    with contextlib.suppress(AttributeError):
        held.v = 1
    results = []
    for _ in range(2):
        try:
            results.append(f(X, held).tolist())
        except Exception as error:  # noqa: BLE001  (whatever it is, eager's is the same)
            results.append(type(error).__name__)
        results.append(getattr(held, "v", "nothing"))
        held.v = 1
    return results


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_seen_by_every_read(holder, write, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    for name, read in READS.items():
        for first in (False, True):

            def f(x, o, read=read, first=first):
                before = read(o) if first else 0
                WRITES[write](o)
                return x * before + 10 * x * read(o)

            expected, got = (outcome(g, HOLDERS[holder]) for g in (f, lampwork.compile(f)))
            assert got == expected, (name, first)
