"""Running one recorded graph in a backend that bakes weights in, without the rest of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from same import assert_same, flatten  # noqa: E402
from torch import Tensor, fx

from lampwork.backends.protocol import CompileOptions
from lampwork.graph.record import Recorder
from lampwork.transforms.pipeline import run_passes
from lampwork.verdict import No

__all__ = ["assert_same", "compiled_part", "flatten", "recorded", "refusals"]


def recorded(
    fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor] = ()
) -> tuple[fx.Graph, bool]:
    """The canonical graph of a call, and whether its result is one tensor. Tensors of `bound` come after the inputs."""
    with torch.no_grad(), Recorder() as recorder:
        traced = [recorder.input(t, f"x{i}") for i, t in enumerate(inputs)]
        traced += [recorder.input(t, f"w{i}", bound=True) for i, t in enumerate(bound)]
        result = fn(*traced)
    single = isinstance(result, Tensor)
    found = recorder.finish([result] if single else list(result))
    run_passes(found.graph)
    return found.graph, single


def refusals(backend: Any, graph: fx.Graph) -> list[str]:
    calls = [n for n in graph.nodes if n.op == "call_function"]
    verdicts = [backend.supports(n) for n in calls]
    return [v.reason for v in verdicts if isinstance(v, No)]


def compiled_part(
    backend: Any, fn: Callable[..., Any], inputs: Sequence[Tensor], bound: Sequence[Tensor] = ()
) -> Callable[..., Any]:
    """A function of the inputs that runs all of `fn` in the backend."""
    graph, single = recorded(fn, inputs, bound)
    assert refusals(backend, graph) == []
    run = backend.compile(graph, (), CompileOptions(bound=tuple(bound)))

    def call(*tensors: Tensor) -> Any:
        with torch.no_grad():
            results = list(run(*tensors))
        return results[0] if single else results

    return call
