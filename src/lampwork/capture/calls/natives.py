"""What a Python function of torch that runs as it is depends on: the globals that its code names.

Such a function is not interpreted, so nothing it reads is noted on the way. What it can read is in its code: names of
globals and builtins, and attributes of modules among them. All are guarded before it runs, and so are those of the
functions of torch that it names. One that the program put in place of torch's is not torch's to run.
"""

from __future__ import annotations

import builtins
import dis
import enum
import inspect
import sys
import types
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import DictItem, Known
from lampwork.capture.model.values import CONSTANTS, PLAIN, Generator
from lampwork.capture.semantics.attributes import has_attr, load_attr
from lampwork.capture.semantics.held_state import read_state
from lampwork.capture.semantics.symbolic import fixed
from lampwork.capture.state.treatment import is_of_library, is_value, slots_of, treatment
from lampwork.capture.state.unseen import may_repeat
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# Python modules whose functions compute only; interpreting them would be slow and gain nothing.
NATIVE_PYTHON_MODULES = frozenset(
    {"re", "inspect", "typing", "enum", "numbers", "keyword", "string", "fractions"}
)
_READ_OTHERWISE = (list, tuple, dict, set, type, torch.nn.Module, torch.Tensor)
_NUMBERS = ("__index__", "__int__", "__float__", "__complex__")
# They ask whether an argument overrides torch functions, which trace tensors do not.
_UNREAD = frozenset({"torch.overrides", "torch._jit_internal"})


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[tuple[str, str | None], ...]:
    """The globals that a code object loads, each with the attribute that is read of it at once, if one is."""
    found: dict[tuple[str, str | None], None] = {}
    codes = [code]
    while codes:
        current = codes.pop()
        codes += [constant for constant in current.co_consts if isinstance(constant, types.CodeType)]
        steps = list(dis.get_instructions(current))
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if step.opname == "LOAD_GLOBAL":
                reads = following is not None and following.opname in ("LOAD_ATTR", "LOAD_METHOD")
                found[step.argval, cast("Any", following).argval if reads else None] = None
    return tuple(found)


def guard_native(interp: Interpreter, function: types.FunctionType) -> None:
    """Guard what a function of torch, which is to run as it is, reads of the outside.

    Raises:
        Break: LW103: the program put a function of its own in the place of one of torch's.
    """
    seen = interp.natives
    waiting = [function]
    while waiting:
        current = waiting.pop()
        home = cast(str, current.__globals__.get("__name__", ""))
        if id(current) in seen or home in _UNREAD:
            continue
        if not is_of_library(current.__code__):
            raise Break("LW103", f"{current.__qualname__}(), which stands in for a function of torch,")
        seen[id(current)] = current
        if home.partition(".")[0] != "torch":
            continue
        interp.environment.functions.enter(current)
        for name, attribute in _names(current.__code__):
            value = _guard_item(interp, current.__globals__, home, name)
            if attribute is not None and isinstance(value, types.ModuleType):
                value = _guard_item(interp, value.__dict__, value.__name__, attribute)
            if type(value) is types.FunctionType:
                waiting.append(value)


def guard_method(interp: Interpreter, cls: type, name: str) -> None:
    """Guard what a method of a class of torch, which is to run as it is on an object of the region, reads: what the
    class and its bases have under the names in its code and behind operators, and so on for those methods.

    Raises:
        Break: LW103: the program put a function of its own in the place of one of torch's.
    """
    bases = cls.__mro__[:-1]
    operators = (n for base in bases for n, held in vars(base).items() if type(held) is types.FunctionType)
    names = dict.fromkeys((name, *(n for n in operators if n.startswith("__") and n.endswith("__"))))
    waiting = list(names)
    while waiting:
        current = waiting.pop()
        for base in bases:
            found, owner = interp.lookup(base, current)
            if owner is base and type(found) is types.FunctionType:
                guard_native(interp, found)
                following = [n for n in found.__code__.co_names if n not in names]
                names |= dict.fromkeys(following)
                waiting += following


def guard_looked_at(interp: Interpreter, value: Any) -> None:
    """Guard what `inspect` and `typing` read of a function, a method or a class that they look at.

    Raises:
        Break: LW111: they look at a generator of the region, for which another object stands.
    """
    if type(value) is Generator:
        raise Break("LW111", f"a generator of {value.frame.function.__qualname__} is looked at")
    if isinstance(value, types.MethodType):
        value = value.__func__
    if isinstance(value, type):
        for name in ("__init__", "__new__", "__signature__"):
            found, _ = interp.lookup(value, name)
            if type(found) is types.FunctionType:
                guard_looked_at(interp, found)
        return
    if type(value) is not types.FunctionType or id(value) in interp.inside_functions:
        return
    interp.environment.functions.looked_at(value)
    for name in ("__wrapped__", "__signature__"):
        if has_attr(interp, value, name):
            guard_looked_at(interp, load_attr(interp, value, name))


def guard_held(interp: Interpreter, value: Any) -> None:
    """Guard all that an outside object of a library's Python class holds, since the library's code runs as it is.

    Raises:
        Break: LW111: something in it cannot be guarded.
    """
    if type(value).__module__ not in NATIVE_PYTHON_MODULES or interp.environment.entry(value) is None:
        return
    if isinstance(value, (type, enum.Enum)) or treatment(type(value)) != "plain":
        return
    held = list(read_state(interp, value).values())
    for slot in slots_of(type(value)):
        if not hasattr(value, slot.__name__):
            raise Break("LW111", f"a {type(value).__name__} without {slot.__name__}")
        held.append(load_attr(interp, value, slot.__name__))
    for part in held:
        guard_held(interp, fixed(part))


def guard_answers(interp: Interpreter, function: types.FunctionType, values: list[Any]) -> None:
    """Guard the docstring or the annotations that a function of `inspect` or `typing` gives.

    Raises:
        Break: LW103: it looks for them where no guard sees.
    """
    if function not in (inspect.getdoc, inspect.get_annotations, typing.get_type_hints) or not values:
        return
    value = values[0]
    if function is inspect.getdoc and type(value) is types.FunctionType:
        load_attr(interp, value, "__doc__")
    elif function is not inspect.getdoc and type(value) is types.FunctionType:
        _guard_notes(interp, load_attr(interp, value, "__annotations__"), value.__globals__)
    elif function is not inspect.getdoc and isinstance(value, type):
        for base in value.__mro__:
            found, owner = interp.lookup(base, "__annotations__")
            if owner is base and type(found) is dict:
                notes = interp.environment.known(found, f"{base.__qualname__}.__annotations__")
                _guard_notes(interp, notes, vars(sys.modules[base.__module__]))
    else:
        raise Break("LW103", f"{function.__module__}.{function.__name__}() of a {type(value).__name__}")


def _guard_notes(interp: Interpreter, annotations: dict[str, Any], names: dict[str, Any]) -> None:
    """Guard what annotations that are text name.

    Raises:
        Break: LW103: there is more text in them.
    """
    for note in annotations.values():
        if not isinstance(note, str):
            continue
        code = compile(f"lambda: {note}", "<annotation>", "eval").co_consts[0]
        if any(isinstance(constant, str) for constant in code.co_consts):
            raise Break("LW103", f"the annotation {note!r}, which has text in it,")
        for name, attribute in _names(code):
            value = _guard_item(interp, names, str(names.get("__name__")), name)
            if attribute is not None and isinstance(value, types.ModuleType):
                _guard_item(interp, value.__dict__, value.__name__, attribute)


def is_python_sequence(interp: Interpreter, value: Any) -> bool:
    """Whether native code would read the items of an object by methods in Python."""
    kind = type(value)
    if kind in PLAIN or not hasattr(kind, "__getitem__") or isinstance(value, _READ_OTHERWISE):
        return False
    return all(interp.python_method(kind, name) is not None for name in ("__len__", "__getitem__"))


def guard_numbers(interp: Interpreter, values: Iterable[Any], within: tuple[Iterable[Any], ...] = ()) -> None:
    """Guard what objects of Python classes give where native code asks them for a number: it runs their methods unseen.
    `within`: the containers that `values` are found in, which may be among them.

    Raises:
        Break: LW103 where such a method has effects.
    """
    for value in values:
        kind = type(value)
        if kind in (list, tuple):
            if not any(value is each for each in (values, *within)):
                guard_numbers(interp, value, (values, *within))
        elif kind in PLAIN or is_value(kind):
            continue
        elif any(hasattr(kind, name) for name in _NUMBERS) and id(value) not in interp.gives_numbers:
            # Its methods may hand the object to native code themselves.
            interp.gives_numbers.add(id(value))
            try:
                _guard_numbers_of(interp, value)
            finally:
                interp.gives_numbers.discard(id(value))


def _guard_numbers_of(interp: Interpreter, value: Any) -> None:
    before = interp.effects.writes
    for name in _NUMBERS:
        method = interp.python_method(type(value), name)
        if method is not None:
            # Native code has the number itself, so the region is for that one.
            fixed(interp.call(method, [value], {}))
            may_repeat(method, value)
    if interp.effects.writes != before:
        raise Break("LW103", f"a number of a {type(value).__name__}, whose methods write to objects,")


def _guard_item(interp: Interpreter, table: dict[str, Any], name: str, key: str) -> Any:
    """What a namespace (or else the builtins) has under a name, guarded."""
    label = f"globals of {name}"
    if (
        id(table) in interp.environment.shadows.of_original
        or interp.effects.global_value(table, key) is not None
    ):
        raise Break("LW103", f"a function of {name}, whose {key} was written,")
    interp.guards.version(table, label)
    if key not in table:
        interp.guards.add(Known(table, label), "missing_key", key, slow=True)
        table, label = builtins.__dict__, "builtins"
        if key not in table:
            return None
        interp.guards.version(table, label)
    value = table[key]
    kind = "equals" if type(value) in CONSTANTS else "is"
    interp.guards.add(DictItem(Known(table, label), key), kind, value, slow=True)
    return value
