"""Small constructors of expressions. Operands of one operation have one dtype; `cast` makes it so."""

from __future__ import annotations

from lampwork import pristine
from lampwork.graph.symbols import SymbolicFloat, SymbolicInt
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import FLOAT8, Const, DType, Expr, IndexValue, Op
from lampwork.lower.dtypes import FLOATS, LARGEST_FLOAT8, TORCH_DTYPES, saturates


def const(value: float | int | bool, dtype: DType) -> Expr:
    """A Python number in `dtype`; integers wrap as they do in torch. A symbolic number is read when the kernel runs."""
    if dtype in FLOAT8:
        return cast(const(value, "f32"), dtype)
    if isinstance(value, SymbolicFloat):
        return cast(Op("from_bits", (IndexValue(value.as_scalar(), "i64"),), "f64"), dtype)
    return _symbolic(value, dtype) if isinstance(value, SymbolicInt) else literal(value, dtype)


def _symbolic(value: SymbolicInt, dtype: DType) -> Expr:
    number = IndexValue(value.as_scalar(), "i64")
    # By way of f64, as eager converts Python numbers.
    return cast(cast(number, "f64"), dtype) if dtype in FLOATS else cast(number, dtype)


def literal(value: float | int | bool, dtype: DType) -> Const:
    """A Python number that is no symbol as a constant."""
    if dtype in FLOATS:
        return Const(float(value), dtype)
    if dtype == "bool":
        return Const(bool(value), dtype)
    return Const(_wrap(int(value), dtype), dtype)


def _wrap(value: int, dtype: DType) -> int:
    bits = int(dtype[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype != "u8" and value >> (bits - 1) else value


def cast(value: Expr, dtype: DType) -> Expr:
    """value converted to dtype (to bool: value != 0). Constants that every dtype can hold are converted here; what
    needs rounding is left to the generated code."""
    if value.dtype == dtype:
        return value
    if value.dtype in FLOAT8:
        return cast(Op("cast", (value,), "f32"), dtype)
    if dtype in FLOAT8:
        return Op("cast", (_within(cast(value, "f32"), dtype),), dtype)
    if isinstance(value, Const) and _is_small(value.value):
        return literal(value.value, dtype)
    return Op("cast", (value,), dtype)


def _within(value: Expr, dtype: DType) -> Expr:
    """A float32 that is to be a float8: what is too large as torch has it."""
    largest = LARGEST_FLOAT8[dtype]
    is_small = isinstance(value, Const) and abs(value.value) <= largest
    if dtype != "f8e4m3" or is_small or not saturates():
        return value
    high, low = Const(largest, "f32"), Const(-largest, "f32")
    value = where(test("gt", value, high), high, value)
    return where(test("lt", value, low), low, value)


def widened(value: Expr, dtype: DType) -> Expr:
    """A value of a half type (or of `dtype` itself) in the wider `dtype`, exactly."""
    if isinstance(value, Const) and value.dtype != dtype:
        return Const(pristine.tensor(value.value, dtype=TORCH_DTYPES[value.dtype]).item(), dtype)
    return cast(value, dtype)


def _is_small(number: float | int | bool) -> bool:
    return 0 <= number <= 127 and number == int(number)


def op(name: str, *args: Expr) -> Op:
    """An operation whose result has its (first) operand's dtype."""
    return Op(name, args, args[0].dtype)


def test(name: str, *args: Expr) -> Op:
    """A comparison or predicate: the result is bool."""
    return Op(name, args, "bool")


def where(condition: Expr, yes: Expr, no: Expr) -> Op:
    return Op("where", (condition, yes, no), yes.dtype)


def require(value: Expr, condition: Expr) -> Op:
    """`value`; where `condition` is false the kernel fails, and the call runs in eager."""
    return Op("require", (value, condition), value.dtype)


def index_value(index: Index | int, dtype: DType = "i64") -> IndexValue:
    return IndexValue(as_index(index), dtype)


def add(a: Expr, b: Expr) -> Expr:
    return op("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return op("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return op("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    return op("div", a, b)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c within one operator: floats are rounded once, where the processor can. Products and sums that are
    written apart are rounded apart."""
    return Op("fma", (a, b, c), a.dtype) if a.dtype in FLOATS else add(mul(a, b), c)


def product(a: Expr, b: Expr) -> Expr:
    """a * b for a sum of the same operator, which may add it unrounded."""
    return op("product" if a.dtype in FLOATS else "mul", a, b)


def like(value: float | int | bool, expr: Expr) -> Expr:
    """A number in the dtype of `expr`."""
    return const(value, expr.dtype)


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """a and b, where None is true."""
    if a is None or b is None:
        return b if a is None else a
    return test("and", a, b)


def inside(index: Index, low: int | None, high: int | Index | None) -> Expr | None:
    """low <= index < high as a bool expression; a bound that is None is not tested."""
    condition: Expr | None = None
    if low is not None:
        condition = test("ge", index_value(index), const(low, "i64"))
    if high is not None:
        bound = index_value(high) if isinstance(high, Index) else const(high, "i64")
        condition = both(condition, test("lt", index_value(index), bound))
    return condition
