"""The order of the passes, and the driver that runs them. The only place where passes are ordered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import fx

from lampwork import logs
from lampwork.config import Config, current
from lampwork.errors import LampworkError, OptionError, PassError
from lampwork.graph.verify import verify
from lampwork.passes.algebra import Algebra
from lampwork.passes.canonicalize import Canonicalize
from lampwork.passes.common_subexpressions import CommonSubexpressions
from lampwork.passes.constant_folding import ConstantFolding
from lampwork.passes.context import PassContext
from lampwork.passes.dead_code import DeadCode
from lampwork.passes.fold_batch_norm import FoldBatchNorm
from lampwork.passes.library import Library
from lampwork.passes.prepack_convolution import PrepackConvolution
from lampwork.passes.remove_noops import RemoveNoops
from lampwork.passes.split_constants import SplitConstants


class Pass(Protocol):
    """A step that changes a graph in place and keeps what it computes."""

    name: ClassVar[str]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None: ...


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did. `rewrites` counts its changes."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    rewrites: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rewrites} rewrites, {self.nodes_before} -> {self.nodes_after} nodes, "
            f"{self.seconds * 1e3:.2f} ms"
        )


def default_passes() -> tuple[Pass, ...]:
    """All passes that run unless switched off, in order."""
    return (
        DeadCode(),
        SplitConstants(),
        Canonicalize(),
        RemoveNoops(),
        CommonSubexpressions(),
        Library(),
        FoldBatchNorm(),
        ConstantFolding(),
        Algebra(),
        PrepackConvolution(),
        RemoveNoops(),
        CommonSubexpressions(),
        DeadCode(),
        SplitConstants(),
    )


def optional_passes() -> tuple[Pass, ...]:
    """Passes that run last, when switched on by name."""
    return ()


def select_passes(switches: str) -> tuple[Pass, ...]:
    """The passes that `switches` ("-algebra,+some-pass") leaves on.

    Raises:
        OptionError: an unknown name, or one without a sign.
    """
    defaults, extras = default_passes(), optional_passes()
    known = sorted({p.name for p in (*defaults, *extras)})
    on: set[str] = set()
    off: set[str] = set()
    for switch in (s.strip() for s in switches.split(",")):
        if not switch:
            continue
        sign, name = switch[0], switch[1:]
        if sign not in "+-":
            raise OptionError(f"passes={switches!r}: {switch!r} has no sign", fix="write +name or -name")
        if name not in known:
            raise OptionError(
                f"passes={switches!r}: no pass is called {name!r}", fix=f"the passes are {', '.join(known)}"
            )
        (on if sign == "+" else off).add(name)
    return tuple(p for p in defaults if p.name not in off) + tuple(
        p for p in extras if p.name in on and p.name not in off
    )


def run_passes(
    graph: fx.Graph,
    config: Config | None = None,
    *,
    passes: Sequence[Pass] | None = None,
    ctx: PassContext | None = None,
) -> list[PassRecord]:
    """Run the passes over `graph`, in place.

    `passes` replaces the default ones; `ctx` brings a context whose counters the caller reads afterwards. With
    `config.verify` the graph is checked after each pass.

    Raises:
        OptionError: `config.passes` is wrong.
        PassError: a pass failed or left an invalid graph; it names the pass.
    """
    config = config or current()
    ctx = ctx or PassContext.of(config)
    records: list[PassRecord] = []
    for step in select_passes(config.passes) if passes is None else passes:
        records.append(_run_one(graph, step, ctx))
        if config.verify:
            _verify(graph, step.name)
    if logs.enabled("passes"):
        logs.emit("passes", format_records(records) + _refusals(ctx))
    return records


def _run_one(graph: fx.Graph, step: Pass, ctx: PassContext) -> PassRecord:
    before, hits, start = len(graph.nodes), ctx.hits.total(), time.perf_counter()
    try:
        step.run(graph, ctx)
    except PassError:
        raise
    except LampworkError as error:
        raise PassError(f"pass {step.name} failed: {error.cause}", location=error.location) from error
    seconds = time.perf_counter() - start
    return PassRecord(step.name, seconds, before, len(graph.nodes), ctx.hits.total() - hits)


def _verify(graph: fx.Graph, name: str) -> None:
    try:
        verify(graph)
    except LampworkError as error:
        raise PassError(f"pass {name} left an invalid graph: {error.cause}") from error


def format_records(records: Sequence[PassRecord]) -> str:
    """One line a pass."""
    return "\n".join(map(str, records))


def _refusals(ctx: PassContext) -> str:
    lines: Iterable[str] = (f"\n{name}: not applied ({n}x): {why}" for (name, why), n in ctx.refusals.items())
    return "".join(lines)
