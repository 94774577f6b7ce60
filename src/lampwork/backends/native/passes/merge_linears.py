"""The pass `merge-linears`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import torch
from torch import fx

from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.graph.origin import place_of, stamp
from lampwork.graph.shapes_views import view_strides
from lampwork.graph.spec import TensorSpec
from lampwork.loops.ir.nodes import DType
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import escapes
from lampwork.rewriting.apply.edit import Editor, replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.matching.values import is_constant
from lampwork.rewriting.schema import bound_args
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

_DTYPES = {
    "cpu": (torch.float32, torch.float64),
    "cuda": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
}
_BY_STRIDES = (aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default)


@record
class _Layer:
    node: fx.Node
    weight: fx.Node
    bias: fx.Node | None

    @property
    def width(self) -> int:
        return _spec(self.weight).shape[0]


@record
class MergeLinears:
    """Linear layers that read one input become one, of all their weights: the query, key and value of attention, gate
    and up projections. Those without bias get zeros for it if others have one. Only where that is faster: with few
    rows, where their widths fit the panels of a product better together than apart (as measured); on a CUDA device,
    where none of the products has tiles for all of the card, and their weights are small enough to have them twice.

    target: the machine, whose panels they are, under given options. card: that of a device.

    before:  %q = linear(%x, %wq, %bq), %k = linear(%x, %wk), %v = linear(%x, %wv, %bv)
    after:   %w = cat([%wq, %wk, %wv]), %b = cat([%bq, full([64], 0.0), %bv]), %l = linear(%x, %w, %b),
             %q = slice(%l, 1, 0, 64), %k = slice(%l, 1, 64, 128), %v = slice(%l, 1, 128, 192)
    """

    name: ClassVar[str] = "merge-linears"

    target: Callable[[Config], Target]
    card: Callable[[torch.device, Config], Target]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        if any(node.target in _BY_STRIDES for node in graph.nodes):
            ctx.refuse(self.name, "the graph reads memory by strides, which would be others")
            return
        readers: dict[fx.Node, list[_Layer]] = {}
        for node in graph.nodes:
            if node.target is aten.linear.default:
                x, weight, bias = bound_args(node)
                readers.setdefault(x, []).append(_Layer(node, weight, bias))
        restrided: list[fx.Node] = []
        for layers in readers.values():
            if len(layers) < 2:
                continue
            fitting = [layer for layer in layers if self._accepts(_mergeable(layer), ctx)]
            if (
                len(fitting) >= 2
                and self._accepts(self._wins(fitting, ctx.config), ctx)
                and ctx.spend(self.name, fitting[0].node)
            ):
                restrided += _merge(graph, fitting, ctx)
        propagate_strides(graph, ctx.infer, restrided)

    def _wins(self, layers: Sequence[_Layer], config: Config) -> Verdict:
        """Whether one product is faster than those of `layers`."""
        device = _spec(layers[0].node).device
        if device.type == "cpu":
            return _fits_panels(layers, self.target(config))
        return _fits_card(layers, self.card(device, config))

    def _accepts(self, verdict: Verdict, ctx: PassContext) -> bool:
        if isinstance(verdict, No):
            ctx.refuse(self.name, verdict.reason)
        return bool(verdict)


def _spec(node: fx.Node) -> TensorSpec:
    return cast(TensorSpec, node.meta["val"])


def _mergeable(layer: _Layer) -> Verdict:
    """Whether one layer may be a part of another."""
    spec = _spec(layer.node)
    if spec.requires_grad:
        return No("gradients are recorded: the weights may be others at each call")
    if spec.dtype not in _DTYPES.get(spec.device.type, ()):
        return No(f"the layer computes {spec.dtype} on {spec.device}")
    if len(spec.shape) < 2 or any(type(size) is not int for size in spec.shape):
        return No(f"the result {spec} has no fixed number of rows")
    for parameter in (layer.weight, layer.bias):
        if parameter is None:
            continue
        if not is_constant(parameter):
            return No(f"{parameter.name} is computed in the graph")
        if _spec(parameter).dtype is not spec.dtype or _spec(parameter).device != spec.device:
            return No(f"{parameter.name} is {_spec(parameter)}")
        if parameter.target is aten._to_copy.default and spec.device.type == "cpu":
            return No(f"{parameter.name} may be read in the dtype it is kept in")
        if any(user is not layer.node for user in parameter.users):
            return No(f"{parameter.name} has other readers, there would be two of it")
    if len(_spec(layer.weight).shape) != 2:
        return No("the layer has one output only")
    if escapes(layer.node):
        return No(f"the result {layer.node.name} leaves the graph")
    return _users_take_slices(layer.node, spec)


def _users_take_slices(node: fx.Node, spec: TensorSpec) -> Verdict:
    # Any wider row has the same say here: whether rows merge with what is in them.
    strides = tuple(2 * s if dim < len(spec.shape) - 1 else s for dim, s in enumerate(spec.strides))
    wide = TensorSpec(spec.shape, strides, spec.dtype, spec.device)
    for user in node.users:
        if user.target is aten.view.default and view_strides(wide, _spec(user).shape) is None:
            return No(f"{user.name} would need a copy")
    return Yes()


def _fits_panels(layers: Sequence[_Layer], target: Target) -> Verdict:
    """Whether a product by templates is faster than those of `layers`."""
    spec, depth = _spec(layers[0].node), _spec(layers[0].weight).shape[1]
    rows = spec.numel // max(layers[0].width, 1)
    widths = [layer.width for layer in layers]
    if depth == 0 or 0 in widths:
        return No("the product is empty")
    if LOOP_DTYPES[spec.dtype] not in target.products:
        return No(f"products of {spec.dtype} are calls of ATen on {target.name}")
    if rows in target.edge_rows and _less_edge(widths, LOOP_DTYPES[spec.dtype], target):
        return Yes()
    if 0 < rows <= target.few_rows and len(widths) > 2:
        return Yes()
    return No(f"{rows} rows by {' + '.join(map(str, widths))} columns gain nothing")


def _fits_card(layers: Sequence[_Layer], target: Target) -> Verdict:
    """Whether one product by ATen on a card is faster than those of `layers`."""
    spec, depth = _spec(layers[0].node), _spec(layers[0].weight).shape[1]
    widths = [layer.width for layer in layers]
    rows = spec.numel // max(layers[0].width, 1)
    if 0 in (rows, depth, *widths):
        return No("the product is empty")
    if depth * sum(widths) * spec.dtype.itemsize > target.merged_bytes:
        return No("the weights are too large to have them twice")
    tiles = [-(-rows // _TILE) * -(-width // _TILE) for width in widths]
    turns = -(-sum(tiles) // max(target.product_tiles, 1))
    if max(tiles) < target.product_tiles and turns < len(layers):
        return Yes()
    return No(f"{rows} rows by {' + '.join(map(str, widths))} columns fill the card")


_TILE = 128
"""Rows, and columns, of a result that a multiprocessor computes at a time, about."""


def _less_edge(widths: Sequence[int], dtype: DType, target: Target) -> bool:
    panel, vector = target.panel(dtype), target.lanes(dtype)

    def panels(width: int) -> int:
        # Of the rest of a width, each vector costs about as much as a panel.
        return width // panel + -(-(width % panel) // vector)

    apart, together = sum(map(panels, widths)), panels(sum(widths))
    # Of equal widths also the edges that remain are better off behind each other, as measured.
    even = len(set(widths)) == 1 and widths[0] % panel != 0
    return apart > together or (even and apart == together)


def _merge(graph: fx.Graph, layers: Sequence[_Layer], ctx: PassContext) -> list[fx.Node]:
    """One layer in place of all; the new nodes whose strides are others than their users were recorded with."""
    first = layers[0].node
    for layer in layers:
        for parameter in (layer.weight, layer.bias):
            if parameter is not None:
                _raise(parameter, first)
    edit = ctx.editor(graph, first)
    spec = _spec(first)
    weight = edit.call(aten.cat.default, [layer.weight for layer in layers])
    bias = _merged_bias(layers, spec, edit)
    x = bound_args(first)[0]
    merged = edit.call(aten.linear.default, x, weight, *([] if bias is None else [bias]))
    start = 0
    parts: list[fx.Node] = []
    for layer in layers:
        part = edit.call(aten.slice.Tensor, merged, len(spec.shape) - 1, start, start + layer.width)
        stamp(part, place_of(layer.node))
        parts.append(part)
        start += layer.width
    changed: list[fx.Node] = []
    for layer, part in zip(layers, parts, strict=True):
        was = _spec(layer.node)
        replace(graph, layer.node, part)
        if adopt_strides(part, was):
            changed.append(part)
    return changed


def _merged_bias(layers: Sequence[_Layer], spec: TensorSpec, edit: Editor) -> fx.Node | None:
    if all(layer.bias is None for layer in layers):
        return None
    parts: list[fx.Node] = []
    for layer in layers:
        bias = layer.bias
        if bias is None:
            bias = edit.call(aten.full.default, [layer.width], 0.0, dtype=spec.dtype, device=spec.device)
        parts.append(bias)
    return edit.call(aten.cat.default, parts)


def _raise(constant: fx.Node, point: fx.Node) -> None:
    """Bring a constant, and what it is computed from, before `point`."""
    if constant.op != "call_function" or constant < point:
        return
    for operand in constant.all_input_nodes:
        _raise(operand, point)
    point.prepend(constant)
