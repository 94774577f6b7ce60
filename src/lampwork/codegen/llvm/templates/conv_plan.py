"""What is known about a convolution before a line of it is emitted."""

from __future__ import annotations

from lampwork.codegen.llvm.templates.epilogue import flattened
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm
from lampwork.loops.ir.windows import Place, windows
from lampwork.records import record


@record
class ConvPlan:
    """What is known about a convolution: `a`, the flat offset of A over batch and digits, and what its mask asks. The
    gemm is `flattened`."""

    gemm: Gemm
    a: Index
    places: tuple[Place, ...]
    params: tuple[Buffer, ...]

    def of_depth(self, index: Index) -> Index:
        """The part of an index that depends on digits of k."""
        return _part(index, self.gemm.depth)

    def of_rows(self, index: Index) -> Index:
        """The rest of it."""
        return index - _part(index, self.gemm.depth)


def _part(index: Index, axes: tuple[Axis, ...]) -> Index:
    names = {axis.name for axis in axes}
    terms = tuple(
        (monomial, coefficient)
        for monomial, coefficient in index.terms
        if Index(((monomial, 1),)).variables() & names
    )
    return Index(terms)


def _fits(gemm: Gemm, target: Target) -> bool:
    """Whether it has digits, a packed B, a dtype of the templates, taps of whole words, and elements."""
    dtype = gemm.a.buffer.dtype
    if (
        dtype not in target.products
        or gemm.b.buffer.dtype != dtype
        or not (gemm.packed and gemm.depth and gemm.rows)
    ):
        return False
    dot = target.dot(dtype)
    if gemm.steps != target.steps(dtype) or gemm.offset != (0 if dot is None else dot.offset):
        return False
    if (gemm.depth[-1].extent % gemm.steps).as_int() != 0:
        return False
    return all(axis.extent.as_int() != 0 for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k))


def plan_conv(gemm: Gemm, target: Target) -> ConvPlan:
    """The plan of a convolution that is supported and whose B is packed.

    Raises CodegenError for others.
    """
    found = windows(gemm.a, gemm.batch, gemm.rows, gemm.depth) if _fits(gemm, target) else None
    if found is None:
        raise CodegenError(f"no template for the convolution {gemm.out.name!r} of {gemm.a.buffer.dtype}")
    seen: dict[str, Buffer] = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
    for load in loads(gemm.value):
        seen.setdefault(load.buffer.name, load.buffer)
    seen.setdefault(gemm.out.name, gemm.out)
    return ConvPlan(flattened(gemm), *found, tuple(seen.values()))
