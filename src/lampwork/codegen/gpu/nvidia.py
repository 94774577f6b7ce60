"""NVIDIA cards as targets, by their compute capability; and the target that stands for one on this CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.generator import emulating_generator, gpu_generator
from lampwork.codegen.gpu.occupancy import MULTIPROCESSORS
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.errors import CodegenError
from lampwork.loops.ir.grid import PORTABLE
from lampwork.loops.ir.nodes import DType
from lampwork.standard import functools

OLDEST = 70
CLUSTERS = 90  # the first that has them
LARGE_CLUSTERS = frozenset({90, 100, 103})  # whose clusters may have 16 blocks, on most cards
FEW_PROCESSORS = 16  # below which a part of a card may be too small for a cluster
_KNOWN = (70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
_ATOMICS: frozenset[DType] = frozenset({"f64", "f32", "f16", "bf16", "i64", "i32"})
PTX = {
    70: 63,
    72: 63,
    75: 64,
    80: 70,
    86: 71,
    87: 74,
    89: 78,
    90: 80,
    100: 86,
    103: 88,
    110: 90,
    120: 87,
    121: 88,
}


def ex2(b: Builder, x: Value) -> Value:
    """2**x of float32 by one instruction a lane."""
    return each_lane(b, "llvm.nvvm.ex2.approx.ftz.f", x)


def divide(b: Builder, x: Value, y: Value, tiny: bool) -> Value:
    """x / y of float32 to 2 ulp, without branches: two instructions, one where x is 1, and with `tiny` six more."""
    if x == b.const(1.0, "f32") and not tiny:
        return each_lane(b, "llvm.nvvm.rcp.approx.ftz.f", y)
    return each_lane(b, "llvm.nvvm.div.full" if tiny else "llvm.nvvm.div.approx.ftz.f", x, y)


def each_lane(b: Builder, intrinsic: str, *given: Value) -> Value:
    """A function of float32 numbers, for every lane."""
    b.module.declare(intrinsic, f"declare float @{intrinsic}({', '.join(['float'] * len(given))})")
    lanes = max(x.lanes for x in given)
    if lanes == 1:
        taken = ", ".join(f"float {x.text}" for x in given)
        return b.emit(f"call float @{intrinsic}({taken})", "f32", 1)
    wide = [b.widen(x, lanes) for x in given]
    type_, found = wide[0].type, "poison"
    for lane in range(lanes):
        each = [b.emit(f"extractelement {type_} {x.text}, i64 {lane}", "f32", 1) for x in wide]
        taken = ", ".join(f"float {x.text}" for x in each)
        value = b.emit(f"call float @{intrinsic}({taken})", "f32", 1)
        found = b.emit(f"insertelement {type_} {found}, float {value.text}, i64 {lane}", "f32", lanes).text
    return Value(found, "f32", lanes)


def describe(capability: int, processors: int = 108) -> GpuTarget:
    """The target of cards of a compute capability (90 for 9.0), or the newest one that is known below it.

    Raises:
        CodegenError: the card is older than what LLVM makes code for.
    """
    if capability < OLDEST:
        raise CodegenError(f"a card of compute capability {capability / 10} is too old: 7.0 is the least")
    known = max(number for number in _KNOWN if number <= capability)
    return GpuTarget(
        f"sm_{known}",
        f"sm_{known}",
        gpu_generator,
        features=f"+ptx{PTX[known]}",
        vector_bytes=128,
        registers=255,
        has_fma=True,
        multiplies_words=True,
        has_f16c=True,
        has_bf16c=known >= 80,
        has_maximum=known >= 80,
        halves=frozenset({"f16", "bf16"} if known >= 80 else {"f16"}),
        has_libm=False,
        exp2=ex2,
        divide=divide,
        private_bytes=48 << 10,
        scratch_bytes=MULTIPROCESSORS[known].shared_of_block - (2 << 10),
        atomics=_ATOMICS if known >= 90 else _ATOMICS - {"bf16"},
        neighbour_sums=frozenset({"f32", "f16", "bf16"} if known >= 90 else ()),
        templates=False,
        tile_side=32,
        ahead_bytes=0,
        kernel_work=1 << 14,
        least_items=max(processors // 3, 2),
        # Rows whose groups read fast enough together, though they leave multiprocessors idle.
        few_items=max(processors // 3, 2),
        many_items=1 << 40,
        tiled_scores=1 << 62,
        product_tiles=processors,
        convolved_last=frozenset({"f16", "bf16", "f32"} if known >= 80 else {"f16"}),
        capability=known,
        processors=processors,
        cluster=_cluster(known, processors),
    )


def _cluster(capability: int, processors: int) -> int:
    if capability < CLUSTERS or processors < FEW_PROCESSORS:
        return 1
    return 2 * PORTABLE if capability in LARGE_CLUSTERS else PORTABLE


@functools.cache
def emulated() -> Target:
    """A card of 4 multiprocessors, whose kernels run on this CPU."""
    return replace(
        describe(80, 4),
        name="grid",
        cpu="native",
        features="",
        generate=emulating_generator,
        has_bf16c=False,
        has_maximum=False,
        halves=frozenset({"f16"}),
        exp2=None,
        atomics=_ATOMICS - {"f16", "bf16"},
        divide=None,
    )


def device_target(index: int, config: Config, properties: Any = None) -> Target:
    """The target of the CUDA device `index`, under these options."""
    return card_target(index, relaxed=config.numerics == "fast", properties=properties)


def card_target(index: int, *, relaxed: bool, properties: Any = None) -> Target:
    """The target of the CUDA device `index`, where fewer roundings and larger ones are allowed or not."""
    import torch

    found = properties or torch.cuda.get_device_properties(index)
    tf32 = torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32"
    target = _described(found.major * 10 + found.minor, found.multi_processor_count, index, tf32)
    return target.relaxed() if relaxed else target


@functools.cache
def _described(capability: int, processors: int, index: int, tf32: bool) -> GpuTarget:
    return replace(describe(capability, processors), device=index, tf32=tf32)
