"""Products of a few rows with a weight in panels, for `recurrent.py` and `recurrent_gradient.py`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.templates.code import define
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    ceil_div,
    count,
    div,
    least,
    less,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import (
    Operands,
    RowAddress,
    Tile,
    accumulate,
    load_tile,
    store_tile,
    zeros,
)
from lampwork.codegen.llvm.templates.recurrent_plan import Shape
from lampwork.codegen.llvm.types import memory_type
from lampwork.loops.ir.nodes import DType

Finish = Callable[[Int, int, Int, Int], None]
"""What follows a product: (panel, units that there are, first row, rows)."""


def sums_of(b: Builder, shapes: Sequence[Shape], dtype: DType) -> str:
    """Memory for the sums of one panel, of any of the shapes."""
    columns = max(shape.passes * shape.columns * shape.rows for shape in shapes)
    return b.alloca(f"[{columns} x {memory_type(dtype)}]", 64)


class PanelProduct:
    """sums = rows @ panel, for each panel of a weight of `depth` rows.

    Sums over the depth are cut into blocks as those of `gemm.py` are, for the rounding errors.

    Args:
        row: elements from one row to the next.
        sums: where the sums of one panel go, as `Shape.place` says.
    """

    def __init__(
        self,
        b: Builder,
        name: str,
        shape: Shape,
        depth: int,
        row: int,
        sums: str,
        dtype: DType,
        weights: DType,
    ) -> None:
        self._b, self._name, self._shape, self._depth, self._row = b, name, shape, depth, row
        self._sums = sums
        self._dtype: DType = dtype
        self._weights: DType = weights
        define(b, name, ("state", "panel", "sums"), ("rows",), self._body)

    def weights_of(self, base: str, direction: Int, units: int) -> str:
        """Where the panels of a direction begin."""
        b, shape = self._b, self._shape
        panels = -(-units // shape.units)
        size = shape.passes * self._depth * shape.columns
        return place(b, base, mul(b, mul(b, direction, panels), size), self._weights)

    def over(
        self,
        weights: str,
        units: int,
        rows: tuple[Int, Int],
        state: Callable[[Int], str],
        finish: Finish,
        without: Value | bool = False,
    ) -> None:
        """For each panel and tile of rows: the product, then what follows.

        Args:
            without: whether the rows are zeros, and not in memory.
            weights: where the panels begin. units: how many there are in all panels.
            rows: the first one, and the end. state: where a row lies.
        """
        b, shape = self._b, self._shape
        block = self._depth * shape.columns

        full = self._tile(shape.rows)

        def multiply(panel: Int, row: Int, rows: Int) -> None:
            line = state(row)
            for part, sums in enumerate(self._parts()):
                own = place(
                    b, weights, mul(b, add(b, mul(b, panel, shape.passes), part), block), self._weights
                )
                b.line(
                    f"call void @{self._name}(ptr {line}, ptr {own}, ptr {sums}, i64 {value_of(b, rows).text})"
                )

        def clear() -> None:
            for sums in self._parts():
                store_tile(b, full, zeros(full), sums)

        def one(panel: Int, row: Int, rows: Int) -> None:
            branch(b, without, clear, lambda: multiply(panel, row, rows))

        self._panels(units, rows, one, finish)

    def _parts(self) -> list[str]:
        """Where the sums of each pass go."""
        size = self._shape.rows * self._shape.columns
        return [place(self._b, self._sums, part * size, self._dtype) for part in range(self._shape.passes)]

    def _panels(
        self, units: int, rows: tuple[Int, Int], multiply: Callable[[Int, Int, Int], None], finish: Finish
    ) -> None:
        whole = units // self._shape.units

        def one(panel: Int, there: int) -> None:
            with self._row_tiles(*rows) as (row, tile):
                multiply(panel, row, tile)
                finish(panel, there, row, tile)

        with count(self._b, 0, whole) as panel:
            one(panel, self._shape.units)
        if units % self._shape.units:
            one(whole, units % self._shape.units)

    @contextmanager
    def _row_tiles(self, first: Int, last: Int) -> Generator[tuple[Int, Int]]:
        """(the first row, rows) of each tile: as few as there can be, and all of one size but the last."""
        b = self._b
        rows = sub(b, last, first)
        fewest = ceil_div(b, rows, self._shape.rows)
        step = div(b, sub(b, add(b, rows, fewest), 1), fewest)
        tiles = div(b, sub(b, add(b, rows, step), 1), step)
        with count(b, 0, tiles, runs=True) as number:
            row = add(b, first, mul(b, number, step))
            yield row, least(b, step, sub(b, last, row))

    # --- the function of one panel ------------------------------------------------------------------------------------

    def _tile(self, rows: int) -> Tile:
        shape = self._shape
        return Tile(rows, shape.group * shape.vectors, shape.lanes, self._dtype, self._dtype)

    def _body(self, b: Builder, pointers: dict[str, str], integers: dict[str, Int]) -> None:
        """(state, panel, sums, rows): the product for so many rows."""
        most = self._shape.rows

        def of_rows(rows: int) -> None:
            if rows == most:
                self._product(b, self._tile(rows), pointers)
                return
            branch(
                b,
                less(b, integers["rows"], rows + 1),
                lambda: self._product(b, self._tile(rows), pointers),
                lambda: of_rows(rows + 1),
            )

        of_rows(1)

    def _product(self, b: Builder, tile: Tile, pointers: dict[str, str]) -> None:
        depth = self._depth
        most = b.target.sum_block
        block = -(-depth // -(-depth // most))
        unroll = 2 if tile.rows * tile.vectors < 12 else 1
        with count(b, 0, depth, block) as k0:
            length = block if depth % block == 0 else least(b, block, sub(b, depth, k0))
            state = place(b, pointers["state"], k0, tile.dtype)
            rows = [RowAddress(state, r * self._row) for r in range(tile.rows)]
            panel = place(b, pointers["panel"], mul(b, k0, tile.width), self._weights)
            operands = Operands(rows, tile.source, 1, panel, tile.width, right=self._weights)
            sums = accumulate(b, tile, operands, length, zeros(tile), unroll)

            def store() -> None:
                store_tile(b, tile, sums, pointers["sums"])

            def join() -> None:
                before = load_tile(b, tile, pointers["sums"])
                total = [
                    [b.add(x, y) for x, y in zip(*pair, strict=True)]
                    for pair in zip(before, sums, strict=True)
                ]
                store_tile(b, tile, total, pointers["sums"])

            branch(b, less(b, k0, 1), store, join)
