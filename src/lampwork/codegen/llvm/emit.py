"""Expressions as LLVM IR, at any vector width: `Emitter.emit_expr`. Kernels (emit_kernel.py) and templates use it.

A value that does not depend on the vector variable stays scalar and is splatted only where it meets a vector. How a
load is made follows from the coefficient of the vector variable in its address: 1 is a vector load, 0 a scalar load,
-1 a vector load reversed, anything else a gather.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType

from lampwork.codegen.llvm import philox
from lampwork.codegen.llvm.analysis import is_plainly_nonnegative
from lampwork.codegen.llvm.builder import Builder, Comparison, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.emit_ops import emit_op
from lampwork.codegen.llvm.env import Env
from lampwork.codegen.llvm.strided import is_loadable, load_strided
from lampwork.codegen.llvm.types import (
    REGISTER,
    is_unsigned,
    itemsize,
    mangled,
    memory_type,
    vector_type,
)
from lampwork.codegen.target import Dot, Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import elements_of, offset_in, stays_inside
from lampwork.loops.ir.index import FloorDiv, Index, Indirect, Mod, Sym, Var
from lampwork.loops.ir.nodes import (
    Buffer,
    CombineOp,
    Const,
    DType,
    Expr,
    IndexValue,
    Load,
    Local,
    Op,
    Store,
)
from lampwork.records import record


@record
class Lanes:
    """An index at every lane: base + lane * step; with `vector`, the i64 of each lane instead.

    `offsets`: what is known of such a vector: lane l is base + offsets[l].
    """

    base: Value
    step: int | Value = 0
    vector: Value | None = None
    offsets: tuple[int, ...] | None = None


ACCUMULATOR = "acc"
STREAM = 0
"""The number of the metadata that marks a store past the caches."""

_POSITION_TESTS: Mapping[str, Comparison] = MappingProxyType({"lt": "lt", "ge": "ge", "le": "le", "gt": "gt"})
_MOST_DISTANCE = 1 << 24


def is_sum(expr: Expr) -> bool:
    """Whether a float32 is made of a product's sum that was not rounded since."""
    if isinstance(expr, Local):
        return expr.name == ACCUMULATOR
    return isinstance(expr, Op) and expr.dtype == "f32" and any(map(is_sum, expr.args))


class Emitter:
    """Emits expressions and stores into one function: the only door to memory for what a definition says.

    An access that is not proven to stay in its buffer is checked, and an index taken from data always is. `error_flag`:
    the address of an i64 set to 1 where a check fails, without the access; None is for code that needs no checks.
    `proven`: it was proven for all accesses already, with numbers that are symbols here.
    `streamed`: buffers that are written past the caches.
    `dot`: what the sums that expressions call `acc` were made with, if it was an instruction for dot products.
    """

    def __init__(
        self,
        builder: Builder,
        *,
        written: frozenset[str] = frozenset(),
        error_flag: str | None = None,
        proven: bool = False,
        dot: Dot | None = None,
        streamed: frozenset[str] = frozenset(),
    ) -> None:
        self.b = builder
        self.dot = dot
        self.error_flag = error_flag
        self.written = written
        self.streamed = streamed
        self.proven = proven
        self._proofs: dict[Hashable, tuple[bool, Expr | None]] = {}

    @property
    def target(self) -> Target:
        return self.b.target

    # --- expressions --------------------------------------------------------------------------------------------------

    def emit_expr(self, expr: Expr, env: Env) -> Value:
        """The value of `expr`: of `env.lanes` lanes if it depends on the vector variable, else scalar.

        Raises CodegenError for names that `env` does not know.
        """
        return self._emit(expr, env, {})

    def emit_wide(self, expr: Expr, env: Env) -> Value:
        """The value of `expr` in all of `env.lanes` lanes."""
        return self.b.widen(self.emit_expr(expr, env), env.lanes)

    def _emit(self, expr: Expr, env: Env, memo: dict[int, Value]) -> Value:
        # Expressions share subtrees: the memo, by identity, keeps the walk linear. Equal subtrees that are distinct
        # objects meet again in the builder, which reuses equal instructions.
        known = memo.get(id(expr))
        if known is None:
            known = self._compute(expr, env, memo)
            memo[id(expr)] = known
        return known

    def _is_narrowed_sum(self, expr: Op) -> bool:
        """Whether it rounds a sum to the type that was multiplied."""
        return (
            self.dot is not None
            and expr.name == "cast"
            and expr.dtype == self.dot.dtype
            and is_sum(expr.args[0])
        )

    def _compute(self, expr: Expr, env: Env, memo: dict[int, Value]) -> Value:
        if isinstance(expr, Const):
            return self.b.const(expr.value, expr.dtype)
        if isinstance(expr, Op):
            narrow_test = self._position_test(expr, env)
            if narrow_test is not None:
                return narrow_test
            if expr.name == "philox":
                return self._philox(expr, env, memo)
            args = tuple(self._emit(arg, env, memo) for arg in expr.args)
            narrow = None if self.dot is None else self.dot.narrow
            if narrow is not None and self._is_narrowed_sum(expr):
                narrowed = narrow(self.b, args[0])
                if narrowed is not None:
                    return narrowed
            if expr.name == "require":
                self._require(args[1], env, None, "a value that is required to meet a condition")
                return args[0]
            return emit_op(self.b, expr.name, args, expr.dtype)
        if isinstance(expr, Load):
            return self._load(expr, env, memo)
        if isinstance(expr, Local):
            value = env.locals.get(expr.name)
            if value is None:
                raise CodegenError(f"the local {expr.name!r} is read where it is not bound")
            return value
        lanes = self._index(expr.index, env)
        return convert(self.b, self._all_lanes(lanes, env), expr.dtype)

    def _philox(self, expr: Op, env: Env, memo: dict[int, Value]) -> Value:
        """Random numbers of elements; those side by side share what four of them are computed from."""
        key, part = (self._emit(arg, env, memo) for arg in (expr.args[0], expr.args[2]))
        element = expr.args[1]
        if isinstance(element, IndexValue) and env.lanes >= philox.WORDS:
            place = self._index(element.index, env)
            if place.vector is None and place.step == 1:
                aligned = env.starts_at_multiple(element.index, philox.WORDS)
                return philox.side_by_side(self.b, key, place.base, part, env.lanes, aligned=aligned)
        return philox.of_lanes(self.b, key, self._emit(element, env, memo), part)

    def _position_test(self, expr: Op, env: Env) -> Value | None:
        """A comparison of an index whose lanes are a fixed step apart with a number that all lanes share: of 32-bit
        numbers, lane * step against number - index of lane 0, in half the registers that indices take.

        before: <16 x i64> base + <0, 2, ...> < 64      after: <16 x i32> <0, 2, ...> < splat(clamp(64 - base))
        """
        if expr.name not in _POSITION_TESTS or env.lanes == 1:
            return None
        left, right = expr.args
        if not isinstance(left, IndexValue) or left.dtype != "i64":
            return None
        place = self._index(left.index, env)
        if place.vector is not None or not isinstance(place.step, int):
            return None
        if not 0 < abs(place.step) * env.lanes <= _MOST_DISTANCE or right.dtype != "i64":
            return None
        number = self._emit(right, env, {})
        if number.lanes > 1:
            return None
        distance = self.b.sub(number, place.base)
        # Beyond what lanes are apart the comparison does not change any more.
        bounded = self.b.intrinsic("smax", distance, self.b.const(-2 * _MOST_DISTANCE, "i64"))
        bounded = self.b.intrinsic("smin", bounded, self.b.const(2 * _MOST_DISTANCE, "i64"))
        narrow = self.b.convert("trunc", bounded, "i32")
        lanes = self.b.iota("i32", env.lanes)
        steps = lanes if place.step == 1 else self.b.mul(lanes, place.step)
        return self.b.cmp(_POSITION_TESTS[expr.name], steps, narrow)

    # --- loads and stores ---------------------------------------------------------------------------------------------

    def _load(self, load: Load, env: Env, memo: dict[int, Value]) -> Value:
        guard = None if load.mask is None else self._emit(load.mask, env, memo)
        place = self._place(load.buffer, load.index, env, guard)
        if not self._is_proven(load.buffer, load.index, load.mask, env):
            guard = self._checked(load.buffer, place, env, guard)
        base = self._base(load.buffer, env)
        pure = load.buffer.name not in self.written
        if place.vector is None and place.step == 0:
            return self._load_scalar(load, base, place.base, env, guard, pure)
        mask = self._active(env, guard)
        if place.vector is None and place.step in (1, -1):
            return self._load_contiguous(load, base, place, env, mask, pure)
        if place.offsets is not None and mask is None:
            low, high = min(place.offsets), max(place.offsets)
            if high - low < env.lanes:
                near = tuple(offset - low for offset in place.offsets)
                return self._load_near(load, base, self.b.add(place.base, low), near, pure)
        if place.vector is None and is_loadable(place.step, env.lanes, mask, self.target.has_masks):
            return self._load_strided(load, base, place, env, mask, pure)
        return self._gather(load, base, self._all_lanes(place, env), env, mask, pure)

    def _load_scalar(
        self, load: Load, base: str, offset: Value, env: Env, guard: Value | None, pure: bool
    ) -> Value:
        dtype = load.dtype
        if guard is not None and guard.lanes > 1:
            # One element for all lanes, wanted by some: it may be read if any lane wants it.
            wanted = self._any(self._active(env, guard) or guard)
            value = self._load_scalar(load, base, offset, env, wanted, pure)
            return self.b.select(guard, value, self.b.const(load.other, dtype))
        if guard is None:
            return self._load_at(base, dtype, offset, pure)
        other = self.b.const(load.other, dtype)
        if guard.const:
            return self._load_at(base, dtype, offset, pure) if guard.text == "true" else other
        read, done = self.b.new_label("read"), self.b.new_label("after")
        before = self.b.block
        self.b.branch_if(guard, read, done)
        self.b.start(read)
        with self.b.scope():
            value = self._load_at(base, dtype, offset, pure)
        inside = self.b.block
        self.b.branch(done)
        self.b.start(done)
        return self.b.emit(
            f"phi {value.type} [ {value.text}, %{inside} ], [ {other.text}, %{before} ]", dtype, 1, pure=False
        )

    def _load_at(self, base: str, dtype: DType, offset: Value, pure: bool) -> Value:
        address = self.b.element(base, dtype, offset).text
        return self._from_memory(
            f"load {memory_type(dtype)}, ptr {address}, align {itemsize(dtype)}", dtype, 1, pure
        )

    def _load_contiguous(
        self, load: Load, base: str, place: Lanes, env: Env, mask: Value | None, pure: bool
    ) -> Value:
        dtype, lanes = load.dtype, env.lanes
        offset = place.base
        if place.step == -1:
            offset = self.b.add(offset, -(lanes - 1))
            mask = None if mask is None else self._reversed(mask)
        address = self.b.element(base, dtype, offset).text
        type_ = vector_type(memory_type(dtype), lanes)
        align = self.alignment(load.buffer, load.index, env) if place.step == 1 else itemsize(dtype)
        if mask is None:
            value = self._from_memory(f"load {type_}, ptr {address}, align {align}", dtype, lanes, pure)
        else:
            value = self._from_memory(
                f"call {type_} @llvm.masked.load.{mangled(memory_type(dtype), lanes)}.p0(ptr {address}, "
                f"i32 {align}, {mask.type} {mask.text}, {type_} {self._other(load, lanes)})",
                dtype,
                lanes,
                pure,
            )
        return self._reversed(value) if place.step == -1 else value

    def _load_near(self, load: Load, base: str, first: Value, offsets: tuple[int, ...], pure: bool) -> Value:
        """Lane l holds element first + offsets[l], of no more elements than lanes: one load of them, and a shuffle.
        What lies between two elements that are read lies in the buffer."""
        dtype, count = load.dtype, max(offsets) + 1
        type_ = memory_type(dtype)
        address = self.b.element(base, dtype, first).text
        if count & (count - 1) == 0:
            text = f"load {vector_type(type_, count)}, ptr {address}, align {itemsize(dtype)}"
            value = self._from_memory(text, dtype, count, pure)
        else:
            lanes = len(offsets)
            wide = vector_type(type_, lanes)
            bits = ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes))
            value = self._from_memory(
                f"call {wide} @llvm.masked.load.{mangled(type_, lanes)}.p0(ptr {address}, i32 {itemsize(dtype)}, "
                f"<{lanes} x i1> <{bits}>, {wide} poison)",
                dtype,
                lanes,
                pure,
            )
        if value.lanes == 1:
            return value
        order = ", ".join(f"i32 {offset}" for offset in offsets)
        return self.b.emit(
            f"shufflevector {value.type} {value.text}, {value.type} poison, <{len(offsets)} x i32> <{order}>",
            dtype,
            len(offsets),
        )

    def _load_strided(
        self, load: Load, base: str, place: Lanes, env: Env, mask: Value | None, pure: bool
    ) -> Value:
        assert isinstance(place.step, int)
        value = load_strided(self.b, base, load.dtype, place.base, place.step, env.lanes, mask, pure)
        if load.dtype == "bool":
            value = self.b.cmp("ne", value, 0)
        if mask is None:
            return value
        return self.b.select(mask, value, self.b.const(load.other, load.dtype))

    def _gather(
        self, load: Load, base: str, offsets: Value, env: Env, mask: Value | None, pure: bool
    ) -> Value:
        dtype, lanes = load.dtype, env.lanes
        type_ = vector_type(memory_type(dtype), lanes)
        addresses = self.b.element(base, dtype, offsets).text
        active = self.b.const(True, "bool") if mask is None else mask
        return self._from_memory(
            f"call {type_} @llvm.masked.gather.{mangled(memory_type(dtype), lanes)}.v{lanes}p0(<{lanes} x ptr> "
            f"{addresses}, i32 {itemsize(dtype)}, {self.b.typed(active, lanes)}, {type_} {self._other(load, lanes)})",
            dtype,
            lanes,
            pure,
        )

    def _other(self, load: Load, lanes: int) -> str:
        if load.dtype == "bool":
            return f"splat (i8 {int(bool(load.other))})"
        return self.b.widen(self.b.const(load.other, load.dtype), lanes).text

    def _from_memory(self, text: str, dtype: DType, lanes: int, pure: bool) -> Value:
        if dtype != "bool":
            return self.b.emit(text, dtype, lanes, pure=pure)
        byte = self.b.emit(text, "u8", lanes, pure=pure)
        return self.b.cmp("ne", byte, 0)

    def is_proven(self, load: Load, env: Env) -> bool:
        """Whether an access needs no check."""
        return self._is_proven(load.buffer, load.index, load.mask, env)

    def emit_row(self, buffer: Buffer, first: Value, lanes: int, env: Env) -> Value:
        """`lanes` elements from place `first` on, which are proven to be there and are not written by the kernel; a
        bool as u8."""
        address = self.b.element(self._base(buffer, env), buffer.dtype, first).text
        type_ = vector_type(memory_type(buffer.dtype), lanes)
        stored: DType = "u8" if buffer.dtype == "bool" else buffer.dtype
        return self.b.emit(f"load {type_}, ptr {address}, align {itemsize(buffer.dtype)}", stored, lanes)

    def fetch_ahead(self, load: Load, env: Env, distance: int) -> None:
        """Have the line fetched that lies `distance` bytes behind what `load` reads, in the buffer or not."""
        place = self._place(load.buffer, load.index, env, None)
        first = self.b.add(place.base, distance // itemsize(load.dtype))
        self.b.module.declare("llvm.prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        address = self.b.element(self._base(load.buffer, env), load.dtype, first).text
        self.b.line(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 3, i32 1)")

    def as_stored(self, buffer: Buffer, value: Value) -> Value:
        """A value in the form that it has in the memory of a buffer."""
        value = convert(self.b, value, buffer.dtype)
        return self.b.convert("zext", value, "u8") if buffer.dtype == "bool" else value

    def store_row(self, buffer: Buffer, first: Value, value: Value, env: Env) -> None:
        """The lanes of a value `as_stored`, from place `first` on, which are proven to be there."""
        self._store_vector(
            buffer,
            value,
            self.b.element(self._base(buffer, env), buffer.dtype, first).text,
            itemsize(buffer.dtype),
        )

    def alignment(self, buffer: Buffer, index: tuple[Index, ...], env: Env) -> int:
        """What the address of the lanes that start at buffer[index] is a multiple of."""
        return itemsize(buffer.dtype)

    def _store_vector(self, buffer: Buffer, value: Value, address: str, align: int) -> None:
        """All lanes of a value, to a buffer that is streamed past the caches, where the address allows it."""
        text, width = f"store {self.b.typed(value)}, ptr {address}", self.target.vector_bytes
        if buffer.name not in self.streamed or value.lanes * align % width:
            self.b.line(f"{text}, align {align}")
            return
        self.b.module.declare("stream", f"!{STREAM} = !{{i32 1}}")
        number = self.b.emit(f"ptrtoint ptr {address} to i64", "i64", 1)
        aligned = self.b.cmp("eq", self.b.and_(number, width - 1), 0)
        past, through, done = (self.b.new_label(hint) for hint in ("past", "through", "stored"))
        self.b.branch_if(aligned, past, through)
        self.b.start(past)
        self.b.line(f"{text}, align {width}, !nontemporal !{STREAM}")
        self.b.branch(done)
        self.b.start(through)
        self.b.line(f"{text}, align {align}")
        self.b.branch(done)
        self.b.start(done)

    def write(self, store: Store, env: Env) -> None:
        """A Store, in the active lanes."""
        value = self.emit_expr(store.value, env)
        if store.combine is None:
            self.emit_store(store.buffer, store.index, value, env)
        else:
            self.emit_update(store, store.combine, value, env)

    def emit_update(self, store: Store, op: CombineOp, value: Value, env: Env) -> None:
        """buffer[index] = op of itself and the value."""
        raise CodegenError(f"{self.target.name} has no code for a {op} with {store.buffer.name} in memory")

    def emit_store(self, buffer: Buffer, index: tuple[Index, ...], value: Value, env: Env) -> None:
        """buffer[index] = value (converted to the buffer's dtype), in the active lanes.

        A store whose address does not depend on the vector variable writes the last active lane.
        """
        dtype = buffer.dtype
        value = self.as_stored(buffer, value)
        place = self._place(buffer, index, env, None)
        proven = self._is_proven(buffer, index, None, env)
        guard = None if proven else self._checked(buffer, place, env, None)
        base = self._base(buffer, env)
        align = itemsize(dtype)
        if place.vector is None and place.step == 0:
            scalar = value if value.lanes == 1 else self._last_lane(value, env)
            with nullcontext() if guard is None else self._where(guard):
                address = self.b.element(base, dtype, place.base).text
                self.b.line(f"store {self.b.typed(scalar)}, ptr {address}, align {align}")
            return
        lanes = env.lanes
        mask = self._active(env, guard)
        value = self.b.widen(value, lanes)
        if place.vector is None and place.step in (1, -1):
            offset = place.base
            if mask is not None and _is_first_lane(mask):
                # LLVM makes such a masked store one of an element, but of 16 bits and less one of 32 bits.
                first = self.b.emit(f"extractelement {self.b.typed(value)}, i64 0", value.dtype, 1)
                address = self.b.element(base, dtype, offset).text
                self.b.line(f"store {self.b.typed(first)}, ptr {address}, align {align}")
                return
            if place.step == -1:
                offset = self.b.add(offset, -(lanes - 1))
                mask = None if mask is None else self._reversed(mask)
                value = self._reversed(value)
            address = self.b.element(base, dtype, offset).text
            if mask is None:
                aligned = self.alignment(buffer, index, env) if place.step == 1 else align
                self._store_vector(buffer, value, address, aligned)
                return
            self.b.line(
                f"call void @llvm.masked.store.{mangled(REGISTER[value.dtype], lanes)}.p0({self.b.typed(value)}, "
                f"ptr {address}, i32 {align}, {mask.type} {mask.text})"
            )
            return
        addresses = self.b.element(base, dtype, self._all_lanes(place, env)).text
        active = self.b.const(True, "bool") if mask is None else mask
        self.b.line(
            f"call void @llvm.masked.scatter.{mangled(REGISTER[value.dtype], lanes)}.v{lanes}p0("
            f"{self.b.typed(value)}, <{lanes} x ptr> {addresses}, i32 {align}, {self.b.typed(active, lanes)})"
        )

    # --- bounds -------------------------------------------------------------------------------------------------------

    def _is_proven(self, buffer: Buffer, index: tuple[Index, ...], mask: Expr | None, env: Env) -> bool:
        if self.proven:
            return True
        key = (buffer, index, None if mask is None else id(mask), env.facts, tuple(env.extents.items()))
        known = self._proofs.get(key)
        if known is None:
            # The mask is kept: its identity is part of the key.
            known = (stays_inside(buffer, index, env.extents, mask, env.facts), mask)
            self._proofs[key] = known
        return known[0]

    def _checked(self, buffer: Buffer, place: Lanes, env: Env, guard: Value | None) -> Value:
        """The lanes of `guard` whose place lies in the buffer; the error flag is raised if others are active."""
        offset = self._all_lanes(place, env)
        size = self.emit_index(elements_of(buffer), env)
        inside = self.b.and_(self.b.cmp("ge", offset, 0), self.b.cmp("lt", offset, size))
        self._require(inside, env, guard, f"the place in buffer {buffer.name}")
        return inside if guard is None else self.b.and_(guard, inside)

    def _require(self, good: Value, env: Env, guard: Value | None, what: str) -> None:
        """Raise the error flag where `good` is false in an active lane."""
        if self.error_flag is None:
            raise CodegenError(f"{what} is neither proven nor checked")
        active = guard
        if good.lanes > 1 or (guard is not None and guard.lanes > 1):
            active = self._active(env, guard)
        bad = self.b.not_(good)
        counted = bad if active is None else self.b.and_(bad, active)
        if self.b.once(f"check {counted.text}"):
            self._raise_flag(self._any(counted))

    @contextmanager
    def _where(self, condition: Value) -> Generator[None]:
        """What is written inside runs only if the scalar `condition` holds."""
        inside, done = self.b.new_label("inside"), self.b.new_label("after")
        self.b.branch_if(condition, inside, done)
        self.b.start(inside)
        with self.b.scope():
            yield
        self.b.branch(done)
        self.b.start(done)

    def _base(self, buffer: Buffer, env: Env) -> str:
        base = env.bases.get(buffer.name)
        if base is None:
            raise CodegenError(f"the buffer {buffer.name!r} is neither a parameter nor scratch of the kernel")
        return base

    # --- lanes --------------------------------------------------------------------------------------------------------

    def _active(self, env: Env, guard: Value | None) -> Value | None:
        """The lanes that may touch memory: those before the loop's end that `guard` lets through; None is all."""
        mask = None if env.vector is None else env.vector.mask
        if guard is None:
            return mask
        wide = self.b.widen(guard, env.lanes)
        return wide if mask is None else self.b.and_(wide, mask)

    def _any(self, mask: Value) -> Value:
        if mask.lanes == 1:
            return mask
        return self.b.emit(
            f"call i1 @llvm.vector.reduce.or.v{mask.lanes}i1({mask.type} {mask.text})", "bool", 1
        )

    def _reversed(self, value: Value) -> Value:
        lanes = value.lanes
        order = ", ".join(f"i32 {i}" for i in reversed(range(lanes)))
        return self.b.emit(
            f"shufflevector {value.type} {value.text}, {value.type} poison, <{lanes} x i32> <{order}>",
            value.dtype,
            lanes,
        )

    def _last_lane(self, value: Value, env: Env) -> Value:
        mask = None if env.vector is None else env.vector.mask
        last = self.b.const(value.lanes - 1, "i64")
        if mask is not None:
            ones = self.b.convert("zext", mask, "i64")
            count = self.b.emit(
                f"call i64 @llvm.vector.reduce.add.v{mask.lanes}i64({ones.type} {ones.text})", "i64", 1
            )
            last = self.b.sub(count, 1)
        return self.b.emit(f"extractelement {value.type} {value.text}, i64 {last.text}", value.dtype, 1)

    def _all_lanes(self, lanes: Lanes, env: Env) -> Value:
        """The index of every lane, as an i64 vector (a scalar if all are equal)."""
        if lanes.vector is not None:
            return lanes.vector
        if isinstance(lanes.step, int) and lanes.step == 0:
            return lanes.base
        steps = self.b.iota("i64", env.lanes)
        if not (isinstance(lanes.step, int) and lanes.step == 1):
            steps = self.b.mul(steps, lanes.step)
        return self.b.add(self.b.widen(lanes.base, env.lanes), steps)

    # --- indices ------------------------------------------------------------------------------------------------------

    def emit_index(self, index: Index, env: Env) -> Value:
        """The value of an index expression: i64, scalar unless it depends on the vector variable."""
        return self._all_lanes(self._index(index, env), env)

    def _place(self, buffer: Buffer, index: tuple[Index, ...], env: Env, guard: Value | None) -> Lanes:
        """The offset, in elements, of buffer[index]."""
        return self._index(offset_in(buffer, index), env, guard)

    def _index(self, index: Index, env: Env, guard: Value | None = None) -> Lanes:
        """The sum of the terms: the part without the vector variable first, so that loops can hoist it."""
        vector = env.vector
        fixed: list[Value] = []
        moving: list[Lanes] = []
        constant = 0
        depth = {name: position for position, name in enumerate(env.indices)}

        def rank(term: tuple[tuple[object, ...], int]) -> int:
            return max(
                (depth.get(a.name, -1) if isinstance(a, Var) else len(depth) for a in term[0]), default=-1
            )

        for monomial, coefficient in sorted(index.terms, key=rank):
            if not monomial:
                constant = coefficient
                continue
            term = self._lanes_product([self._atom(atom, env, guard) for atom in monomial], coefficient, env)
            if term.vector is None and isinstance(term.step, int) and term.step == 0:
                fixed.append(term.base)
            else:
                moving.append(term)
        base = self._sum(fixed, constant)
        if not moving:
            return Lanes(base)
        assert vector is not None, "an index varies over lanes outside of a vector loop"
        if all(term.vector is None for term in moving):
            step: int | Value = 0
            for term in moving:
                base = self.b.add(base, term.base) if not _is_zero(base) else term.base
                step = self._add_steps(step, term.step)
            return Lanes(base, step)
        offsets = _added([_offsets(term, env.lanes) for term in moving])
        if offsets is not None:
            for term in moving:
                base = self.b.add(base, term.base)
            return self._spread(base, offsets)
        total: Value | None = None if _is_zero(base) else base
        for term in moving:
            value = self._all_lanes(term, env)
            total = value if total is None else self.b.add(total, value)
        assert total is not None
        return Lanes(base, vector=self.b.widen(total, env.lanes))

    def _spread(self, base: Value, offsets: tuple[int, ...]) -> Lanes:
        """base + offsets[l] at lane l."""
        items = ", ".join(f"i64 {offset}" for offset in offsets)
        steps = Value(f"<{items}>", "i64", len(offsets))
        vector = self.b.add(self.b.widen(base, len(offsets)), steps)
        return Lanes(base, vector=vector, offsets=offsets)

    def _sum(self, values: list[Value], constant: int) -> Value:
        total: Value | None = None
        for value in values:
            total = value if total is None else self.b.add(total, value)
        if total is None:
            return self.b.const(constant, "i64")
        return self.b.add(total, constant) if constant else total

    def _add_steps(self, a: int | Value, c: int | Value) -> int | Value:
        if isinstance(a, int) and isinstance(c, int):
            return a + c
        left = self.b.const(a, "i64") if isinstance(a, int) else a
        return self.b.add(left, c)

    def _lanes_product(self, factors: list[Lanes], coefficient: int, env: Env) -> Lanes:
        result = factors[0]
        for factor in factors[1:]:
            if _uniform(factor):
                result = self._scaled(result, factor.base)
            elif _uniform(result):
                result = self._scaled(factor, result.base)
            else:
                product = self.b.mul(self._all_lanes(result, env), self._all_lanes(factor, env))
                result = Lanes(result.base, vector=product)
        return result if coefficient == 1 else self._scaled(result, self.b.const(coefficient, "i64"))

    def _scaled(self, lanes: Lanes, by: Value) -> Lanes:
        if lanes.offsets is not None and by.const:
            factor = int(by.text)
            return self._spread(
                self.b.mul(lanes.base, by), tuple(offset * factor for offset in lanes.offsets)
            )
        if lanes.vector is not None:
            return Lanes(lanes.base, vector=self.b.mul(lanes.vector, by))
        base = self.b.mul(lanes.base, by)
        if isinstance(lanes.step, int):
            if lanes.step == 0:
                return Lanes(base)
            if by.const:
                return Lanes(base, lanes.step * int(by.text))
            return Lanes(base, by if lanes.step == 1 else self.b.mul(by, lanes.step))
        return Lanes(base, self.b.mul(lanes.step, by))

    def _atom(self, atom: object, env: Env, guard: Value | None) -> Lanes:
        if isinstance(atom, Var):
            value = env.indices.get(atom.name)
            if value is None:
                raise CodegenError(f"the loop variable {atom.name!r} is used outside of its loop")
            moving = env.vector is not None and atom.name == env.vector.name and env.vector.lanes > 1
            return Lanes(value, 1 if moving else 0)
        if isinstance(atom, Sym):
            size = env.sizes.get(atom.name)
            if size is None:
                raise CodegenError(f"the size {atom.name!r} is not a parameter of the kernel")
            return Lanes(size)
        if isinstance(atom, Indirect):
            return self._indirect(atom, env, guard)
        assert isinstance(atom, FloorDiv | Mod), f"unknown index atom {atom!r}"
        return self._quotient(atom, env, guard)

    def _quotient(self, atom: FloorDiv | Mod, env: Env, guard: Value | None) -> Lanes:
        modulo = isinstance(atom, Mod)
        divisor = self._index(atom.b, env)
        inside = self._index(atom.a, env, guard)
        if _uniform(inside) and _uniform(divisor):
            return Lanes(
                self._floor_divide(inside.base, divisor.base, modulo, is_plainly_nonnegative(atom.a))
            )
        if self._within_one_block(atom, env):
            # The lanes start at a multiple of their number, which divides the divisor: none crosses a multiple of it.
            base = self._floor_divide(inside.base, divisor.base, modulo, is_plainly_nonnegative(atom.a))
            return Lanes(base, 1) if modulo else Lanes(base)
        shift, size = self._within_lanes(atom, env), atom.b.as_int()
        if shift is not None and size is not None:
            # A vector starts `shift` after a multiple of the divisor.
            if modulo:
                steps = tuple((shift + lane) % size for lane in range(env.lanes))
                return self._spread(self.b.const(0, "i64"), steps)
            base = self._floor_divide(inside.base, divisor.base, False, is_plainly_nonnegative(atom.a))
            return self._spread(base, tuple((shift + lane) // size for lane in range(env.lanes)))
        value = self._floor_divide(
            self._all_lanes(inside, env),
            self._all_lanes(divisor, env),
            modulo,
            is_plainly_nonnegative(atom.a),
        )
        return Lanes(inside.base, vector=value)

    def _within_one_block(self, atom: FloorDiv | Mod, env: Env) -> bool:
        vector, divisor = env.vector, atom.b.as_int()
        if vector is None or divisor is None or vector.aligned % vector.lanes or divisor % vector.lanes:
            return False
        own = atom.a.coefficient(vector.name)
        return (
            own is not None
            and own.as_int() == 1
            and all(scale % vector.lanes == 0 for _, scale in atom.a.without(vector.name).terms)
        )

    def _within_lanes(self, atom: FloorDiv | Mod, env: Env) -> int | None:
        """How far lane 0 is from a multiple of the divisor, where that is the same for all vectors."""
        vector, divisor = env.vector, atom.b.as_int()
        if vector is None or divisor is None or vector.lanes % divisor or vector.aligned % vector.lanes:
            return None
        own = atom.a.coefficient(vector.name)
        if own is None or own.as_int() != 1:
            return None
        rest = atom.a.without(vector.name).terms
        if any(monomial and scale % divisor for monomial, scale in rest):
            return None
        return sum(scale for monomial, scale in rest if not monomial) % divisor

    def _floor_divide(self, a: Value, by: Value, modulo: bool, nonnegative: bool) -> Value:
        if nonnegative:
            # The operands are indices, so unsigned division (a shift or a multiplication) is theirs too.
            lanes = max(a.lanes, by.lanes)
            opcode = "urem" if modulo else "udiv"
            type_ = vector_type("i64", lanes)
            return self.b.emit(
                f"{opcode} {type_} {self.b.text(a, lanes)}, {self.b.text(by, lanes)}", "i64", lanes
            )
        return emit_op(self.b, "rem" if modulo else "floordiv", (a, by), "i64")

    def _indirect(self, atom: Indirect, env: Env, guard: Value | None) -> Lanes:
        value = self._emit(atom.value, env, {})
        dtype = value.dtype
        index = convert(self.b, value, "i64")
        size = self.emit_index(atom.size, env)
        above = self.b.cmp("lt", index, size)
        good = above if is_unsigned(dtype) else self.b.and_(above, self.b.cmp("ge", index, 0))
        self._require(good, env, guard, "an index taken from data")
        index = self.b.select(good, index, 0)
        if index.lanes == 1:
            return Lanes(index)
        first = self.b.emit(f"extractelement {index.type} {index.text}, i64 0", "i64", 1)
        return Lanes(first, vector=index)

    def _raise_flag(self, bad: Value) -> None:
        old = self.b.emit(f"load i64, ptr {self.error_flag}", "i64", 1, pure=False)
        new = self.b.or_(old, self.b.convert("zext", bad, "i64"))
        self.b.line(f"store i64 {new.text}, ptr {self.error_flag}")


def _uniform(lanes: Lanes) -> bool:
    return lanes.vector is None and isinstance(lanes.step, int) and lanes.step == 0


def _is_first_lane(mask: Value) -> bool:
    """Whether a mask is known to be true in lane 0 only."""
    return mask.text.startswith("<i1 true") and mask.text.count("true") == 1


def _offsets(lanes: Lanes, count: int) -> tuple[int, ...] | None:
    """What each of `count` lanes adds to the base, if that is known."""
    if lanes.vector is not None:
        return lanes.offsets
    return tuple(lane * lanes.step for lane in range(count)) if isinstance(lanes.step, int) else None


def _added(parts: list[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    known = [part for part in parts if part is not None]
    return tuple(map(sum, zip(*known, strict=True))) if len(known) == len(parts) else None


def _is_zero(value: Value) -> bool:
    return value.const and value.text == "0"
