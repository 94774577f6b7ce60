"""Kernels as wholes: collecting their parameters, and how finely to split their parallel loop.

ABI: `int64_t name(void **buffers, const int64_t *sizes, int64_t begin, int64_t end)`; `buffers` in the order of the
kernel's `params`, `sizes` of its `sizes`, [begin, end) a part of the parallel loop's range (0, 1 if there is none).
Returns 0, or 1 if an indirect index was out of range (the caller then reruns in eager to raise) or a `require` was not
met (eager then gives its own result).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lampwork.loops.ir.expr import cost, indices, loads
from lampwork.loops.ir.index import ZERO, Index, as_index
from lampwork.loops.ir.nodes import (
    Barrier,
    Buffer,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    Reducer,
    Stmt,
    Store,
    WhenLast,
)


def make_kernel(name: str, body: Sequence[Stmt], scratch: Sequence[Buffer], origin: str = "") -> Kernel:
    """A kernel with the params and sizes that its body uses: params in the order of first use, sizes sorted."""
    private = {buffer.name for buffer in scratch}
    used = loads(*(expr for stmt in statements(body) for expr in stmt_exprs(stmt)))
    params: dict[str, Buffer] = {}
    for load in used:
        if load.buffer.name not in private:
            params.setdefault(load.buffer.name, load.buffer)
    shapes = [size for buffer in (*params.values(), *scratch) for size in (*buffer.shape, *buffer.strides)]
    sizes = {symbol for index in (*indices(*body), *shapes) for symbol in index.symbols()}
    return Kernel(name, tuple(params.values()), tuple(sorted(sizes)), tuple(scratch), tuple(body), origin)


def parallel_extent(kernel: Kernel) -> Index:
    """The range of the kernel's parallel loop, 1 if it has none."""
    loop = _parallel_loop(kernel)
    return as_index(1) if loop is None else loop.axis.extent


def iteration_work(kernel: Kernel) -> Index:
    """Operations in one iteration of the kernel's parallel loop, or in all of a kernel without one."""
    loop = _parallel_loop(kernel)
    body = kernel.body if loop is None else loop.body
    return _total(_work(stmt) for stmt in body)


def counters_of(kernel: Kernel) -> int:
    """How many counters its WhenLasts have, side by side in the order of `statements`."""
    lasts = (stmt for stmt in statements(kernel.body) if isinstance(stmt, WhenLast))
    return sum(stmt.counters for stmt in lasts if not stmt.near)


def is_finished_by_last(kernel: Kernel) -> bool:
    """Whether some iteration finishes what others did: all of them have to be run by the same call."""
    return any(isinstance(stmt, WhenLast) for stmt in statements(kernel.body))


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer ones first."""
    for stmt in body:
        yield stmt
        yield from statements(inner_body(stmt))


def inner_body(stmt: Stmt) -> list[Stmt]:
    """The statements directly inside of one."""
    return [part for part in stmt.nodes() if isinstance(part, Stmt)]


def stmt_exprs(stmt: Stmt) -> list[Expr]:
    """The expressions that stand directly in a statement; a Store's place counts as a Load of it."""
    if isinstance(stmt, Store):
        return [stmt.value, Load(stmt.buffer, stmt.index)]
    inside = [part.value if isinstance(part, Reducer) else part for part in stmt.nodes()]
    return [part for part in inside if isinstance(part, Expr)]


def _parallel_loop(kernel: Kernel) -> Loop | None:
    for stmt in kernel.body:
        if isinstance(stmt, Loop) and stmt.kind in ("parallel", "parallel-vector"):
            return stmt
    return None


def _work(stmt: Stmt) -> Index:
    own = as_index(sum(cost(expr) for expr in stmt_exprs(stmt)))
    if isinstance(stmt, Let | Store | Barrier):
        return own
    if isinstance(stmt, WhenLast):
        return _total(_work(each) for each in inner_body(stmt)) // stmt.among
    return (own + _total(_work(each) for each in inner_body(stmt))) * stmt.axis.extent


def _total(amounts: Iterable[Index]) -> Index:
    total = ZERO
    for amount in amounts:
        total = total + amount
    return total
