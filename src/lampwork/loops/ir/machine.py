"""What fusing and scheduling ask of a machine."""

from __future__ import annotations

from typing import Protocol

from lampwork.loops.ir.nodes import DType


class Machine(Protocol):
    """The part of a `Target` that the loop language knows of; what each number means is said there."""

    @property
    def private_bytes(self) -> int: ...
    @property
    def kernel_work(self) -> int: ...
    @property
    def least_items(self) -> int: ...
    @property
    def few_items(self) -> int: ...
    @property
    def many_items(self) -> int: ...
    @property
    def long_axis(self) -> int: ...
    def lanes(self, dtype: DType, /) -> int: ...
