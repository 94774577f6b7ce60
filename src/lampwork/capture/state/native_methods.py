"""Native methods: which descriptor a bound one comes from, and the same one bound to another object."""

from __future__ import annotations

import types
from typing import Any

_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)


def is_native_method(value: Any) -> bool:
    """Whether a value is a native method bound to an object, not a function of a module or class."""
    # isinstance: a method that takes its defining class is of a subclass.
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return False
    receiver: Any = value.__self__
    return not isinstance(receiver, (types.ModuleType, type)) and hasattr(type(receiver), value.__name__)


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


def rebind_native(method: Any, receiver: Any) -> Any:
    """A native method, bound to what stands for its object."""
    found = native_descriptor(method)
    return getattr(receiver, method.__name__) if found is None else bind_native(found, receiver)
