"""The graphs of functions, with the tensors of their first calls, which run in eager PyTorch meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, cast

from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.eager import EagerBackend
from lampwork.backends.registry import get_backend, list_backends
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.compiled.live_functions import Following, alive, noticing
from lampwork.compiled.pipeline import build_entry
from lampwork.compiled.stages import Stages
from lampwork.config import Config
from lampwork.errors import LampworkError, MinifyError
from lampwork.graph.copying import copy_graph
from lampwork.minifying.case import Case, own, placeholders
from lampwork.runtime import make_entry
from lampwork.runtime.autograd import Differentiable
from lampwork.standard import functools

_NO_MATTER = ("dump", "logs", "cache")
"""Options that say nothing of what is compiled."""


@dataclass(slots=True)
class Noted:
    """`cases`: graphs with the tensors of their first call. `left`: the names of graphs that cannot be tried alone,
    each with the reason. `lent`: the functions that note."""

    cases: list[Case] = field(default_factory=list[Case])
    left: dict[str, str] = field(default_factory=dict[str, str])
    lent: weakref.WeakSet[Function] = field(default_factory=weakref.WeakSet[Function])

    def take(self, one: Following) -> None:
        """Note the graphs of a function from now on."""
        if isinstance(one, Function) and one not in self.lent:
            self.lent.add(one)
            one.lend(functools.partial(self._build, one.dynamic))

    def end(self) -> None:
        """Leave the functions as they were before: nothing that was compiled since serves a call."""
        for one in list(self.lent):
            one.take_back()

    def _build(self, dynamic: bool | None, region: Region, owner: Function, stages: Stages) -> Any:
        if region.graph is None:
            return build_entry(region, owner, stages, (EagerBackend(),))
        graph = copy_graph(region.graph)
        stages.captured(owner.fn, region)
        stages.recorded(graph)
        stages.finished()
        why = _why_left(region)
        try:
            keywords = keywords_of(owner, dynamic)
        except MinifyError as error:
            keywords, why = {}, error.cause
        if why:
            self.left[stages.name] = why
        note = None if why else _Note(self, keywords, stages.name, graph)
        # What is behind a break is compiled with what is there then, so such a region has to be run.
        runs = bool(region.breaks) and not (region.symbols or region.islands or region.dtensors)
        rest = _operators(region, graph) if runs else _leave_to_eager
        program = functools.partial(_run, note, rest)
        return make_entry(region, program, on_failure=owner.on_failure, counted=owner.root)


@contextmanager
def noting() -> Generator[Noted]:
    """Note the graphs of all functions that are called from now on, and leave no sizes open. Each call does what it
    does in eager PyTorch: a function runs as it does where it cannot be compiled, and a part of one that ends in a
    graph break operator by operator."""
    noted = Noted()
    with noticing(noted.take):
        try:
            for one in alive():
                noted.take(one)
            yield noted
        finally:
            noted.end()


def _why_left(region: Region) -> str:
    if region.symbols:
        return "it has sizes that are left open"
    if region.islands or region.dtensors:
        return "it works on DTensors"
    if any(node.meta.get("effect") for node in cast(fx.Graph, region.graph).nodes):
        return "it has effects"
    if any(node.meta["val"].device.type != "cpu" for node in placeholders(cast(fx.Graph, region.graph))):
        return "it is on a device, and what is tried runs in forked children, which have none"
    return ""


@dataclass(slots=True)
class _Note:
    """A case, once the tensors of a call are there."""

    noted: Noted
    keywords: dict[str, Any]
    name: str
    graph: fx.Graph
    is_taken: bool = False

    def take(self, tensors: Sequence[Tensor]) -> None:
        if not self.is_taken:
            self.is_taken = True
            names = [node.name for node in placeholders(self.graph)]
            taken = tensors if pristine.is_grad_enabled() else [tensor.detach() for tensor in tensors]
            held = {name: own(tensor) for name, tensor in zip(names, taken, strict=True)}
            self.noted.cases.append(Case(self.name, self.graph, held, self.keywords))


Program = Callable[[list[Tensor]], Sequence[Tensor]]


def _run(note: _Note | None, rest: Program, tensors: list[Tensor], *numbers: Any) -> Sequence[Tensor]:
    """The program of a region: it notes what it is called with, before anything is written to."""
    del numbers  # of sizes that are left open
    if note is not None:
        note.take(tensors)
    return rest(tensors)


class _ByEager(LampworkError):
    """Ends a program that has done nothing yet: its function's own code runs instead."""


def _leave_to_eager(tensors: list[Tensor]) -> Sequence[Tensor]:
    raise _ByEager("the call is for eager PyTorch")


def _operators(region: Region, graph: fx.Graph) -> Program:
    """The graph of a region in eager PyTorch, with the autograd nodes and the writes of its operators."""
    shared = Differentiable(graph, len(region.inputs), region.mutations, region.pieces, region.fresh_versions)
    return shared.call(None, lambda: graph)


def keywords_of(function: Function, dynamic: bool | None) -> dict[str, Any]:
    """What a function was compiled with, as keywords of `lampwork.compile`; none where it is as by default.

    Raises:
        MinifyError: a backend that has no name.
    """
    found: dict[str, Any] = {}
    options = {
        f.name: value
        for f in fields(Config)
        if f.name not in _NO_MATTER and (value := getattr(function.config, f.name)) != f.default
    }
    if options:
        found["options"] = options
    if dynamic is not None:
        found["dynamic"] = dynamic
    names = [_name_of(backend) for backend in function.backends]
    if names != ["native"]:
        found["backend"] = names[0] if len(names) == 1 else names
    return found


def _name_of(backend: Any) -> str:
    if backend.name in list_backends() and type(get_backend(backend.name)) is type(backend):
        return backend.name
    raise MinifyError(
        f"a script cannot name the backend {backend!r}",
        fix="register it with lampwork.register_backend, and pass its name to compile",
    )
