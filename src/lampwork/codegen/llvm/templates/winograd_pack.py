"""The weights of a convolution by minimal filtering: transformed and packed, once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lampwork.loops.ir.addresses import dense_strides
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Const,
    Definition,
    Expr,
    Gemm,
    IndexValue,
    Load,
    Map,
    Op,
    PackB,
    Panels,
)
from lampwork.loops.ir.winograd import TAPS, TRANSFORMS, Transforms


def transformed_weights(gemm: Gemm, outputs: int, columns: int, name: str) -> tuple[list[Definition], Panels]:
    """The definitions that make the panels of `gemm`, whose B is w[n, ky, kx, c]; and the panels.

    half[p, kx, n, c] = sum over ky of G[p, ky] * w[n, ky, kx, c]
    u[p, q, n, c]     = sum over kx of G[q, kx] * half[p, kx, n, c]
    """
    by, channels = TRANSFORMS[outputs], gemm.depth[-1].extent
    p, q, kx, n, c = (Index.var(each) for each in "pqxnc")
    axes = {
        "p": Axis("p", as_index(by.points)),
        "q": Axis("q", as_index(by.points)),
        "x": Axis("x", as_index(TAPS)),
        "n": Axis("n", gemm.n.extent),
        "c": Axis("c", channels),
    }

    def weight(ky: int) -> Expr:
        k = (kx + ky * TAPS) * channels + c
        places = {gemm.k.name: k, gemm.n.name: n}
        return Load(gemm.b.buffer, tuple(position.substitute(places) for position in gemm.b.index))

    half = _dense(f"{name}.half", (axes["p"].extent, axes["x"].extent, gemm.n.extent, channels))
    first = Map(
        half,
        tuple(axes[each] for each in "pxnc"),
        (p, kx, n, c),
        _transformed(by, "p", [weight(ky) for ky in range(TAPS)]),
    )
    whole = _dense(f"{name}.points", (axes["p"].extent, axes["q"].extent, gemm.n.extent, channels))
    second = Map(
        whole,
        tuple(axes[each] for each in "pqnc"),
        (p, q, n, c),
        _transformed(by, "q", [Load(half, (p, as_index(x), n, c)) for x in range(TAPS)]),
    )
    panels = -(-(gemm.n.extent.as_int() or 0) // columns)
    shape = (axes["p"].extent, axes["q"].extent, as_index(panels), channels, as_index(columns))
    packed = _dense(name, shape)
    out = Panels(packed.name, packed.dtype, packed.shape, packed.strides, columns, outputs=outputs)
    pack = PackB(out, (axes["p"], axes["q"]), axes["n"], axes["c"], Load(whole, (p, q, n, c)))
    return [first, second, pack], out


def _transformed(by: Transforms, point: str, taps: Sequence[Expr]) -> Expr:
    """The row of G that belongs to `point`, times the taps."""
    rows = [_combined(row, taps) for row in by.weights]
    found = rows[-1]
    for number in reversed(range(len(rows) - 1)):
        here = Op("eq", (IndexValue(Index.var(point), "i64"), Const(number, "i64")), "bool")
        found = Op("where", (here, rows[number], found), "f32")
    return found


def _combined(row: Sequence[Fraction], taps: Sequence[Expr]) -> Expr:
    total: Expr | None = None
    for factor, tap in zip(row, taps, strict=True):
        if factor:
            term = tap if factor == 1 else Op("mul", (Const(float(factor), "f32"), tap), "f32")
            total = term if total is None else Op("add", (total, term), "f32")
    return Const(0.0, "f32") if total is None else total


def _dense(name: str, shape: tuple[Index, ...]) -> Buffer:
    return Buffer(name, "f32", shape, dense_strides(shape))
