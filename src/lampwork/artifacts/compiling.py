"""Graphs of a file, compiled for this machine: what is done where its own code is not trusted."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from lampwork import config
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.protocol import CompileOptions
from lampwork.partitioning.compiling import compile_graph
from lampwork.partitioning.foreign import pass_context
from lampwork.runtime.program import Program
from lampwork.transforms.pipeline import run_passes


def compile_here(
    graph: fx.Graph, writes: Sequence[tuple[int, int]], views: Sequence[tuple[int, int]], origin: str
) -> Program | SymbolicProgram:
    """The program of a graph, which is changed, under the options in force. It is kept under its origin, the digest of
    the text that the graph was read from: no other graph, of a file or of this process, is ever answered with it.

    Raises:
        BackendError: it cannot be compiled.
    """
    options = config.current()
    backend = NativeBackend()
    run_passes(graph, options, ctx=pass_context(options, (backend,)))
    asked = CompileOptions(options, tuple(writes), views=tuple(views))
    made = compile_graph(backend, graph, asked, origin=origin)
    assert isinstance(made.compiled, Program | SymbolicProgram)
    return made.compiled
