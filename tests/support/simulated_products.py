"""Kernels of matrix products on the simulated card, against float64."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from grids import as_stored, from_stored, placed
from product_cases import ProductCase, compare
from simulated import Shape, Simulated

from lampwork.codegen.gpu.products import ProductCode
from lampwork.loops.ir.nodes import Buffer
from lampwork.loops.ir.symbols import likely
from lampwork.loops.reference.evaluate import NUMPY_DTYPES
from lampwork.loops.reference.evaluate_kernel import from_memory, to_memory

_written = lru_cache(1)(Simulated.written)  # one kernel is run on several inputs


def check_product(
    case: ProductCase, code: ProductCode, *, aligned: bool = True, seed: int = 0, text: str | None = None
) -> None:
    """The very code of a product gives what float64 does. aligned: whether buffers start at multiples of 16 bytes.
    text: what is run in its place.

    Raises:
        AssertionOfKernel, ForbiddenError: see there.
    """
    assert isinstance(code.image, str)
    inputs = case.inputs()
    rooms = [placed(_memory(case, each, inputs.get(each.name)), aligned) for each in code.params]
    shape = Shape(code.threads, 1, code.threads, 1, code.shared)
    simulated = _written(shape, code.image if text is None else text)
    sizes = [likely(size, case.sizes) for size in code.sizes]
    extent = likely(code.extent, case.sizes)
    assert extent is not None and extent > 0
    simulated.launch(rooms, sizes, extent, seed=seed)
    out = case.gemm.out
    (room,) = (room for each, room in zip(code.params, rooms, strict=True) if each.name == out.name)
    got = from_memory(out, from_stored(room, out.dtype), case.sizes)
    depth = likely(case.gemm.k.extent, case.sizes)
    assert depth is not None
    compare(case, got.astype(np.float64), case.expected(inputs), depth, f"{code.name} {aligned}")


def _memory(case: ProductCase, buffer: Buffer, given: np.ndarray | None) -> np.ndarray:
    """Flat memory of a parameter; what is written is what shows in results at first."""
    if given is None:
        shape = tuple(likely(size, case.sizes) for size in buffer.shape)
        given = np.full(shape, np.nan, NUMPY_DTYPES[buffer.dtype])
    return as_stored(to_memory(buffer, given, case.sizes), buffer.dtype)
