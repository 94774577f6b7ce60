"""torch's core ATen operators, and how it composes the others of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from lampwork.graph.opinfo import is_composite
from lampwork.standard import functools

aten = torch.ops.aten

Decomposition = Callable[..., Any]
"""Takes what the operator takes, and calls others."""


def is_core(target: Any) -> bool:
    """Whether torch counts an operator among core ATen."""
    return isinstance(target, OpOverload) and torch.Tag.core in target.tags


def decomposition_of(target: Any) -> Decomposition | None:
    """What an operator does, in terms of operators nearer to core ATen; None for what is core, and for what torch has
    no decomposition of that would give equal results.

    The first call loads torch's table, and with it modules that nothing else of Lampwork needs.
    """
    if not isinstance(target, OpOverload) or target.namespace != "aten" or is_core(target):
        return None
    if target in _OURS:
        return _OURS[target]
    for table in _tables():
        if target in table:  # the first is a dict of torch's whose `get` looks elsewhere
            return table[target]
    return functools.partial(_composed, target) if is_composite(target) else None


def _composed(target: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """torch's composition in C++."""
    return target._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)  # pyright: ignore


@functools.lru_cache(maxsize=1)
def _tables() -> tuple[Mapping[OpOverload, Decomposition], ...]:
    """Those for core ATen, and those in terms of ATen that torch leaves out there."""
    module: Any = importlib.import_module("torch._decomp")  # by name, as it is one of those modules
    others = {
        target: function
        for target, function in module.decomposition_table.items()
        if getattr(function, "__module__", "") == "torch._decomp.decompositions"
    }
    return module.core_aten_decompositions(), others


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """Products and a softmax, where torch's table names a kernel of the device."""
    wide = query.dtype in (torch.float32, torch.float64)
    if attn_mask is None and not is_causal and not dropout_p and wide and not options.get("enable_gqa"):
        # Nothing is masked, so no row is, and the softmax needs no care for rows of minus infinities.
        scale = options.get("scale") or query.shape[-1] ** -0.5
        scores = aten.matmul.default(query * scale, key.transpose(-2, -1))
        return aten.matmul.default(aten.softmax.int(scores, -1), value)
    math = aten._scaled_dot_product_attention_math.default
    return math(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]


def _variance_and_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance = aten.var.correction(self, dim, correction=correction, keepdim=keepdim)
    if not dim:
        dim = list(range(self.dim()))
    return variance, aten.mean.dim(self, dim, keepdim)


_OURS: Mapping[Any, Decomposition] = {
    aten.scaled_dot_product_attention.default: _attention,
    aten.var_mean.correction: _variance_and_mean,
}
