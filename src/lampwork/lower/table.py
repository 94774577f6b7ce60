"""Every rule of every op family: operator name ("aten::add.Tensor", "aten::relu") -> rule."""

from __future__ import annotations

from lampwork.lower import (
    activations,
    attention,
    casts,
    cat,
    convolution,
    creation,
    embedding,
    grids,
    losses,
    matmul,
    norm,
    pointwise,
    pool,
    random,
    recurrent,
    reduce,
    resize,
    scatter,
    search,
    softmax,
    sort,
    views,
)
from lampwork.lower.registry import merge

RULES = merge(
    pointwise.rules,
    activations.rules,
    casts.rules,
    creation.rules,
    views.rules,
    cat.rules,
    embedding.rules,
    reduce.rules,
    recurrent.rules,
    softmax.rules,
    norm.rules,
    pool.rules,
    random.rules,
    resize.rules,
    grids.rules,
    sort.rules,
    search.rules,
    scatter.rules,
    losses.rules,
    matmul.rules,
    convolution.rules,
    attention.rules,
)
