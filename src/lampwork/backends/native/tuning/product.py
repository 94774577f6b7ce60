"""One product of a graph, alone: what the tuner measures, and what it is known by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from lampwork import pristine
from lampwork.codegen.variants import Shape
from lampwork.graph.spec import TensorSpec, with_sizes
from lampwork.graph.symbols import hint_of
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Attention, Definition, Gemm
from lampwork.lower import attention, convolution, matmul
from lampwork.lower.dtypes import LOOP_DTYPES
from lampwork.records import record
from lampwork.rewriting.matching.values import is_constant

_OPERATORS = frozenset({*matmul.rules.rules, *convolution.rules.rules, *attention.rules.rules})
"""Those that may become a Gemm or an Attention."""


@record
class Product:
    """A node of a graph, with that node as a graph of its own: the placeholders are what it reads, those that are
    constant in the whole graph bound.

    key: equal for nodes that compute the same on operands of the same dtype, sizes, strides and constancy; sizes that
        stay open count with the value of the call at hand, and as open.
    title: for people.
    """

    graph: fx.Graph
    operands: tuple[TensorSpec, ...]
    bound: tuple[bool, ...]
    key: str
    title: str

    def tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """(inputs, bound tensors) to measure with: random numbers, where they are numbers of a floating type."""
        made = [_operand(with_sizes(spec, hint_of)) for spec in self.operands]
        pairs = list(zip(made, self.bound, strict=True))
        return [t for t, bound in pairs if not bound], [t for t, bound in pairs if bound]


def product_of(node: fx.Node) -> Product | None:
    """`node` as a product; None if it is none that is computed on each call."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    if node.target.name() not in _OPERATORS or node.meta.get("constant"):
        return None
    if not {"opaque", "random", "effect", "operands"}.isdisjoint(node.meta):
        return None
    reads = list(dict.fromkeys(node.all_input_nodes))
    specs = [read.meta.get("val") for read in reads]
    if not all(isinstance(spec, TensorSpec) and spec.dtype in LOOP_DTYPES for spec in specs):
        return None
    if not isinstance(node.meta.get("val"), TensorSpec) or any("opaque" in read.meta for read in reads):
        return None
    bound = tuple(is_constant(read) for read in reads)
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    # The inputs come before the bound placeholders, as in every graph of a backend.
    order = sorted(range(len(reads)), key=lambda number: bound[number])
    for position, number in enumerate(order):
        twin = graph.placeholder(f"p{position}")
        twin.meta = {"val": specs[number], **({"bound": True} if bound[number] else {})}
        twins[reads[number]] = twin
    args: Any = map_arg(node.args, twins.__getitem__)
    kwargs: Any = map_arg(node.kwargs, twins.__getitem__)
    single = graph.create_node("call_function", node.target, args, kwargs, "product")
    single.meta = dict(node.meta)
    graph.output((single,))
    operands = tuple(cast(TensorSpec, specs[number]) for number in order)
    flags = tuple(bound[number] for number in order)
    name = node.target.name().removesuffix(".default")
    texts = [_text(spec, constant) for spec, constant in zip(operands, flags, strict=True)]
    rest = [_plain(value) for value in (args, kwargs)]
    result = _text(cast(TensorSpec, node.meta["val"]), constant=False)
    key = f"{name}({', '.join(texts)}) {' '.join(rest)} -> {result}"
    title = f"{name.removeprefix('aten::')} {' x '.join(_short(spec) for spec in operands[:2])}"
    return Product(graph, operands, flags, key, title)


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
    out = pristine.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)
    if spec.dtype.is_floating_point:
        return out.copy_(pristine.linspace(-3, 3, spec.numel).sin().view(spec.shape))
    return out.zero_()


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
