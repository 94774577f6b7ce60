"""What is known of a value of an ATen graph: `TensorSpec`, found under `node.meta["val"]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch

from lampwork.graph.symbols import map_symbols
from lampwork.records import record


@record
class TensorSpec:
    """Shape, strides (both in elements), dtype and device of a tensor that exists only at run time.

    Sizes and strides that differ from call to call are `SymbolicInt`s in place of ints.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        return self.numel == 0 or all(
            size == 1 or stride == expected
            for size, stride, expected in zip(
                self.shape, self.strides, contiguous_strides(self.shape), strict=True
            )
        )

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(
            tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad
        )

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        text = f"{name}[{', '.join(map(str, self.shape))}]"
        return text if self._looks_contiguous() else f"{text}({', '.join(map(str, self.strides))})"

    def _looks_contiguous(self) -> bool:
        """`is_contiguous`, without asking anything of symbolic sizes: printing makes no conditions."""
        if all(type(size) is int for size in (*self.shape, *self.strides)):
            return self.is_contiguous
        step: Any = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if str(size) != "1" and str(stride) != str(step):
                return False
            step = step * size
        return True


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as `torch.empty(shape).stride()` gives them (a size of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


_INT = frozenset({int})


def with_sizes(val: Any, number: Callable[[Any], Any]) -> Any:
    """A spec, or nested tuples of specs, with the symbolic sizes and strides replaced."""
    if isinstance(val, TensorSpec):
        if _INT.issuperset(map(type, val.shape)) and _INT.issuperset(map(type, val.strides)):
            return val
        shape, strides = map_symbols(val.shape, number), map_symbols(val.strides, number)
        if shape is val.shape and strides is val.strides:
            return val
        return replace(val, shape=shape, strides=strides)
    if isinstance(val, tuple):
        return tuple(with_sizes(item, number) for item in cast("tuple[Any, ...]", val))
    return val
