"""Which nodes are for backends from outside: they get no forms of our own, such as weights packed for a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from lampwork.backends.protocol import Backend, Traits, kept_operators, passes_of
from lampwork.backends.registry import get_backend
from lampwork.config import Config
from lampwork.errors import BackendError
from lampwork.partitioning.assign import Answers
from lampwork.partitioning.decompose import DECOMPOSING, DecomposeCore
from lampwork.plugins.context import PassContext
from lampwork.standard import functools


def pass_context(config: Config, backends: Sequence[Backend]) -> PassContext:
    """The context in which passes run over a graph that is cut between `backends` afterwards: theirs run too, and all
    leave alone what one of them keeps, and forms of our own to our own."""
    if config.passes:
        get_backend("native")  # so that the names of its passes are known, whatever the backends are
    ctx = PassContext.of(config, kept_operators(backends))
    ctx.foreign = _goes_to_foreign(backends)
    ctx.backend_passes = passes_of(backends)
    if any(Traits.of(backend).decompose for backend in backends):
        # Last: of passes at one place that is the one that runs first, before those that ask who takes what.
        ctx.backend_passes += ((DecomposeCore(tuple(backends)), DECOMPOSING),)
    return ctx


def _goes_to_foreign(backends: Sequence[Backend]) -> Callable[[fx.Node], bool]:
    """What says of a node whether the first backend that takes it is one from outside."""

    @functools.cache
    def answers_of(graph: fx.Graph) -> Answers:
        return Answers(graph, backends, _later)

    def foreign(node: fx.Node) -> bool:
        answers = answers_of(node.graph)
        for number in range(len(answers.backends)):
            if answers.traits(number).trusted:
                return False
            if answers.supports(number, node):
                return True
        return False

    if all(getattr(backend, "trusted", False) for backend in backends):
        return lambda node: False
    return foreign


def _later(error: BackendError, instead: str, *, calling: bool = False) -> None:
    """A wrong answer is reported once, when the graph is cut."""
