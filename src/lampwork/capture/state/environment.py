"""What the region reads from the world outside of it.

Each outside object gets a *source* (how a later call finds it) and guards (what must hold for the region to be right):

* a constant (number, string, dtype, ...) is guarded by value;
* a tensor becomes a trace tensor, one per outside tensor;
* a plain container (list, dict, tuple, set) becomes a *shadow*: a copy that the region reads and writes in its place;
* any other object stays itself, and what is read from it is guarded as it is read.

An object reached only through known objects (the module tree, globals, classes) is guarded by identity under the
version tags of the dicts on the way, and is then itself *known*: its own guards start at it.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import (
    Attr,
    DictItem,
    FunctionState,
    InstanceDict,
    Item,
    Known,
    Result,
    Source,
    Symbol,
    TensorGuard,
)
from lampwork.capture.model.values import CONSTANTS, IDENTITIES, Lazy, is_constant
from lampwork.capture.state.births import Births
from lampwork.capture.state.classes import Classes, is_immutable
from lampwork.capture.state.dynamic import Dynamic, bounded_symbol, marks, strides_of
from lampwork.capture.state.guards import GuardBuilder, mapping_behind
from lampwork.capture.state.treatment import is_mutable, is_one_of_many, treatment
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt
from lampwork.graph.symnode import symfloat, symint
from lampwork.graph.tracetensor import TraceTensor


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """An outside object. `known`: the same object on every call."""

    value: Any
    source: Source
    known: bool
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Lifted:
    """An outside tensor and the trace tensor that stands for it. `bound`: a parameter, buffer or other known tensor."""

    trace: TraceTensor
    real: torch.Tensor
    source: Source
    bound: bool
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Shadow:
    """`copy` stands for the outside container `original`; `before` is what it held when it was first read."""

    original: Any
    copy: Any
    before: Any


_LOOKUP_NAMES = frozenset({"super", "object", "type", "str", "__getattribute__", "startswith", "endswith"})
_WRITING = frozenset(
    {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "STORE_GLOBAL", "DELETE_SUBSCR"}
)
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
# What is read of these is guarded wherever it is read, whether they are registered or not.
_GUARDED_AS_READ = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CodeType,
    enum.Enum,
)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_COPIED = frozenset({list, tuple, set, frozenset, collections.deque, *_DICTS})


def native_descriptor(bound: Any) -> Any:
    """What a native method was bound from, which with super() is not what its object's class has under the name; None
    if that cannot be found."""
    receiver = bound.__self__
    for base in type(receiver).__mro__:
        found = base.__dict__.get(bound.__name__)
        # Names would not do: a bound method is called after its object's class, not after the one that has it.
        if isinstance(found, _DESCRIPTORS) and bind_native(found, receiver) == bound:
            return found
    return None


def is_bound_from(descriptor: Any, method: Any) -> bool:
    """Whether a native method was bound from a descriptor. Its name does not tell: that has the name of its object's
    class."""
    receiver = method.__self__
    return isinstance(receiver, descriptor.__objclass__) and method == bind_native(descriptor, receiver)


def bind_native(descriptor: Any, receiver: Any) -> Any:
    """descriptor.__get__(receiver). CPython reads the class without asking where a method takes its defining class."""
    return descriptor.__get__(receiver, type(receiver))


def _bind(value: Any, receiver: Any) -> Any:
    """A native method, bound to what stands for its object."""
    found = native_descriptor(value)
    return getattr(receiver, value.__name__) if found is None else bind_native(found, receiver)


def _is_native_method(value: Any) -> bool:
    """Whether a value is a native method bound to an object, not a function of a module or class."""
    # isinstance: a method that takes its defining class is of a subclass.
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return False
    receiver: Any = value.__self__
    return not isinstance(receiver, (types.ModuleType, type)) and hasattr(type(receiver), value.__name__)


class Environment:
    """Sources, shadows and lifted tensors of one capture."""

    def __init__(
        self, recorder: Recorder, guards: GuardBuilder, births: Births, dynamic: Dynamic | None = None
    ) -> None:
        self.births = births
        self.recorder = recorder
        self.dynamic = dynamic
        self.symbols: list[Symbol] = []
        self._stride_symbols: list[Symbol] = []
        self._numbers: dict[Source, torch.SymInt | torch.SymFloat] = {}
        self.guards = guards
        self.classes = Classes(guards, self._reached)
        self.lookup, self.python_method = self.classes.lookup, self.classes.method
        self.entries: dict[int, Entry] = {}
        self._readable: set[type] = set()
        self._functions: dict[int, types.FunctionType] = {}
        self.shadows: dict[int, Shadow] = {}  # by id of the copy
        self.shadow_of: dict[int, Shadow] = {}  # by id of the original
        self.lifted: dict[int, Lifted] = {}  # by id of the outside tensor
        self.of_trace: dict[int, Lifted] = {}  # by id of the trace tensor

    def close(self) -> None:
        """Let go of what was read."""
        for table in (
            self.entries,
            self._functions,
            self.shadows,
            self.shadow_of,
            self.lifted,
            self.of_trace,
        ):
            table.clear()

    def function(self, function: types.FunctionType) -> None:
        """The region runs an outside Python function: its code, its defaults and what they hold are guarded."""
        if id(function) in self._functions:
            return
        self._functions[id(function)] = function
        entry = self.of_function(function)
        self._closure(function, entry)
        if entry.known:
            self._slots(function)

    def looked_at(self, function: types.FunctionType) -> None:
        """Native code reads the slots of an outside function: it is this one on every call, and so are they."""
        self.register(function)
        self.function(function)
        if not self.entries[id(function)].known:
            self._slots(function)

    def _slots(self, function: types.FunctionType) -> None:
        source = Known(function, function.__qualname__)
        self.guards.add(source, "function", FunctionState.of(function), slow=True)
        named = function.__kwdefaults__
        if named is not None:
            # The dict is changed in place too: what is missing from it is as much a part of a call as what is there.
            label = f"{function.__qualname__}.__kwdefaults__"
            self.guards.version(named, label)
            self.guards.add(Known(named, label), "keys", tuple(named), slow=True)
            for key, value in named.items():
                kind = "equals" if type(value) in CONSTANTS else "is"
                self.guards.add(DictItem(Known(named, label), key), kind, value, slow=True)

    def of_function(self, function: types.FunctionType) -> Entry:
        """The entry of an outside function. One that comes without a source is the same on every call."""
        found = self.entries.get(id(function))
        if found is None:
            name = function.__qualname__
            found = self.entries[id(function)] = Entry(function, Known(function, name), True, name)
        return found

    def _alike(self, function: types.FunctionType, source: Source) -> None:
        """Guard what all functions that one `def` or `lambda` makes have in common: a call of any of them runs the same
        code. Its closure and the values of its defaults are read through sources of their own."""
        self.guards.add(source, "type", types.FunctionType)
        for name in ("__code__", "__globals__", "__builtins__"):
            self.guards.add(Attr(source, name), "is", getattr(function, name))
        self.guards.add(Attr(source, "__module__"), "equals", function.__module__)
        for name, kind, measure in (("__defaults__", "len", len), ("__kwdefaults__", "keys", tuple)):
            place, value = Attr(source, name), getattr(function, name)
            if value is None:
                self.guards.add(place, "is", None)
            else:
                self.guards.add(place, "type", type(value))
                self.guards.add(place, cast(Any, kind), measure(value))
        self.guards.add(InstanceDict(source), "keys", tuple(function.__dict__))

    def _closure(self, function: types.FunctionType, entry: Entry) -> None:
        """Register the cells of a function's closure, which are the same on every call if the function is."""
        for i, (name, cell) in enumerate(
            zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        ):
            if entry.known:
                self.register(cell, f"cell of {name}")
                continue
            source, found = Item(Attr(entry.source, "__closure__"), i), self.entries.get(id(cell))
            if found is None:
                self.entries[id(cell)] = Entry(cell, source, False, f"{entry.name}.{name}")
            elif found.known:
                self.guards.add(source, "is", cell)
            elif found.source != source:
                self.guards.add(source, "same", found.source)

    def default(self, function: types.FunctionType, value: Any, place: int | str) -> Any:
        """The default of a parameter of an outside function, which `place` finds in `__defaults__` or
        `__kwdefaults__`."""
        entry = self.entries[id(function)]
        if not entry.known:
            source = (
                Item(Attr(entry.source, "__defaults__"), place)
                if isinstance(place, int)
                else DictItem(Attr(entry.source, "__kwdefaults__"), place)
            )
            return self.read(value, source, f"default of {entry.name}")
        return value if type(value) in CONSTANTS else self.known(value, "default value")

    def guard_empty(self, cell: types.CellType) -> None:
        """An outside cell has no contents."""
        entry = self.entries.get(id(cell))
        source = Known(cell, "cell") if entry is None else entry.source
        self.guards.add(source, "predicate", is_empty_cell)

    def behind(self, proxy: Any) -> Any:
        """The mapping behind a MappingProxyType, as the region sees it."""
        table = mapping_behind(proxy)
        return (
            table
            if self.entry(proxy) is None
            else self.known(table, f"{self.entries[id(proxy)].name} (behind)")
        )

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
                return self._open_number(value, source)
            if kind is torch.Size and self._is_open_size(value, source):
                self.guards.add(source, "type", kind)
                self.guards.add(source, "len", len(value))
                return torch.Size(
                    [self.read(n, Item(source, i), f"{name}[{i}]") for i, n in enumerate(value)]
                )
            self.guards.add(source, "equals", value, slow=slow)
            return value
        self._check_readable(kind, name)
        if isinstance(value, torch.Tensor):
            return self.lift(value, source, name, bound=slow and not self.is_state(value, source))
        if slow and self.is_state(value, source):
            slow = False
        found = self.entries.get(id(value))
        if found is not None:
            if found.known:
                self.guards.add(source, "is", value, slow=slow)
            elif source != found.source:
                self.guards.add(source, "same", found.source)
            return self.present(value)
        if _is_native_method(value):
            # It works on its receiver, of which the region has its own view.
            descriptor = native_descriptor(value)
            if descriptor is None:
                raise Break("LW111", f"{name} is a {kind.__name__} that its object's class does not have")
            self.guards.add(source, "type", kind)
            self.guards.add(source, "predicate", functools.partial(is_bound_from, descriptor))
            receiver = self.read(value.__self__, Attr(source, "__self__"), f"{name}.__self__")
            return _bind(value, receiver)
        if not slow and kind is types.FunctionType and is_one_of_many(value):
            self._alike(value, source)
            self.entries[id(value)] = Entry(value, source, False, name)
            return value
        if slow or isinstance(value, IDENTITIES):
            self.guards.add(source, "is", value, slow=slow)
            return self.known(value, name)
        how = treatment(kind)
        if how == "is":
            self.guards.add(source, "is", value)
            return self.known(value, name)
        if how == "opaque" or (kind is slice and not all(map(is_constant, value.__reduce__()[1]))):
            raise Break("LW111", f"{name} is a {kind.__name__}, whose content no guard sees")
        if how == "equals":
            self.guards.add(source, "equals", value)
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
        if kind in _COPIED or issubclass(kind, tuple):
            return self._shadow_unknown(value, source, name)
        return value

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
            return self.lift(value, Known(value, name), name, bound=True)
        if _is_native_method(value):
            return _bind(value, self.known(value.__self__, f"{name}.__self__"))
        if type(value) is types.MethodType:
            receiver = self.known(value.__self__, f"{name}.__self__")
            self.known(value.__func__, name)
            if receiver is not value.__self__:
                return types.MethodType(value.__func__, receiver)
        if is_mutable(type(value)):
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
        shadow = self.shadow_of.get(id(value))
        if shadow is not None:
            return shadow.copy
        if type(value) in _COPIED or isinstance(value, tuple):
            return self._shadow_known(value, self.entries[id(value)])
        return value

    def entry(self, value: Any) -> Entry | None:
        """The entry of an outside object or of a shadow; None for what the region made."""
        shadow = self.shadows.get(id(value))
        return self.entries.get(id(shadow.original if shadow is not None else value))

    def owner(self, value: Any) -> Entry | None:
        """As `entry`, for an object whose state is about to be read or written.

        Raises:
            Break: LW111: it is neither registered nor the region's own, so nothing would guard what is read of it.
        """
        found = self.entry(value)
        if found is None and not isinstance(value, _GUARDED_AS_READ) and not self.births.is_inside(value):
            raise Break(
                "LW111", f"a {type(value).__name__} came from native code, whose content no guard sees,"
            )
        return found

    def original(self, value: Any) -> Any:
        """The outside object that a shadow or a trace tensor stands for, else the value itself."""
        shadow = self.shadows.get(id(value))
        if shadow is not None:
            return shadow.original
        return value

    # --- tensors --------------------------------------------------------------------------------------------------

    def is_state(self, value: Any, source: Source) -> bool:
        """Whether a value at a known source is a tensor or function that is read anew on each call."""
        return (
            (isinstance(value, torch.Tensor) or (type(value) is types.FunctionType and is_one_of_many(value)))
            and self.dynamic is not None
            and self.dynamic.is_state(source, value)
        )

    def lift(self, tensor: torch.Tensor, source: Source, name: str, *, bound: bool) -> torch.Tensor:
        """The trace tensor of an outside tensor. One tensor found at two places is one trace tensor, and guarded so.

        Raises:
            Break: LW107 for a tensor subclass.
        """
        if isinstance(tensor, TraceTensor):
            return tensor
        found = self.lifted.get(id(tensor))
        if found is not None:
            if bound or found.bound:
                self.guards.add(source, "is", tensor, slow=bound)
            elif source != found.source:
                self.guards.add(source, "same", found.source)
            return found.trace
        if type(tensor) not in _PLAIN_TENSORS:
            raise Break("LW107", f"{name} ({type(tensor).__name__})")
        if bound:
            self.guards.add(source, "is", tensor, slow=True)
            source = Known(tensor, name)
        if tensor.layout is not torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else tensor.layout
            raise Break("LW107", f"{name} ({layout} layout)")
        spec = TensorSpec.of(tensor) if bound else self._spec(tensor, source)
        expected = TensorGuard(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tuple(None if isinstance(size, SymbolicInt) else size for size in spec.shape),
            tuple(None if isinstance(stride, SymbolicInt) else stride for stride in spec.strides),
            tensor.requires_grad,
        )
        self.guards.add(source, "tensor", expected, slow=bound)
        trace = self.recorder.input(tensor, name, bound=bound, spec=spec)
        lifted = Lifted(trace, tensor, source, bound, name)
        self.lifted[id(tensor)] = lifted
        self.of_trace[id(trace)] = lifted
        return trace

    def _spec(self, tensor: torch.Tensor, source: Source) -> TensorSpec:
        """The spec of a tensor, with symbols for the sizes that are open."""
        spec = TensorSpec.of(tensor)
        dims = self.dynamic.open_dims(source, tensor) if self.dynamic is not None else set[int]()
        if not dims:
            return spec
        bounds = marks(tensor)
        shape: list[Any] = list(spec.shape)
        for dim in sorted(dims):
            symbol = bounded_symbol(self.recorder.scope, shape[dim], bounds.get(dim, (None, None)))
            marked = dim in bounds
            self.symbols.append(Symbol(str(symbol), source, "size", dim, hint=shape[dim], marked=marked))
            shape[dim] = symbol
        strides = strides_of(tensor, tuple(shape))
        for dim, stride in enumerate(strides):
            if isinstance(stride, SymbolicInt):
                # What the stride must be is a condition on one more symbol, which nothing else depends on.
                own = self.recorder.scope.symbol(stride.hint, lowest=None)
                self._stride_symbols.append(Symbol(str(own), source, "stride", dim, hint=stride.hint))
                self.recorder.scope.require("==", own.index - stride.index)
        return replace(spec, shape=tuple(shape), strides=strides)

    def _is_open_size(self, value: torch.Size, source: Source) -> bool:
        if self.dynamic is None:
            return False
        # Every item must be noted, also behind the first that is open.
        items = [self.dynamic.is_open(Item(source, i), number) for i, number in enumerate(value)]
        return any(items)

    def _open_number(self, value: int | float, source: Source) -> torch.SymInt | torch.SymFloat:
        """The symbol of a Python number; an int that is negative stands for minus a symbol."""
        found = self._numbers.get(source)
        if found is not None:
            return found
        scope = self.recorder.scope
        if isinstance(value, float):
            number = scope.float_symbol(value)
            bits = cast(SymbolicInt, number.args[0])
            self.symbols.append(Symbol(str(bits), source, "float", hint=bits.hint))
            found = symfloat(number)
        else:
            symbol = scope.symbol(abs(value), lowest=None)
            self.symbols.append(Symbol(str(symbol), source, "int", negated=value < 0, hint=abs(value)))
            found = symint(-symbol if value < 0 else symbol)
        self._numbers[source] = found
        return found

    @property
    def all_symbols(self) -> tuple[Symbol, ...]:
        """The symbols that graphs may depend on, then those of strides."""
        return (*self.symbols, *self._stride_symbols)

    def python_type(self, value: Any) -> type:
        """type(value) as eager would answer it."""
        if type(value) is torch.SymInt:
            return int
        if type(value) is torch.SymFloat:
            return float
        if type(value) is TraceTensor:
            lifted = self.of_trace.get(id(value))
            if lifted is None:
                return torch.nn.Parameter if getattr(value, "_is_param", False) else torch.Tensor
            return type(lifted.real)
        return type(value)

    # --- containers -----------------------------------------------------------------------------------------------

    def _add_shadow(self, original: Any, copy: Any) -> Any:
        before = cast(Any, copy).copy() if isinstance(copy, (list, dict, set, collections.deque)) else copy
        shadow = Shadow(original, copy, before)
        self.shadows[id(copy)] = shadow
        self.shadow_of[id(original)] = shadow
        return copy

    def _shadow_unknown(self, value: Any, source: Source, name: str) -> Any:
        """A container that came as (part of) an argument: its length or keys and all items are guarded."""
        kind = type(value)
        if kind in (set, frozenset):
            return self._shadow_set(value, source, name, slow=False)
        if isinstance(value, dict):
            self._keys(cast("dict[Any, Any]", value), source, name)
            copy: Any = kind()
            if kind is collections.defaultdict:
                factory = cast(Any, value).default_factory
                copy.default_factory = self.read(
                    factory, Attr(source, "default_factory"), f"{name}.default_factory"
                )
            self._add_shadow(value, copy)
            for key, item in cast(dict[Any, Any], value).items():
                copy[key] = self.read(item, DictItem(source, key), f"{name}[{key!r}]")
            return self._restate(copy)
        self.guards.add(source, "len", len(value))
        items = [self.read(item, Item(source, i), f"{name}[{i}]") for i, item in enumerate(value)]
        if kind is list:
            return self._add_shadow(value, items)
        if kind is collections.deque:
            self.guards.add(Attr(source, "maxlen"), "equals", value.maxlen)
            return self._add_shadow(value, collections.deque(items, value.maxlen))
        return self._add_shadow(value, _tuple_like(kind, value, items))

    def _keys(self, table: dict[Any, Any], source: Source, name: str, *, slow: bool = False) -> None:
        """Guard the keys of an outside dict by equality and class: those that are equal to themselves only are the same
        on every call.

        Raises:
            Break: LW111: an object among the keys has another hash than when it was put in.
        """
        self.guards.add(source, "keys", tuple(table), slow=slow)
        kinds = tuple(map(type, table))
        if not all(map(is_immutable, kinds)):
            self.guards.add(source, "predicate", lambda now: tuple(map(type, now)) == kinds)
        for key in table:
            if type(key) in CONSTANTS:
                continue
            if key not in table:
                raise Break("LW111", f"{name} has a {type(key).__name__} as key, whose hash has changed")
            if type(key).__eq__ is object.__eq__ and not isinstance(key, torch.Tensor):
                self.register(key, f"a key of {name}")

    def _shadow_known(self, value: Any, entry: Entry) -> Any:
        """A container that is the same object on every call. A tuple cannot change, a dict has a version tag; a list
        has neither, so its items are guarded on each call."""
        kind, name = type(value), entry.name
        if kind in (set, frozenset):
            return self._shadow_set(value, entry.source, name, slow=kind is frozenset)
        if isinstance(value, dict):
            table = cast(dict[Any, Any], value)
            self.guards.version(table, name)
            # OrderedDict.move_to_end() does not touch the table that the version is of.
            ordered = isinstance(value, collections.OrderedDict) and len(table) > 1
            self._keys(table, entry.source, name, slow=not ordered)
            copy: Any = kind()
            if kind is collections.defaultdict:
                factory = copy.default_factory = cast(Any, value).default_factory
                self.guards.add(Attr(entry.source, "default_factory"), "is", factory)
            self._add_shadow(value, copy)
            owner = name.removesuffix("._modules")
            for key, item in cast(dict[Any, Any], value).items():
                label = f"{name}[{key!r}]" if owner == name else f"{owner}.{key}"
                copy[key] = self.read(item, DictItem(entry.source, key), label, slow=True)
            return self._restate(copy)
        if kind in (list, collections.deque):
            self.guards.add(entry.source, "len", len(value))
            copy: Any = [] if kind is list else collections.deque(maxlen=value.maxlen)
            self._add_shadow(value, copy)
            for i, item in enumerate(value):
                source = Item(entry.source, i)
                if is_constant(item):
                    self.guards.add(source, "equals", item)
                    copy.append(item)
                elif self.is_state(item, source):
                    copy.append(self.read(item, source, f"{name}[{i}]"))
                else:
                    self.guards.add(source, "is", item)
                    copy.append(self.known(item, f"{name}[{i}]"))
            return self._restate(copy)
        items = [self.known(item, f"{name}[{i}]") for i, item in enumerate(value)]
        return self._add_shadow(value, _tuple_like(kind, value, items))

    def content(self, value: Any) -> Any:
        """What native code may read in place of an outside object of a subclass of a container: a plain copy of the
        container part, guarded."""
        entry = self.entries[id(value)]
        if isinstance(value, dict):
            table = cast(dict[Any, Any], value)
            if entry.known:
                self.guards.version(table, entry.name)
            self.guards.add(entry.source, "keys", tuple(table), slow=entry.known)
            return {
                key: self.read(item, DictItem(entry.source, key), f"{entry.name}[{key!r}]", slow=entry.known)
                for key, item in table.items()
            }
        if isinstance(value, (list, collections.deque)):
            self.guards.add(entry.source, "len", len(value))
            items = [
                self.read(item, Item(entry.source, i), f"{entry.name}[{i}]") for i, item in enumerate(value)
            ]
            return items if isinstance(value, list) else collections.deque(items, value.maxlen)
        if isinstance(value, (set, frozenset)):
            kind: Any = set if isinstance(value, set) else frozenset
            members = tuple(kind.__iter__(value))
            copy = kind(members)
            if not all(is_constant(item) for item in members) or tuple(copy) != members:
                raise Break("LW111", f"{entry.name} is a set of objects that have no order or value to guard")
            self.guards.add(entry.source, "predicate", lambda now: tuple(kind.__iter__(now)) == members)
            return copy
        return value

    def _restate(self, copy: Any) -> Any:
        """Note what a shadow that was filled step by step (it may contain itself) held at first."""
        old = self.shadows[id(copy)]
        shadow = Shadow(old.original, copy, copy.copy())
        self.shadows[id(copy)] = shadow
        self.shadow_of[id(old.original)] = shadow
        return copy

    def _shadow_set(self, value: Any, source: Source, name: str, *, slow: bool) -> Any:
        if slow and type(value) is frozenset and all(type(item) is type for item in value):
            self.guards.add(source, "is", value, slow=True)
            return value
        if not all(is_constant(item) for item in value):
            raise Break("LW111", f"{name} is a set of objects that have no order or value to guard")
        self.guards.add(source, "equals", type(value)(value), slow=slow)
        order = tuple(value)
        if len(order) > 1:
            # Equal sets may give their members in another order, which follows from how they came to be.
            self.guards.add(source, "predicate", lambda members: tuple(members) == order, slow=slow)
        if type(value) is frozenset:
            return value
        copy = set(value)
        if tuple(copy) != order:
            raise Break("LW111", f"{name} is a set whose copy has another order")
        return self._add_shadow(value, copy)


def is_empty_cell(cell: types.CellType) -> bool:
    """Whether a cell has no contents."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def check_readable(kind: type, name: str) -> None:
    """Merely to ask an object for its class runs the Python `__getattribute__` of that class.

    Raises:
        Break: LW111: that does more than to choose what `object.__getattribute__` is asked for.
    """
    method = kind.__getattribute__
    if type(method) is not types.FunctionType:
        return
    code = method.__code__
    writes = any(i.opname in _WRITING for i in dis.get_instructions(code))
    if writes or not _LOOKUP_NAMES.issuperset(code.co_names):
        raise Break("LW111", f"{name} is a {kind.__name__}, which defines __getattribute__")


def _tuple_like(kind: type, value: Any, items: list[Any]) -> Any:
    """A tuple or named tuple of `items`; `value` itself where nothing had to be replaced."""
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if hasattr(kind, "n_fields"):
        return cast(Any, kind)(items)  # torch.return_types and their like
    make = cast(Callable[..., Any], tuple.__new__)
    return make(kind, items)
