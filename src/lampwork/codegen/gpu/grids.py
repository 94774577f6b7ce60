"""What a kernel of a card is known by to whoever measures grids for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from lampwork.codegen.llvm.structure import structure
from lampwork.loops.ir.nodes import Kernel


def grid_key(kernel: Kernel, hints: Mapping[str, int]) -> str:
    """Equal for kernels that are the same but for names, in every process. Sizes that stay open count with the value of
    the call at hand, and as open."""
    sizes = tuple(hints.get(size) for size in kernel.sizes)
    clusters = () if kernel.cluster == 1 else (kernel.cluster,)
    return hashlib.sha256(repr((structure(kernel), sizes, *clusters)).encode()).hexdigest()[:32]
