"""The sources of products' kernels that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.products import ProductSource
from lampwork.codegen.gpu.triton_source import TritonSource
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import Gemm
from lampwork.loops.ir.symbols import NO_HINTS

SOURCES: Sequence[ProductSource] = (TritonSource(), TensorCores())
"""Those whose guesses are better come first."""


def source_of(variant: str) -> ProductSource:
    """The source that a variant's name begins with.

    Raises:
        CodegenError: there is none.
    """
    name = variant.partition(" ")[0]
    for source in SOURCES:
        if source.name == name:
            return source
    raise CodegenError(f"no source of products has a variant {variant!r}")


def product_variants(gemm: Gemm, target: GpuTarget, hints: Mapping[str, int] = NO_HINTS) -> list[str]:
    """What is worth a measurement for a product, of all sources."""
    return [variant for source in SOURCES for variant in source.variants(gemm, target, hints)]
