"""Recurrent layers: `emit_recurrence` makes of a `Recurrence` a kernel that runs all steps of a layer.

    for rows [begin, end) of all directions:               a share of the batch
        for t in the order of the direction:
            for each panel of units:                       the gates of so many units
                for tiles of rows:
                    sums = state(t - 1) @ panel            microkernel.py, for 1 to `rows` rows
                    cell                                   recurrent_cells.py: the gates of a unit are in one lane
            for panels of the projection, if there is one: state(t) = hidden @ panel

Steps depend on each other, so threads share the batch and the directions, not the units: that needs no barrier. The
states lie in the node's memory in one row for each element of the batch: two that take turns, the cell, and what is
yet to be projected. The rows are padded, so that only loads of x and stores of the result meet the end of the units.

Sums over k are cut into blocks as those of `gemm.py` are, for the rounding errors.

What was measured on one core of a Zen 4 (AVX-512, 115 GFLOP/s in large products), float32, 256 units, 64 steps,
without the product with the input:

    lstm, batch 1, 2, 4, 12           47, 86, 105, 98 GFLOP/s     (AVX2: 42, 73, 87, 90)
    gru, batch 1, 2, 4, 12            52, 90, 107, 103            (AVX2: 43, 72, 94, 93)

A batch of one is bound by the second-level cache, from which the weights come at each step. Prefetching the weights
or x gained nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.code import GemmCode, define, function, load_params
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    ceil_div,
    count,
    div,
    evaluate,
    greatest,
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
    RowAddress,
    Tile,
    accumulate,
    load_tile,
    load_vector,
    store_tile,
    store_vector,
    zeros,
)
from lampwork.codegen.llvm.templates.recurrent_cells import load_part, next_state, store_part
from lampwork.codegen.llvm.templates.recurrent_plan import (
    Shape,
    gate_shape,
    offsets_of,
    panels_of,
    params_of,
    project_shape,
    size_of,
)
from lampwork.codegen.target import Target
from lampwork.loops.ir.expr import definition_exprs, indices
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Load, Recurrence

CELL, HIDDEN = 2, 3
"""Which part of a row of memory is the cell, and which the state before its projection; 0 and 1 are the states."""


def emit_recurrence(node: Recurrence, name: str, target: Target) -> GemmCode:
    """The kernel of one `Recurrence`, whose weights are packed.

    Raises CodegenError for a node that the template does not support.
    """
    return _Emission(node, name, target).run()


class _Emission:
    """One run of emit_recurrence."""

    def __init__(self, node: Recurrence, name: str, target: Target) -> None:
        self.node, self.name = node, name
        self.dtype: DType = node.x.dtype
        self.weights: DType = node.w.dtype
        self.b = Builder(Module(), target)
        self.units, self.size = size_of(node.u), size_of(node.k)
        self.offsets = offsets_of(node)
        self.shape = gate_shape(node, target)
        self.params = params_of(node)
        panels_of(node.w, self.shape, node.k, self.units)
        self.shapes = [self.shape]
        if node.project is not None:
            self.shapes.append(project_shape(node, target))
            panels_of(node.project, self.shapes[1], node.u, self.size)
        row, padded = (stride.as_int() for stride in node.memory.strides[1:3])
        assert row is not None and padded is not None, "the units are numbers"
        self.row, self.padded = row, padded

    def run(self) -> GemmCode:
        node, b = self.node, self.b
        axes = (node.d, node.t, node.b, *node.steps)
        used = [index for expr in definition_exprs(node) for index in indices(expr)]
        self.bases, sizes, self.env = load_params(
            b, self.params, [*(axis.extent for axis in axes), *node.index, *used]
        )
        columns = max(shape.passes * shape.columns * shape.rows for shape in self.shapes)
        self.sums = b.alloca(f"[{columns} x {self._tile(self.shape, 1).element}]", 64)
        self.products = [self._define_product(shape, n) for n, shape in enumerate(self.shapes)]
        batch = evaluate(b, node.b.extent, self.env)
        with count(b, 0, size_of(node.d)) as direction:
            start = mul(b, direction, batch)
            first = greatest(b, sub(b, Value("%begin", "i64"), start), 0)
            last = least(b, sub(b, Value("%end", "i64"), start), batch)
            branch(b, less(b, first, last), lambda d=direction, a=first, z=last: self._direction(d, a, z))
        work = node.t.extent * (2 * self.size * self.units * (node.gates + (node.project is not None)))
        return GemmCode(
            self.name,
            function(b, self.name),
            self.params,
            sizes,
            node.d.extent * node.b.extent,
            work,
            b.target.thread_work,
        )

    def _tile(self, shape: Shape, rows: int) -> Tile:
        return Tile(rows, shape.group * shape.vectors, shape.lanes, self.dtype, self.dtype)

    # --- products -----------------------------------------------------------------------------------------------------

    def _define_product(self, shape: Shape, number: int) -> str:
        """A function (state, panel, sums, rows): sums = state @ panel for so many rows of memory."""
        depth = self.size if number == 0 else self.units

        def body(b: Builder, pointers: dict[str, str], integers: dict[str, Int]) -> None:
            def of_rows(rows: int) -> None:
                if rows == shape.rows:
                    self._product(b, self._tile(shape, rows), pointers, depth)
                    return
                branch(
                    b,
                    less(b, integers["rows"], rows + 1),
                    lambda: self._product(b, self._tile(shape, rows), pointers, depth),
                    lambda: of_rows(rows + 1),
                )

            of_rows(1)

        name = f"{self.name}.product{number}"
        define(self.b, name, ("state", "panel", "sums"), ("rows",), body)
        return name

    def _product(self, b: Builder, tile: Tile, pointers: dict[str, str], depth: int) -> None:
        most = b.target.sum_block
        block = -(-depth // -(-depth // most))
        unroll = 2 if tile.rows * tile.vectors < 12 else 1
        with count(b, 0, depth, block) as k0:
            length = block if depth % block == 0 else least(b, block, sub(b, depth, k0))
            state = place(b, pointers["state"], k0, tile.dtype)
            rows = [RowAddress(state, r * self.row) for r in range(tile.rows)]
            panel = place(b, pointers["panel"], mul(b, k0, tile.width), self.weights)
            operands = Operands(rows, tile.source, 1, panel, tile.width, right=self.weights)
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

    # --- one direction ------------------------------------------------------------------------------------------------

    def _direction(self, direction: Int, first: Int, last: Int) -> None:
        node, b = self.node, self.b
        env = {**self.env, node.d.name: direction}
        start = mul(b, direction, evaluate(b, node.b.extent, env))
        memory = place(b, self.bases[node.memory.name], mul(b, start, self.row), self.dtype)
        self._first_states(env, memory, first, last)
        steps = evaluate(b, node.t.extent, env)
        with count(b, 0, steps, runs=True) as number:
            back = sub(b, sub(b, steps, 1), number)
            place_in = number
            if direction != 0:
                turned = b.cmp("eq", value_of(b, direction), 1)
                place_in = b.select(turned, value_of(b, back), value_of(b, number))
            env_t = {**env, node.t.name: place_in}
            end = last
            if node.s is not None:
                env_t[node.s.name] = self._of_step(node.start, self.offsets.start, env_t)
                end = least(b, last, self._of_step(node.count, self.offsets.count, env_t))
            now = mul(b, mod(b, number, 2), self.padded)
            following = sub(b, self.padded, now)
            target = following if node.project is None else HIDDEN * self.padded

            def gates(panel: Int, units: int, r: Int, rows: Int) -> None:
                self._cell(env_t, memory, now, target, panel, units, r, rows)

            def project(panel: Int, units: int, r: Int, rows: Int) -> None:
                self._projected(env_t, memory, following, panel, units, r, rows)

            def step() -> None:
                self._panels(0, env, memory, now, (first, end), gates)
                if node.project is not None:
                    self._panels(1, env, memory, HIDDEN * self.padded, (first, end), project)

            # A step of a packed sequence may have none of the rows.
            branch(b, True if node.s is None else less(b, first, end), step)

    def _of_step(self, load: Load | None, offset: Index | None, env: dict[str, Int]) -> Value:
        """What `load` holds for a step."""
        assert load is not None and offset is not None, "a packed sequence has counts and starts"
        b = self.b
        return load_vector(
            b, "i64", 1, place(b, self.bases[load.buffer.name], evaluate(b, offset, env), "i64")
        )

    def _of_row(self, env: dict[str, Int], row: Int) -> dict[str, Int]:
        """The step `env`, for an element of the batch."""
        node, b = self.node, self.b
        packed = {} if node.s is None else {node.s.name: add(b, env[node.s.name], row)}
        return {**env, node.b.name: row, **packed}

    def _first_states(self, env: dict[str, Int], memory: str, first: Int, last: Int) -> None:
        """Copy h, and c, into memory; of a packed sequence, whose elements have first steps of either kind, h twice."""
        node, b = self.node, self.b
        parts = [(node.h, self.offsets.h, node.k.name, 0, self.size)]
        if node.s is not None:
            parts.append((node.h, self.offsets.h, node.k.name, 1, self.size))
        if node.c is not None:
            assert self.offsets.c is not None
            parts.append((node.c, self.offsets.c, node.u.name, CELL, self.units))
        with count(b, first, last, runs=True) as row:
            line = place(b, memory, mul(b, row, self.row), self.dtype)
            for load, offset, along, part, size in parts:
                source = self.bases[load.buffer.name]
                inside = {**env, node.b.name: row}
                into = place(b, line, part * self.padded, self.dtype)
                self._copy(source, offset, inside, along, into, size)

    def _copy(
        self, source: str, offset: Index, env: dict[str, Int], along: str, into: str, size: int
    ) -> None:
        """into[i] = source[offset(i)] for i < size, with zeros up to the end of the last vector."""
        b, lanes = self.b, self.shape.lanes
        start = place(b, source, evaluate(b, offset, {**env, along: 0}), self.dtype)
        with count(b, 0, size // lanes * lanes, lanes) as i:
            value = load_vector(b, self.dtype, lanes, place(b, start, i, self.dtype))
            store_vector(b, value, place(b, into, i, self.dtype))
        if size % lanes:
            whole = size - size % lanes
            value = load_part(b, self.dtype, lanes, size % lanes, place(b, start, whole, self.dtype))
            store_vector(b, value, place(b, into, whole, self.dtype))

    def _panels(
        self,
        number: int,
        env: dict[str, Int],
        memory: str,
        state: Int,
        rows: tuple[Int, Int],
        finish: Callable[[Int, int, Int, Int], None],
    ) -> None:
        """For each panel and tile of rows: the product, then finish(panel, units that there are, first row, rows)."""
        node, b, shape = self.node, self.b, self.shapes[number]
        load = node.w if number == 0 else node.project
        assert load is not None
        depth, units = (self.size, self.units) if number == 0 else (self.units, self.size)
        panels = -(-units // shape.units)
        base = self.bases[load.buffer.name]
        whole = units // shape.units

        def one(panel: Int, there: int) -> None:
            at = add(b, mul(b, env[node.d.name], panels), panel)
            block = depth * shape.columns
            weights = place(b, base, mul(b, at, shape.passes * block), self.weights)
            with self._row_tiles(*rows, shape.rows) as (row, tile):
                line = place(b, memory, add(b, mul(b, row, self.row), state), self.dtype)
                for part in range(shape.passes):
                    sums = place(b, self.sums, part * shape.rows * shape.columns, self.dtype)
                    own = place(b, weights, part * block, self.weights)
                    b.line(
                        f"call void @{self.products[number]}(ptr {line}, ptr {own}, ptr {sums}, "
                        f"i64 {value_of(b, tile).text})"
                    )
                finish(panel, there, row, tile)

        with count(b, 0, whole) as panel:
            one(panel, shape.units)
        if units % shape.units:
            one(whole, units % shape.units)

    @contextmanager
    def _row_tiles(self, first: Int, last: Int, most: int) -> Generator[tuple[Int, Int]]:
        """(the first row, rows) of each tile: as few as there can be, and all of one size but the last."""
        b = self.b
        rows = sub(b, last, first)
        fewest = ceil_div(b, rows, most)
        step = div(b, sub(b, add(b, rows, fewest), 1), fewest)
        tiles = div(b, sub(b, add(b, rows, step), 1), step)
        with count(b, 0, tiles, runs=True) as number:
            row = add(b, first, mul(b, number, step))
            yield row, least(b, step, sub(b, last, row))

    # --- after the products -------------------------------------------------------------------------------------------

    def _cell(
        self,
        env: dict[str, Int],
        memory: str,
        now: Int,
        target: Int,
        panel: Int,
        there: int,
        first: Int,
        rows: Int,
    ) -> None:
        """The gates of `there` units of a panel become the state, in memory's part `target` and, unless it is to be
        projected, in the result."""
        node, b, shape, dtype = self.node, self.b, self.shape, self.dtype
        lanes = shape.lanes
        unit = mul(b, panel, shape.units)
        with count(b, 0, rows, runs=True) as r:
            row = add(b, first, r)
            inside = {**self._of_row(env, row), node.n.name: unit, node.u.name: unit, node.k.name: unit}
            line = place(b, memory, add(b, mul(b, row, self.row), unit), dtype)
            sums = place(b, self.sums, mul(b, r, shape.columns), dtype)
            x = place(b, self.bases[node.x.buffer.name], evaluate(b, self.offsets.x, inside), dtype)
            for shift in range(0, min(there, shape.units), lanes):
                part = min(lanes, there - shift)
                gates = [
                    load_vector(b, dtype, lanes, place(b, sums, shape.place(gate) + shift, dtype))
                    for gate in range(node.gates)
                ]
                inputs = [
                    load_part(b, dtype, lanes, part, place(b, x, gate * self.units + shift, dtype))
                    for gate in range(node.gates)
                ]
                carried = now if node.kind == "gru" else CELL * self.padded
                kept = place(b, line, add(b, carried, shift), dtype)
                before = load_vector(b, dtype, lanes, kept) if node.kind in ("lstm", "gru") else None
                bias = None
                if node.bias is not None and self.offsets.bias is not None:
                    at = add(b, evaluate(b, self.offsets.bias, inside), shift)
                    bias = load_part(
                        b, dtype, lanes, part, place(b, self.bases[node.bias.buffer.name], at, dtype)
                    )
                state, cell = next_state(b, node.kind, inputs, gates, before, bias)
                if cell is not None:
                    store_vector(b, cell, kept)
                store_vector(b, state, place(b, line, add(b, target, shift), dtype))
                if node.project is None:
                    self._store(state, part, inside, shift)

    def _projected(
        self,
        env: dict[str, Int],
        memory: str,
        target: Int,
        panel: Int,
        there: int,
        first: Int,
        rows: Int,
    ) -> None:
        """The sums of a panel are the state."""
        node, b, shape, dtype = self.node, self.b, self.shapes[1], self.dtype
        start = mul(b, panel, shape.units)
        with count(b, 0, rows, runs=True) as r:
            row = add(b, first, r)
            inside = {**self._of_row(env, row), node.k.name: start}
            line = place(b, memory, add(b, mul(b, row, self.row), start), dtype)
            for shift in range(0, min(there, shape.units), shape.lanes):
                at = add(b, mul(b, r, shape.columns), shift)
                state = load_vector(b, dtype, shape.lanes, place(b, self.sums, at, dtype))
                store_vector(b, state, place(b, line, add(b, target, shift), dtype))
                self._store(state, min(shape.lanes, there - shift), inside, shift)

    def _store(self, state: Value, there: int, env: dict[str, Int], shift: int) -> None:
        """Store some of the state to the result, `shift` elements from where env says."""
        b = self.b
        at = add(b, evaluate(b, self.offsets.out, env), shift)
        out = self.node.out
        store_part(b, convert(b, state, out.dtype), there, place(b, self.bases[out.name], at, out.dtype))
