"""setattr and delattr of the interpreted program: at once on objects of the region, held back on those from outside."""

from __future__ import annotations

import ast
import contextlib
import threading
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module

from lampwork import pristine
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import DictItem, Known
from lampwork.capture.model.values import Generator
from lampwork.capture.semantics.attributes import (
    FUNCTION_SLOTS,
    FUNCTION_STATE,
    instance_dict,
    load_instance_attr,
)
from lampwork.capture.semantics.held_state import (
    MODULE_TABLES,
    check_hooks_are_current,
    dict_shadow,
    is_registered,
    load_item,
    load_registered,
    note_registration,
    read_own,
)
from lampwork.capture.state.classes import MISSING, no_attribute
from lampwork.capture.state.entries import Entry
from lampwork.capture.state.guards import mapping_behind
from lampwork.capture.state.treatment import is_slot
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# Classes whose `__setattr__` and `__delattr__` do what those of object do.
GENERIC = (object, types.ModuleType, BaseException, functools.partial, types.SimpleNamespace, ast.AST)
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
# What nn.Module does when nobody has patched it.
_SETATTR: Any = vars(torch.nn.Module).get("__setattr__")
_DELATTR: Any = vars(torch.nn.Module).get("__delattr__")
# What its `__setattr__` calls, as nobody has patched it.
_REGISTERING = {name: vars(torch.nn.Module).get(name) for name in ("register_parameter", "register_buffer")}
_REGISTRATION_HOOKS = tuple(
    f"_global_{kind}_registration_hooks" for kind in ("parameter", "buffer", "module")
)
# What its tables take in the place of what they hold.
_TAKEN: dict[str, tuple[type, ...]] = {
    "_parameters": (torch.nn.Parameter,),
    "_modules": (torch.nn.Module, torch.nn.Parameter),
    "_buffers": (torch.nn.Module, torch.Tensor),
}


def store_attr(interp: Interpreter, obj: Any, name: str, value: Any) -> None:
    """setattr(obj, name, value) in the region: at once on the region's own objects, held back on outside ones."""
    kind = type(obj)
    if kind is TraceTensor:
        if name == "data" and value is obj:
            return  # what nn.Module.to() does to a parameter that needs no conversion
        raise Break("LW106", f"the attribute {name!r} of a tensor is set")
    if isinstance(obj, type):
        _store_class_attr(interp, obj, name, value)
        return
    if kind is types.CellType:
        interp.store_cell(obj, value)
        return
    if kind is types.FunctionType and name in (FUNCTION_SLOTS | FUNCTION_STATE):
        if id(obj) not in interp.inside_functions:
            raise Break("LW111", f"{name} of {obj.__qualname__} is set")
        setattr(obj, name, value)
        return
    setter, owner = interp.lookup(kind, "__setattr__")
    if isinstance(setter, types.FunctionType) and setter is not _SETATTR:
        interp.call(setter, [obj, name, value], {})
        return
    if kind is Generator or (
        owner not in GENERIC and setter is not _SETATTR and owner is not threading.local
    ):
        raise Break("LW111", f"an attribute of a {kind.__name__} is set")
    store_instance_attr(interp, obj, name, value)


def store_instance_attr(interp: Interpreter, obj: Any, name: str, value: Any) -> None:
    """object.__setattr__ (and that of nn.Module)."""
    found, _ = interp.lookup(type(obj), name)
    if found is not MISSING and (put := interp.python_method(type(found), "__set__")) is not None:
        descriptor = interp.environment.known(found, f"{type(obj).__name__}.{name}")
        interp.call(put, [descriptor, obj, value], {})
        return
    if isinstance(found, property):
        if found.fset is None:
            found.__set__(obj, value)  # raises
        interp.call(found.fset, [obj, value], {})
        return
    if found is not MISSING and _has_only(interp, found, "__delete__"):
        raise AttributeError("__set__")
    entry = interp.environment.owner_of_write(obj)
    if entry is not None:
        _check_place(interp, entry, name, found)
        if isinstance(obj, types.ModuleType):
            interp.store_item(obj.__dict__, name, value)
            return
        interp.attributes.clear()
        shadow = dict_shadow(interp, instance_dict(obj))
        if shadow is not None and not isinstance(found, types.MemberDescriptorType):
            _check_plain(obj, name, value)
            shadow[name] = value
        elif not _replaces_submodule(interp, obj, entry, name, value):
            if isinstance(obj, torch.nn.Module):
                _check_tables(interp, obj, entry, name)
            if is_registered(interp, obj, name, value):
                _check_registration(interp, obj, entry, name, value)
                note_registration(interp, obj, entry)
            interp.effects.write_attribute(obj, name, value)
        return
    if isinstance(obj, torch.nn.Module):
        if type(value) is TraceTensor and pristine.is_grad_enabled():
            raise Break(
                "LW111", f"a {type(obj).__name__} with parameters or buffers is built inside the region"
            )
        _SETATTR(obj, name, value)
    else:
        object.__setattr__(obj, name, value)
    interp.attributes.pop((id(obj), name), None)


def _check_place(interp: Interpreter, entry: Entry, name: str, found: Any) -> None:
    """
    Raises:
        Break: LW111: native code takes what is set, and may refuse it or make something else of it.
    """
    is_plain = found is MISSING or is_slot(found) or interp.lookup(type(found), "__set__")[0] is MISSING
    if name in ("__dict__", "__class__") or not is_plain:
        raise Break("LW111", f"{entry.name}.{name} is set")
    table = instance_dict(entry.value)
    if table is None and not is_slot(found):
        object.__setattr__(entry.value, name, None)  # raises
    if table is entry.value:
        raise Break("LW111", f"{entry.name}, which is its own __dict__, is written to")


def _check_tables(interp: Interpreter, obj: Any, entry: Entry, name: str) -> None:
    """
    Raises:
        Break: LW111: the region has changed what a table of the module has under the name: which of the two writes
            came last would not be known.
    """
    for kind in MODULE_TABLES:
        shadow = interp.environment.shadows.of_original.get(id(obj.__dict__.get(kind)))
        if shadow is not None and shadow.copy.get(name, MISSING) is not shadow.before.get(name, MISSING):
            raise Break("LW111", f"{entry.name}.{name} is set after it was written to {entry.name}.{kind}")


def _check_registration(interp: Interpreter, obj: Any, entry: Entry, name: str, value: Any) -> None:
    """
    Raises:
        Break: LW111: to put this value into a table of a module raises, or runs code of the program.
    """
    kind = interp.environment.python_type(interp.force(value))
    for table, taken in _TAKEN.items():
        if name in (obj.__dict__.get(table) or ()) and value is not None and not issubclass(kind, taken):
            raise Break("LW111", f"{entry.name}.{name} is set to a {kind.__name__}")
    for method, plain in _REGISTERING.items():
        if interp.lookup(type(obj), method)[0] is not plain:
            raise Break("LW111", f"{entry.name}.{name} is set by {method}() of the program")
    if any(guarded_hooks(interp, hooks) for hooks in _REGISTRATION_HOOKS):
        raise Break("LW111", f"{entry.name}.{name} is set under hooks for all modules")


def guarded_hooks(interp: Interpreter, name: str) -> dict[int, Any]:
    """A table of hooks for all modules, which hooks it has being guarded."""
    table: dict[str, Any] = torch_module.__dict__
    hooks: dict[int, Any] = table[name]
    shadow = dict_shadow(interp, table)
    if interp.effects.global_value(table, name) is not None or (
        shadow is not None and interp.environment.original(interp.force(shadow.get(name))) is not hooks
    ):
        raise Break("LW111", f"a module is called after {name} was replaced")
    check_hooks_are_current(interp, hooks, name)
    known = interp.environment.hooks.get(name)
    if known is not None:
        return known
    interp.guards.version(hooks, name)
    place = DictItem(interp.guards.version(table, torch_module.__name__), name)
    interp.guards.add(place, "keys", tuple(hooks), slow=True)
    interp.environment.hooks[name] = hooks
    return hooks


def _check_plain(obj: Any, name: str, value: Any) -> None:
    """
    Raises:
        Break: LW111: setting this attribute of a module does more than to put it into its `__dict__`.
    """
    if isinstance(obj, torch.nn.Module) and (
        isinstance(value, (torch.nn.Module, TraceTensor))
        or any(name in (obj.__dict__.get(kind) or ()) for kind in MODULE_TABLES)
    ):
        raise Break("LW111", f"{name} of a module is set after its __dict__ was read")


def _store_class_attr(interp: Interpreter, cls: type, name: str, value: Any) -> None:
    """cls.name = value, held back.

    Raises:
        Break: LW103 for anything but plain data under a plain name.
    """
    if cls.__flags__ & _IMMUTABLE:
        type.__setattr__(cls, name, value)  # raises
    setter, owner = interp.lookup(type(cls), "__setattr__")
    if isinstance(setter, types.FunctionType) and type(cls).__module__ != "enum":
        interp.call(setter, [cls, name, value], {})
        return
    if owner is not type and not isinstance(setter, types.FunctionType):
        raise Break("LW103", f"setting {cls.__name__}.{name}")
    of_meta, _ = interp.lookup(type(cls), name)
    if of_meta is not MISSING and interp.lookup(type(of_meta), "__set__")[0] is not MISSING:
        raise Break("LW103", f"setting {cls.__name__}.{name}, of which its metaclass has a descriptor")
    found, _ = interp.lookup(cls, name)
    is_data = not callable(value) and interp.lookup(type(value), "__get__")[0] is MISSING
    was_data = found is MISSING or interp.lookup(type(found), "__get__")[0] is MISSING
    if isinstance(setter, types.FunctionType) or name.startswith("__") or not (is_data and was_data):
        raise Break("LW103", f"setting {cls.__name__}.{name}")
    if id(mapping_behind(cls.__dict__)) in interp.environment.entries:
        raise Break("LW111", f"{cls.__name__}.{name} is set after its __dict__ was read")
    interp.environment.known(cls, cls.__qualname__)
    interp.effects.write_attribute(cls, name, value)
    interp.attributes.clear()


def _replaces_submodule(interp: Interpreter, obj: Any, entry: Entry, name: str, value: Any) -> bool:
    """A module set in place of another of an outside module is written to the (shadow of the) table that
    containers iterate over."""
    if not isinstance(obj, torch.nn.Module) or not isinstance(value, torch.nn.Module):
        return False
    items = obj.__dict__["_modules"]
    if name not in items or interp.effects.attribute(obj, name) is not None:
        return False
    interp.environment.known(items, f"{entry.name}._modules")[name] = value
    return True


def delete_attr(interp: Interpreter, obj: Any, name: str) -> None:
    """delattr(obj, name) in the region."""
    if type(obj) is TraceTensor:
        raise Break("LW106", f"the attribute {name!r} of a tensor is deleted")
    remover, owner = interp.lookup(type(obj), "__delattr__")
    if isinstance(remover, types.FunctionType) and remover is not _DELATTR:
        interp.call(remover, [obj, name], {})
        return
    if type(obj) in (types.CellType, Generator) or (
        owner not in GENERIC and remover is not _DELATTR and owner not in (threading.local, type)
    ):
        raise Break("LW111", f"an attribute of a {type(obj).__name__} is deleted")
    delete_instance_attr(interp, obj, name)


def delete_instance_attr(interp: Interpreter, obj: Any, name: str) -> None:
    """object.__delattr__."""
    if isinstance(obj, type):
        raise Break("LW103", f"deleting {obj.__name__}.{name}")
    interp.attributes.pop((id(obj), name), None)
    found, _ = interp.lookup(type(obj), name)
    if found is not MISSING and (remover := interp.python_method(type(found), "__delete__")) is not None:
        interp.call(remover, [interp.environment.known(found, f"{type(obj).__name__}.{name}"), obj], {})
        return
    if isinstance(found, property):
        if found.fdel is None:
            found.__delete__(obj)  # raises
        interp.call(found.fdel, [obj], {})
        return
    if found is not MISSING and _has_only(interp, found, "__set__"):
        raise AttributeError("__delete__")
    entry = interp.environment.owner_of_write(obj)
    if entry is None:
        object.__delattr__(obj, name)
        return
    _check_place(interp, entry, name, found)
    if isinstance(obj, types.ModuleType):
        table = obj.__dict__
        if load_item(interp, table, Known(table, obj.__name__), name, name, slow=True) is MISSING:
            raise no_attribute(obj, name)
        interp.delete_item(table, name)
        return
    shadow = dict_shadow(interp, instance_dict(obj))
    if shadow is not None and name in shadow:
        del shadow[name]
        interp.attributes.clear()
        return
    if is_slot(found):
        is_empty = True
        with contextlib.suppress(AttributeError):
            load_instance_attr(interp, obj, name)
            is_empty = False
        if is_empty:
            raise AttributeError(name)  # all that native code says
    elif read_own(interp, obj, name, entry) is MISSING:
        if not isinstance(obj, torch.nn.Module):
            raise no_attribute(obj, name)
        load_registered(interp, obj, name)  # likewise
        _check_tables(interp, obj, entry, name)
        note_registration(interp, obj, entry)
    interp.effects.delete_attribute(obj, name)
    interp.attributes.clear()


def _has_only(interp: Interpreter, found: Any, name: str) -> bool:
    """Whether a class attribute is a data descriptor by this one of the two methods that make one."""
    there = [n for n in ("__set__", "__delete__") if interp.lookup(type(found), n)[0] is not MISSING]
    return there == [name]
