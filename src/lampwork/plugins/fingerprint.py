"""A hash of what a plug-in is: two passes, rewrites or backends with the same hash do the same to a program.

It covers code (bytecode, constants, names, nested functions), defaults, annotations and closures, the attributes of
classes and instances, and whatever of this a function reaches through globals, as far as it is the author's own. Line
numbers, file names and module names do not count, so moving a file changes nothing. What comes from elsewhere, the
standard library, an installed package, counts by name and version.

The hash is equal in every process, but for objects without visible state (of extension types that are not known here):
they count as themselves, so that a cache on disk misses rather than errs.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import re
import sys
import sysconfig
import threading
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch._ops import OpOverload, OpOverloadPacket

from lampwork.standard import functools

_THIS_PROCESS = uuid.uuid4().hex
_WORD = tuple.__itemsize__

# What a class has without its author's doing, or that says where it stands rather than what it does.
_OF_ALL_CLASSES = frozenset(
    """__module__ __dict__ __weakref__ __doc__ __qualname__ __firstlineno__ __static_attributes__
    __abstractmethods__ _abc_impl __parameters__ __orig_bases__ __subclasshook__""".split()  # noqa: SIM905
)
_DEEPEST = 100
"""So many objects inside of each other are looked at."""

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_BY_REPR = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, range, slice)
_BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
# Members of a class that hold no value: slots, computed attributes of C types.
_MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# No state that matters to what is computed.
_STATELESS = (type(threading.Lock()), type(threading.RLock()), threading.Event, threading.local)
_INSTALLED = tuple(
    {
        str(Path(found).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (found := sysconfig.get_path(name))
    }
)


@runtime_checkable
class HasContent(Protocol):
    """An object that says itself what of it counts."""

    def __lampwork_content__(self) -> Any:
        """What counts: a value of any kind."""
        ...


def content_hash(plugin: Any) -> str:
    """The hash of a plug-in: a function, a class, an instance, a module, or a value of any kind. 64 hex digits.

    It is taken of the present state: an attribute that changes later changes it.
    """
    hasher = _Hasher(_home_of(plugin))
    hasher.add(plugin)
    return hasher.digest.hexdigest()


@dataclass(slots=True)
class _Hasher:
    """`home`: the package of the plug-in, which is the author's even where it is installed."""

    home: str
    digest: Any = field(default_factory=hashlib.sha256)
    seen: dict[int, int] = field(default_factory=dict[int, int])
    kept: list[Any] = field(default_factory=list[Any])  # so that no id is used twice
    depth: int = 0

    def put(self, *words: str) -> None:
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            self.digest.update(b"%d:" % len(data))
            self.digest.update(data)

    def add(self, value: Any) -> None:
        if isinstance(value, _ATOMS) and type(value) in _ATOMS:
            self.put(type(value).__name__, repr(value))
            return
        number = self.seen.get(id(value))
        if number is not None:
            self.put("again", str(number))
            return
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        if self.depth > _DEEPEST:
            self.put("deep", uuid.uuid4().hex)  # equal to nothing, itself at another time included
            return
        self.depth += 1
        if not (self._plain(value) or self._callable(value) or self._container(value)):
            self._object(value)
        self.depth -= 1

    def items(self, kind: str, values: Iterable[Any]) -> None:
        found = list(values)
        self.put(kind, str(len(found)))
        for value in found:
            self.add(value)

    def pairs(self, kind: str, values: Mapping[Any, Any]) -> None:
        """A mapping, whatever the order of its keys."""
        self.put(kind, str(len(values)))
        for key in sorted(values, key=self._alone):
            self.add(key)
            self.add(values[key])

    def _alone(self, value: Any) -> str:
        """A hash to sort by."""
        if type(value) is str:
            return value
        other = _Hasher(self.home, depth=self.depth)
        other.add(value)
        return other.digest.hexdigest()

    def _plain(self, value: Any) -> bool:
        if isinstance(value, _BY_REPR):
            self.put(type(value).__name__, repr(value))
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(np.asarray(value))
        elif isinstance(value, enum.Enum):
            self.put("enum", type(value).__qualname__, value.name)
            self.add(value.value)
        elif isinstance(value, re.Pattern):
            self.put("regex", repr(value.pattern), str(value.flags))
        elif isinstance(value, (OpOverload, OpOverloadPacket)):
            self.put("operator", str(value))
        elif isinstance(value, _STATELESS):
            self.put("stateless", type(value).__name__)
        elif isinstance(value, _MEMBERS):
            self.put("member", value.__name__)
        elif isinstance(value, types.ModuleType):
            # Held by an object, or named in another module: whoever has it may read anything of it.
            self._module(value, [name for name in vars(value) if not name.startswith("__")])
        else:
            return False
        return True

    def _tensor(self, value: torch.Tensor) -> None:
        self.put(
            "tensor", str(value.dtype), str(tuple(value.shape)), str(value.device), str(value.requires_grad)
        )
        if value.device.type == "meta" or value.layout is not torch.strided:
            self._as_itself(value)
            return
        dense = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        self.digest.update(dense.numpy().tobytes())

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        self.put("array", str(value.dtype), str(value.shape))
        if value.dtype.hasobject:
            self.items("items", value.reshape(-1).tolist())
        else:
            self.digest.update(value.tobytes())

    def _callable(self, value: Any) -> bool:
        if isinstance(value, types.CodeType):
            self._code(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.items("method", (value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            partial = cast("functools.partial[Any]", value)
            self.items("partial", (partial.func, partial.args, partial.keywords))
        elif isinstance(value, (staticmethod, classmethod)):
            self.items(type(value).__name__, (cast(Any, value).__func__,))
        elif isinstance(value, property):
            self.items("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self.items("cached", (cast(Any, value).func,))
        elif isinstance(value, _BUILTINS):
            owner = getattr(value, "__self__", None)
            self.put("builtin", _module_of(value), value.__qualname__)
            if owner is not None and not isinstance(owner, types.ModuleType):
                self.add(owner)
        elif isinstance(value, type):
            self._class(value)
        elif hasattr(value, "__wrapped__") and callable(value):
            # A function in a cache of functools, or behind another wrapper of an extension.
            self.put("wrapper", type(value).__qualname__)
            self.add(cast(Any, value).__wrapped__)
        else:
            return False
        return True

    def _container(self, value: Any) -> bool:
        kind = type(value).__name__
        if isinstance(value, (list, tuple)):
            self.items(kind, cast("Iterable[Any]", value))
        elif isinstance(value, Set):
            found = cast("Set[Any]", value)
            self.items(kind, sorted(map(self._alone, found)))
        elif isinstance(value, (dict, types.MappingProxyType)):
            self.pairs(kind, cast("Mapping[Any, Any]", value))
        elif isinstance(value, (bytearray, memoryview)):
            self.put(kind, bytes(value).hex())
        elif isinstance(value, types.CellType):
            self.items("cell", _content(value))
        else:
            return False
        # Subclasses may have attributes of their own.
        if hasattr(value, "__dict__"):
            self._class_of(value)
            self.pairs("state", vars(value))
        return True

    def _code(self, code: types.CodeType) -> None:
        self.put("code", code.co_code.hex(), code.co_exceptiontable.hex())
        self.put(str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)))
        self.put(str((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)))
        self.items("constants", code.co_consts)

    def _function(self, function: types.FunctionType) -> None:
        if not self._own(function.__module__):
            self._foreign(function)
            if "<locals>" in function.__qualname__:
                self.items("defaults", function.__defaults__ or ())
                self.items("closure", function.__closure__ or ())
            return
        self.add(function.__code__)
        self.items("defaults", function.__defaults__ or ())
        self.pairs("keyword defaults", function.__kwdefaults__ or {})
        self.pairs("annotations", {k: _annotation(v) for k, v in function.__annotations__.items()})
        self.items("closure", function.__closure__ or ())
        self.pairs("attributes", vars(function))
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                self._global(name, function.__globals__[name], function.__code__)
        for name in sorted(_imports_of(function.__code__)):
            if name in sys.modules:
                self._module(sys.modules[name], _names_of(function.__code__))

    def _global(self, name: str, value: Any, code: types.CodeType) -> None:
        self.put("global", name)
        if isinstance(value, types.ModuleType):
            self._module(value, _names_of(code))
        else:
            self.add(value)

    def _module(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """A module, of which code uses some of `names`."""
        if not self._own(module.__name__):
            self.put("module", module.__name__, _version(module.__name__))
            return
        for name in sorted(names):
            if name in vars(module):
                self.put("of module", name)
                self.add(vars(module)[name])

    def _class(self, cls: type) -> None:
        if not self._own(cls.__module__):
            self._foreign(cls)
            return
        self.put("class", cls.__name__)
        self.items("bases", cls.__bases__)
        found = {k: v for k, v in vars(cls).items() if k not in _OF_ALL_CLASSES}
        notes = found.pop("__annotations__", {})
        self.pairs("annotations", {k: _annotation(v) for k, v in notes.items()})
        self.pairs("attributes", found)

    def _class_of(self, value: Any) -> None:
        self.put("of class")
        self.add(type(value))

    def _object(self, value: Any) -> None:
        self.put("object")
        self._class_of(value)
        hidden = _has_hidden_state(type(value))
        if isinstance(value, HasContent):
            self.add(value.__lampwork_content__())
        elif not hidden or self._own(type(value).__module__):
            self.pairs("state", dict(state_of(value)))
        if hidden:
            self._as_itself(value)

    def _as_itself(self, value: Any) -> None:
        self.put("itself", _THIS_PROCESS, str(id(value)))

    def _foreign(self, value: Any) -> None:
        self.put("from", _module_of(value), value.__qualname__, _version(_module_of(value)))

    def _own(self, module: str | None) -> bool:
        """Whether code of that module is the author's."""
        top = _top(module or "")
        if top in ("lampwork", "torch"):
            return False
        return top == self.home or not _is_installed(top)


def state_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an instance, those in slots too."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)


def _has_hidden_state(cls: type) -> bool:
    """Whether instances hold more than their attributes: those of extension types do."""
    slots = sum(
        isinstance(member, types.MemberDescriptorType)
        for base in cls.__mro__
        for member in vars(base).values()
    )
    words = slots + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return cls.__basicsize__ > object.__basicsize__ + _WORD * words


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()  # not assigned yet


def _annotation(note: Any) -> str:
    """As text, which it is anyway under `from __future__ import annotations`."""
    return note if isinstance(note, str) else getattr(note, "__name__", repr(note))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _globals_of(code: types.CodeType) -> set[str]:
    names = ("LOAD_GLOBAL", "LOAD_NAME")
    return {
        str(i.argval) for c in _codes(code) for i in dis.get_instructions(c) if i.opname in names and i.argval
    }


def _imports_of(code: types.CodeType) -> set[str]:
    return {str(i.argval) for c in _codes(code) for i in dis.get_instructions(c) if i.opname == "IMPORT_NAME"}


def _names_of(code: types.CodeType) -> set[str]:
    return {name for c in _codes(code) for name in c.co_names}


def _module_of(value: Any) -> str:
    """The module that something was written in; of an instance, that of its class."""
    named = isinstance(value, (type, types.FunctionType, *_BUILTINS))
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, types.MethodType):
        return _module_of(value.__func__)
    if isinstance(value, functools.partial):
        return _module_of(cast("functools.partial[Any]", value).func)
    return getattr(value if named else type(value), "__module__", None) or "builtins"


def _home_of(plugin: Any) -> str:
    """The author's package."""
    if isinstance(plugin, tuple):
        homes = map(_home_of, cast("tuple[Any, ...]", plugin))
        return next((home for home in homes if home not in ("", "builtins")), "")
    return _top(_module_of(plugin))


def _top(module: str) -> str:
    return module.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def _is_installed(top: str) -> bool:
    """Whether a top-level module is of the standard library or an installed package."""
    if top == "__main__":
        return False
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and str(Path(file).resolve()).startswith(_INSTALLED)


def _version(module: str) -> str:
    """The version of what a module is of: its package's, or Python's."""
    top = _top(module)
    found = getattr(sys.modules.get(top), "__version__", None)
    return str(found) if found is not None else sys.version.split()[0]
