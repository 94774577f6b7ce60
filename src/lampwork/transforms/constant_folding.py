"""The pass `constant-folding`."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import fx
from torch._ops import OpOverload

from lampwork import pristine
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Symbolic, map_symbols
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import may_stand_for
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.matching.values import fill_value
from lampwork.rewriting.schema import is_pinned, signature
from lampwork.verdict import No

aten = torch.ops.aten

_COPIES = (aten.clone.default, aten._to_copy.default)
# Views by their schema, but of memory in another type.
_REINTERPRETING = (aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default)


@record
class ConstantFolding:
    """What is computed from tensors filled with a literal is filled with a literal. Larger literal tensors (arange and
    what is made of them) are left to be computed once, as constants.

    before:  %a = full([4, 4], 2.0), %b = mul(%a, 3), %c = expand(%b, [2, 4, 4]), %y = add(%x, %c)
    after:   %c = full([2, 4, 4], 6.0), %y = add(%x, %c)
    """

    name: ClassVar[str] = "constant-folding"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        restrided: list[fx.Node] = []
        for node in list(graph.nodes):
            value = _value(node)
            if value is None:
                continue
            spec = cast(TensorSpec, node.meta["val"])
            edit = ctx.editor(graph, node)
            new = edit.call(aten.full.default, list(spec.shape), value, dtype=spec.dtype, device=spec.device)
            verdict = may_stand_for(new, node)
            if isinstance(verdict, No) or not ctx.spend(self.name, node):
                if isinstance(verdict, No):
                    ctx.refuse(self.name, verdict.reason)
                edit.discard()
                continue
            replace(graph, node, new)
            if adopt_strides(new, spec):
                restrided.append(new)
        propagate_strides(graph, ctx.infer, restrided)


def _has_open_number(node: fx.Node) -> bool:
    """Whether an argument depends on sizes or numbers that stay open."""
    found: list[Symbolic] = []

    def note(symbolic: Symbolic) -> Symbolic:
        found.append(symbolic)
        return symbolic

    map_symbols((node.args, node.kwargs), note)
    return bool(found)


def _value(node: fx.Node) -> float | int | bool | None:
    """The number that fills the result of `node`, computed from the numbers that fill its operands."""
    spec = node.meta.get("val")
    target = node.target
    if node.op != "call_function" or is_pinned(node) or not isinstance(target, OpOverload):
        return None
    operands = node.all_input_nodes
    if (
        not operands
        or not isinstance(spec, TensorSpec)
        or spec.dtype.is_complex
        or fill_value(node) is not None
    ):
        return None
    filled = {n: fill_value(n) for n in operands}
    if any(v is None for v in filled.values()) or _has_open_number(node):
        return None
    if signature(target).aliased >= 0 and target not in _REINTERPRETING:
        return next(iter(filled.values()))
    if torch.Tag.pointwise not in target.tags and target not in _COPIES:
        return None

    def small(n: fx.Node) -> torch.Tensor:
        source = cast(TensorSpec, n.meta["val"])
        # Not torch.full, which the program may have replaced.
        shape = (1,) * len(source.shape)
        return torch.ops.aten.full.default(shape, cast(Any, filled[n]), dtype=source.dtype)

    args: Any = fx.map_arg(node.args, small)  # pyright: ignore[reportPrivateImportUsage]
    kwargs: Any = fx.map_arg(node.kwargs, small)  # pyright: ignore[reportPrivateImportUsage]
    with pristine.no_grad():
        result = cast(Any, target)(*args, **kwargs)
    if not isinstance(result, torch.Tensor) or result.dtype is not spec.dtype or result.numel() != 1:
        return None
    return result.item()
