"""What the region reads from the world outside of it.

Each outside object gets a *source* (how a later call finds it) and guards (what must hold for the region to be right):

* a constant (number, string, dtype, ...) is guarded by value;
* a tensor becomes a trace tensor, one per outside tensor;
* a plain container (list, dict, tuple, set) becomes a *shadow*: a copy that the region reads and writes in its place;
* one of a subclass gets a *stand-in*, a copy of the same class that the region reads in its place;
* any other object stays itself, and what is read from it is guarded as it is read.

An object reached only through known objects (the module tree, globals, classes) is guarded by identity under the
version tags of the dicts on the way, and is then itself *known*: its own guards start at it.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable
from typing import Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Attr, DictItem, Item, Known, Result, Slot, Source
from lampwork.capture.model.values import CONSTANTS, IDENTITIES, Appended, Generator, Lazy, is_constant
from lampwork.capture.state.births import Births
from lampwork.capture.state.classes import Classes, is_immutable
from lampwork.capture.state.distributed import Distributed, LiftedDTensor
from lampwork.capture.state.dynamic import Dynamic, holds_tensors
from lampwork.capture.state.entries import Entry
from lampwork.capture.state.functions import Functions
from lampwork.capture.state.guards import GuardBuilder, mapping_behind
from lampwork.capture.state.lifting import Lifted, Lifting
from lampwork.capture.state.native_methods import (
    is_bound_from,
    is_native_method,
    native_descriptor,
    rebind_native,
)
from lampwork.capture.state.shadows import COPIED, Shadows
from lampwork.capture.state.stand_ins import container_base
from lampwork.capture.state.treatment import (
    check_readable,
    is_one_of_many,
    is_unchanging,
    slots_of,
    treatment,
)
from lampwork.graph.distributed import is_dtensor
from lampwork.graph.record import Recorder
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import functools

# What is read of these is guarded wherever it is read, whether they are registered or not.
_GUARDED_AS_READ = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CodeType,
    enum.Enum,
)
# The attributes that each module has, whose tables are known by which they are.
_TABLES = frozenset(vars(torch.nn.Module()))
# What is behind these is guarded wherever it is read.
_READ_AS_KNOWN = (*IDENTITIES, types.MappingProxyType)


class Environment:
    """Sources, shadows and lifted tensors of one capture."""

    def __init__(
        self,
        recorder: Recorder,
        guards: GuardBuilder,
        births: Births,
        dynamic: Dynamic | None = None,
        trains_dtensors: bool = True,
    ) -> None:
        self.births = births
        self.recorder = recorder
        self.dynamic = dynamic
        self.guards = guards
        self.classes = Classes(guards, self._reached)
        self.lookup, self.python_method = self.classes.lookup, self.classes.method
        self.entries: dict[int, Entry] = {}
        # The guarded instance dicts of known objects, by the ids of those.
        self.tables: dict[int, Known] = {}
        # The guarded tables of modules, by the ids of those and by name.
        self.registries: dict[tuple[int, str], Known] = {}
        # The guarded hooks for all modules, by the names of their tables.
        self.hooks: dict[str, dict[int, Any]] = {}
        # Cells from outside that are guarded to hold what they hold, and that.
        self.cells: dict[int, tuple[types.CellType, Any]] = {}
        self.functions = Functions(self)
        self.lifting = Lifting(recorder, guards, dynamic)
        self.distributed = Distributed(self.lifting, guards, trains_dtensors)
        self.shadows = Shadows(self)
        self.original = self.shadows.original
        self._readable: set[type] = set()

    def close(self) -> None:
        """Let go of what was read."""
        self.entries.clear()
        for table in (self.tables, self.registries, self.hooks, self.cells):
            table.clear()
        for part in (self.functions, self.distributed, self.lifting, self.shadows):
            part.close()

    def behind(self, proxy: Any) -> Any:
        """The mapping behind a MappingProxyType, as the region sees it."""
        table = mapping_behind(proxy)
        found = self.entry(proxy) or self.entries.get(id(table))
        return table if found is None else self.known(table, f"{found.name} (behind)")

    def namespace(self, cls: type) -> Any:
        """cls.__dict__, of which every read is guarded, be it of one name or of all."""
        proxy = cls.__dict__
        self.register(mapping_behind(proxy), f"{cls.__qualname__}.__dict__")
        return proxy

    def state(self, getter: Callable[[], Any], name: str) -> Any:
        """What a function without arguments says of the process or thread, guarded on every call."""
        return self.read(getter(), Result(Known(getter, name)), f"{name}()")

    # --- reading --------------------------------------------------------------------------------------------------

    def force(self, value: Any) -> Any:
        """Look into a value that was only passed around so far."""
        if type(value) is Lazy:
            return self.read(value.value, value.source, value.source_name)
        return value

    def read(self, value: Any, source: Source, name: str, *, slow: bool = False) -> Any:
        """The value as the region sees it. `slow`: everything on the way to it is under version tags."""
        kind = type(value)
        if kind in CONSTANTS:
            if kind in (int, float) and self.dynamic is not None and self.dynamic.is_open(source, value):
                return self.lifting.open_number(value, source)
            if kind is torch.Size and self.lifting.is_open_size(value, source):
                self.guards.add(source, "type", kind)
                self.guards.add(source, "len", len(value))
                return torch.Size(
                    [self.read(n, Item(source, i), f"{name}[{i}]") for i, n in enumerate(value)]
                )
            self.guards.add(source, "equals", value, slow=slow)
            return value
        self._check_readable(kind, name)
        if isinstance(value, torch.Tensor):
            return self._lift(value, source, name, bound=slow and not self.is_state(value, source))
        if slow and self.is_state(value, source):
            slow = False
        found = self.entries.get(id(value))
        if found is not None:
            if found.known:
                self.guards.add(source, "is", value, slow=slow)
            elif source != found.source:
                self.guards.add(source, "same", found.source)
            return self.present(value)
        if is_native_method(value):
            # It works on its receiver, of which the region has its own view.
            descriptor = native_descriptor(value)
            if descriptor is None:
                raise Break("LW111", f"{name} is a {kind.__name__} that its object's class does not have")
            self.guards.add(source, "type", kind)
            self.guards.add(source, "predicate", functools.partial(is_bound_from, descriptor))
            place, label = Attr(source, "__self__"), f"{name}.__self__"
            if descriptor is list.append and type(value.__self__) is list:
                # A graph break in the argument of a call of it.
                receiver = self.shadows.keep_unread(
                    value.__self__, lambda: self.read(value.__self__, place, label)
                )
                return receiver if type(receiver) is Appended else receiver.append
            return rebind_native(value, self.read(value.__self__, place, label))
        if not slow and kind is types.FunctionType and is_one_of_many(value):
            self.functions.alike(value, source)
            self.entries[id(value)] = Entry(value, source, False, name)
            return value
        if slow or issubclass(kind, IDENTITIES):
            self.guards.add(source, "is", value, slow=slow)
            return self.known(value, name)
        how = treatment(kind)
        if how == "is":
            self.guards.add(source, "is", value)
            return self.known(value, name)
        if how == "opaque" or (kind is slice and not all(map(is_constant, value.__reduce__()[1]))):
            raise Break("LW111", f"{name} is a {kind.__name__}, whose content no guard sees")
        if how == "slots":
            self.guards.add(source, "type", kind)
            for slot in slots_of(kind):
                self.guards.add(Slot(source, slot), "equals", slot.__get__(value))
        if how == "equals":
            self.guards.add(source, "equals", value)
        if how in ("equals", "slots"):
            self.entries[id(value)] = Entry(value, source, False, name)
            return value
        if kind is types.MethodType:
            self.guards.add(source, "type", kind)
            receiver = self.read(value.__self__, Attr(source, "__self__"), f"{name}.__self__")
            function, place = value.__func__, Attr(source, "__func__")
            found, _ = self.lookup(type(value.__self__), getattr(function, "__name__", ""))
            if type(function) is types.FunctionType and found is not function:
                return types.MethodType(self.read(function, place, name), receiver)
            self.guards.add(place, "is", function)
            return types.MethodType(self.known(function, name), receiver)
        self.guards.add(source, "type", kind)
        self.entries[id(value)] = Entry(value, source, False, name)
        if kind in COPIED or issubclass(kind, tuple):
            if value is self.shadows.unread:
                return Appended(value)
            return self.shadows.of_unknown(value, source, name)
        return self.present(value)

    def _lift(self, tensor: torch.Tensor, source: Source, name: str, *, bound: bool) -> torch.Tensor:
        lifts = self.distributed if is_dtensor(type(tensor)) else self.lifting
        return lifts.lift(tensor, source, name, bound=bound)

    def lifted(self, tensor: Any) -> Lifted | LiftedDTensor | None:
        """What is known of the outside tensor that a value stands for; None if it stands for none."""
        return self.lifting.of_trace.get(id(tensor)) or self.distributed.of_stand_in.get(id(tensor))

    def _check_readable(self, kind: type, name: str) -> None:
        if kind not in self._readable:
            check_readable(kind, name)
            self._readable.add(kind)

    def known(self, value: Any, name: str) -> Any:
        """An object that is the same on every call, as the region sees it; whoever calls has seen to that."""
        self._check_readable(type(value), name)
        if is_constant(value):
            return value
        if isinstance(value, torch.Tensor):
            return self._lift(value, Known(value, name), name, bound=True)
        if is_native_method(value):
            return rebind_native(value, self.known(value.__self__, f"{name}.__self__"))
        if type(value) is types.MethodType:
            receiver = self.known(value.__self__, f"{name}.__self__")
            self.known(value.__func__, name)
            if receiver is not value.__self__:
                return types.MethodType(value.__func__, receiver)
        kind = type(value)
        if treatment(kind) == "opaque" and not (isinstance(value, _READ_AS_KNOWN) or is_unchanging(kind)):
            raise Break("LW111", f"{name} is a {type(value).__name__}, whose content no guard sees")
        self.register(value, name)
        return self.present(value)

    def held(self, owner: Any, value: Any, place: Callable[[Source], Source], label: str) -> Any:
        """What an object holds for good, at `place` of its source: the same on every call only if the object is.

        Raises:
            Break: LW111: the object came without a source.
        """
        entry = self.entry(owner)
        if entry is None:
            raise Break("LW111", f"{label}, which comes from nowhere that a guard sees,")
        return self.known(value, label) if entry.known else self.read(value, place(entry.source), label)

    def register(self, value: Any, name: str = "") -> None:
        """Note that the region depends on which object this is. One that was found at a source of a call before, which
        holds another object on other calls, is to be this one there."""
        value = self.original(value)
        found = self.entries.get(id(value))
        if found is None:
            entry = self.entries[id(value)] = Entry(value, Known(value, name), True, name)
            if not is_immutable(type(value)):
                # It stays the same object, but its class may be replaced.
                self.guards.add(entry.source, "type", type(value), slow=True)
        elif not found.known:
            self.guards.add(found.source, "is", value)

    def differs(self, value: Any) -> bool:
        """Whether an object stands for others that later calls have in its place."""
        found = self.entry(value)
        return found is not None and not found.known

    def _reached(self, found: Any) -> None:
        """A class attribute is the same on every call, and so are the functions in it."""
        if isinstance(found, property):
            functions: tuple[Any, ...] = (found.fget, found.fset, found.fdel)
        elif isinstance(found, (staticmethod, classmethod)):
            functions = (cast(Any, found).__func__,)
        else:
            functions = (found,)
        for function in functions:
            if type(function) is types.FunctionType:
                self.register(function, function.__qualname__)

    def present(self, value: Any) -> Any:
        """What stands for a registered outside object: its shadow if it has one, else itself."""
        shadow = self.shadows.of_original.get(id(value))
        if shadow is not None:
            return shadow.copy
        if value is self.shadows.unread:
            return Appended(value)
        kind = type(value)
        if kind in COPIED or issubclass(kind, tuple):
            return self.shadows.of_known(value, self.entries[id(value)])
        base = container_base(kind)
        return value if base is None else self.shadows.stand_in(value, base)

    def entry(self, value: Any) -> Entry | None:
        """The entry of an outside object or of what stands for it; None for what the region made."""
        return self.entries.get(id(self.original(value)))

    def owner(self, value: Any) -> Entry | None:
        """As `entry`, for an object whose state is about to be read or written.

        Raises:
            Break: LW111: it is neither registered nor the region's own, so nothing would guard what is read of it.
        """
        found = self.entry(value)
        if (
            found is None
            and not issubclass(type(value), _GUARDED_AS_READ)
            and not self.births.is_inside(value)
        ):
            raise Break(
                "LW111", f"a {type(value).__name__} came from native code, whose content no guard sees,"
            )
        return found

    def owner_of_write(self, value: Any) -> Entry | None:
        """As `owner`, for an object that is about to be written to: None for the region's own only."""
        found = self.owner(value)
        if found is None and isinstance(value, _GUARDED_AS_READ) and not self.births.made(value):
            self.register(value, f"a {type(value).__qualname__}")
            return self.entries[id(value)]
        return found

    def is_state(self, value: Any, source: Source) -> bool:
        """Whether a value at a known source is a tensor, a container, or a function that is read anew on each call; or
        a list that stays unread, of which it does not matter which one it is."""
        return value is self.shadows.unread or (
            self.dynamic is not None
            and not isinstance(value, torch.nn.Module)  # most of what is read
            and not (isinstance(source, DictItem) and type(source.key) is str and source.key in _TABLES)
            and (
                type(value) in COPIED
                or holds_tensors(value)
                or (type(value) is types.FunctionType and is_one_of_many(value))
            )
            and self.dynamic.is_state(source, value)
        )

    def python_type(self, value: Any) -> type:
        """type(value) as eager would answer it."""
        if type(value) is torch.SymInt:
            return int
        if type(value) is torch.SymFloat:
            return float
        if type(value) is TraceTensor:
            lifted = self.lifting.of_trace.get(id(value))
            if lifted is None:
                return torch.nn.Parameter if getattr(value, "_is_param", False) else torch.Tensor
            return type(lifted.real)
        if type(value) is Generator:
            return types.GeneratorType
        return type(value)
