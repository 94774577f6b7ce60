"""Places: the slots of a program's world, and the walk that finds all of them.

A *place* is a slot that a captured function can have read: a cell, a global, an attribute, an item, an entry of a class
dictionary, a function's defaults. The walk starts at the function and its arguments and names each place by its path,
so that the same place is found in a twin of the world.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import gc
import os
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Path = str

_LIBRARIES = (
    sysconfig.get_paths()["purelib"],
    sysconfig.get_paths()["stdlib"],
    os.path.dirname(__file__) + "/mutate",
    os.path.dirname(__file__) + "/variants",
)
# Read by every call of a module, whoever wrote the program.
_MODULE_METHODS = ("forward", "__call__", "_call_impl", "__getattr__", "extra_repr")
_FLAGS = ("training", "_forward_hooks", "_forward_pre_hooks", "_parameters", "_buffers", "_modules")
_SKIPPED = {
    "_name_",
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__slots__",
    "__abstractmethods__", "__parameters__", "__orig_bases__", "__match_args__", "__dataclass_fields__",
    "__dataclass_params__", "__static_attributes__", "__firstlineno__", "_abc_impl", "__class_getitem__",
    "__init_subclass__", "__del__", "__new__", "__set_name__", "_member_map_", "_member_names_",
    "_value2member_map_", "_new_member_", "_generate_next_value_", "_use_args_", "_member_type_",
    "_value_repr_", "_unhashable_values_", "__objclass__", "_sort_order_", "__reduce_ex__",
    "__wrapped__",
}  # fmt: skip
LIMIT = 4000


@dataclass(slots=True)
class Place:
    """`kind` names the family. `owner` holds the slot; two worlds that have one owner in common share the slot.
    `put` and `drop` are None where the slot cannot be written or emptied."""

    path: Path
    kind: str
    owner: Any
    get: Callable[[], Any]
    put: Callable[[Any], None] | None
    drop: Callable[[], None] | None

    def value(self) -> Any:
        """What is there now, or MISSING."""
        try:
            return self.get()
        except (AttributeError, KeyError, IndexError, ValueError, TypeError, RecursionError):
            return MISSING


MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()


def from_library(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_LIBRARIES) or code.co_filename.startswith("<frozen")


def names_in(code: types.CodeType) -> list[str]:
    """All names that a code object and those in it mention, in order."""
    found = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= dict.fromkeys(names_in(constant))
        elif isinstance(constant, str) and constant.isidentifier():
            found[constant] = None
    return list(found)


class Walk:
    """All places that can be reached from `roots`, each object once, in an order that depends on nothing but the world.

    Library functions are places, but what they read in turn is not walked; of library modules and classes only what the
    program names, and what every call of a module reads.
    """

    def __init__(self, roots: dict[str, Any], *, deep: tuple[str, ...] = ()) -> None:
        self.places: list[Place] = []
        self.deep = deep  # modules of libraries that count as the program's own, by prefix
        self._seen: dict[int, Any] = {}
        self._names: dict[str, None] = {}
        self._queue: collections.deque[tuple[str, Any]] = collections.deque()
        for name, root in roots.items():
            self._queue.append((name, root))
        while self._queue and len(self.places) < LIMIT:
            path, value = self._queue.popleft()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit(value, path)

    # --- noting -----------------------------------------------------------------------------------------------------

    def _note(
        self,
        path: str,
        kind: str,
        owner: Any,
        get: Callable[[], Any],
        put: Callable[[Any], None] | None,
        drop: Callable[[], None] | None = None,
    ) -> None:
        place = Place(path, kind, owner, get, put, drop)
        self.places.append(place)
        value = place.value()
        if value is not MISSING:
            self._queue.append((path, value))

    def _attribute(self, path: str, owner: Any, name: str, kind: str, *, raw: bool = False) -> None:
        """An attribute; `raw` reads it from the owner's dictionary, past descriptors."""
        get = (lambda: vars(owner)[name]) if raw else (lambda: getattr(owner, name))
        self._note(
            f"{path}.{name}",
            kind,
            owner,
            get,
            lambda value: setattr(owner, name, value),
            lambda: delattr(owner, name),
        )

    def _item(self, path: str, owner: Any, key: Any, kind: str, label: str) -> None:
        base = next(
            t
            for t in (collections.OrderedDict, dict, list, collections.deque, object)
            if isinstance(owner, t)
        )
        if base is object:  # a proxy of a dict, a mapping of another kind
            base = type(owner)
        self._note(
            f"{path}[{label}]",
            kind,
            owner,
            lambda: _entry(base, owner, key),
            lambda value: base.__setitem__(owner, key, value),
            lambda: base.__delitem__(owner, key),
        )

    # --- kinds of objects -------------------------------------------------------------------------------------------

    def _visit(self, value: Any, path: str) -> None:
        if isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
            self._callable(value, path)
        elif isinstance(value, types.ModuleType):
            self._namespace(value, path)
        elif isinstance(value, type):
            self._class(value, path)
        elif isinstance(value, functools.partial):
            self._queue.append((f"{path}.func", value.func))
            self._queue.append((f"{path}.args", value.args))
            self._queue.append((f"{path}.keywords", value.keywords))
            self._instance(value, path)
        elif isinstance(value, property):
            for name in ("fget", "fset", "fdel"):
                self._queue.append((f"{path}.{name}", getattr(value, name)))
        elif isinstance(value, (staticmethod, classmethod)):
            self._queue.append((f"{path}.__func__", value.__func__))
        elif isinstance(value, types.MappingProxyType):
            self._queue.append((path, gc.get_referents(value)[0]))
        elif isinstance(value, weakref.ref):
            self._queue.append((f"{path}()", value()))
        elif isinstance(value, dict):
            self._content_of_dict(value, path)
        elif isinstance(value, (list, tuple, collections.deque)):
            self._content(value, path)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, torch.nn.Module):
            self._module(value, path)
        elif isinstance(value, threading.local):
            for name in value.__dict__:
                self._attribute(path, value, name, "thread local")
        elif not isinstance(
            value, (int, float, complex, str, bytes, types.CodeType, type(None), types.CellType)
        ):
            self._instance(value, path)

    def _content_of_dict(self, value: dict[Any, Any], path: str) -> None:
        for number, key in enumerate(list(dict.keys(value))):
            self._queue.append((f"{path} key {number}", key))
            label = repr(key) if isinstance(key, (str, int, float, bool)) else f"key {number}"
            self._item(path, value, key, "item of a dict", label)
        if type(value) is not dict:
            self._instance(value, path)

    def _content(self, value: Any, path: str) -> None:
        if isinstance(value, tuple):
            for i, item in enumerate(tuple.__iter__(value)):
                self._queue.append((f"{path}[{i}]", item))
        else:
            for i in range(len(value)):
                self._item(path, value, i, f"item of a {type(value).__mro__[-2].__name__}", str(i))
        if type(value) not in (list, tuple, collections.deque):
            self._instance(value, path)

    def _callable(self, value: Any, path: str) -> None:
        if isinstance(value, types.MethodType):
            self._queue.append((f"{path}.__func__", value.__func__))
            self._queue.append((f"{path}.__self__", value.__self__))
            return
        if isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__
            if owner is not None and not isinstance(owner, types.ModuleType):
                self._queue.append((f"{path}.__self__", owner))
            return
        if "_dynamo_marked_constant" in value.__dict__:
            return  # torch.compiler.assume_constant_result: by its author's word nothing that it reads will change
        module = value.__globals__.get("__name__") or ""
        if from_library(value.__code__) and not (self.deep and module.startswith(self.deep)):
            return
        names = names_in(value.__code__)
        self._names |= dict.fromkeys(names)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self._note(
                f"{path}<{name}>",
                "cell",
                cell,
                functools.partial(getattr, cell, "cell_contents"),
                functools.partial(setattr, cell, "cell_contents"),
            )
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(value, name) is not None:
                self._attribute(path, value, name, "function slot")
        self._attribute(path, value, "__code__", "function slot")
        for name in value.__dict__:
            self._attribute(path, value, name, "function attribute")
        for name in names:
            if name in value.__globals__:
                self._item(f"{path}:{module}", value.__globals__, name, "global", name)
                reached = value.__globals__[name]
                if isinstance(reached, types.ModuleType):
                    self._through_module(reached, f"{path}:{module}[{name}]", names)
            elif name in vars(builtins) and not isinstance(vars(builtins)[name], type):
                self._shadow(f"{path}:{module}", value.__globals__, name)

    def _shadow(self, path: str, scope: dict[str, Any], name: str) -> None:
        """A builtin, which a global of that name would hide."""
        self._note(
            f"{path}[{name}]",
            "builtin shadowed",
            scope,
            lambda: scope[name] if name in scope else vars(builtins)[name],
            functools.partial(scope.__setitem__, name),
            lambda: scope.pop(name, None),
        )

    def _through_module(self, module: types.ModuleType, path: str, names: list[str], depth: int = 0) -> None:
        for name in names:
            if name in vars(module):
                inner = vars(module)[name]
                if isinstance(inner, types.ModuleType):
                    if depth < 3 and inner.__name__.startswith(module.__name__ + "."):
                        self._through_module(inner, f"{path}.{name}", names, depth + 1)
                elif not name.startswith("__") and not is_vital(module, name):
                    self._attribute(path, module, name, "attribute of a module", raw=True)

    def _namespace(self, value: Any, path: str) -> None:
        if type(value) is not types.ModuleType:
            self._instance(value, path)

    def _class(self, value: type, path: str) -> None:
        # What all classes and all enumerations come from, those of the machinery around the program too.
        if value in (object, type, enum.EnumType, torch.Tensor, torch.nn.Parameter):
            return
        if type(value) is not type:
            self._queue.append((f"{path}.__class__", type(value)))
        own = self._is_own(value)
        if not own and value.__module__ == "builtins":
            return
        names = (
            list(vars(value)) if own else [n for n in (*_MODULE_METHODS, *self._names) if n in vars(value)]
        )
        for name in dict.fromkeys(names):
            held = vars(value)[name]
            if name in _SKIPPED or isinstance(held, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                continue
            if not value.__flags__ & (1 << 9):  # a native class: its dictionary cannot be written
                continue
            self._attribute(path, value, name, "class attribute", raw=True)
        for base in value.__bases__:
            self._queue.append((f"{path}^{base.__name__}", base))

    def _is_own(self, value: type) -> bool:
        if self.deep and value.__module__.startswith(self.deep):
            return True
        module = sys.modules.get(value.__module__)
        where = getattr(module, "__file__", None)
        return module is None or where is not None and not where.startswith(_LIBRARIES)

    def _tensor(self, value: torch.Tensor, path: str) -> None:
        for name in value.__dict__:
            self._attribute(path, value, name, "attribute of a tensor")
        if value.is_leaf and value.layout is torch.strided:
            self._attribute(path, value, "requires_grad", "tensor state")
            self._attribute(path, value, "grad", "tensor state")
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            self._queue.append((f"{path}.__class__", type(value)))

    def _module(self, value: torch.nn.Module, path: str) -> None:
        for table, kind in (("_parameters", "parameter"), ("_buffers", "buffer"), ("_modules", "submodule")):
            held = value.__dict__.get(table, {})  # a compiled module reads those of its original
            for name in held:
                self._item(f"{path}.{table}", held, name, kind, name)
            self._seen[id(held)] = held
        for name, held in value.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            if isinstance(held, dict) and name.startswith("_") and not held and name not in _FLAGS:
                continue
            kind = (
                "training flag"
                if name == "training"
                else "hooks"
                if "hooks" in name
                else "attribute of a network"
            )
            self._attribute(path, value, name, kind)
        self._class_slot(value, path)

    def _instance(self, value: Any, path: str) -> None:
        cls = type(value)
        if cls.__module__ in ("builtins", "torch", "_io", "_thread", "re", "weakref", "_abc", "torch._C"):
            return
        if cls.__module__.partition(".")[0] == "lampwork":
            # What the compiler keeps is no state of a program; what it compiled is.
            self._queue.append((f"{path}.__wrapped__", getattr(value, "__wrapped__", None)))
            return
        own = self._is_own(cls)
        try:
            names = list(object.__getattribute__(value, "__dict__"))
        except AttributeError:
            names = []
        if own or cls.__module__.split(".")[0] in (
            "types",
            "functools",
            "collections",
            "enum",
            "dataclasses",
        ):
            for name in names:
                if name not in _SKIPPED:
                    self._attribute(path, value, name, "attribute of an object")
            for base in cls.__mro__:
                slots = base.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    if name not in ("__dict__", "__weakref__"):
                        self._attribute(path, value, name, "slot of an object")
        self._class_slot(value, path)

    def _class_slot(self, value: Any, path: str) -> None:
        self._note(
            f"{path}.__class__",
            "class of an object",
            value,
            lambda: type(value),
            lambda cls: object.__setattr__(value, "__class__", cls),
        )


def _entry(base: Any, owner: Any, key: Any) -> Any:
    """An item. Even `dict.__getitem__` asks a subclass's `__missing__`, which may put the key there."""
    if issubclass(base, dict) and not dict.__contains__(owner, key):
        raise KeyError(key)
    return base.__getitem__(owner, key)


# Patching these would break the machinery around the program, on both sides.
_VITAL = {"Tensor", "manual_seed", "is_grad_enabled", "no_grad", "inference_mode", "enable_grad", "set_grad_enabled",
          "_getframe", "modules", "exc_info", "path", "stdout", "stderr", "compile", "import_module", "Module",
          "catch_warnings", "simplefilter", "collect", "Parameter", "dtype", "device", "Size", "partial"}  # fmt: skip


def is_vital(module: types.ModuleType, name: str) -> bool:
    return name in _VITAL or module.__name__.split(".")[0] in (
        "lampwork",
        "gc",
        "sys",
        "warnings",
        "builtins",
    )


def values(places: list[Place]) -> Iterator[tuple[str, Any]]:
    for place in places:
        yield place.path, place.value()
