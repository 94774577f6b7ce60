"""What the emitter asks about loop bodies before it writes them: how wide a vector, whether to unroll."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lampwork.codegen.llvm.types import is_float
from lampwork.codegen.target import Target
from lampwork.loops.ir.index import FloorDiv, Index, Indirect, Mod, Sym, Var
from lampwork.loops.ir.kernel import inner_body, statements
from lampwork.loops.ir.nodes import (
    DType,
    Expr,
    Let,
    Load,
    Local,
    Loop,
    Op,
    ReduceLoop,
    ScanLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.ir.ops import OPS
from lampwork.loops.ir.traverse import Node, Part, rewrite, walk_once


class Varying:
    """Finds the dtypes of all values in some statements that vary with a loop variable."""

    def __init__(self, axis: str) -> None:
        self.dtypes: set[DType] = set()
        self._names = {axis}
        self._memo: dict[int, bool] = {}

    def statements(self, stmts: Sequence[Stmt]) -> None:
        for stmt in stmts:
            if isinstance(stmt, Let):
                self._bind(stmt.name, self.part(stmt.value))
            elif isinstance(stmt, Store):
                if self.part(stmt.value) or any(self.part(i) for i in stmt.index):
                    self.dtypes.add(stmt.buffer.dtype)
            elif isinstance(stmt, Loop):
                self.statements(stmt.body)
            elif isinstance(stmt, ReduceLoop):
                self.statements(stmt.body)
                self.reducers(stmt)
            elif isinstance(stmt, ScanLoop):
                self.statements(stmt.body)
                varies = self.part(stmt.value)
                if varies:
                    self.dtypes.add(stmt.dtype)
                self._bind(stmt.name, varies)
                self.statements(stmt.after)
            elif isinstance(stmt, WhenLast):
                self.statements(stmt.body)

    def reducers(self, stmt: ReduceLoop) -> None:
        for reducer in stmt.reducers:
            varies = self.part(reducer.value)
            if varies:
                self.dtypes.add(reducer.dtype if reducer.op not in ("argmax", "argmin") else "i32")
            self._bind(reducer.name, varies)
        if stmt.position is not None:
            self.part(stmt.position)

    def part(self, part: Part) -> bool:
        known = self._memo.get(id(part))
        if known is None:
            known = self._memo[id(part)] = self._varies(part)
            if known and isinstance(part, Op | Load):
                self.dtypes.add(part.dtype)
        return known

    def _bind(self, name: str, varies: bool) -> None:
        if varies:
            self._names.add(name)

    def _varies(self, part: Part) -> bool:
        inside = part.data() if isinstance(part, Index) else part.parts()
        varies = [self.part(each) for each in inside]  # all of them: each adds its dtypes
        if isinstance(part, Index):
            return any(varies) or not self._names.isdisjoint(part.variables())
        return any(varies) or (isinstance(part, Local) and part.name in self._names)


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
    return _values(statements(stmts))


def _values(stmts: Iterable[Stmt]) -> Iterator[Expr]:
    for stmt in stmts:
        if isinstance(stmt, Let | Store | ScanLoop):
            yield stmt.value
        elif isinstance(stmt, ReduceLoop):
            yield from (reducer.value for reducer in stmt.reducers)


def cost(exprs: Sequence[Expr]) -> int:
    """Roughly how many additions a turn costs; shared subexpressions count once, and what is only required not at all:
    nothing waits for it."""
    total = 0
    waited_for = [rewrite(expr, {Op: _without_condition}) for expr in exprs]
    for part in walk_once(*waited_for, data=False):
        if isinstance(part, Op):
            known = OPS.get(part.name)
            total += 1 if known is None else known.cost  # the emitter says what it has no rule for
        elif isinstance(part, Load):
            total += 1
    return total


def _without_condition(op: Op) -> Expr:
    return op.args[0] if op.name == "require" else op


def draws(exprs: Iterable[Expr]) -> bool:
    """Whether random numbers are computed, which take the least time of many elements side by side."""
    return any(isinstance(part, Op) and part.name == "philox" for part in walk_once(*exprs))


def has_loops(stmts: Sequence[Stmt]) -> bool:
    return any(isinstance(stmt, Loop | ReduceLoop | ScanLoop) for stmt in stmts)


def invariants(
    axis: str, stmts: Sequence[Stmt], values: Sequence[Expr], written: frozenset[str]
) -> list[Expr]:
    """The largest subexpressions that loop `axis` over `stmts` (and its reducers' `values`) need not compute again.

    Loads are among them if nothing writes their buffer, no mask guards them, and no loop around them is without turns:
    what that reads may not be there.
    """
    search = _Invariants(frozenset((axis, *_bound(stmts))), written)
    inside = walk_once(*_values(_running(stmts)), *values, into=search.may_have_some)
    return [part for part in inside if isinstance(part, Op | Load) and search.fixed(part)]


def _running(stmts: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement but loops without turns, and what is in them; outer ones first."""
    for stmt in stmts:
        if isinstance(stmt, Loop | ReduceLoop | ScanLoop) and stmt.axis.extent.as_int() == 0:
            continue
        yield stmt
        yield from _running(inner_body(stmt))


class _Invariants:
    def __init__(self, changing: frozenset[str], written: frozenset[str]) -> None:
        self._changing = changing
        self._written = written
        self._memo: dict[int, bool] = {}

    def may_have_some(self, part: Node) -> bool:
        """Whether to look for invariants inside of the part: it is none itself."""
        return isinstance(part, Op) and not self.fixed(part)

    def fixed(self, part: Part) -> bool:
        known = self._memo.get(id(part))
        if known is None:
            known = self._memo[id(part)] = self._is_fixed(part)
        return known

    def _is_fixed(self, part: Part) -> bool:
        if isinstance(part, Local):
            return part.name not in self._changing
        if isinstance(part, Load) and (part.mask is not None or part.buffer.name in self._written):
            return False
        if isinstance(part, Index):
            return self._changing.isdisjoint(part.variables()) and all(map(self.fixed, part.data()))
        return all(map(self.fixed, part.parts()))


def _bound(stmts: Sequence[Stmt]) -> Iterator[str]:
    """Every name that statements bind: locals, reducers, loop variables."""
    for stmt in statements(stmts):
        if isinstance(stmt, Let | ScanLoop):
            yield stmt.name
        if isinstance(stmt, ReduceLoop):
            yield from (reducer.name for reducer in stmt.reducers)
        if isinstance(stmt, Loop | ReduceLoop | ScanLoop):
            yield stmt.axis.name


def is_plainly_nonnegative(index: Index) -> bool:
    """Whether it is plainly >= 0: variables and sizes are, and sums of them with positive coefficients."""
    return all(
        scale >= 0 and all(_nonnegative_atom(atom) for atom in monomial) for monomial, scale in index.terms
    )


def _nonnegative_atom(atom: object) -> bool:
    if isinstance(atom, FloorDiv):
        return is_plainly_nonnegative(atom.a)
    return isinstance(atom, Var | Sym | Mod | Indirect)
