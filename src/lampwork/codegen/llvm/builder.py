"""A small writer of LLVM IR text.

Text, because LLVM parses it in a fraction of the time that building the same IR object by object takes in Python. A
`Value` is a register or a constant with its dtype and number of lanes; the methods of `Builder` write one instruction
each and return the result. Operands may be Python numbers; a scalar operand beside a vector one is splatted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from lampwork.codegen.llvm.types import (
    REGISTER,
    is_float,
    is_unsigned,
    literal,
    mangled,
    memory_type,
    vector_type,
)
from lampwork.codegen.target import Target
from lampwork.loops.ir.nodes import DType
from lampwork.records import record


@record
class Value:
    """An SSA value: `text` is a register or a literal of one element; `lanes` is 1 for a scalar."""

    text: str
    dtype: DType
    lanes: int = 1
    const: bool = False

    @property
    def type(self) -> str:
        return vector_type(REGISTER[self.dtype], self.lanes)


Operand = Value | float | int | bool
Comparison = Literal["eq", "ne", "lt", "le", "gt", "ge", "uno", "ord", "ugt", "ult", "une", "ueq"]

_FLOAT_COMPARISON: dict[str, str] = {
    "eq": "oeq",
    "ne": "une",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
}


@dataclass(slots=True)
class Module:
    """The text of one LLVM module: functions, declarations and constants, each once."""

    functions: list[str] = field(default_factory=list[str])
    declarations: dict[str, str] = field(default_factory=dict[str, str])

    def declare(self, name: str, signature: str) -> None:
        """`signature` is the whole line, e.g. `declare float @sinf(float)`; a repeated name is kept once."""
        self.declarations.setdefault(name, signature)

    @property
    def text(self) -> str:
        return "\n".join([*self.declarations.values(), *self.functions, ""])


LONGEST_CHAIN = 4  # coefficients of a polynomial that is evaluated by Horner's rule


class Builder:
    """Writes the body of one function.

    Equal pure instructions (same opcode, same operands) give the same value while the first one is still in scope:
    `scope()` opens a region whose values are forgotten at its end, as a loop body's are.

    coarse: whether float32 results need no more digits than half types have, with some to spare.
    sums_powers: whether powers of e by negative numbers are added up, the largest being 1: others may be less exact.
    """

    def __init__(self, module: Module, target: Target) -> None:
        self.module = module
        self.target = target
        self.coarse = False
        self.sums_powers = False
        # Without the flag LLVM keeps every rounding; `fma` is the only way to have a product and a sum rounded once.
        self._contract = " contract" if target.contract else ""
        self.block = "entry"
        self._entry: list[str] = ["entry:"]
        self._lines: list[str] = []
        self._count = 0
        self._known: list[dict[str, Value]] = [{}]

    # --- text ---------------------------------------------------------------------------------------------------------

    def name(self, hint: str = "v") -> str:
        """A fresh register name, with its %."""
        self._count += 1
        return f"%{hint}{self._count}"

    def line(self, text: str) -> None:
        self._lines.append("  " + text)

    def reserve(self) -> Callable[[str], None]:
        """Leave a line here that is written later, by the function returned (for phis)."""
        self._lines.append("")
        position = len(self._lines) - 1

        def write(text: str) -> None:
            self._lines[position] = "  " + text

        return write

    def new_label(self, hint: str = "b") -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def start(self, label: str) -> None:
        """Begin a block; the one before must have been ended by a branch."""
        self._lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch_if(self, condition: Value, then: str, otherwise: str) -> None:
        self.line(f"br i1 {condition.text}, label %{then}, label %{otherwise}")

    def body(self) -> str:
        """Everything written so far, from the entry label on."""
        return "\n".join([*self._entry, *self._lines])

    def alloca(self, type_: str, align: int) -> str:
        """Room on the stack for the whole call; gives its address."""
        address = self.name("room")
        space = self.target.stack_space
        if not space:
            self._entry.append(f"  {address} = alloca {type_}, align {align}")
            return address
        own = self.name("own")
        self._entry.append(f"  {own} = alloca {type_}, align {align}, addrspace({space})")
        self._entry.append(f"  {address} = addrspacecast ptr addrspace({space}) {own} to ptr")
        return address

    @contextmanager
    def scope(self) -> Generator[None]:
        """Values made inside are not reused after it."""
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()

    def emit(self, text: str, dtype: DType, lanes: int, *, pure: bool = True) -> Value:
        """One instruction (without its result name). Pure ones are reused."""
        known = self.recall(text) if pure else None
        if known is not None:
            return known
        value = Value(self.name(), dtype, lanes)
        self._lines.append(f"  {value.text} = {text}")
        if pure:
            self._known[-1][text] = value
        return value

    def recall(self, key: str) -> Value | None:
        """The value that was remembered under `key` in a scope that is still open."""
        for known in reversed(self._known):
            value = known.get(key)
            if value is not None:
                return value
        return None

    def remember(self, key: str, value: Value) -> Value:
        """Keep `value` under `key` to the end of this scope: for what more than one pure instruction computes."""
        self._known[-1][key] = value
        return value

    def once(self, text: str) -> bool:
        """Whether this is the first time, in the scopes that are open, that `text` is asked about."""
        if any(text in known for known in self._known):
            return False
        self._known[-1][text] = Value(text, "bool")
        return True

    # --- constants and shapes -----------------------------------------------------------------------------------------

    def const(self, value: float | int | bool, dtype: DType) -> Value:
        return Value(literal(value, dtype), dtype, 1, const=True)

    def text(self, value: Value, lanes: int) -> str:
        """`value` as an operand of `lanes` lanes, without its type."""
        return self.widen(value, lanes).text

    def typed(self, value: Value, lanes: int | None = None) -> str:
        """`value` with its type, as an operand of `lanes` lanes."""
        lanes = value.lanes if lanes is None else lanes
        return f"{vector_type(REGISTER[value.dtype], lanes)} {self.text(value, lanes)}"

    def widen(self, value: Value, lanes: int) -> Value:
        """A scalar in every lane; a vector of `lanes` lanes unchanged."""
        if value.lanes == lanes:
            return value
        assert value.lanes == 1, f"a vector of {value.lanes} lanes does not fit {lanes}"
        element = REGISTER[value.dtype]
        vector = vector_type(element, lanes)
        if value.const:
            return Value(f"splat ({element} {value.text})", value.dtype, lanes)
        first = self.emit(f"insertelement {vector} poison, {element} {value.text}, i64 0", value.dtype, lanes)
        return self.emit(
            f"shufflevector {vector} {first.text}, {vector} poison, <{lanes} x i32> zeroinitializer",
            value.dtype,
            lanes,
        )

    def coerce(self, operand: Operand, dtype: DType) -> Value:
        return operand if isinstance(operand, Value) else self.const(operand, dtype)

    def iota(self, dtype: DType, lanes: int) -> Value:
        """0, 1, 2, … in the lanes; a zero for one lane."""
        if lanes == 1:
            return self.const(0, dtype)
        element = REGISTER[dtype]
        items = ", ".join(f"{element} {literal(i, dtype)}" for i in range(lanes))
        return Value(f"<{items}>", dtype, lanes)

    def first_lanes(self, count: Value, lanes: int) -> Value:
        """A mask that is true in the first `count` lanes, 0 <= count < lanes."""
        if count.const and count.text != "1":
            bits = ", ".join(f"i1 {'true' if lane < int(count.text) else 'false'}" for lane in range(lanes))
            return Value(f"<{bits}>", "bool", lanes)
        if count.const:
            # LLVM 22 must not know that it is one lane: of a value truncated to 16 bits it would store all 32.
            count = self.emit(f'call i64 asm "", "=r,0"(i64 {count.text})', "i64", 1)
        ones = self.sub(self.shl(self.const(1, "i64"), count), 1)
        if lanes < 64:
            narrow = self.emit(f"trunc i64 {ones.text} to i{lanes}", "i64", 1)
            return self.emit(f"bitcast i{lanes} {narrow.text} to <{lanes} x i1>", "bool", lanes)
        return self.emit(f"bitcast i64 {ones.text} to <64 x i1>", "bool", lanes)

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def _binary(self, opcode: str, a: Operand, b: Operand) -> Value:
        model = a if isinstance(a, Value) else b
        assert isinstance(model, Value), "one operand must be a value"
        left, right = self.coerce(a, model.dtype), self.coerce(b, model.dtype)
        if model.dtype == "i64":
            folded = _fold(opcode, left, right)
            if folded is not None:
                return folded
        lanes = max(left.lanes, right.lanes)
        type_ = vector_type(REGISTER[model.dtype], lanes)
        return self.emit(
            f"{opcode} {type_} {self.text(left, lanes)}, {self.text(right, lanes)}", model.dtype, lanes
        )

    def add(self, a: Operand, b: Operand) -> Value:
        return self._binary("fadd" + self._contract if self._is_float(a, b) else "add", a, b)

    def sub(self, a: Operand, b: Operand) -> Value:
        return self._binary("fsub" + self._contract if self._is_float(a, b) else "sub", a, b)

    def mul(self, a: Operand, b: Operand) -> Value:
        return self._binary("fmul" + self._contract if self._is_float(a, b) else "mul", a, b)

    def div(self, a: Operand, b: Operand) -> Value:
        """Float division, exactly rounded; integer division truncates, by a divisor that is not zero."""
        if self._is_float(a, b):
            return self._binary("fdiv", a, b)
        return self._binary("udiv" if self._is_unsigned(a, b) else "sdiv", a, b)

    def quotient(self, a: Value, b: Value, *, tiny: bool = True) -> Value:
        """Division of float32, to some ulp where the target has an instruction for that. Without `tiny` the result may
        be 0 where it is below 2^-125."""
        return self.div(a, b) if self.target.divide is None else self.target.divide(self, a, b, tiny)

    def rem(self, a: Operand, b: Operand) -> Value:
        """The remainder of truncated division."""
        if self._is_float(a, b):
            return self._binary("frem", a, b)
        return self._binary("urem" if self._is_unsigned(a, b) else "srem", a, b)

    def and_(self, a: Operand, b: Operand) -> Value:
        return self._binary("and", a, b)

    def or_(self, a: Operand, b: Operand) -> Value:
        return self._binary("or", a, b)

    def xor(self, a: Operand, b: Operand) -> Value:
        return self._binary("xor", a, b)

    def shl(self, a: Operand, b: Operand) -> Value:
        return self._binary("shl", a, b)

    def ashr(self, a: Operand, b: Operand) -> Value:
        return self._binary("ashr", a, b)

    def lshr(self, a: Operand, b: Operand) -> Value:
        return self._binary("lshr", a, b)

    def not_(self, a: Value) -> Value:
        """Bitwise negation (logical for bool)."""
        return self._binary("xor", a, True if a.dtype == "bool" else -1)

    def neg(self, a: Value) -> Value:
        if is_float(a.dtype):
            return self.emit(f"fneg {a.type} {a.text}", a.dtype, a.lanes)
        return self.sub(0, a)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """a * b + c, rounded once where the target can, else twice."""
        model = next(x for x in (a, b, c) if isinstance(x, Value))
        values = [self.coerce(x, model.dtype) for x in (a, b, c)]
        if not self.target.has_fma:
            return self.add(self.mul(values[0], values[1]), values[2])
        return self.intrinsic("fma", *values)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The polynomial with these coefficients, lowest power first, at x, whose square is finite.

        Long ones in powers of x * x with coefficients c + d * x: one product more, but half as many operations that
        wait for each other. What a core can hold of waiting operations is what bounds a loop of them. On a card other
        threads go on meanwhile. Without fused multiplication by Horner's rule, which rounds less.
        """
        terms: list[Operand] = list(coefficients)
        step = x
        if len(terms) > LONGEST_CHAIN and self.target.has_fma and not self.target.processors:
            pairs = [self.fma(d, x, c) for c, d in zip(coefficients[::2], coefficients[1::2], strict=False)]
            terms = [*pairs, *coefficients[len(pairs) * 2 :]]
            step = self.mul(x, x)
        total = terms[-1]
        for term in reversed(terms[:-1]):
            total = self.fma(total, step, term)
        assert isinstance(total, Value), "a polynomial has two coefficients at least"
        return total

    def intrinsic(self, name: str, *args: Value) -> Value:
        """An overloaded `llvm.` intrinsic whose operands and result have one type."""
        lanes = max(arg.lanes for arg in args)
        element = REGISTER[args[0].dtype]
        operands = ", ".join(self.typed(arg, lanes) for arg in args)
        flags = self._contract if is_float(args[0].dtype) else ""
        return self.emit(
            f"call{flags} {vector_type(element, lanes)} @llvm.{name}.{mangled(element, lanes)}({operands})",
            args[0].dtype,
            lanes,
        )

    def fabs(self, a: Value) -> Value:
        return self.intrinsic("fabs", a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    def sqrt(self, a: Value) -> Value:
        return self.intrinsic("sqrt", a)

    # --- comparing and choosing ---------------------------------------------------------------------------------------

    def cmp(self, how: Comparison, a: Operand, b: Operand) -> Value:
        """A bool. eq lt le gt ge are false for NaN, ne and the u… ones true."""
        model = a if isinstance(a, Value) else b
        assert isinstance(model, Value), "one operand must be a value"
        left, right = self.coerce(a, model.dtype), self.coerce(b, model.dtype)
        lanes = max(left.lanes, right.lanes)
        if is_float(model.dtype):
            opcode = f"fcmp {_FLOAT_COMPARISON.get(how, how)}"
        else:
            sign = "" if how in ("eq", "ne") else "u" if is_unsigned(model.dtype) else "s"
            opcode = f"icmp {sign}{how}"
        type_ = vector_type(REGISTER[model.dtype], lanes)
        return self.emit(
            f"{opcode} {type_} {self.text(left, lanes)}, {self.text(right, lanes)}", "bool", lanes
        )

    def select(self, condition: Value, then: Operand, otherwise: Operand) -> Value:
        model = then if isinstance(then, Value) else otherwise
        assert isinstance(model, Value), "one operand must be a value"
        a, b = self.coerce(then, model.dtype), self.coerce(otherwise, model.dtype)
        lanes = max(condition.lanes, a.lanes, b.lanes)
        chosen = condition if condition.lanes == 1 else self.widen(condition, lanes)
        return self.emit(
            f"select {self.typed(chosen)}, {self.typed(a, lanes)}, {self.typed(b, lanes)}", model.dtype, lanes
        )

    def smaller(self, a: Operand, b: Operand) -> Value:
        """a if a < b else b: one minps, which gives b where either is NaN."""
        return self._choose("lt", a, b)

    def larger(self, a: Operand, b: Operand) -> Value:
        """a if a > b else b: one maxps, which gives b where either is NaN."""
        return self._choose("gt", a, b)

    def _choose(self, how: Comparison, a: Operand, b: Operand) -> Value:
        model = a if isinstance(a, Value) else b
        assert isinstance(model, Value), "one operand must be a value"
        left, right = self.coerce(a, model.dtype), self.coerce(b, model.dtype)
        return self.select(self.cmp(how, left, right), left, right)

    # --- conversion ---------------------------------------------------------------------------------------------------

    def convert(self, opcode: str, value: Value, dtype: DType) -> Value:
        """An LLVM conversion instruction (sitofp, fpext, trunc, bitcast, …)."""
        target = vector_type(REGISTER[dtype], value.lanes)
        return self.emit(f"{opcode} {value.type} {value.text} to {target}", dtype, value.lanes)

    def bitcast(self, value: Value, dtype: DType) -> Value:
        return self.convert("bitcast", value, dtype)

    # --- memory -------------------------------------------------------------------------------------------------------

    def element(self, base: str, dtype: DType, offset: Value) -> Value:
        """The address of element `offset` of an array; a vector of offsets gives a vector of addresses (as i64)."""
        if offset.const and offset.text == "0":
            return Value(base, "i64")
        return self.emit(
            f"getelementptr {memory_type(dtype)}, ptr {base}, {offset.type} {offset.text}",
            "i64",
            offset.lanes,
        )

    # --- control ------------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Value, end: Value, step: int, carried: Sequence[Value] = (), *, runs: bool = False
    ) -> Generator[LoopScope]:
        """for index in range(start, end, step), carrying values from one turn to the next.

        The body sets `scope.next` to the carried values of the next turn; after the block `scope.results` holds the
        last ones. `runs`: the loop is known to run at least once.
        """
        head, exit_ = self.new_label("loop"), self.new_label("done")
        before = self.block
        if runs:
            self.branch(head)
        else:
            self.branch_if(self.cmp("lt", start, end), head, exit_)
        self.start(head)
        index = Value(self.name("i"), "i64")
        write_index = self.reserve()
        inside = [Value(self.name("c"), value.dtype, value.lanes) for value in carried]
        writers = [self.reserve() for _ in carried]
        scope = LoopScope(index, inside, list(inside), [])
        with self.scope():
            yield scope
            bumped = self.emit(f"add nsw i64 {index.text}, {step}", "i64", 1, pure=False)
            again = self.emit(f"icmp slt i64 {bumped.text}, {end.text}", "bool", 1, pure=False)
        latch = self.block
        self.line(f"br i1 {again.text}, label %{head}, label %{exit_}")
        write_index(f"{index.text} = phi i64 [ {start.text}, %{before} ], [ {bumped.text}, %{latch} ]")
        nexts = [self._stay_typed(n, c) for n, c in zip(scope.next, carried, strict=True)]
        for write, old, initial, new in zip(writers, inside, carried, nexts, strict=True):
            write(f"{old.text} = phi {old.type} [ {initial.text}, %{before} ], [ {new.text}, %{latch} ]")
        self.start(exit_)
        for initial, new in zip(carried, nexts, strict=True):
            if runs:
                scope.results.append(new)
                continue
            result = Value(self.name("r"), new.dtype, initial.lanes)
            self.line(
                f"{result.text} = phi {result.type} [ {initial.text}, %{before} ], [ {new.text}, %{latch} ]"
            )
            scope.results.append(result)

    def _stay_typed(self, new: Value, old: Value) -> Value:
        assert new.dtype == old.dtype and new.lanes == old.lanes, f"{old.type} is carried as {new.type}"
        return new

    def _is_float(self, a: Operand, b: Operand) -> bool:
        model = a if isinstance(a, Value) else b
        return isinstance(model, Value) and is_float(model.dtype)

    def _is_unsigned(self, a: Operand, b: Operand) -> bool:
        model = a if isinstance(a, Value) else b
        return isinstance(model, Value) and is_unsigned(model.dtype)


@dataclass(slots=True)
class LoopScope:
    """A loop being written: `carried` are the values at the start of a turn, `next` those of the following one."""

    index: Value
    carried: list[Value]
    next: list[Value]
    results: list[Value]


def _fold(opcode: str, a: Value, c: Value) -> Value | None:
    """What index arithmetic with a constant comes to without an instruction: x + 0, x * 1, 3 * 4, …"""
    if not (a.const or c.const) or opcode not in ("add", "sub", "mul"):
        return None
    if a.const and c.const:
        x, y = int(a.text), int(c.text)
        result = x + y if opcode == "add" else x - y if opcode == "sub" else x * y
        return Value(literal(result, "i64"), "i64", 1, const=True)
    identity = "1" if opcode == "mul" else "0"
    if c.const and c.text == identity:
        return a
    if a.const and a.text == identity and opcode != "sub":
        return c
    return None
