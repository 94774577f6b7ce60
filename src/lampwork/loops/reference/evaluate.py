"""A slow numpy interpreter of definitions: the reference that tests compare everything else with.

Arrays are given and returned in the logical shape of their buffers. bf16 has no numpy dtype: a bf16 array is a float32
array of values that bf16 can hold. f16 and bf16 are computed in float32 and rounded where each `Op` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.index import ONE, Atom, FloorDiv, Index, Indirect, Mod, Sym
from lampwork.loops.ir.nodes import (
    FLOAT8,
    Attention,
    Axis,
    Buffer,
    CombineOp,
    Const,
    Definition,
    DType,
    Expr,
    Extern,
    Gemm,
    IndexValue,
    Load,
    Local,
    Map,
    PackB,
    Panels,
    Recurrence,
    RecurrenceGradient,
    Reduce,
    ReduceOp,
    Scan,
)
from lampwork.loops.ir.ops import OPS
from lampwork.loops.ir.winograd import TAPS, TRANSFORMS
from lampwork.loops.reference.float8 import round_float8
from lampwork.loops.reference.recurrence import Operands, run_gradient, run_recurrence, unpacked
from lampwork.standard import math

Array = NDArray[Any]
ExternCall = Callable[[Extern, Mapping[str, Array]], Mapping[str, Array]]
"""Runs an Extern: gets all arrays made so far, returns those of its outs."""

NUMPY_DTYPES: Mapping[DType, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.float32,
    "f8e4m3": np.float32,
    "f8e5m2": np.float32,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}


def round_bf16(x: Array) -> Array:
    """float32 values rounded to the nearest bf16, ties to even, as float32."""
    narrow = np.ascontiguousarray(x, dtype=np.float32)
    bits = narrow.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(narrow), narrow, rounded).reshape(np.shape(x)).astype(np.float32)


def convert(x: Array, dtype: DType) -> Array:
    """x in `dtype`, as torch's .to(dtype)."""
    target = NUMPY_DTYPES[dtype]
    with np.errstate(all="ignore"):
        if dtype == "bf16":
            return round_bf16(x.astype(np.float32))
        if dtype in FLOAT8:
            return round_float8(x.astype(np.float32), dtype)
        if dtype == "bool":
            return np.asarray(x != 0)
        if np.issubdtype(x.dtype, np.floating) and dtype in ("i16", "i8", "u8"):
            # What is too large overflows in the type that torch goes by.
            return x.astype(np.int64 if dtype == "u8" else np.int32).astype(target)
        return x.astype(target)


@dataclass(slots=True)
class Scope:
    """Where an expression is evaluated: loop variables (numbers, or arrays of one shape), sizes and locals.

    `load` reads a buffer at a point; lanes where `active` is false must not be read.
    """

    load: Callable[[Buffer, tuple[Array, ...], Array | None], Array]
    variables: dict[str, Array]
    sizes: Mapping[str, int]
    locals: dict[str, Array] = field(default_factory=dict[str, Array])

    def index(self, index: Index, active: Array | None = None) -> Array:
        """The value of an index expression.

        Raises:
            InvalidLoopsError: an unbound variable or size.
            IndexError: an index from data is out of range in an active lane.
        """
        total: Array = np.asarray(0, dtype=np.int64)
        for monomial, coefficient in index.terms:
            product: Array = np.asarray(coefficient, dtype=np.int64)
            for atom in monomial:
                product = product * self._atom(atom, active)
            total = total + product
        return total

    def _atom(self, atom: Atom, active: Array | None) -> Array:
        if isinstance(atom, FloorDiv):
            return self.index(atom.a, active) // self.index(atom.b, active)
        if isinstance(atom, Mod):
            return self.index(atom.a, active) % self.index(atom.b, active)
        if isinstance(atom, Indirect):
            value = self.expr(atom.value).astype(np.int64)
            outside = (value < 0) | (value >= self.index(atom.size, active))
            if active is not None:
                outside = outside & active
            if np.any(outside):
                raise IndexError(f"index {atom} is out of range")
            return np.where(outside, 0, value) if active is None else np.where(active, value, 0)
        if isinstance(atom, Sym):
            if atom.name not in self.sizes:
                raise InvalidLoopsError(f"the size {atom.name} has no value")
            return np.asarray(self.sizes[atom.name])
        if atom.name not in self.variables:
            raise InvalidLoopsError(f"the loop variable {atom.name} is not bound")
        return self.variables[atom.name]

    def expr(self, expr: Expr) -> Array:
        """The value of an expression: an array that broadcasts to the shape of the loop variables."""
        if isinstance(expr, Const):
            return convert(np.asarray(expr.value), expr.dtype)
        if isinstance(expr, IndexValue):
            return convert(self.index(expr.index), expr.dtype)
        if isinstance(expr, Local):
            if expr.name not in self.locals:
                raise InvalidLoopsError(f"the local {expr.name} is not bound")
            return self.locals[expr.name]
        if isinstance(expr, Load):
            return self._load(expr)
        args = [self.expr(arg) for arg in expr.args]
        if expr.name == "cast":
            return convert(args[0], expr.dtype)
        wide = [arg.astype(np.float32) if arg.dtype == np.float16 else arg for arg in args]
        with np.errstate(all="ignore"):
            return convert(np.asarray(OPS[expr.name].reference(*wide)), expr.dtype)

    def _load(self, load: Load) -> Array:
        active = None if load.mask is None else self.expr(load.mask)
        point = tuple(self.index(position, active) for position in load.index)
        if active is None:
            return self.load(load.buffer, point, None)
        inside = tuple(np.where(active, position, 0) for position in point)
        value = self.load(load.buffer, inside, np.broadcast_to(active, np.broadcast(active, *inside).shape))
        return np.where(active, value, convert(np.asarray(load.other), load.dtype))


def reduce_array(op: ReduceOp, value: Array, axes: tuple[int, ...]) -> Array:
    """The reduction of `value` over `axes` (adjacent and last for argmax, argmin), in value's dtype."""
    if op in ("argmax", "argmin"):
        flat = value.reshape(*value.shape[: value.ndim - len(axes)], -1)
        return np.asarray((np.argmax if op == "argmax" else np.argmin)(flat, axis=-1)).astype(np.int64)
    if op in ("any", "all"):
        return np.asarray((np.any if op == "any" else np.all)(value, axis=axes))
    if op in ("sum", "prod"):
        return np.asarray((np.sum if op == "sum" else np.prod)(value, axis=axes, dtype=value.dtype))
    start = lowest(value.dtype) if op == "max" else highest(value.dtype)
    return np.asarray((np.max if op == "max" else np.min)(value, axis=axes, initial=start)).astype(
        value.dtype
    )


def lowest(dtype: Any) -> Any:
    """What max starts from."""
    if np.issubdtype(dtype, np.floating):
        return -np.inf
    return False if dtype == np.bool_ else np.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """What min starts from."""
    if np.issubdtype(dtype, np.floating):
        return np.inf
    return True if dtype == np.bool_ else np.iinfo(dtype).max


def evaluate_definitions(
    definitions: Sequence[Definition],
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    externs: ExternCall | None = None,
) -> dict[str, Array]:
    """Every array the definitions make, and the inputs, by buffer name.

    Args:
        inputs: the arrays that no definition makes, in the logical shape of their buffers.
        sizes: values of the symbolic sizes.
        externs: runs Externs.

    Raises:
        InvalidLoopsError: an array is missing, or an Extern is met without `externs`.
        IndexError: an index from data is out of range.
    """
    arrays: dict[str, Array] = dict(inputs)
    scope = Scope(_logical_load(arrays), {}, sizes or {})
    for definition in definitions:
        scope.locals.clear()
        if isinstance(definition, Extern):
            if externs is None:
                raise InvalidLoopsError(f"no way to run the Extern {definition.target} was given")
            arrays.update(externs(definition, arrays))
        elif isinstance(definition, Map):
            if definition.onto is not None:
                arrays[definition.out.name] = arrays[definition.onto.name].copy()
            grid = _bind(scope, definition.axes)
            value = scope.expr(definition.value)
            _store(scope, arrays, definition.out, definition.index, value, grid, definition.combine)
        elif isinstance(definition, Reduce):
            _reduce(scope, arrays, definition)
        elif isinstance(definition, Scan):
            _scan(scope, arrays, definition)
        elif isinstance(definition, Gemm):
            _gemm(scope, arrays, definition)
        elif isinstance(definition, Recurrence):
            _recurrence(scope, arrays, definition)
        elif isinstance(definition, RecurrenceGradient):
            _recurrence_gradient(scope, arrays, definition)
        elif isinstance(definition, Attention):
            _attention(scope, arrays, definition)
        else:
            _pack(scope, arrays, definition)
    return arrays


def _logical_load(arrays: Mapping[str, Array]) -> Callable[[Buffer, tuple[Array, ...], Array | None], Array]:
    def load(buffer: Buffer, point: tuple[Array, ...], active: Array | None) -> Array:
        if buffer.name not in arrays:
            raise InvalidLoopsError(f"{buffer.name} is read before it is made")
        array = arrays[buffer.name]
        if active is not None and array.size == 0:
            return np.zeros(active.shape, array.dtype)
        for position, size in zip(point, array.shape, strict=True):
            if np.any(position < 0) or np.any(position >= size):
                raise InvalidLoopsError(f"{buffer.name} of shape {array.shape} is read outside of it")
        return array[point]

    return load


def _bind(scope: Scope, axes: Sequence[Axis]) -> tuple[int, ...]:
    """Binds every axis to an array along its own dimension; returns the shape of the grid."""
    shape = tuple(int(scope.index(axis.extent)) for axis in axes)
    scope.variables.clear()
    for dim, axis in enumerate(axes):
        lanes = [1] * len(axes)
        lanes[dim] = shape[dim]
        scope.variables[axis.name] = np.arange(shape[dim], dtype=np.int64).reshape(lanes)
    return shape


def _store(
    scope: Scope,
    arrays: dict[str, Array],
    out: Buffer,
    index: tuple[Index, ...],
    value: Array,
    grid: tuple[int, ...],
    combine: CombineOp | None = None,
) -> None:
    if out.name not in arrays:
        shape = tuple(int(scope.index(size)) for size in out.shape)
        arrays[out.name] = np.zeros(shape, NUMPY_DTYPES[out.dtype])
    point = tuple(np.broadcast_to(scope.index(position), grid) for position in index)
    put(arrays[out.name], point, np.broadcast_to(convert(value, out.dtype), grid), out.dtype, combine)


def put(
    array: Array, point: tuple[Array, ...], value: Array, dtype: DType, combine: CombineOp | None = None
) -> None:
    """array[point] = value, or combined with what is there, value after value."""
    if combine is None or combine == "put":
        array[point] = value
        return
    operation = _COMBINED[combine]
    with np.errstate(all="ignore"):
        if dtype not in ("f16", "bf16"):
            operation.at(array, point, value)
            return
        for place in np.ndindex(value.shape):
            at = tuple(position[place] for position in point)
            both = operation(np.float32(array[at]), np.float32(value[place]))
            array[at] = convert(np.asarray(both), dtype)


_COMBINED: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _reduce(scope: Scope, arrays: dict[str, Array], definition: Reduce) -> None:
    grid = _bind(scope, (*definition.axes, *definition.over))
    kept = len(definition.axes)
    value = np.broadcast_to(scope.expr(definition.value), grid)
    result = reduce_array(definition.op, value, tuple(range(kept, len(grid))))
    outer = _bind(scope, definition.axes)
    if definition.finish is not None:
        scope.locals["acc"] = result
        result = scope.expr(definition.finish)
    _store(scope, arrays, definition.out, definition.index, result, outer)


def _scan(scope: Scope, arrays: dict[str, Array], definition: Scan) -> None:
    grid = _bind(scope, (*definition.axes, definition.along))
    value = np.broadcast_to(scope.expr(definition.value), grid)
    running: dict[str, Callable[[Array], Array]] = {
        "sum": lambda x: np.cumsum(x, axis=-1, dtype=x.dtype),
        "prod": lambda x: np.cumprod(x, axis=-1, dtype=x.dtype),
        "max": lambda x: np.maximum.accumulate(x, axis=-1),
        "min": lambda x: np.minimum.accumulate(x, axis=-1),
    }
    _store(scope, arrays, definition.out, definition.index, running[definition.op](value), grid)


def _gemm(scope: Scope, arrays: dict[str, Array], definition: Gemm) -> None:
    dtype = {"f64": np.float64, "i8": np.int32}.get(definition.a.dtype, np.float32)
    left_grid = _bind(scope, definition.a_axes)
    if isinstance(definition.a.buffer, Panels):
        columns = _unpack(arrays[definition.a.buffer.name], left_grid[::-1], definition.a.buffer.steps, 0)
        left = np.swapaxes(columns, -1, -2).astype(dtype)
    else:
        left = np.broadcast_to(scope.expr(definition.a), left_grid).astype(dtype)
    rows = len(definition.batch) + max(1, len(definition.rows))
    batch, m = left_grid[: len(definition.batch)], math.prod(left_grid[len(definition.batch) : rows])
    columns = left_grid[-1:] if definition.is_depthwise else ()
    depth = math.prod(left_grid[rows : len(left_grid) - len(columns)])
    left = left.reshape(*batch, m, depth, *columns)
    if definition.group is not None:
        acc = _grouped(scope, definition, left)
    else:
        right_grid = _bind(scope, (*definition.batch, definition.k, definition.n))
        if definition.packed:
            right = _right(arrays[definition.b.buffer.name], right_grid[-2:], definition)
        else:
            right = np.broadcast_to(scope.expr(definition.b), right_grid)
        right = right.astype(dtype)
        acc = np.einsum("...mkn,...kn->...mn", left, right) if columns else np.matmul(left, right)
    grid = _bind(scope, (*definition.batch, definition.m, definition.n))
    scope.locals["acc"] = acc
    _store(scope, arrays, definition.out, definition.index, scope.expr(definition.value), grid)


def _grouped(scope: Scope, gemm: Gemm, left: Array) -> Array:
    """The sums of a product whose rows are in groups: (M, N)."""
    assert gemm.group is not None and gemm.ends is not None
    groups = _bind(scope, (gemm.group,))
    ends = np.broadcast_to(scope.expr(gemm.ends), groups)
    grid = _bind(scope, (gemm.group, gemm.k, gemm.n))
    right = np.broadcast_to(scope.expr(gemm.b), grid).astype(left.dtype)
    sums = np.zeros((left.shape[0], grid[-1]), left.dtype)
    start = 0
    for end, matrix in zip(ends, right, strict=True):
        sums[start:end] = left[start:end] @ matrix
        start = int(end)
    return sums


def _recurrence(scope: Scope, arrays: dict[str, Array], node: Recurrence) -> None:
    def read(load: Load | None, *axes: Axis) -> Array | None:
        if load is None:
            return None
        grid = _bind(scope, axes)
        return np.broadcast_to(scope.expr(load), grid)

    d, b, n, u, k = node.d, node.b, node.n, node.u, node.k
    operands = Operands(
        read(node.x, d, *node.steps, n),
        _matrix(scope, arrays, node.w, (d, k, n), node.gates),
        read(node.h, d, b, k),
        read(node.c, d, b, u),
        read(node.bias, d, u),
        None if node.project is None else _matrix(scope, arrays, node.project, (d, u, k), 1),
        read(node.count, node.t),
        read(node.start, node.t),
    )
    states, cells, kept = run_recurrence(node.kind, operands)
    grid = _bind(scope, (d, *node.steps, k))
    _store(scope, arrays, node.out, node.index, states, grid)
    if node.kept is not None:
        grid = _bind(scope, (d, *node.steps, node.p))
        _store(scope, arrays, node.kept, node.kept_index, kept, grid)
    shape = tuple(int(scope.index(size)) for size in node.memory.shape)
    arrays[node.memory.name] = np.zeros(shape, NUMPY_DTYPES[node.memory.dtype])
    if cells is not None:
        arrays[node.memory.name][:, :, 2, : cells.shape[-1]] = cells


def _recurrence_gradient(scope: Scope, arrays: dict[str, Array], node: RecurrenceGradient) -> None:
    def read(load: Load, *axes: Axis) -> Array:
        grid = _bind(scope, axes)
        return np.broadcast_to(scope.expr(load), grid)

    t, b, n, u = node.t, node.b, node.n, node.u
    weight = _matrix(scope, arrays, node.w, (Axis("d", ONE), n, u), 1)
    of_x, of_sums, first, cell = run_gradient(
        node.kind,
        read(node.grad, t, b, u),
        read(node.kept, t, b, node.p),
        weight.reshape(weight.shape[-2:]),
        None if node.cell is None else read(node.cell, b, u),
    )
    grid = _bind(scope, (t, b, n))
    _store(scope, arrays, node.out, node.index, of_x, grid)
    if node.sums is not None:
        _store(scope, arrays, node.sums, node.index, of_sums, grid)
    arrays[node.first.name], arrays[node.memory.name] = first, cell


def _matrix(
    scope: Scope, arrays: dict[str, Array], load: Load, axes: tuple[Axis, Axis, Axis], gates: int
) -> Array:
    """A weight of a Recurrence over its axes, whether it is packed or not."""
    grid = _bind(scope, axes)
    if isinstance(load.buffer, Panels):
        return unpacked(arrays[load.buffer.name], gates, grid[-1] // gates)
    return np.broadcast_to(scope.expr(load), grid)


def _attention(scope: Scope, arrays: dict[str, Array], definition: Attention) -> None:
    dtype = NUMPY_DTYPES[definition.value.dtype]
    batch, m, n, d, e = definition.batch, definition.m, definition.n, definition.d, definition.e

    def operand(load: Load, *axes: Axis) -> Array:
        grid = _bind(scope, (*batch, *axes))
        return np.broadcast_to(scope.expr(load), grid).astype(dtype)

    left, right, values = (
        operand(definition.q, m, d),
        operand(definition.k, d, n),
        operand(definition.v, n, e),
    )
    with np.errstate(all="ignore"):
        acc = np.matmul(left, right)
        grid = _bind(scope, (*batch, m, n))
        scope.locals["acc"] = acc
        scores = np.broadcast_to(scope.expr(definition.value), grid)
        top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
        total = np.sum(powers, axis=-1, keepdims=True)
        result = np.matmul(powers, values) / (np.where(total == 0, 1, total) if definition.closed else total)
        if definition.logs:
            result = np.concatenate([result, top + np.log(total)], axis=-1)
            e = replace(e, extent=e.extent + 1)
    grid = _bind(scope, (*batch, m, e))
    _store(scope, arrays, definition.out, definition.index, result, grid)


def _right(packed: Array, shape: tuple[int, ...], gemm: Gemm) -> Array:
    """B out of its panels: (batch..., K, N)."""
    if not gemm.outputs:
        return _unpack(packed, shape, gemm.steps, gemm.offset)
    by = TRANSFORMS[gemm.outputs]
    back = np.linalg.pinv(np.array([[float(each) for each in row] for row in by.weights]))
    points = _unpack(packed, (shape[0] // TAPS**2, shape[1]), 1, 0)
    return np.einsum("ip,jq,pqkn->ijkn", back, back, points).reshape(shape)


def _unpack(packed: Array, shape: tuple[int, ...], steps: int, offset: int) -> Array:
    """(batch..., panels, ceil(K / steps), columns * steps) -> (batch..., K, N)."""
    packed = packed[..., 1:, :] if offset else packed
    *batch, panels, groups, width = packed.shape
    apart = packed.reshape(*batch, panels, groups, width // steps, steps)
    rows = np.moveaxis(apart, (-4, -3, -2, -1), (-2, -4, -1, -3))
    return rows.reshape(*batch, groups * steps, -1)[..., : shape[0], : shape[1]]


def _pack(scope: Scope, arrays: dict[str, Array], definition: PackB) -> None:
    grid = _bind(scope, (*definition.batch, definition.k, definition.n))
    dense = np.broadcast_to(scope.expr(definition.b), grid)
    panels = -(-grid[-1] // definition.out.columns)
    columns, steps, offset = definition.out.columns, definition.out.steps, definition.out.offset
    groups = -(-grid[-2] // steps)
    padded = np.zeros((*grid[:-2], groups * steps, panels * columns), dense.dtype)
    padded[..., : grid[-2], : grid[-1]] = dense
    apart = padded.reshape(*grid[:-2], groups, steps, panels, columns)
    together = np.moveaxis(np.moveaxis(apart, -3, -1), -3, -4)
    rows = together.reshape(*grid[:-2], panels, groups, columns * steps)
    if offset:
        sums = together.reshape(*rows.shape[:-1], columns, steps).sum((-1, -3), dtype=np.int32)
        first = (np.int32(-offset) * sums).view(rows.dtype)[..., None, :]
        rows = np.concatenate((first, rows), -2)
    arrays[definition.out.name] = rows.copy()
