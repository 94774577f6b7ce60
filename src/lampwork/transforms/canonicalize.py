"""The pass `canonicalize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, cast

import torch
from torch import fx
from torch._ops import OpOverload

from lampwork import pristine
from lampwork.errors import CaptureError
from lampwork.graph.dims import RANK_PLUS_ONE, from_front, permutation, slice_bounds
from lampwork.graph.layouts import of_rows, repeats_rows, same_strides
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_sizes
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.apply.aliasing import escapes, may_stand_for
from lampwork.rewriting.apply.edit import Editor, replace, spec_change
from lampwork.rewriting.matching.values import fill_value, is_constant

aten = torch.ops.aten

Canonical = Callable[[fx.Node, tuple[Any, ...], Editor], "fx.Node | None"]
"""(node, its arguments by position, editor) -> the node in canonical form, or None if it is."""


@record
class Canonicalize:
    """One spelling for each thing, so that later passes and backends know fewer.

    * transpose, t, mT, movedim, ... are `permute`; reshape, flatten, _unsafe_view, ... are `view` where a view does
      it; narrow is `slice`; expand_as and broadcast_to are `expand`
    * casts are `_to_copy` with a dtype; contiguous is `clone`
    * `op.Scalar` is `op.Tensor` with a number; a tensor operand filled with a literal becomes the number
    * products with a constant matrix (mm, matmul, addmm) are `linear`
    * sorts of rows of stride 0, which ATen leaves in order, are stable; medians, for which it reads past them, are of a
      copy
    * dimensions count from the front, defaults are left out, full and zeros and ones are `full`

    before:  %t = t(%w), %y = addmm(%b, %x, %t), %z = softmax(%y, -1)
    after:   %y = linear(%x, %w, %b), %z = softmax(%y, 1)
    """

    name: ClassVar[str] = "canonicalize"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        table = _table()
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            if schema.is_pinned(node):
                continue
            _shorten(node)
            _literal_operands(node, ctx)
            rewrite = table.get(node.target)
            if rewrite is None:
                continue
            editor = ctx.editor(graph, node)
            new = rewrite(node, schema.bound_args(node), editor)
            if new is None:
                continue
            if not self._fits(node, new, editor) or not ctx.spend(self.name, node):
                editor.discard()
                continue
            if new in editor.made and isinstance(node.meta["val"], TensorSpec):
                new.meta["val"] = node.meta["val"]
            replace(graph, node, new)

    @staticmethod
    def _fits(old: fx.Node, new: fx.Node, editor: Editor) -> bool:
        was, now = old.meta["val"], new.meta["val"]
        if spec_change(was, now):
            return False
        tensors = isinstance(was, TensorSpec) and isinstance(now, TensorSpec)
        # A caller sees the strides of single-element dimensions too.
        if tensors and was.strides != now.strides and (escapes(old) or not same_strides(was, now)):
            return False
        return bool(may_stand_for(new, old))


# --- arguments ------------------------------------------------------------------------------------------------------


def _shorten(node: fx.Node) -> None:
    """Dimensions from the front, no defaults."""
    if not isinstance(node.target, OpOverload):
        return
    values = list(schema.bound_args(node))
    if not values:
        return
    parameters = schema.signature(node.target).parameters
    name = schema.packet_name(node.target)
    extra = 1 if name in RANK_PLUS_ONE else 0
    # A backward's dimensions count in the forward's input, a custom operator's in whatever it likes.
    ours = node.target.namespace == "aten" and not name.endswith("_backward")
    rank = _rank(values[0]) if ours else None
    for i, parameter in enumerate(parameters):
        if rank is not None and parameter.name in ("dim", "dim0", "dim1", "dims", "start_dim", "end_dim"):
            values[i] = from_front(values[i], rank + extra)
    args, kwargs = schema.unbind(node.target, values)
    if not schema.same_literal(args, tuple(node.args)) or dict(node.kwargs) != kwargs:
        node.args = args
        node.kwargs = kwargs


def _rank(value: Any) -> int | None:
    if isinstance(value, list | tuple) and value:
        value = cast("list[Any]", value)[0]
    spec = schema.spec_of(value)
    return None if spec is None else len(spec.shape)


def _literal_operands(node: fx.Node, ctx: PassContext) -> None:
    """A number in place of a 0-dim operand that is filled with it, where torch allows one and the type stays."""
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return
    if len(node.args) < 2 or schema.packet_name(node.target) not in _TAKES_NUMBERS:
        return
    operand = node.args[1]
    if not isinstance(operand, fx.Node) or operand.meta["val"].shape != ():
        return
    value, spec = fill_value(operand), node.meta["val"]
    if value is None or isinstance(value, bool) or not _exact(value, spec.dtype):
        return
    args = (node.args[0], value, *node.args[2:])
    try:
        changed = spec_change(spec, ctx.infer(node.target, args, node.kwargs))
    except CaptureError:
        return
    if not changed and ctx.spend(Canonicalize.name):
        node.args = args


_TAKES_NUMBERS = ("add", "sub", "mul", "div")


def _exact(value: float | int, dtype: torch.dtype) -> bool:
    if dtype is torch.bool or dtype.is_complex:
        return False
    if not dtype.is_floating_point:
        return isinstance(value, int)
    return float(pristine.tensor(value, dtype=dtype).item()) == value


# --- views ----------------------------------------------------------------------------------------------------------


def _spec(node: fx.Node) -> TensorSpec:
    return cast(TensorSpec, node.meta["val"])


def _permuted(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """transpose, t, mT, T, movedim, ... by the permutation they do."""
    x = cast(fx.Node, args[0])
    order = permutation(schema.packet_name(node.target), args[1:], len(_spec(x).shape))
    if order is None or _spec(x).dtype.is_complex:
        return None
    return edit.call(aten.permute.default, x, order)


def _permute_from_front(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    dims = from_front(args[1], len(_spec(args[0]).shape))
    return None if dims == list(args[1]) else edit.call(aten.permute.default, args[0], dims)


def _viewed(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """reshape, flatten, ... by a view, or by a copy and a view, as eager does."""
    x, shape = cast(fx.Node, args[0]), list(_spec(node).shape)
    if node.target is aten.view.default:
        return None if same_sizes(args[1], shape) else edit.call(aten.view.default, x, shape)
    if same_sizes(_spec(x).shape, shape):
        return edit.call(aten.view.default, x, shape)
    return edit.reshape(x, shape)


def _expanded(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    shape = list(_spec(node).shape)
    if node.target is aten.expand.default and same_sizes(args[1], shape) and not args[2]:
        return None
    return edit.call(aten.expand.default, args[0], shape)


def _sliced(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """0 <= start <= end <= size."""
    x, dim = cast(fx.Node, args[0]), cast(int, args[1])
    size = _spec(x).shape[dim]
    if schema.packet_name(node.target) == "narrow":
        start, end, step = args[2] % size if args[2] else 0, 0, 1
        end = start + args[3]
    else:
        (start, end), step = slice_bounds(size, args[2], args[3]), args[4]
        if (args[2], args[3]) in ((start, end), (None, end), (start, None)) and node.args == (
            x,
            dim,
            start,
            end,
        ):
            return None
    return edit.call(aten.slice.Tensor, x, dim, start, end, *([step] if step != 1 else []))


def _selected(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    x, dim, index = cast(fx.Node, args[0]), args[1], args[2]
    return edit.call(aten.select.int, x, dim, index + _spec(x).shape[dim]) if index < 0 else None


# --- copies and casts -----------------------------------------------------------------------------------------------


def _cast(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """to.dtype, type_as, _to_copy with superfluous arguments, ... by `_to_copy(x, dtype=...)` or by nothing."""
    x = cast(fx.Node, args[0])
    before, after = _spec(x), _spec(node)
    if before.device != after.device:
        return None
    fresh = node.target is aten._to_copy.default
    if before.dtype is after.dtype and same_strides(before, after):
        if not fresh and not _asks_for_copy(node):
            return x
        return edit.call(aten.clone.default, x)
    short = fresh and set(node.kwargs) <= {"dtype"}
    if short or node.kwargs.get("memory_format", torch.preserve_format) is not torch.preserve_format:
        return None
    return edit.call(aten._to_copy.default, x, dtype=after.dtype)


def _asks_for_copy(node: fx.Node) -> bool:
    position = schema.signature(node.target).position("copy")
    return position >= 0 and bool(schema.bound_args(node)[position])


def _contiguous(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    x = cast(fx.Node, args[0])
    if same_strides(_spec(x), _spec(node)):
        return x
    return edit.call(aten.clone.default, x, memory_format=args[1])


# --- numbers --------------------------------------------------------------------------------------------------------


def _scalar_overload(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """add.Scalar(x, 2) by add.Tensor(x, 2)."""
    packet = getattr(aten, schema.packet_name(node.target))
    target = cast(OpOverload, packet.Tensor)
    values = schema.bind(target, node.args, node.kwargs)
    if values is None:
        short, kwargs = schema.unbind(node.target, args)
        values = schema.bind(target, short[:2], {**kwargs, "alpha": args[2]} if len(args) > 2 else kwargs)
    if values is None:
        return None
    short, kwargs = schema.unbind(target, values)
    return edit.call(target, *short, **kwargs)


def _filled(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """zeros, ones, scalar_tensor, full without a dtype by `full(shape, number, dtype=...)`."""
    spec, value = _spec(node), fill_value(node)
    if value is None or not spec.is_contiguous:
        return None
    wanted = ([list(spec.shape), value], {"dtype": spec.dtype, "device": spec.device})
    if (
        node.target is aten.full.default
        and schema.same_literal(node.args, wanted[0])
        and node.kwargs == wanted[1]
    ):
        return None
    return edit.call(aten.full.default, list(spec.shape), value, dtype=spec.dtype, device=spec.device)


# --- products -------------------------------------------------------------------------------------------------------


def _untransposed(w: fx.Node, edit: Editor) -> fx.Node | None:
    """The matrix whose transpose `w` is: what a permute was made from, or a permute of a constant."""
    if w.target is aten.permute.default and list(cast("list[int]", w.args[1])) == [1, 0]:
        return cast(fx.Node, w.args[0])
    if w.target is aten.t.default:
        return cast(fx.Node, w.args[0])
    return edit.call(aten.permute.default, w, [1, 0]) if is_constant(w) else None


def _to_linear(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """mm(x, t(w)), matmul(x, t(w)), addmm(b, x, t(w)) by linear(x, w, b)."""
    bias: fx.Node | None = None
    if node.target is aten.addmm.default:
        bias, x, w, beta, alpha = args
        if beta != 1 or alpha != 1 or len(_spec(cast(fx.Node, bias)).shape) != 1:
            return None
        if _spec(cast(fx.Node, bias)).shape[0] != _spec(w).shape[1]:
            return None
    else:
        x, w = args
    if len(_spec(w).shape) != 2 or len(_spec(x).shape) < 2 or not _spec(x).dtype.is_floating_point:
        return None
    weight = _untransposed(w, edit)
    if weight is None:
        return None
    return edit.call(aten.linear.default, x, weight, *([bias] if bias is not None else []))


# --- others ---------------------------------------------------------------------------------------------------------


def _softmax(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    if args[2]:
        return None
    name = schema.packet_name(node.target)
    target = aten.softmax.int if name == "_softmax" else aten.log_softmax.int
    return edit.call(target, args[0], args[1])


def _average(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    """avg_pool2d of 7x7 by a window of 1280x1280, cut off at the border, by a window of 7x7."""
    x, kernel, _, padding, _, _, *divisor = args
    rank = int(schema.packet_name(node.target)[-2])
    kernel = list(kernel) * (rank if len(kernel) == 1 else 1)
    inputs, results = _spec(x).shape[-rank:], _spec(node).shape[-rank:]
    if any(padding) or any(d is not None for d in divisor) or any(n != 1 for n in results):
        return None
    cut = [min(k, n) for k, n in zip(kernel, inputs, strict=True)]
    return None if cut == kernel else edit.call(node.target, x, cut, cut)


def _rounding_none(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    return edit.call(aten.div.Tensor, args[0], args[1]) if args[2] is None else None


def _of_one_value(node: fx.Node, args: tuple[Any, ...], edit: Editor) -> fx.Node | None:
    x = args[0]
    if not of_rows(node) or not repeats_rows(node, x.meta["val"]):
        return None
    if schema.packet_name(node.target) != "sort":
        return edit.call(node.target, edit.call(aten.clone.default, x), *args[1:])
    dim, descending = args[-2:]
    return edit.call(aten.sort.stable, x, stable=True, dim=dim, descending=descending)


@lru_cache(maxsize=1)
def _table() -> Mapping[Any, Canonical]:
    families: list[tuple[Canonical, str]] = [
        (
            _permuted,
            "t transpose.int mT numpy_T adjoint movedim.int movedim.intlist moveaxis.int moveaxis.intlist",
        ),
        (_permuted, "swapaxes swapdims"),
        (_permute_from_front, "permute"),
        (_viewed, "view reshape _unsafe_view flatten.using_ints unflatten.int view_as reshape_as"),
        (_expanded, "expand expand_as broadcast_to"),
        (_sliced, "slice.Tensor narrow"),
        (_selected, "select.int"),
        (_cast, "_to_copy to.dtype to.dtype_layout to.device to.other type_as"),
        (_contiguous, "contiguous"),
        (_scalar_overload, "add.Scalar sub.Scalar mul.Scalar div.Scalar"),
        (_filled, "full zeros ones scalar_tensor zeros_like ones_like full_like"),
        (_to_linear, "mm matmul addmm"),
        (_softmax, "_softmax _log_softmax"),
        (_average, "avg_pool1d avg_pool2d avg_pool3d"),
        (_rounding_none, "div.Tensor_mode"),
        (_of_one_value, "sort sort.stable median.dim nanmedian.dim"),
    ]
    table: dict[Any, Canonical] = {}
    for rewrite, names in families:
        for name in names.split():
            packet, _, overload = name.partition(".")
            table[getattr(getattr(aten, packet), overload or "default")] = rewrite
    return table
