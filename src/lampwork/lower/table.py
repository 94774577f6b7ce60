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
    convolution.rules,
    convolution_backward.rules,
    attention.rules,
    recurrent.rules,
    recurrent_gradient.rules,
)
_OPERATORS = (random.rules, sort.rules, search.rules, scatter.rules, bags.rules)
"""Made of operators of the runtime, which are for the CPU."""

RULES = merge(*_LOOPS, *_TEMPLATES, *_OPERATORS)
_ON_DEVICE = merge(*_LOOPS)
_WITHOUT_TEMPLATES = merge(*_LOOPS, *_OPERATORS)


def rules_for(device: torch.device, *, templates: bool) -> Mapping[str, Rule]:
    """The rules for a device: those of templates if there are `templates` for it."""
    if device.type != "cpu":
        return _ON_DEVICE
    return RULES if templates else _WITHOUT_TEMPLATES
