"""A function of one or a few operators at one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lampwork.records import record


@record
class Function:
    """fn: of tensors alone. inputs: makes them, the same at each call after the same seed. flops: operations of a call,
    where arithmetic bounds it; elsewhere 0, and the bytes of inputs and result are what counts.
    size: "small" (about 200 elements), "medium" (about 64 thousand) or "large" (millions)."""

    family: str
    name: str
    size: str
    fn: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    flops: int = 0

    @property
    def title(self) -> str:
        """What `--only` is matched with."""
        return f"{self.family} {self.name} {self.size}"
