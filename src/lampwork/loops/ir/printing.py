"""The loop language as text, for logs, goldens and people: stable, and close to Python.

y: f32[4, 6] at [i0, i1] = exp(x[i0, i1] - m[i0]) for i0 < 4, i1 < 6
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import (
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
    IndexValue,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Map,
    Op,
    Opaque,
    PackB,
    Recurrence,
    RecurrenceGradient,
    Reduce,
    ReduceLoop,
    Scan,
    Stmt,
    Store,
    View,
    WhenLast,
)

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
}


def format_expr(expr: Expr) -> str:
    """An expression as one line."""
    if isinstance(expr, Const):
        return f"{expr.value!r}" if expr.dtype in ("f32", "i64", "bool") else f"{expr.dtype}({expr.value!r})"
    if isinstance(expr, Local):
        return expr.name
    if isinstance(expr, IndexValue):
        return f"{expr.dtype}({expr.index})"
    if isinstance(expr, Load):
        text = f"{expr.buffer.name}[{_point(expr.index)}]"
        return text if expr.mask is None else f"({text} if {format_expr(expr.mask)} else {expr.other!r})"
    if expr.name in _INFIX:
        left, right = map(format_expr, expr.args)
        return f"({left} {_INFIX[expr.name]} {right})"
    args = [_bare(arg) for arg in expr.args]
    if expr.name == "cast":
        return f"{expr.dtype}({args[0]})"
    return f"{expr.name}({', '.join(args)})"


def _bare(expr: Expr) -> str:
    """An expression that stands alone: without the parentheses around it."""
    text = format_expr(expr)
    return text[1:-1] if isinstance(expr, Op) and expr.name in _INFIX else text


def format_buffer(buffer: Buffer) -> str:
    """name: dtype[shape], and the strides where they are not row-major."""
    if isinstance(buffer, Opaque):
        return f"{buffer.name}: opaque"
    text = f"{buffer.name}: {buffer.dtype}[{_point(buffer.shape)}]"
    step = Index.const(1)
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=True):
        if size.as_int() != 1 and stride != step:
            return f"{text}({_point(buffer.strides)})"
        step = step * size
    return text


def format_definition(definition: Definition) -> str:
    """A definition as one line, for a Gemm as two, for an Attention as three."""
    if isinstance(definition, Extern):
        outs = ", ".join(format_buffer(out) for out in definition.outs)
        kwargs = [f"{name}={_argument(value)}" for name, value in definition.kwargs]
        args = ", ".join([*(_argument(arg) for arg in definition.args), *kwargs])
        return f"{outs} = {definition.target}({args})"
    if isinstance(definition, PackB):
        axes = format_axes((*definition.batch, definition.k, definition.n))
        out, columns = format_buffer(definition.out), definition.out.columns
        return f"{out} = pack {format_expr(definition.b)} by {columns} for {axes}"
    if isinstance(definition, Recurrence):
        return _recurrence(definition)
    if isinstance(definition, RecurrenceGradient):
        return _recurrence_gradient(definition)
    place = f"{format_buffer(definition.out)} at [{_point(definition.index)}]"
    if isinstance(definition, Map):
        onto = "" if definition.onto is None else f" onto {definition.onto.name}"
        how = _combined(definition.combine)
        return f"{place}{onto} {how}= {_bare(definition.value)} for {format_axes(definition.axes)}"
    if isinstance(definition, Reduce):
        text = f"{definition.op}({_bare(definition.value)} for {format_axes(definition.over)})"
        if definition.finish is not None:
            text = f"{_bare(definition.finish)} where acc = {text}"
        return f"{place} = {text} for {format_axes(definition.axes)}"
    if isinstance(definition, Scan):
        along = f"running {definition.op} of {format_expr(definition.value)} along {format_axes((definition.along,))}"
        return f"{place} = {along} for {format_axes(definition.axes)}"
    if isinstance(definition, Attention):
        return f"{place} = {_attention(definition)}"
    by = f"{definition.packed}" if definition.steps == 1 else f"{definition.packed} x {definition.steps}"
    if definition.outputs:
        by += f", for {definition.outputs} x {definition.outputs} outputs at a time"
    packed = f" (packed by {by})" if definition.packed else ""
    turned = f" (packed by {definition.turned})" if definition.turned else ""
    product = f"{format_expr(definition.a)}{turned} * {format_expr(definition.b)}{packed}"
    axes = format_axes((*definition.batch, definition.m, definition.n))
    acc = f"acc = sum({product} for {format_axes(definition.depth or (definition.k,))})"
    digits = f" and {definition.m.name} = ({format_axes(definition.rows)})" if definition.rows else ""
    if definition.group is not None and definition.ends is not None:
        digits = f" in rows up to {format_expr(definition.ends)} for {format_axes((definition.group,))}"
    return f"{place} = {_bare(definition.value)} for {axes}\n    where {acc}{digits}{_variant(definition)}"


def _variant(definition: Gemm | Attention) -> str:
    return f" with {definition.variant}" if definition.variant else ""


def _recurrence(definition: Recurrence) -> str:
    named = {
        "x": definition.x,
        "w": definition.w,
        "h": definition.h,
        "c": definition.c,
        "bias": definition.bias,
        "project": definition.project,
        "count": definition.count,
        "start": definition.start,
    }
    operands = ", ".join(f"{name}={format_expr(load)}" for name, load in named.items() if load is not None)
    packed = () if definition.s is None else (definition.s,)
    axes = format_axes((definition.d, definition.t, definition.b, *packed, definition.u, definition.k))
    outs = (
        f"{format_buffer(definition.out)} at [{_point(definition.index)}], {format_buffer(definition.memory)}"
    )
    if definition.kept is not None:
        outs += f", {format_buffer(definition.kept)} at [{_point(definition.kept_index)}]"
    return f"{outs} = {definition.kind}({operands}) for {axes}"


def _recurrence_gradient(definition: RecurrenceGradient) -> str:
    named = {"grad": definition.grad, "kept": definition.kept, "w": definition.w, "cell": definition.cell}
    operands = ", ".join(f"{name}={format_expr(load)}" for name, load in named.items() if load is not None)
    first, *others = (format_buffer(out) for out in outs_of(definition))
    axes = format_axes((definition.t, definition.b, definition.u))
    outs = ", ".join([f"{first} at [{_point(definition.index)}]", *others])
    return f"{outs} = gradient of {definition.kind}({operands}) for {axes}"


def _attention(definition: Attention) -> str:
    """What is stored, and for which points; what the score and its product are."""
    closed = "" if definition.closed else ", nan where all are -inf"
    weights = f"softmax(score over {format_axes((definition.n,))}{closed})"
    total = f"sum({weights} * {format_expr(definition.v)} for {definition.n.name})"
    if definition.logs:
        total += " and then log(sum(exp(score)))"
    product = f"{format_expr(definition.q)} * {format_expr(definition.k)}"
    return "\n".join(
        [
            f"{total} for {format_axes((*definition.batch, definition.m, definition.e))}",
            f"    where score = {_bare(definition.value)}",
            f"    where acc = sum({product} for {format_axes((definition.d,))}){_variant(definition)}",
        ]
    )


def format_definitions(definitions: Sequence[Definition]) -> str:
    """One definition a line."""
    return "\n".join(format_definition(definition) for definition in definitions)


def format_kernel(kernel: Kernel) -> str:
    """A kernel as indented loops."""
    arguments = [format_buffer(param) for param in kernel.params] + list(kernel.sizes)
    lines = [f"kernel {kernel.name}({', '.join(arguments)})"]
    lines.extend(f"    scratch {format_buffer(scratch)}" for scratch in kernel.scratch)
    for stmt in kernel.body:
        lines.extend(_stmt(stmt, 1))
    return "\n".join(lines)


def _stmt(stmt: Stmt, depth: int) -> list[str]:
    pad = "    " * depth
    if isinstance(stmt, Let):
        return [f"{pad}{stmt.name} = {_bare(stmt.value)}"]
    if isinstance(stmt, Store):
        place = f"{stmt.buffer.name}[{_point(stmt.index)}]"
        return [f"{pad}{place} {_combined(stmt.combine)}= {_bare(stmt.value)}"]
    if isinstance(stmt, Barrier):
        return [f"{pad}barrier"]
    if isinstance(stmt, WhenLast):
        where = "of a block" if stmt.near else f"at counter {stmt.counter} of {stmt.counters}"
        lines = [f"{pad}when last of {stmt.among} {where}:"]
        return [*lines, *(line for each in stmt.body for line in _stmt(each, depth + 1))]
    lines = []
    if isinstance(stmt, Loop):
        limit = "" if stmt.limit is None else f" up to {stmt.limit}"
        lines.append(f"{pad}{stmt.kind} {_axis(stmt.axis)}{limit}:")
    elif isinstance(stmt, ReduceLoop):
        position = "" if stmt.position is None else f" at {format_expr(stmt.position)}"
        lines.append(f"{pad}reduce {stmt.kind} {_axis(stmt.axis)}{position}:")
    else:
        lines.append(f"{pad}scan {_axis(stmt.axis)}:")
    for each in stmt.body:
        lines.extend(_stmt(each, depth + 1))
    if isinstance(stmt, ReduceLoop):
        for reducer in stmt.reducers:
            lines.append(f"{pad}    {reducer.name} = {reducer.op}({reducer.name}, {_bare(reducer.value)})")
    elif not isinstance(stmt, Loop):
        lines.append(f"{pad}    {stmt.name} = {stmt.op}({stmt.name}, {_bare(stmt.value)})")
        for each in stmt.after:
            lines.extend(_stmt(each, depth + 1))
    return lines


def _combined(op: CombineOp | None) -> str:
    return "" if op is None else f"{op} "


def _axis(axis: Axis) -> str:
    return f"{axis.name} < {axis.extent}"


def format_axes(axes: Sequence[Axis]) -> str:
    """The axes and their extents: i0 < 4, i1 < 6."""
    return ", ".join(_axis(axis) for axis in axes) or "one point"


def _point(index: Sequence[Index]) -> str:
    return ", ".join(map(str, index))


def _argument(value: object) -> str:
    if isinstance(value, View):
        layout = f"[{_point(value.shape)}]({_point(value.strides)})"
        offset = value.offset.as_int()
        return f"{value.buffer.name}{layout}" + ("" if offset == 0 else f"+{value.offset}")
    if isinstance(value, list | tuple):
        items = ", ".join(_argument(item) for item in cast("Sequence[object]", value))
        return f"[{items}]"
    return repr(value)
