"""The rows of an attention: the online softmax of a block of scores, and the division at the end.

    before:  s[m, n], raw sums of products; top[m], sum[m] of the blocks before
    after:   s[m, n] = 2 ** ((score - top'[m]) * unit), top'[m] = max(top[m], scores),
             factor[m] = 2 ** ((top[m] - top'[m]) * unit), sum'[m] = sum[m] * factor[m] + sum of s

unit is log2(e), and the scale too where that is all that is done to a product: then the product is the score. Where
the unit makes q smaller, q is multiplied by it before, and the unit is 1.

Where all scores so far are -inf, 0 stands in for the maximum: their powers are 0, and so is the row in the end, or
nan if it is not closed. A nan does not get into a maximum, but into every power's sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.emit_ops import emit_op
from lampwork.codegen.llvm.templates.attention_plan import Blocks, Bounds, scale_of
from lampwork.codegen.llvm.templates.epilogue import ACCUMULATOR, Epilogue, flattened
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    ceil_div,
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
from lampwork.codegen.llvm.templates.microkernel import Tile, load_vector, store_vector
from lampwork.codegen.llvm.types import REGISTER, mangled
from lampwork.codegen.llvm.vecmath_single import ROUNDER
from lampwork.loops.ir.bounds import offset_in
from lampwork.loops.ir.index import ONE, ZERO
from lampwork.loops.ir.nodes import Attention, Buffer, DType, Gemm, Local
from lampwork.records import record
from lampwork.standard import math

_LOWEST = float("-inf")


def fill(b: Builder, dtype: DType, pointer: str, elements: Int, number: float = 0.0) -> None:
    """`elements` numbers in scratch."""
    lanes = b.target.lanes(dtype)
    value = b.const(number, dtype)
    whole = sub(b, elements, mod(b, elements, lanes))
    with count(b, 0, whole, lanes) as at:
        store_vector(b, b.widen(value, lanes), place(b, pointer, at, dtype))
    if whole != elements:
        with count(b, whole, elements) as at:
            store_vector(b, value, place(b, pointer, at, dtype))


def across(b: Builder, operation: str, value: Value) -> Value:
    """The lanes of a vector summed ("fadd"), or their maximum ("fmax"), none of which is nan."""
    if value.lanes == 1:
        return value
    element = REGISTER[value.dtype]
    start = f"{element} -0.0, " if operation == "fadd" else ""
    flag = "reassoc" if operation == "fadd" else "nnan"
    return b.emit(
        f"call {flag} {element} @llvm.vector.reduce.{operation}.{mangled(element, value.lanes)}"
        f"({start}{value.type} {value.text})",
        value.dtype,
        1,
    )


@record
class Rows:
    """Emits what happens to whole rows. `name`: the kernel's."""

    attention: Attention
    blocks: Blocks
    bounds: Bounds
    name: str

    # --- softmax ------------------------------------------------------------------------------------------------------

    def softmax(self, b: Builder, at: Mapping[str, str], env: Mapping[str, Int]) -> None:
        """Three passes over the rows, so that no row waits for what another one is reduced to."""
        attention, blocks = self.attention, self.blocks
        dtype, lanes = blocks.dtype, blocks.score.lanes
        scores = None
        if scale_of(self.bounds.value) is None:
            scores = self._epilogue(b, at, self.score_product())
        columns = env["columns"]
        with count(b, 0, env["valid"]) as row:
            if blocks.tops:
                highs = place(b, at["highs"], mul(b, row, lanes), dtype)
                largest = across(b, "fmax", load_vector(b, dtype, lanes, highs))
            else:
                m = add(b, env[attention.m.name], row)
                line = place(b, at["s"], mul(b, row, blocks.padded_keys), dtype)
                last = self._last(b, m, columns, env)
                padded = mul(b, ceil_div(b, last, lanes), lanes)
                largest = self._score(b, scores, line, m, last, padded, env)
            store_vector(b, largest, place(b, at["fresh"], row, dtype))
        self._raise_tops(b, at)
        with count(b, 0, env["valid"]) as row:
            m = add(b, env[attention.m.name], row)
            line = place(b, at["s"], mul(b, row, blocks.padded_keys), dtype)
            padded = mul(b, ceil_div(b, self._last(b, m, columns, env), lanes), lanes)
            base = load_vector(b, dtype, 1, place(b, at["base"], row, dtype))
            total = self._powers(b, line, base, padded)
            factor = load_vector(b, dtype, 1, place(b, at["factor"], row, dtype))
            sums = place(b, at["sum"], mul(b, row, lanes), dtype)
            known = load_vector(b, dtype, lanes, sums)
            store_vector(b, b.fma(known, b.widen(factor, lanes), total), sums)
            if self.bounds.end is not None:
                stored = self._stored()
                with count(b, padded, columns, lanes) as column:
                    store_vector(b, _zero(stored, lanes), place(b, line, column, stored))

    def _stored(self) -> DType:
        """What powers are kept as: what they are multiplied as."""
        mix = self.blocks.mix
        return mix.dtype if mix.steps == 1 else mix.source

    def _raise_tops(self, b: Builder, at: Mapping[str, str]) -> None:
        """top, base and factor of all rows of a strip by the largest scores of a block."""
        dtype, lanes = self.blocks.dtype, self.blocks.score.lanes
        with count(b, 0, self.blocks.kept_rows, lanes, runs=True) as row:
            before = load_vector(b, dtype, lanes, place(b, at["top"], row, dtype))
            fresh = load_vector(b, dtype, lanes, place(b, at["fresh"], row, dtype))
            top = b.larger(fresh, before)
            base = b.select(b.cmp("eq", top, _LOWEST), 0.0, top)
            factor = self._power(b, before, base)
            store_vector(b, top, place(b, at["top"], row, dtype))
            store_vector(b, base, place(b, at["base"], row, dtype))
            store_vector(b, factor, place(b, at["factor"], row, dtype))

    def _power(self, b: Builder, score: Value, base: Value) -> Value:
        """2 ** ((score - base) * unit)"""
        difference, unit = b.sub(score, base), self.blocks.unit
        return exp2(b, difference if unit == 1 else b.mul(difference, unit))

    def look(self, b: Builder, at: Mapping[str, str], env: Mapping[str, Int]) -> None:
        """open = 1 if the mask leaves a place open in a strip of a block of keys, else 0; added to opens.

        The first row with such a place is the last one that is looked at.
        """
        condition = self.blocks.mask
        assert condition is not None, "a score with a mask"
        mask = self._epilogue(b, at, replace(self.score_product(), value=condition))
        columns, lanes = env["columns"], self.blocks.score.lanes
        whole = sub(b, columns, mod(b, columns, lanes))
        store_vector(b, b.const(0, "i64"), at["open"])
        with count(b, 0, env["valid"]) as row:
            m = add(b, env[self.attention.m.name], row)

            def step(column: Int, width: int, found: Value, m: Int = m) -> Value:
                inside = mask.inside(_zero(self.blocks.dtype, width), env, m, column)
                return b.or_(found, mask.emitter.emit_wide(mask.gemm.value, inside))

            def look(m: Int = m) -> None:
                closed = b.const(False, "bool")
                with b.loop(value_of(b, 0), value_of(b, whole), lanes, [b.widen(closed, lanes)]) as loop:
                    loop.next = [step(loop.index, lanes, loop.carried[0])]
                found = loop.results[0]
                if lanes > 1:
                    reduced = f"call i1 @llvm.vector.reduce.or.v{lanes}i1({b.typed(found)})"
                    found = b.emit(reduced, "bool", 1)
                with b.loop(value_of(b, whole), value_of(b, columns), 1, [found]) as loop:
                    loop.next = [step(loop.index, 1, loop.carried[0])]
                store_vector(b, b.convert("zext", loop.results[0], "i64"), at["open"])

            branch(b, less(b, load_vector(b, "i64", 1, at["open"]), 1), look)
        opens = b.add(load_vector(b, "i64", 1, at["opens"]), load_vector(b, "i64", 1, at["open"]))
        store_vector(b, opens, at["opens"])

    def score_product(self) -> Gemm:
        """The scores as a product of q and k, whose columns are the keys and whose epilogue is the score."""
        attention = self.attention
        nowhere = Buffer("", self.blocks.dtype, (ONE,), (ONE,))
        return Gemm(
            nowhere,
            attention.batch,
            attention.m,
            attention.n,
            attention.d,
            attention.q,
            attention.k,
            (ZERO,),
            self.bounds.value,
        )

    def _last(self, b: Builder, m: Int, columns: Int, env: Mapping[str, Int]) -> Int:
        """How many columns of the block row m looks at."""
        end = self.bounds.end
        if end is None:
            return columns
        past = evaluate(b, end, {**env, self.attention.m.name: m})
        return greatest(b, 0, least(b, columns, sub(b, past, env[self.attention.n.name])))

    def _score(
        self,
        b: Builder,
        scores: Epilogue | None,
        line: str,
        m: Int,
        last: Int,
        padded: Int,
        env: Mapping[str, Int],
    ) -> Value:
        """The first `last` scores of a row (None: their products are as good) in place of their products, -inf up to
        `padded`; their maximum."""
        dtype, lanes = self.blocks.dtype, self.blocks.score.lanes
        whole = sub(b, last, mod(b, last, lanes))
        lowest = b.widen(b.const(_LOWEST, dtype), lanes)

        def step(column: Int, width: int, mask: Value | None, top: Value) -> Value:
            pointer = place(b, line, column, dtype)
            value = load_vector(b, dtype, width, pointer)
            if scores is not None:
                inside = scores.inside(value, env, m, column, mask)
                value = scores.emitter.emit_wide(scores.gemm.value, inside)
            if mask is not None:
                value = b.select(mask, value, lowest)
            if scores is not None or mask is not None:
                store_vector(b, value, pointer)
            return b.larger(value, top)

        with b.loop(value_of(b, 0), value_of(b, whole), lanes, [lowest]) as loop:
            loop.next = [step(loop.index, lanes, None, loop.carried[0])]
        top = loop.results[0]
        if lanes == 1:
            return top
        if b.target.has_masks:
            with b.loop(value_of(b, whole), value_of(b, last), lanes, [top]) as loop:
                mask = b.first_lanes(value_of(b, sub(b, last, whole)), lanes)
                loop.next = [step(loop.index, lanes, mask, loop.carried[0])]
            return across(b, "fmax", loop.results[0])
        single = across(b, "fmax", top)
        with b.loop(value_of(b, whole), value_of(b, last), 1, [single]) as loop:
            loop.next = [step(loop.index, 1, None, loop.carried[0])]
        with count(b, last, padded) as column:
            store_vector(b, b.const(_LOWEST, dtype), place(b, line, column, dtype))
        return loop.results[0]

    def _powers(self, b: Builder, line: str, base: Value, padded: Int) -> Value:
        """2 ** ((score - base) * unit) in place of whole vectors of scores; their sums by lane.

        Half powers take the first half of the row: each is written where a score was that has been read.
        """
        dtype, lanes, stored = self.blocks.dtype, self.blocks.score.lanes, self._stored()
        dot = b.target.dot(stored)
        wide = b.widen(base, lanes)
        with b.loop(value_of(b, 0), value_of(b, padded), lanes, [_zero(dtype, lanes)]) as loop:
            pointer = place(b, line, loop.index, dtype)
            power = self._power(b, load_vector(b, dtype, lanes, pointer), wide)
            loop.next = [b.add(loop.carried[0], power)]
            narrow = dot.narrow(b, power) if dot is not None and dot.narrow is not None else None
            kept = convert(b, power, stored) if narrow is None else narrow
            store_vector(b, kept, place(b, line, loop.index, stored))
        return loop.results[0]

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, b: Builder, at: Mapping[str, str], env: Mapping[str, Int]) -> None:
        """out[index] = o / sum for the rows that there are."""
        attention, blocks = self.attention, self.blocks
        dtype, lanes = blocks.dtype, blocks.score.lanes
        with count(b, 0, env["valid"]) as row:
            sums = load_vector(b, dtype, lanes, place(b, at["sum"], mul(b, row, lanes), dtype))
            total = across(b, "fadd", sums)
            if attention.logs:
                self._store_log(b, at, env, row, total)
            # Nothing by nothing is nan, and nothing times infinity, too.
            total = b.select(b.cmp("eq", total, 0.0), 1.0, total) if attention.closed else total
            part = b.widen(b.div(b.const(1.0, dtype), total), lanes)
            line = place(b, at["o"], mul(b, row, blocks.padded_columns), dtype)
            with count(b, 0, blocks.padded_columns, lanes) as column:
                pointer = place(b, line, column, dtype)
                store_vector(b, b.mul(load_vector(b, dtype, lanes, pointer), part), pointer)
        width = blocks.padded_columns
        tile = Tile(blocks.padded_rows, width // lanes, lanes, dtype, dtype)
        writer = self._epilogue(b, at, self.result_product())
        writer.from_scratch(tile, at["o"], {**env, attention.e.name: 0}, 0, env["valid"], blocks.columns)

    def _store_log(
        self, b: Builder, at: Mapping[str, str], env: Mapping[str, Int], row: Int, total: Value
    ) -> None:
        """The logarithm of a row's sum of exp(score), in the column after its last."""
        attention, dtype = self.attention, self.blocks.dtype
        top = load_vector(b, dtype, 1, place(b, at["top"], row, dtype))
        scaled = b.mul(top, self.blocks.unit * math.log(2))
        log = b.add(scaled, emit_op(b, "log", (total,), dtype))
        point = {
            **env,
            attention.m.name: add(b, env[attention.m.name], row),
            attention.e.name: self.blocks.columns,
        }
        offset = evaluate(b, offset_in(attention.out, attention.index), point)
        out = attention.out
        store_vector(b, convert(b, log, out.dtype), place(b, at[f"buffer {out.name}"], offset, out.dtype))

    def result_product(self) -> Gemm:
        """What is stored, as a product whose columns are those of v."""
        attention = self.attention
        return Gemm(
            attention.out,
            attention.batch,
            attention.m,
            attention.e,
            attention.d,
            attention.q,
            attention.v,
            attention.index,
            Local(ACCUMULATOR, self.blocks.dtype),
        )

    def _epilogue(self, b: Builder, at: Mapping[str, str], product: Gemm) -> Epilogue:
        emitter = Emitter(b, written=frozenset((product.out.name,)), error_flag=at.get("error"))
        return Epilogue(flattened(product), emitter, _bases(at), self.name)


def exp2(b: Builder, x: Value) -> Value:
    """2 ** x for x <= 0: 0 where the result would be subnormal (in float32)."""
    if x.dtype == "f64":
        return emit_op(b, "exp", (b.mul(x, math.log(2)),), "f64")
    # Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum. The order of operands lets
    # nan pass.
    clamped = b.larger(-127.0, x)
    shifted = b.add(clamped, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    power = b.polynomial(b.sub(clamped, n), (1.0, *coefficients.EXP2_SHORT_F32))
    # The bits of the constant that was added are shifted out.
    bits = b.add(b.shl(b.bitcast(shifted, "i32"), 23), 127 << 23)
    return b.mul(power, b.bitcast(bits, "f32"))


def _zero(dtype: DType, lanes: int) -> Value:
    if lanes > 1:
        return Value("zeroinitializer", dtype, lanes)
    return Value("0" if dtype in ("bf16", "f16") else "0.0", dtype, 1, const=True)


def _bases(at: Mapping[str, str]) -> dict[str, str]:
    """The addresses of the kernel's parameters."""
    return {key.removeprefix("buffer "): pointer for key, pointer in at.items() if key.startswith("buffer ")}
