"""One product of a graph, alone: what the tuner measures, and what it is known by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from lampwork import pristine
from lampwork.codegen.variants import Shape
from lampwork.graph.concrete import scope_of
from lampwork.graph.nodes import add_call
from lampwork.graph.origin import place_of
from lampwork.graph.spec import TensorSpec, with_sizes
from lampwork.graph.symbols import hint_of
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Attention, Definition, Gemm
from lampwork.loops.ir.symbols import NO_HINTS
from lampwork.lower import attention, convolution, matmul
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.records import record
from lampwork.rewriting.matching.values import is_constant

_OPERATORS = frozenset({*matmul.rules.rules, *convolution.rules.rules, *attention.rules.rules})
"""Those that may become a Gemm or an Attention."""


@record
class Product:
    """A node of a graph, or one and what follows it, as a graph of its own: the placeholders are what it reads, those
    that are constant in the whole graph bound. The product is the node "product" there.

    key: equal for nodes that compute the same on operands of the same dtype, sizes, strides and constancy; sizes that
        stay open count with the value of the call at hand, and as open.
    title: for people.
    """

    graph: fx.Graph
    operands: tuple[TensorSpec, ...]
    bound: tuple[bool, ...]
    key: str
    title: str

    @property
    def hints(self) -> Mapping[str, int]:
        """The values of the symbols in sizes, at the call at hand."""
        scope = scope_of(self.graph)
        return NO_HINTS if scope is None else scope.hints

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """(inputs, bound tensors) to measure with: random numbers, where they are numbers of a floating type."""
        made = [_operand(with_sizes(spec, hint_of)) for spec in self.operands]
        pairs = list(zip(made, self.bound, strict=True))
        return [t for t, bound in pairs if not bound], [t for t, bound in pairs if bound]


def product_of(node: fx.Node) -> Product | None:
    """`node` as a product; None if it is none that is computed on each call."""
    return _alone([node]) if is_product(node) and _may_stand_alone(node) else None


def is_product(node: fx.Node) -> bool:
    """Whether a node is an operator that may become a Gemm or an Attention."""
    target = node.target
    return (
        node.op == "call_function"
        and isinstance(target, torch._ops.OpOverload)
        and target.name() in _OPERATORS
    )


def chain_of(nodes: Sequence[fx.Node]) -> Product | None:
    """A product and what follows it, each the only reader of the one before, as one graph of one result."""
    return _alone(nodes) if all(map(_may_stand_alone, nodes)) else None


def _may_stand_alone(node: fx.Node) -> bool:
    """Whether a node can be computed in a graph of its own."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.meta.get("constant"):
        return False
    if not {"opaque", "random", "effect", "operands"}.isdisjoint(node.meta):
        return False
    specs = [read.meta.get("val") for read in node.all_input_nodes]
    if not all(isinstance(spec, TensorSpec) and spec.dtype in LOOP_DTYPES for spec in specs):
        return False
    own = node.meta.get("val")
    return isinstance(own, TensorSpec) and not any("opaque" in read.meta for read in node.all_input_nodes)


def _alone(nodes: Sequence[fx.Node]) -> Product:
    inside = set(nodes)
    reads = list(dict.fromkeys(read for node in nodes for read in node.all_input_nodes if read not in inside))
    specs = [cast(TensorSpec, read.meta["val"]) for read in reads]
    bound = tuple(is_constant(read) for read in reads)
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    # The inputs come before the bound placeholders, as in every graph of a backend.
    order = sorted(range(len(reads)), key=lambda number: bound[number])
    for position, number in enumerate(order):
        twin = graph.placeholder(f"p{position}")
        twin.meta = {"val": specs[number], **({"bound": True} if bound[number] else {})}
        twins[reads[number]] = twin
    operands = tuple(specs[number] for number in order)
    flags = tuple(bound[number] for number in order)
    keys: list[str] = []
    for number, node in enumerate(nodes):
        args: Any = map_arg(node.args, twins.__getitem__)
        kwargs: Any = map_arg(node.kwargs, twins.__getitem__)
        name = "product" if number == 0 else f"then{number}"
        twin = add_call(graph, node.target, args, kwargs, name, place_of(node))
        twin.meta = dict(node.meta)
        called = _name(node)
        texts = [_text(spec, constant) for spec, constant in zip(operands, flags, strict=True)]
        given = ", ".join(texts) if number == 0 else ""
        rest = [_plain(value) for value in (args, kwargs)]
        result = _text(cast(TensorSpec, node.meta["val"]), constant=False)
        keys.append(f"{called}({given}) {' '.join(rest)} -> {result}")
        twins[node] = twin
    graph.output((twins[nodes[-1]],))
    short = " x ".join(_short(read.meta["val"]) for read in _factors(nodes[0]))
    after = "".join(f" + {_name(node).removeprefix('aten::').partition('.')[0]}" for node in nodes[1:])
    title = f"{_name(nodes[0]).removeprefix('aten::')} {short}{after}"
    return Product(graph, operands, flags, "; ".join(keys), title)


def _name(node: fx.Node) -> str:
    return cast(Any, node.target).name().removesuffix(".default")


def _factors(node: fx.Node) -> list[fx.Node]:
    """The first two operands of a product, for people."""
    reads = list(dict.fromkeys(node.all_input_nodes))
    return sorted(reads, key=is_constant)[:2]


def shape_of(definitions: Sequence[Definition], fixed: frozenset[str]) -> Shape | None:
    """What the candidates for a product depend on, from what it was lowered to; None if that is no one template.
    `fixed`: the buffers with the same data on every call."""
    found = [each for each in definitions if isinstance(each, Gemm | Attention)]
    if len(found) != 1:
        return None
    template = found[0]
    if isinstance(template, Attention):
        sizes = (template.m.extent, template.n.extent, template.d.extent)
        return Shape("attention", template.q.buffer.dtype, *map(_number, sizes), constant=False)
    sizes = (template.m.extent, template.n.extent, template.k.extent)
    kind = "conv" if template.rows else "gemm"
    constant = template.b.buffer.name in fixed
    return Shape(kind, template.a.buffer.dtype, *map(_number, sizes), constant=constant)


def _number(size: Index) -> int:
    known = size.as_int()
    return known if known is not None else 128


def _operand(spec: TensorSpec) -> Tensor:
    """Numbers to measure with. None are drawn: the program's own come from torch's generator."""
    # Elements may share their places.
    last = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True))
    memory = pristine.empty(last + 1 if spec.numel else 0, dtype=spec.dtype, device=spec.device)
    return filled(memory).as_strided(spec.shape, spec.strides)


def filled(out: Tensor) -> Tensor:
    """A tensor with numbers all over [-1, 1], if they are of a floating type. Of bool half of it is true; others are
    zeros, which are in the range of every index."""
    if not out.dtype.is_floating_point and out.dtype != torch.bool:
        return out.zero_()
    turns = pristine.arange(out.numel(), dtype=torch.float64, device=out.device)
    numbers = turns.mul_(0.6180339887498949).frac_().mul_(2).sub_(1).view(out.shape)
    return out.copy_(numbers > 0 if out.dtype == torch.bool else numbers)


def _text(spec: TensorSpec, constant: bool) -> str:
    """Everything about an operand that code depends on."""
    dtype = str(spec.dtype).removeprefix("torch.")
    return f"{'const ' if constant else ''}{dtype}{_sizes(spec.shape)}{_sizes(spec.strides)}"


def _sizes(sizes: Sequence[int]) -> str:
    return f"[{','.join(str(hint_of(size)) + ('' if type(size) is int else '?') for size in sizes)}]"


def _short(spec: TensorSpec) -> str:
    dtype = str(spec.dtype).removeprefix("torch.")
    return f"{dtype}{_sizes(spec.shape)}"


def _plain(argument: Any) -> str:
    """An argument of the node, its operands as p0, p1, …"""
    if isinstance(argument, tuple | list):
        return f"({' '.join(_plain(item) for item in cast('list[Any]', argument))})"
    if isinstance(argument, dict):
        items = cast("dict[str, Any]", argument).items()
        return f"({' '.join(f'{name}={_plain(value)}' for name, value in items)})"
    if isinstance(argument, fx.Node):
        return argument.name
    return str(argument) if type(argument) in (int, float, bool, str, type(None)) else str(hint_of(argument))
