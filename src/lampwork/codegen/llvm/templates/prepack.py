"""Rearranging constant B operands into panels, once.

    before:  out = x @ w                       with w constant: a parameter, or computed from parameters
    after:   constant:  w.packed = PackB(w)    (once, and again when w changes)
             main:      out = x @ w.packed

A weight that several Gemms use in the same panels is packed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.codegen.llvm.templates.choose import choose_conv_tile, choose_panel
from lampwork.codegen.llvm.templates.plan import supports
from lampwork.codegen.llvm.types import itemsize
from lampwork.codegen.target import Target
from lampwork.codegen.variants import varied
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import Axis, Definition, Gemm, Load, PackB, Panels


def prepack(
    main: Sequence[Definition], constant: Sequence[Definition], constant_names: frozenset[str], target: Target
) -> tuple[list[Definition], list[Definition]]:
    """`main` with every Gemm whose B is constant reading a packed B, and `constant` with the packings added.

    constant_names: the buffers that hold the same data on every call.
    """
    packings: dict[tuple[object, ...], PackB] = {}
    changed: list[Definition] = []
    for definition in main:
        if isinstance(definition, Gemm) and definition.b.buffer.name in constant_names:
            changed.append(_packed(definition, packings, target))
        else:
            changed.append(definition)
    return changed, [*constant, *packings.values()]


def _packed(gemm: Gemm, packings: dict[tuple[object, ...], PackB], target: Target) -> Gemm:
    """The Gemm over a packed B, or as it is where packing is of no use, or would depend on sizes."""
    if gemm.packed:
        return gemm
    target = varied(target, gemm.variant)
    if gemm.rows:
        # A convolution's template reads panels only.
        m, n, dtype = gemm.m.extent.as_int(), gemm.n.extent.as_int(), gemm.b.buffer.dtype
        panel = choose_conv_tile(m, n, target, dtype).vectors * target.lanes(dtype)
        return _in_panels(gemm, gemm.batch, panel, 1, packings)
    if not supports(gemm, target):
        return gemm
    used: frozenset[str] = frozenset[str]().union(*(index.variables() for index in gemm.b.index))
    batch = tuple(axis for axis in gemm.batch if axis.name in used)
    if batch and len(batch) < len(gemm.batch):
        return gemm
    runs_along_k = offset_in(gemm.b.buffer, gemm.b.index).coefficient(gemm.k.name) == ONE
    axes = (*batch, gemm.n, gemm.k)
    needed = (*(axis.extent for axis in axes), *gemm.b.index, *gemm.b.buffer.shape, *gemm.b.buffer.strides)
    if any(index.symbols() for index in needed):
        return gemm
    m, n, k = gemm.m.extent.as_int(), gemm.n.extent.as_int(), gemm.k.extent.as_int()
    if n is not None and k is not None and n * k * itemsize(gemm.b.buffer.dtype) > target.packed_bytes:
        return gemm
    panel = choose_panel(m, n, target, gemm.b.buffer.dtype, runs_along_k=runs_along_k)
    steps = target.steps(gemm.b.buffer.dtype)
    return gemm if panel == 0 else _in_panels(gemm, batch, panel, steps, packings)


def _in_panels(
    gemm: Gemm, batch: tuple[Axis, ...], panel: int, steps: int, packings: dict[tuple[object, ...], PackB]
) -> Gemm:
    key = _key(gemm, batch, panel)
    if key not in packings:
        packings[key] = _packing(gemm, batch, panel, steps, len(packings))
    return replace(gemm, b=Load(packings[key].out, gemm.b.index))


def _key(gemm: Gemm, batch: tuple[Axis, ...], panel: int) -> tuple[object, ...]:
    """Equal for two Gemms that read one B alike, whatever the names of their axes."""
    axes = (*batch, gemm.k, gemm.n)
    renamed = {axis.name: Index.var(f"${position}") for position, axis in enumerate(axes)}
    index = tuple(position.substitute(renamed) for position in gemm.b.index)
    return (gemm.b.buffer, index, tuple(axis.extent for axis in axes), panel)


def _packing(gemm: Gemm, batch: tuple[Axis, ...], panel: int, steps: int, number: int) -> PackB:
    source = gemm.b.buffer
    panels = (gemm.n.extent + (panel - 1)) // panel
    groups = (gemm.k.extent + (steps - 1)) // steps
    shape = (*(axis.extent for axis in batch), panels, groups, Index.const(panel * steps))
    strides: list[Index] = []
    stride = ONE
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    out = Panels(f"{source.name}.packed{number}", source.dtype, shape, tuple(reversed(strides)), panel, steps)
    return PackB(out, batch, gemm.n, gemm.k, gemm.b)
