"""The random number generators that a region draws from, for those who run it again."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.graph.devices import CPU, specs_in

State = Tensor | Mapping[torch.device, Tensor]
"""That of the CPU's generator, or those of several devices."""


def accelerators(graph: fx.Graph) -> frozenset[torch.device]:
    """The devices besides the CPU on which random numbers are drawn."""
    drawn = (node for node in graph.nodes if node.meta.get("random"))
    return frozenset(spec.device for node in drawn for spec in specs_in(node.meta.get("val"))) - {CPU}


def state_of(devices: frozenset[torch.device]) -> State:
    """That of the CPU's generator, and of those of `devices`."""
    now = pristine.get_rng_state()
    if not devices:
        return now
    return {CPU: now, **{device: _generator(device).get_state() for device in devices}}


@contextmanager
def drawing_from(state: State | None) -> Generator[None]:
    """What is drawn inside begins at `state`, and the generators are as they were afterwards."""
    if state is None:
        yield
        return
    states = state if isinstance(state, Mapping) else {CPU: state}
    before = {device: _generator(device).get_state() for device in states}
    try:
        _set(states)
        yield
    finally:
        _set(before)


def _set(states: Mapping[torch.device, Tensor]) -> None:
    for device, state in states.items():
        _generator(device).set_state(state)


def _generator(device: torch.device) -> torch.Generator:
    if device == CPU:
        return torch.default_generator
    return cast(Any, torch).cuda.default_generators[device.index]
