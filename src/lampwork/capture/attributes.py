"""getattr, setattr and delattr of the interpreted program, step by step as `object.__getattribute__` does them."""

from __future__ import annotations

import enum
import functools
import types
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.breaks import Break
from lampwork.capture.effects import Written
from lampwork.capture.guards import class_dict
from lampwork.capture.outside import Entry
from lampwork.capture.region import Attr, DictItem, InstanceDict, Known, Source
from lampwork.capture.symbolic import fixed
from lampwork.capture.values import CONSTANTS
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

MISSING: Any = object()

# Types whose attributes native getattr may read: their attributes are methods or immutable.
_NATIVE_TYPES: frozenset[type] = CONSTANTS | {
    list,
    dict,
    tuple,
    set,
    frozenset,
    slice,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.GenericAlias,
    types.CodeType,
}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
# Reading these from a tensor of the region would need autograd's or the outside tensor's own state.
_TENSOR_STATE = frozenset(
    {"grad", "_grad", "grad_fn", "_backward_hooks", "_version", "_post_accumulate_grad_hooks"}
)


def lookup_type(cls: type, name: str) -> tuple[Any, type]:
    """The class attribute `name` along the MRO, unbound, and the class that has it; (MISSING, cls) if none."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found, base
    return MISSING, cls


def python_method(kind: type, name: str) -> types.FunctionType | None:
    """The Python function that implements a dunder of a class; None if it is native or missing. Symbolic numbers are
    numbers: that theirs are Python is torch's business."""
    if kind in _SYMBOLIC:
        return None
    found, _ = lookup_type(kind, name)
    return found if isinstance(found, types.FunctionType) else None


def load_attr(interp: Interpreter, obj: Any, name: str) -> Any:
    """getattr(obj, name) in the region.

    Raises:
        AttributeError: there is none.
        Break: the attribute needs data, autograd state or native code with effects.
    """
    key = (id(obj), name)
    if not interp.effects.attributes:
        found = interp.attributes.get(key, MISSING)
        if found is not MISSING:
            return found
    kind = type(obj)
    if kind is TraceTensor:
        return _load_tensor_attr(interp, obj, name)
    if kind is torch.SymInt or kind is torch.SymFloat:
        return getattr(fixed(obj), name)
    if kind in _NATIVE_TYPES:
        return getattr(obj, name)
    if isinstance(obj, types.ModuleType):
        value = _load_python_module_attr(interp, obj, name)
    elif isinstance(obj, type):
        value = _load_class_attr(interp, obj, name)
    elif kind is super:
        return _load_super_attr(interp, obj, name)
    elif kind is types.FunctionType:
        return _load_function_attr(interp, obj, name)
    elif isinstance(obj, enum.Enum):
        return getattr(obj, name)
    elif kind is types.CellType:
        return interp.load_cell(obj, name) if name == "cell_contents" else getattr(obj, name)
    elif kind is types.MethodType:
        return (
            getattr(obj, name) if name in ("__func__", "__self__") else load_attr(interp, obj.__func__, name)
        )
    else:
        getter, _ = lookup_type(kind, "__getattribute__")
        if isinstance(getter, types.FunctionType):
            try:
                return interp.call(getter, [obj, name], {})
            except AttributeError:
                fallback, _ = lookup_type(kind, "__getattr__")
                if fallback is MISSING:
                    raise
                return interp.call(fallback, [obj, name], {})
        return load_instance_attr(interp, obj, name)
    if not interp.effects.attributes:
        interp.attributes[key] = value
        interp.kept.append(obj)
    return value


def load_instance_attr(interp: Interpreter, obj: Any, name: str) -> Any:
    """object.__getattribute__, then `__getattr__` of the type, in this order."""
    kind = type(obj)
    entry = interp.outside.entry(obj)
    found, owner = lookup_type(kind, name)
    in_slot = isinstance(found, types.MemberDescriptorType)
    if found is not MISSING and _is_data_descriptor(found) and not in_slot:
        return _get_descriptor(interp, found, owner, obj, name, entry)
    if entry is not None:
        written = interp.effects.attribute(obj, name)
        if written is not None:
            if written.deleted:
                raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
            return written.value
    if in_slot:
        if entry is not None and not hasattr(obj, name):
            interp.guards.add(entry.source, "missing_attr", name)
        return _get_descriptor(interp, found, owner, obj, name, entry)
    table = _instance_dict(obj)
    shadow = _dict_shadow(interp, table)
    if shadow is not None:
        if name in shadow:
            return shadow[name]
        table = None
    if table is not None and name in table:
        if entry is None:
            return table[name]
        if name in _MODULE_TABLES and isinstance(obj, torch.nn.Module):
            _check_tables_are_current(interp, obj, entry)
        value = _read_item(interp, entry, table, name)
        if entry.known and not interp.effects.attributes:
            interp.attributes[id(obj), name] = value
        return value
    if entry is not None and table is not None:
        _guard_missing(interp, entry, table, name)
    held = _written_on_class(interp, kind, name)
    if held is not None:
        return held.value
    if found is not MISSING:
        value = _get_descriptor(interp, found, owner, obj, name, entry)
        if entry is not None and entry.known and type(value) is types.MethodType:
            interp.attributes[id(obj), name] = value
        return value
    if isinstance(obj, torch.nn.Module):
        table = obj.__dict__
        if entry is None:
            return torch.nn.Module.__getattr__(obj, name)
        value = _load_module_item(interp, obj, table, entry, name)
        if value is not MISSING:
            return value
    fallback, _ = lookup_type(kind, "__getattr__")
    if fallback is not MISSING and fallback is not torch.nn.Module.__getattr__:
        return interp.call(fallback, [obj, name], {})
    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")


def _check_tables_are_current(interp: Interpreter, obj: torch.nn.Module, entry: Entry) -> None:
    """
    Raises:
        Break: LW111: attributes held back belong into the tables of a module that are being read.
    """
    _, written = interp.effects.attributes.get(id(obj), (obj, {}))
    for name, held in written.items():
        registered = isinstance(held.value, torch.nn.Module | torch.nn.Parameter)
        if registered or any(name in (obj.__dict__.get(kind) or ()) for kind in _MODULE_TABLES):
            raise Break("LW111", f"a table of {entry.name} is read after its {name} was set")


def has_attr(interp: Interpreter, obj: Any, name: str) -> bool:
    """hasattr(obj, name) in the region."""
    try:
        load_attr(interp, obj, name)
    except AttributeError:
        return False
    return True


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
    setter, _ = lookup_type(kind, "__setattr__")
    if isinstance(setter, types.FunctionType) and setter is not torch.nn.Module.__setattr__:
        interp.call(setter, [obj, name, value], {})
        return
    store_instance_attr(interp, obj, name, value)


def store_instance_attr(interp: Interpreter, obj: Any, name: str, value: Any) -> None:
    """object.__setattr__ (and that of nn.Module)."""
    found, _ = lookup_type(type(obj), name)
    if isinstance(found, property):
        if found.fset is None:
            raise AttributeError(f"property {name!r} of {type(obj).__name__!r} object has no setter")
        interp.call(found.fset, [obj, value], {})
        return
    if found is not MISSING and isinstance(getattr(type(found), "__set__", None), types.FunctionType):
        interp.call(type(found).__set__, [found, obj, value], {})
        return
    entry = interp.outside.entry(obj)
    if entry is not None:
        if name in ("__dict__", "__class__"):
            raise Break("LW111", f"{entry.name}.{name} is set")
        interp.attributes.clear()
        shadow = _dict_shadow(interp, _instance_dict(obj))
        if shadow is not None and not isinstance(found, types.MemberDescriptorType):
            _check_plain(obj, name, value)
            shadow[name] = value
        elif not _replaces_submodule(interp, obj, entry, name, value):
            interp.effects.write_attribute(obj, name, value)
        return
    if isinstance(obj, torch.nn.Module):
        if type(value) is TraceTensor and torch.is_grad_enabled():
            raise Break(
                "LW111", f"a {type(obj).__name__} with parameters or buffers is built inside the region"
            )
        torch.nn.Module.__setattr__(obj, name, value)
    else:
        object.__setattr__(obj, name, value)
    interp.attributes.pop((id(obj), name), None)


def _check_plain(obj: Any, name: str, value: Any) -> None:
    """
    Raises:
        Break: LW111: setting this attribute of a module does more than to put it into its `__dict__`.
    """
    if isinstance(obj, torch.nn.Module) and (
        isinstance(value, (torch.nn.Module, TraceTensor))
        or any(name in (obj.__dict__.get(kind) or ()) for kind in _MODULE_TABLES)
    ):
        raise Break("LW111", f"{name} of a module is set after its __dict__ was read")


def _store_class_attr(interp: Interpreter, cls: type, name: str, value: Any) -> None:
    """cls.name = value, held back.

    Raises:
        Break: LW103 for anything but plain data under a plain name.
    """
    setter, _ = lookup_type(type(cls), "__setattr__")
    if isinstance(setter, types.FunctionType) and type(cls).__module__ != "enum":
        interp.call(setter, [cls, name, value], {})
        return
    found, _ = lookup_type(cls, name)
    is_data = not callable(value) and not hasattr(type(value), "__get__")
    was_data = found is MISSING or not hasattr(type(found), "__get__")
    if isinstance(setter, types.FunctionType) or name.startswith("__") or not (is_data and was_data):
        raise Break("LW103", f"setting {cls.__name__}.{name}")
    interp.outside.known(cls, cls.__qualname__)
    interp.effects.write_attribute(cls, name, value)
    interp.attributes.clear()


def _written_on_class(interp: Interpreter, cls: type, name: str) -> Written | None:
    """What the region wrote to this attribute of a class or of one of its bases, if that is what a read finds."""
    if not interp.effects.attributes:
        return None
    for base in cls.__mro__:
        written = interp.effects.attribute(base, name)
        if written is not None:
            return written
        if name in base.__dict__:
            return None
    return None


def _replaces_submodule(interp: Interpreter, obj: Any, entry: Entry, name: str, value: Any) -> bool:
    """A module set in place of another of an outside module is written to the (shadow of the) table that
    containers iterate over."""
    if not isinstance(obj, torch.nn.Module) or not isinstance(value, torch.nn.Module):
        return False
    items = obj.__dict__["_modules"]
    if name not in items or interp.effects.attribute(obj, name) is not None:
        return False
    interp.outside.known(items, f"{entry.name}._modules")[name] = value
    return True


def delete_attr(interp: Interpreter, obj: Any, name: str) -> None:
    """delattr(obj, name) in the region."""
    remover, _ = lookup_type(type(obj), "__delattr__")
    if isinstance(remover, types.FunctionType) and remover is not torch.nn.Module.__delattr__:
        interp.call(remover, [obj, name], {})
        return
    delete_instance_attr(interp, obj, name)


def delete_instance_attr(interp: Interpreter, obj: Any, name: str) -> None:
    """object.__delattr__."""
    if isinstance(obj, type):
        raise Break("LW103", f"deleting {obj.__name__}.{name}")
    interp.attributes.pop((id(obj), name), None)
    found, _ = lookup_type(type(obj), name)
    if isinstance(found, property):
        if found.fdel is None:
            raise AttributeError(f"property {name!r} of {type(obj).__name__!r} object has no deleter")
        interp.call(found.fdel, [obj], {})
        return
    if found is not MISSING and (remover := python_method(type(found), "__delete__")) is not None:
        interp.call(remover, [found, obj], {})
        return
    if interp.outside.entry(obj) is None:
        object.__delattr__(obj, name)
        return
    shadow = _dict_shadow(interp, _instance_dict(obj))
    if shadow is not None and name in shadow:
        del shadow[name]
        interp.attributes.clear()
        return
    load_instance_attr(interp, obj, name)
    interp.effects.delete_attribute(obj, name)
    interp.attributes.clear()


# --- instances --------------------------------------------------------------------------------------------------------


def _instance_dict(obj: Any) -> dict[str, Any] | None:
    try:
        return cast(dict[str, Any], object.__getattribute__(obj, "__dict__"))
    except AttributeError:
        return None


def _dict_shadow(interp: Interpreter, table: dict[str, Any] | None) -> dict[str, Any] | None:
    """What stands for an instance's `__dict__` once the region has looked at all of it."""
    found = interp.outside.shadow_of.get(id(table))
    return None if found is None else found.copy


def read_state(interp: Interpreter, obj: Any) -> dict[str, Any]:
    """All of an object's instance attributes, each as the region sees it."""
    table = _instance_dict(obj) or {}
    entry = interp.outside.entry(obj)
    if entry is None:
        return dict(table)
    shadow = _dict_shadow(interp, table)
    if shadow is not None:
        return dict(shadow)
    if id(obj) in interp.effects.attributes:
        raise Break("LW111", f"{entry.name} is copied after attributes were written")
    interp.guards.add(_table_source(interp, entry, table), "keys", tuple(table), slow=entry.known)
    return {name: _read_item(interp, entry, table, name) for name in list(table)}


def _is_data_descriptor(found: Any) -> bool:
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def _table_source(interp: Interpreter, entry: Entry, table: dict[str, Any]) -> Source:
    """The instance dict of an outside object; of a known object it is known too, and has a version tag."""
    if not entry.known:
        return InstanceDict(entry.source)
    name = f"{entry.name}.__dict__"
    interp.guards.version(table, name)
    return Known(table, name)


def _read_item(interp: Interpreter, entry: Entry, table: dict[str, Any], name: str) -> Any:
    source = DictItem(_table_source(interp, entry, table), name)
    return interp.outside.read(table[name], source, f"{entry.name}.{name}", slow=entry.known)


def _guard_missing(interp: Interpreter, entry: Entry, table: dict[str, Any], name: str) -> None:
    interp.guards.add(_table_source(interp, entry, table), "missing_key", name, slow=entry.known)


def _load_module_item(
    interp: Interpreter, obj: torch.nn.Module, table: dict[str, Any], entry: Entry, name: str
) -> Any:
    """A parameter, buffer or submodule: what nn.Module.__getattr__ finds."""
    for kind in _MODULE_TABLES:
        items = cast("dict[str, Any] | None", table.get(kind))
        if items is None:
            continue
        shadow = interp.outside.shadow_of.get(id(items))
        if shadow is not None and name in shadow.copy:
            return shadow.copy[name]
        items_name = f"{entry.name}.{kind}"
        interp.guards.version(items, items_name)
        if name in items:
            value = interp.outside.read(
                items[name], DictItem(Known(items, items_name), name), f"{entry.name}.{name}", slow=True
            )
            if not interp.effects.attributes:
                interp.attributes[id(obj), name] = value
            return value
        interp.guards.add(Known(items, items_name), "missing_key", name, slow=True)
    return MISSING


def _get_descriptor(
    interp: Interpreter, found: Any, owner: type, obj: Any, name: str, entry: Entry | None
) -> Any:
    """What a class attribute gives when it is read through an instance."""
    if isinstance(found, types.FunctionType):
        _guard_class(interp, owner, name, found)
        return types.MethodType(found, obj)
    if isinstance(found, property):
        _guard_class(interp, owner, name, found)
        if found.fget is None:
            raise AttributeError(f"property {name!r} of {type(obj).__name__!r} object has no getter")
        return interp.call(found.fget, [obj], {})
    if isinstance(found, classmethod):
        return types.MethodType(cast(Any, found).__func__, type(obj))
    if isinstance(found, staticmethod):
        return cast(Any, found).__func__
    if type(found) is functools.cached_property:
        _guard_class(interp, owner, name, found)
        value = interp.call(found.func, [obj], {})
        if entry is None:
            obj.__dict__[found.attrname] = value
        else:
            store_instance_attr(interp, obj, cast(str, found.attrname), value)
        return value
    getter = getattr(type(found), "__get__", None)
    if isinstance(getter, types.FunctionType):
        return interp.call(getter, [found, obj, type(obj)], {})
    if getter is not None:
        value = getattr(obj, name)
        if entry is None or isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return value
        if isinstance(obj, tuple):
            return value  # the items of a tuple were read with it
        if name == "__dict__":
            return _whole_dict(interp, entry, value)
        if name == "__class__":
            return interp.outside.python_type(obj)
        return interp.outside.read(value, Attr(entry.source, name), f"{entry.name}.{name}")
    _guard_class(interp, owner, name, found)
    return interp.outside.known(found, f"{owner.__name__}.{name}")


def _whole_dict(interp: Interpreter, entry: Entry, table: dict[str, Any]) -> Any:
    """An outside object's `__dict__`. What the region wrote to attributes so far goes over into its shadow."""
    shadow = interp.outside.shadow_of.get(id(table))
    if shadow is not None:
        return shadow.copy
    _, written = interp.effects.attributes.get(id(entry.value), (None, {}))
    if written and isinstance(entry.value, (torch.nn.Module, type)):
        raise Break("LW111", f"{entry.name}.__dict__ is read after attributes were written")
    for key in [key for key in interp.attributes if key[0] == id(entry.value)]:
        del interp.attributes[key]
    name = f"{entry.name}.__dict__"
    if entry.known:
        copy = interp.outside.known(table, name)
    else:
        copy = interp.outside.read(table, _table_source(interp, entry, table), name)
    in_slots = {
        key
        for key in written
        if isinstance(lookup_type(type(entry.value), key)[0], types.MemberDescriptorType)
    }
    for key in [key for key in written if key not in in_slots]:
        held = written.pop(key)
        if held.deleted or held.anew:
            copy.pop(key, None)
        if not held.deleted:
            copy[key] = held.value
    return copy


def _guard_class(interp: Interpreter, owner: type, name: str, found: Any) -> None:
    """Methods and class attributes of the user's and libraries' classes may be patched; torch's own are not guarded."""
    if owner.__module__.partition(".")[0] in ("torch", "builtins", "collections"):
        return
    table = class_dict(owner)
    label = f"{owner.__qualname__}.__dict__"
    interp.guards.version(table, label)
    kind = "equals" if type(found) in CONSTANTS else "is"
    interp.guards.add(DictItem(Known(table, label), name), kind, found, slow=True)


# --- other kinds of objects -------------------------------------------------------------------------------------------


def _load_tensor_attr(interp: Interpreter, tensor: TraceTensor, name: str) -> Any:
    lifted = interp.outside.of_trace.get(id(tensor))
    if name == "__class__":
        return interp.outside.python_type(tensor)
    if name == "data":
        return tensor.detach()
    if name == "grad" and lifted is not None and lifted.real.is_leaf and lifted.real.grad is None:
        interp.guards.add(Attr(lifted.source, name), "is", None)
        return None
    if name in _TENSOR_STATE and lifted is not None and lifted.real.requires_grad:
        raise Break("LW116", f"reading .{name} of a tensor")
    if lifted is not None and name in lifted.real.__dict__:
        return interp.outside.read(
            lifted.real.__dict__[name], Attr(lifted.source, name), f"{lifted.name}.{name}"
        )
    if not hasattr(torch.Tensor, name):
        if lifted is not None:
            interp.guards.add(lifted.source, "missing_attr", name, slow=lifted.bound)
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")
    return getattr(tensor, name)


def _load_python_module_attr(interp: Interpreter, module: types.ModuleType, name: str) -> Any:
    table = module.__dict__
    if name not in table:
        # A lazy module imports on first use, which changes nothing that can be seen.
        return interp.outside.known(getattr(module, name), f"{module.__name__}.{name}")
    label = f"globals of {module.__name__}"
    written = interp.effects.global_value(table, name)
    if written is not None:
        return written.value
    if module.__name__.partition(".")[0] == "torch" and type(table[name]) not in CONSTANTS:
        return interp.outside.known(table[name], f"{module.__name__}.{name}")
    interp.guards.version(table, label)
    return interp.outside.read(
        table[name], DictItem(Known(table, label), name), f"{module.__name__}.{name}", slow=True
    )


def _load_class_attr(interp: Interpreter, cls: type, name: str) -> Any:
    held = _written_on_class(interp, cls, name)
    if held is not None:
        return held.value
    found, owner = lookup_type(cls, name)
    meta, _ = lookup_type(type(cls), name)
    if meta is not MISSING and _is_data_descriptor(meta) and name != "__dict__":
        value = getattr(cls, name)
        return (
            value
            if isinstance(value, (tuple, str))
            else interp.outside.known(value, f"{cls.__name__}.{name}")
        )
    if isinstance(found, (types.FunctionType, classmethod, staticmethod, property)):
        if isinstance(found, classmethod):
            return types.MethodType(cast(Any, found).__func__, cls)
        _guard_class(interp, owner, name, found)
        return cast(Any, found).__func__ if isinstance(found, staticmethod) else found
    value = getattr(cls, name)
    if found is value:
        _guard_class(interp, owner, name, found)
    if isinstance(value, types.MethodType) and isinstance(value.__self__, type):
        return value
    return interp.outside.known(value, f"{cls.__name__}.{name}")


def _load_super_attr(interp: Interpreter, obj: super, name: str) -> Any:
    view = cast(Any, obj)
    start, receiver = view.__thisclass__, view.__self__
    mro = view.__self_class__.__mro__
    for base in mro[mro.index(start) + 1 :]:
        found = base.__dict__.get(name, MISSING)
        if found is MISSING:
            continue
        if isinstance(found, (types.FunctionType, property, classmethod, staticmethod)):
            if receiver is view.__self_class__ and isinstance(found, types.FunctionType):
                return found
            return _get_descriptor(interp, found, base, receiver, name, interp.outside.entry(receiver))
        break
    return getattr(obj, name)


def _load_function_attr(interp: Interpreter, function: types.FunctionType, name: str) -> Any:
    if id(function) in interp.inside_functions:
        return getattr(function, name)
    if name in function.__dict__:
        return interp.outside.known(function.__dict__[name], f"{function.__qualname__}.{name}")
    value = getattr(function, name)
    if name in ("__defaults__", "__kwdefaults__", "__globals__", "__dict__", "__closure__"):
        return interp.outside.known(value, f"{function.__qualname__}.{name}")
    return value
