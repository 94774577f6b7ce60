"""Object code, linked into this process: functions by address. No LLVM is needed for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from lampwork import _C
from lampwork.errors import CodegenError
from lampwork.records import record


@record
class Code:
    """Machine code in memory: addresses by function name. The memory lives as long as this object.

    object_code: the relocatable object file (ELF) that it was linked from.
    """

    addresses: dict[str, int]
    object_code: bytes = field(repr=False)
    _library: Any = field(repr=False, compare=False)


def link(object_code: bytes, names: Sequence[str] | None = None) -> Code:
    """Link an object file into this process, for these functions of it; None: all. Undefined symbols are looked up in
    the process (the C library).

    Raises:
        CodegenError: a symbol is missing, or the object code is not of this machine.
    """
    try:
        library = _C.MachineCode(object_code)
    except ValueError as error:
        raise CodegenError(f"the generated code could not be linked: {error}") from error
    addresses = library.functions
    names = tuple(addresses) if names is None else names
    missing = [name for name in names if name not in addresses]
    if missing:
        raise CodegenError(f"the generated code has no {', '.join(missing)}")
    return Code({name: addresses[name] for name in names}, object_code, library)
