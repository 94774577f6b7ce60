"""Integers of a template: folded while they are known, LLVM values when they are not.

Templates compute many addresses whose parts are often constants; folding them here keeps the text, and so the time LLVM
needs for it, small.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from lampwork.codegen.llvm.analysis import is_plainly_nonnegative
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.emit_ops import emit_op
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import FloorDiv, Index, Mod, Sym, Var
from lampwork.loops.ir.nodes import DType

Int = int | Value
"""An i64: a Python int that is known now, or an LLVM value."""


def value_of(b: Builder, a: Int) -> Value:
    return b.const(a, "i64") if isinstance(a, int) else a


def text_of(a: Int) -> str:
    return str(a) if isinstance(a, int) else a.text


def add(b: Builder, x: Int, y: Int) -> Int:
    if isinstance(x, int) and isinstance(y, int):
        return x + y
    if x == 0:
        return y
    return x if y == 0 else b.emit(f"add nsw i64 {text_of(x)}, {text_of(y)}", "i64", 1)


def sub(b: Builder, x: Int, y: Int) -> Int:
    if isinstance(x, int) and isinstance(y, int):
        return x - y
    return x if y == 0 else b.emit(f"sub nsw i64 {text_of(x)}, {text_of(y)}", "i64", 1)


def mul(b: Builder, x: Int, y: Int) -> Int:
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    if x == 0 or y == 0:
        return 0
    if x == 1:
        return y
    return x if y == 1 else b.emit(f"mul nsw i64 {text_of(x)}, {text_of(y)}", "i64", 1)


def div(b: Builder, x: Int, y: Int) -> Int:
    """x // y, for x >= 0 and y > 0."""
    if isinstance(x, int) and isinstance(y, int):
        return x // y
    return x if y == 1 else b.emit(f"udiv i64 {text_of(x)}, {text_of(y)}", "i64", 1)


def mod(b: Builder, x: Int, y: Int) -> Int:
    """x % y, for x >= 0 and y > 0."""
    if isinstance(x, int) and isinstance(y, int):
        return x % y
    return 0 if y == 1 else b.emit(f"urem i64 {text_of(x)}, {text_of(y)}", "i64", 1)


def ceil_div(b: Builder, x: Int, y: Int) -> Int:
    return div(b, add(b, x, sub(b, y, 1)), y)


def even_part(b: Builder, total: Int, parts: Int, step: int = 1) -> Int:
    """The least multiple of `step` of which so many parts make `total`."""
    return mul(b, ceil_div(b, total, mul(b, parts, step)), step)


def least(b: Builder, x: Int, y: Int) -> Int:
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    return x if x == y else b.intrinsic("smin", value_of(b, x), value_of(b, y))


def greatest(b: Builder, x: Int, y: Int) -> Int:
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    return x if x == y else b.intrinsic("smax", value_of(b, x), value_of(b, y))


def less(b: Builder, x: Int, y: Int) -> Value | bool:
    """x < y; a bool if known."""
    if isinstance(x, int) and isinstance(y, int):
        return x < y
    return b.cmp("lt", value_of(b, x), value_of(b, y))


def both(b: Builder, x: Value | bool, y: Value | bool) -> Value | bool:
    """x and y."""
    if isinstance(x, bool):
        return y if x else False
    if isinstance(y, bool):
        return x if y else False
    return b.and_(x, y)


def evaluate(b: Builder, index: Index, env: Mapping[str, Int]) -> Int:
    """The value of an index expression; `env` holds its loop variables and symbolic sizes.

    What stands inside // and % must not be negative where it has loop variables, as in the index of any valid view.
    Raises CodegenError for an index taken from data.
    """
    total: Int = 0
    for monomial, coefficient in index.terms:
        product: Int = 1
        for atom in monomial:
            if isinstance(atom, Var | Sym):
                factor = env[atom.name]
            elif isinstance(atom, FloorDiv | Mod):
                factor = _quotient(b, atom, env)
            else:
                raise CodegenError(f"a template cannot be addressed through data, got the index {index}")
            product = mul(b, product, factor)
        total = add(b, total, mul(b, product, coefficient))
    return total


def _quotient(b: Builder, atom: FloorDiv | Mod, env: Mapping[str, Int]) -> Int:
    x, y = evaluate(b, atom.a, env), evaluate(b, atom.b, env)
    modulo = isinstance(atom, Mod)
    if atom.a.variables() or is_plainly_nonnegative(atom.a):
        return mod(b, x, y) if modulo else div(b, x, y)
    if isinstance(x, int) and isinstance(y, int):
        return x % y if modulo else x // y
    # A size such as -(-n // 2).
    return emit_op(b, "rem" if modulo else "floordiv", (value_of(b, x), value_of(b, y)), "i64")


def place(b: Builder, base: str, offset: Int, dtype: DType) -> str:
    """The address base + offset elements."""
    return base if offset == 0 else b.element(base, dtype, value_of(b, offset)).text


@contextmanager
def count(b: Builder, start: Int, stop: Int, step: int = 1, *, runs: bool = False) -> Generator[Int]:
    """for i in range(start, stop, step); no loop where it is known to run just once. `runs`: at least once."""
    if isinstance(start, int) and isinstance(stop, int):
        if start < stop <= start + step:
            yield start
            return
        runs = start < stop
    with b.loop(value_of(b, start), value_of(b, stop), step, runs=runs) as scope:
        yield scope.index


def branch(
    b: Builder, condition: Value | bool, then: Callable[[], None], otherwise: Callable[[], None] | None = None
) -> None:
    """if condition: then() else: otherwise()."""
    if isinstance(condition, bool):
        chosen = then if condition else otherwise
        if chosen is not None:
            chosen()
        return
    yes, end = b.new_label("then"), b.new_label("endif")
    no = end if otherwise is None else b.new_label("else")
    b.branch_if(condition, yes, no)
    b.start(yes)
    with b.scope():
        then()
    b.branch(end)
    if otherwise is not None:
        b.start(no)
        with b.scope():
            otherwise()
        b.branch(end)
    b.start(end)
