"""From a graph as it was captured to its program in the cache folder: neither passes nor backends are asked again.

An entry leads from everything that passes and backends go by, the captured graph first, to the key of the program that
they came to. Passes see a graph and a `PassContext`, and of the process what is in the key: `tests` hold them to it.
It is so for a half of a training step, too. What forward's passes have a say in beyond their own graph is how tensors
are laid out that it saves, as backward reads them so: the entry has the specs of all results.
Where something else has a say (what users registered, backends from outside, operators of others, fuel), or somebody is
to see what the passes do (logs, dumps, checks), there is no such entry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from lampwork import logs
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.protocol import Backend, CompileOptions, Traits
from lampwork.cache import Key
from lampwork.cache.key import read_key
from lampwork.errors import SerialError
from lampwork.graph.known import ask, known_value
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope
from lampwork.literals import literal_text
from lampwork.partitioning.demands import Asked, Demands, demands_from_json, demands_to_json
from lampwork.partitioning.kept import NOT_IN_PASSES, Keeping, Subject, keeping, kind_of
from lampwork.partitioning.parts import Part
from lampwork.plugins.context import PassContext
from lampwork.plugins.fuel import FUEL
from lampwork.records import record
from lampwork.runtime.program import Program
from lampwork.serial import from_text, to_text
from lampwork.serial.graphs import META
from lampwork.serial.specs import spec_from_json, spec_to_json
from lampwork.serial.values import expected, items, mapping, text, whole
from lampwork.standard import functools, operator

_ORIGINS = frozenset({"location", "origin", "recorded_as"})
"""Meta data of nodes that passes hand on, and do not go by."""
_KNOWN = META | _ORIGINS | {"known"}

_NAMESPACES = frozenset({"aten", "lampwork", "mkldnn", "prims"})
"""Whose operators are torch's and ours: what those of others give is for their authors to say, in each process."""

_SEEN = ("passes", "partition", "graph", "loops", "llvm", "program", "tuning")
"""Topics of the log that show what passes and backends do."""

_KEYS = frozenset({"program", "demands", "calls", "results"})


@record
class Shortcut:
    """Where it is kept which program a captured graph comes to. `asked`: what its symbols were asked by the capture."""

    subject: Subject
    key: Key
    asked: Asked | None

    def program(self) -> Led | None:
        """What was kept; None if that is nothing, damaged, or not right for this call."""
        scope = self.subject.scope
        content = self.subject.store.get(self.key)
        if content is None:
            return None
        try:
            led = _read(content, scope, results_of(self.subject.graph))
        except SerialError as error:
            logs.emit("cache", f"{self.key} cannot be used: {error.cause}")
            return None
        if led.demands is not None and scope is not None and not led.demands.hold_for(scope):
            logs.emit("cache", f"{self.key} is for other sizes")
            return None
        return led

    def found(self, later: Callable[[], None]) -> Found | None:
        """The program; None if it is not there. `later` lets the passes run over the graph, for whoever looks at it."""
        led, subject = self.program(), self.subject
        content = None if led is None else subject.store.get(led.key)
        if led is None or content is None:
            return None
        if led.demands is not None and subject.scope is not None:
            led.demands.make_of(subject.scope)
        options = replace(subject.options, ready=later)
        options.observer.skipped(later, led.calls)
        restored = Keeping(replace(subject, options=options), led.key).restored(content)
        if restored is None or not isinstance(restored[0], Program | SymbolicProgram):
            return None
        return Found(restored[0], led.results)

    def lead(self, parts: Sequence[Part]) -> Callable[[], None]:
        """What keeps which program the graph came to, to be called once there is one for all of it. `parts` are what
        the passes have left, before they are compiled."""
        subject = self.subject
        if len(parts) != 1 or parts[0].backend is not subject.backend:
            return keep_nothing
        graph = parts[0].graph
        to = keeping(subject.backend, subject.traits, graph, subject.options)
        if to is None or (to.subject.scope is None) != (subject.scope is None):
            return keep_nothing
        demands = None
        if subject.scope is not None and self.asked is not None:
            demands = demands_to_json(Demands.since(self.asked, subject.scope))
        calls = sum(node.op == "call_function" for node in graph.nodes)
        results = [spec_to_json(spec) for spec in results_of(subject.graph)]
        content = to_text({"program": to.key.text, "demands": demands, "calls": calls, "results": results})
        return functools.partial(subject.store.put, self.key, content)


def keep_nothing() -> None:
    """Nothing is kept."""


@record
class Found:
    """A program that was kept. `results`: the specs of what its graph returns, as the passes left them: the half of a
    training step saves tensors, and the other half is laid out by theirs."""

    program: Program | SymbolicProgram
    results: tuple[TensorSpec, ...]


@record
class Led:
    """The key of a program, what the passes asked of symbols, how many calls they left, and the specs of what the graph
    returns."""

    key: Key
    demands: Demands | None
    calls: int
    results: tuple[TensorSpec, ...]


def results_of(graph: fx.Graph) -> tuple[TensorSpec, ...]:
    """The specs of what a graph returns."""
    output: Any = next(iter(reversed(graph.nodes)))
    return tuple(node.meta["val"] for node in output.args[0])


def _read(content: bytes, scope: Scope | None, before: Sequence[TensorSpec]) -> Led:
    """`before`: the specs of what the graph returns, as it was captured."""
    found = mapping(from_text(content), _KEYS)
    key = read_key(text(found["program"]))
    if key is None or key.kind != "program":
        raise expected("the key of a program", found["program"])
    if (found["demands"] is None) != (scope is None):
        raise SerialError("demands were expected for a graph with symbols, and for no other")
    demands = None if scope is None else demands_from_json(found["demands"], scope)
    results = tuple(spec_from_json(spec, scope or Scope()) for spec in items(found["results"], len(before)))
    for spec, was in zip(results, before, strict=True):
        if not isinstance(spec, TensorSpec) or len(spec.shape) != len(was.shape):
            raise expected(f"a tensor of {len(was.shape)} dimensions", str(spec))
    return Led(key, demands, whole(found["calls"]), results)


def _known_tensors(graph: fx.Graph) -> str:
    """What is known of tensors that are computed of literals alone."""
    known = ((node.name, known_value(node)) for node in graph.nodes)
    return " ".join(f"{name}={_shown(ask(value, 'tolist'))}" for name, value in known if value is not None)


def _shown(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_shown, cast('list[Any]', values)))}]"
    return literal_text(values)


def shortcut(
    graph: fx.Graph, ctx: PassContext, backends: Sequence[Backend], options: CompileOptions
) -> Shortcut | None:
    """Where it is kept what the passes, in that context, and the backends make of a graph that was captured; None if
    they have to be asked."""
    config = options.config
    if config.passes or config.fuel >= 0 or FUEL in os.environ or config.verify or config.dump:
        return None
    if ctx.selection.items or any(map(logs.enabled, _SEEN)) or not all(map(_is_plain, graph.nodes)):
        return None
    traits = [Traits.of(backend) for backend in backends]
    if not all(map(_is_ours, backends)) or not all(each.trusted for each in traits):
        return None
    subject = Subject.of(backends[0], traits[0], graph, options)
    if subject is None:
        return None
    key = subject.key(
        "graph", NOT_IN_PASSES, backends=" ".join(map(kind_of, backends)), known=_known_tensors(graph)
    )
    asked = None if subject.scope is None else Asked.of(subject.scope)
    return Shortcut(subject, key, asked)


def _is_ours(backend: Any) -> bool:
    return type(backend).__module__.startswith("lampwork.backends.")


def _is_plain(node: fx.Node) -> bool:
    """Whether the key has all of a node that passes go by."""
    if not node.meta.keys() <= _KNOWN:
        return False
    target: Any = node.target
    if node.op != "call_function" or target is operator.getitem:
        return True
    return isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES
