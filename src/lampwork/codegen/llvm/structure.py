"""The structure of a kernel with its names taken away: equal for kernels that compile to the same code."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from lampwork.literals import literal_text
from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import FloorDiv, Index, Indirect, Mod, Sym, Var
from lampwork.loops.ir.nodes import (
    Attention,
    Axis,
    Barrier,
    Buffer,
    Const,
    Expr,
    Gemm,
    IndexValue,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    PackB,
    Recurrence,
    RecurrenceGradient,
    ReduceLoop,
    Stmt,
    Store,
    Template,
    WhenLast,
)


def structure(kernel: Kernel) -> Hashable:
    """A hashable description of `kernel` in which every name is replaced by a number, in order of appearance.

    Two kernels with equal structures do the same with parameters at the same positions. (Kernels may be the same and
    differ here if the terms of an index come in another order; they are compiled twice then.)
    """
    return _Namer().kernel(kernel)


def template_structure(
    definition: Template, extra: Sequence[Index] = ()
) -> tuple[Hashable, tuple[str, ...], tuple[str, ...]]:
    """The structure of a template's definition and of `extra` indices over its axes, and the names of its buffers and
    of its symbols in the order of their numbers.

    Two definitions of equal structure compile to the same code, for the buffers and symbols at the same places of the
    two orders.
    """
    namer = _Namer()
    if isinstance(definition, Gemm):
        key = namer.gemm(definition)
    elif isinstance(definition, Attention):
        key = namer.attention(definition)
    elif isinstance(definition, Recurrence):
        key = namer.recurrence(definition)
    elif isinstance(definition, RecurrenceGradient):
        key = namer.recurrence_gradient(definition)
    else:
        key = namer.pack(definition)
    more = tuple(namer.index(each) for each in extra)
    return (key, more), namer.names("buffer"), namer.names("size")


class _Namer:
    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._indices: dict[int, Hashable] = {}
        self._exprs: dict[int, int] = {}
        # Every expression once, as a row that names its operands by row number: shared subtrees stay shared.
        self._rows: dict[Hashable, int] = {}

    def kernel(self, kernel: Kernel) -> Hashable:
        buffers = tuple(self._buffer(buffer) for buffer in (*kernel.params, *kernel.scratch))
        sizes = tuple(self._number("size", name) for name in kernel.sizes)
        body = self._statements(kernel.body)
        return (len(kernel.params), buffers, sizes, body, tuple(self._rows))

    def gemm(self, gemm: Gemm) -> Hashable:
        more = (*gemm.rows, *gemm.depth, *gemm.groups)
        axes = tuple(self._axis(axis) for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k, *more))
        ends = None if gemm.ends is None else self._load(gemm.ends)
        operands = (self._load(gemm.a), self._load(gemm.b), self._buffer(gemm.out), ends)
        index = tuple(self._index(i) for i in gemm.index)
        value = self._expr(gemm.value)
        others = tuple(self._buffer(load.buffer) for load in loads(gemm.value))
        counts = (len(gemm.batch), len(gemm.rows))
        shape = (counts, gemm.packed, gemm.turned, gemm.offset, gemm.outputs, gemm.variant)
        return ("gemm", shape, axes, operands, index, value, others, tuple(self._rows))

    def attention(self, attention: Attention) -> Hashable:
        own = (attention.m, attention.n, attention.d, attention.e)
        axes = tuple(self._axis(axis) for axis in (*attention.batch, *own))
        operands = tuple(self._load(load) for load in (attention.q, attention.k, attention.v))
        out, index = self._buffer(attention.out), tuple(self._index(i) for i in attention.index)
        value = self._expr(attention.value)
        others = tuple(self._buffer(load.buffer) for load in loads(attention.value))
        rest = (attention.closed, attention.variant, attention.logs, tuple(self._rows))
        return ("attention", axes, operands, out, index, value, others, *rest)

    def pack(self, pack: PackB) -> Hashable:
        axes = tuple(self._axis(axis) for axis in (*pack.batch, pack.n, pack.k))
        panels = (pack.out.columns, pack.out.steps, pack.out.offset)
        return ("pack", axes, self._load(pack.b), self._buffer(pack.out), panels, tuple(self._rows))

    def index(self, index: Index) -> Hashable:
        return self._index(index)

    def recurrence(self, node: Recurrence) -> Hashable:
        packed = () if node.s is None else (node.s,)
        axes = tuple(self._axis(axis) for axis in (node.d, node.t, node.b, node.n, node.u, node.k, *packed))
        loads = (node.x, node.w, node.h, node.c, node.bias, node.project, node.count, node.start)
        operands = tuple(None if load is None else self._load(load) for load in loads)
        outs = tuple(self._buffer(out) for out in outs_of(node))
        index = (tuple(self._index(i) for i in node.index), tuple(self._index(i) for i in node.kept_index))
        return ("recurrence", node.kind, axes, operands, outs, index, tuple(self._rows))

    def recurrence_gradient(self, node: RecurrenceGradient) -> Hashable:
        axes = tuple(self._axis(axis) for axis in (node.t, node.b, node.n, node.u, node.p))
        loads = (node.grad, node.kept, node.w, node.cell)
        operands = tuple(None if load is None else self._load(load) for load in loads)
        outs = tuple(self._buffer(out) for out in outs_of(node))
        index = tuple(self._index(i) for i in node.index)
        return ("recurrence gradient", node.kind, axes, operands, outs, index, tuple(self._rows))

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of one kind in the order of their numbers."""
        return tuple(name for each, name in self._numbers if each == kind)

    def _load(self, load: Load) -> Hashable:
        return (self._buffer(load.buffer), self._expr(load))

    def _number(self, kind: str, name: str) -> int:
        return self._numbers.setdefault((kind, name), len(self._numbers))

    def _buffer(self, buffer: Buffer) -> Hashable:
        number = self._number("buffer", buffer.name)
        strides = tuple(self._index(stride) for stride in buffer.strides)
        return (number, buffer.dtype, tuple(self._index(size) for size in buffer.shape), strides)

    def _axis(self, axis: Axis) -> Hashable:
        extent = self._index(axis.extent)
        return (self._number("axis", axis.name), extent)

    def _statements(self, stmts: Sequence[Stmt]) -> Hashable:
        return tuple(self._statement(stmt) for stmt in stmts)

    def _statement(self, stmt: Stmt) -> Hashable:
        if isinstance(stmt, Let):
            value = self._expr(stmt.value)
            return ("let", self._number("local", stmt.name), value)
        if isinstance(stmt, Store):
            index = tuple(self._index(i) for i in stmt.index)
            buffer = self._number("buffer", stmt.buffer.name)
            return ("store", buffer, index, self._expr(stmt.value), stmt.combine)
        if isinstance(stmt, Barrier):
            return ("barrier",)
        if isinstance(stmt, WhenLast):
            counter = self._index(stmt.counter), stmt.counters, stmt.among, stmt.near
            return ("last", counter, self._statements(stmt.body))
        axis = self._axis(stmt.axis)
        if isinstance(stmt, Loop):
            limit = None if stmt.limit is None else self._index(stmt.limit)
            return ("loop", axis, stmt.kind, limit, self._statements(stmt.body))
        body = self._statements(stmt.body)
        if isinstance(stmt, ReduceLoop):
            reducers = tuple(
                (self._number("local", r.name), r.op, self._expr(r.value), r.dtype) for r in stmt.reducers
            )
            position = None if stmt.position is None else self._expr(stmt.position)
            return ("reduce", axis, stmt.kind, body, reducers, position)
        value = self._expr(stmt.value)
        number = self._number("local", stmt.name)
        return ("scan", axis, body, number, stmt.op, value, stmt.dtype, self._statements(stmt.after))

    def _expr(self, expr: Expr) -> int:
        known = self._exprs.get(id(expr))
        if known is None:
            row = self._row(expr)
            known = self._rows.setdefault(row, len(self._rows))
            self._exprs[id(expr)] = known
        return known

    def _row(self, expr: Expr) -> Hashable:
        if isinstance(expr, Op):
            return (expr.name, expr.dtype, tuple(self._expr(arg) for arg in expr.args))
        if isinstance(expr, Const):
            # The text tells -0.0 from 0.0, and makes NaN equal to NaN with the same bits.
            return ("const", literal_text(expr.value), expr.dtype)
        if isinstance(expr, Load):
            mask = None if expr.mask is None else self._expr(expr.mask)
            index = tuple(self._index(i) for i in expr.index)
            return ("load", self._number("buffer", expr.buffer.name), index, mask, literal_text(expr.other))
        if isinstance(expr, Local):
            return ("local", self._number("local", expr.name), expr.dtype)
        assert isinstance(expr, IndexValue)
        return ("index", self._index(expr.index), expr.dtype)

    def _index(self, index: Index) -> Hashable:
        known = self._indices.get(id(index))
        if known is None:
            known = tuple(
                (coefficient, tuple(self._atom(atom) for atom in monomial))
                for monomial, coefficient in index.terms
            )
            self._indices[id(index)] = known
        return known

    def _atom(self, atom: Any) -> Hashable:
        if isinstance(atom, Var):
            return self._number("axis", atom.name)
        if isinstance(atom, Sym):
            return ("size", self._number("size", atom.name))
        if isinstance(atom, Indirect):
            return ("at", self._expr(atom.value), self._index(atom.size))
        assert isinstance(atom, FloorDiv | Mod)
        return (type(atom).__name__, self._index(atom.a), self._index(atom.b))
