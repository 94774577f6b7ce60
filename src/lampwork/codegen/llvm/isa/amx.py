"""AMX: eight tile registers of 16 rows of 64 bytes, and instructions that multiply them.

The instructions are written with the numbers of their registers, so LLVM has none to choose, and none to spill; between
`configure` and `release` a function may call others, as those that LLVM makes use no tiles.

Linux gives a process the registers when it asks (Documentation/arch/x86/xstate.rst): the permission holds for all of
its threads, is inherited by fork and ends with exec. It is refused where a thread has an alternate signal stack too
small for the registers. Until a thread's first such instruction it has no room for them, so idle threads cost nothing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from lampwork import logs
from lampwork.codegen.llvm.builder import Builder
from lampwork.codegen.llvm.templates.ints import Int, text_of
from lampwork.codegen.target import TileUnit
from lampwork.standard import functools

FLAGS = frozenset(("amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"))
"""What a CPU must have, as the Linux kernel names it: the instructions, and those for products of few rows."""

FEATURES = "+amx-tile,+amx-bf16,+amx-int8,+avx512bf16,+avx512vnni"
"""The same for LLVM."""

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
_CONFIG_BYTES, _COLUMN_BYTES, _ROWS = 64, 16, 48


class AmxCode:
    """A `TileCode` of AMX instructions."""

    def __init__(self, b: Builder, dot: str) -> None:
        self._b, self._dot = b, dot

    def configure(self, shapes: Sequence[tuple[Int, int]]) -> None:
        self._call("ldtilecfg", f"ptr {write_configuration(self._b, shapes)}")

    def zero(self, tile: int) -> None:
        self._call("tilezero", f"i8 {tile}")

    def load(self, tile: int, pointer: str, stride: Int) -> None:
        self._call("tileloadd64", f"i8 {tile}", f"ptr {pointer}", f"i64 {text_of(stride)}")

    def store(self, tile: int, pointer: str, stride: Int) -> None:
        self._call("tilestored64", f"i8 {tile}", f"ptr {pointer}", f"i64 {text_of(stride)}")

    def dot(self, sums: int, left: int, right: int) -> None:
        self._call(self._dot, f"i8 {sums}", f"i8 {left}", f"i8 {right}")

    def release(self) -> None:
        self._call("tilerelease")

    def _call(self, name: str, *arguments: str) -> None:
        # The numbers of registers are parts of an instruction, not values.
        types = [f"{each.split()[0]}{' immarg' * each.startswith('i8')}" for each in arguments]
        self._b.module.declare(f"llvm.x86.{name}", f"declare void @llvm.x86.{name}({', '.join(types)})")
        self._b.line(f"call void @llvm.x86.{name}({', '.join(arguments)})")


def write_configuration(b: Builder, shapes: Sequence[tuple[Int, int]]) -> str:
    """The address of what `ldtilecfg` reads: palette 1, bytes and rows of each register."""
    room = b.alloca(f"[{_CONFIG_BYTES} x i8]", _CONFIG_BYTES)

    def write(at: int, type_: str, value: str) -> None:
        pointer = b.emit(f"getelementptr i8, ptr {room}, i64 {at}", "i64", 1).text
        b.line(f"store {type_} {value}, ptr {pointer}, align 1")

    write(0, f"<{_CONFIG_BYTES} x i8>", "zeroinitializer")
    write(0, "i8", "1")
    for number, (rows, columns) in enumerate(shapes):
        write(_COLUMN_BYTES + 2 * number, "i16", str(columns))
        few = str(rows) if isinstance(rows, int) else b.emit(f"trunc i64 {rows.text} to i8", "i64", 1).text
        write(_ROWS + number, "i8", few)
    return room


def _bf16(b: Builder) -> AmxCode:
    return AmxCode(b, "tdpbf16ps")


def _int8(b: Builder) -> AmxCode:
    return AmxCode(b, "tdpbssd")


UNITS = (TileUnit("bf16", 2, _bf16), TileUnit("i8", 4, _int8))


@functools.cache
def refusal() -> str:
    """Why this process may not use the tile registers; "" if it may. Asks for them on the first call, once."""
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    library.syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_long)
    if library.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0:
        return ""
    return os.strerror(ctypes.get_errno())


_reported: list[str] = []


def is_granted() -> bool:
    """Whether this process may use the tile registers. If not, the log says why, once."""
    why = refusal()
    if why and not _reported and logs.enabled("llvm"):
        _reported.append(why)
        logs.emit("llvm", f"AMX: {unavailable(why)}")
    return not why


def unavailable(why: str) -> str:
    """What a refusal means, in words."""
    return (
        f"the kernel refuses the tile registers ({why}), so products of bfloat16 and int8 are made of AVX-512's dot "
        'products; isa="avx512" (LAMPWORK_ISA) asks for these in the first place'
    )
