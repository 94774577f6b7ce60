"""The pass `choose-layouts`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork.backends.native.passes.channels_last_convolution import is_product
from lampwork.backends.native.passes.convolutions import eligible
from lampwork.backends.native.precision import float32_in_bf16
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.graph.layouts import same_strides
from lampwork.graph.shapes_common import channels_last_strides
from lampwork.graph.spec import TensorSpec
from lampwork.min_cut import NEVER, Network
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import shows_strides, view_base
from lampwork.rewriting.apply.edit import replace as replace_node
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.matching.values import is_constant
from lampwork.standard import math
from lampwork.transforms.convolution import Convolution, convolution, spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

_FOLLOWS = frozenset(
    {
        aten.cat.default,
        aten.native_batch_norm.default,
        aten.batch_norm.default,
        aten.max_pool2d.default,
        aten.max_pool3d.default,
        aten.avg_pool2d.default,
        aten.avg_pool3d.default,
        aten.upsample_nearest2d.default,
        aten.upsample_bilinear2d.default,
        aten.constant_pad_nd.default,
        aten.dropout.default,
    }
)
"""Operators beside the pointwise ones whose results lie as their operands do, and that take either order."""


@record
class ChooseLayouts:
    """1 x 1 convolutions whose operands are better off in row-major order become products with the pixels as columns.

    A product takes channels-last tensors, with the pixels as rows, and row-major ones, with the pixels as columns, each
    without a copy. So the order of every tensor between a network's convolutions can be chosen: the choice is the
    cheapest cut of a network whose edges are the tensors, at the cost of putting them in the other order, between what
    has to be row-major (inputs, outputs and reshapes that are) and what has to be channels-last (other convolutions).
    To keep everything channels-last is one of the cuts, so none costs more by this measure.

    before:  %c = conv2d(%x, %w, %b)                            %x: (1, 64, 56, 56) row-major, %w: (32, 64, 1, 1)
    after:   %p = matmul(view(%w, [32, 64]), view(%x, [1, 64, 3136])) + view(%b, [32, 1])
             %c = view(%p, [1, 32, 56, 56])
    """

    name: ClassVar[str] = "choose-layouts"

    target: Callable[[Config], Target]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        target = self.target(ctx.config)
        if not any(_could_be(node, target) for node in graph.nodes):
            return
        rows = _Choice(target, lambda node: _could_be(node, target) and not ctx.foreign(node)).row_major(
            graph
        )
        changed: list[fx.Node] = []
        for conv in eligible(graph, ctx, self.name, lambda conv: _verdict(conv, target, rows)):
            changed += _as_product(graph, conv, ctx)
        propagate_strides(graph, ctx.infer, changed)


def _could_be(node: fx.Node, target: Target) -> bool:
    conv = convolution(node) if node.op == "call_function" else None
    return conv is not None and isinstance(_fits(conv, target), Yes)


def _verdict(conv: Convolution, target: Target, rows: set[fx.Node]) -> Verdict:
    fits = _fits(conv, target)
    if isinstance(fits, No) or conv.node in rows:
        return fits
    return No("it costs less in channels-last order")


def _fits(conv: Convolution, target: Target) -> Verdict:
    """Whether a convolution is one product over the pixels as they lie."""
    x, w = spec(conv.x), spec(conv.weight)
    if conv.transposed or conv.groups != 1 or any(size != 1 for size in w.shape[2:]):
        return No("it has more than one tap, or groups")
    if any(step != 1 for step in conv.stride) or any(conv.padding):
        return No("it has strides or padding")
    if x.device.type != "cpu":
        return No(f"it is computed on {x.device}")
    if x.dtype not in (torch.float32, torch.float64):
        return No(f"it rounds {x.dtype} more than once")
    in_bf16 = float32_in_bf16(target)
    if in_bf16.products or in_bf16.convolutions:
        return No("products of float32 are computed in bfloat16")
    if any(type(size) is not int for size in x.shape):
        return No("its sizes are open")
    return is_product(conv, target)


def _as_product(graph: fx.Graph, conv: Convolution, ctx: PassContext) -> list[fx.Node]:
    edit = ctx.editor(graph, conv.node)
    was = spec(conv.node)
    outputs, channels = spec(conv.weight).shape[:2]
    images, pixels = spec(conv.x).shape[0], math.prod(spec(conv.x).shape[2:])
    weight = edit.call(aten.view.default, conv.weight, [outputs, channels])
    columns = edit.reshape(conv.x, [images, channels, pixels])
    product = edit.call(aten.matmul.default, weight, columns)
    if conv.bias is not None:
        bias = edit.call(aten.view.default, conv.bias, [outputs, 1])
        product = edit.call(aten.add.Tensor, product, bias)
    new = edit.reshape(product, was.shape)
    replace_node(graph, conv.node, new)
    return [new] if adopt_strides(new, was) else []


# --- the choice -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    """The source's side of the cut is row-major, the sink's is channels-last."""

    target: Target
    could_be: Callable[[fx.Node], bool]
    network: Network = field(default_factory=Network)
    numbers: dict[fx.Node, int] = field(default_factory=dict[fx.Node, int])

    def row_major(self, graph: fx.Graph) -> set[fx.Node]:
        """The convolutions that are to be row-major."""
        free = self._reached(graph)
        if not any(self.could_be(node) for node in free):
            return set()
        for node in free:
            self.numbers[node] = self.network.node()
        for node in free:
            self._compute(node)
        values = dict.fromkeys([*free, *(each for node in free for each in _tensors(node))])
        for value in values:
            self._tensor(value)
        side = self.network.source_side()
        return {node for node in free if self.could_be(node) and self.numbers[node] in side}

    def _reached(self, graph: fx.Graph) -> list[fx.Node]:
        """What has a choice and is connected, through others that have one, with something row-major."""
        free = {node for node in graph.nodes if self._is_free(node)}
        waiting = [
            node
            for node in free
            if any(self._place(each, free) == self.network.source for each in _tensors(node))
            or any(self._wants_rows(node, user) for user in node.users)
        ]
        found = set(waiting)
        while waiting:
            node = waiting.pop()
            for each in (*_tensors(node), *node.users):
                if each in free and each not in found:
                    found.add(each)
                    waiting.append(each)
        return [node for node in graph.nodes if node in found]

    def _is_free(self, node: fx.Node) -> bool:
        if node.op != "call_function" or is_constant(node):
            return False
        found = node.meta.get("val")
        if not isinstance(found, TensorSpec) or not _has_orders(found):
            return False
        return self.could_be(node) or _follows(node)

    def _place(self, node: fx.Node, free: Any) -> int | None:
        """On which side something without a choice is, that is read; None: it has none, or lies as well both ways."""
        if node in free:
            return self.numbers.get(node)
        found = node.meta.get("val")
        if not isinstance(found, TensorSpec) or not _has_orders(found) or is_constant(node):
            return None
        # The strides of what is computed here are those of before other convolutions become channels-last.
        root = node
        while (base := view_base(root)) is not None:
            root = base
        is_given = root.op == "placeholder" and not _is_channels_last(found)
        return self.network.source if is_given else self.network.sink

    def _wants_rows(self, node: fx.Node, user: fx.Node) -> bool:
        """Whether a reader without a choice wants a value row-major: the caller, or what merges channels and
        pixels."""
        found = spec(node)
        if user.op == "output":
            return not _is_channels_last(found) and shows_strides(node)
        shown = user.meta.get("val")
        if view_base(user) is not node or not isinstance(shown, TensorSpec):
            return False
        return len(shown.shape) == 2 and shown.shape[:1] == found.shape[:1]

    def _compute(self, node: fx.Node) -> None:
        """What computing it costs more with the pixels as columns. (Few outputs as columns cost as little as others:
        there are tiles for them.)"""
        if not self.could_be(node):
            return
        conv = cast(Convolution, convolution(node))
        outputs, channels = spec(conv.weight).shape[:2]
        images, pixels = spec(node).shape[0], math.prod(spec(node).shape[2:])
        work = 2.0 * images * pixels * outputs * channels
        number = self.numbers[node]
        self.network.edge(number, self.network.sink, work * (self._padded(pixels) * _UNPACKED - 1))

    def _padded(self, columns: int) -> float:
        """How many columns are computed for each that counts."""
        lanes = max(1, self.target.vector_bytes // 4)
        return math.ceil(columns / lanes) * lanes / columns

    def _tensor(self, value: fx.Node) -> None:
        """What it costs to read it in another order than it was made in: one copy, whoever reads it."""
        made = self._place(value, self.numbers)
        if made is None:
            return
        found = spec(value)
        cost = float(found.numel * found.dtype.itemsize * self.target.reorder_work)
        rows, last = self.network.node(), self.network.node()
        self.network.edge(made, last, cost)
        self.network.edge(rows, made, cost)
        for user in value.users:
            if user in self.numbers:
                number: int | None = self.numbers[user]
            elif self._wants_rows(value, user):
                number = self.network.source
            elif self._is_free(user) or _reduces(value, user):
                number = None
            else:
                number = self.network.sink
            if number is not None:
                self.network.edge(last, number, NEVER)
                self.network.edge(number, rows, NEVER)


_UNPACKED = 1.1
"""What a product takes longer whose left operand is the weights: they are no panels."""


def _follows(node: fx.Node) -> bool:
    target: Any = node.target
    if target in _FOLLOWS:
        return True
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


def _reduces(value: fx.Node, user: fx.Node) -> bool:
    """Whether a reader makes fewer elements of a value, whatever their order."""
    found = user.meta.get("val")
    if view_base(user) is not None or not isinstance(found, TensorSpec):
        return False
    return user.op == "call_function" and convolution(user) is None and found.numel * 4 <= spec(value).numel


def _tensors(node: fx.Node) -> Iterator[fx.Node]:
    """The operands that lie in one order or the other, weights aside."""
    conv = convolution(node)
    if conv is not None:
        yield conv.x
        return
    own = spec(node).shape if isinstance(node.meta.get("val"), TensorSpec) else ()
    for each in node.all_input_nodes:
        found = each.meta.get("val")
        if isinstance(found, TensorSpec) and len(found.shape) == len(own) and not is_constant(each):
            yield each


def _has_orders(found: TensorSpec) -> bool:
    """Whether row-major and channels-last are different orders of it."""
    if len(found.shape) not in (3, 4, 5) or any(type(size) is not int for size in found.shape):
        return False
    return found.shape[1] > 1 and math.prod(found.shape[2:]) > 1 and found.numel > 0


def _is_channels_last(found: TensorSpec) -> bool:
    strides = channels_last_strides(found.shape) if len(found.shape) > 3 else None
    if strides is None:
        return len(found.shape) == 3 and found.strides[1] == 1
    return same_strides(found, replace(found, strides=strides))
