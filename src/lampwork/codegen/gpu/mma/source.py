"""Products of our own as a source of candidates for the tuner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.mma.kernel import can_copy, emit_product
from lampwork.codegen.gpu.mma.operands import operands_of
from lampwork.codegen.gpu.mma.strips import STRIPS, Strip, emit_strips
from lampwork.codegen.gpu.mma.tiles import Tile, best_tiles
from lampwork.codegen.gpu.mma.warpgroups import Groups, best_groups, emit_groups
from lampwork.codegen.gpu.products import ProductCode
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import Gemm, Panels
from lampwork.loops.ir.symbols import NO_HINTS, likely

OLDEST = 80
"""The compute capability that has bfloat16, TF32 and copies to shared memory without registers."""


class TensorCores:
    """Tiles for `mma.sync`: of bfloat16 and float16, and of float32 as TF32 where torch is set to that; for `wgmma` on
    cards of 9.0, of half types. Strips of few rows, without tensor cores: of float32 too."""

    name = "mma"

    def variants(self, gemm: Gemm, target: GpuTarget, hints: Mapping[str, int] = NO_HINTS) -> Sequence[str]:
        operands = operands_of(gemm) if self._takes(gemm, target) else None
        if operands is None:
            return ()
        dtype = gemm.a.buffer.dtype
        if any(operand.width == 0 for operand in operands):
            return ()  # what would be read element by element
        rows = gemm.m.extent.as_int()
        found = [strip.name for strip in STRIPS if strip.is_possible(rows, operands)]
        if not self._multiplies(gemm, target):
            return found
        m, n, k = (likely(axis.extent, hints) for axis in (gemm.m, gemm.n, gemm.k))
        batch = 1
        for axis in gemm.batch:
            batch *= likely(axis.extent, hints) or 1
        found += [groups.name for groups in best_groups(dtype, operands, target, m, n, batch)]
        best = best_tiles(dtype, target, m, n, k, batch)
        return [*found, *(tile.name for tile in best if can_copy(operands, tile))]

    def compile(
        self, gemm: Gemm, target: GpuTarget, variant: str, name: str, hints: Mapping[str, int] = NO_HINTS
    ) -> ProductCode:
        strip, groups = Strip.named(variant), Groups.named(variant)
        tile = Tile.named(variant) if strip is None and groups is None else None
        if not self._takes(gemm, target) or (tile is not None and not self._multiplies(gemm, target)):
            raise CodegenError(f"{target.name} has no kernel {variant!r} for the product {gemm.out.name!r}")
        if strip is not None:
            return emit_strips(gemm, target, strip, name)
        if groups is not None:
            return emit_groups(gemm, target, groups, name)
        assert tile is not None
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
            and dtype in ("bf16", "f16", "f32")
            and all(axis.extent.as_int() != 0 for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k))
        )

    def _multiplies(self, gemm: Gemm, target: GpuTarget) -> bool:
        """Whether tensor cores compute such a product."""
        return gemm.a.buffer.dtype != "f32" or target.tf32
