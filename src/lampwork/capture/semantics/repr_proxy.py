"""Values as native formatting sees them: `"%s" % value`, `"{}".format(value)`, `repr([value])`."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.values import PLAIN
from lampwork.capture.semantics.symbolic import fixed

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter


class Shown:
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
        return shown(self.interpreter, self.interpreter.call(getattr, [self.value, name], {}))

    def __getitem__(self, key: Any) -> Any:
        return shown(self.interpreter, self.interpreter.call(operator.getitem, [self.value, key], {}))


def shown(interp: Interpreter, value: Any, outer: tuple[int, ...] = ()) -> Any:
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
            return {key: shown(interp, item, inner) for key, item in table.items()}
        return kind(shown(interp, item, inner) for item in value)
    if kind in PLAIN:
        return fixed(value)
    own = any(interp.python_method(kind, name) is not None for name in ("__repr__", "__str__", "__format__"))
    return Shown(interp, value) if own or kind.__repr__ is object.__repr__ else value
