"""Where the tensors of a graph are: one region may use several devices, of which one runs its kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec

CPU = torch.device("cpu")

_WITH_KERNELS = "cuda"
"""The type of the devices other than the CPU that code is generated for; on all others ATen computes."""


def specs_in(val: Any) -> Iterator[TensorSpec]:
    """The specs of a node's results, given its meta["val"]."""
    if isinstance(val, TensorSpec):
        yield val
    elif isinstance(val, tuple):
        yield from (spec for spec in cast("tuple[Any, ...]", val) if isinstance(spec, TensorSpec))


def main_device(graph: fx.Graph) -> torch.device:
    """The CUDA device that most tensors of the graph are on; the CPU if there is none."""
    found = Counter(
        spec.device
        for node in graph.nodes
        for spec in specs_in(node.meta.get("val"))
        if spec.device.type == _WITH_KERNELS
    )
    return found.most_common(1)[0][0] if found else CPU


def kernel_device(graph: fx.Graph) -> torch.device:
    """The device that kernels are made for: the main one. With torch for ROCm it is the CPU: the CUDA devices that it
    speaks of are AMD cards, and there ATen computes."""
    return CPU if torch.version.hip else main_device(graph)


class Places:
    """Devices as tensors on them name them. `current`: the number of the current CUDA device, once one without a number
    was asked for."""

    def __init__(self) -> None:
        self.current: int | None = None

    def of(self, device: Any) -> torch.device:
        """The CPU without a number, a CUDA device with one."""
        found: Any = torch.device(device)
        if found.type == "cpu":
            return CPU
        if found.type != _WITH_KERNELS or found.index is not None:
            return found
        if self.current is None:
            self.current = current_device()
        return torch.device(found.type, self.current)


def current_device() -> int:
    """The number of the current CUDA device."""
    ask = getattr(torch._C, "_cuda_getDevice", None)
    return 0 if ask is None else ask()


def as_on_cpu(value: Any) -> Any:
    """Arguments of a call with the CPU in place of CUDA devices, which refuse, and give, nearly always the same."""
    if isinstance(value, TensorSpec):
        return replace(value, device=CPU) if value.device.type == _WITH_KERNELS else value
    if isinstance(value, torch.device):
        return CPU if value.type == _WITH_KERNELS else value
    if isinstance(value, list | tuple):
        items = [as_on_cpu(item) for item in cast("list[Any]", value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: as_on_cpu(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def located_at(val: Any, device: torch.device) -> Any:
    """Specs of results with their device replaced."""
    if isinstance(val, TensorSpec):
        return replace(val, device=device)
    return val if val is None else tuple(located_at(spec, device) for spec in val)


def is_on(val: Any, device: torch.device) -> bool:
    """Whether all results of a node, given its meta["val"], are on `device`."""
    return all(spec.device == device for spec in specs_in(val))
