"""Products on tensor cores as a source of candidates for the tuner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.mma.kernel import emit_product
from lampwork.codegen.gpu.mma.operands import is_multiple, operands_of
from lampwork.codegen.gpu.mma.tiles import CHUNK, Tile, best_tiles
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.llvm.types import itemsize
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import Gemm, Panels
from lampwork.loops.ir.symbols import NO_HINTS, likely

OLDEST = 80
"""The compute capability that has bfloat16, TF32 and copies to shared memory without registers."""


class TensorCores:
    """Tiles for `mma.sync`: of bfloat16 and float16, and of float32 as TF32 where torch is set to that."""

    name = "mma"

    def variants(self, gemm: Gemm, target: GpuTarget, hints: Mapping[str, int] = NO_HINTS) -> Sequence[str]:
        operands = operands_of(gemm) if self._takes(gemm, target) else None
        if operands is None:
            return ()
        elements = CHUNK // itemsize(gemm.a.buffer.dtype)
        if any(is_multiple(index, elements) is False for each in operands for index in each.multiples):
            return ()  # what would be copied element by element
        m, n, k = (likely(axis.extent, hints) for axis in (gemm.m, gemm.n, gemm.k))
        batch = 1
        for axis in gemm.batch:
            batch *= likely(axis.extent, hints) or 1
        return [tile.name for tile in best_tiles(gemm.a.buffer.dtype, target, m, n, k, batch)]

    def compile(
        self, gemm: Gemm, target: GpuTarget, variant: str, name: str, hints: Mapping[str, int] = NO_HINTS
    ) -> ProductCode:
        tile = Tile.named(variant)
        if not self._takes(gemm, target):
            raise CodegenError(
                f"the product {gemm.out.name!r} has no kernel on tensor cores of {target.name}"
            )
        return emit_product(gemm, target, tile, name)

    def _takes(self, gemm: Gemm, target: GpuTarget) -> bool:
        dtype = gemm.a.buffer.dtype
        return (
            target.capability >= OLDEST
            and not gemm.rows
            and not gemm.depth
            and not isinstance(gemm.a.buffer, Panels)
            and not isinstance(gemm.b.buffer, Panels)
            and gemm.b.buffer.dtype == dtype
            and (dtype in ("bf16", "f16") or (dtype == "f32" and target.tf32))
            and all(axis.extent.as_int() != 0 for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k))
        )
