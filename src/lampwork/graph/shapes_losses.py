"""Shapes of losses that compare element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lampwork.graph.shapes_common import ShapeError, broadcast, iterator_strides, like, result_type
from lampwork.graph.spec import TensorSpec

aten = torch.ops.aten

_EACH, _MEAN = 0, 1


def distance(x: TensorSpec, target: TensorSpec, reduction: int = _MEAN, *_: Any, **__: Any) -> TensorSpec:
    """mse_loss, smooth_l1_loss: a number for each element, or their mean or sum."""
    dtype = result_type((x, target))
    if not dtype.is_floating_point or x.device != target.device:
        raise ShapeError(f"the distance of {x} and {target}")
    shape = broadcast((x.shape, target.shape))
    if reduction != _EACH:
        return like(x, (), dtype)
    return TensorSpec(shape, iterator_strides(shape, (x, target)), dtype, x.device)


RULES: Mapping[Any, Any] = {
    aten.mse_loss.default: distance,
    aten.smooth_l1_loss.default: distance,
}
