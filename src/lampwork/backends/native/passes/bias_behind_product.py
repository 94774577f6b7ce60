"""The pass `bias-behind-product`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import fx

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.lower.table import rules_for
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import view_base
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.schema import bound_args, is_pinned
from lampwork.transforms.convolution import spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

APART = frozenset({torch.float32})
"""The dtypes whose products leave the bias to what follows, where they are exact: with TF32, and in half types, whose
sums are rounded behind the bias, it is part of the product. `benchmarks/gpu_calls.py` measures both."""


@record
class BiasBehindProduct:
    """The bias of a linear layer of float32 on a CUDA device is a sum of its own if kernels of ours read the result,
    which compute it with what else they do. With a bias ATen asks cuBLASLt for another kernel, one that ends in the
    sum, and of those the best are missing: in BERT-base's products one is two thirds as fast. The sum has the same one
    rounding. A product of depth 0 stays: eager gives the bias itself, and 0 + -0 is 0.

    target: that of a device.

    before:  %l = linear(%x, %w, %b), %g = gelu(%l)                                 %x: float32[8, 128, 768] on cuda:0
    after:   %p = linear(%x, %w), %l = add(%p, %b), %g = gelu(%l)
    """

    name: ClassVar[str] = "bias-behind-product"

    target: Callable[[torch.device, Config], Target]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        targets: dict[torch.device, Target] = {}
        changed: list[fx.Node] = []
        for node in list(graph.nodes):
            product = _product_of(node)
            if product is None or spec(node).device.type != "cuda":
                continue
            device = spec(node).device
            if device not in targets:
                targets[device] = self.target(device, ctx.config)
            verdict = No("a backend from outside takes it") if ctx.foreign(node) else Yes()
            verdict = verdict and _eligible(node, product, targets[device])
            if isinstance(verdict, No):
                ctx.refuse(self.name, verdict.reason)
            elif ctx.spend(self.name, node):
                was = spec(node)
                edit = ctx.editor(graph, node)
                bare = edit.call(product.bare, product.left, product.right)
                new = edit.call(aten.add.Tensor, bare, product.bias)
                replace(graph, node, new)
                if adopt_strides(new, was):
                    changed.append(new)
        propagate_strides(graph, ctx.infer, changed)


@record
class _Product:
    """bare(left, right) + bias."""

    bare: Any
    left: fx.Node
    right: fx.Node
    bias: fx.Node


def _product_of(node: fx.Node) -> _Product | None:
    """The product with a bias that a node is."""
    if node.target is aten.linear.default:
        x, weight, bias = bound_args(node)
        return None if bias is None else _Product(aten.linear.default, x, weight, bias)
    if node.target is aten.addmm.default:
        added, left, right, beta, alpha = bound_args(node)
        return _Product(aten.mm.default, left, right, added) if beta == alpha == 1 else None
    return None


def _eligible(node: fx.Node, product: _Product, target: Target) -> Verdict:
    operands = (spec(product.left), spec(product.right), spec(product.bias))
    if not isinstance(target, GpuTarget) or target.tf32 or spec(node).dtype not in APART:
        return No(f"products of {spec(node).dtype} end in their bias")
    if any(each.dtype is not spec(node).dtype or each.device != spec(node).device for each in operands):
        return No("the operands differ in dtype or device")
    left, right, bias = (len(each.shape) for each in operands)
    if left < 2 or right != 2 or bias != 1:
        return No("it is no product of matrices with one number for a column")
    if not any(map(_is_surely_positive, (operands[0].shape[-1], _depth(product)))):
        return No("it may be a sum of nothing, which eager leaves out: the bias keeps its -0")
    if spec(node).requires_grad:
        return No("gradients are recorded")
    if is_pinned(node):
        return No("it has an effect")
    if not all(_is_computed(reader, target) for reader in _readers(node)):
        return No("what reads it is no kernel of ours")
    return Yes()


def _depth(product: _Product) -> int:
    """How many columns the first matrix has, as the second says it."""
    return spec(product.right).shape[1 if product.bare is aten.linear.default else 0]


def _is_surely_positive(size: Any) -> bool:
    """Whether a size, which may be open, is never 0. Makes no condition."""
    less = size - 1
    return less >= 0 if isinstance(less, int) else less.is_surely_nonnegative()


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads a value, or views of it."""
    for user in node.users:
        if user.op == "call_function" and view_base(user) is node:
            yield from _readers(user)
        else:
            yield user


def _is_computed(reader: fx.Node, target: Target) -> bool:
    """Whether a kernel of ours computes what reads a product."""
    if reader.op != "call_function" or is_pinned(reader):
        return False
    rules = rules_for(torch.device("cuda"), templates=target.templates, updates=bool(target.atomics))
    name = getattr(reader.target, "name", None)
    return name is not None and name() in rules
