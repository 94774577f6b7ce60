"""The loop language: its grammar. Two levels share one expression language.

*Definitions* (what `lower` makes and `fuse` works on) say what each buffer holds, one definition a buffer. *Kernels*
(what `schedule` makes of a fusion group, and `codegen` prints as LLVM) are trees of loops.

An `Index` (index.py) is an integer polynomial over loop variables and symbolic sizes; a size is one without loop
variables. All nodes are immutable; equality is structural; names come from counters. traverse.py walks and rebuilds
nodes by the annotations of their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Literal

from lampwork.loops.ir.polynomial import ONE, ZERO, Index
from lampwork.loops.ir.traverse import Expression, Node, Statement
from lampwork.records import record

DType = Literal["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i64", "i32", "i16", "i8", "u8", "bool"]
FLOAT8: frozenset[DType] = frozenset({"f8e4m3", "f8e5m2"})
"""Types of memory alone: their elements are moved as they are, and converted from and to f32. What is larger than every
number of f8e4m3 becomes nan, of f8e5m2 infinite."""


@record
class Buffer:
    """A strided array. `strides` are in elements; element [i, j] lies at i*strides[0] + j*strides[1]."""

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]


@record
class Panels(Buffer):
    """B of a Gemm, rearranged by a `PackB`, zero-padded: of shape (batch..., ceil(N / columns), ceil(K / steps),
    columns * steps). `steps` neighbours along k lie side by side.

    offset: what the numbers of A get added, on which the sums of the Gemm are to be as without it; with one, the first
    row of a panel is of int32, -offset times the sums of the columns, and the others follow.
    outputs: of a convolution by filters of 3 x 3 taps that is computed for so many outputs in each dimension at a time
    (winograd.py): the panels hold its transformed weights, batch is their points, and k is the channels. 0: weights.
    """

    columns: int
    steps: int = 1
    offset: int = 0
    outputs: int = 0


@record
class Opaque(Buffer):
    """A tensor that only Externs read: of a dtype that the language lacks, or in a layout of oneDNN's own."""

    dtype: DType = "u8"
    shape: tuple[Index, ...] = ()
    strides: tuple[Index, ...] = ()


@record
class Axis(Node):
    """A loop variable: 0 <= name < extent."""

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
    """An index as a number (arange, causal masks)."""

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
    """A pointwise operation: `name` is a key of `ops.OPS`, which gives its arity, dtype rule and exact meaning."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType

    def __str__(self) -> str:
        name = self.dtype if self.name == "cast" else self.name
        return f"{name}({', '.join(map(str, self.args))})"


Expr = Const | Load | IndexValue | Local | Op


# --- definitions ------------------------------------------------------------------------------------------------------

ReduceOp = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]
CombineOp = Literal["sum", "prod", "max", "min", "put"]
"""What becomes of an element that a value lands on: both combined (max and min propagate NaN), or the value alone."""


@record
class Map(Node):
    """out[index] = value for every point of `axes`; elsewhere out is what `onto` is, which is laid out as out.

    Without `onto` the index reaches every element that anybody reads. With it the Map is a *write*: it runs after all
    others that read `onto`, so that `out` can have its memory, and does not read `onto` itself.

    With `combine` it is an *update*: the index may reach an element at several points, whose values are combined with
    what is there one after the other, in any order, each time rounded to out.dtype. `out` has the memory of `onto`,
    which nothing else reads.
    """

    out: Buffer
    axes: tuple[Axis, ...]
    index: tuple[Index, ...]
    value: Expr
    onto: Buffer | None = None
    combine: CombineOp | None = None


@record
class Reduce(Node):
    """out[index(axes)] = finish(op over `over` of value).

    `value` has the dtype of accumulation (f32 for f16, bf16 and f32, f64 for f64, i64 for integers). max, min, argmax
    and argmin propagate NaN as torch does; argmax and argmin give i64 positions in the row-major order of `over`, first
    wins.
    `finish` is an expression over Local("acc") (mean: acc / n), converted to out.dtype.
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
    """out[index(axes, along)] = op of value over along' <= along (cumsum, cumprod, cummax, cummin)."""

    out: Buffer
    axes: tuple[Axis, ...]
    along: Axis
    index: tuple[Index, ...]
    op: Literal["sum", "prod", "max", "min"]
    value: Expr


@record
class Gemm(Node):
    """out[index(batch, m, n)] = value, with Local("acc") = sum over k of a(batch, m, k) * b(batch, k, n).

    a and b have one dtype, or b is i8 and widened to a's f32; acc has that of its sums: f64 for f64, f32 for f32,
    f16 and bf16, i32 (modulo 2**32) for i8. `value` is the epilogue (bias, activation, residual): Local("acc")
    alone at first; its loads are indexed by batch, m and n. Where b's buffer is `Panels`, b.index says where in the
    buffer that was packed it would be read. In place of b's, a's buffer may be `Panels`, of rows instead of columns:
    b is read as it lies then (turned.py).

    rows, depth: the digits of m and of k, the last one fastest, that a is indexed by in place of m and k. With them the
    product is a convolution: m is (image, y, x), k is (ky, kx, channel), batch the groups, and a's mask leaves out what
    lies in the padding. Without them a is indexed by m and k, and has no mask. With them a may be indexed by n too:
    each column has channels of its own then (depthwise.py). With m as (taps..., channel) and k as (image, y, x) the
    product is the gradient of a convolution's weight, a being its input and b the gradient of its result
    (weight_gradient.py); of a depthwise one m is (taps...), and a is indexed by n.

    group, ends: with them each group of rows has a matrix of its own, by which b is indexed too: rows
    ends[g - 1] <= m < ends[g] are multiplied by b(g, k, n), ends[-1] being 0, and acc is 0 in rows past the last end.
    `ends`, a load of i32 or i64 indexed by the group, ascends, from 0 to the extent of m at most. There is no batch
    then, and b is read as it lies.

    variant: which of a target's other tiles and blocks to take, by the name that `codegen.variants` reads; "": the ones
    that its cost model chooses.
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
    rows: tuple[Axis, ...] = ()
    depth: tuple[Axis, ...] = ()
    variant: str = ""
    group: Axis | None = None
    ends: Load | None = None

    @property
    def groups(self) -> tuple[Axis, ...]:
        """The axis of the groups, if there are any."""
        return () if self.group is None else (self.group,)

    @property
    def packed(self) -> int:
        """The columns of a panel of b; 0: b is read as it lies."""
        return self.b.buffer.columns if isinstance(self.b.buffer, Panels) else 0

    @property
    def turned(self) -> int:
        """The rows of a panel of a; 0: a is read as it lies."""
        return self.a.buffer.columns if isinstance(self.a.buffer, Panels) else 0

    @property
    def steps(self) -> int:
        """How many neighbours along k lie side by side in the panels of b."""
        return self.b.buffer.steps if isinstance(self.b.buffer, Panels) else 1

    @property
    def outputs(self) -> int:
        """Of how many outputs at a time the panels of b hold the transformed weights; 0: they are plain weights."""
        return self.b.buffer.outputs if isinstance(self.b.buffer, Panels) else 0

    @property
    def is_depthwise(self) -> bool:
        """Whether a is indexed by n too."""
        return bool(self.rows) and any(self.n.name in index.variables() for index in self.a.index)

    @property
    def is_weight_gradient(self) -> bool:
        """Whether it is the last digit of m, or n, and not the last digit of k, that runs along a's memory."""
        if not self.rows or self.packed:
            return False
        offset = ZERO
        for position, stride in zip(self.a.index, self.a.buffer.strides, strict=True):
            offset = offset + position * stride
        channel = self.n if self.is_depthwise else self.rows[-1]
        return (offset.coefficient(channel.name), offset.coefficient(self.depth[-1].name) == ONE) == (
            ONE,
            False,
        )

    @property
    def offset(self) -> int:
        """What the panels of b expect the numbers of a to get added."""
        return self.b.buffer.offset if isinstance(self.b.buffer, Panels) else 0

    @property
    def a_axes(self) -> tuple[Axis, ...]:
        """The axes that a is indexed by."""
        columns = (self.n,) if self.is_depthwise else ()
        return (*self.batch, *(self.rows or (self.m,)), *(self.depth or (self.k,)), *columns)


@record
class Attention(Node):
    """out[index(batch, m, e)] = sum over n of p(batch, m, n) * v(batch, n, e), p being the softmax over n of `value`.

    `value` is the score: Local("acc"), the sum over d of q(batch, m, d) * k(batch, n, d), scaled and masked; its loads
    are indexed by batch, m and n, and its dtype is that of all sums: f64 for f64, else f32. A row whose scores are all
    -inf is 0, or nan where not `closed`, as a softmax that is written out gives it. `variant` as in Gemm. `logs`: the
    last index is e, and out has one column more than there are values of it: the logarithm of the sum over n of
    exp(value), -inf where all are, by which the results of several ranges of keys are put together.
    """

    out: Buffer
    batch: tuple[Axis, ...]
    m: Axis
    n: Axis
    d: Axis
    e: Axis
    q: Load
    k: Load
    v: Load
    index: tuple[Index, ...]
    value: Expr
    closed: bool = True
    variant: str = ""
    logs: bool = False


@record
class PackB(Node):
    """out[batch, n // columns, k // steps, n % columns * steps + k % steps] = b(batch, k, n), zero where n or k is past
    the end; one row further down with an offset (`Panels`)."""

    out: Panels
    batch: tuple[Axis, ...]
    n: Axis
    k: Axis
    b: Load


CellKind = Literal["lstm", "gru", "tanh", "relu"]
GATES: Mapping[CellKind, int] = MappingProxyType({"lstm": 4, "gru": 3, "tanh": 1, "relu": 1})
KEPT: Mapping[CellKind, int] = MappingProxyType({"lstm": 5, "gru": 5, "tanh": 0, "relu": 0})
"""How many numbers of a unit and step the gradient reads; 0: the state alone."""


@record
class Recurrence(Node):
    """One layer of a recurrent network, all steps; `d` < 2 directions side by side, the second from the last step on.

        gates(n) = x(d, t, b, n) + sum over k of state(k) * w(d, k, n)
        out[index(d, t, b, k)] = state = cell(gates, state)

    n = gate * units + u, with the gates in torch's order; the state that the first step reads is h(d, b, k). lstm: the
    cell c(d, b, u) is carried along too; with `project` the state is sum over u of hidden(u) * project(d, u, k), else
    k is u. gru: the last gate is x + reset * (sum + bias(d, u)). t is the place in the sequence.

    memory: (d, b, parts, units), of which [d, b, 2, u] is the last cell of an lstm, and the rest scratch. Its rows are
    longer than the units; it has 2 parts, of an lstm 3, and one more with `project`. Where w's or project's buffer is
    `Panels`, those of (d, panel, part, k, columns) hold some units of some gates, gate by gate. w, project and out may
    be of a half type; all that is carried from step to step is float32 then.

    Of a packed sequence the batch is sorted, the longest first, and count(t) of its elements take part in step t, those
    in front. x and out have one axis `s` in place of t and b then: element b of step t is at s = start(t) + b. An
    element's first state is read by its first step, and its last cell is that of its last step. count and start are
    int64, 1 <= count(t) <= the extent of b, and start(t) + count(t) <= the extent of s.

    kept: what a `RecurrenceGradient` reads, for each element and step KEPT[kind] parts of the units. Of an lstm these
    are its gates, of a gru its gates and the sum that `reset` is multiplied by; then the cell or state before the step.
    """

    kind: CellKind
    out: Buffer
    memory: Buffer
    d: Axis
    t: Axis
    b: Axis
    n: Axis
    u: Axis
    k: Axis
    x: Load
    w: Load
    h: Load
    c: Load | None
    bias: Load | None
    project: Load | None
    index: tuple[Index, ...]
    s: Axis | None = None
    count: Load | None = None
    start: Load | None = None
    kept: Buffer | None = None
    kept_index: tuple[Index, ...] = ()

    @property
    def p(self) -> Axis:
        """The axis `n` of kept_index: part * units + u."""
        return Axis(self.n.name, self.u.extent * KEPT[self.kind])

    @property
    def steps(self) -> tuple[Axis, ...]:
        """The axes of x and out for the steps and elements of the batch."""
        return (self.t, self.b) if self.s is None else (self.s,)

    @property
    def gates(self) -> int:
        return GATES[self.kind]


@record
class RecurrenceGradient(Node):
    """The gradient of a `Recurrence` of one direction, step by step, the last step first.

        state(u) = grad(t, b, u) + sum over n of sums[t + 1, b, n] * w(n, u) + what a cell passes on
        sums[index(t, b, n)], out[index(t, b, n)] = gradients of the cell's gates, given state

    out: the gradient of x. sums: that of the product with the state, of a gru alone; for the others it is out, which
    is dense from n to b. first(b, u): the gradient of h. kept(t, b, p): what the Recurrence kept, p = part * units + u,
    or where it kept nothing its states; cell(b, u): the gradient of the last cell, None for zeros.

    memory: (b, units), of an lstm in the end the gradient of c, and scratch of the others. t counts the steps in the
    order of the Recurrence. Where w's buffer is `Panels`, those of (panel, n, columns) hold some units.
    """

    kind: CellKind
    out: Buffer
    sums: Buffer | None
    first: Buffer
    memory: Buffer
    t: Axis
    b: Axis
    n: Axis
    u: Axis
    p: Axis
    grad: Load
    kept: Load
    w: Load
    cell: Load | None
    index: tuple[Index, ...]

    @property
    def rows(self) -> Buffer:
        """The rows that are multiplied with w."""
        return self.out if self.sums is None else self.sums


@record
class View:
    """A tensor argument of an Extern: `buffer` seen through shape, strides and offset (in elements)."""

    buffer: Buffer
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index


@record
class FloatOfBits:
    """A number argument of an Extern: the float64 with the bits of an int64."""

    bits: Index


@record
class Extern:
    """outs = target(*args, **kwargs): an ATen (or mkldnn, or custom) operator called through torch's dispatcher.

    target: the qualified name with overload ("aten::convolution.default").
    args, kwargs: Views, nested lists and tuples of them, Index and FloatOfBits for numbers that are not known yet, and
        plain values (numbers, bools, strings, None, dtypes, devices, layouts, memory formats).
    mutates: positions of arguments that the operator writes to (`copy_` into an input).
    random: it draws from torch's generator, or starts a collective: it is never dropped, and no two such change places.
    raises: it raises for some data, so it is never dropped either.
    why: why it is no loop, for people; "" where a rule chose the call.
    """

    outs: tuple[Buffer, ...]
    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    mutates: tuple[int, ...] = ()
    origin: str = ""
    random: bool = False
    raises: bool = True
    why: str = ""


Template = Gemm | Attention | PackB | Recurrence | RecurrenceGradient
"""What becomes a function of its own, by a template of the target."""

Definition = Map | Reduce | Scan | Template | Extern


# --- kernels ----------------------------------------------------------------------------------------------------------

LoopKind = Literal["parallel", "parallel-vector", "serial", "vector"]


@record
class Let(Statement):
    name: str
    value: Expr


@record
class Store(Statement):
    """buffer[index] = value. A store to a scratch buffer of the kernel is private to the thread.

    combine: buffer[index] becomes `combine` of itself and the value, as one step that no other thread is seen in the
    middle of. In a kernel on a grid alone (grid.py), which neither reads the buffer nor stores to it otherwise.
    """

    buffer: Buffer
    index: tuple[Index, ...]
    value: Expr
    combine: CombineOp | None = None


@record
class Loop(Statement):
    """for axis in range(min(axis.extent, limit)): body.

    parallel: only outermost, at most one a kernel: threads share its range. vector: in steps of a vector, and a tail;
    its iterations are independent, and no vector loop (Loop or ReduceLoop) holds another. parallel-vector: both at
    once. `limit` may use outer variables: it cuts the last block of a blocked loop. Parallel loops have none.
    """

    axis: Axis
    kind: LoopKind
    body: tuple[Stmt, ...]
    limit: Index | None = None


@record
class Reducer(Node):
    """name = op over the loop of value; for argmax and argmin its position."""

    name: str
    op: ReduceOp
    value: Expr
    dtype: DType


@record
class ReduceLoop(Statement):
    """for axis in range(axis.extent): body; each reducer combines its value. Afterwards their names are bound.

    kind: "serial", or "vector", with a horizontal reduction at the end. The reducers may use names that a ReduceLoop in
    `body` binds. argmax and argmin give `position` (i64: the row-major place in all that is reduced) where they win.
    """

    axis: Axis
    kind: LoopKind
    body: tuple[Stmt, ...]
    reducers: tuple[Reducer, ...]
    position: Expr | None = None


@record
class ScanLoop(Statement):
    """for axis in order: body; name = op(name, value); after (which may read name)."""

    axis: Axis
    body: tuple[Stmt, ...]
    name: str
    op: Literal["sum", "prod", "max", "min"]
    value: Expr
    dtype: DType
    after: tuple[Stmt, ...]


@record
class Barrier(Statement):
    """In a kernel on a grid (grid.py): the threads of a group wait for each other, and then see what others wrote."""


@record
class WhenLast(Statement):
    """In a kernel on a grid (grid.py), at the end of an iteration of the parallel loop, or of the body of another one:
    the iteration that comes here last, of the `among` ones that count with the same of `counters` counters, runs the
    body. It sees what all of them stored before they came here.

    near: these are `among` neighbours from a multiple of `among` on, which are the groups of a block.
    """

    counter: Index
    counters: int
    among: int
    body: tuple[Stmt, ...]
    near: bool = False


Stmt = Let | Store | Loop | ReduceLoop | ScanLoop | Barrier | WhenLast


@record
class Kernel(Node):
    """One generated function (its ABI: kernel.py).

    params, scratch: their shape is (elements,), their strides (1,); the one index of a Load or Store is the offset in
        elements. So a param is the memory of the definitions' buffer of the same name, whatever its shape. Every param
        that a Store names is an output; scratch is allocated per call and thread (on the stack if small).
    sizes: the names of the symbols.
    body: one parallel loop, or statements without one.
    variant: how it lies on a grid, by the name that `schedule.grid` reads; "": as its model says.
    cluster: blocks of a card that may be one group of threads, at most (schedule/clusters.py); 1: a block is.
    """

    name: str
    params: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    scratch: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    origin: str = field(default="", compare=False)
    variant: str = ""
    cluster: int = 1
