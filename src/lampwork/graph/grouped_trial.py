"""Whether an operator of another library multiplies groups of rows as its name says: asked once a process.

Such an operator is code of a library, which may change with its versions. Before a rule takes its place, it is called
with a few small tensors, and what it gives is compared with what is to be computed instead.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from lampwork import logs, pristine
from lampwork.locks import new_lock

_ENDS = (2, 2, 5)
_ROWS, _DEPTH, _COLUMNS = 7, 3, 2

_found: dict[str, bool] = {}
_lock = new_lock()


def multiplies_groups(operator: torch._ops.OpOverload) -> bool:
    """Whether operator(x, w, ends) is x[ends[g - 1]:ends[g]] @ w[g] in the rows of each group, and 0 in rows past the
    last end, for float32 and ends of int32 and int64."""
    name = operator.name()
    with _lock:
        if name not in _found:
            _found[name] = all(_agrees(operator, dtype) for dtype in (torch.int32, torch.int64))
        return _found[name]


def _agrees(operator: torch._ops.OpOverload, dtype: torch.dtype) -> bool:
    with torch._C._DisableTorchDispatch(), pristine.no_grad():  # pyright: ignore
        x = _numbers(_ROWS, _DEPTH)
        w = _numbers(len(_ENDS), _DEPTH, _COLUMNS)
        try:
            given = cast(Any, operator)(x, w, pristine.tensor(_ENDS, dtype=dtype))
        except Exception as error:  # noqa: BLE001  (the boundary to code of others)
            if logs.enabled("graph"):
                logs.emit("graph", f"{operator} is left to its library: {error}")
            return False
        wanted = pristine.zeros(_ROWS, _COLUMNS)
        start = 0
        for end, matrix in zip(_ENDS, w, strict=True):
            wanted[start:end] = x[start:end] @ matrix
            start = end
        return isinstance(given, torch.Tensor) and pristine.equal(given, wanted)


def _numbers(*shape: int) -> torch.Tensor:
    """Small whole numbers, whose products and sums are exact in any order."""
    count = 1
    for size in shape:
        count *= size
    return (pristine.arange(count, dtype=torch.float32) % 5 - 2).reshape(shape)
