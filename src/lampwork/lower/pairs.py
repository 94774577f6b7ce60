"""Complex numbers as pairs of real ones, where that saves work: rotary embeddings that multiply by freqs_cis, absolute
values of a spectrum, polar.

The loop language has no complex numbers. A complex tensor of shape S is a real one of shape (*S, 2) to it, as
`view_as_real` shows it. A result is computed as rows of twice as many numbers, so that vectors run over real and
imaginary parts in turn; the other part of a number is the lane next to it.

torch's complex tensors and pairs lie in memory alike, so that one becomes the other without a copy, but for views of
pairs. `find` chooses what to compute on pairs, a connected part of the graph at a time: one operation alone, and views
that leave, stay calls of ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_size, same_sizes
from lampwork.loops.ir.index import ZERO, Index
from lampwork.loops.ir.nodes import DType, Expr, View
from lampwork.lower import exprs as e
from lampwork.lower import extern, views
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context

aten = torch.ops.aten

AS_COMPLEX = "lampwork::as_complex.default"
"""Its result lies in the memory of its argument, which is therefore no memory that is used again."""

_PARTS: dict[torch.dtype, DType] = {torch.complex64: "f32", torch.complex128: "f64"}

_VIEWS = frozenset(
    {
        aten.select.int,
        aten.slice.Tensor,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.permute.default,
        aten.expand.default,
        aten.view.default,
        aten.alias.default,
    }
)
_CHEAP = frozenset(
    {
        aten.mul.Tensor,
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.neg.default,
        aten._conj_physical.default,
        aten.view_as_real.default,
        aten.view_as_complex.default,
    }
)
_COSTLY = frozenset({aten.abs.default, aten.angle.default, aten.polar.default, aten.complex.default})
_ARITHMETIC = frozenset({aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor})
_SLOW = frozenset({aten.abs.default, aten.angle.default, aten.polar.default})


@dataclass(slots=True)
class Pairs:
    """A complex value as `real`, of its shape and one more dimension of 2. `outside`: as a tensor of torch's.
    `computed`: real is a buffer of its own, contiguous, that nothing else has been made of."""

    real: Array
    spec: TensorSpec
    computed: bool = False
    outside: Array | None = field(default=None)

    def as_complex(self, ctx: Context) -> Array:
        """For a call of ATen, or as a result: over the memory of what was computed, else a copy."""
        if self.outside is None:
            strides = (*(2 * stride for stride in self.spec.strides), 1)
            real = self.real
            if not self.computed or not same_sizes(real.strides or (), strides):
                real = ctx.materialise(real, "pairs", strides)
            self.outside = ctx.opaque("complex")
            extern.emit(ctx, AS_COMPLEX, (real,), (self.outside.buffer,))
        return self.outside


def _spec(value: object) -> TensorSpec | None:
    val = value.meta.get("val") if isinstance(value, fx.Node) else None
    return val if isinstance(val, TensorSpec) else None


def _is_complex(value: object) -> bool:
    spec = _spec(value)
    return spec is not None and spec.dtype in _PARTS


def _fits(node: fx.Node) -> bool:
    """Whether there is a rule for a node that makes or takes complex numbers."""
    meta, spec = node.meta, _spec(node)
    if (
        node.op != "call_function"
        or spec is None
        or not (_is_complex(node) or any(map(_is_complex, node.args)))
    ):
        return False
    if any(meta.get(key) for key in ("constant", "opaque", "random", "effect", "operands")) or node.kwargs:
        return False
    tensors = [each for each in node.args if isinstance(each, fx.Node)]
    real = _PARTS.get(spec.dtype)
    sizes = [spec, *(each for each in map(_spec, tensors) if each is not None)]
    if len(sizes) != len(tensors) + 1 or any(0 in each.shape for each in sizes):
        return False
    if real is not None and any(_real_type(each) is not _real_type(spec) for each in sizes):
        return False
    if node.target in _ARITHMETIC:
        return len(node.args) == 2 and len(tensors) == 2 and all(map(_is_complex, tensors))
    return node.target in _VIEWS or node.target in _CHEAP or node.target in _COSTLY


def _real_type(spec: TensorSpec) -> torch.dtype:
    return spec.dtype.to_real() if spec.dtype.is_complex else spec.dtype


def find(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes that are to be computed on pairs."""
    left = {node: None for node in graph.nodes if _fits(node)}
    for node in reversed(graph.nodes):
        # A view that leaves is one of torch's: pairs have no memory to share with a complex tensor that is there.
        if (
            node in left
            and _is_view(node)
            and _is_complex(node)
            and any(user not in left for user in node.users)
        ):
            del left[node]
    found: set[fx.Node] = set()
    while left:
        part = _connected(next(iter(left)), left)
        for node in part:
            del left[node]
        if _saves(part):
            found |= part
    return frozenset(found)


def _connected(first: fx.Node, among: dict[fx.Node, None]) -> set[fx.Node]:
    """What is reached from a node over complex values."""
    part, todo = {first}, [first]
    while todo:
        node = todo.pop()
        near = [each for each in node.all_input_nodes if _is_complex(each)]
        near += node.users if _is_complex(node) else ()
        for each in near:
            if each in among and each not in part:
                part.add(each)
                todo.append(each)
    return part


def _saves(part: set[fx.Node]) -> bool:
    """Whether a part is more than one operation, which is as fast in ATen."""
    first = next(iter(part))
    return len(part) > 1 or first.target not in _RULES or first.target in _SLOW


def _is_view(node: fx.Node) -> bool:
    return node.target in _VIEWS or node.target in (aten.view_as_real.default, aten.view_as_complex.default)


# --- lowering ---------------------------------------------------------------------------------------------------------


def lower(ctx: Context, node: fx.Node, args: Sequence[Any]) -> Array | Pairs:
    """The value of a node that `find` found; an argument is an opaque Array where it is a complex tensor of torch's."""
    spec = ctx.spec
    target = node.target
    given = [
        _pairs(ctx, arg, cast(TensorSpec, _spec(source))) if _is_complex(source) else arg
        for arg, source in zip(args, node.args, strict=True)
    ]
    if target is aten.view_as_complex.default:
        return Pairs(cast(Array, given[0]), spec)
    if target is aten.view_as_real.default:
        return cast(Pairs, given[0]).real
    if target in _VIEWS:
        return Pairs(_viewed(ctx, node, cast(Pairs, given[0]), given[1:]), spec)
    if target in (aten.abs.default, aten.angle.default):
        real, imaginary = (
            _part(cast(Pairs, given[0]).real, spec.shape, False, Index.const(c)) for c in (0, 1)
        )
        value = (
            e.op("hypot", real, imaginary) if target is aten.abs.default else e.op("atan2", imaginary, real)
        )
        return ctx.result(value)
    return _computed(ctx, spec, _RULES[target], given)


def _pairs(ctx: Context, value: Array | Pairs, spec: TensorSpec) -> Pairs:
    if isinstance(value, Pairs):
        return value
    shape, strides = (*spec.shape, 2), (*(2 * stride for stride in spec.strides), 1)
    dtype = _PARTS[spec.dtype]
    if value.buffer.name in ctx.fixed and all(type(size) is int for size in shape):
        # A copy: what refers to the memory of a weight has it looked through on every call.
        view = View(value.buffer, (), (), ZERO)
        real = ctx.call_once("aten::view_as_real_copy.default", (view,), shape, dtype, "pairs")
    else:
        real = ctx.buffer(shape, dtype, strides, "pairs")
        extern.emit(ctx, "lampwork::as_real.default", (value,), (real.buffer,))
    return Pairs(real, spec)


def _viewed(ctx: Context, node: fx.Node, value: Pairs, args: Sequence[Any]) -> Array:
    """A view of the pairs as of the complex numbers: the last dimension is behind those that are meant."""
    rank = len(value.spec.shape)
    target = node.target
    if target is aten.alias.default:
        return value.real
    if target in (aten.view.default, aten.expand.default):
        return _rule(node)(ctx, value.real, [*ctx.spec.shape, 2])
    if target is aten.permute.default:
        return _rule(node)(ctx, value.real, [*(dim % rank for dim in args[0]), rank])
    dim = args[0] if args else 0
    wrapped = dim + (rank + 1 if target is aten.unsqueeze.default else rank) if dim < 0 else dim
    return _rule(node)(ctx, value.real, wrapped, *args[1:])


def _rule(node: fx.Node) -> Callable[..., Array]:
    return cast("Callable[..., Array]", views.rules.rules[cast(Any, node.target).name()])


def _part(real: Array, shape: Sequence[int], flat: bool, part: Index) -> Expr:
    """The part (0 real, 1 imaginary) at (i0, i1, …) of a broadcast shape; `flat`: the last dimension has both parts of
    each number."""
    lead = len(shape) - (real.rank - 1)
    point: list[Index] = []
    for dim, size in enumerate(real.shape[:-1]):
        place = AXES[lead + dim]
        if flat and lead + dim == len(shape) - 1:
            place = place // 2
        point.append(ZERO if same_size(size, 1) and not same_size(shape[lead + dim], 1) else place)
    return at(real, [*point, part])


def _computed(
    ctx: Context, spec: TensorSpec, rule: Callable[..., Expr], given: Sequence[Pairs | Array]
) -> Pairs:
    shape = spec.shape
    rows = (*shape[:-1], shape[-1] * 2) if shape else (2,)
    last = AXES[len(rows) - 1]
    side = last % 2

    def read(value: Pairs | Array, part: Index) -> Expr:
        real = value.real if isinstance(value, Pairs) else views.unsqueeze_dim(value, value.rank)
        return _part(real, shape, bool(shape), part)

    is_real = e.test("eq", e.index_value(side), e.const(0, "i64"))
    value = rule(_Point(read, side, is_real), *given)
    out = ctx.map(rows, value)
    return Pairs(views.reshape(out, (*shape, 2)), spec, computed=True)


@dataclass(frozen=True, slots=True)
class _Point:
    """One number of a row: a real or an imaginary part, that of `side`."""

    read: Callable[[Pairs | Array, Index], Expr]
    side: Index
    is_real: Expr

    def own(self, value: Pairs | Array) -> Expr:
        return self.read(value, self.side)

    def other(self, value: Pairs | Array) -> Expr:
        return self.read(value, self.side * -1 + 1)

    def part(self, value: Pairs | Array, part: int) -> Expr:
        return self.read(value, Index.const(part))

    def choose(self, real: Expr, imaginary: Expr) -> Expr:
        return e.where(self.is_real, real, imaginary)


def _mul(at: _Point, a: Pairs, b: Pairs) -> Expr:
    """a.re * b.re - a.im * b.im, and a.im * b.re + a.re * b.im."""
    crossed = e.mul(at.other(a), at.part(b, 1))
    return e.add(e.mul(at.own(a), at.part(b, 0)), at.choose(e.op("neg", crossed), crossed))


def _add(at: _Point, a: Pairs, b: Pairs) -> Expr:
    """a + (1 + 0i) * b, as ATen computes it: an infinite part of b makes nan of the other one."""
    return e.add(at.own(a), _scaled(at, b, 1.0))


def _sub(at: _Point, a: Pairs, b: Pairs) -> Expr:
    return e.add(at.own(a), _scaled(at, b, -1.0))


def _scaled(at: _Point, b: Pairs, scale: float) -> Expr:
    own = at.own(b)
    crossed = e.mul(at.other(b), e.like(0.0 * scale, own))
    return e.add(e.mul(own, e.like(scale, own)), at.choose(e.op("neg", crossed), crossed))


def _neg(at: _Point, a: Pairs) -> Expr:
    return e.op("neg", at.own(a))


def _conj(at: _Point, a: Pairs) -> Expr:
    own = at.own(a)
    return at.choose(own, e.op("neg", own))


def _polar(at: _Point, size: Array, angle: Array) -> Expr:
    turned = at.part(angle, 0)
    return e.mul(at.part(size, 0), at.choose(e.op("cos", turned), e.op("sin", turned)))


def _complex(at: _Point, real: Array, imaginary: Array) -> Expr:
    return at.choose(at.part(real, 0), at.part(imaginary, 0))


_RULES: dict[Any, Callable[..., Expr]] = {
    aten.mul.Tensor: _mul,
    aten.add.Tensor: _add,
    aten.sub.Tensor: _sub,
    aten.neg.default: _neg,
    aten._conj_physical.default: _conj,
    aten.polar.default: _polar,
    aten.complex.default: _complex,
}
