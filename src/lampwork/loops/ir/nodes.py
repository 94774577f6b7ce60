"""The loop language: its whole grammar on one screen.

Two levels share one expression language.

*Definitions* (what `lower` makes, what `fuse` works on) say what each buffer holds, one definition a buffer::

    Map     out[index] = value                         for every point of axes
    Reduce  out[axes]  = op over `over` of value       (several `Reducer`s may share the domain)
    Scan    out[axes]  = running op along one axis
    Gemm    out[index] = value(acc),  acc = sum_k a * b    (value is the epilogue)
    PackB   out = b rearranged into panels for Gemm
    Extern  outs = an ATen call, for what no rule covers

*Kernels* (what `schedule` makes of a fusion group, what `codegen` prints as LLVM) are loop trees: `Loop`, `ReduceLoop`,
`Let`, `Store`.

Index expressions (`Index`, see index.py) are integer polynomials over loop variables and symbolic sizes; a size is an
`Index` without loop variables. All nodes are immutable; equality is structural; names come from counters. They are
data: traverse.py walks and rebuilds them, by the annotations of their fields.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from lampwork.loops.ir.polynomial import Index
from lampwork.loops.ir.traverse import Expression, Node, Statement
from lampwork.records import record

DType = Literal["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"]


@record
class Buffer:
    """A strided array. `strides` are in elements; element [i, j] lies at i*strides[0] + j*strides[1]."""

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]


@record
class Panels(Buffer):
    """B of a Gemm rearranged by a `PackB`, zero-padded, for the templates to read: its shape is
    (batch..., ceil(N / columns), K, columns)."""

    columns: int


@record
class Opaque(Buffer):
    """A tensor that only Externs read: of a dtype that the language lacks, or in a layout of oneDNN's own."""

    dtype: DType = "u8"
    shape: tuple[Index, ...] = ()
    strides: tuple[Index, ...] = ()


@record
class Axis(Node):
    """A loop variable and its extent: the variable runs over 0 <= var < extent."""

    name: str
    extent: Index


# --- expressions ------------------------------------------------------------------------------------------------------


@record
class Const(Expression):
    value: float | int | bool
    dtype: DType

    def __str__(self) -> str:
        return repr(self.value)


@record
class Load(Expression):
    """buffer[index]. Where `mask` (a bool expression) is false nothing is read and the value is `other`."""

    buffer: Buffer
    index: tuple[Index, ...]
    mask: Expr | None = None
    other: float | int | bool = 0

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def __str__(self) -> str:
        place = f"{self.buffer.name}[{', '.join(map(str, self.index))}]"
        return place if self.mask is None else f"({place} if {self.mask} else {self.other!r})"


@record
class IndexValue(Expression):
    """The value of an index expression as a number (arange, causal masks)."""

    index: Index
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}({self.index})"


@record
class Local(Expression):
    """A scalar bound by an enclosing `Let` or `ReduceLoop`, or a template's accumulator."""

    name: str
    dtype: DType

    def __str__(self) -> str:
        return self.name


@record
class Op(Expression):
    """A pointwise operation. `name` is a key of `ops.OPS`, which gives arity, dtype rule and exact meaning."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType

    def __str__(self) -> str:
        name = self.dtype if self.name == "cast" else self.name
        return f"{name}({', '.join(map(str, self.args))})"


Expr = Const | Load | IndexValue | Local | Op


# --- definitions ------------------------------------------------------------------------------------------------------

ReduceOp = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]


@record
class Map(Node):
    """before fusion: one per pointwise ATen op. `index` says where in `out` the point `axes` is stored."""

    out: Buffer
    axes: tuple[Axis, ...]
    index: tuple[Index, ...]
    value: Expr


@record
class Reduce(Node):
    """out[index(axes)] = finish(op over `over` of value).

    `value` has the accumulation dtype (f32 for f16/bf16/f32, f64 for f64, i64 for integers). max/min/argmax/argmin
    propagate NaN as torch does; argmax/argmin give i64 positions in the row-major order of `over`, first wins.
    `finish`, if any, is an expression over Local("acc") (mean: acc / n), stored converted to out.dtype.
    """

    out: Buffer
    axes: tuple[Axis, ...]
    over: tuple[Axis, ...]
    index: tuple[Index, ...]
    op: ReduceOp
    value: Expr
    finish: Expr | None = None


@record
class Scan(Node):
    """out[axes, along] = op of value over along' <= along (cumsum, cumprod, cummax, cummin)."""

    out: Buffer
    axes: tuple[Axis, ...]
    along: Axis
    index: tuple[Index, ...]
    op: Literal["sum", "prod", "max", "min"]
    value: Expr


@record
class Gemm(Node):
    """out[index(batch, m, n)] = value, with Local("acc") = sum over k of a(batch, m, k) * b(batch, k, n).

    `a` and `b` are plain loads whose index uses batch, m, k and batch, k, n; `value` starts as Local("acc") and grows
    by epilogue fusion (bias, activation, residual): its other loads are indexed by batch, m, n.
    Where b's buffer is `Panels`, b.index says where in the buffer that was packed it would be read.
    """

    out: Buffer
    batch: tuple[Axis, ...]
    m: Axis
    n: Axis
    k: Axis
    a: Load
    b: Load
    index: tuple[Index, ...]
    value: Expr

    @property
    def packed(self) -> int:
        """The columns of a panel of b; 0: b is read as it lies."""
        return self.b.buffer.columns if isinstance(self.b.buffer, Panels) else 0


@record
class PackB(Node):
    """out[batch, n // columns, k, n % columns] = b(batch, k, n), zero where n is past the end."""

    out: Panels
    batch: tuple[Axis, ...]
    n: Axis
    k: Axis
    b: Load

    @property
    def panel(self) -> int:
        """The columns of a panel of out."""
        return self.out.columns


@record
class View:
    """A tensor argument of an Extern: `buffer` seen through shape, strides and offset (elements)."""

    buffer: Buffer
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index


@record
class FloatOfBits:
    """An argument of an Extern: the float64 with the bits of the int64 that the index is."""

    bits: Index


@record
class Extern:
    """outs = target(*args, **kwargs): an ATen (or mkldnn, or custom) operator called through torch's dispatcher.

    `target` is the qualified name with overload ("aten::convolution.default"); arguments are Views, nested lists and
    tuples of them, Index and FloatOfBits for numbers that are not known yet, and plain values (numbers, bools, strings,
    None, dtypes, devices, layouts, memory formats).
    `mutates`: positions of arguments that the operator writes to (`copy_` into an input).
    `random`: it draws from torch's generator: it is never dropped, and no two such change places.
    `raises`: it raises for some data, so it is never dropped either.
    """

    outs: tuple[Buffer, ...]
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    mutates: tuple[int, ...] = ()
    origin: str = ""
    random: bool = False
    raises: bool = True


Definition = Map | Reduce | Scan | Gemm | PackB | Extern


# --- kernels ----------------------------------------------------------------------------------------------------------

LoopKind = Literal["parallel", "parallel-vector", "serial", "vector"]


@record
class Let(Statement):
    name: str
    value: Expr


@record
class Store(Statement):
    """buffer[index] = value. A store to a scratch buffer of the kernel is private to the thread."""

    buffer: Buffer
    index: tuple[Index, ...]
    value: Expr


@record
class Loop(Statement):
    """for axis in range(axis.extent): body.

    parallel: only outermost, at most one per kernel; the runtime splits its range between threads.
    vector: the emitter takes ISA-width steps and a tail; its iterations must be independent.
    parallel-vector: both at once, the flat pointwise loop: steps of ISA width and a tail over [begin, end).

    No vector loop (Loop or ReduceLoop) holds another one. `limit`, if any, may use outer variables: the loop runs to
    min(extent, limit). It cuts the last block of a blocked loop; parallel loops have none.
    """

    axis: Axis
    kind: LoopKind
    body: tuple[Stmt, ...]
    limit: Index | None = None


@record
class Reducer(Node):
    """Binds `name` (and `name`'s position for argmax/argmin: `op` decides) to op over the loop of value."""

    name: str
    op: ReduceOp
    value: Expr
    dtype: DType


@record
class ReduceLoop(Statement):
    """for axis in range(axis.extent): body; each reducer combines its value. Afterwards the names are bound.

    kind "serial" or "vector" (the axis itself is vectorized, with a horizontal reduction at the end). Nested: an inner
    ReduceLoop in `body` binds names that this loop's reducers use. argmax/argmin reducers yield the position
    `position` (an i64 expression; the row-major place in the whole reduced domain) of the winner.
    """

    axis: Axis
    kind: LoopKind
    body: tuple[Stmt, ...]
    reducers: tuple[Reducer, ...]
    position: Expr | None = None


@record
class ScanLoop(Statement):
    """for axis in order: body; name = op(name, value); then `after` (which may read name)."""

    axis: Axis
    body: tuple[Stmt, ...]
    name: str
    op: Literal["sum", "prod", "max", "min"]
    value: Expr
    dtype: DType
    after: tuple[Stmt, ...]


Stmt = Let | Store | Loop | ReduceLoop | ScanLoop


@record
class Kernel(Node):
    """One generated function.

    ABI: `int64_t name(void **buffers, const int64_t *sizes, int64_t begin, int64_t end)`; `buffers` in the order of
    `params`, `sizes` in the order of `sizes` (symbol names), [begin, end) a part of the parallel loop's range (0, 1 if
    there is none). Returns 0, or 1 if an indirect index was out of range (the caller then reruns in eager to raise) or
    a `require` was not met (eager then gives its own result).
    `scratch` buffers are allocated per call and thread (stack if small). Every param that a Store names is an output.

    What `schedule` makes addresses memory flatly: params and scratch have shape (elements,) and strides (1,), and
    every Load and Store has one index, the offset in elements. So a kernel's buffer is the memory of the definition's
    buffer of the same name, whatever its shape. The top level of `body` is one parallel loop, or statements without
    one.
    """

    name: str
    params: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    scratch: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    origin: str = field(default="", compare=False)
