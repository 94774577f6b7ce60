"""A product with a constant matrix that is read as it lies: the rows of A are what is packed, into lanes.

    out[m, n] = value(sum over k of a[m, k] * w[n, k])       w: a linear layer's weight, Gemm.b over (k, n)

    before:  panels of a (PackB):  [m // width, k, m % width]
    for item in [begin, end):                      one block of columns of out (rows of w), one panel of a
        for k0 in 0, k_block, ...
            for n0 in columns of the block:        tiles of rows of w x vectors of rows of a
                accumulate                         microkernel.py: numbers of w are broadcast from where they lie
                add the sums of the blocks before, put the sums aside
        turn the sums                              squares of vectors, transposed in registers
        epilogue                                   epilogue.py, over rows of consecutive columns as anywhere

A load of the micro-kernel is used for as many multiply-adds as with panels of w, and there is no copy of w. What it
costs instead is the packing of a, one part in N of the product, the turning, one part in K, and the lanes past the last
row of a: a last panel that is not whole has a tile of its own, as narrow as half a vector.

Eight rows of w are as many as the ways of a small first-level cache: with more, those of weights whose rows are
multiples of 4096 bytes apart drive each other out (12 x 2: 0.88 of the speed of 8 x 2; 16 x 1: a half).

Measured on one core of a Zen 4 (AVX-512, peak 118 GFLOP/s) that others shared, float32, weights from memory, packing of
a included; several runs, which differ by what the neighbours left of the memory's bandwidth:

    M=16, K x N = 768 x 3072        98-100       (panels of w: 87-109)
    M=32, 768 x 768                 104-106      (111-113)
    M=128, 768 x 768                108-109      (111-115)
    M=197, 768 x 768                105          (111): left in panels, as the last panel is mostly empty
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, function, load_params
from lampwork.codegen.llvm.templates.epilogue import Epilogue, flattened, needs_checks
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    count,
    div,
    evaluate,
    least,
    less,
    mod,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import (
    Operands,
    RowPrefetch,
    Tile,
    accumulate,
    load_vector,
    row_addresses,
    store_tile,
    store_vector,
    with_sums,
    zeros,
)
from lampwork.codegen.llvm.templates.plan import extents_of
from lampwork.codegen.llvm.templates.transpose import transpose
from lampwork.codegen.llvm.templates.turned_plan import TurnedConfig, last_panel, turned_config
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import elements_of, offset_in
from lampwork.loops.ir.expr import definition_exprs, indices, loads
from lampwork.loops.ir.index import ZERO, Index, simplify
from lampwork.loops.ir.nodes import Buffer, Gemm, Panels


def emit_turned(gemm: Gemm, name: str, target: Target, config: TurnedConfig | None = None) -> GemmCode:
    """The kernel of a Gemm whose A is in panels and whose B `supports_turned` accepts.

    Raises CodegenError for panels that are not those of the tile, and for less columns than it has.
    """
    panels = gemm.a.buffer
    lanes, steps = target.sum_lanes(panels.dtype), target.steps(panels.dtype)
    if not isinstance(panels, Panels) or (panels.steps, panels.offset) != (steps, 0):
        raise CodegenError(f"the rows of {panels.name!r} are not in panels of {steps} steps")
    if config is None:
        config = turned_config(gemm, target, panels.columns // lanes)
    if panels.columns != config.vectors * lanes:
        raise CodegenError(
            f"A is packed in {panels.columns} rows, the tile has {config.vectors} vectors of {lanes}"
        )
    n = gemm.n.extent.as_int() or 0
    if n < config.rows:
        raise CodegenError(f"a tile of {config.rows} columns does not fit {n} columns")
    return _Emission(gemm, name, target, config).run()


class _Emission:
    """One run of emit_turned."""

    def __init__(self, gemm: Gemm, name: str, target: Target, config: TurnedConfig) -> None:
        self.gemm, self.name, self.config = gemm, name, config
        self.b = Builder(Module(), target)
        flat = flattened(gemm)
        self.error = self.b.name("error") if needs_checks(flat) else None
        dtype = gemm.b.buffer.dtype
        self.emitter = Emitter(
            self.b, written=frozenset((gemm.out.name,)), error_flag=self.error, dot=target.dot(dtype)
        )
        self.flat = flat
        self.tile = Tile.of(config.rows, config.vectors, target, dtype)
        self.m, self.n = gemm.m.extent.as_int() or 0, gemm.n.extent.as_int() or 0
        # From here on k counts what is multiplied at once.
        self.k = -(-(gemm.k.extent.as_int() or 0) // self.tile.steps)
        self.width = self.tile.width  # of a panel, whatever the tile
        self.offset = simplify(offset_in(gemm.b.buffer, gemm.b.index), extents_of(gemm))
        self.stack = Stack(self.b)
        # What the epilogue works on: rows of A x columns of a work item.
        self.turned = Tile.of(self.width, config.columns // self.tile.lanes, target, dtype)

    def run(self) -> GemmCode:
        gemm, b, config, tile = self.gemm, self.b, self.config, self.tile
        params = self._params()
        used = [index for expr in definition_exprs(gemm) for index in indices(expr)]
        used += [elements_of(buffer) for buffer in params]
        self.bases, sizes, env = load_params(b, params, [*gemm.index, *used])
        self.epilogue = Epilogue(self.flat, self.emitter, self.bases, self.name)
        if self.error is not None:
            b.line(f"{self.error} = alloca i64")
            b.line(f"store i64 0, ptr {self.error}")
        # A tile that ends with the matrix may begin before the block.
        rows = tile.rows + -(-config.columns // tile.rows) * tile.rows
        self.sums = self.stack.array("sums", rows * tile.width, tile.element, tile.size)
        self.lines = self.stack.array("lines", config.columns * tile.width, tile.element, tile.size)
        panels, blocks = -(-self.m // self.width), -(-self.n // config.columns)
        with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
            self._item(mod(b, items.index, panels), div(b, items.index, panels), env)
        work = 2 * min(self.width, self.m) * min(config.columns, self.n)
        return GemmCode(
            self.name,
            function(b, self.name, self.error),
            params,
            sizes,
            Index.const(panels * blocks),
            gemm.k.extent * work,
            b.target.thread_work,
            self.stack.bytes,
        )

    def _params(self) -> tuple[Buffer, ...]:
        gemm = self.gemm
        seen = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
        for load in loads(gemm.value):
            seen.setdefault(load.buffer.name, load.buffer)
        seen.setdefault(gemm.out.name, gemm.out)
        return tuple(seen.values())

    def _item(self, panel: Int, number: Int, env: dict[str, Int]) -> None:
        b, gemm, columns = self.b, self.gemm, self.config.columns
        first = mul(b, number, columns)
        last = add(b, first, columns)
        last = last if self.n % columns == 0 else least(b, last, self.n)
        start = place(b, self.bases[gemm.a.buffer.name], mul(b, panel, self.k * self.width), self.tile.dtype)
        env = {**env, gemm.m.name: mul(b, panel, self.width), gemm.n.name: first}
        whole = self.m // self.width
        narrow = self._of_last_panel()
        branch(
            b,
            less(b, panel, whole) if narrow is not None and whole else narrow is None,
            lambda: self._block(start, first, last, env),
            lambda: (narrow or self)._block(start, first, last, env),
        )
        rows: Int = self.width
        if self.m % self.width:
            rows = least(b, self.width, sub(b, self.m, env[gemm.m.name]))
        self.epilogue.from_scratch(self.turned, self.lines, env, 0, rows, sub(b, last, first))

    def _of_last_panel(self) -> _Emission | None:
        """What computes the last panel if that takes fewer vectors, or smaller ones."""
        vectors, lanes = last_panel(self.m, self.tile.vectors, self.tile.lanes)
        if vectors in (0, self.tile.vectors) and lanes == self.tile.lanes:
            return None
        narrow = copy(self)
        narrow.tile = replace(self.tile, vectors=vectors, lanes=lanes)
        return narrow

    def _block(self, start: str, first: Int, last: Int, env: dict[str, Int]) -> None:
        """lines[row of A, column]: the sums of a panel, which begins at `start`, and columns first to last."""
        b, tile = self.b, self.tile
        k_block = self.config.k_block or self.k
        with count(b, 0, self.k, k_block) as k0:
            depth = k_block if self.k % k_block == 0 else least(b, k_block, sub(b, self.k, k0))
            panel = place(b, start, mul(b, k0, self.width), tile.dtype)
            with count(b, first, last, tile.rows, runs=True) as n0:
                self._tile(k0, depth, panel, n0, first, last, env)
        self._turn(sub(b, last, first))

    def _tile(
        self, k0: Int, depth: Int, panel: str, n0: Int, first: Int, last: Int, env: Mapping[str, Int]
    ) -> None:
        """The sums of columns n0 on, over `depth` steps from k0 on. The last tile ends with the matrix: it computes
        some columns again, and its sums come to lie over those of the tile before, once they are whole."""
        b, tile, rows = self.b, self.tile, self.tile.rows
        corner = n0 if self.n % rows == 0 else least(b, n0, self.n - rows)
        prefetch = self._prefetch(k0, n0, first, last, env) if self.config.prefetch else None
        operands = Operands(
            row_addresses(
                b,
                self.offset,
                self.bases[self.gemm.b.buffer.name],
                tile.source,
                self.gemm.n.name,
                [Index.var(self.gemm.n.name) + row for row in range(rows)],
                self._at(corner, k0, env),
            ),
            tile.source,
            tile.steps,
            panel,
            self.width,
            prefetch,
        )
        sums = accumulate(b, tile, operands, depth, zeros(tile), self.config.unroll)
        ahead = add(b, sub(b, n0, first), rows)
        place_ = add(b, sub(b, corner, first), rows)
        if self.config.k_block:
            sums = with_sums(b, tile, sums, k0, self._sums_at(ahead))
            is_last = less(b, self.k - 1, add(b, k0, self.config.k_block))
            if isinstance(is_last, Value) and corner is not n0:
                place_ = b.select(is_last, value_of(b, place_), value_of(b, ahead))
        store_tile(b, tile, sums, self._sums_at(place_))

    def _sums_at(self, column: Int) -> str:
        return place(self.b, self.sums, mul(self.b, column, self.tile.width), self.tile.dtype)

    def _at(self, column: Int, k0: Int, env: Mapping[str, Int]) -> dict[str, Int]:
        """Where the word k0 of a column lies."""
        gemm = self.gemm
        return {**env, gemm.n.name: column, gemm.k.name: mul(self.b, k0, self.tile.steps)}

    def _prefetch(self, k0: Int, n0: Int, first: Int, last: Int, env: Mapping[str, Int]) -> RowPrefetch:
        """What the next tile reads: further columns; after the last tile of a block of k, the first ones of the next
        block; after all, what the next work item begins with."""
        b, gemm = self.b, self.gemm
        column, k = add(b, n0, self.tile.rows), k0
        if self.config.k_block:
            further = less(b, column, last)
            following = add(b, k0, self.config.k_block)
            ends = less(b, self.k - 1, following)
            assert isinstance(further, Value) and isinstance(ends, Value)
            start = b.select(ends, value_of(b, last), value_of(b, first))
            column = b.select(further, value_of(b, column), start)
            k = b.select(further, value_of(b, k0), b.select(ends, 0, value_of(b, following)))
        base = place(
            b,
            self.bases[gemm.b.buffer.name],
            evaluate(b, self.offset, self._at(column, k, env)),
            self.tile.source,
        )
        stride = evaluate(b, self.offset.coefficient(gemm.n.name) or ZERO, env)
        return RowPrefetch(base, stride, self.tile.rows)

    def _turn(self, columns: Int) -> None:
        """lines[row of A, column] = sums[column, row of A] for the columns of the block, in squares."""
        b, tile = self.b, self.tile
        lanes = tile.lanes
        with count(b, 0, columns, lanes) as column, count(b, 0, tile.width, lanes) as row:
            start = place(b, self._sums_at(add(b, column, tile.rows)), row, tile.dtype)
            square = [
                load_vector(b, tile.dtype, lanes, place(b, start, i * tile.width, tile.dtype))
                for i in range(lanes)
            ]
            at = add(b, mul(b, row, self.turned.width), column)
            line = place(b, self.lines, at, tile.dtype)
            for i, values in enumerate(transpose(b, square)):
                store_vector(b, values, place(b, line, i * self.turned.width, tile.dtype))
