"""Which casts keep every number."""

from __future__ import annotations

import torch

_MANTISSA = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_EXPONENT = {torch.float64: 11, torch.float32: 8, torch.float16: 5, torch.bfloat16: 8}
_INT_RANGE = {
    torch.bool: (0, 1),
    torch.uint8: (0, 255),
    torch.int8: (-128, 127),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.int64: (-(2**63), 2**63 - 1),
}


def is_lossless(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value of `source`, cast to `target`, stays the same number."""
    if source is target:
        return True
    if source in _INT_RANGE and target in _INT_RANGE:
        (low, high), (floor, ceiling) = _INT_RANGE[source], _INT_RANGE[target]
        return target is not torch.bool and floor <= low and high <= ceiling
    if source in _MANTISSA and target in _MANTISSA:
        return _MANTISSA[source] <= _MANTISSA[target] and _EXPONENT[source] <= _EXPONENT[target]
    if source in _INT_RANGE and target in _MANTISSA:
        return max(abs(v) for v in _INT_RANGE[source]) <= 2 ** _MANTISSA[target]
    return False
