"""Kernels as wholes: collecting their parameters, and how finely to split their parallel loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.expr import cost, loads
from lampwork.loops.ir.index import ZERO, Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, Expr, Kernel, Let, Load, Loop, ReduceLoop, Stmt, Store


def make_kernel(name: str, body: Sequence[Stmt], scratch: Sequence[Buffer], origin: str = "") -> Kernel:
    """A kernel with the params and sizes that its body uses: params in the order of first use, sizes sorted."""
    private = {buffer.name for buffer in scratch}
    params: dict[str, Buffer] = {}
    sizes: set[str] = set()
    for stmt in body:
        for buffer in _buffers(stmt):
            if buffer.name not in private:
                params.setdefault(buffer.name, buffer)
        sizes |= _stmt_symbols(stmt)
    for buffer in (*params.values(), *scratch):
        sizes |= _symbols(buffer.shape)
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


def statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer ones first."""
    for stmt in body:
        yield stmt
        yield from statements(inner_body(stmt))


def inner_body(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside of one."""
    if isinstance(stmt, Loop | ReduceLoop):
        return stmt.body
    if isinstance(stmt, Let | Store):
        return ()
    return (*stmt.body, *stmt.after)


def stmt_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in a statement; a Store's place counts as a Load of it."""
    if isinstance(stmt, Let):
        return (stmt.value,)
    if isinstance(stmt, Store):
        return (stmt.value, Load(stmt.buffer, stmt.index))
    if isinstance(stmt, ReduceLoop):
        values = tuple(reducer.value for reducer in stmt.reducers)
        return values if stmt.position is None else (*values, stmt.position)
    if isinstance(stmt, Loop):
        return ()
    return (stmt.value,)


def _buffers(stmt: Stmt) -> Iterator[Buffer]:
    for each in statements((stmt,)):
        for expr in stmt_exprs(each):
            for load in loads(expr):
                yield load.buffer


def _stmt_symbols(stmt: Stmt) -> set[str]:
    found: set[str] = set()
    for each in statements((stmt,)):
        if not isinstance(each, Let | Store):
            found |= each.axis.extent.symbols()
        if isinstance(each, Loop) and each.limit is not None:
            found |= each.limit.symbols()
        for expr in stmt_exprs(each):
            found |= expr.symbols()
    return found


def _symbols(shape: Sequence[Index]) -> set[str]:
    return set().union(*(size.symbols() for size in shape))


def _parallel_loop(kernel: Kernel) -> Loop | None:
    for stmt in kernel.body:
        if isinstance(stmt, Loop) and stmt.kind in ("parallel", "parallel-vector"):
            return stmt
    return None


def _work(stmt: Stmt) -> Index:
    own = as_index(sum(cost(expr) for expr in stmt_exprs(stmt)))
    if isinstance(stmt, Let | Store):
        return own
    return (own + _total(_work(each) for each in inner_body(stmt))) * stmt.axis.extent


def _total(amounts: Iterable[Index]) -> Index:
    total = ZERO
    for amount in amounts:
        total = total + amount
    return total


def map_stmt(stmt: Stmt, on_expr: Callable[[Expr], Expr], on_index: Callable[[Index], Index]) -> Stmt:
    """A statement with every expression and every index in it replaced, also those of the statements inside."""

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(map_stmt(each, on_expr, on_index) for each in body)

    if isinstance(stmt, Let):
        return Let(stmt.name, on_expr(stmt.value))
    if isinstance(stmt, Store):
        place = on_expr(Load(stmt.buffer, stmt.index))
        if not isinstance(place, Load):
            raise InvalidLoopsError(
                f"a store to {stmt.buffer.name} was rewritten to something that is no place"
            )
        return Store(place.buffer, place.index, on_expr(stmt.value))
    axis = Axis(stmt.axis.name, on_index(stmt.axis.extent))
    if isinstance(stmt, Loop):
        limit = None if stmt.limit is None else on_index(stmt.limit)
        return Loop(axis, stmt.kind, block(stmt.body), limit)
    if isinstance(stmt, ReduceLoop):
        reducers = tuple(replace(reducer, value=on_expr(reducer.value)) for reducer in stmt.reducers)
        position = None if stmt.position is None else on_expr(stmt.position)
        return ReduceLoop(axis, stmt.kind, block(stmt.body), reducers, position)
    return replace(stmt, axis=axis, body=block(stmt.body), value=on_expr(stmt.value), after=block(stmt.after))
