"""Helpers of the library's tests: a graph up to and through the library, compared with eager in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from graphkit import ops, record, run, structure
from torch import Tensor, fx

from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.library import Library
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.split_constants import SplitConstants

LIBRARY = Library()


def prepared(fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor] = ()) -> fx.Graph:
    """The graph of fn as the library sees it."""
    graph = record(fn, *inputs, bound=bound)
    for step in (DeadCode(), SplitConstants(), Canonicalize(), RemoveNoops(), CommonSubexpressions()):
        step.run(graph, PassContext())
    return graph


def rewritten(
    fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor] = (), through: Any = LIBRARY
) -> tuple[fx.Graph, PassContext]:
    """The graph of fn after the library (or another pass); its results are compared with eager's, by float64."""
    graph, ctx = prepared(fn, inputs, bound), PassContext()
    through.run(graph, ctx)
    verify(graph)
    tensors = [*inputs, *bound]
    with torch.no_grad():
        eager = _list(fn(*tensors))
        exact = _list(fn(*(t.double() if t.is_floating_point() else t for t in tensors)))
    for got, want, truth in zip(run(graph, *tensors), eager, exact, strict=True):
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
        if not got.is_floating_point():
            assert torch.equal(got, want)
            continue
        # Where eager has no finite answer, neither have we, and the other way round.
        torch.testing.assert_close(got.isfinite(), want.isfinite(), rtol=0, atol=0)
        finite = want.isfinite()
        error = (got.double() - truth)[finite].abs().max().item() if finite.any() else 0.0
        theirs = (want.double() - truth)[finite].abs().max().item() if finite.any() else 0.0
        scale = truth[finite].abs().max().item() if finite.any() else 0.0
        assert error <= 2 * theirs + 4 * torch.finfo(got.dtype).eps * scale, (error, theirs, scale)
    return graph, ctx


def assert_becomes(
    fn: Callable[..., Any],
    expected: Callable[..., Any],
    inputs: Sequence[Tensor],
    bound: Sequence[Tensor] = (),
) -> PassContext:
    """The library makes of fn what is recorded of `expected`."""
    graph, ctx = rewritten(fn, inputs, bound)
    assert structure(graph) == structure(prepared(expected, inputs, bound)), dict(ctx.refusals)
    return ctx


def assert_stays(
    fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor] = ()
) -> dict[tuple[str, str], int]:
    """The library leaves fn alone; what it refused, and why."""
    before = prepared(fn, inputs, bound)
    graph, ctx = rewritten(fn, inputs, bound)
    assert ops(graph) == ops(before), dict(ctx.hits)
    return dict(ctx.refusals)


def _list(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple | list) else [value]
