"""Records a function, runs the graph on real tensors, and compares all that eager lets one see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lampwork.graph.interpret import run_graph
from lampwork.graph.record import Recorded, Recorder
from lampwork.graph.tracetensor import TraceTensor
from lampwork.graph.verify import verify


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in leaves(item)]
    if hasattr(value, "values"):
        return [tensor for item in value.values() for tensor in leaves(item)]
    return []


@contextmanager
def lifted(rec: Recorder, module: nn.Module | None) -> Iterator[None]:
    """The module's parameters and buffers replaced by bound trace tensors."""
    saved: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    known: dict[int, TraceTensor] = {}
    for owner in module.modules() if module is not None else ():
        for table in (owner._parameters, owner._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    saved.append((table, name, tensor))
    try:
        for table, name, tensor in saved:
            if id(tensor) not in known:
                known[id(tensor)] = rec.input(tensor, name, bound=True)
            table[name] = known[id(tensor)]
        yield
    finally:
        for table, name, tensor in saved:
            table[name] = tensor


def record(
    fn: Callable[..., Any], inputs: Sequence[Any], module: nn.Module | None = None
) -> tuple[Recorded, list[TraceTensor]]:
    with Recorder() as rec:
        args = [rec.input(x, f"x{i}") if isinstance(x, torch.Tensor) else x for i, x in enumerate(inputs)]
        with lifted(rec, module):
            outputs = leaves(fn(*args))
    recorded = rec.finish(outputs)  # type: ignore[arg-type]
    verify(recorded.graph)
    return recorded, outputs  # type: ignore[return-value]


def share(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def check(
    fn: Callable[..., Any], *inputs: Any, module: nn.Module | None = None, tolerance: float = 0.0
) -> Recorded:
    """Values, shapes, strides, dtypes, requires_grad, written inputs and aliasing must be as in eager."""
    modes = {m: m.training for m in module.modules()} if module is not None else {}
    state = {k: v.clone() for k, v in module.state_dict().items()} if module is not None else {}
    recorded, traced = record(fn, inputs, module)
    ours = [
        x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]
    theirs = [
        x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]
    ours = [_as(x, like) for x, like in zip(ours, inputs, strict=True)]
    theirs = [_as(x, like) for x, like in zip(theirs, inputs, strict=True)]
    given = [x for x in ours if isinstance(x, torch.Tensor)]
    bound = [b.tensor for b in recorded.bound]

    torch.manual_seed(0)
    expected = leaves(fn(*theirs))
    after = {k: v.clone() for k, v in module.state_dict().items()} if module is not None else {}
    if module is not None:
        module.load_state_dict(state)
        for owner, mode in modes.items():
            owner.training = mode
    torch.manual_seed(0)
    values = run_graph(recorded.graph, given + bound)
    for number, output in recorded.mutations:
        (given + bound)[number].data.copy_(values[output].detach())
    found = [values[i] for i in recorded.outputs]

    assert len(found) == len(expected) == len(traced)
    for one, other, spec in zip(found, expected, traced, strict=True):
        assert one.shape == other.shape == spec.shape
        assert one.dtype == other.dtype == spec.dtype
        assert one.stride() == other.stride() == spec.stride()
        assert spec.requires_grad == other.requires_grad
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    real_theirs = [x for x in theirs if isinstance(x, torch.Tensor)]
    for one, other in zip(given, real_theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    for key, value in after.items():
        assert module is not None
        torch.testing.assert_close(module.state_dict()[key], value, rtol=tolerance, atol=tolerance)
    seen, wanted = [*given, *found], [*real_theirs, *expected]
    for i in range(len(seen)):
        for j in range(i):
            assert share(seen[i], seen[j]) == share(wanted[i], wanted[j]), f"aliasing of {j} and {i}"
    return recorded


def _as(x: Any, like: Any) -> Any:
    """A clone with the very strides of `like`, so that gaps are tested too."""
    if not isinstance(x, torch.Tensor) or x.stride() == like.stride():
        return x
    size = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    copy = torch.zeros(size, dtype=x.dtype).as_strided(like.shape, like.stride())
    copy.copy_(like.detach())
    return copy.requires_grad_(like.requires_grad)
