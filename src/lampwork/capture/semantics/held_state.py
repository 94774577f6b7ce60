"""What objects and namespaces hold, name by name: instance dicts, the tables of modules, what the region wrote."""

from __future__ import annotations

import threading
import types
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Attr, DictItem, InstanceDict, Known, Source
from lampwork.capture.model.values import CONSTANTS
from lampwork.capture.state.classes import MISSING
from lampwork.capture.state.effects import Written, instance_dict, is_changed
from lampwork.capture.state.entries import Entry

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

MODULE_TABLES = ("_parameters", "_buffers", "_modules")
# What nn.Module does when nobody has patched it.
GETATTR: Any = vars(torch.nn.Module).get("__getattr__")


def is_registered(interp: Interpreter, obj: Any, name: str, value: Any) -> bool:
    """Whether setting an attribute puts the value into one of the tables of a module, where `__getattr__` finds it,
    and not into its `__dict__`."""
    if not isinstance(obj, torch.nn.Module):
        return False
    kind = interp.environment.python_type(interp.force(value))
    if issubclass(kind, (torch.nn.Module, torch.nn.Parameter, torch.nn.Buffer)):
        return True
    return any(name in (obj.__dict__.get(table) or ()) for table in MODULE_TABLES)


def check_tables_are_current(interp: Interpreter, obj: torch.nn.Module, entry: Entry) -> None:
    """
    Raises:
        Break: LW111: attributes held back belong into the tables of a module that are being read.
    """
    for kind in MODULE_TABLES:
        _check_is_not_shared(interp, entry, obj.__dict__.get(kind))
    _, written = interp.effects.attributes.get(id(entry.value), (obj, {}))
    for name, held in written.items():
        if is_registered(interp, obj, name, held.value):
            raise Break("LW111", f"a table of {entry.name} is read after its {name} was set")


def check_tables_are_original(interp: Interpreter, module: torch.nn.Module) -> None:
    """
    Raises:
        Break: LW111: the region has changed which parameters, buffers and submodules an outside module has.
    """
    own = module.__dict__
    shadow = dict_shadow(interp, own)
    _, written = interp.effects.attributes.get(id(module), (module, {}))
    for name, held in written.items():
        if name in MODULE_TABLES or is_registered(interp, module, name, held.value):
            raise Break("LW111", f"a {type(module).__name__} is walked after its {name} was set")
    for kind in MODULE_TABLES:
        items: Any = own.get(kind)
        inner = interp.environment.shadows.of_original.get(id(items))
        is_replaced = shadow is not None and interp.environment.original(shadow.get(kind)) is not items
        if is_replaced or (inner is not None and is_changed(inner)):
            raise Break("LW111", f"a {type(module).__name__} is walked after its {kind} were changed")


def note_registration(interp: Interpreter, obj: torch.nn.Module, entry: Entry) -> None:
    """Note that a write that is held back belongs into one of the tables of a module."""
    for kind in MODULE_TABLES:
        items = obj.__dict__.get(kind)
        _check_is_not_shared(interp, entry, items)
        interp.effects.registering.setdefault(id(items), entry.value)


def _check_is_not_shared(interp: Interpreter, entry: Entry, items: Any) -> None:
    """
    Raises:
        Break: LW111: a table is another module's, too, of which writes to it are held back.
    """
    if interp.effects.registering.get(id(items), entry.value) is not entry.value:
        raise Break("LW111", f"{entry.name} has a table of another module, which was written to,")


def check_dict_is_not_shared(interp: Interpreter, entry: Entry, table: dict[str, Any] | None) -> None:
    """
    Raises:
        Break: LW111: an instance dict is another object's, too, of which writes to it are held back.
    """
    if (
        table is not None
        and id(table) in interp.environment.shadows.pending
        and id(entry.value) not in interp.effects.attributes
    ):
        raise Break("LW111", f"{entry.name} has the __dict__ of another object, which was written to,")


def held_table(interp: Interpreter, entry: Entry, table: dict[str, Any], name: str) -> Any:
    """The table that an outside module has for good under a name, where the region has put no other.

    Raises:
        Break: LW111: the region has.
        KeyError: there is none.
    """
    written = interp.effects.written_to(entry.value, name)
    shadow = dict_shadow(interp, table)
    if written is not None or (
        shadow is not None
        and interp.environment.original(interp.force(shadow.get(name))) is not table.get(name)
    ):
        raise Break("LW111", f"{entry.name} is used after its {name} was replaced")
    return table[name]


def check_hooks_are_current(interp: Interpreter, hooks: dict[int, Any], name: str) -> None:
    """
    Raises:
        Break: LW111: the region has changed which hooks there are.
    """
    shadow = dict_shadow(interp, cast("dict[str, Any]", hooks))
    if shadow is not None and list(shadow.items()) != list(hooks.items()):
        raise Break("LW111", f"a module is called after {name} was changed")


def written_on_class(interp: Interpreter, cls: type, name: str) -> Written | None:
    """What the region wrote to this attribute of a class or of one of its bases, if that is what a read finds."""
    if not interp.effects.on_classes:
        return None
    for base in cls.__mro__:
        written = interp.effects.attribute(base, name)
        if written is not None:
            return written
        if name in base.__dict__:
            return None
    return None


def dict_shadow(interp: Interpreter, table: dict[str, Any] | None) -> dict[str, Any] | None:
    """What stands for an instance's `__dict__` once the region has looked at all of it."""
    found = interp.environment.shadows.of_original.get(id(table))
    return None if found is None else found.copy


def read_state(interp: Interpreter, obj: Any) -> dict[str, Any]:
    """All of an object's instance attributes, each as the region sees it."""
    table = instance_dict(obj)
    entry = interp.environment.owner(obj)
    if table is None:
        return {}
    if entry is None:
        return dict(table)
    shadow = dict_shadow(interp, table)
    if shadow is not None:
        return dict(shadow)
    check_dict_is_not_shared(interp, entry, table)
    if id(entry.value) in interp.effects.attributes:
        raise Break("LW111", f"{entry.name} is copied after attributes were written")
    interp.guards.add(table_source(interp, entry, table), "keys", tuple(table), slow=entry.known)
    return {name: read_item(interp, entry, table, name) for name in list(table)}


def load_item(
    interp: Interpreter, table: dict[str, Any], source: Known, name: str, label: str, *, slow: bool
) -> Any:
    """What a known namespace holds under a name, guarded, be it from outside or written by the region; MISSING if
    nothing. `slow`: its version tag says whether it has changed."""
    shadow = dict_shadow(interp, table)
    if shadow is not None:
        return shadow.get(name, MISSING)
    held = interp.effects.global_value(table, name)
    if held is not None:
        return MISSING if held.deleted else held.value
    if slow:
        interp.guards.version(table, source.name)
    if name not in table:
        interp.guards.add(source, "missing_key", name, slow=slow)
        return MISSING
    value, place = table[name], DictItem(source, name)
    if slow or type(value) in CONSTANTS or interp.environment.is_state(value, place):
        return interp.environment.read(value, place, label, slow=slow)
    interp.guards.add(place, "is", value)
    return interp.environment.known(value, label)


def read_own(interp: Interpreter, obj: Any, name: str, entry: Entry | None) -> Any:
    """What an object has under a name in its `__dict__`, guarded, whatever its class has; MISSING if nothing."""
    if entry is not None:
        written = interp.effects.written_to(entry.value, name)
        if written is not None:
            is_elsewhere = written.deleted or is_registered(interp, obj, name, written.value)
            return MISSING if is_elsewhere else written.value
    # A shadow stands for the items of a container; its attributes are those of the original.
    table = instance_dict(obj if entry is None else entry.value)
    shadow = dict_shadow(interp, table)
    if shadow is not None:
        return shadow.get(name, MISSING)
    if table is None:
        return MISSING
    if entry is None:
        return table.get(name, MISSING)
    check_dict_is_not_shared(interp, entry, table)
    if name not in table:
        guard_missing(interp, entry, table, name)
        return MISSING
    if name in MODULE_TABLES and isinstance(obj, torch.nn.Module):
        check_tables_are_current(interp, obj, entry)
    return read_item(interp, entry, table, name)


def table_source(interp: Interpreter, entry: Entry, table: dict[str, Any]) -> Source:
    """The instance dict of an outside object; of a known object it is known too, and has a version tag."""
    found = interp.environment.tables.get(id(entry.value))
    if found is None or found.value is not table:
        if isinstance(entry.value, threading.local):
            return Attr(entry.source, "__dict__")  # of the calling thread
        if not entry.known:
            return InstanceDict(entry.source)
        found = interp.guards.version(table, f"{entry.name}.__dict__")
        # Both the class and the dict of an object can be replaced.
        interp.guards.add(entry.source, "type", type(entry.value), slow=True)
        interp.guards.add(InstanceDict(entry.source), "is", table, slow=True)
        interp.environment.tables[id(entry.value)] = found
    return found


def read_item(interp: Interpreter, entry: Entry, table: dict[str, Any], name: str) -> Any:
    source = DictItem(table_source(interp, entry, table), name)
    return interp.environment.read(table[name], source, f"{entry.name}.{name}", slow=entry.known)


def guard_missing(interp: Interpreter, entry: Entry, table: dict[str, Any], name: str) -> None:
    interp.guards.add(table_source(interp, entry, table), "missing_key", name, slow=entry.known)


def load_registered(interp: Interpreter, obj: torch.nn.Module, name: str) -> Any:
    """nn.Module.__getattr__(obj, name): a parameter, buffer or submodule.

    Raises:
        AttributeError: there is none.
    """
    entry = interp.environment.owner(obj)
    if entry is None:
        return GETATTR(obj, name)
    table = obj.__dict__
    check_dict_is_not_shared(interp, entry, table)
    written = interp.effects.written_to(entry.value, name)
    if written is not None and is_registered(interp, obj, name, written.value):
        if written.deleted:
            raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}")
        return written.value
    for kind in MODULE_TABLES:
        registered = _registry(interp, entry, table, kind)
        if registered is None:
            continue
        items: dict[str, Any] = registered.value
        shadow = dict_shadow(interp, items)
        if shadow is not None:
            if name in shadow:
                return shadow[name]
            continue  # which names there are was guarded for the shadow
        if name in items:
            place = DictItem(registered, name)
            return interp.environment.read(items[name], place, f"{entry.name}.{name}", slow=True)
        interp.guards.add(registered, "missing_key", name, slow=True)
    raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}")


def _registry(interp: Interpreter, entry: Entry, table: dict[str, Any], kind: str) -> Known | None:
    """One of the tables of a module, of which is guarded that it is this one; None if the module has none."""
    items: dict[str, Any] | None = held_table(interp, entry, table, kind) if kind in table else None
    if interp.effects.registering:
        _check_is_not_shared(interp, entry, items)
    found = interp.environment.registries.get((id(entry.value), kind))
    if found is None:
        tables = table_source(interp, entry, table)
        if items is None:
            interp.guards.add(tables, "missing_key", kind, slow=entry.known)
            return None
        interp.guards.add(DictItem(tables, kind), "is", items, slow=entry.known)
        found = interp.guards.version(items, f"{entry.name}.{kind}")
        interp.environment.registries[id(entry.value), kind] = found
    return found


def whole_dict(interp: Interpreter, entry: Entry, obj: Any, table: dict[str, Any]) -> Any:
    """An outside object's `__dict__`. What the region wrote to attributes so far goes over into its shadow."""
    shadow = interp.environment.shadows.of_original.get(id(table))
    if shadow is not None:
        return shadow.copy
    if not isinstance(entry.value, types.ModuleType):
        check_dict_is_not_shared(interp, entry, table)
    _, written = interp.effects.attributes.get(id(entry.value), (None, {}))
    if written and isinstance(entry.value, (torch.nn.Module, type)):
        raise Break("LW111", f"{entry.name}.__dict__ is read after attributes were written")
    for key in [key for key in interp.attributes if key[0] == id(obj)]:
        del interp.attributes[key]
    interp.environment.shadows.pending.discard(id(table))
    of_module = interp.effects.take_globals(table)
    name = f"{entry.name}.__dict__"
    source = table_source(interp, entry, table)
    if entry.known and not isinstance(entry.value, threading.local):
        copy = interp.environment.known(table, name)
    else:
        copy = interp.environment.read(table, source, name)
    in_slots = {
        key
        for key in written
        if isinstance(interp.lookup(type(entry.value), key)[0], types.MemberDescriptorType)
    }
    of_object = [(key, written.pop(key)) for key in list(written) if key not in in_slots]
    for key, held in (*of_object, *of_module):
        if held.deleted or held.anew:
            copy.pop(key, None)
        if not held.deleted:
            copy[key] = held.value
    return copy
