"""Compiling the parts of a graph, and running several as one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.protocol import Compiled, CompileOptions
from lampwork.capture.region import Region
from lampwork.config import current
from lampwork.errors import BackendError, LampworkError
from lampwork.partition.parts import Part, subgraph
from lampwork.runtime import Executable
from lampwork.runtime.opaque import opaque
from lampwork.runtime.program import Program

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Link:
    """One compiled part: values `inputs` go in, its results become the values `outputs`."""

    run: Run
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Parts that run one after another. Values are numbered: the inputs, the bound tensors, then what parts give.

    Called with the list of input tensors (bound ones may follow) it returns the outputs, after it wrote `mutations`,
    (input number, output number) pairs, back.
    """

    bound: tuple[Tensor, ...]
    n_inputs: int
    n_values: int
    links: tuple[Link, ...]
    outputs: tuple[int, ...]
    mutations: tuple[tuple[int, int], ...]

    @opaque
    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        values: list[Any] = [*inputs[: self.n_inputs], *self.bound]
        values.extend([None] * (self.n_values - len(values)))
        for link in self.links:
            results = link.run([values[i] for i in link.inputs])
            for number, value in zip(link.outputs, results, strict=True):
                values[number] = value
        outputs = [values[i] for i in self.outputs]
        if self.mutations:
            with torch.no_grad():
                for target, source in self.mutations:
                    values[target].copy_(outputs[source])
        return outputs


def compile_parts(parts: Sequence[Part], region: Region, stages: Any = None) -> Any:
    """Compile what `partition` made of `region.graph` into what `make_entry` takes.

    One part that a backend compiled to a Program gives a `runtime.Executable`; otherwise a `Chain`. Mutations of the
    region are written back by either.

    Raises:
        BackendError: a backend failed; the message names it.
    """
    graph = parts[0].graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    mutations = tuple(region.mutations)
    if len(parts) == 1:
        backend = parts[0].backend
        compiled = compile_part(parts[0], graph, CompileOptions(current(), mutations, stages))
        written = bool(getattr(backend, "writes_inputs", False))
        if isinstance(compiled, Program) and (written or not mutations):
            return Executable(compiled, region.bound)
        link = Link(_runnable(compiled, region.bound), *_whole(graph, region, compiled))
        n = len(placeholders)
        outputs = tuple(range(n, n + len(link.outputs)))
        return Chain(
            region.bound, len(region.inputs), n + len(outputs), (link,), outputs, () if written else mutations
        )
    return _chain(parts, graph, placeholders, region, stages)


def _whole(graph: fx.Graph, region: Region, compiled: Compiled) -> tuple[tuple[int, ...], tuple[int, ...]]:
    n = len(region.inputs) + len(region.bound)
    inputs = range(len(region.inputs)) if isinstance(compiled, Program) else range(n)
    results = len(cast("tuple[Any, ...]", _output(graph).args[0]))
    return tuple(inputs), tuple(range(n, n + results))


def _output(graph: fx.Graph) -> fx.Node:
    return next(n for n in reversed(graph.nodes) if n.op == "output")


def compile_part(part: Part, graph: fx.Graph, options: CompileOptions) -> Compiled:
    """What the part's backend makes of `graph`.

    Raises:
        BackendError: the backend failed; the message names it.
    """
    try:
        return part.backend.compile(graph, (), options)
    except LampworkError:
        raise
    except Exception as error:  # a foreign compiler may raise anything
        raise BackendError(
            f"backend {part.backend.name} failed: {type(error).__name__}: {error}",
            fix=f"leave {part.backend.name} out of the backends, or report this to its author",
        ) from error


def _runnable(compiled: Compiled, bound: Sequence[Tensor]) -> Run:
    """A function of a list; of inputs only for a Program, which holds its bound tensors."""
    if isinstance(compiled, Program):
        return Executable(compiled, tuple(bound)).run
    if isinstance(compiled, SymbolicProgram):
        raise BackendError("a program for all sizes was made of a graph without symbols")
    function = compiled
    return lambda tensors: function(*tensors)


def _chain(
    parts: Sequence[Part], graph: fx.Graph, placeholders: Sequence[fx.Node], region: Region, stages: Any
) -> Chain:
    numbers = {node: i for i, node in enumerate(placeholders)}
    tensors = dict(zip(placeholders[len(region.inputs) :], region.bound, strict=True))
    links: list[Link] = []
    for part in parts:
        part_graph, inputs, outputs = subgraph(part)
        compiled = compile_part(part, part_graph, CompileOptions(current(), (), stages))
        for node in outputs:
            numbers.setdefault(node, len(numbers))
        passed = inputs
        if isinstance(compiled, Program):
            passed = [n for n in inputs if n not in tensors]
        run = _runnable(compiled, [tensors[n] for n in inputs if n in tensors])
        links.append(Link(run, tuple(numbers[n] for n in passed), tuple(numbers[n] for n in outputs)))
    results = tuple(numbers[n] for n in cast("tuple[fx.Node, ...]", _output(graph).args[0]))
    return Chain(
        region.bound, len(region.inputs), len(numbers), tuple(links), results, tuple(region.mutations)
    )
