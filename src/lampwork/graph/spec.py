"""What is known of a value of an ATen graph: `TensorSpec`, found under `node.meta["val"]`."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, strides (both in elements), dtype and device of a tensor that exists only at run time."""

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
        return text if self.is_contiguous else f"{text}({', '.join(map(str, self.strides))})"


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as `torch.empty(shape).stride()` gives them (a size of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
