"""What definitions and kernels must obey. A violation is a bug in lowering, fusion or scheduling."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.definitions import name_of, outs_of, points, reads_of
from lampwork.loops.ir.expr import definition_exprs, indices, loads
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import statements, stmt_exprs
from lampwork.loops.ir.nodes import (
    FLOAT8,
    GATES,
    KEPT,
    Attention,
    Axis,
    Barrier,
    Buffer,
    CombineOp,
    Const,
    Definition,
    Expr,
    Extern,
    Gemm,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Map,
    Op,
    PackB,
    Panels,
    Recurrence,
    RecurrenceGradient,
    Reduce,
    ReduceLoop,
    Stmt,
    Store,
    WhenLast,
)
from lampwork.loops.ir.ops import OPS
from lampwork.loops.ir.printing import format_axes
from lampwork.loops.ir.traverse import walk_once

_FLOATS = ("f64", "f32", "f16", "bf16")
_MOVING = frozenset({"where", "require"})
"""What takes elements of float8 as they are; conversions aside, all else takes what they were converted to."""


def verify_definitions(definitions: Sequence[Definition]) -> None:
    """Raises InvalidLoopsError naming the definition that is wrong: an unbound variable or local, a wrong number of
    indices, operands whose dtypes disagree, a buffer that two definitions make or that is read before it is made."""
    makes = {out.name for definition in definitions for out in outs_of(definition)}
    made: set[str] = set()
    _verify_updates(definitions)
    for definition in definitions:
        outs = outs_of(definition)
        where = outs[0].name if outs else getattr(definition, "target", "?")
        for out in outs:
            if out.name in made:
                raise InvalidLoopsError(f"{out.name} is made twice")
        if not isinstance(definition, Extern):
            _verify_definition(definition, where)
        for expr in definition_exprs(definition):
            for load in loads(expr):
                if load.buffer.name in makes - made:
                    raise InvalidLoopsError(f"{where}: {load.buffer.name} is read before it is made")
        made.update(out.name for out in outs)


def _verify_updates(definitions: Sequence[Definition]) -> None:
    """What an update has the memory of is made by a definition, and nobody else reads it."""
    updates = {
        each.onto.name: each for each in definitions if isinstance(each, Map) and each.combine and each.onto
    }
    if not updates:
        return
    made: set[str] = set()
    for definition in definitions:
        read = reads_of(definition)
        for name in updates.keys() & read:
            if definition is not updates[name]:
                raise InvalidLoopsError(f"{name_of(definition)}: {name} is read, and updated in place")
            if name not in made:
                raise InvalidLoopsError(
                    f"{name_of(definition)}: {name} is updated, and no definition has made it"
                )
        made.update(out.name for out in outs_of(definition))


def _verify_definition(definition: Definition, where: str) -> None:
    if isinstance(definition, Map):
        axes = definition.axes
        _verify_axes(axes, where)
        _verify_place(definition.out, definition.index, axes, where)
        checker = _Checker(where, _names(axes), set())
        checker.check(definition.value)
        for position in definition.index:
            checker.index(position)
        _verify_write(definition, where)
    elif isinstance(definition, Reduce):
        _verify_axes((*definition.axes, *definition.over), where)
        _verify_place(definition.out, definition.index, definition.axes, where)
        _Checker(where, _names((*definition.axes, *definition.over)), set()).check(definition.value)
        if definition.value.dtype in FLOAT8:
            raise InvalidLoopsError(f"{where}: {definition.op} of {definition.value.dtype}")
        if definition.finish is not None:
            _Checker(where, _names(definition.axes), {"acc"}).check(definition.finish)
    elif isinstance(definition, Gemm):
        outer = (*definition.batch, definition.m, definition.n)
        _verify_axes((*outer, definition.k), where)
        _verify_place(definition.out, definition.index, outer, where)
        _verify_axes(definition.a_axes, where)
        for whole, digits in ((definition.m, definition.rows), (definition.k, definition.depth)):
            if digits and points(digits) != whole.extent:
                raise InvalidLoopsError(f"{where}: {format_axes(digits)} are not the digits of {whole.name}")
        if definition.turned and (definition.packed or definition.rows or definition.batch):
            raise InvalidLoopsError(
                f"{where}: rows in panels are those of a plain product with a plain matrix"
            )
        _verify_groups(definition, where)
        if not definition.turned:
            _Checker(where, _names(definition.a_axes), set()).check(definition.a)
        if not definition.packed:
            right = (*definition.batch, *definition.groups, definition.k, definition.n)
            _Checker(where, _names(right), set()).check(definition.b)
        _Checker(where, _names(outer), {"acc"}).check(definition.value)
    elif isinstance(definition, Attention):
        _verify_attention(definition, where)
    elif isinstance(definition, PackB):
        axes = (*definition.batch, definition.k, definition.n)
        _verify_axes(axes, where)
        _Checker(where, _names(axes), set()).check(definition.b)
        if definition.out.columns < 1 or definition.out.steps < 1:
            raise InvalidLoopsError(
                f"{where}: panels of {definition.out.columns} columns, {definition.out.steps} steps"
            )
    elif isinstance(definition, Recurrence):
        _verify_recurrence(definition, where)
    elif isinstance(definition, RecurrenceGradient):
        _verify_recurrence_gradient(definition, where)
    elif not isinstance(definition, Extern):
        axes = (*definition.axes, definition.along)
        _verify_axes(axes, where)
        _verify_place(definition.out, definition.index, axes, where)
        _Checker(where, _names(axes), set()).check(definition.value)


def _verify_groups(gemm: Gemm, where: str) -> None:
    if gemm.group is None or gemm.ends is None:
        if gemm.group is not gemm.ends:
            raise InvalidLoopsError(f"{where}: groups of rows have an axis and ends")
        return
    _verify_axes((gemm.group, gemm.m, gemm.n, gemm.k), where)
    _Checker(where, _names((gemm.group,)), set()).check(gemm.ends)
    if gemm.ends.dtype not in ("i32", "i64"):
        raise InvalidLoopsError(f"{where}: ends of groups of dtype {gemm.ends.dtype}")
    if gemm.batch or gemm.rows or gemm.packed or gemm.turned:
        raise InvalidLoopsError(
            f"{where}: groups of rows are those of a plain product, which reads b as it lies"
        )


def _verify_write(definition: Map, where: str) -> None:
    onto, out = definition.onto, definition.out
    if onto is not None and (onto.dtype, onto.shape, onto.strides) != (out.dtype, out.shape, out.strides):
        raise InvalidLoopsError(
            f"{where}: {out.name} is laid out otherwise than {onto.name}, which it is a write to"
        )
    if definition.combine is not None:
        if onto is None:
            raise InvalidLoopsError(f"{where}: a {definition.combine} with nothing")
        _verify_combine(definition.combine, out, where)


def _verify_combine(op: CombineOp, buffer: Buffer, where: str) -> None:
    if op != "put" and buffer.dtype == "bool":
        raise InvalidLoopsError(f"{where}: a {op} of {buffer.dtype} in memory")


def _verify_recurrence(definition: Recurrence, where: str) -> None:
    d, t, b, n, u, k = axes = (
        *(definition.d, definition.t, definition.b),
        *(definition.n, definition.u, definition.k),
    )
    packed = () if definition.s is None else (definition.s,)
    _verify_axes((*axes, *packed), where)
    _verify_place(definition.out, definition.index, (d, *definition.steps, k), where)
    if definition.kept is not None:
        _verify_place(definition.kept, definition.kept_index, (d, *definition.steps, definition.p), where)
    operands = {
        (d, *definition.steps, n): definition.x,
        (t,): definition.count,
        (d, k, n): definition.w,
        (d, b, k): definition.h,
        (d, b, u): definition.c,
        (d, u): definition.bias,
        (d, u, k): definition.project,
    }
    for bound, load in operands.items():
        if load is not None and not isinstance(load.buffer, Panels):
            _Checker(where, _names(bound), set()).check(load)
    if definition.start is not None:
        _Checker(where, _names((t,)), set()).check(definition.start)
    if len({definition.s is None, definition.count is None, definition.start is None}) > 1:
        raise InvalidLoopsError(f"{where}: a packed sequence has an axis, counts and starts")
    for load in (definition.count, definition.start):
        if load is not None and load.dtype != "i64":
            raise InvalidLoopsError(f"{where}: {load.buffer.name} of dtype {load.dtype} counts elements")
    if definition.n.extent != definition.u.extent * definition.gates:
        raise InvalidLoopsError(f"{where}: {definition.n.extent} columns are not {definition.gates} gates")
    if definition.project is None and u.extent != k.extent:
        raise InvalidLoopsError(f"{where}: a state of {k.extent} from {u.extent} units needs a projection")
    if (definition.c is None) != (definition.kind != "lstm") or (
        definition.bias and definition.kind != "gru"
    ):
        raise InvalidLoopsError(f"{where}: a {definition.kind} has other operands")


def _verify_recurrence_gradient(definition: RecurrenceGradient, where: str) -> None:
    t, b, n, u, p = (definition.t, definition.b, definition.n, definition.u, definition.p)
    _verify_axes((t, b, n, u, p), where)
    for buffer in (definition.out, definition.sums):
        if buffer is not None:
            _verify_place(buffer, definition.index, (t, b, n), where)
    operands = {
        (t, b, u): definition.grad,
        (t, b, p): definition.kept,
        (n, u): definition.w,
        (b, u): definition.cell,
    }
    for bound, load in operands.items():
        if load is not None and not isinstance(load.buffer, Panels):
            _Checker(where, _names(bound), set()).check(load)
    kind = definition.kind
    if (n.extent, p.extent) != (u.extent * GATES[kind], u.extent * max(KEPT[kind], 1)):
        raise InvalidLoopsError(f"{where}: {n.extent} gates from {p.extent} numbers of {u.extent} units")
    if (definition.sums is None) != (kind != "gru") or (definition.cell and kind != "lstm"):
        raise InvalidLoopsError(f"{where}: the gradient of a {kind} has other operands")


def _verify_attention(attention: Attention, where: str) -> None:
    batch, m, n, d, e = attention.batch, attention.m, attention.n, attention.d, attention.e
    _verify_axes((*batch, m, n, d, e), where)
    _verify_place(attention.out, attention.index, (*batch, m, e), where)
    for load, axes in ((attention.q, (m, d)), (attention.k, (n, d)), (attention.v, (n, e))):
        _Checker(where, _names((*batch, *axes)), set()).check(load)
    _Checker(where, _names((*batch, m, n)), {"acc"}).check(attention.value)
    if attention.logs and (attention.index[-1], attention.out.shape[-1]) != (Index.var(e.name), e.extent + 1):
        raise InvalidLoopsError(f"{where}: no column for logarithms after those of {e.name}")
    sums = "f64" if attention.q.dtype == "f64" else "f32"
    if attention.value.dtype != sums:
        raise InvalidLoopsError(f"{where}: the scores are {attention.value.dtype}, not {sums}")


def _names(axes: Sequence[Axis]) -> set[str]:
    return {axis.name for axis in axes}


def _verify_axes(axes: Sequence[Axis], where: str) -> None:
    if len(_names(axes)) != len(axes):
        raise InvalidLoopsError(
            f"{where}: two axes have one name among {', '.join(axis.name for axis in axes)}"
        )
    for axis in axes:
        if axis.extent.variables():
            raise InvalidLoopsError(
                f"{where}: the extent {axis.extent} of {axis.name} depends on loop variables"
            )


def _verify_place(out: Buffer, index: Sequence[Index], axes: Sequence[Axis], where: str) -> None:
    if len(index) != len(out.shape):
        raise InvalidLoopsError(f"{where}: expected {len(out.shape)} indices, got {len(index)}")
    for position in index:
        unbound = position.variables() - _names(axes)
        if unbound:
            raise InvalidLoopsError(f"{where}: {', '.join(sorted(unbound))} is not bound in the store index")


class _Checker:
    """Checks expressions under bound variables and locals."""

    def __init__(self, where: str, variables: Collection[str], bound: Collection[str]) -> None:
        self.where, self.variables, self.bound = where, variables, bound

    def fail(self, message: str) -> None:
        raise InvalidLoopsError(f"{self.where}: {message}")

    def check(self, expr: Expr) -> None:
        for part in walk_once(expr):
            if isinstance(part, Local) and part.name not in self.bound:
                self.fail(f"the local {part.name} is not bound")
            for index in part.places():
                self.index(index)
            if isinstance(part, Const) and part.dtype in FLOAT8:
                self.fail(f"a constant of {part.dtype}")
            if isinstance(part, Load):
                self.load(part)
            elif isinstance(part, Op):
                self.op(part.name, part.args, part.dtype)

    def load(self, load: Load) -> None:
        if len(load.index) != len(load.buffer.shape):
            rank = len(load.buffer.shape)
            self.fail(f"{load.buffer.name} is read with {len(load.index)} indices instead of {rank}")
        if load.mask is not None and load.mask.dtype != "bool":
            self.fail(f"the mask of a load of {load.buffer.name} is {load.mask.dtype}, not bool")
        if load.dtype in FLOAT8 and load.other != 0:
            self.fail(f"{load.buffer.name} of {load.dtype} is read as {load.other} elsewhere")

    def index(self, index: Index) -> None:
        unbound = index.variables() - set(self.variables)
        if unbound:
            self.fail(f"the loop variable {', '.join(sorted(unbound))} is not bound")
        for indirect in index.indirects():
            if indirect.value.dtype in (*_FLOATS, *FLOAT8, "bool"):
                self.fail(f"an index is taken from {indirect.value.dtype} data")

    def op(self, name: str, args: Sequence[Expr], dtype: str) -> None:
        info = OPS.get(name)
        if info is None:
            self.fail(f"there is no operation {name}")
            return
        if len(args) != info.arity:
            self.fail(f"{name} takes {info.arity} operands, got {len(args)}")
        operands = {"where": args[1:], "require": args[:1]}.get(name, args)
        dtypes = {arg.dtype for arg in operands}
        if len(dtypes) != 1:
            self.fail(f"the operands of {name} are {', '.join(sorted(dtypes))}")
        if name == "where" and args[0].dtype != "bool":
            self.fail(f"the condition of where is {args[0].dtype}, not bool")
        if name == "require" and args[1].dtype != "bool":
            self.fail(f"the condition of require is {args[1].dtype}, not bool")
        operand = operands[0].dtype
        both = {operand, dtype}
        is_moved = name in _MOVING or (name == "cast" and both - FLOAT8 == {"f32"})
        if FLOAT8 & both and not is_moved:
            self.fail(f"{name} makes {dtype} of {operand}")
        if info.result == "bits" and (operand, dtype) != ("i64", "f64"):
            self.fail(f"{name} makes f64 of i64, not {dtype} of {operand}")
        if info.result == "word" and (operand, dtype) != ("i64", "i32"):
            self.fail(f"{name} makes i32 of i64, not {dtype} of {operand}")
        if info.result == "bool" and dtype != "bool":
            self.fail(f"the result of {name} is bool, not {dtype}")
        if info.result in ("same", "float") and dtype != operand:
            self.fail(f"the result of {name} is {operand}, not {dtype}")
        if info.result == "float" and operand not in _FLOATS:
            self.fail(f"{name} of {operand}")


def verify_kernel(kernel: Kernel) -> None:
    """Raises InvalidLoopsError naming what is wrong: an unknown buffer, an unbound variable or local, an inner parallel
    loop, a vector loop inside a vector loop, operands whose dtypes disagree."""
    known = {buffer.name for buffer in (*kernel.params, *kernel.scratch)}
    if len(known) != len(kernel.params) + len(kernel.scratch):
        raise InvalidLoopsError(f"{kernel.name}: two buffers have one name")
    parallel = [s for s in kernel.body if isinstance(s, Loop) and s.kind.startswith("parallel")]
    if parallel and len(kernel.body) != 1:
        raise InvalidLoopsError(f"{kernel.name}: a parallel loop must stand alone")
    _verify_combined(kernel)
    _verify_body(kernel, kernel.body, known, frozenset(), set(), vector=False, top=True)


def _verify_combined(kernel: Kernel) -> None:
    """What threads update in any order is not read meanwhile, nor stored to."""
    stores = [stmt for stmt in statements(kernel.body) if isinstance(stmt, Store)]
    ops: dict[str, CombineOp] = {}
    for stmt in stores:
        if stmt.combine is not None:
            _verify_combine(stmt.combine, stmt.buffer, kernel.name)
            ops[stmt.buffer.name] = stmt.combine
    if not ops:
        return
    read: set[str] = set()
    for stmt in statements(kernel.body):
        exprs = [stmt.value] if isinstance(stmt, Store) else stmt_exprs(stmt)
        read |= {load.buffer.name for load in loads(*exprs)}
    for stmt in stores:
        name = stmt.buffer.name
        if name in ops and (name in read or stmt.combine != ops[name]):
            raise InvalidLoopsError(f"{kernel.name}: {name} is updated, and used otherwise")
    for scratch in kernel.scratch:
        if scratch.name in ops:
            raise InvalidLoopsError(f"{kernel.name}: {scratch.name} is updated, and is scratch")


def _verify_body(
    kernel: Kernel,
    body: Sequence[Stmt],
    known: Collection[str],
    variables: frozenset[str],
    bound: set[str],
    *,
    vector: bool,
    top: bool,
    ends: bool = False,
) -> None:
    """Checks statements in order; `bound` grows by what they bind. ends: an iteration of the parallel loop does."""
    for stmt in body:
        if isinstance(stmt, Let | Store):
            _verify_exprs(kernel, stmt_exprs(stmt), known, variables, bound)
            if isinstance(stmt, Let):
                bound.add(stmt.name)
            elif stmt.value.dtype != stmt.buffer.dtype:
                message = f"{stmt.value.dtype} is stored to {stmt.buffer.name} of {stmt.buffer.dtype}"
                raise InvalidLoopsError(f"{kernel.name}: {message}")
            continue
        if isinstance(stmt, Barrier):
            if vector:
                raise InvalidLoopsError(f"{kernel.name}: a barrier where threads do not run together")
            continue
        if isinstance(stmt, WhenLast):
            _verify_last(kernel, stmt, variables, is_end=stmt is body[-1] and ends)
            _verify_body(kernel, stmt.body, known, variables, set(bound), vector=False, top=False, ends=True)
            continue
        if stmt.axis.name in variables:
            raise InvalidLoopsError(f"{kernel.name}: {stmt.axis.name} is bound by two loops")
        is_vector = isinstance(stmt, Loop | ReduceLoop) and stmt.kind in ("vector", "parallel-vector")
        if is_vector and vector:
            raise InvalidLoopsError(f"{kernel.name}: a vector loop {stmt.axis.name} inside a vector loop")
        if isinstance(stmt, Loop):
            if stmt.kind.startswith("parallel") and not top:
                raise InvalidLoopsError(f"{kernel.name}: the parallel loop {stmt.axis.name} is not outermost")
            if stmt.limit is not None and stmt.limit.variables() - variables:
                raise InvalidLoopsError(f"{kernel.name}: the limit of {stmt.axis.name} is not bound")
        inside = variables | {stmt.axis.name}
        local = set(bound)
        is_parallel = isinstance(stmt, Loop) and stmt.kind == "parallel"
        _verify_body(
            kernel, stmt.body, known, inside, local, vector=vector or is_vector, top=False, ends=is_parallel
        )
        _verify_exprs(kernel, stmt_exprs(stmt), known, inside, local)
        if isinstance(stmt, ReduceLoop):
            bound.update(reducer.name for reducer in stmt.reducers)
        elif not isinstance(stmt, Loop):
            local.add(stmt.name)
            _verify_body(kernel, stmt.after, known, inside, local, vector=vector, top=False)


def _verify_last(kernel: Kernel, stmt: WhenLast, variables: frozenset[str], *, is_end: bool) -> None:
    if not is_end:
        raise InvalidLoopsError(f"{kernel.name}: a WhenLast is not the end of an iteration")
    if stmt.among < 1 or stmt.counters < 1 or stmt.counter.variables() - variables:
        raise InvalidLoopsError(f"{kernel.name}: a WhenLast counts nothing")


def _verify_exprs(
    kernel: Kernel,
    exprs: Sequence[Expr],
    known: Collection[str],
    variables: frozenset[str],
    bound: Collection[str],
) -> None:
    checker = _Checker(kernel.name, variables, bound)
    for expr in exprs:
        checker.check(expr)
        for load in loads(expr):
            if load.buffer.name not in known:
                raise InvalidLoopsError(
                    f"{kernel.name}: {load.buffer.name} is neither a parameter nor scratch"
                )
        missing = {name for index in indices(expr) for name in index.symbols()} - set(kernel.sizes)
        if missing:
            raise InvalidLoopsError(
                f"{kernel.name}: the size {', '.join(sorted(missing))} is not a parameter"
            )
