"""Gradients of a depthwise convolution's weight: the blocks of pixels of weight_gradient.py, with other sums.

    for each block, for each pixel of it:
        load g, a vector of channels
        for each tap:                              sums[tap] += x[the pixel's place at the tap] * g

All taps are summed at once, as far as there are registers: a pixel of g is loaded once for all of them, and x comes
from scratch as an operand of the multiplication.
"""

from __future__ import annotations

from collections.abc import Callable

from lampwork.codegen.llvm.builder import Value
from lampwork.codegen.llvm.templates.code import GemmCode
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    count,
    evaluate,
    less,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import load_vector, store_vector
from lampwork.codegen.llvm.templates.weight_gradient import Emission
from lampwork.codegen.llvm.templates.weight_gradient_plan import GradientConfig, GradientPlan
from lampwork.codegen.llvm.types import mangled
from lampwork.codegen.target import Target


def emit_depthwise_gradient(
    plan: GradientPlan, name: str, target: Target, config: GradientConfig
) -> GemmCode:
    """The kernel of the gradient of a depthwise convolution's weight."""
    return _Emission(plan, name, target, config).run()


class _Emission(Emission):
    """One run of emit_depthwise_gradient. Its tile is the taps of some vectors of channels."""

    def _multiply(
        self, env: dict[str, Int], lines: Int, columns: Int, first: Int, last: Int, width: Int
    ) -> None:
        b, tile = self.b, self.tile
        k, pixel = self._pixel(env)
        start = env[self.plan.channels.name]
        at = evaluate(b, self.found.g, env | {self.gemm.k.name: k, self.gemm.n.name: start})
        g = place(b, self.bases[self.gemm.b.buffer.name], at, tile.source)

        with count(b, 0, width, tile.lanes) as column:
            here = place(b, g, column, tile.source)
            valid = sub(b, width, column)

            def sums(mask: Value | None, here: str = here, column: Int = column) -> None:
                taps = [(y, x) for y in range(self._taps_of_lines) for x in range(self._taps_of_columns)]
                most = max(1, b.target.registers * 7 // 8)
                for begin in range(0, len(taps), most):
                    some = taps[begin : begin + most]
                    self._sum_taps(here, column, some, begin, lines, columns, pixel, mask)

            def cut(valid: Int = valid, sums: Callable[[Value | None], None] = sums) -> None:
                sums(b.first_lanes(value_of(b, valid), tile.lanes))

            branch(b, less(b, tile.lanes - 1, valid), lambda sums=sums: sums(None), cut)

    @property
    def _taps_of_lines(self) -> int:
        return self.lines.tap.extent.as_int() or 1

    @property
    def _taps_of_columns(self) -> int:
        return self.columns.tap.extent.as_int() or 1

    def _sum_taps(
        self,
        g: str,
        column: Int,
        taps: list[tuple[int, int]],
        first: int,
        lines: Int,
        columns: Int,
        pixel: Int,
        mask: Value | None,
    ) -> None:
        """Add a block's products to the sums of some taps, from number `first` on, of a vector of channels."""
        b, tile = self.b, self.tile
        zero = Value("zeroinitializer", tile.dtype, tile.lanes)
        apart = mul(b, pixel, self.columns.pixel.extent.as_int() or 1)
        by_line, by_column = self.lines.pixels, self.columns.pixels
        with b.loop(value_of(b, 0), value_of(b, lines), 1, [zero] * len(taps), runs=True) as outer:
            line = mul(b, outer.index, by_line.stride * self.line)
            held = place(b, self.held, add(b, line, column), tile.dtype)
            row = place(b, g, mul(b, outer.index, apart), tile.source)
            with b.loop(value_of(b, 0), value_of(b, columns), 1, outer.carried, runs=True) as inner:
                right = self._load(place(b, row, mul(b, inner.index, pixel), tile.source), mask)
                at = place(b, held, mul(b, inner.index, by_column.stride * tile.width), tile.dtype)
                found: list[Value] = []
                for (y, x), old in zip(taps, inner.carried, strict=True):
                    shift = y * by_line.dilation * self.line + x * by_column.dilation * tile.width
                    left = load_vector(b, tile.dtype, tile.lanes, place(b, at, shift, tile.dtype))
                    found.append(b.fma(left, right, old))
                inner.next = found
            outer.next = inner.results
        for number, new in enumerate(outer.results, first):
            to = place(b, self.sums, add(b, number * tile.width, column), tile.dtype)
            store_vector(b, b.add(load_vector(b, tile.dtype, tile.lanes, to), new), to)

    def _load(self, pointer: str, mask: Value | None) -> Value:
        b, tile = self.b, self.tile
        if mask is None:
            return load_vector(b, tile.dtype, tile.lanes, pointer)
        return b.emit(
            f"call {tile.vector} @llvm.masked.load.{mangled(tile.element, tile.lanes)}.p0(ptr {pointer}, "
            f"i32 {tile.size}, {b.typed(mask)}, {tile.vector} zeroinitializer)",
            tile.dtype,
            tile.lanes,
            pure=False,
        )

    def _store(self, env: dict[str, Int], first: Int, last: Int, width: Int) -> None:
        b, tap = self.b, 0
        for axis in self.outer_taps:
            tap = add(b, mul(b, tap, evaluate(b, axis.extent, env)), env[axis.name])
        inner = env | {self.gemm.m.name: mul(b, tap, self.tap_count)}
        self.epilogue.from_scratch(self.tile, self.sums, inner, 0, self.tile.rows, width)
