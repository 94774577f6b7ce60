"""`items.append(x)` on an outside list, which is not read for it.

A list that lives on between calls and is only appended to (losses, what a hook sees) is longer on each call. Where the
instruction after the one that loads a list takes its `append`, the list stays unread: nothing but which list it is, is
guarded, and what is appended to it reaches it when the region is done. If the region reads it after all, it gets a
shadow then, with what was appended to it so far.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lampwork.capture.model.frame import Frame
from lampwork.capture.model.values import Appended, Lazy
from lampwork.capture.semantics.attributes import MISSING, load_attr
from lampwork.capture.state.effects import instance_dict

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_APPEND = ("append", ("append", False), ("append", True))
_METHOD_LOADS = ("LOAD_METHOD", "LOAD_ATTR")


def load(interp: Interpreter, frame: Frame, held: Callable[[], Any], read: Callable[[], Any]) -> Any:
    """read(), which loads an outside value for the instruction that is running: `Appended` for a list of which
    the next instruction takes `append`.

    Args:
        held: gives that value as it is outside, without running code of the program.
    """
    if takes_append(frame):
        items = held()
        if type(items) is list:
            return interp.environment.shadows.keep_unread(items, read)
    return read()


def takes_append(frame: Frame) -> bool:
    """Whether the next instruction takes `append` of what the running one loads."""
    following = frame.decoded.instructions[frame.ip]
    return following.arg in _APPEND and following.name in _METHOD_LOADS


def load_attribute(interp: Interpreter, frame: Frame, name: str) -> Any:
    """The attribute of what is on top of the stack, which is popped."""
    obj = frame.stack.pop()
    if type(obj) is Appended:
        return obj
    if type(obj) is Lazy:
        if name == "append" and type(obj.value) is list:
            items = interp.environment.shadows.keep_unread(obj.value, lambda: interp.force(obj))
            return items if type(items) is Appended else load_attr(interp, items, name)
        obj = interp.force(obj)
    if not takes_append(frame):
        return load_attr(interp, obj, name)
    return load(interp, frame, lambda: _held(interp, obj, name), lambda: load_attr(interp, obj, name))


def load_global(interp: Interpreter, frame: Frame, name: str) -> Any:
    """What the globals of a frame, or the builtins, have under a name."""
    if not takes_append(frame):
        return interp.load_global(frame, name)
    return load(interp, frame, lambda: frame.globals.get(name), lambda: interp.load_global(frame, name))


def _held(interp: Interpreter, obj: Any, name: str) -> Any:
    """What the `__dict__` of an object has under a name, if that is where Python finds its attribute."""
    kind = type(obj)
    if isinstance(obj, types.ModuleType):
        return obj.__dict__.get(name)
    if isinstance(obj, type) or isinstance(interp.lookup(kind, "__getattribute__")[0], types.FunctionType):
        return None
    return (instance_dict(obj) or {}).get(name) if interp.lookup(kind, name)[0] is MISSING else None
