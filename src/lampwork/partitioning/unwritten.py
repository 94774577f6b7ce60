"""Whether tensors have been written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.errors import BackendWriteError

T = TypeVar("T")

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def versions_of(tensors: Sequence[Tensor]) -> list[int] | None:
    """The version counters; None if a tensor has none."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # made under inference mode
        return None


def leaving(weights: Sequence[Tensor], work: Callable[[], T], name: str, tries: int = 2) -> T:
    """What `work()` of the backend `name` gives, if it leaves the weights as they are.

    Version counters show writes through torch, the sum of the bits shows others. Another thread may train the weights
    meanwhile: if versions have changed, the work is done once more, and is at fault if they change again.

    Raises:
        BackendWriteError: it wrote to them.
        Exception: what `work` raises, if it did not.
    """
    versions, bits = versions_of(weights), list(map(_bits, weights))
    results: list[T] = []
    failure: Exception | None = None
    try:
        results.append(work())
    except Exception as error:  # noqa: BLE001  (raised below, unless there is something worse to say)
        failure = error
    if versions_of(weights) != versions:
        if tries > 1:
            return leaving(weights, work, name, tries - 1)
    elif list(map(_bits, weights)) == bits:
        if failure is not None:
            raise failure
        return results[0]
    raise BackendWriteError(
        f"backend {name} wrote to the weights while it compiled them in; they cannot be restored",
        fix=f"leave {name} out of the backends, or have it copy what it writes to",
    ) from failure


def _bits(tensor: Tensor) -> int:
    """The sum of all elements, taken as integers."""
    if tensor.dtype is torch.complex128:
        tensor = pristine.view_as_real(tensor.resolve_conj())
    return int(tensor.view(_INTEGERS[tensor.dtype.itemsize]).sum(dtype=torch.int64))
