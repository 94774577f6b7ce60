"""A product whose rows are in groups, each with a matrix of its own (the experts of a mixture): `emit_grouped`.

    for item in [begin, end):                      one group, one block of its rows, one panel of columns
        from row, to row: the ends of the group    read at run time, so all sizes of groups are the same code
        no rows:          nothing
        few rows:         dot products with B as it lies, some rows at a time      (gemv.py)
        more rows:        the tiles of any other product with as many              (gemm.py)
    after the last group: rows of none             acc is 0 there

B is a weight as large as all of its matrices, of which a call may need some only. So it is never packed: what few rows
need is read once, where it lies; more rows share a panel, which each work item rearranges for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from lampwork.codegen.llvm.builder import Module, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.choose import UNKNOWN, Likely, choose_config
from lampwork.codegen.llvm.templates.code import GemmCode
from lampwork.codegen.llvm.templates.epilogue import valid_columns
from lampwork.codegen.llvm.templates.gemm import Emission
from lampwork.codegen.llvm.templates.gemv import dot_columns
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    count,
    evaluate,
    greatest,
    least,
    less,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import Tile, load_vector, store_tile, zeros
from lampwork.codegen.llvm.templates.plan import plan_gemm, supports
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir import symbols
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import Axis, Gemm


def emit_grouped(
    gemm: Gemm, name: str, target: Target, *, likely: Likely = UNKNOWN, module: Module | None = None
) -> GemmCode:
    """The kernel of a `Gemm` with groups; `likely`: what a group's rows, and symbolic columns, will probably be.

    Raises CodegenError for what `supports` refuses.
    """
    if gemm.group is None or gemm.ends is None or not supports(gemm, target):
        raise CodegenError(f"no template for the grouped gemm {gemm.out.name!r} of {gemm.a.buffer.dtype}")
    plan = plan_gemm(gemm, target, likely)
    n, k = gemm.n.extent.as_int(), plan.words.as_int()
    split = plan.split if plan.split % plan.steps else plan.split // plan.steps
    config = choose_config(None, n, k, 0, split, target, gemm.a.buffer.dtype, likely)
    return _Grouped(plan, name, target, config, module or Module()).run()


def likely_rows(gemm: Gemm, hints: Mapping[str, int]) -> int | None:
    """The rows of a group, if all groups have as many."""
    assert gemm.group is not None
    rows, groups = (symbols.likely(axis.extent, hints) for axis in (gemm.m, gemm.group))
    return None if rows is None or groups is None else max(1, rows // max(groups, 1))


class _Grouped(Emission):
    """One run of `emit_grouped`. Rows are counted through all groups; a group's end takes the place of M."""

    @property
    def group(self) -> Axis:
        assert self.gemm.group is not None
        return self.gemm.group

    def _outer(self) -> tuple[Axis, ...]:
        """The groups, and the rows of none."""
        return (replace(self.group, extent=self.group.extent + 1),)

    def _work(self, blocks: Index) -> Index:
        """Operations of a work item, if the rows are evenly shared between groups and blocks."""
        items = blocks * (self.group.extent + 1)
        rows = (self.gemm.m.extent + (items - 1)) // items
        return rows * (2 * self.tile.width) * self.gemm.k.extent

    def _item(self, panel: Int, m_block: Int, env: dict[str, Int]) -> None:
        b, tile = self.b, self.tile
        n0 = mul(b, panel, tile.width)
        env = env | {self.gemm.n.name: n0}
        columns = valid_columns(self.emitter, self.gemm, tile, n0, env)
        number = env[self.group.name]
        is_group = less(b, number, evaluate(b, self.group.extent, env))
        start = self._end(sub(b, number, 1), env)
        end = b.select(_known(is_group), value_of(b, self._end(number, env)), value_of(b, self.m_size))
        first = add(b, start, mul(b, m_block, self._m_block()))
        last: Int = end if not self._m_block() else least(b, add(b, first, self._m_block()), end)
        inner = copy(self)
        inner.m_size = end
        rows = sub(b, end, start)

        def multiplied() -> None:
            few = copy(inner)
            few.tile, few.few_rows = replace(tile, rows=min(tile.rows, b.target.few_rows)), True

            def through_tiles() -> None:
                branch(
                    b,
                    less(b, rows, tile.rows),
                    lambda: few._k_blocks(panel, n0, first, last, columns, env),
                    lambda: inner._k_blocks(panel, n0, first, last, columns, env),
                )

            if not self._has_dots(few.tile):
                through_tiles()
                return
            # Dot products take up to half as long again as tiles, which have to rearrange B first.
            most = 3 * b.target.repacked_rows
            branch(
                b, less(b, most, rows), through_tiles, lambda: few._few_dots(n0, first, last, columns, env)
            )

        branch(
            b,
            less(b, first, last),
            lambda: branch(b, is_group, multiplied, lambda: self._no_group(first, last, columns, env)),
        )

    def _end(self, number: Int, env: dict[str, Int]) -> Int:
        """Where a group ends, which is within the rows whatever is in memory; that before the first one ends at 0."""
        b, load = self.b, self.gemm.ends
        assert load is not None
        highest = sub(b, evaluate(b, self.group.extent, env), 1)
        inside = least(b, greatest(b, number, 0), highest)
        at = evaluate(b, offset_in(load.buffer, load.index), {**env, self.group.name: inside})
        pointer = place(b, self.bases[load.buffer.name], at, load.dtype)
        end = convert(b, load_vector(b, load.dtype, 1, pointer), "i64")
        end = value_of(b, least(b, greatest(b, end, 0), self.m_size))
        return b.select(_known(less(b, number, 0)), value_of(b, 0), end)

    def _has_dots(self, tile: Tile) -> bool:
        """Whether few rows may be dot products: both operands are contiguous along k."""
        k = self.gemm.k.name
        if tile.width % dot_columns(tile.rows, self.b.target):
            return False
        return self.plan.a.coefficient(k) == ONE and self.plan.b.coefficient(k) == ONE

    def _few_dots(self, n0: Int, first: Int, last: Int, columns: Int, env: dict[str, Int]) -> None:
        """Few rows as dot products, a tile of them at a time; rows past the last one repeat it."""
        b, tile, m = self.b, self.tile, self.gemm.m.name
        with count(b, first, last, tile.rows, runs=True) as m0:
            rows = {f"{m}.{r}": least(b, add(b, m0, r), sub(b, last, 1)) for r in range(tile.rows)}
            inner = env | {m: m0} | rows
            self._dot_sums(n0, columns, inner)
            valid = least(b, tile.rows, sub(b, last, m0))
            self.epilogue.from_scratch(tile, self.sums, inner, 0, valid, columns)

    def _no_group(self, first: Int, last: Int, columns: Int, env: dict[str, Int]) -> None:
        b, tile = self.b, self.tile
        store_tile(b, tile, zeros(tile), self.sums)
        with count(b, first, last, tile.rows, runs=True) as m0:
            inner = env | {self.gemm.m.name: m0}
            valid = least(b, tile.rows, sub(b, last, m0))
            self.epilogue.from_scratch(tile, self.sums, inner, 0, valid, columns)


def _known(condition: Value | bool) -> Value:
    """A comparison with what is read at run time, which nothing can know."""
    assert isinstance(condition, Value)
    return condition
