"""The modules of object code that the kernels of a layout are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.codegen.machine_code import Code, link
from lampwork.codegen.target import DeviceFunction, HostFunction, MachineFunction
from lampwork.errors import CodegenError, SerialError
from lampwork.serial.values import expected, items, text, whole


class Modules:
    """The modules that are needed, numbered as they come. Equal ones are one."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    @property
    def contents(self) -> tuple[bytes, ...]:
        """The object code of each module."""
        return tuple(self._numbers)

    def place(self, function: HostFunction | DeviceFunction) -> list[Any]:
        """[number of its module, its name there]; waits for code that is still being compiled.

        Raises:
            SerialError: a kernel of a card, or one that is not known by a name in object code.
            CodegenError: it could not be compiled.
        """
        if isinstance(function, DeviceFunction):
            raise SerialError("kernels of cards have no serial form")
        object_code = getattr(function.owner, "object_code", None)
        if not isinstance(object_code, bytes) or not function.name:
            raise SerialError("a kernel without object code has no serial form")
        return [self._numbers.setdefault(object_code, len(self._numbers)), function.name]


class Linked:
    """The functions of modules, each linked into this process when the first of its functions is asked for."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        self._contents = contents
        self._codes: dict[int, Code] = {}
        self._functions: dict[tuple[int, str], MachineFunction] = {}

    def __call__(self, number: int, name: str) -> HostFunction:
        """One object for each. Raises SerialError: there is no such module or function, or it cannot be linked."""
        whole(number, range(len(self._contents)))
        code = self._codes.get(number)
        try:
            if code is None:
                code = self._codes[number] = link(self._contents[number])
        except CodegenError as error:
            raise SerialError(f"module {number}: {error.cause}") from error
        if name not in code.addresses:
            raise expected(f"a function of module {number}", name)
        return self._functions.setdefault((number, name), MachineFunction(code.addresses[name], code, name))


def function_from_json(value: Any) -> tuple[int, str]:
    number, name = items(value, 2)
    return whole(number, range(1 << 31)), text(name)
