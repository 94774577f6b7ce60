"""Programs of regions with symbols: compiled once where the backend can, otherwise once for each tuple of values.

Sizes make a difference to the memory plan, so each tuple of them has a program of its own. Numbers that only take part
in arithmetic are arguments of the program, if the backend can take them so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from lampwork.backends.native.heap_values import Lives, in_heap, lives_in
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.observer import NOBODY, Observer
from lampwork.backends.protocol import CompileOptions, Traits
from lampwork.capture.model.region import Region
from lampwork.config import current
from lampwork.graph.concrete import concrete_graph, has_symbols, symbol_names
from lampwork.loops.ir.index import Index
from lampwork.partitioning.chain import compile_parts, executable
from lampwork.partitioning.compiling import compile_graph
from lampwork.partitioning.faults import Report, raise_fault
from lampwork.partitioning.parts import Part, partition
from lampwork.records import record
from lampwork.runtime import Executable
from lampwork.runtime.program import Program


@record
class ForNumbers:
    """`make(values)` gives what `compile_parts` gives for a graph without symbols, for these values of the `keys`. What
    it gives takes the numbers `scalars` with each call. `once`: it was compiled for all of them."""

    keys: frozenset[str]
    scalars: tuple[Index, ...]
    make: Callable[[Mapping[str, int]], Any]
    once: bool = False


def compile_for_sizes(
    parts: Sequence[Part], region: Region, observer: Observer = NOBODY, report: Report = raise_fault
) -> ForNumbers:
    """Compile a graph with symbols.

    A backend that takes the whole graph and answers with a SymbolicProgram has compiled for all sizes: a new size
    costs a memory plan. Anything else is compiled anew for each size, with numbers put in for the symbols.

    Raises:
        BackendError: a backend failed; the message names it.
    """
    compiled = _for_all(parts, region, observer)
    if isinstance(compiled, SymbolicProgram):
        return for_all_sizes(compiled, region)
    graph, backends = parts[0].graph, parts[0].backends

    def make(values: Mapping[str, int]) -> Any:
        concrete = concrete_graph(graph, values)
        return compile_parts(partition(concrete, backends, report), region, report=report)

    return ForNumbers(symbol_names(graph), (), make)


def for_all_sizes(compiled: SymbolicProgram, region: Region) -> ForNumbers:
    """What runs a program that serves all sizes."""
    return ForNumbers(compiled.keys, compiled.scalars, _one_for_all(compiled, region), once=True)


def compile_open(parts: Sequence[Part], region: Region, observer: Observer = NOBODY) -> ForNumbers | None:
    """Compile a part of a training step for all sizes and numbers; None where no backend does.

    Raises:
        BackendError: a backend failed; the message names it.
    """
    compiled = _for_all(parts, region, observer)
    return None if compiled is None else half_for_all_sizes(compiled, parts[0].graph, region)


def half_for_all_sizes(
    compiled: Program | SymbolicProgram, graph: fx.Graph, region: Region
) -> ForNumbers | None:
    """What runs a part of a training step for all sizes; None if what was compiled serves those of the graph's hints
    alone."""
    if isinstance(compiled, SymbolicProgram):
        closed = compiled.without_scalars()
        return ForNumbers(closed.keys, (), _one_in_heap(closed, region))
    if has_symbols(graph):
        return None
    made = executable(compiled, region, trains=True)
    return ForNumbers(frozenset(), (), lambda values: made)


def _for_all(parts: Sequence[Part], region: Region, observer: Observer) -> Program | SymbolicProgram | None:
    """What one backend that takes the whole graph makes of it; None if there is none."""
    if len(parts) != 1 or not Traits.of(parts[0].backend).trusted:
        return None
    options = CompileOptions(current(), tuple(region.mutations), observer)
    compiled = compile_graph(parts[0].backend, parts[0].graph, options, region.bound).compiled
    return compiled if isinstance(compiled, Program | SymbolicProgram) else None


def _one_for_all(program: SymbolicProgram, region: Region) -> Callable[[Mapping[str, int]], Any]:
    first: list[Any] = []

    def make(values: Mapping[str, int]) -> Any:
        concrete = program.instantiate(values)
        if not first:
            first.append(executable(concrete, region))
            return first[0]
        # What is computed from the weights alone is computed once, for all sizes.
        return executable(concrete, region, share=first[0])

    return make


def _one_in_heap(program: SymbolicProgram, region: Region) -> Callable[[Mapping[str, int]], Any]:
    """The same for a part of a training step."""
    first: list[Any] = []
    lives: list[Lives] = []

    def make(values: Mapping[str, int]) -> Executable:
        concrete = program.instantiate(values, in_arena=False)
        if not first:
            lives.append(lives_in(concrete))
            first.append(Executable(in_heap(concrete, lives[0]), region.bound))
            return first[0]
        return Executable(in_heap(concrete, lives[0]), region.bound, share=first[0])

    return make
