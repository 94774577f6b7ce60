"""The graphs of functions, with the tensors of their first calls, which run in eager PyTorch meanwhile."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.eager import EagerBackend
from lampwork.backends.registry import get_backend, list_backends
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.compiled.live_functions import Following, noticing
from lampwork.compiled.pipeline import build_entry
from lampwork.compiled.stages import Stages
from lampwork.config import Config
from lampwork.errors import MinifyError
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.minifying.case import Case, own, placeholders
from lampwork.runtime import make_entry
from lampwork.standard import functools

_NO_MATTER = ("dump", "logs", "cache")
"""Options that say nothing of what is compiled."""


@dataclass(slots=True)
class Noted:
    """`cases`: graphs with the tensors of their first call. `left`: the names of graphs that cannot be tried alone,
    each with the reason."""

    cases: list[Case] = field(default_factory=list[Case])
    left: dict[str, str] = field(default_factory=dict[str, str])

    def take(self, one: Following) -> None:
        """Note the graphs of a function that was just made, and of all that it continues in."""
        if isinstance(one, Function) and one.root:
            one.build = functools.partial(self._build, one, one.dynamic)
            one.close_sizes()

    def _build(
        self, root: Function, dynamic: bool | None, region: Region, owner: Function, stages: Stages
    ) -> Any:
        why, keywords = _why_left(region), dict[str, Any]()
        try:
            keywords = keywords_of(root, dynamic)
        except MinifyError as error:
            why = error.cause
        if why:
            self.left[stages.name] = why
        if region.graph is None or why:
            return build_entry(region, owner, stages, (EagerBackend(),))
        run = _Run(self, keywords, stages.name, region.graph)
        return make_entry(region, run, on_failure=owner.on_failure, counted=owner.root)


@contextmanager
def noting() -> Generator[Noted]:
    """Note the graphs of all functions that are compiled from now on. They run in eager PyTorch, and leave no sizes
    open."""
    noted = Noted()
    with noticing(noted.take):
        yield noted


def _why_left(region: Region) -> str:
    if region.graph is None:
        return ""
    if region.symbols:
        return "it has sizes that are left open"
    if region.islands or region.dtensors:
        return "it works on DTensors"
    if any(node.meta.get("effect") for node in region.graph.nodes):
        return "it has effects"
    if any(node.meta["val"].device.type != "cpu" for node in placeholders(region.graph)):
        return "it is on a device, and what is tried runs in forked children, which have none"
    return ""


class _Run:
    """The program of a region: eager, which notes the tensors that it is called with first."""

    def __init__(self, noted: Noted, keywords: dict[str, Any], name: str, graph: fx.Graph) -> None:
        self.noted, self.keywords, self.name = noted, keywords, name
        self.graph = copy_graph(graph)
        self.called = False

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if not self.called:
            self.called = True
            names = [node.name for node in placeholders(self.graph)]
            taken = tensors if pristine.is_grad_enabled() else [tensor.detach() for tensor in tensors]
            held = {name: own(tensor) for name, tensor in zip(names, taken, strict=True)}
            self.noted.cases.append(Case(self.name, self.graph, held, self.keywords))
        return run_graph(self.graph, tensors)


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
