"""Reading the scores of an attention that is written out: how the operand of a softmax comes from query, key, a scale
and masks, in whatever order and spelling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.symbols import same_size, same_sizes
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.library.ranges import spec
from lampwork.rewriting.matching.values import fill_value
from lampwork.standard import math
from lampwork.verdict import No

aten = torch.ops.aten

_PRODUCTS = (aten.matmul.default, aten.bmm.default, aten.mm.default, aten.baddbmm.default)
_RESHAPES = (
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
)


@record
class Addend:
    """What is added to scores of the batch dimensions `batch`, or multiplies them: a tensor, times a number."""

    node: fx.Node
    batch: tuple[int, ...]
    factor: float = 1.0


@record
class Choice:
    """Where scores of the batch dimensions `batch` are replaced by the number `value`: where `node` is true, or, if
    `open`, where it is false."""

    node: fx.Node
    open: bool
    batch: tuple[int, ...]
    value: float


@record
class Scores:
    """query @ key^T * scale, times `factors` (tensors with one column), plus `addends`, with `choices` made.

    `key` is key^T where `turned`. `product_batch`: the batch dimensions of the product. `inside`: the nodes between
    softmax and product, the product last.
    """

    query: fx.Node
    key: fx.Node
    turned: bool
    scale: float
    factors: tuple[Addend, ...]
    addends: tuple[Addend, ...]
    choices: tuple[Choice, ...]
    product_batch: tuple[int, ...]
    inside: tuple[fx.Node, ...]


@dataclass(slots=True)
class _Reader:
    """`factor`: what the value at hand is still multiplied with on its way to the softmax."""

    rows: int
    columns: int
    batch: tuple[int, ...]
    factor: float = 1.0
    factors: list[Addend] = field(default_factory=list[Addend])
    addends: list[Addend] = field(default_factory=list[Addend])
    choices: list[Choice] = field(default_factory=list[Choice])
    inside: list[fx.Node] = field(default_factory=list[fx.Node])

    def read(self, node: fx.Node) -> Scores | No:
        while True:
            if node.op != "call_function" or schema.is_pinned(node):
                return No(f"the scores come from {node.name}, which is no product")
            self.inside.append(node)
            if node.target in _PRODUCTS or node.target is aten.linear.default:
                return self._product(node)
            below = self._step(node)
            if isinstance(below, No):
                return below
            node = below

    def _step(self, node: fx.Node) -> fx.Node | No:
        """The node before this one on the way to the product."""
        name, args = schema.packet_name(node.target), schema.bound_args(node)
        match name:
            case "mul" if (number := plain_number(args[1])) is not None:
                self.factor *= number
            case "mul" if (number := plain_number(args[0])) is not None:
                self.factor *= number
                return self._checked(node, args[1])
            case "mul" if isinstance(args[1], fx.Node):
                a, b = args[0], args[1]
                return self._multiplied(node, a, b) if _leads_to_product(a) else self._multiplied(node, b, a)
            case "div" if (number := plain_number(args[1])) is not None and number != 0 and len(args) == 2:
                self.factor /= number
            case "add" if args[2] == 1 and isinstance(args[1], fx.Node):
                a, b = args[0], args[1]
                # The scores are the operand that a product is behind; a mask may have their shape too.
                return self._added(node, a, b) if _leads_to_product(a) else self._added(node, b, a)
            case "sub" if args[2] == 1 and isinstance(args[1], fx.Node):
                return self._added(node, args[0], args[1], -1.0)
            case "masked_fill":
                return self._chosen(node, args[0], args[1], args[2], is_open=False)
            case "where" if isinstance(args[1], fx.Node) and fill_value(args[1]) is None:
                return self._chosen(node, args[1], args[0], args[2], is_open=True)
            case "where":
                return self._chosen(node, args[2], args[0], args[1], is_open=False)
            case "clone":
                pass
            case _ if node.target in _RESHAPES or _keeps_order(node):
                return self._reshaped(node)
            case _:
                return No(f"the scores come from {node.name}, which is no product")
        return self._checked(node, args[0])

    def _checked(self, node: fx.Node, below: Any) -> fx.Node | No:
        """`below`, where it has the shape of `node`."""
        if not isinstance(below, fx.Node) or not same_sizes(spec(below).shape, spec(node).shape):
            return No(f"{node.name} broadcasts the scores")
        return below

    def _in_rows(self, node: fx.Node, below: fx.Node) -> fx.Node | No:
        """`below`, where a mask meets it in rows of scores."""
        if len(spec(node).shape) != len(self.batch) + 2 or not self._fits(spec(node).shape):
            return No(f"{node.name} does not meet the scores in rows")
        return self._checked(node, below)

    def _multiplied(self, node: fx.Node, scores: fx.Node, factor: fx.Node) -> fx.Node | No:
        shape = spec(factor).shape
        if not _leads_to_product(scores) or (shape and not same_size(shape[-1], 1)):
            return No(f"the scores come from {node.name}, which is no product")
        if spec(factor).dtype is not spec(node).dtype:
            return No(f"{factor.name} is {spec(factor).dtype}, the scores are {spec(node).dtype}")
        self.factors.append(Addend(factor, self.batch))
        return self._in_rows(node, scores)

    def _added(self, node: fx.Node, scores: fx.Node, mask: fx.Node, sign: float = 1.0) -> fx.Node | No:
        if self.choices:
            return No("something is added to the scores before places are closed")
        if self.factors:
            return No("the scores are multiplied by a tensor after something was added")
        if spec(mask).dtype is not spec(node).dtype:
            return No(f"{mask.name} is {spec(mask).dtype}, the scores are {spec(node).dtype}")
        self.addends.append(Addend(mask, self.batch, sign * self.factor))
        return self._in_rows(node, scores)

    def _chosen(
        self, node: fx.Node, scores: Any, mask: fx.Node, value: Any, *, is_open: bool
    ) -> fx.Node | No:
        number = plain_number(value)
        if number is None:
            return No(f"{node.name} replaces scores by what is not one number")
        if self.addends:
            return No("something is added to the scores after places were closed")
        if self.factors:
            return No("the scores are multiplied by a tensor after places were closed")
        if not isinstance(scores, fx.Node) or spec(mask).dtype is not torch.bool:
            return No(f"{node.name} does not choose by a mask of bools")
        self.choices.append(Choice(mask, is_open, self.batch, number * self.factor))
        return self._in_rows(node, scores)

    def _reshaped(self, node: fx.Node) -> fx.Node | No:
        below = cast(fx.Node, node.args[0])
        shape = spec(below).shape
        while len(shape) > 2 and shape[-1] == 1 and not self._fits(shape):
            shape = shape[:-1]
        if not self._fits(shape):
            # On the way between two layouts of the same batch dimensions, as einsum makes them.
            if below.op == "call_function" and (below.target in _RESHAPES or _keeps_order(below)):
                self.inside.append(below)
                return self._reshaped(below)
            return No(f"{node.name} splits or merges rows of scores")
        self.batch = tuple(shape[:-2])
        return below

    def _fits(self, shape: Sequence[int]) -> bool:
        return len(shape) >= 2 and same_size(shape[-2], self.rows) and same_size(shape[-1], self.columns)

    def _product(self, node: fx.Node) -> Scores | No:
        args = schema.bound_args(node)
        factor = self.factor
        if node.target is aten.linear.default:
            if args[2] is not None or len(spec(args[0]).shape) != 2:
                return No(f"{node.name} is a layer, not scores")
            query, key, turned = args[0], args[1], False
        elif node.target is aten.baddbmm.default:
            base, query, key, beta, alpha = args
            turned = True
            if beta != 0:
                if self.choices or self.factors:
                    return No(f"{node.name} adds something, and more is done to the scores")
                self.addends.append(Addend(base, self.batch, factor * beta))
            factor *= alpha
        else:
            query, key = args[0], args[1]
            turned = True
        if len(spec(node).shape) < 2 or not self._fits(spec(node).shape):
            return No(f"{node.name} gives no rows of scores")
        query, factor = _without_factor(query, factor)
        if turned and _turns(key):
            key, turned = cast(fx.Node, key.args[0]), False
        key, factor = _without_factor(key, factor)
        if turned and _turns(key):
            key, turned = cast(fx.Node, key.args[0]), False
        return Scores(
            query,
            key,
            turned,
            factor,
            tuple(self.factors),
            tuple(self.addends),
            tuple(self.choices),
            tuple(spec(node).shape[:-2]),
            tuple(self.inside),
        )


def read_scores(node: fx.Node) -> Scores | No:
    """What the operand `node` of a softmax over its last dimension is computed from, or why it is no attention."""
    shape = spec(node).shape
    if len(shape) < 2:
        return No("the softmax is over a vector")
    return _Reader(shape[-2], shape[-1], tuple(shape[:-2])).read(node)


def plain_number(value: Any) -> float | None:
    """A number, or the number that a tensor of no dimensions is filled with."""
    if isinstance(value, fx.Node):
        if value.op != "call_function" or value.meta["val"].shape != ():
            return None
        value = fill_value(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _leads_to_product(node: fx.Node) -> bool:
    """Whether a product is behind `node`, along first operands."""
    for _ in range(12):
        if node.op != "call_function":
            return False
        if node.target in _PRODUCTS or node.target is aten.linear.default:
            return True
        name, args = schema.packet_name(node.target), node.args
        if name == "where" and isinstance(args[1], fx.Node) and fill_value(args[1]) is None:
            following = args[1]
        elif name == "where":
            following = args[2] if len(args) > 2 else None
        elif (
            name in ("mul", "div", "add", "sub", "masked_fill", "clone")
            or node.target in _RESHAPES
            or _keeps_order(node)
        ):
            following = args[0]
        else:
            return False
        if not isinstance(following, fx.Node):
            return False
        node = following
    return False


def _keeps_order(node: fx.Node) -> bool:
    """A permute that moves dimensions of one element only."""
    if node.target is not aten.permute.default:
        return False
    shape = spec(cast(fx.Node, node.args[0])).shape
    dims = [d for d in cast("list[int]", node.args[1]) if not same_size(shape[d], 1)]
    return dims == sorted(dims)


def reshape_source(node: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """The node behind views and copies that keep the order of elements, and those between, the last first."""
    passed: list[fx.Node] = []
    while node.op == "call_function":
        if node.target in _RESHAPES or node.target is aten.clone.default:
            moved = (node,)
        else:
            moved = _permutes_in_order(node)
        if not moved:
            break
        passed += moved
        node = cast(fx.Node, moved[-1].args[0])
    return node, tuple(passed)


def _permutes_in_order(node: fx.Node) -> tuple[fx.Node, ...]:
    """Permutes, `node` the last of them, that together move dimensions of one element only; none if there are none."""
    passed: list[fx.Node] = []
    dims = list(range(len(spec(node).shape)))
    while node.op == "call_function" and node.target is aten.permute.default:
        passed.append(node)
        inner = cast("list[int]", node.args[1])
        dims = [inner[d] for d in dims]
        node = cast(fx.Node, node.args[0])
        moved = [d for d in dims if not same_size(spec(node).shape[d], 1)]
        if moved == sorted(moved):
            return tuple(passed)
    return ()


def _turns(node: fx.Node) -> bool:
    """A permute that exchanges the last two dimensions and nothing else."""
    if node.op != "call_function" or node.target is not aten.permute.default:
        return False
    dims = list(cast("list[int]", node.args[1]))
    rank = len(dims)
    return rank >= 2 and dims == [*range(rank - 2), rank - 1, rank - 2]


def _without_factor(node: fx.Node, factor: float) -> tuple[fx.Node, float]:
    """The tensor that `node` is a number times, and the factor times that number."""
    if node.op == "call_function" and node.target in (aten.mul.Tensor, aten.div.Tensor):
        x, number = node.args[0], plain_number(node.args[1])
        if isinstance(x, fx.Node) and number is not None and same_sizes(spec(x).shape, spec(node).shape):
            if node.target is aten.mul.Tensor:
                return x, factor * number
            if number != 0:
                return x, factor / number
    return node, factor
