"""One run of a random program that writes state and reads it, and all of the program's state after each call."""

from __future__ import annotations

import builtins
import collections
import contextvars
import copy
import enum
import functools
import inspect
import itertools
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from program_sides import Side, described
from torch.utils.hooks import RemovableHandle

import lampwork

WORLD = Path(__file__).parent / "written_world.py"
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_VALUES = (int, float, complex, str, bytes, type(None), torch.dtype, torch.Size, range, slice)
_OF_COMPILERS = ("_lampwork_held", "_torchdynamo_wrapper_id")
_OF_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__", "__qualname__"}
    | {"__dataclass_fields__", "__dataclass_params__", "__match_args__", "__firstlineno__", "_abc_impl"}
    | {"__static_attributes__", "__slotnames__", "__orig_bases__", "__parameters__", "__abstractmethods__"}
)
_ITERATORS = tuple(type(iter(each)) for each in ([], (), {}, {}.items(), {}.values(), set(), range(1)))
_ITERATORS += (type(reversed([])),)
_fresh = itertools.count(1)


class WrittenSide(Side):
    """`captured`: the states that a call of each thunk began in, by the line of the thunk."""

    world = compile(WORLD.read_text(), str(WORLD), "exec")
    watched = ()
    kept = ()

    def __init__(self, backend: str | None) -> None:
        super().__init__(backend)
        self.space: dict[str, Any] = {}
        self.before: dict[int, list[Walk]] = collections.defaultdict(list)

    def run(self, text: str) -> list[Any]:
        RemovableHandle.next_id = 0
        try:
            return _placeless(super().run(text))
        finally:
            self.before.clear()
            # What the sides and other programs share is as before.
            for table in _global_hooks():
                table.clear()
            vars(builtins).pop("FRESH", None)

    def _watch(self, state: Any) -> None:
        """The namespace of the program: what it holds that the world does not share with other runs is its state."""
        self.space = state

    def call(self, *thunks: Callable[[], Any], again: Callable[[], Any] | None = None) -> None:
        """Call each. From a state in which the same call was made before, nothing is captured anew."""
        for thunk in thunks:
            state = self._walk()
            calls = self.before[thunk.__code__.co_firstlineno]
            is_known = self.space and any(s.told == state.told and s.ids == state.ids for s in calls)
            calls.append(state)
            regions = lampwork.stats()["regions"]
            try:
                result = thunk()
            except BaseException as error:  # noqa: BLE001  (what the program raises is a result)
                result = error
            anew = lampwork.stats()["regions"] - regions if is_known else 0
            after = Walk()
            told = described(result) if isinstance(result, BaseException) else after.of(result)
            self.events.append(["call", told])
            del result
            self.events.append(["state", self._walk(after).told])
            if anew:
                self.events.append(["captured anew", anew])

    def _walk(self, walk: Walk | None = None) -> Walk:
        walk = walk or Walk()
        names = [name for name in self.space if not name.startswith("__") and name not in _SHARED]
        walk.told = [[name, walk.of(self.space[name])] for name in names]
        walk.told.append(["hooks", [walk.of(value) for value in _global_hooks()]])
        return walk


# What every program has and no program changes.
_SHARED = frozenset(
    {"T", "gathered", "cancelled", "listed", "annotations", "main"}
    | {
        "collections",
        "contextlib",
        "contextvars",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "itertools",
        "io",
    }
    | {
        "operator",
        "sys",
        "threading",
        "types",
        "typing",
        "weakref",
        "torch",
        "nn",
        "torch_module",
        "warnings",
    }
    | {"Buffer", "Parameter", "lampwork", "Any"}
)


def _global_hooks() -> list[Any]:
    space = vars(torch.nn.modules.module)
    return [
        space[name]
        for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
    ]


def _placeless(told: Any) -> Any:
    """Without where objects lie."""
    if isinstance(told, str):
        return _ADDRESS.sub("0x", told)
    if isinstance(told, list):
        return [_placeless(each) for each in told]
    return {_placeless(k): _placeless(v) for k, v in told.items()} if isinstance(told, dict) else told


class Walk:
    """All that can be seen of values, as plain data: an object met before is a number, so that what is shared with
    whom is told, too. `ids`: which objects those are."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}
        self.ids: list[int] = []
        self.held: list[Any] = []
        self.told: list[Any] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return [f"{type(value).__name__}.{value.name}", self.table(vars(value))]
        if type(value) in _VALUES or type(value) is bool:
            return f"{type(value).__name__} {value!r}"
        if type(value) is tuple or isinstance(value, tuple) and hasattr(value, "_fields"):
            self.same(value)
            return [type(value).__name__, *map(self.of, value)]
        if id(value) in self.seen:
            return f"object {self.seen[id(value)][0]}"
        self.seen[id(value)] = (len(self.seen), value)
        self.ids.append(id(value))
        return self.object(value)

    def same(self, value: Any) -> None:
        """Note an object whose identity eager does not vouch for, but a guard may go by."""
        self.ids.append(id(value))
        self.held.append(value)  # its id must stay taken

    def table(self, items: Any) -> list[Any]:
        return [[self.of(key), self.of(item)] for key, item in items.items() if key not in _OF_COMPILERS]

    def object(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, type):
            return self.cls(value)
        if isinstance(value, types.ModuleType):
            of_program = value.__name__ in ("other", "place")
            return ["module", value.__name__, self.table(vars(value)) if of_program else None]
        if kind is types.FunctionType:
            return self.function(value)
        if kind is types.MethodType:
            return ["method", self.of(value.__func__), self.of(value.__self__)]
        if kind is types.CellType:
            return ["cell", *([self.of(value.cell_contents)] if _is_full(value) else [])]
        if isinstance(value, functools.partial):
            return ["partial", *map(self.of, (value.func, value.args, value.keywords, vars(value)))]
        if isinstance(value, (property, classmethod, staticmethod)):
            names = ("fget", "fset", "fdel") if isinstance(value, property) else ("__func__",)
            return [kind.__name__, *(self.of(getattr(value, name)) for name in names)]
        if isinstance(value, Iterator) and not isinstance(value, _ITERATORS):
            # How far it is cannot be told: no other state is known to be this one.
            self.ids.append(-next(_fresh))
        if inspect.isgenerator(value):
            frame = value.gi_frame
            line = None if frame is None else frame.f_lineno
            return ["generator", value.__qualname__, inspect.getgeneratorstate(value), line]
        if isinstance(value, _ITERATORS):
            return [kind.__name__, *self.rest(value)]
        if isinstance(value, contextvars.ContextVar):
            return ["ContextVar", self.of(value.get("nothing"))]
        if isinstance(value, (weakref.ref, weakref.WeakMethod)):
            return ["ref", self.of(value())]
        if isinstance(value, functools._lru_cache_wrapper):
            return [
                "lru_cache",
                list(value.cache_info()),
                self.of(value.__wrapped__),
                self.table(vars(value)),
            ]
        if isinstance(value, RemovableHandle):
            return ["handle", value.id]
        if isinstance(value, BaseException):
            told = [kind.__name__, self.of(value.args), self.table(vars(value))]
            return [*told, type(value.__cause__).__name__, type(value.__context__).__name__]
        return [kind.__name__, *self.content(value), *self.attributes(value)]

    def content(self, value: Any) -> list[Any]:
        if isinstance(value, (dict, types.MappingProxyType)):
            factory = [self.of(getattr(value, "default_factory", None))]
            base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
            keys = list(base.__iter__(value) if isinstance(value, dict) else iter(value))
            return factory + self.table({key: value[key] for key in keys if key not in _OF_COMPILERS})
        if isinstance(value, (set, frozenset)):
            return sorted(_ADDRESS.sub("0x", repr(each)) for each in value)
        if isinstance(value, (list, tuple)):
            base: Any = list if isinstance(value, list) else tuple
            return [self.of(each) for each in base.__iter__(value)]
        if isinstance(value, collections.deque):
            return [value.maxlen, *(self.of(each) for each in value)]
        if isinstance(
            value, (collections.abc.KeysView, collections.abc.ValuesView, collections.abc.ItemsView)
        ):
            return [self.of(each) for each in value]
        return []

    def attributes(self, value: Any) -> list[Any]:
        table = value.__dict__ if isinstance(value, threading.local) else None
        if table is None:
            try:
                table = object.__getattribute__(value, "__dict__")
            except AttributeError:
                table = {}
        self.same(table)
        # The table itself is an object that others may share.
        told: list[Any] = [["dict", self.of(table)]] if set(table) - set(_OF_COMPILERS) else []
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                found = base.__dict__.get(name)
                if isinstance(found, types.MemberDescriptorType):
                    try:
                        told.append([name, self.of(found.__get__(value))])
                    except AttributeError:
                        told.append([name])
        return told

    def cls(self, value: type) -> Any:
        if value.__module__ != "program":
            return f"class {value.__qualname__}"
        names = [name for name in vars(value) if name not in _OF_CLASSES]
        told = [[name, self.of(vars(value)[name])] for name in names]
        return ["class", value.__qualname__, *map(self.of, value.__mro__[1:]), self.of(type(value)), told]

    def function(self, value: types.FunctionType) -> Any:
        if value.__module__ not in ("program", None):
            return f"function {value.__qualname__}"
        self.same(value.__code__)
        self.same(value.__dict__)
        told = [value.__name__, value.__code__.co_firstlineno, self.of(value.__defaults__)]
        told += [self.of(value.__kwdefaults__), self.table(vars(value))]
        return ["function", *told, *map(self.of, value.__closure__ or ())]

    def tensor(self, value: torch.Tensor) -> Any:
        told = [type(value).__name__, str(value.dtype), list(value.shape), list(value.stride())]
        told += [value.storage_offset(), value.requires_grad, value.is_leaf, repr(value.detach().tolist())]
        if value.numel():
            storage = value.untyped_storage()
            number = self.seen.setdefault(-storage.data_ptr() - 1, (len(self.seen), storage))[0]
            told.append(f"storage {number}")
            self.ids.append(storage.data_ptr())
        self.same(value.__dict__)
        self.ids.append(value._version)
        if value.is_leaf and value.grad is not None:
            told.append(self.of(value.grad))
        return [*told, self.table(value.__dict__)]

    def rest(self, value: Any) -> list[Any]:
        """What is left in an iterator, of which a copy is asked."""
        try:
            return [self.of(each) for each, _ in zip(copy.copy(value), range(6), strict=False)]
        except (RuntimeError, TypeError) as error:
            return [str(error)]


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (it is asked whether this raises)
    except ValueError:
        return False
    return True
