"""Every rule of every op family: operator name ("aten::add.Tensor", "aten::relu") -> rule."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lampwork.lower import (
    activations,
    activations_backward,
    attention,
    bags,
    casts,
    cat,
    convolution,
    convolution_backward,
    creation,
    embedding,
    grids,
    grouped,
    losses,
    losses_backward,
    matmul,
    norm,
    norm_backward,
    pointwise,
    pool,
    pool_backward,
    random,
    random_words,
    recurrent,
    recurrent_gradient,
    reduce,
    resize,
    scans,
    scatter,
    search,
    softmax,
    softmax_backward,
    sort,
    updates,
    views,
    views_backward,
)
from lampwork.lower.registry import Rule, merge

_LOOPS = (
    pointwise.rules,
    activations.rules,
    activations_backward.rules,
    casts.rules,
    creation.rules,
    views.rules,
    views_backward.rules,
    cat.rules,
    embedding.rules,
    reduce.rules,
    scans.rules,
    softmax.rules,
    softmax_backward.rules,
    norm.rules,
    norm_backward.rules,
    pool.rules,
    pool_backward.rules,
    resize.rules,
    grids.rules,
    losses.rules,
    losses_backward.rules,
    random_words.rules,
)

_TEMPLATES = (
    matmul.rules,
    grouped.rules,
    convolution.rules,
    convolution_backward.rules,
    attention.rules,
    recurrent.rules,
    recurrent_gradient.rules,
)
_PRODUCTS = ("linear", "mm", "addmm", "bmm", "baddbmm", "matmul")
_OPERATORS = (random.rules, sort.rules, search.rules, scatter.rules, bags.rules)
"""Made of operators of the runtime, which are for the CPU."""

RULES = merge(*_LOOPS, *_TEMPLATES, *_OPERATORS)
_ON_DEVICE = merge(*_LOOPS)
_WITHOUT_TEMPLATES = merge(*_LOOPS, *_OPERATORS)
PRODUCTS: Mapping[str, Rule] = {f"aten::{name}": matmul.rules.rules[f"aten::{name}"] for name in _PRODUCTS}
"""Of products of two matrices, which may have a variant where there are no templates otherwise."""
_UPDATING_DEVICE = merge(*_LOOPS, updates.rules)
_UPDATING = merge(*_LOOPS, *(each for each in _OPERATORS if each is not scatter.rules), updates.rules)


def rules_for(device: torch.device, *, templates: bool, updates: bool = False) -> Mapping[str, Rule]:
    """The rules for a device: those of templates if there are `templates` for it, and those of `updates` if its kernels
    combine values with memory in any order."""
    if device.type != "cpu":
        return _UPDATING_DEVICE if updates else _ON_DEVICE
    if updates:
        return _UPDATING
    return RULES if templates else _WITHOUT_TEMPLATES
