"""What a call gives, made of what the replay of a graph left in its memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from torch import Tensor

from lampwork import pristine
from lampwork.records import record


class UnfitResults(Exception):
    """Results that cannot be made again: of two dtypes in the same memory."""


@record
class Result:
    """How a result is made. kind:

    copy   copy number `number`
    part   a view of it
    given  tensor number `number` of the call's, inputs and then bound ones
    within a view of it, `offset` elements from its first one
    none   nobody needs it

    `is_view`: whether eager calls a part a view.
    """

    kind: Literal["copy", "part", "given", "within", "none"]
    number: int = -1
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    is_view: bool = True


def plan_results(
    results: Sequence[Tensor | None], given: Sequence[Tensor], unused: Collection[int]
) -> tuple[list[Tensor], tuple[Result, ...]]:
    """(what is to be copied, how results are made).

    Args:
        results: what the program gave while it was captured.
        given: the tensors that it was given then, inputs and then bound ones.
        unused: numbers of results that nobody needs.

    Raises:
        UnfitResults: they cannot be made of copies.
    """
    wanted = [tensor for i, tensor in enumerate(results) if tensor is not None and i not in unused]
    owners = {_memory(tensor): number for number, tensor in reversed(list(enumerate(given)))}
    groups: dict[int, list[Tensor]] = {}
    for tensor in wanted:
        groups.setdefault(_memory(tensor), []).append(tensor)
    copied: list[Tensor] = []
    made: dict[int, Result] = {}
    for memory, tensors in groups.items():
        if memory in owners:
            made.update((id(tensor), _of_given(tensor, given, owners[memory])) for tensor in tensors)
            continue
        base = next((tensor for tensor in tensors if _is_all(tensor)), None)
        if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
            raise UnfitResults(f"results of dtypes {tensors[0].dtype} and others share memory")
        made.update((id(tensor), _part(tensor, len(copied))) for tensor in tensors)
        if base is not None:
            made[id(base)] = Result("copy", len(copied))
        copied.append(_flat(tensors[0]) if base is None else base)
    nothing = Result("none")
    plan = (
        nothing if tensor is None or i in unused else made[id(tensor)] for i, tensor in enumerate(results)
    )
    return copied, tuple(plan)


def follow(
    result: Result,
    copies: Sequence[Tensor],
    tensor_of: Callable[[int, Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
) -> Any:
    """A result of a call with `tensors`."""
    if result.kind == "copy":
        return copies[result.number]
    if result.kind == "part":
        part = copies[result.number].as_strided(result.shape, result.strides, result.offset)
        return part if result.is_view else part.detach()
    if result.kind == "none":
        return None
    given = tensor_of(result.number, tensors)
    if result.kind == "given":
        return given
    return given.as_strided(result.shape, result.strides, given.storage_offset() + result.offset)


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie side by side, in whatever order of the dimensions, each in memory of its own."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements may share memory."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_all(tensor: Tensor) -> bool:
    """Whether it is all of its memory, and no view."""
    if tensor._is_view() or tensor.storage_offset() != 0 or not is_dense(tensor.shape, tensor.stride()):
        return False
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _of_given(tensor: Tensor, given: Sequence[Tensor], owner: int) -> Result:
    same = next((number for number, each in enumerate(given) if each is tensor), None)
    if same is not None:
        return Result("given", same)
    if tensor.dtype != given[owner].dtype:
        raise UnfitResults(f"a result of dtype {tensor.dtype} is a view of one of {given[owner].dtype}")
    offset = int(tensor.storage_offset()) - int(given[owner].storage_offset())
    return Result("within", owner, tuple(tensor.shape), tensor.stride(), offset)


def _part(tensor: Tensor, number: int) -> Result:
    return Result(
        "part", number, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor._is_view()
    )


def _flat(tensor: Tensor) -> Tensor:
    """All of a tensor's memory."""
    storage = tensor.untyped_storage()
    whole = pristine.empty(0, dtype=tensor.dtype, device=tensor.device)
    return whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
