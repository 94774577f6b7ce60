"""The order of the passes, and the driver that runs them. The only place where passes are ordered; those of backends
are placed by them."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import ClassVar, Protocol, cast

from torch import fx

from lampwork import logs
from lampwork.config import Config, current
from lampwork.errors import LampworkError, NumericPassError, OptionError, PassError, warn
from lampwork.graph.copying import copy_graph, restore_graph
from lampwork.graph.verify import verify
from lampwork.plugins.arrange import arrange
from lampwork.plugins.context import BackendPasses, PassContext
from lampwork.plugins.registry import Selection, registry
from lampwork.plugins.switches import Switches
from lampwork.records import record
from lampwork.rewriting.algebra import algebra_rules
from lampwork.rewriting.apply.driver import Rule
from lampwork.rewriting.library.pairs import pair_rules
from lampwork.rewriting.library.table import library_rules
from lampwork.rewriting.padding import padding_rules
from lampwork.rewriting.views import view_rules
from lampwork.transforms.algebra import Algebra
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.constant_folding import ConstantFolding
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.fold_batch_norm import FoldBatchNorm
from lampwork.transforms.fuse_pairs import FusePairs
from lampwork.transforms.library import Library
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.rewrites import Rewrites
from lampwork.transforms.split_constants import SplitConstants


class Pass(Protocol):
    """A step that changes a graph in place and keeps what it computes."""

    name: ClassVar[str]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None: ...


@record
class PassRecord:
    """What one pass did. `rewrites` counts its changes, `hits` each rewrite's."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    rewrites: int
    hits: Mapping[str, int] = field(default_factory=dict[str, int])

    def __str__(self) -> str:
        line = (
            f"{self.name}: {self.rewrites} rewrites, {self.nodes_before} -> {self.nodes_after} nodes, "
            f"{self.seconds * 1e3:.2f} ms"
        )
        fired = [f"\n    {count} x {name}" for name, count in self.hits.items() if name != self.name]
        return line + "".join(fired)


def default_passes() -> tuple[Pass, ...]:
    """The passes that run for every backend unless switched off, in order."""
    return (
        DeadCode(),
        SplitConstants(),
        Canonicalize(),
        RemoveNoops(),
        CommonSubexpressions(),
        Rewrites(),
        Library(),
        Rewrites(),
        FoldBatchNorm(),
        ConstantFolding(),
        Algebra(),
        RemoveNoops(),
        CommonSubexpressions(),
        DeadCode(),
        SplitConstants(),
    )


def optional_passes() -> tuple[Pass, ...]:
    """Passes that run last, when switched on by name."""
    return (FusePairs(),)


def pass_names() -> frozenset[str]:
    """The names of the passes of the tree, and of those that backends bring."""
    return registry().reserved | {p.name for p in (*default_passes(), *optional_passes())}


def with_backend_passes(steps: Sequence[Pass], backend_passes: BackendPasses) -> list[Pass]:
    """`steps` with each of `backend_passes` at its place; of two with one name the first.

    before:  algebra, remove-noops                  (merge-linears, after algebra), (prepack, after merge-linears)
    after:   algebra, merge-linears, prepack, remove-noops

    Raises:
        OptionError: there is no pass of the name that one of them is placed by.
    """
    found = list(steps)
    for step, place in backend_passes:
        names = [each.name for each in found]
        if step.name in names:
            continue
        if place.anchor not in names:
            raise OptionError(f"the pass {step.name} of a backend runs {place}, and there is no such pass")
        found.insert(names.index(place.anchor) + (not place.before), step)
    return found


def check_switches(switches: str, backend_passes: BackendPasses = ()) -> None:
    """
    Raises:
        OptionError: "-algebra,+some-pass" has a name that is unknown, or one without a sign.
    """
    for name, fix in _unknown(switches, backend_passes):
        raise OptionError(f"passes={switches!r}: no pass or rewrite is called {name!r}", fix=fix)


def _unknown(switches: str, backend_passes: BackendPasses) -> Iterator[tuple[str, str]]:
    """Each name in `switches` that nothing has or had, with a fix."""
    states = Switches.of(switches).states
    known = pass_names() | {step.name for step, _ in backend_passes} if states else frozenset[str]()
    for name in states:
        if name not in known and name not in registry().names() and name not in tree_rules():
            near = difflib.get_close_matches(name, [*known, *registry().names(), *tree_rules()], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            yield (
                name,
                f"{hint}the passes are {', '.join(sorted(known))}; what you register has to be there by then",
            )


@lru_cache(maxsize=256)
def _warn_of_unknown(switches: str, name: str, fix: str) -> None:
    warn(f"passes={switches!r}: no pass or rewrite is called {name!r}, which is left out\n  fix: {fix}")


def select_passes(
    switches: str, selection: Selection | None = None, backend_passes: BackendPasses = ()
) -> tuple[Pass, ...]:
    """The passes that `switches` ("-algebra,+some-pass") leaves on, and in their places those of backends, and of
    `selection`, which is what users registered (that which is on now, if left out). Options are held to
    `check_switches` where they are given; what LAMPWORK_PASSES names may be registered any time later, so here a name
    that is unknown still is warned of, once.

    Raises:
        OptionError: a name has no sign.
    """
    for name, fix in _unknown(switches, backend_passes):
        _warn_of_unknown(switches, name, fix)
    states = Switches.of(switches)
    steps = [
        *with_backend_passes(default_passes(), backend_passes),
        *(p for p in optional_passes() if states.on(p.name, False)),
    ]
    placed = arrange(steps, selection if selection is not None else registry().select(switches))
    return tuple(p for p in placed if states.on(p.name))


@lru_cache(maxsize=1)
def tree_rules() -> Mapping[str, tuple[str, Rule]]:
    """The rewrites of the tree by name, each with the pass that applies it."""
    families = (
        (Algebra.name, (*algebra_rules(), *view_rules(), *padding_rules())),
        (Library.name, library_rules()),
        (FusePairs.name, pair_rules()),
    )
    return {r.name: (name, r) for name, rules in families for r in rules}


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
        OptionError: a name in `config.passes` has no sign.
        PassError: a pass failed or left an invalid graph; it names the pass.
    """
    config = config or current()
    ctx = ctx or PassContext.of(config)
    records: list[PassRecord] = []
    steps = select_passes(config.passes, ctx.selection, ctx.backend_passes) if passes is None else passes
    if ctx.numeric is not None:
        ctx.numeric.start(graph)
    for step in steps:
        records.append(_run_one(graph, step, ctx))
        if config.verify:
            _verify(graph, step.name)
    if logs.enabled("passes"):
        logs.emit("passes", format_records(records) + _refusals(ctx))
    return records


def _run_one(graph: fx.Graph, step: Pass, ctx: PassContext) -> PassRecord:
    before, start = len(graph.nodes), time.perf_counter()
    hits = Counter(ctx.hits)
    ctx.running = step.name
    kept = copy_graph(graph) if ctx.numeric is not None else None
    try:
        step.run(graph, ctx)
        if ctx.numeric is not None and ctx.hits != hits:
            ctx.numeric.check_pass(step.name, graph)
    except NumericPassError as error:
        ctx.note(error)
        restore_graph(graph, cast(fx.Graph, kept))
        ctx.hits = Counter(hits)
    except PassError:
        raise
    except LampworkError as error:
        raise PassError(f"pass {step.name} failed: {error.cause}", location=error.location) from error
    seconds = time.perf_counter() - start
    fired = {name: n - hits[name] for name, n in ctx.hits.items() if n > hits[name]}
    return PassRecord(step.name, seconds, before, len(graph.nodes), sum(fired.values()), fired)


def _verify(graph: fx.Graph, name: str) -> None:
    try:
        verify(graph)
    except LampworkError as error:
        raise PassError(f"pass {name} left an invalid graph: {error.cause}") from error


def format_records(records: Sequence[PassRecord]) -> str:
    """One line a pass, and one for each rewrite that fired in it."""
    return "\n".join(map(str, records))


def _refusals(ctx: PassContext) -> str:
    lines: Iterable[str] = (f"\n{name}: not applied ({n}x): {why}" for (name, why), n in ctx.refusals.items())
    return "".join(lines)
