"""The structure of a kernel with its names taken away: equal for kernels that compile to the same code."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import FloorDiv, Index, Indirect, Mod, Sym, Var
from lampwork.loops.ir.nodes import (
    Axis,
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
    ReduceLoop,
    Stmt,
    Store,
)


def structure(kernel: Kernel) -> Hashable:
    """A hashable description of `kernel` in which every name is replaced by a number, in order of appearance.

    Two kernels with equal structures do the same with parameters at the same positions. (Kernels may be the same and
    differ here if the terms of an index come in another order; they are compiled twice then.)
    """
    return _Namer().kernel(kernel)


def template_structure(definition: Gemm | PackB) -> tuple[Hashable, tuple[str, ...], tuple[str, ...]]:
    """The structure of a template's definition, and the names of its buffers and of its symbols in the order of their
    numbers.

    Two definitions of equal structure compile to the same code, for the buffers and symbols at the same places of the
    two orders.
    """
    namer = _Namer()
    key = namer.gemm(definition) if isinstance(definition, Gemm) else namer.pack(definition)
    return key, namer.names("buffer"), namer.names("size")


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
        axes = tuple(self._axis(axis) for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k))
        operands = (self._load(gemm.a), self._load(gemm.b), self._buffer(gemm.out))
        index = tuple(self._index(i) for i in gemm.index)
        value = self._expr(gemm.value)
        others = tuple(self._buffer(load.buffer) for load in loads(gemm.value))
        return ("gemm", len(gemm.batch), axes, operands, index, value, others, gemm.packed, tuple(self._rows))

    def pack(self, pack: PackB) -> Hashable:
        axes = tuple(self._axis(axis) for axis in (*pack.batch, pack.n, pack.k))
        panels = (pack.out.columns, pack.out.steps)
        return ("pack", axes, self._load(pack.b), self._buffer(pack.out), panels, tuple(self._rows))

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
            return ("store", self._number("buffer", stmt.buffer.name), index, self._expr(stmt.value))
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
            # The text tells -0.0 from 0.0 and makes NaN equal to itself.
            return ("const", repr(expr.value), expr.dtype)
        if isinstance(expr, Load):
            mask = None if expr.mask is None else self._expr(expr.mask)
            index = tuple(self._index(i) for i in expr.index)
            return ("load", self._number("buffer", expr.buffer.name), index, mask, repr(expr.other))
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
