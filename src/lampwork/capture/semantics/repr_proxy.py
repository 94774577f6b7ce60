"""Values as native formatting sees them: `"%s" % value`, `"{}".format(value)`, `repr([value])`."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.values import CONSTANTS, PLAIN
from lampwork.capture.semantics.attributes import load_attr
from lampwork.capture.semantics.held_state import read_state
from lampwork.capture.semantics.symbolic import fixed
from lampwork.capture.state.treatment import is_value
from lampwork.standard import operator

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# Their text is their name, or their address.
_NAMED = (types.BuiltinFunctionType, types.ModuleType, types.CodeType, types.WrapperDescriptorType)
_COPIED = (collections.OrderedDict, collections.defaultdict, collections.deque)
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))


class ReprProxy:
    """Stands for an object whose class has a text of its own: asked for it, it asks the interpreter."""

    __slots__ = ("interpreter", "value")

    def __init__(self, interpreter: Interpreter, value: Any) -> None:
        self.interpreter = interpreter
        self.value = value

    def __repr__(self) -> str:
        return cast(str, self.interpreter.call(repr, [self.value], {}))

    def __str__(self) -> str:
        return cast(str, self.interpreter.call(str, [self.value], {}))

    def __format__(self, spec: str) -> str:
        return cast(str, self.interpreter.call(format, [self.value, spec], {}))

    def __int__(self) -> int:
        return cast(int, self.interpreter.call(int, [self.value], {}))

    def __float__(self) -> float:
        return cast(float, self.interpreter.call(float, [self.value], {}))

    def __getattr__(self, name: str) -> Any:
        return repr_proxy(self.interpreter, self.interpreter.call(getattr, [self.value, name], {}))

    def __getitem__(self, key: Any) -> Any:
        return repr_proxy(self.interpreter, self.interpreter.call(operator.getitem, [self.value, key], {}))


def repr_proxy(interp: Interpreter, value: Any, outer: tuple[int, ...] = ()) -> Any:
    """A value that native code may turn into text; containers of Python objects are copied around their stand-ins.

    Raises:
        Break: LW103 for a container that holds itself.
    """
    kind = type(value)
    if kind in (list, tuple, dict):
        if id(value) in outer:
            raise Break("LW103", "the text of a container that holds itself")
        inner = (*outer, id(value))
        if kind is dict:
            table = cast("dict[Any, Any]", value)
            # A list of pairs would lose a key that is there twice; keys keep their hash by staying what they are.
            return {key: repr_proxy(interp, item, inner) for key, item in table.items()}
        return kind(repr_proxy(interp, item, inner) for item in value)
    if kind in PLAIN:
        return fixed(value)
    return value if is_value(kind) else ReprProxy(interp, value)


def legible(interp: Interpreter, value: Any) -> Any:
    """What native code may make the text of `value` from: all that it reads is the region's own, or guarded.

    Raises:
        Break: LW103: native code would read state that no guard sees.
    """
    kind = type(value)
    environment = interp.environment
    if kind in PLAIN or is_value(kind) or isinstance(value, _NAMED):
        return repr_proxy(interp, value) if kind in PLAIN else value
    if kind is types.FunctionType:
        if environment.differs(value):
            environment.register(value)  # its address is in the text
        load_attr(interp, value, "__qualname__")
        return value
    if isinstance(value, type):
        for name in ("__module__", "__qualname__"):
            load_attr(interp, value, name)
        return value
    if kind is types.SimpleNamespace:
        return types.SimpleNamespace(
            **{name: repr_proxy(interp, item) for name, item in read_state(interp, value).items()}
        )
    if kind is types.MappingProxyType:
        return types.MappingProxyType(repr_proxy(interp, dict(environment.behind(value))))
    if kind in _COPIED:
        return _around(interp, value)
    _, owner = interp.lookup(kind, "__repr__")
    if owner in (list, dict):
        items = list.copy(value) if owner is list else dict(dict.items(value))
        return repr_proxy(interp, items)
    if owner is tuple:
        return repr_proxy(interp, tuple(value))
    own = isinstance(value, BaseException) and environment.entry(value) is None
    if own and all(type(argument) in CONSTANTS for argument in value.args):
        return value
    if isinstance(value, _VIEWS) and all(type(part) in CONSTANTS for part in _parts(value)):
        return value
    raise Break("LW103", f"the text of a {kind.__name__}, which native code makes from its state,")


def _around(interp: Interpreter, value: Any) -> Any:
    """A copy of a container around stand-ins of what is in it."""
    if isinstance(value, collections.deque):
        held = cast("collections.deque[Any]", value)
        return collections.deque((repr_proxy(interp, item) for item in held), held.maxlen)
    items = [(key, repr_proxy(interp, item)) for key, item in cast("dict[Any, Any]", value).items()]
    if isinstance(value, collections.defaultdict):
        return collections.defaultdict(cast(Any, value).default_factory, items)
    return type(value)(items)


def _parts(view: Any) -> Iterator[Any]:
    for part in view:
        yield from cast("tuple[Any, ...]", part) if type(part) is tuple else (part,)
