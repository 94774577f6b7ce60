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

What was measured on one core of a Zen 4 (AVX-512, 115 GFLOP/s in large products), float32, 256 units, 64 steps,
without the product with the input:

    lstm, batch 1, 2, 4, 12           47, 86, 105, 98 GFLOP/s     (AVX2: 42, 73, 87, 90)
    gru, batch 1, 2, 4, 12            52, 90, 107, 103            (AVX2: 43, 72, 94, 93)

A batch of one is bound by the second-level cache, from which the weights come at each step. Prefetching the weights
or x gained nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.code import GemmCode, function, load_params
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    count,
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
    load_vector,
    store_vector,
)
from lampwork.codegen.llvm.templates.recurrent_cells import load_part, next_state, store_part
from lampwork.codegen.llvm.templates.recurrent_plan import (
    gate_shape,
    offsets_of,
    panels_of,
    params_of,
    project_shape,
    size_of,
)
from lampwork.codegen.llvm.templates.recurrent_products import Finish, PanelProduct, sums_of
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
            b, self.params, [*(axis.extent for axis in axes), *node.index, *node.kept_index, *used]
        )
        self.sums = sums_of(b, self.shapes, self.dtype)
        depths = (self.size, self.units)
        self.products = [
            PanelProduct(
                b, f"{self.name}.product{n}", shape, depth, self.row, self.sums, self.dtype, self.weights
            )
            for n, (shape, depth) in enumerate(zip(self.shapes, depths, strict=False))
        ]
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
                self._multiply(0, env, memory, now, (first, end), gates)
                if node.project is not None:
                    self._multiply(1, env, memory, HIDDEN * self.padded, (first, end), project)

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

    def _multiply(
        self, number: int, env: dict[str, Int], memory: str, state: Int, rows: tuple[Int, Int], finish: Finish
    ) -> None:
        """The product of a part of memory with one of the weights."""
        node, b, product = self.node, self.b, self.products[number]
        load, units = (node.w, self.units) if number == 0 else (node.project, self.size)
        assert load is not None
        weights = product.weights_of(self.bases[load.buffer.name], env[node.d.name], units)
        product.over(
            weights,
            units,
            rows,
            lambda row: place(b, memory, add(b, mul(b, row, self.row), state), self.dtype),
            finish,
        )

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
                own = place(b, line, add(b, carried, shift), dtype)
                before = load_vector(b, dtype, lanes, own) if node.kind in ("lstm", "gru") else None
                bias = None
                if node.bias is not None and self.offsets.bias is not None:
                    at = add(b, evaluate(b, self.offsets.bias, inside), shift)
                    bias = load_part(
                        b, dtype, lanes, part, place(b, self.bases[node.bias.buffer.name], at, dtype)
                    )
                state, cell, kept = next_state(
                    b, node.kind, inputs, gates, before, bias, keeps=node.kept is not None
                )
                self._keep(kept, part, inside, shift)
                if cell is not None:
                    store_vector(b, cell, own)
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

    def _keep(self, values: Sequence[Value], there: int, env: dict[str, Int], shift: int) -> None:
        """Store what the gradient reads, part by part, `shift` elements from where env says."""
        b, kept, offset = self.b, self.node.kept, self.offsets.kept
        if kept is None or offset is None:
            return
        start = add(b, evaluate(b, offset, env), shift)
        for number, value in enumerate(values):
            at = add(b, start, number * self.units)
            store_part(b, value, there, place(b, self.bases[kept.name], at, kept.dtype))

    def _store(self, state: Value, there: int, env: dict[str, Int], shift: int) -> None:
        """Store some of the state to the result, `shift` elements from where env says."""
        b = self.b
        at = add(b, evaluate(b, self.offsets.out, env), shift)
        out = self.node.out
        store_part(b, convert(b, state, out.dtype), there, place(b, self.bases[out.name], at, out.dtype))
