"""The program's Python code never runs while it is captured: the interpreter reads it instead.

Native code may call it all the same: a special method of an object that it is given, a property that it looks at, a
callback. Unseen, its effects would happen for the capture and never again, and what it read would be a constant that
nothing guards. So no frame of the program's begins in a thread that captures: where one is about to, the region ends,
and eager does it. What the interpreter has been through already, so that what it reads is guarded (`hash` and `==` of a
key), native code may repeat; and some of the program's code is the compiler's to run (`frames.Unwatched`).
"""

from __future__ import annotations

import abc
import gc
import importlib.util
import sys
import sysconfig
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.state.treatment import COMPILERS, package_of
from lampwork.capture.state.warned import heard
from lampwork.frames import Watched
from lampwork.signals import handler_codes

_PLACES = (
    f"{Path(__file__).parents[2]}/",
    f"{Path(torch.__file__).parent}/",
    # Wherever it is installed: where a region breaks, code objects are put together with it.
    f"{Path(getattr(importlib.util.find_spec('bytecode'), 'origin', None) or __file__).parent}/",
)
_STANDARD = ("<frozen ", sysconfig.get_path("stdlib"))


def is_program(code: types.CodeType, namespace: dict[str, Any]) -> bool:
    """Whether code is the program's own: not the compiler's, nor torch's or the standard library's."""
    name = code.co_filename
    if name.startswith(_PLACES):
        return False
    package = package_of(name)
    if package is not None:
        return package not in COMPILERS
    if name.startswith(_STANDARD):
        return False
    # What dataclasses, namedtuples and typing generate has no file, and may lie in a namespace of a class.
    home = str(namespace.get("__name__", namespace.get("__module__", "")))
    root = home.partition(".")[0]
    return not (
        name.startswith("<")
        and (root in COMPILERS or root in sys.stdlib_module_names or home.startswith("namedtuple_"))
        and root != "__main__"
    )


# By thread: the code of special methods that native code may run and what on, by id, with what has that id.
_repeated: dict[int, dict[tuple[types.CodeType, int, int], tuple[Any, Any]]] = {}


def may_repeat(method: Any, receiver: Any, other: Any = None) -> None:
    """Let native code run a method on an object (and another), since the interpreter has been through it."""
    table = _repeated.get(threading.get_ident())
    if table is not None and type(method) is types.FunctionType:
        table[method.__code__, id(receiver), id(other)] = (receiver, other)


def may_repeat_hash(key: Any) -> None:
    """Let native code hash what is a key of a dict from outside already: it does not say otherwise any more."""
    may_repeat(type(key).__hash__, key)


def _is_import(code: types.CodeType) -> bool:
    """Whether this belongs to an import, or to an annotation that `typing` evaluates."""
    return code.co_name == "<module>" or code.co_name in ("find_spec", "create_module", "exec_module")


def _is_asynchronous(code: types.CodeType, first: Any) -> bool:
    """Whether this runs at any time, whatever the thread is at: finalizers and handlers of signals."""
    if code.co_name == "__del__" or (type(first) is weakref.ref and first() is None):
        return True
    return code in handler_codes() or any(
        getattr(called, "__code__", None) is code for called in gc.callbacks
    )


def _is_subclass_hook(code: types.CodeType, first: Any) -> bool:
    """Whether this is what an abstract base class asks about a class, on whosever behalf: the compiler, too, asks the
    standard library's, to which programs add hooks. The class keeps the answer, so eager would run this once as well.
    """
    if not issubclass(type(first), abc.ABCMeta):
        return False
    return getattr(getattr(first.__subclasshook__, "__func__", None), "__code__", None) is code


def _refusal(code: types.CodeType, first: Any, second: Any) -> Break | tuple[Any] | None:
    """What raises in place of the program's code, or what its call returns."""
    table = _repeated.get(threading.get_ident())
    if table is None or (code, id(first), id(second)) in table:
        return None
    if code.co_name == "__getattribute__":
        # The compiler's own isinstance() and vars(). Where a class answers otherwise, the region ends (LW111) before
        # the program's own are gone through.
        if second == "__class__":
            return (type(first),)
        if second == "__dict__":
            return (object.__getattribute__(first, "__dict__"),)
    if _is_import(code) or _is_asynchronous(code, first) or _is_subclass_hook(code, first):
        return None
    stop = Break("LW103", f"{code.co_qualname}(), which native code calls,")
    # Native code may drop what it raises.
    heard().append(stop)
    return stop


class BreaksAtUnseenCode(Watched):
    """In this thread, what native code runs of the program raises Break."""

    def __init__(self) -> None:
        super().__init__(is_program, _refusal)
        self._before: dict[tuple[types.CodeType, int, int], tuple[Any, Any]] | None = None

    def __enter__(self) -> None:
        mine = threading.get_ident()
        self._before = _repeated.get(mine)
        _repeated[mine] = {}
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._before is None:
            del _repeated[threading.get_ident()]
        else:
            _repeated[threading.get_ident()] = self._before
