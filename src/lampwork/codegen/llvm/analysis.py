"""What the emitter asks about loop bodies before it writes them: how wide a vector, whether to unroll."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lampwork.codegen.llvm.types import is_float
from lampwork.codegen.target import Target
from lampwork.loops.ir.index import FloorDiv, Index, Indirect, Mod, Sym, Var
from lampwork.loops.ir.nodes import (
    Const,
    DType,
    Expr,
    IndexValue,
    Let,
    Load,
    Local,
    Loop,
    Op,
    ReduceLoop,
    ScanLoop,
    Stmt,
    Store,
)
from lampwork.loops.ir.ops import OPS


class Varying:
    """Finds the dtypes of all values in some statements that vary with a loop variable."""

    def __init__(self, axis: str) -> None:
        self.dtypes: set[DType] = set()
        self._names = {axis}
        self._memo: dict[int, bool] = {}

    def statements(self, stmts: Sequence[Stmt]) -> None:
        for stmt in stmts:
            if isinstance(stmt, Let):
                self._bind(stmt.name, self.expr(stmt.value))
            elif isinstance(stmt, Store):
                if self.expr(stmt.value) or any(self.index(i) for i in stmt.index):
                    self.dtypes.add(stmt.buffer.dtype)
            elif isinstance(stmt, Loop):
                self.statements(stmt.body)
            elif isinstance(stmt, ReduceLoop):
                self.statements(stmt.body)
                self.reducers(stmt)
            else:
                self.statements(stmt.body)
                varies = self.expr(stmt.value)
                if varies:
                    self.dtypes.add(stmt.dtype)
                self._bind(stmt.name, varies)
                self.statements(stmt.after)

    def reducers(self, stmt: ReduceLoop) -> None:
        for reducer in stmt.reducers:
            varies = self.expr(reducer.value)
            if varies:
                self.dtypes.add(reducer.dtype if reducer.op not in ("argmax", "argmin") else "i32")
            self._bind(reducer.name, varies)
        if stmt.position is not None:
            self.expr(stmt.position)

    def expr(self, expr: Expr) -> bool:
        known = self._memo.get(id(expr))
        if known is None:
            known = self._varies(expr)
            self._memo[id(expr)] = known
            if known and not isinstance(expr, IndexValue | Local):
                self.dtypes.add(expr.dtype)
        return known

    def index(self, index: Index) -> bool:
        found = [self._atom(atom) for atom in index.atoms()]  # all of them: each adds its dtypes
        return any(found)

    def _bind(self, name: str, varies: bool) -> None:
        if varies:
            self._names.add(name)

    def _varies(self, expr: Expr) -> bool:
        if isinstance(expr, Const):
            return False
        if isinstance(expr, Local):
            return expr.name in self._names
        if isinstance(expr, Op):
            found = [self.expr(arg) for arg in expr.args]
            return any(found)
        if isinstance(expr, Load):
            varies = [self.index(i) for i in expr.index]
            if expr.mask is not None:
                varies.append(self.expr(expr.mask))
            return any(varies)
        return self.index(expr.index)

    def _atom(self, atom: object) -> bool:
        if isinstance(atom, Var):
            return atom.name in self._names
        if isinstance(atom, FloorDiv | Mod):
            found = [self.index(atom.a), self.index(atom.b)]
            return any(found)
        return isinstance(atom, Indirect) and self.expr(atom.value)


def lanes_for(target: Target, axis: str, stmts: Sequence[Stmt], reducing: ReduceLoop | None = None) -> int:
    """How many iterations of loop `axis` go into one vector.

    The widest float that varies along it decides; without floats, the widest integer. (Wider integers beside floats
    are indices mostly: they take two registers.)
    """
    varying = Varying(axis)
    varying.statements(stmts)
    if reducing is not None:
        varying.reducers(reducing)
    floats = [target.lanes(dtype) for dtype in varying.dtypes if is_float(dtype)]
    others = [target.lanes(dtype) for dtype in varying.dtypes if not is_float(dtype)]
    return min(floats or others or [target.lanes("f32")])


def expressions(stmts: Sequence[Stmt]) -> Iterator[Expr]:
    """The expressions at the top of every statement, nested loops included."""
    for stmt in stmts:
        if isinstance(stmt, Let | Store):
            yield stmt.value
        elif isinstance(stmt, Loop):
            yield from expressions(stmt.body)
        elif isinstance(stmt, ReduceLoop):
            yield from expressions(stmt.body)
            yield from (reducer.value for reducer in stmt.reducers)
        else:
            yield from expressions(stmt.body)
            yield stmt.value
            yield from expressions(stmt.after)


def cost(exprs: Sequence[Expr]) -> int:
    """Roughly how many additions a turn costs; shared subexpressions count once, and what is only required not at all:
    nothing waits for it."""
    seen: set[int] = set()
    total = 0
    stack = list(exprs)
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        if isinstance(expr, Op) and expr.name == "require":
            stack.append(expr.args[0])
        elif isinstance(expr, Op):
            total += OPS[expr.name].cost
            stack.extend(expr.args)
        elif isinstance(expr, Load):
            total += 1
            if expr.mask is not None:
                stack.append(expr.mask)
    return total


def has_loops(stmts: Sequence[Stmt]) -> bool:
    return any(isinstance(stmt, Loop | ReduceLoop | ScanLoop) for stmt in stmts)


def invariants(
    axis: str, stmts: Sequence[Stmt], values: Sequence[Expr], written: frozenset[str]
) -> list[Expr]:
    """The largest subexpressions that loop `axis` over `stmts` (and its reducers' `values`) need not compute again.

    Loads are among them if nothing writes their buffer and no mask guards them.
    """
    search = _Invariants(frozenset((axis, *_bound(stmts))), written)
    for expr in (*expressions(stmts), *values):
        search.visit(expr)
    return search.found


class _Invariants:
    def __init__(self, changing: frozenset[str], written: frozenset[str]) -> None:
        self.found: list[Expr] = []
        self._changing = changing
        self._written = written
        self._memo: dict[int, bool] = {}
        self._visited: set[int] = set()

    def visit(self, expr: Expr) -> None:
        """Collect `expr` if it is invariant, else what is invariant inside of it."""
        if id(expr) in self._visited:
            return
        self._visited.add(id(expr))
        if self._fixed(expr):
            if isinstance(expr, Op | Load):
                self.found.append(expr)
        elif isinstance(expr, Op):
            for arg in expr.args:
                self.visit(arg)

    def _fixed(self, expr: Expr) -> bool:
        known = self._memo.get(id(expr))
        if known is None:
            known = self._is_fixed(expr)
            self._memo[id(expr)] = known
        return known

    def _is_fixed(self, expr: Expr) -> bool:
        if isinstance(expr, Const):
            return True
        if isinstance(expr, Local):
            return expr.name not in self._changing
        if isinstance(expr, Op):
            return all(self._fixed(arg) for arg in expr.args)
        if isinstance(expr, Load):
            if expr.mask is not None or expr.buffer.name in self._written:
                return False
            return all(self._index(index) for index in expr.index)
        return self._index(expr.index)

    def _index(self, index: Index) -> bool:
        return all(self._atom(atom) for atom in index.atoms())

    def _atom(self, atom: object) -> bool:
        if isinstance(atom, Var):
            return atom.name not in self._changing
        if isinstance(atom, FloorDiv | Mod):
            return self._index(atom.a) and self._index(atom.b)
        return not isinstance(atom, Indirect) or self._fixed(atom.value)


def _bound(stmts: Sequence[Stmt]) -> Iterator[str]:
    """Every name that statements bind: locals, reducers, loop variables."""
    for stmt in stmts:
        if isinstance(stmt, Let):
            yield stmt.name
        elif isinstance(stmt, Loop | ReduceLoop | ScanLoop):
            yield stmt.axis.name
            yield from _bound(stmt.body)
            if isinstance(stmt, ReduceLoop):
                yield from (reducer.name for reducer in stmt.reducers)
            elif isinstance(stmt, ScanLoop):
                yield stmt.name
                yield from _bound(stmt.after)


def is_plainly_nonnegative(index: Index) -> bool:
    """Whether it is plainly >= 0: variables and sizes are, and sums of them with positive coefficients."""
    return all(
        scale >= 0 and all(_nonnegative_atom(atom) for atom in monomial) for monomial, scale in index.terms
    )


def _nonnegative_atom(atom: object) -> bool:
    if isinstance(atom, FloorDiv):
        return is_plainly_nonnegative(atom.a)
    return isinstance(atom, Var | Sym | Mod | Indirect)
