"""The epilogue of a GEMM: accumulators become `value`, stored through `index`.

    before:  a rows x width tile of sums, in registers or dense in scratch
    after:   out[index(batch, m, n)] = value(acc, batch, m, n) for the valid rows and columns

Vectors run along n and start at multiples of their width, so an index with `n // 64` and `n % 64` (a split into heads)
is still one vector load or store: see `VectorAxis.aligned`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.emit import ACCUMULATOR, Emitter, is_sum
from lampwork.codegen.llvm.env import Env, VectorAxis
from lampwork.codegen.llvm.templates.code import outline
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    count,
    evaluate,
    least,
    less,
    mod,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import Accumulators, Tile, load_vector
from lampwork.codegen.llvm.types import is_number_of, itemsize
from lampwork.loops.ir.bounds import elements_of, offset_in, stays_inside
from lampwork.loops.ir.expr import indices, loads, requires
from lampwork.loops.ir.index import ONE, Index, simplify
from lampwork.loops.ir.nodes import Buffer, Const, Expr, Gemm, Load, Op
from lampwork.loops.ir.traverse import rewrite
from lampwork.records import record


def flattened(gemm: Gemm) -> Gemm:
    """The Gemm with out and the epilogue's loads addressed by one simplified offset each.

    before:  out[m // 128, m % 128, n], strides (98304, 768, 1)        after:  out[768*m + n]
    """
    extents = {axis.name: axis.extent for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k)}

    def line(buffer: Buffer) -> Buffer:
        return Buffer(buffer.name, buffer.dtype, (elements_of(buffer),), (ONE,))

    def on_load(load: Load) -> Expr:
        offset = simplify(offset_in(load.buffer, load.index), extents)
        return Load(line(load.buffer), (offset,), load.mask, load.other)

    index = simplify(offset_in(gemm.out, gemm.index), extents)
    rules = {Load: on_load, Op: _less_rounded, Index: lambda position: simplify(position, extents)}
    value = rewrite(gemm.value, rules)
    return replace(gemm, out=line(gemm.out), index=(index,), value=value)


def _less_rounded(op: Op) -> Expr:
    """An operation without the roundings of a product's sum that change nothing, or need not be.

    before:  unrounded(f32(bf16(acc + bias[n])))        after:  acc + bias[n]
    before:  bf16(maximum(f32(bf16(acc)), 0.0))         after:  bf16(maximum(acc, 0.0))
    """
    if op.name == "unrounded":
        return _sum_of(op.args[0]) or op.args[0]
    picked = op.args[0]
    if op.name == "cast" and isinstance(picked, Op) and picked.name in ("maximum", "minimum"):
        # Rounding keeps the order of numbers, and does not move a number of the half type.
        value, bound = picked.args
        found = _sum_of(value) if isinstance(bound, Const) and is_number_of(bound.value, op.dtype) else None
        if found is not None:
            return Op("cast", (Op(picked.name, (found, bound), picked.dtype),), op.dtype)
    return op


def _sum_of(wide: Expr) -> Expr | None:
    """The float32 that was rounded to a half type to give `wide`, if it is a product's sum."""
    half = wide.args[0] if isinstance(wide, Op) and wide.name == "cast" and wide.dtype == "f32" else None
    if not (isinstance(half, Op) and half.name == "cast" and half.dtype in ("bf16", "f16")):
        return None
    return half.args[0] if half.args[0].dtype == "f32" and is_sum(half.args[0]) else None


def needs_checks(flat: Gemm) -> bool:
    """Whether the epilogue of a `flattened` Gemm takes indices from data, requires something of values, or reads or
    writes at a place that is not proven to exist."""
    extents = {axis.name: axis.extent for axis in (*flat.batch, flat.m, flat.n)}
    places = [(load.buffer, load.index, load.mask) for load in loads(flat.value)]
    places.append((flat.out, flat.index, None))
    return (
        any(index.indirects() for index in indices(flat.value))
        or requires(flat.value)
        or not all(stays_inside(buffer, index, extents, mask) for buffer, index, mask in places)
    )


@record
class Epilogue:
    """Emits the `value` and the store of `gemm`.

    bases: the address of each parameter, by buffer name. name: the kernel's.
    """

    gemm: Gemm
    emitter: Emitter
    bases: Mapping[str, str]
    name: str

    def from_scratch(
        self, tile: Tile, scratch: str, env: Mapping[str, Int], first: Int, last: Int, columns: Int
    ) -> None:
        """Rows first to last and the first `columns` columns of the tile at `scratch`.

        env[m] and env[n] are the place of the tile's corner; env[n] is a multiple of the tile's lanes. It is a function
        of its own, because LLVM would hoist the constants of a long epilogue out of the loop over k too, and spill the
        accumulators for them.
        """
        gemm, emitter = self.gemm, self.emitter
        used = {gemm.m.name, gemm.n.name}
        for index in (*gemm.index, *indices(gemm.value)):
            used |= index.variables() | index.symbols()
        names = {load.buffer.name for load in loads(gemm.value)} | {gemm.out.name}
        pointers = {f"buffer {name}": base for name, base in self.bases.items() if name in names}
        if emitter.error_flag is not None:
            pointers["error"] = emitter.error_flag
        integers = {f"env {name}": value for name, value in env.items() if name in used}

        def body(b: Builder, addresses: dict[str, str], values: dict[str, Int]) -> None:
            bases = {name: addresses[f"buffer {name}"] for name in names}
            inside = {name: values[f"env {name}"] for name in env if name in used}
            writer = Emitter(
                b,
                written=frozenset((gemm.out.name,)),
                error_flag=addresses.get("error"),
                proven=emitter.proven,
                dot=emitter.dot,
            )
            copy = Epilogue(gemm, writer, bases, self.name)
            copy._rows(tile, addresses["tile"], inside, values["first"], values["last"], values["columns"])

        made = sum(f"@{self.name}.epilogue" in text.partition("(")[0] for text in emitter.b.module.functions)
        outline(
            emitter.b,
            f"{self.name}.epilogue{made or ''}",
            {"tile": scratch, **pointers},
            {"first": first, "last": last, "columns": columns, **integers},
            body,
        )

    def _rows(
        self, tile: Tile, scratch: str, env: Mapping[str, Int], first: Int, last: Int, columns: Int
    ) -> None:
        """The body of from_scratch."""
        b, lanes = self.emitter.b, tile.lanes
        whole = sub(b, columns, mod(b, columns, lanes))
        with count(b, first, last) as row:
            m = add(b, env[self.gemm.m.name], row)
            line = place(b, scratch, mul(b, row, tile.width), tile.dtype)
            with count(b, 0, whole, lanes) as column:
                acc = load_vector(b, tile.dtype, lanes, place(b, line, column, tile.dtype))
                self._vector(acc, env, m, column)
            if whole == columns:
                return
            # LLVM 22 makes of a masked store of one known lane, narrowed from 32 bits to 16, a store of 32 bits.
            if not b.target.has_masks or sub(b, columns, whole) == 1:
                with count(b, whole, columns) as column:
                    acc = load_vector(b, tile.dtype, 1, place(b, line, column, tile.dtype))
                    self._vector(acc, env, m, column)
                return

            def rest() -> None:
                mask = b.first_lanes(value_of(b, sub(b, columns, whole)), lanes)
                acc = load_vector(b, tile.dtype, lanes, place(b, line, whole, tile.dtype))
                self._vector(acc, env, m, whole, mask)

            branch(b, less(b, whole, columns), rest)

    def prefetch(self, tile: Tile, env: Mapping[str, Int]) -> None:
        """Ask for the tile of every matrix that the epilogue reads, so that it has come when the sums are ready."""
        b, gemm = self.emitter.b, self.gemm
        for load in dict.fromkeys(loads(gemm.value)):
            offset = load.index[0]
            if (
                offset.indirects()
                or offset.coefficient(gemm.n.name) != ONE
                or gemm.m.name not in offset.variables()
            ):
                continue
            b.module.declare("llvm.prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
            for row in range(tile.rows):
                at = offset.substitute({gemm.m.name: Index.var(gemm.m.name) + row})
                base = place(
                    b, self.bases[load.buffer.name], evaluate(b, at - at.constant, env), load.buffer.dtype
                )
                for column in range(0, tile.width, b.target.cache_line // itemsize(load.buffer.dtype)):
                    pointer = place(b, base, at.constant + column, load.buffer.dtype)
                    b.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")

    def from_registers(self, tile: Tile, accumulators: Accumulators, env: Mapping[str, Int]) -> None:
        """The whole tile; all of its rows and columns are valid.

        All values first, then all stores: LLVM cannot know that a store does not change what a later load reads.
        """
        b, gemm = self.emitter.b, self.gemm
        stores: list[tuple[Value, Env]] = []
        for r, row in enumerate(accumulators):
            m = add(b, env[gemm.m.name], r)
            for v, acc in enumerate(row):
                inside = self.inside(acc, env, m, v * tile.lanes)
                stores.append((self.emitter.emit_wide(gemm.value, inside), inside))
        for value, inside in stores:
            self.emitter.emit_store(gemm.out, gemm.index, value, inside)

    def _vector(
        self, acc: Value, env: Mapping[str, Int], m: Int, column: Int, mask: Value | None = None
    ) -> None:
        inside = self.inside(acc, env, m, column, mask)
        value = self.emitter.emit_wide(self.gemm.value, inside)
        self.emitter.emit_store(self.gemm.out, self.gemm.index, value, inside)

    def inside(
        self, acc: Value, env: Mapping[str, Int], m: Int, column: Int, mask: Value | None = None
    ) -> Env:
        """What names mean for the `acc.lanes` columns from the tile's `column` on, in row m."""
        b, gemm = self.emitter.b, self.gemm
        named = {**env, gemm.m.name: m, gemm.n.name: add(b, env[gemm.n.name], column)}
        values = {name: value_of(b, value) for name, value in named.items()}
        axis = VectorAxis(gemm.n.name, acc.lanes, mask, acc.lanes) if acc.lanes > 1 else None
        extents = {each.name: each.extent for each in (*gemm.batch, gemm.m, gemm.n)}
        return Env(values, values, {ACCUMULATOR: acc}, self.bases, axis, extents)


def valid_columns(emitter: Emitter, gemm: Gemm, tile: Tile, n0: Int, env: Mapping[str, Int]) -> Int:
    """How many columns of the tile at n0 lie before the end of n."""
    if (gemm.n.extent % tile.width).as_int() == 0:
        return tile.width
    b = emitter.b
    return least(b, tile.width, sub(b, evaluate(b, gemm.n.extent, env), n0))
