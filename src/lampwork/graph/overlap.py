"""Writes to memory that overlaps itself or an operand.

Eager refuses some of them ("some elements of the input tensor and the written-to tensor refer to a single memory
location") and computes others in the order in which its loops happen to run. A functional graph reads before it writes,
so it can stand for neither: whatever is not known to be free of overlap is left to eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch

from lampwork.errors import UnsupportedOpError
from lampwork.graph.functionalize import step_offset
from lampwork.graph.spec import TensorSpec
from lampwork.graph.tracetensor import TraceTensor

aten = torch.ops.aten

_ELEMENT_BY_ELEMENT = frozenset({aten.copy_.default, aten.fill_.Tensor})
"""Beside those that torch tags as pointwise: they read each place before they write it, and no other."""

_FIX = "clone the operand, so that it has memory of its own"


class _Region:
    """The memory of a tensor, in bytes from the start of its storage.

    `layout`: (stride, size) of each dimension, in order, by which eager compares; `dims`: of those that move, largest
    strides first.
    """

    __slots__ = ("dims", "empty", "item", "layout", "start")

    def __init__(self, tensor: TraceTensor) -> None:
        spec = tensor.spec
        self.item = spec.dtype.itemsize
        self.start = start_of(tensor)
        self.empty = any(size == 0 for size in spec.shape)
        self.layout = [
            (stride * self.item, size) for size, stride in zip(spec.shape, spec.strides, strict=True)
        ]
        self.dims = sorted((dim for dim in self.layout if dim[1] != 1), reverse=True)

    def span(self, dims: Sequence[tuple[int, int]]) -> int:
        return self.item + sum((size - 1) * stride for stride, size in dims)

    def same(self, other: _Region) -> bool:
        return (self.start, self.item, self.layout) == (other.start, other.item, other.layout)

    def apart(self, other: _Region) -> bool:
        """Whether no byte is in both, as far as is known."""
        if self.empty or other.empty:
            return True
        if (
            self.start + self.span(self.dims) <= other.start
            or other.start + other.span(other.dims) <= self.start
        ):
            return True
        strides = dict.fromkeys(stride for stride, _ in (*self.dims, *other.dims) if stride > 0)
        return any(self._apart_in_rows(other, stride) for stride in strides)

    def _apart_in_rows(self, other: _Region, row: int) -> bool:
        """Whether the two take different columns of rows of `row` bytes: x[:, :4] and x[:, 4:]."""
        columns: list[tuple[int, int]] = []
        for each in (self, other):
            inner = [dim for dim in each.dims if dim[0] < row]
            if any(stride % row != 0 for stride, _ in each.dims if stride >= row):
                return False
            first = each.start % row
            columns.append((first, first + each.span(inner)))
        (a, after_a), (b, after_b) = columns
        return after_a <= row and after_b <= row and (after_a <= b or after_b <= a)


def start_of(tensor: TraceTensor) -> int:
    """Bytes between the start of the storage that is recorded and the tensor's first element."""
    start, spec = 0, tensor.base.spec
    for step in tensor.chain:
        if step.op is aten.as_strided.default:
            given = step.args[2] if len(step.args) > 2 else step.kwargs.get("storage_offset")
            start = start if given is None else given * spec.dtype.itemsize
        else:
            start += step_offset(spec, step) * spec.dtype.itemsize
        spec = step.spec
    return start


def may_overlap_itself(spec: TensorSpec) -> bool:
    """Whether two elements may share memory."""
    if any(size == 0 for size in spec.shape):
        return False
    reached = 0
    pairs = zip(spec.strides, spec.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in pairs if size != 1):
        if stride <= reached:
            return True
        reached += stride * (size - 1)
    return False


def check_writable(spec: TensorSpec) -> None:
    """
    Raises:
        UnsupportedOpError: two elements may share memory. Eager refuses such a write, or computes it in some order.
    """
    if may_overlap_itself(spec):
        raise UnsupportedOpError("a write to a tensor of which several elements may share memory")


def check_drawn(op: Any, spec: TensorSpec) -> None:
    """
    Raises:
        UnsupportedOpError: `op` fills memory of this layout with random numbers, and eager may draw them in the order
            of the memory, or by another algorithm than for contiguous memory.
    """
    if not spec.is_contiguous:
        raise UnsupportedOpError(f"{op} draws numbers for a tensor that is not contiguous")


def check_overlap(op: Any, written: Sequence[Any], read: Sequence[Any]) -> None:
    """
    Args:
        written: the arguments of `op` that it writes to. read: its other arguments.

    Raises:
        UnsupportedOpError: eager may refuse the write, or its result may depend on the order of its loops.
    """
    targets = list(_tensors(written))
    others = list(_tensors(read))
    by_element = torch.Tag.pointwise in op.tags or op in _ELEMENT_BY_ELEMENT
    for number, target in enumerate(targets):
        mine: _Region | None = None
        for other in (*others, *targets[:number]):
            if other.base is not target.base:
                continue
            mine = _Region(target) if mine is None else mine
            theirs = _Region(other)
            # Eager looks at the tensor objects before it looks at their sizes.
            if (by_element and mine.same(theirs)) or (other is not target and mine.apart(theirs)):
                continue
            raise UnsupportedOpError(f"{op} writes to memory that it also reads", fix=_FIX)


def _tensors(values: Any) -> Iterator[TraceTensor]:
    for value in values:
        if isinstance(value, TraceTensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(cast("Sequence[Any]", value))


def check_apart(func: Any, outs: Sequence[TraceTensor], arguments: Sequence[Any]) -> None:
    """What is written may be an argument of a pointwise operator, as a whole; else eager may refuse it.

    Raises:
        UnsupportedOpError: it is read in another way.
    """
    for value in arguments:
        if isinstance(value, (list, tuple)):
            check_apart(func, outs, cast("Sequence[Any]", value))
        if not isinstance(value, TraceTensor):
            continue
        for out in outs:
            if out.base is value.base and not (out is value and torch.Tag.pointwise in func.tags):
                raise UnsupportedOpError(f"the out= of {func} shares memory with an argument")
