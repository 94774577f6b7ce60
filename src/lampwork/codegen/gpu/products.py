"""Where the kernels of matrix products on a card come from: several sources, of which a variant's name says which.

A product becomes a `Gemm` on a card only where its node has a variant, and that is the tuner's doing: it asks each
source what it would try, measures, and keeps the name of the best. So a source never has to be the best choice, only a
right one; what it cannot do it refuses with a CodegenError, and the product is a call of ATen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Buffer, Gemm, Panels
from lampwork.loops.ir.symbols import NO_HINTS
from lampwork.records import record


@record
class ProductCode:
    """The kernel of one product. Its blocks are a row along x, and each finds its tile from its number.

    image: LLVM IR, which becomes PTX as that of every kernel does; or what the driver loads: PTX or a cubin, as bytes.
    name: of the function in it. Its parameters, of 8 bytes each: the addresses of `params`, `sizes`, and `extent`.
    params: the buffers, each once, the one that is written among them.
    sizes: the numbers that stay open when it is compiled; any function of symbols.
    extent: how many blocks there are, by the same symbols. At least 1 for all sizes that the product may have.
    threads: of a block. shared: bytes of a block, beside what the image itself asks for.
    """

    image: bytes | str
    name: str
    threads: int
    shared: int
    params: tuple[Buffer, ...]
    sizes: tuple[Index, ...]
    extent: Index


class ProductSource(Protocol):
    """Makes kernels of matrix products. Safe to use from many threads.

    name: the first word of its variants: "mma 128x128x32 stages 4 warps 4".

    A `Gemm` that it is given has no `rows`, no `depth` and no panels. `hints`: likely values of symbols, to choose by;
    code is right for all. A buffer starts where its dtype may: whether at a multiple of 16 bytes the kernel has to find
    out, as those of loops do. What is rounded where is said by `Gemm.value`, with the sums in float32 (of float64 in
    float64); products of float32 may be rounded to TF32 only where `GpuTarget.tf32` says so.
    """

    @property
    def name(self) -> str: ...

    def variants(self, gemm: Gemm, target: GpuTarget, hints: Mapping[str, int] = NO_HINTS) -> Sequence[str]:
        """What is worth a measurement, the best guess first; none if it has no kernel for such a product."""
        ...

    def compile(
        self, gemm: Gemm, target: GpuTarget, variant: str, name: str, hints: Mapping[str, int] = NO_HINTS
    ) -> ProductCode:
        """The kernel for a variant, as a function `name`, or of another name that `ProductCode.name` says.

        Raises:
            CodegenError: there is no such variant, or something in the product has no code.
        """
        ...


def check_product(gemm: Gemm) -> None:
    """Raises CodegenError for what no source is given: a convolution, or a product of panels."""
    if gemm.rows or gemm.depth or any(isinstance(load.buffer, Panels) for load in (gemm.a, gemm.b)):
        raise CodegenError(f"{gemm.out.name} is no plain product of two matrices")
