"""getattr of the interpreted program, step by step as `object.__getattribute__` does it."""

from __future__ import annotations

import contextlib
import enum
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Attr, Known, Result, Slot, root_of
from lampwork.capture.model.values import CONSTANTS, Appended, Generator
from lampwork.capture.semantics.dtensors import load_dtensor_attr
from lampwork.capture.semantics.held_state import (
    GETATTR,
    dict_shadow,
    guard_missing,
    load_item,
    load_registered,
    read_item,
    read_own,
    whole_dict,
    written_on_class,
)
from lampwork.capture.semantics.symbolic import fixed
from lampwork.capture.state.classes import MISSING, no_attribute
from lampwork.capture.state.effects import instance_dict
from lampwork.capture.state.entries import Entry
from lampwork.capture.state.treatment import is_slot
from lampwork.display import Shown
from lampwork.graph.distributed import is_dtensor
from lampwork.graph.tracetensor import TraceTensor
from lampwork.records import record
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# What every module has by its class.
_OF_MODULES = frozenset(vars(types.ModuleType)) | frozenset(vars(object))
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
# Native methods: what they give is a method bound to the object, and no state of it.
_METHOD_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_GENERATOR_METHODS = frozenset({"__iter__", "__next__", "send", "throw", "close"})
_ENUM_GETTERS = {name: vars(enum.Enum)[name].fget for name in ("name", "value")}
_DISTRIBUTED = ("torch._C._distributed_c10d", "torch.distributed.distributed_c10d")
_CACHED_GET = vars(functools.cached_property)["__get__"]
_PROPERTY_GET, _CLASSMETHOD_GET, _STATICMETHOD_GET = (
    vars(kind)["__get__"] for kind in (property, classmethod, staticmethod)
)
_CLASSMETHODS_CHAIN = sys.version_info < (3, 13)  # they ask a descriptor that they wrap
_CACHED_LOCKS = sys.version_info < (3, 12)  # it takes a lock, which every instance has
# Reading these from a tensor of the region would need autograd's or the outside tensor's own state.
_TENSOR_STATE = frozenset(
    {"grad", "_grad", "grad_fn", "_backward_hooks", "_version", "_post_accumulate_grad_hooks", "_base"}
)
# Of an outside tensor's, those that are guarded by their values.
_GUARDED_STATE = frozenset({"is_leaf", "retains_grad", "output_nr"})
# The properties of torch's own that a tensor of the region answers as eager's would: all of it follows from guards on
# tensors, is an operator of the graph, or is refused where it does not hold.
_TENSOR_PROPERTIES = (
    frozenset({"shape", "dtype", "device", "layout", "requires_grad", "ndim", "itemsize", "nbytes"})
    | frozenset({"is_cpu", "is_cuda", "is_ipu", "is_maia", "is_meta", "is_mkldnn", "is_mps", "is_mtia"})
    | frozenset({"is_nested", "is_quantized", "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu"})
    | frozenset({"T", "H", "mT", "mH", "real", "imag", "data", "is_leaf", "retains_grad", "__dict__"})
    | _TENSOR_STATE
)
# Of its state, what says what a tensor is a view of.
_AUTOGRAD_STATE = frozenset({"_base"})


def load_attr(interp: Interpreter, obj: Any, name: str) -> Any:
    """getattr(obj, name) in the region.

    Raises:
        AttributeError: there is none.
        Break: the attribute needs data, autograd state or native code with effects.
    """
    key = (id(obj), name)
    kind = type(obj)
    if not interp.effects.attributes:
        found = interp.attributes.get(key, MISSING)
        if found is not MISSING and not _has_shadow(interp, obj):
            return found
    if kind in interp.plain:
        return _load_plain_attr(interp, obj, name)
    if kind is TraceTensor:
        return _load_tensor_attr(interp, obj, name)
    if is_dtensor(kind):
        return load_dtensor_attr(interp, obj, name)
    if kind is torch.SymInt or kind is torch.SymFloat:
        return getattr(fixed(obj), name)
    if kind in _NATIVE_TYPES:
        return getattr(obj, name)
    if issubclass(kind, types.ModuleType):
        value = _load_python_module_attr(interp, obj, name)
    elif issubclass(kind, type):
        value = _load_class_attr(interp, obj, name)
    elif kind is super:
        return _load_super_attr(interp, obj, name)
    elif kind is types.FunctionType:
        return _load_function_attr(interp, obj, name)
    elif issubclass(kind, enum.Enum):
        return _load_enum_attr(interp, obj, name)
    elif issubclass(kind, threading.local):
        return _load_local_attr(interp, obj, name)
    elif kind is types.TracebackType and interp.environment.entry(obj) is None:
        raise Break("LW117", "an exception whose traceback is read")
    elif kind is types.CellType:
        return _load_cell_contents(interp, obj) if name == "cell_contents" else getattr(obj, name)
    elif kind is types.MethodType:
        return (
            getattr(obj, name) if name in ("__func__", "__self__") else load_attr(interp, obj.__func__, name)
        )
    elif kind is Generator:
        return _load_generator_attr(obj, name)
    else:
        getter, _ = interp.lookup(kind, "__getattribute__")
        if isinstance(getter, types.FunctionType):
            try:
                return interp.call(getter, [obj, name], {})
            except AttributeError:
                fallback, _ = interp.lookup(kind, "__getattr__")
                if fallback is MISSING:
                    raise
                return interp.call(fallback, [obj, name], {})
        interp.plain.add(kind)
        return _load_plain_attr(interp, obj, name)
    if not interp.effects.attributes and type(value) is not Appended:
        interp.attributes[key] = value
        interp.kept.append(obj)
    return value


def _has_shadow(interp: Interpreter, obj: Any) -> bool:
    return isinstance(obj, types.ModuleType) and dict_shadow(interp, obj.__dict__) is not None


def load_instance_attr(interp: Interpreter, obj: Any, name: str) -> Any:
    """object.__getattribute__(obj, name).

    Raises:
        AttributeError: there is none.
    """
    value = _found_of_instance(interp, obj, name)
    if value is MISSING:
        raise no_attribute(obj, name)
    return value


def _load_plain_attr(interp: Interpreter, obj: Any, name: str) -> Any:
    """object.__getattribute__, then `__getattr__` of the type, in this order."""
    try:
        value = _found_of_instance(interp, obj, name)
    except AttributeError:
        # Of a property, say.
        if interp.lookup(type(obj), "__getattr__")[0] is MISSING:
            raise
        value = MISSING
    return _load_by_fallback(interp, obj, name) if value is MISSING else value


def _found_of_instance(interp: Interpreter, obj: Any, name: str) -> Any:
    """What `object.__getattribute__` finds; MISSING if nothing."""
    kind = type(obj)
    entry = interp.environment.owner(obj)
    found, owner = interp.lookup(kind, name)
    if isinstance(found, types.MemberDescriptorType):
        written = None if entry is None else interp.effects.attribute(obj, name)
        if written is not None:
            return MISSING if written.deleted else written.value
        return _get_descriptor(interp, found, owner, obj, name, entry)
    if found is not MISSING and _is_data_descriptor(interp, found):
        return _get_descriptor(interp, found, owner, obj, name, entry)
    own = read_own(interp, obj, name, entry)
    if own is not MISSING:
        return own
    held = written_on_class(interp, kind, name)
    if held is not None:
        return held.value
    return MISSING if found is MISSING else _get_descriptor(interp, found, owner, obj, name, entry)


def _load_by_fallback(interp: Interpreter, obj: Any, name: str) -> Any:
    """What `__getattr__` of the object's class gives.

    Raises:
        AttributeError: there is none.
    """
    kind = type(obj)
    fallback, _ = interp.lookup(kind, "__getattr__")
    if fallback is GETATTR:
        return load_registered(interp, obj, name)
    if fallback is not MISSING:
        return interp.call(fallback, [obj, name], {})
    raise no_attribute(obj, name)


def has_attr(interp: Interpreter, obj: Any, name: str) -> bool:
    """hasattr(obj, name) in the region."""
    try:
        load_attr(interp, obj, name)
    except AttributeError:
        return False
    return True


# --- instances --------------------------------------------------------------------------------------------------------


def _is_data_descriptor(interp: Interpreter, found: Any) -> bool:
    """Whether a class attribute goes before what an instance has under the name."""
    kind = type(found)
    return kind is not types.FunctionType and (
        interp.lookup(kind, "__set__")[0] is not MISSING
        or interp.lookup(kind, "__delete__")[0] is not MISSING
    )


def _is_python(found: property) -> bool:
    return isinstance(found.fget, types.FunctionType)


def _get_descriptor(
    interp: Interpreter, found: Any, owner: type, obj: Any, name: str, entry: Entry | None
) -> Any:
    """found.__get__(obj, type(obj)), where `found` is what a class attribute of `owner` is: with super() another than
    the one that the object's class has under the name."""
    if isinstance(found, types.FunctionType):
        return types.MethodType(found, obj)
    if type(found) is enum.property:
        descriptor = interp.environment.known(found, f"{owner.__name__}.{name}")
        function = load_attr(interp, descriptor, "fget")
        if function is not None:
            return interp.call(function, [obj], {})
    getter, _ = interp.lookup(type(found), "__get__")
    if getter is MISSING:
        return interp.environment.known(found, f"{owner.__name__}.{name}")
    if getter is _CACHED_GET:
        return _get_cached(
            interp, interp.environment.known(found, f"{owner.__name__}.{name}"), obj, name, entry
        )
    if isinstance(getter, types.FunctionType):
        descriptor = interp.environment.known(found, f"{owner.__name__}.{name}")
        return interp.call(getter, [descriptor, obj, interp.environment.python_type(obj)], {})
    if getter is _PROPERTY_GET:
        if found.fget is None:
            found.__get__(obj)  # raises
        if entry is not None and owner.__module__ in _DISTRIBUTED and not _is_python(found):
            # A question to C++: the name of a process group.
            return interp.environment.read(
                found.__get__(obj), Attr(entry.source, name), f"{entry.name}.{name}"
            )
        return interp.call(found.fget, [obj], {})
    if getter is _CLASSMETHOD_GET:
        return _bound_to_class(interp, found, owner, interp.environment.python_type(obj), name)
    if getter is _STATICMETHOD_GET:
        return _wrapped(interp, found, owner, name)
    return _get_natively(interp, found, owner, obj, name, entry)


def _get_natively(
    interp: Interpreter, found: Any, owner: type, obj: Any, name: str, entry: Entry | None
) -> Any:
    """found.__get__(obj, type(obj)) of a descriptor of native code, guarded.

    Raises:
        AttributeError: the object has nothing there.
        Break: LW111: no guard can look at what it reads.
    """
    if name == "__class__":
        return interp.environment.python_type(obj)
    kind = type(obj)
    if entry is None or isinstance(found, _METHOD_DESCRIPTORS) or issubclass(kind, tuple):
        entry = None  # the items of a tuple were read with it
        value = found.__get__(obj, type(obj))
    else:
        try:
            value = found.__get__(entry.value, type(entry.value))
        except AttributeError:
            interp.guards.add(entry.source, "predicate", HasNothing(found))
            raise
    if _is_bound(value, found, obj if entry is None else entry.value):
        # A method of native code, such as one under functools.lru_cache.
        return types.MethodType(interp.environment.known(value.__func__, f"{owner.__name__}.{name}"), obj)
    if entry is None:
        return value
    if name == "__dict__":
        return whole_dict(interp, entry, obj, value)
    label = f"{entry.name}.{name}"
    if is_slot(found):
        return interp.environment.read(value, Slot(entry.source, found), label, slow=entry.known)
    getattribute, _ = interp.lookup(kind, "__getattribute__")
    if interp.lookup(kind, name)[0] is found and not isinstance(getattribute, types.FunctionType):
        return interp.environment.read(value, Attr(entry.source, name), label)
    if not entry.known:
        raise Break("LW111", f"{owner.__name__}.{name} of a {kind.__name__}, which has another {name},")
    reader = functools.partial(found.__get__, entry.value, type(entry.value))
    return interp.environment.read(value, Result(Known(reader, label)), label)


@record
class HasNothing(Shown):
    """A predicate: whether a descriptor of native code finds nothing in an object."""

    descriptor: Any

    def __call__(self, obj: Any) -> bool:
        try:
            self.descriptor.__get__(obj, type(obj))
        except AttributeError:
            return True
        return False


def _is_bound(value: Any, found: Any, receiver: Any) -> bool:
    """Whether a descriptor of native code gave a method of the receiver, made of itself or of what it wraps."""
    return (
        type(value) is types.MethodType
        and value.__self__ is receiver
        and (value.__func__ is found or value.__func__ is getattr(found, "__func__", None))
    )


def _bound_to_class(interp: Interpreter, found: Any, owner: type, cls: type, name: str) -> Any:
    """What a classmethod gives."""
    wrapped = _wrapped(interp, found, owner, name)
    if _CLASSMETHODS_CHAIN and interp.lookup(type(wrapped), "__get__")[0] is not MISSING:
        return _get_descriptor(interp, wrapped, owner, cls, name, _entry_of_class(cls))
    return types.MethodType(wrapped, cls)


def _entry_of_class(cls: type) -> Entry:
    return Entry(cls, Known(cls, cls.__qualname__), True, cls.__qualname__)


def _get_cached(interp: Interpreter, descriptor: Any, obj: Any, name: str, entry: Entry | None) -> Any:
    """What a functools.cached_property gives. Only super() comes here where the instance has something under its name.

    Raises:
        Break: LW103: it keeps its values under another name.
    """
    function, place = (load_attr(interp, descriptor, slot) for slot in ("func", "attrname"))
    if _CACHED_LOCKS:
        load_attr(interp, descriptor, "lock")
    if place != name:
        raise Break("LW103", f"a cached_property called {name} that is kept as {place}")
    if entry is not None and _goes_first(interp, interp.lookup(type(obj), name)[0]):
        # Asked by super(): to set the attribute would set another one.
        whole_dict(interp, entry, obj, cast(dict[str, Any], instance_dict(entry.value)))
        shadow = dict_shadow(interp, instance_dict(entry.value))
        own = cast(dict[str, Any], shadow).get(name, MISSING)
    else:
        own = read_own(interp, obj, name, entry)
    if own is not MISSING:
        return own
    value = interp.call(function, [obj], {})
    shadow = dict_shadow(interp, instance_dict(obj))
    if entry is None:
        obj.__dict__[name] = value
    elif shadow is not None:
        shadow[name] = value
    else:
        interp.attributes.clear()
        interp.effects.write_attribute(obj, name, value)
    return value


def _wrapped(interp: Interpreter, found: Any, owner: type, name: str) -> Any:
    """The callable in a classmethod or staticmethod of a class."""
    return interp.environment.known(found.__func__, f"{owner.__name__}.{name}")


# --- other kinds of objects -------------------------------------------------------------------------------------------


def _load_tensor_attr(interp: Interpreter, tensor: TraceTensor, name: str) -> Any:
    lifted = interp.environment.lifting.of_trace.get(id(tensor))
    if name == "__class__":
        return interp.environment.python_type(tensor)
    if name == "requires_grad" and lifted is not None and not isinstance(root_of(lifted.source), Known):
        # The guard on the tensor has it too; that it was asked for is what exports have to know.
        interp.guards.add(Attr(lifted.source, name), "equals", lifted.real.requires_grad)
    if name == "grad" and lifted is not None and lifted.real.is_leaf and lifted.real.grad is None:
        interp.guards.add(Attr(lifted.source, name), "is", None)
        return None
    if name in _GUARDED_STATE and lifted is not None:
        value = getattr(lifted.real, name)
        interp.guards.add(Attr(lifted.source, name), "equals", value)
        return value
    if name in _AUTOGRAD_STATE and (lifted is None or getattr(lifted.real, name) is not None):
        raise Break("LW116", f"reading .{name} of a tensor")
    if name in _TENSOR_STATE and lifted is not None:
        if lifted.real.requires_grad or (name in ("grad", "_grad") and lifted.real.grad is not None):
            raise Break("LW116", f"reading .{name} of a tensor")
        if name in _AUTOGRAD_STATE:
            interp.guards.add(Attr(lifted.source, name), "is", None)
            return None
    return _load_plain_tensor_attr(interp, tensor, name)


def _load_plain_tensor_attr(interp: Interpreter, tensor: TraceTensor, name: str) -> Any:
    """What the class of an outside tensor and its own `__dict__` have under a name, or the class of one that the region
    computed. What stands for it has attributes of its own, which are none of the program's."""
    kind = interp.environment.python_type(tensor)
    found, owner = interp.lookup(kind, name)
    lifted = interp.environment.lifting.of_trace.get(id(tensor))
    if name == "__dict__" and lifted is None:
        raise Break("LW116", f"reading .{name} of a tensor")
    if lifted is not None and (name == "__dict__" or not _goes_first(interp, found)):
        # The items of the outside tensor, whatever stands for it.
        entry = Entry(lifted.real, lifted.source, lifted.bound, lifted.name)
        table = cast(dict[str, Any], lifted.real.__dict__)
        if name == "__dict__":
            return whole_dict(interp, entry, tensor, table)
        shadow = dict_shadow(interp, table)
        if shadow is not None and name in shadow:
            return shadow[name]
        if shadow is None:
            if name in table:
                return read_item(interp, entry, table, name)
            guard_missing(interp, entry, table, name)
    if lifted is not None and name in ("is_conj", "is_neg"):
        interp.guards.add(lifted.source, "predicate", _is_resolved)
    if found is MISSING:
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    if owner in torch.Tensor.__mro__ and _is_property(found) and name not in _TENSOR_PROPERTIES:
        raise Break("LW116", f"reading .{name} of a tensor")
    if owner not in TraceTensor.__mro__ and name not in vars(TraceTensor):
        return _get_descriptor(interp, found, owner, tensor, name, None)
    if interp.lookup(type(found), "__get__")[0] is MISSING:
        return interp.environment.known(found, f"{owner.__name__}.{name}")
    return getattr(tensor, name)


def _is_property(found: Any) -> bool:
    return isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType, property))


def _is_resolved(tensor: torch.Tensor) -> bool:
    """Whether a tensor is neither conjugated nor negated lazily, which no program that takes it can."""
    return not tensor.is_conj() and not tensor.is_neg()


def _goes_first(interp: Interpreter, found: Any) -> bool:
    return found is not MISSING and _is_data_descriptor(interp, found)


def _load_python_module_attr(interp: Interpreter, module: types.ModuleType, name: str) -> Any:
    table = module.__dict__
    source = Known(table, f"globals of {module.__name__}")
    kind = type(module)
    if module.__name__.partition(".")[0] not in ("torch", *sys.stdlib_module_names):
        # The class of a module can be replaced by one with properties.
        interp.guards.add(Known(module, module.__name__), "type", kind)
    found, owner = interp.lookup(kind, name) if kind is not types.ModuleType else (MISSING, kind)
    if found is not MISSING and _is_data_descriptor(interp, found):
        entry = Entry(module, Known(module, module.__name__), True, module.__name__)
        return _get_descriptor(interp, found, owner, module, name, entry)
    if isinstance(module, (torch._ops._Ops, torch._ops._OpNamespace)):
        hasattr(module, name)  # it enters what it is first asked for in its table, as it will in eager
    value = load_item(interp, table, source, name, f"{module.__name__}.{name}", slow=True)
    if value is not MISSING:
        return value
    held = written_on_class(interp, kind, name)
    if held is not None:
        return held.value
    if found is not MISSING:
        entry = Entry(module, Known(module, module.__name__), True, module.__name__)
        return _get_descriptor(interp, found, owner, module, name, entry)
    if module.__name__.partition(".")[0] != "torch" and name not in _OF_MODULES:
        fallback = load_item(
            interp, table, source, "__getattr__", f"{module.__name__}.__getattr__", slow=True
        )
        if fallback is not MISSING:
            return interp.call(fallback, [name], {})
    if name in table:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")  # the region deleted it
    # A lazy module imports on first use, which changes nothing that can be seen.
    return interp.environment.known(getattr(module, name), f"{module.__name__}.{name}")


def _load_enum_attr(interp: Interpreter, member: enum.Enum, name: str) -> Any:
    """An attribute of a member of an enumeration: there is one of each, which may have state."""
    table = cast(dict[str, Any], member.__dict__)
    entry = Entry(member, Known(member, str(member)), True, str(member))
    plain = name
    if name in _ENUM_GETTERS:
        descriptor, place = interp.lookup(type(member), name)
        if place is enum.Enum:
            getter = load_attr(interp, interp.environment.known(descriptor, f"Enum.{name}"), "fget")
            if getter is not _ENUM_GETTERS[name]:
                return interp.call(getter, [member], {})
            plain = f"_{name}_"
    found, owner = interp.lookup(type(member), plain)
    held = interp.effects.attribute(member, plain)
    if held is not None:
        if held.deleted:
            raise AttributeError(f"{type(member).__name__!r} object has no attribute {name!r}")
        return held.value
    goes_first = found is not MISSING and _is_data_descriptor(interp, found)
    shadow = dict_shadow(interp, table)
    if shadow is not None and plain in shadow and not goes_first:
        return shadow[plain]
    if shadow is None and plain in table and not goes_first:
        return read_item(interp, entry, table, plain)
    if shadow is None:
        guard_missing(interp, entry, table, plain)
    if found is MISSING:
        raise AttributeError(f"{type(member).__name__!r} object has no attribute {name!r}")
    return _get_descriptor(interp, found, owner, member, plain, entry)


def _load_cell_contents(interp: Interpreter, cell: types.CellType) -> Any:
    with contextlib.suppress(NameError):
        return interp.load_cell(cell, "cell_contents")
    raise ValueError("Cell is empty")


def _load_generator_attr(generator: Generator, name: str) -> Any:
    """An attribute of a generator of the region, for which an object with attributes of its own stands."""
    if name in _GENERATOR_METHODS:
        return getattr(generator, name)
    if name == "__class__":
        return types.GeneratorType
    if hasattr(types.GeneratorType, name):
        raise Break("LW111", f"{name} of a generator is read")
    raise AttributeError(f"'generator' object has no attribute {name!r}")


def _load_local_attr(interp: Interpreter, local: threading.local, name: str) -> Any:
    """An attribute of the calling thread."""
    entry = interp.environment.entry(local)
    if entry is None:
        raise Break("LW111", "a threading.local that the region made is read")
    if name == "__dict__":
        return whole_dict(interp, entry, local, local.__dict__)
    held = interp.effects.attribute(local, name)
    if held is not None and not held.deleted:
        return held.value
    found, owner = interp.lookup(type(local), name)
    if found is not MISSING and (isinstance(found, types.FunctionType) or _is_data_descriptor(interp, found)):
        return _get_descriptor(interp, found, owner, local, name, entry)
    shadow = dict_shadow(interp, instance_dict(local))
    if shadow is not None and name in shadow:
        return shadow[name]
    on_class = written_on_class(interp, type(local), name)
    if on_class is not None and (held is not None or shadow is not None or name not in local.__dict__):
        if held is None and shadow is None:
            guard_missing(interp, entry, local.__dict__, name)
        return on_class.value
    if found is not MISSING and (held is not None or shadow is not None):
        return _get_descriptor(interp, found, owner, local, name, entry)
    if held is not None or shadow is not None or not hasattr(local, name):
        interp.guards.add(entry.source, "missing_attr", name)
        raise no_attribute(local, name)
    return interp.environment.read(getattr(local, name), Attr(entry.source, name), f"{entry.name}.{name}")


def _load_class_attr(interp: Interpreter, cls: type, name: str) -> Any:
    """type.__getattribute__(cls, name), then `__getattr__` of the metaclass."""
    held = written_on_class(interp, cls, name)
    if held is not None:
        return held.value
    of_meta, meta = interp.lookup(type(cls), name)
    if of_meta is not MISSING and _is_data_descriptor(interp, of_meta):
        return _get_from_metaclass(interp, cls, of_meta, meta, name)
    found, owner = interp.lookup(cls, name)
    if found is not MISSING:
        return _get_from_class(interp, found, owner, cls, name)
    held = written_on_class(interp, type(cls), name)
    if held is not None:
        return held.value
    if of_meta is not MISSING:
        return _get_from_metaclass(interp, cls, of_meta, meta, name)
    fallback, _ = interp.lookup(type(cls), "__getattr__")
    if isinstance(fallback, types.FunctionType):
        return interp.call(fallback, [cls, name], {})
    raise no_attribute(cls, name)


def _get_from_class(interp: Interpreter, found: Any, owner: type, cls: type, name: str) -> Any:
    """found.__get__(None, cls), where `found` is what a class attribute of `owner` is."""
    label = f"{owner.__name__}.{name}"
    if isinstance(found, types.FunctionType):
        return interp.environment.known(found, label)
    getter, _ = interp.lookup(type(found), "__get__")
    if isinstance(getter, types.FunctionType):
        return interp.call(getter, [interp.environment.known(found, label), None, cls], {})
    if getter is _CLASSMETHOD_GET:
        return _bound_to_class(interp, found, owner, cls, name)
    if getter is _STATICMETHOD_GET:
        return _wrapped(interp, found, owner, name)
    value = found if getter is MISSING else found.__get__(None, cls)
    if isinstance(value, types.MethodType) and isinstance(value.__self__, type):
        return value
    return interp.environment.known(value, f"{cls.__name__}.{name}")


def _get_from_metaclass(interp: Interpreter, cls: type, found: Any, meta: type, name: str) -> Any:
    """What the metaclass of a class has, or makes, under a name."""
    if meta is type and name == "__dict__":
        if interp.effects.attributes.get(id(cls), (cls, {}))[1]:
            raise Break("LW111", f"{cls.__qualname__}.__dict__ is read after attributes were written")
        return interp.environment.namespace(cls)
    if meta is type and name == "__mro__":
        interp.environment.classes.guard_bases(cls)
        return cls.__mro__
    return _get_descriptor(interp, found, meta, cls, name, _entry_of_class(cls))


def _seen_super(interp: Interpreter, obj: super) -> super:
    """A super object around its receiver as the region sees it."""
    view = cast(Any, obj)
    entry = interp.environment.owner(obj)
    if entry is None or view.__self__ is None:
        return obj
    if not entry.known:
        interp.guards.add(Attr(entry.source, "__thisclass__"), "is", view.__thisclass__)
    receiver = interp.environment.held(
        obj, view.__self__, lambda source: Attr(source, "__self__"), f"{entry.name}.__self__"
    )
    return super(view.__thisclass__, receiver)


def _load_super_attr(interp: Interpreter, obj: super, name: str) -> Any:
    """What the first class after the given one in the MRO of the receiver's class has under a name."""
    view = cast(Any, _seen_super(interp, obj))
    if name == "__class__" or view.__self_class__ is None:
        return getattr(view, name)
    interp.environment.classes.guard_bases(view.__self_class__)
    mro = view.__self_class__.__mro__
    for base in mro[mro.index(view.__thisclass__) + 1 :]:
        held = interp.effects.attribute(base, name) if interp.effects.on_classes else None
        if held is not None:
            return held.value
        # What the class inherits may lie further on, but guards its name in this one, too.
        found, _ = interp.lookup(base, name)
        if name in base.__dict__:
            return _get_by_super(interp, view, found, base, name)
    return getattr(view, name)


def _get_by_super(interp: Interpreter, view: Any, found: Any, base: type, name: str) -> Any:
    receiver = view.__self__
    if receiver is view.__self_class__:
        return _get_from_class(interp, found, base, receiver, name)
    kind = type(receiver)
    if issubclass(kind, type):
        return _get_from_metaclass(interp, receiver, found, base, name)
    if issubclass(kind, (types.ModuleType, enum.Enum)):
        label = receiver.__name__ if isinstance(receiver, types.ModuleType) else str(receiver)
        entry = Entry(receiver, Known(receiver, label), True, label)
    else:
        entry = interp.environment.owner(receiver)
    return _get_descriptor(interp, found, base, receiver, name, entry)


FUNCTION_SLOTS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
# What all functions of one `def` share.
_SAME_CODE = frozenset({"__code__", "__globals__", "__builtins__"})
FUNCTION_STATE = frozenset({"__name__", "__qualname__", "__doc__", "__module__", "__annotations__"})


def _load_function_attr(interp: Interpreter, function: types.FunctionType, name: str) -> Any:
    if id(function) in interp.inside_functions:
        return getattr(function, name)
    label = f"{function.__qualname__}.{name}"
    held = interp.effects.attribute(function, name)
    if held is not None:
        if held.deleted:
            raise AttributeError(f"'function' object has no attribute {name!r}")
        return held.value
    entry = interp.environment.functions.entry(function)
    if name in _SAME_CODE or (entry.known and name in FUNCTION_SLOTS):
        interp.environment.functions.enter(function)
        return interp.environment.known(getattr(function, name), label)
    if name in FUNCTION_STATE or name in FUNCTION_SLOTS:
        return interp.environment.read(getattr(function, name), Attr(entry.source, name), label)
    table = function.__dict__
    if name == "__dict__":
        return whole_dict(interp, entry, function, table)
    shadow = dict_shadow(interp, table)
    if shadow is not None:
        if name in shadow:
            return shadow[name]
    elif name in table:
        return read_item(interp, entry, table, name)
    else:
        guard_missing(interp, entry, table, name)
    found, _ = interp.lookup(types.FunctionType, name)
    if found is MISSING:
        raise AttributeError(f"'function' object has no attribute {name!r}")
    if isinstance(found, _METHOD_DESCRIPTORS):
        return getattr(function, name)
    value = getattr(function, name)
    if entry.known:
        return interp.environment.known(value, label)
    return interp.environment.read(value, Attr(entry.source, name), label)
