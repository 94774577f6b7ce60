"""Attention: `emit_attention` makes of an `Attention` definition a kernel of the ABI of `Kernel`.

    for item in [begin, end):                      one batch element (and head), some strips of queries
        q                                          its rows, in scratch
        for n0 in 0, keys, ...                     a block of keys; left out: those past a causal mask, and
                                                   for a strip those that a mask closes for all of it
            k^T, v                                 in panels, in scratch
            for strips of the item:
                s = q @ k^T                        microkernel.py
                p, max, sum = online softmax of s  attention_rows.py
                out = out * factor + p @ v         microkernel.py
        out / sum                                  stored through `index`

This is FlashAttention (Dao et al., 2022): scores exist a block at a time, so memory is linear in the lengths. Sums over
a block of keys are made in registers, and those of the blocks are added, as in a GEMM with blocks of K. Rows past the
last query of a block are computed (from zeros) and not stored, so one micro-kernel does for every length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.attention_few import FewRows
from lampwork.codegen.llvm.templates.attention_plan import (
    Blocks,
    bounds_of,
    choose_blocks,
    few_blocks,
    operand_offset,
    params_of,
    supports,
)
from lampwork.codegen.llvm.templates.attention_rows import Rows, fill
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, decode_batch, function, load_params, outline
from lampwork.codegen.llvm.templates.epilogue import flattened, needs_checks
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
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
    accumulate,
    load_vector,
    store_vector,
    zeros,
)
from lampwork.codegen.llvm.templates.pack import Source, pack_panel
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.expr import definition_exprs, indices
from lampwork.loops.ir.nodes import Attention

_UNROLL = 2
"""Steps of a product in a turn of its loop: 1 % faster than single ones."""

__all__ = ["emit_attention", "supports"]


def emit_attention(attention: Attention, name: str, target: Target) -> GemmCode:
    """The kernel of one `Attention`.

    Raises CodegenError for what `supports` refuses.
    """
    if not supports(attention, target):
        raise CodegenError(f"no template for the attention {attention.out.name!r} of {attention.q.dtype}")
    m, b = attention.m.extent.as_int(), Builder(Module(), target)
    few = few_blocks(attention, target, 1 if m is None else m)
    one = (
        None if few is None else _Emission(attention, f"{name}.few" if m is None else name, b, few, few=True)
    )
    if m is not None and one is not None:
        return one.run(name)
    return _Emission(attention, name, b, choose_blocks(attention, target), few=False).run(name, one)


class _Emission:
    """One way to run an attention. `steps`: what the names of its functions begin with. `few`: see attention_few.py."""

    def __init__(self, attention: Attention, steps: str, b: Builder, blocks: Blocks, *, few: bool) -> None:
        self.attention, self.steps, self.b, self.blocks = attention, steps, b, blocks
        self.few = FewRows(attention, blocks) if few else None
        self.bounds = bounds_of(attention)
        self.params = params_of(attention)
        self.rows = Rows(attention, blocks, self.bounds, steps)
        self.stack = Stack(self.b)

    def run(self, name: str, one: _Emission | None = None) -> GemmCode:
        """The whole kernel; `one`: what runs where the number of queries is open, and is 1."""
        attention, b, blocks = self.attention, self.b, self.blocks
        axes = (*attention.batch, attention.m, attention.n)
        used = [index for expr in definition_exprs(attention) for index in indices(expr)]
        used += [elements_of(buffer) for buffer in self.params]
        extents = [axis.extent for axis in axes]
        bases, sizes, env = load_params(b, self.params, [*extents, *attention.index, *used])
        buffers = {f"buffer {name}": base for name, base in bases.items()}
        pointers = buffers | self._scratch()
        other = {} if one is None else buffers | one._scratch()
        error = self._error()
        if error is not None:
            pointers["error"] = other["error"] = error
        block_index = (attention.m.extent + (blocks.rows - 1)) // blocks.rows
        block_count = evaluate(b, block_index, env)
        with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
            batch = decode_batch(b, attention.batch, items.index, block_count, env)
            block = self._block_number(mod(b, items.index, block_count), block_count)
            here = env | batch
            many = partial(self._item, block, here, pointers)
            if one is None:
                many()
            else:
                is_one = less(b, evaluate(b, attention.m.extent, env), 2)
                branch(b, is_one, partial(one._item, block, here, other), many)
        extent = block_index
        for axis in attention.batch:
            extent = extent * axis.extent
        rows = (attention.m.extent + (block_index - 1)) // block_index
        work = rows * attention.n.extent * (2 * (blocks.depth + blocks.columns))
        scratch = self.stack.bytes + (0 if one is None else one.stack.bytes)
        text = function(b, name, error)
        return GemmCode(name, text, self.params, sizes, extent, work, b.target.thread_work, scratch)

    def _block_number(self, number: Int, total: Int) -> Int:
        """Short and long blocks in turn where a causal mask makes the later ones longer, so that threads, which take
        ranges of work items, get their share."""
        if self.bounds.end is None or self.bounds.begin is not None:
            return number
        b, half = self.b, div(self.b, number, 2)
        odd, late = mod(b, number, 2), sub(b, sub(b, total, 1), half)
        return add(b, half, mul(b, odd, sub(b, late, half)))

    def _error(self) -> str | None:
        """Room for the flag that is raised where a mask is read, or a result stored, at a place that is not proven to
        exist; None if all are."""
        products = (self.rows.score_product(), self.rows.result_product())
        if not any(needs_checks(flattened(product)) for product in products):
            return None
        error = self.b.name("error")
        self.b.line(f"{error} = alloca i64")
        self.b.line(f"store i64 0, ptr {error}")
        return error

    def _scratch(self) -> dict[str, str]:
        """Stack for a work item: the operands in panels, scores, sums, and what is kept of each row."""
        blocks = self.blocks
        rows, lanes = blocks.padded_rows, blocks.score.lanes
        sizes = {
            "q": rows * blocks.words * blocks.strips,
            "k": blocks.padded_keys * blocks.words,
            "v": 1 if blocks.values else blocks.keys * blocks.padded_columns,
            "s": rows * blocks.padded_keys,
            "o": rows * blocks.padded_columns * blocks.strips,
            "top": blocks.kept_rows * blocks.strips,
            "sum": rows * lanes * blocks.strips,
            "highs": rows * lanes if blocks.tops else 1,
            "fresh": blocks.kept_rows,
            "base": blocks.kept_rows,
            "factor": blocks.kept_rows,
        }
        if self.few is not None:
            sizes |= {"k": 1, "v": 1}
        found: dict[str, str] = {}
        for hint, elements in sizes.items():
            found[hint] = self.stack.array(hint, elements, blocks.score.element, blocks.score.size)
        if blocks.mask is not None:
            found |= {
                hint: self.stack.array(hint, elements, "i64", 8)
                for hint, elements in (("open", blocks.strips), ("opens", 1))
            }
        return found

    # --- one work item ------------------------------------------------------------------------------------------------

    def _item(self, block: Int, env: dict[str, Int], pointers: Mapping[str, str]) -> None:
        attention, b, blocks = self.attention, self.b, self.blocks
        m0 = mul(b, block, blocks.rows)
        rows = least(b, blocks.rows, sub(b, evaluate(b, attention.m.extent, env), m0))
        length = attention.m.extent.as_int()
        if length is not None and length % blocks.rows == 0:
            rows = blocks.rows
        with count(b, 0, rows, blocks.strip, runs=True) as s0:
            inner, at = self._strip(s0, m0, rows, env, pointers)
            self._outlined("start", inner, at, self._start)
        first, last = self._keys(m0, rows, env)
        with count(b, first, last, blocks.keys) as n0:
            columns = least(b, blocks.keys, sub(b, last, n0))
            block_env = env | {attention.n.name: n0, "columns": columns}
            if blocks.mask is None:
                self._block_of_keys(m0, rows, block_env, pointers)
            else:
                store_vector(b, b.const(0, "i64"), pointers["opens"])
                with count(b, 0, rows, blocks.strip, runs=True) as s0:
                    inner, at = self._strip(s0, m0, rows, block_env, pointers)
                    self._outlined("look", inner, at, self.rows.look)
                opens = load_vector(b, "i64", 1, pointers["opens"])
                branch(b, less(b, 0, opens), partial(self._block_of_keys, m0, rows, block_env, pointers))
        with count(b, 0, rows, blocks.strip, runs=True) as s0:
            inner, at = self._strip(s0, m0, rows, env, pointers)
            self._outlined("finish", inner, at, self.rows.finish)

    def _block_of_keys(self, m0: Int, rows: Int, env: dict[str, Int], pointers: Mapping[str, str]) -> None:
        """A block of keys for all strips of the item."""
        b, blocks = self.b, self.blocks
        if self.few is None:
            self._outlined("keys", env, pointers, self._pack_keys)
            if not blocks.values:
                self._outlined("values", env, pointers, self._pack_values)
        with count(b, 0, rows, blocks.strip, runs=True) as s0:
            self._strip_of_keys(*self._strip(s0, m0, rows, env, pointers))

    def _strip(
        self, s0: Int, m0: Int, rows: Int, env: Mapping[str, Int], pointers: Mapping[str, str]
    ) -> tuple[dict[str, Int], dict[str, str]]:
        """The strip that begins s0 rows after the item's first: its variables, and where its parts of scratch are."""
        b, blocks = self.b, self.blocks
        valid: Int = blocks.strip
        if not isinstance(rows, int) or rows % blocks.strip:
            valid = least(b, blocks.strip, sub(b, rows, s0))
        number, rows_of = div(b, s0, blocks.strip), blocks.padded_rows
        sizes = {
            "q": rows_of * blocks.words,
            "o": rows_of * blocks.padded_columns,
            "top": blocks.kept_rows,
            "sum": rows_of * blocks.score.lanes,
        }
        moved = {
            name: place(b, pointers[name], mul(b, number, size), blocks.dtype) for name, size in sizes.items()
        }
        if blocks.mask is not None:
            moved["open"] = place(b, pointers["open"], number, "i64")
        return {**env, self.attention.m.name: add(b, m0, s0), "valid": valid}, {**pointers, **moved}

    def _strip_of_keys(self, env: dict[str, Int], at: dict[str, str]) -> None:
        """A block of keys for a strip of queries, if any of these looks at any of those."""
        b, n0, columns = self.b, env[self.attention.n.name], env["columns"]
        first, last = self._keys(env[self.attention.m.name], env["valid"], env)
        seen: Value | bool = True
        if self.blocks.mask is not None:
            seen = less(b, 0, load_vector(b, "i64", 1, at["open"]))
        if self.bounds.begin is not None:
            seen = both(b, seen, less(b, first, add(b, n0, columns)))
        if self.bounds.end is not None:
            columns = least(b, columns, sub(b, last, n0))
            seen = both(b, seen, less(b, 0, columns))
        env = {**env, "columns": columns}

        def steps() -> None:
            self._outlined("scores", env, at, self._scores if self.few is None else self.few.scores)
            self._outlined("softmax", env, at, self.rows.softmax)
            self._outlined("mix", env, at, self._mix if self.few is None else self.few.mix)

        branch(b, seen, steps)

    def _keys(self, m0: Int, valid: Int, env: Mapping[str, Int]) -> tuple[Int, Int]:
        """The range of keys that any row of the block looks at; the first is a multiple of a vector."""
        attention, b, bounds = self.attention, self.b, self.bounds
        first: Int = 0
        last = evaluate(b, attention.n.extent, env)
        if bounds.end is not None:
            final = {**env, attention.m.name: sub(b, add(b, m0, valid), 1)}
            last = greatest(b, 0, least(b, last, evaluate(b, bounds.end, final)))
        if bounds.begin is not None:
            lanes = self.blocks.score.lanes
            first = greatest(b, 0, evaluate(b, bounds.begin, {**env, attention.m.name: m0}))
            first = mul(b, div(b, first, lanes), lanes)
        return first, last

    def _outlined(
        self,
        step: str,
        env: Mapping[str, Int],
        pointers: Mapping[str, str],
        body: Callable[[Builder, dict[str, str], dict[str, Int]], None],
    ) -> None:
        """One step as a function of its own: what LLVM hoists out of its loops does not spill the registers of others,
        and it takes much less time to compile."""
        outline(self.b, f"{self.steps}.{step}", pointers, env, body)

    # --- the steps ----------------------------------------------------------------------------------------------------

    def _start(self, b: Builder, at: dict[str, str], env: dict[str, Int]) -> None:
        """The rows of q, zeros past the last; no sums yet."""
        attention, blocks = self.attention, self.blocks
        offset = operand_offset(attention, attention.q)
        m, d = attention.m.name, attention.d.name
        m0, valid, lanes, dtype = env[m], env["valid"], blocks.score.lanes, attention.q.dtype
        stride, stored = offset.coefficient(d), blocks.score.dtype if blocks.score.steps == 1 else dtype
        whole = blocks.depth - blocks.depth % lanes if stride is not None and stride.as_int() == 1 else 0
        base = at[f"buffer {attention.q.buffer.name}"]
        with count(b, 0, valid) as row:
            line = place(b, at["q"], mul(b, row, blocks.words), blocks.dtype)
            for start, stop, step in ((0, whole, lanes), (whole, blocks.depth, 1)):
                if start == stop:
                    continue
                with count(b, start, stop, step) as column:
                    source = evaluate(b, offset, {**env, m: add(b, m0, row), d: column})
                    value = convert(b, load_vector(b, dtype, step, place(b, base, source, dtype)), stored)
                    if blocks.ahead != 1:
                        value = b.mul(value, blocks.ahead)
                    store_vector(b, value, place(b, line, column, stored))
            for column in range(blocks.depth, blocks.words * blocks.score.steps):
                store_vector(b, b.const(0, stored), place(b, line, column, stored))
        rest = sub(b, blocks.padded_rows, valid)
        fill(
            b,
            blocks.dtype,
            place(b, at["q"], mul(b, valid, blocks.words), blocks.dtype),
            mul(b, rest, blocks.words),
        )
        fill(b, blocks.dtype, at["o"], blocks.padded_rows * blocks.padded_columns)
        fill(b, blocks.dtype, at["top"], blocks.kept_rows, float("-inf"))
        fill(b, blocks.dtype, at["fresh"], blocks.kept_rows, float("-inf"))
        fill(b, blocks.dtype, at["sum"], blocks.padded_rows * lanes)

    def _pack_keys(self, b: Builder, at: dict[str, str], env: dict[str, Int]) -> None:
        """k^T in panels of the score tile's width."""
        attention, blocks = self.attention, self.blocks
        n0, columns, width = env[attention.n.name], env["columns"], blocks.score.width
        base = at[f"buffer {attention.k.buffer.name}"]
        offset = operand_offset(attention, attention.k)
        source = Source(base, offset, attention.d, attention.n, attention.k.dtype)
        with count(b, 0, columns, width) as column:
            out = place(b, at["k"], mul(b, column, blocks.words), blocks.dtype)
            tile = replace(blocks.score, source=source.dtype)
            pack_panel(b, tile, source, out, add(b, n0, column), 0, blocks.words, env)

    def _pack_values(self, b: Builder, at: dict[str, str], env: dict[str, Int]) -> None:
        """v in panels of the mix tile's width."""
        attention, blocks = self.attention, self.blocks
        base = at[f"buffer {attention.v.buffer.name}"]
        offset = operand_offset(attention, attention.v)
        source = Source(base, offset, attention.n, attention.e, attention.v.dtype)
        tile = replace(blocks.mix, source=source.dtype)
        n0, steps = div(b, env[attention.n.name], tile.steps), ceil_div(b, env["columns"], tile.steps)
        with count(b, 0, blocks.padded_columns, tile.width) as column:
            out = place(b, at["v"], mul(b, column, blocks.keys), blocks.dtype)
            pack_panel(b, tile, source, out, column, n0, steps, env)

    def _scores(self, b: Builder, at: dict[str, str], env: dict[str, Int]) -> None:
        """s = q @ k^T for all columns of the panels, also those past the last key."""
        blocks, tile = self.blocks, self.blocks.score
        with count(b, 0, env["columns"], tile.width) as column:
            panel = place(b, at["k"], mul(b, column, blocks.words), tile.dtype)
            with count(b, 0, env["valid"], tile.rows) as row:
                left = place(b, at["q"], mul(b, row, blocks.words), tile.dtype)
                rows = [RowAddress(left, r * blocks.words) for r in range(tile.rows)]
                operands = Operands(rows, tile.dtype, 1, panel, tile.width)
                sums = accumulate(b, tile, operands, blocks.words, zeros(tile), unroll=_UNROLL)
                out = place(b, at["s"], add(b, mul(b, row, blocks.padded_keys), column), tile.dtype)
                for r in range(tile.rows):
                    for v in range(tile.vectors):
                        shift = r * blocks.padded_keys + v * tile.lanes
                        store_vector(b, sums[r][v], place(b, out, shift, tile.dtype))
                if blocks.tops:
                    self._find_tops(b, at, row, column, sums)

    def _find_tops(
        self, b: Builder, at: dict[str, str], row: Int, column: Int, sums: list[list[Value]]
    ) -> None:
        """The largest scores of each row so far, one for each lane; those of the first tile begin."""
        tile = self.blocks.score
        lowest = b.const(float("-inf"), tile.dtype)
        for r, products in enumerate(sums):
            pointer = place(b, at["highs"], mul(b, add(b, row, r), tile.lanes), tile.dtype)
            known = load_vector(b, tile.dtype, tile.lanes, pointer)
            if column != 0:
                first = b.cmp("eq", value_of(b, column), 0)
                known = b.select(first, b.widen(lowest, tile.lanes), known)
            else:
                known = b.widen(lowest, tile.lanes)
            for product in products:
                known = b.larger(product, known)
            store_vector(b, known, pointer)

    def _mix(self, b: Builder, at: dict[str, str], env: dict[str, Int]) -> None:
        """out = out * factor + p @ v."""
        blocks, tile = self.blocks, self.blocks.mix
        steps = ceil_div(b, env["columns"], tile.steps)
        with count(b, 0, blocks.padded_columns, tile.width) as column:
            panel = place(b, at["v"], mul(b, column, blocks.keys), tile.dtype)
            if blocks.values:
                offset = operand_offset(self.attention, self.attention.v)
                first = evaluate(b, offset, {**env, self.attention.e.name: 0})
                panel = place(b, at[f"buffer {self.attention.v.buffer.name}"], first, tile.dtype)
            with count(b, 0, env["valid"], tile.rows) as row:
                left = place(b, at["s"], mul(b, row, blocks.padded_keys), tile.dtype)
                rows = [RowAddress(left, r * blocks.padded_keys) for r in range(tile.rows)]
                operands = Operands(rows, tile.dtype, 1, panel, tile.width)
                sums = accumulate(b, tile, operands, steps, zeros(tile), unroll=_UNROLL)
                out = place(b, at["o"], add(b, mul(b, row, blocks.padded_columns), column), tile.dtype)
                for r in range(tile.rows):
                    factor = load_vector(b, tile.dtype, 1, place(b, at["factor"], add(b, row, r), tile.dtype))
                    scale = b.widen(factor, tile.lanes)
                    for v in range(tile.vectors):
                        pointer = place(b, out, r * blocks.padded_columns + v * tile.lanes, tile.dtype)
                        before = load_vector(b, tile.dtype, tile.lanes, pointer)
                        store_vector(b, b.fma(before, scale, sums[r][v]), pointer)
