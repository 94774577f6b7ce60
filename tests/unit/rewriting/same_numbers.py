"""Whether a rewritten graph gives eager's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from graphkit import run
from torch import Tensor, fx


def close(fn: Callable[..., Any], graph: fx.Graph, *inputs: Tensor) -> None:
    """The graph's first result against eager, by the distance from eager in float64; nan where eager has nan."""
    got, eager = run(graph, *inputs)[0], fn(*inputs)
    exact = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert got.dtype == eager.dtype and got.shape == eager.shape and got.stride() == eager.stride()
    assert torch.equal(got.isnan(), eager.isnan())
    kept = ~eager.isnan()
    if not kept.any():
        return
    error = (got.double() - exact)[kept].square().mean().sqrt()
    allowed = (eager.double() - exact)[kept].square().mean().sqrt()
    assert error <= 2 * allowed + 1e-7, (error, allowed)
