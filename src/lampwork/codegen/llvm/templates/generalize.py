"""Templates without numbers: convolutions and packings of many shapes are one function, which takes the numbers.

    before:  out[256*m + n] = relu(acc + bias[n]),  a[3584*r1 + 64*r2 + d0],  m < 3136, n < 256, k < 64
    after:   out[p0*m + n]  = relu(acc + bias[n]),  a[p1*r1 + p2*r2 + d0],    m < p3, n < p4, k < p5

A network has dozens of shapes, and LLVM takes 15 to 40 ms for each function. Strides of 1 stay as they are, since they
decide how code reads and writes. That every access stays in its buffer must be proven with the numbers, before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.codegen.llvm.templates.conv_plan import ConvPlan
from lampwork.codegen.llvm.templates.pack_taps import taps_of
from lampwork.codegen.llvm.templates.plan import packed_batch
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, Index, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, Expr, Gemm, Load, PackB, Panels
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.ir.windows import Place


class Numbers:
    """Symbols in place of numbers, and what each stands for."""

    def __init__(self) -> None:
        self.values: dict[str, Index] = {}

    def symbol(self, value: Index) -> Index:
        name = f"p{len(self.values)}"
        self.values[name] = value
        return Index.sym(name)

    def axis(self, axis: Axis) -> Axis:
        """An axis of any extent."""
        return Axis(axis.name, self.symbol(axis.extent))

    def affine(self, index: Index, names: Sequence[str], along: str = "") -> Index:
        """The index with a symbol for each factor and for its constant part; itself, if it is not affine. A factor of 1
        or -1 of `along` stays."""
        rest, found = index, Index.const(0)
        for name in names:
            factor = index.coefficient(name)
            if factor is None or factor.variables():
                return index
            rest = rest - factor * Index.var(name)
            if name == along and factor.as_int() in (1, -1):
                found = found + factor * Index.var(name)
            elif factor.as_int() != 0:
                found = found + self.symbol(factor) * Index.var(name)
        if rest.variables() or rest.indirects():
            return index
        return found if rest.as_int() == 0 else found + self.symbol(rest)


def generalized_conv(plan: ConvPlan) -> tuple[ConvPlan, dict[str, Index]]:
    """The plan of a convolution with symbols for its numbers, and their values."""
    numbers, gemm = Numbers(), plan.gemm
    outer = [axis.name for axis in (*gemm.batch, gemm.m, gemm.n)]
    inner = [axis.name for axis in gemm.a_axes]
    offset = numbers.affine(plan.a, inner, gemm.depth[-1].name)
    places = tuple(
        Place(numbers.affine(each.index, inner), numbers.symbol(each.last)) for each in plan.places
    )

    used = packed_batch(gemm)
    panels = gemm.b.buffer
    assert isinstance(panels, Panels), "the B of a convolution is packed"
    general = replace(
        gemm,
        out=line_of(gemm.out),
        batch=tuple(map(numbers.axis, gemm.batch)),
        m=numbers.axis(gemm.m),
        n=numbers.axis(gemm.n),
        k=numbers.axis(gemm.k),
        a=Load(line_of(gemm.a.buffer), (offset,)),
        b=Load(
            Panels(panels.name, panels.dtype, (ONE,), (ONE,), panels.columns, panels.steps, panels.offset),
            tuple(Index.var(axis.name) for axis in used),
        ),
        index=tuple(numbers.affine(each, outer, gemm.n.name) for each in gemm.index),
        value=generalized_value(numbers, gemm, outer),
        rows=tuple(map(numbers.axis, gemm.rows)),
        depth=tuple(map(numbers.axis, gemm.depth)),
    )
    params = tuple(
        general.b.buffer if buffer.name == panels.name else line_of(buffer) for buffer in plan.params
    )
    return ConvPlan(general, offset, places, params, numbers.symbol(plan.blocks)), numbers.values


def generalized_value(numbers: Numbers, gemm: Gemm, outer: Sequence[str]) -> Expr:
    """The epilogue of a flattened gemm over the variables `outer`, with symbols."""

    def on_load(load: Load) -> Expr:
        if load.mask is not None:
            return load
        return Load(
            line_of(load.buffer), tuple(numbers.affine(each, outer, gemm.n.name) for each in load.index)
        )

    return rewrite(gemm.value, {Load: on_load})


def generalized_pack(pack: PackB) -> tuple[PackB, dict[str, Index]]:
    """A packing with symbols for its numbers, and their values."""
    numbers = Numbers()
    axes = (*pack.batch, pack.n, pack.k)
    offset = simplify(offset_in(pack.b.buffer, pack.b.index), {axis.name: axis.extent for axis in axes})
    taps = taps_of(pack, offset)
    if taps is None and offset.coefficient(pack.k.name) is None:
        return pack, {}
    along = pack.k.name if offset.coefficient(pack.k.name) == ONE else pack.n.name
    out = Panels(
        pack.out.name, pack.out.dtype, (ONE,), (ONE,), pack.out.columns, pack.out.steps, pack.out.offset
    )
    batch, n = tuple(map(numbers.axis, pack.batch)), numbers.axis(pack.n)
    if taps is None:
        k = numbers.axis(pack.k)
        offset = numbers.affine(offset, [axis.name for axis in axes], along)
    else:
        channels = numbers.symbol(taps.channels)
        k = Axis(pack.k.name, channels * taps.taps)
        names = [axis.name for axis in (*pack.batch, pack.n)]
        offset = numbers.affine(taps.offset, [*names, "tap", "channel"], "tap")
        at = Index.var(pack.k.name)
        offset = offset.substitute({"tap": at // channels, "channel": at % channels})
    return PackB(out, batch, n, k, Load(line_of(pack.b.buffer), (offset,))), numbers.values


def line_of(buffer: Buffer) -> Buffer:
    """The buffer by its name alone: what is said of its elements has been proven."""
    return Buffer(buffer.name, buffer.dtype, (ONE,), (ONE,))
