"""x86-64: AVX-512 with AMX or without, AVX2 or SSE4, what this CPU has or less."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from lampwork import config
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.generator import llvm_generator
from lampwork.codegen.llvm.isa import amx
from lampwork.codegen.target import Dot, Target, TileShape
from lampwork.config import Config
from lampwork.errors import CodegenError, OptionError
from lampwork.loops.ir.nodes import DType

IsaName = Literal["amx", "avx512", "avx2", "sse4"]

TRIPLE = "x86_64-unknown-linux-gnu"
_PRODUCTS: frozenset[DType] = frozenset(("f32", "f64", "bf16", "f16", "i8"))
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c", "bmi2")
_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_SSE4 = ("sse4_2", "ssse3", "popcnt")
_BF16 = ("avx512_bf16", "amx_tile")
# Against float32 on one core of a Zen 5: 1.2 times as fast, 1.4 at 2**26 and more, half as fast at 2**20. The product
# is faster, the call of ATen costs more.
_BF16_WORK = 1 << 25
_AMX_FP16 = "amx_fp16"
_SFENCE = "llvm.x86.sse.sfence"
_WIDTHS: tuple[IsaName, ...] = ("sse4", "avx2", "avx512", "amx")


@cache
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
    """The widest vectors of a CPU with these flags. (Whether AMX comes with them, the kernel decides too.)"""
    if flags.issuperset(_AVX512):
        return "avx512"
    if flags.issuperset(_AVX2):
        return "avx2"
    if flags.issuperset(_SSE4):
        return "sse4"
    raise CodegenError("this CPU has no SSE4.2, the least that machine code is generated for")


def describe(name: IsaName, *, host: bool = False) -> Target:
    """The target `name`; with `host`, tuned for the very CPU this runs on rather than for any that has it."""
    if name == "sse4":
        return Target(
            name,
            "x86-64-v2",
            llvm_generator,
            dots=(_INT8_PAIRS,),
            stream_fence=_SFENCE,
            vector_bytes=16,
            registers=16,
            products=_PRODUCTS,
            # Without FMA a product needs a register of its own.
            tiles=(TileShape(2, 4, 1.04), TileShape(1, 8, 1.2)),
            turned_tiles=(TileShape(2, 4), TileShape(1, 8)),
        )
    if name == "avx2":
        return Target(
            name,
            "x86-64-v3",
            llvm_generator,
            dots=(_INT8_PAIRS,),
            stream_fence=_SFENCE,
            vector_bytes=32,
            registers=16,
            has_fma=True,
            has_f16c=True,
            products=_PRODUCTS,
            tiles=(TileShape(2, 6, 1.04), TileShape(1, 8, 1.2)),
            turned_tiles=(TileShape(2, 6), TileShape(1, 8)),
        )
    has_tiles = name == "amx"
    return Target(
        name,
        "native" if host else "x86-64-v4",
        llvm_generator,
        features=amx.FEATURES if has_tiles and not host else "",
        dots=(_BF16_PAIRS, _INT8_QUADS) if has_tiles else (_INT8_PAIRS,),
        units=amx.UNITS if has_tiles else (),
        stream_fence=_SFENCE,
        vector_bytes=64,
        registers=32,
        has_fma=True,
        has_masks=True,
        has_f16c=True,
        scale=_scalef,
        is_subnormal=_is_subnormal,
        products=_PRODUCTS,
        tiles=(TileShape(3, 8), TileShape(4, 6, 1.01), TileShape(2, 12, 1.04), TileShape(1, 16, 1.2)),
        turned_tiles=(TileShape(2, 8), TileShape(3, 8), TileShape(1, 8)),
    )


def any_cpu(name: str, isa: IsaName, extra: Sequence[str]) -> Target:
    """The target for any CPU that has `isa`, and the instructions `extra`: "avx512_vnni", "avx512_bf16". Its code is
    not loaded here."""
    found = replace(describe(isa), name=name, triple=TRIPLE)
    if isa == "avx512":
        features = ",".join(f"+{flag.replace('_', '')}" for flag in extra)
        found = replace(_with_dots(found, extra), features=features)
    return found if set(_BF16).isdisjoint(extra) else replace(found, bf16_work=_BF16_WORK)


def host_isa(asked: str | None = None) -> Target:
    """The widest instruction set of this CPU, or the narrower one that is asked for.

    `asked` is a name, "" for the widest; None takes the option `isa` (LAMPWORK_ISA).
    Raises OptionError for an unknown name, one that this CPU does not have, and for AMX where the kernel refuses it;
    the widest one is then the one without it.
    """
    flags = host_flags()
    best, has_tiles = widest(flags), flags >= amx.FLAGS
    asked = config.current().isa if asked is None else asked
    if not asked:
        return _here("amx" if has_tiles and amx.is_granted() else best, best, flags)
    for name in _WIDTHS:
        if name == asked:
            if _WIDTHS.index(name) > _WIDTHS.index("amx" if has_tiles else best):
                raise OptionError(
                    f"isa={asked} was asked for, but this CPU has only {best}",
                    fix=f"set LAMPWORK_ISA to {best} or narrower",
                )
            if name == "amx" and (why := amx.refusal()):
                raise OptionError(
                    f"isa=amx was asked for, but the kernel refuses the tile registers: {why}",
                    fix=f"set LAMPWORK_ISA to {best} or narrower",
                )
            return _here(name, best, flags)
    raise OptionError(f"isa={asked} is not an instruction set", fix=f"one of {', '.join(_WIDTHS)}")


def _here(name: IsaName, best: IsaName, flags: frozenset[str]) -> Target:
    found = describe(name, host=name in (best, "amx"))
    if _AMX_FP16 in flags:
        # ATen's products of float16 are those of oneDNN, which has code for this unit where this has none.
        found = replace(found, products=found.products - {"f16"})
    if name == "avx512":
        found = _with_dots(found, flags)
    return found if flags.isdisjoint(_BF16) else replace(found, bf16_work=_BF16_WORK)


def _with_dots(target: Target, flags: Collection[str]) -> Target:
    """With the dot products that a CPU of these flags has beside AVX-512."""
    dots = [dot for flag, dot in _AVX512_DOTS.items() if flag in flags]
    theirs = {dot.dtype for dot in dots}
    return replace(target, dots=(*dots, *(dot for dot in target.dots if dot.dtype not in theirs)))


def _emulated_gpu() -> Target:
    from lampwork.codegen.gpu.nvidia import emulated

    return emulated()


def host_target(options: Config) -> Target:
    """What the native backend generates code for, under these options. Raises as `host_isa`."""
    found = _emulated_gpu() if options.isa == "grid" else host_isa(options.isa or None)
    return found.relaxed() if options.numerics == "fast" else found


def _dpbf16ps(b: Builder, sums: Value, left: Value, right: Value) -> Value:
    """sums + left * right, where a lane of left and right holds two bf16. Subnormal numbers count as zero."""
    halves = f"<{2 * sums.lanes} x bfloat>"
    a, c = (b.emit(f"bitcast {x.type} {x.text} to {halves}", "bf16", 2 * x.lanes) for x in (left, right))
    return b.emit(
        f"call {sums.type} @llvm.x86.avx512bf16.dpbf16ps.{32 * sums.lanes}"
        f"({sums.type} {sums.text}, {halves} {a.text}, {halves} {c.text})",
        "f32",
        sums.lanes,
    )


def _cvtneps2bf16(b: Builder, sums: Value) -> Value | None:
    """Rounded to bf16, nearest even. Subnormal numbers count as zero."""
    if sums.lanes != 16:
        return None
    text = b.emit(
        f"call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512({sums.type} {sums.text})", "bf16", 16
    ).text
    return b.emit(f"bitcast <16 x bfloat> {text} to <16 x i16>", "bf16", 16)


def _dpbusd(b: Builder, sums: Value, left: Value, right: Value) -> Value:
    """sums + left * right, where a lane of left holds four uint8, of right four int8. Sums wrap."""
    bytes_ = f"<{4 * sums.lanes} x i8>"
    a, c = (b.emit(f"bitcast {x.type} {x.text} to {bytes_}", "i8", 4 * x.lanes) for x in (left, right))
    return b.emit(
        f"call {sums.type} @llvm.x86.avx512.vpdpbusd.{32 * sums.lanes}"
        f"({sums.type} {sums.text}, {bytes_} {a.text}, {bytes_} {c.text})",
        "i32",
        sums.lanes,
    )


_MADD = MappingProxyType({4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"})


def _pmaddwd(b: Builder, sums: Value, left: Value, right: Value) -> Value:
    """sums + left * right, where a lane holds two int16, the value of an int8 each: no product of them overflows."""
    halves = f"<{2 * sums.lanes} x i16>"
    a, c = (b.emit(f"bitcast {x.type} {x.text} to {halves}", "i16", 2 * x.lanes) for x in (left, right))
    made = b.emit(
        f"call {sums.type} @llvm.x86.{_MADD[sums.lanes]}({halves} {a.text}, {halves} {c.text})",
        "i32",
        sums.lanes,
    )
    return b.add(sums, made)


_BF16_PAIRS = Dot("bf16", 2, _dpbf16ps, _cvtneps2bf16)
_INT8_PAIRS = Dot("i8", 2, _pmaddwd, factor="i16")
_INT8_QUADS = Dot("i8", 4, _dpbusd, offset=128)
_AVX512_DOTS = MappingProxyType({"avx512_bf16": _BF16_PAIRS, "avx512_vnni": _INT8_QUADS})


def _scalef(b: Builder, x: Value, n: Value) -> Value | None:
    """x * 2^n in one instruction, right also where the result is infinite or subnormal."""
    if x.lanes not in (4, 8, 16):
        return None
    bits = x.lanes * 32
    mask = "i16 -1" if x.lanes == 16 else "i8 -1"
    rounding = ", i32 4" if x.lanes == 16 else ""
    return b.emit(
        f"call {x.type} @llvm.x86.avx512.mask.scalef.ps.{bits}({b.typed(x)}, {b.typed(n, x.lanes)}, "
        f"{x.type} zeroinitializer, {mask}{rounding})",
        "f32",
        x.lanes,
    )


def _is_subnormal(b: Builder, x: Value) -> Value | None:
    if x.lanes != 16:
        return None
    subnormal = 0x20
    return b.emit(
        f"call <16 x i1> @llvm.x86.avx512.fpclass.ps.512({x.type} {x.text}, i32 {subnormal})", "bool", 16
    )
