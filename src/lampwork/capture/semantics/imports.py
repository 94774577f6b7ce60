"""`import` of the interpreted program: what is imported already is found as `__import__` finds it, by guarded reads."""

from __future__ import annotations

import builtins
import sys
import types
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.frame import Frame
from lampwork.capture.model.region import Known
from lampwork.capture.semantics.attributes import MISSING, has_attr, load_attr
from lampwork.capture.semantics.held_state import load_item

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_NAMED_FROM = sys.version_info >= (3, 12)  # ImportError says which name was missing


def import_module(interp: Interpreter, frame: Frame, name: str, wanted: Any, level: int) -> Any:
    """`import name`, or `from name import wanted` with so many leading dots.

    Raises:
        Break: LW109: the import runs code, or fails.
    """
    _check_importer(interp, frame, name)
    full = _absolute(interp, frame, name, level) if level else name
    module = _imported(interp, full)
    if not wanted:
        if level:
            raise Break("LW109", full)  # no statement asks for this
        first = name.partition(".")[0]
        return module if first == name else _imported(interp, first)
    if has_attr(interp, module, "__path__"):
        for item in wanted:
            if item == "*":
                raise Break("LW109", f"{full}.*")
            if not has_attr(interp, module, item):
                _imported(interp, f"{full}.{item}")
    return module


def import_from(interp: Interpreter, module: Any, name: str) -> Any:
    """`from module import name`, of a module that is imported.

    Raises:
        ImportError: it has nothing of this name, which is no module either.
    """
    try:
        return load_attr(interp, module, name)
    except AttributeError:
        package: Any = load_attr(interp, module, "__name__")
        found = _loaded(interp, f"{package}.{name}")
        if found is not MISSING:
            return found
    path = load_attr(interp, module, "__file__") if has_attr(interp, module, "__file__") else None
    error = ImportError(
        f"cannot import name {name!r} from {package!r} ({path or 'unknown location'})",
        name=package,
        path=path,
        **({"name_from": name} if _NAMED_FROM else {}),
    )
    raise error


def _check_importer(interp: Interpreter, frame: Frame, name: str) -> None:
    """
    Raises:
        Break: LW109: the program put something in the place of the builtin `__import__`.
    """
    source = Known(frame.builtins, "builtins")
    found = load_item(interp, frame.builtins, source, "__import__", "__import__", slow=True)
    native = isinstance(found, types.BuiltinFunctionType) and found.__self__ is builtins
    if not native or found.__name__ != "__import__":
        raise Break("LW109", f"{name}, by an __import__ of the program,")


def _absolute(interp: Interpreter, frame: Frame, name: str, level: int) -> str:
    """The name of a module that is given relative to the package of a frame.

    Raises:
        Break: LW109: the package is not plainly known, where Python warns or raises.
    """
    table = frame.globals
    source = Known(table, f"globals of {table.get('__name__', 'globals')}")
    package = load_item(interp, table, source, "__package__", "__package__", slow=False)
    parent = getattr(table.get("__spec__"), "parent", package)
    above = package.rsplit(".", level - 1) if type(package) is str else []
    if not package or parent != package or len(above) < level:
        raise Break("LW109", name or "a package")
    return f"{above[0]}.{name}" if name else above[0]


def _imported(interp: Interpreter, full: str) -> Any:
    """
    Raises:
        Break: LW109: the module is not imported yet.
    """
    found = _loaded(interp, full)
    spec = getattr(found, "__dict__", {}).get("__spec__")
    if found is MISSING or found is None or getattr(spec, "_initializing", False):
        raise Break("LW109", full)
    return found


def _loaded(interp: Interpreter, full: str) -> Any:
    """What sys.modules has under a name; MISSING if nothing."""
    table = cast("dict[Any, Any]", sys.modules)
    return load_item(interp, table, Known(table, "sys.modules"), full, full, slow=True)
