"""What users registered, run so that no fault of theirs gets into a program."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from torch import fx
from torch._ops import OpOverload

from lampwork.errors import (
    CaptureError,
    InvalidGraphError,
    LampworkError,
    Location,
    PassTimeoutError,
    PluginPassError,
    RewriteError,
    text_of,
)
from lampwork.graph.copying import copy_graph, restore_graph
from lampwork.graph.hashing import structural_hash
from lampwork.graph.origin import place_near, stamp
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_sizes
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import Registered, registry
from lampwork.plugins.time_limit import TimeIsUp, time_limit
from lampwork.records import record
from lampwork.rewriting.apply.driver import Rewriter, Rule
from lampwork.rewriting.apply.edit import spec_change


@record
class RewriteStep:
    """Rewrites that run together until none fires."""

    name: str
    rules: tuple[Rule, ...]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        apply_rules(self.name, self.rules, graph, ctx)


@record
class PassStep:
    """A pass of a user. Whatever it does wrong, the graph is then as it was before it."""

    item: Registered

    @property
    def name(self) -> str:
        return self.item.name

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        if ctx.exhausted:
            return
        before, content = ctx.hits[self.name], structural_hash(graph)
        guarded(self.name, self.item.source, lambda: self.item.step(graph, ctx), graph, ctx)
        if ctx.hits[self.name] == before and structural_hash(graph) != content:
            ctx.spend(self.name)  # it does not count its changes itself
        if ctx.counting:
            registry().count(self.name, hits=ctx.hits[self.name] - before)


def apply_rules(name: str, rules: tuple[Rule, ...], graph: fx.Graph, ctx: PassContext) -> None:
    """Apply registered rewrites until none fires, and count for each of them. Those that never come to an end leave
    no trace: the others start again without them."""
    hits, refusals = Counter(ctx.hits), Counter(ctx.refusals)
    kept: fx.Graph | None = None
    while rules := tuple(r for r in rules if r.name not in ctx.banned):
        kept = kept or copy_graph(graph)
        known, source = len(ctx.faults), rules[0].source if len(rules) == 1 else None
        if not guarded(name, source, lambda: _rewriter(rules).run(graph, ctx), graph, ctx):
            ctx.banned.update(r.name for r in rules)
        if all(getattr(fault, "undone", True) for fault in ctx.faults[known:]):
            break
        restore_graph(graph, kept)
        ctx.hits, ctx.refusals = Counter(hits), Counter(refusals)
    for r in rules if ctx.counting else ():
        refused = sum(n - refusals[key] for key, n in ctx.refusals.items() if key[0] == r.name)
        registry().count(r.name, hits=ctx.hits[r.name] - hits[r.name], refused=refused)


@lru_cache(maxsize=16)
def _rewriter(rules: tuple[Rule, ...]) -> Rewriter:
    return Rewriter(rules)


def guarded(
    name: str, source: Location | None, run: Callable[[], Any], graph: fx.Graph, ctx: PassContext
) -> bool:
    """Run a plug-in on a graph and check the result; False if it failed, with the graph as it was.

    Raises:
        PassError: it failed, and `ctx` is strict.
    """
    kept = copy_graph(graph)
    hits = Counter(ctx.hits)
    title = f"{name} ({source})" if source is not None else name
    try:
        with time_limit(ctx.config.pass_timeout):
            run()
        _complete(graph, ctx)
        verify(graph)
        _check_results(kept, graph)
        _check_specs(kept, graph, ctx)
        return True
    except TimeIsUp as error:
        what = f"pass {title} did not end in {ctx.config.pass_timeout} seconds, {_last_place(error, source)}"
        fault: LampworkError = PassTimeoutError(
            what, fix="let it end; option pass_timeout is the limit in seconds", location=source
        )
        cause: BaseException = error
    except RewriteError:
        raise  # strict: the driver has put the graph back
    except InvalidGraphError as error:
        fault = PluginPassError(f"pass {title} left an invalid graph: {error.cause}", location=error.location)
        cause = error
    except LampworkError as error:
        fault = PluginPassError(
            f"pass {title} failed: {error.cause}", fix=error.fix, location=error.location or source
        )
        cause = error
    except Exception as error:  # noqa: BLE001  (the boundary to code of others)
        what = f"pass {title} raised {text_of(error)}, {_last_place(error, source)}"
        fault, cause = PluginPassError(what, location=source), error
    restore_graph(graph, kept)
    ctx.hits = hits
    ctx.note(fault, cause)
    return False


def _last_place(error: BaseException, source: Location | None) -> str:
    """Where in the author's code it was."""
    frames = traceback.extract_tb(error.__traceback__)
    file = source.file if source is not None else ""
    inner = [f for f in frames if f.filename == file] or [
        f for f in frames if not f.filename.startswith(_HERE)
    ]
    frame = (inner or frames)[-1]
    return f"at {frame.filename}:{frame.lineno}"


_HERE = __file__.rpartition("/plugins/")[0]


def _complete(graph: fx.Graph, ctx: PassContext) -> None:
    """Infer the specs that a pass left out; and nodes without a place come from where their neighbours do."""
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if "origin" not in node.meta:
            stamp(node, place_near(node))
        if "val" in node.meta or not isinstance(node.target, OpOverload):
            continue
        if any("val" not in operand.meta for operand in node.all_input_nodes):
            continue  # which cannot be inferred either, and is what `verify` names
        try:
            node.meta["val"] = ctx.infer(node.target, node.args, node.kwargs)
        except CaptureError as error:
            raise InvalidGraphError(
                f"node {node.name} calls {node.target} with arguments that torch refuses: {error.cause}",
                location=place_near(node).location,
            ) from error


def _results(graph: fx.Graph) -> Any:
    return next(iter(reversed(graph.nodes))).args[0]


def _check_results(kept: fx.Graph, graph: fx.Graph) -> None:
    """A graph keeps its placeholders, and the number, shapes, dtypes and strides of its results."""
    before, after = ([n.name for n in g.nodes if n.op == "placeholder"] for g in (kept, graph))
    if before != after:
        raise InvalidGraphError(f"its placeholders are {', '.join(after)}, not {', '.join(before)}")
    old, new = _results(kept), _results(graph)
    if len(old) != len(new):
        raise InvalidGraphError(f"it has {len(new)} results, not {len(old)}")
    for was, now in zip(old, new, strict=True):
        a, b = was.meta["val"], now.meta["val"]
        change = spec_change(a, b)
        if not change and not same_sizes(a.strides, b.strides):
            change = f"strides {tuple(a.strides)} and {tuple(b.strides)}"
        if change:
            raise InvalidGraphError(
                f"result {now.name} was {was.name} before, of another type: {change}",
                location=place_near(was).location,
            )


def _check_specs(kept: fx.Graph, graph: fx.Graph, ctx: PassContext) -> None:
    """The specs of new and changed nodes are what their operators give."""
    known = {n.name: _wiring(n) for n in kept.nodes}
    for node in _changed(graph, known):
        try:
            given = ctx.infer(node.target, node.args, node.kwargs)
        except CaptureError as error:
            if node.name in known:
                continue  # not all that is recorded can be inferred from specs
            raise InvalidGraphError(
                f"node {node.name} calls {node.target} with arguments that torch refuses: {error.cause}",
                location=place_near(node).location,
            ) from error
        change = spec_change(node.meta["val"], given)
        if change:
            raise InvalidGraphError(
                f"the spec of node {node.name} is wrong: {change}", location=place_near(node).location
            )


def _changed(graph: fx.Graph, known: dict[str, Any]) -> Iterator[fx.Node]:
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and isinstance(node.target, OpOverload)
            and known.get(node.name) != _wiring(node)
        ):
            yield node


def _wiring(node: fx.Node) -> Any:
    """What a node calls with what, in a form that can be compared across graphs."""
    spec = node.meta.get("val")
    shown = str(spec) if isinstance(spec, TensorSpec) else ""
    return str(node.target), str(node.args), str(node.kwargs), shown
