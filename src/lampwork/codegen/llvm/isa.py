"""The instruction sets that code is generated for: which one the host has, which one is asked for."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal, NamedTuple

from lampwork import config
from lampwork.codegen.llvm.types import compute_bits
from lampwork.errors import CodegenError, OptionError
from lampwork.loops.nodes import DType
from lampwork.records import record

IsaName = Literal["avx512", "avx2", "sse4"]


class TileShape(NamedTuple):
    """A GEMM's tile: so many vectors of columns, and the most rows that leave registers for what they are made of."""

    vectors: int
    rows: int


@record
class Isa:
    """A target: `cpu` and `features` are LLVM's names, `vector_bytes` the width of its widest vector register, of which
    it has `registers`. `tiles`: those of a GEMM, best first."""

    name: IsaName
    vector_bytes: int
    registers: int
    tiles: tuple[TileShape, ...]
    cpu: str
    features: str = ""
    has_fma: bool = True
    has_masks: bool = False  # loads and stores under a mask are as cheap as plain ones
    has_f16c: bool = True
    contract: bool = (
        False  # whether any product and the sum that it goes into may be rounded once (numerics="fast")
    )

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector; f16 and bf16 are computed in f32, and count as such."""
        return self.vector_bytes * 8 // max(compute_bits(dtype), 8)


_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c", "bmi2")
_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_SSE4 = ("sse4_2", "ssse3", "popcnt")
_WIDTHS: tuple[IsaName, ...] = ("sse4", "avx2", "avx512")


def host_flags() -> frozenset[str]:
    """The CPU's feature flags, as the Linux kernel names them.

    Raises CodegenError where they cannot be read (not Linux) or mean nothing (not x86-64).
    """
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        raise CodegenError(f"machine code is generated for x86-64 only, this is {machine or 'unknown'}")
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CodegenError(f"the CPU's features cannot be read: {error}") from error
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    raise CodegenError("the CPU's features cannot be read: /proc/cpuinfo lists no flags")


def widest(flags: frozenset[str]) -> IsaName:
    """The widest instruction set that a CPU with these flags can run."""
    if flags.issuperset(_AVX512):
        return "avx512"
    if flags.issuperset(_AVX2):
        return "avx2"
    if flags.issuperset(_SSE4):
        return "sse4"
    raise CodegenError("this CPU has no SSE4.2, the least that machine code is generated for")


def describe(name: IsaName, *, host: bool = False) -> Isa:
    """The description of `name`; with `host`, tuned for the very CPU this runs on rather than for any that has it."""
    if name == "sse4":  # without FMA a product needs a register of its own
        tiles = TileShape(2, 4), TileShape(1, 8)
        return Isa(name, 16, 16, tiles, "x86-64-v2", has_fma=False, has_masks=False, has_f16c=False)
    if name == "avx2":
        return Isa(name, 32, 16, (TileShape(2, 6), TileShape(1, 8)), "x86-64-v3")
    tiles = TileShape(3, 8), TileShape(4, 6), TileShape(2, 12), TileShape(1, 16)
    return Isa(name, 64, 32, tiles, "native" if host else "x86-64-v4", has_masks=True)


def host_isa(asked: str | None = None) -> Isa:
    """The widest instruction set of this CPU, or the narrower one that is asked for.

    `asked` is a name, "" for the widest; None takes the option `isa` (LAMPWORK_ISA).
    Raises OptionError for an unknown name or one that this CPU does not have.
    """
    best = widest(host_flags())
    asked = config.current().isa if asked is None else asked
    if not asked:
        return describe(best, host=True)
    for name in _WIDTHS:
        if name == asked:
            if _WIDTHS.index(name) > _WIDTHS.index(best):
                raise OptionError(
                    f"isa={asked} was asked for, but this CPU has only {best}",
                    fix=f"set LAMPWORK_ISA to {best} or narrower",
                )
            return describe(name, host=name == best)
    raise OptionError(f"isa={asked} is not an instruction set", fix=f"one of {', '.join(_WIDTHS)}")
