"""Devices that are the CPU under other conditions: memory of their own, slow copies, operators that take their time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from lampwork.placement import Device
from lampwork.rewriting.schema import packet_name


class Clock:
    """Time that passes only when somebody spends it."""

    def __init__(self) -> None:
        self.now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()
"""The time of all simulated devices."""


def backwards(tensor: Tensor) -> Tensor:
    """The tensor with its first dimension innermost in memory: devices differ in how they lay out results."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


class SimulatedDevice(Device):
    """The CPU with made-up costs: each call of a part takes `call` seconds, those of `ops` for each operator of these
    names and `element` for each element of its results; each tensor that comes to it takes `copy` seconds. Operators of
    `missing` cannot run, and `free` bytes of weights fit."""

    def __init__(
        self,
        name: str,
        memory: str = "cpu",
        *,
        call: float = 1e-4,
        copy: float = 1e-4,
        ops: Mapping[str, float] | None = None,
        element: float = 0.0,
        missing: Sequence[str] = (),
        free: float = float("inf"),
    ) -> None:
        super().__init__(name, torch.device("cpu"))
        self._memory, self._free = memory, free
        self.call, self.copy, self.ops, self.element = call, copy, dict(ops or {}), element
        self.missing = tuple(missing)
        self.copies = 0

    @property
    def memory(self) -> str:
        return self._memory

    def to(self, tensor: Tensor) -> Tensor:
        CLOCK.spend(self.copy)
        self.copies += 1
        return tensor if self._memory == "cpu" else tensor.clone()

    def now(self) -> float:
        return CLOCK.now

    def free_bytes(self) -> float:
        return self._free

    def compile(self, module: fx.GraphModule) -> Callable[..., Sequence[Tensor]]:
        names = [packet_name(n.target) for n in module.graph.nodes if n.op == "call_function"]
        for name in self.missing:
            if name in names:
                raise NotImplementedError(f"no kernel for {name}")
        seconds = self.call + sum(self.ops.get(name, 0.0) for name in names)
        inner = super().compile(module)

        def run(*arguments: Any) -> Any:
            results = inner(*arguments)
            CLOCK.spend(seconds + self.element * sum(result.numel() for result in results))
            return results if self._memory == "cpu" else [backwards(result) for result in results]

        return run

    def compile_whole(self, model: Callable[..., Any]) -> None:
        return None
