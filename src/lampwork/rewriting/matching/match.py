"""Matching a pattern against a node of a graph.

The matcher keeps a list of goals ("this value must be that term") and works them off in order; where there is a
choice (operands of an add, either, maybe, ...) it notes the other ways and comes back to them when a goal fails. So
there is no recursion, and a plain pattern costs a few steps an op. plan.py makes patterns ready for it, with all their
spellings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_size
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.casts import is_lossless
from lampwork.rewriting.language.combine import MISS
from lampwork.rewriting.matching import plan as p
from lampwork.rewriting.matching.plan import COMMUTATIVE as COMMUTATIVE
from lampwork.rewriting.matching.plan import Plan, plan_of
from lampwork.rewriting.matching.values import fill_value as fill_value
from lampwork.rewriting.matching.values import is_constant as is_constant
from lampwork.rewriting.matching.values import kind_matches as kind_matches
from lampwork.rewriting.matching.values import literal_matches as literal_matches
from lampwork.rewriting.matching.values import number_of
from lampwork.rewriting.matching.values import same_value as same_value
from lampwork.standard import operator
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


@record
class Match:
    """Where a pattern was found.

    `roots`: one node for each output of the pattern. `values`: what each variable stands for (a node, or a plain
    value; None for a variable of an option that was not taken, a Path for a named `through`). `nodes`: all nodes the
    pattern covers, the roots first. `counts` and `sizes`: what `count` and `size` tell.
    """

    roots: tuple[fx.Node, ...]
    values: dict[str, Any]
    nodes: tuple[fx.Node, ...]
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def root(self) -> fx.Node:
        """The node of the first output."""
        return self.roots[0]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def spec(self, name: str) -> TensorSpec:
        """The spec of the tensor that the variable `name` stands for."""
        return cast(TensorSpec, self.values[name].meta["val"])

    def has(self, name: str) -> bool:
        """Whether the optional op, or the variable, called `name` is in the match."""
        return self.counts.get(name, 0) > 0 or self.values.get(name) is not None

    def count(self, name: str) -> int:
        """How often a `repeated` was found, which option of an `either` (from 0), 1 for a `maybe` that was there."""
        return self.counts[name]

    def size(self, name: str) -> int:
        """The size that the pattern calls `name` in the shapes of its variables."""
        return self.sizes[name]

    def only_use(self) -> Verdict:
        """Yes if nothing outside the match reads an inner node, so that the match can be replaced without repeating
        work."""
        inside = set(self.nodes)
        for node in self.nodes:
            if node in self.roots:
                continue
            for user in node.users:
                if user not in inside:
                    return No(f"{node.name} is also read by {user.name}")
        return Yes()


def matches(pattern: Any, node: fx.Node) -> Iterator[Match]:
    """The ways in which `pattern` matches: a term, or a tuple of terms for several outputs, of which the first is at
    `node`.

    Raises:
        PassError: a predicate of the pattern raised.
    """
    plan = plan_of(pattern)
    root = plan.root
    if (
        root.tag == p.CALL
        and not cast(p.CallPlan, root).others
        and node.target not in cast(p.CallPlan, root).rows
    ):
        return iter(())
    return Search(plan, node).run()


@record
class Miss:
    """The nearest that a pattern came to a match: `matched` nodes were right when `node` failed for `reason`."""

    matched: int
    node: fx.Node | None
    reason: str

    def __str__(self) -> str:
        where = f" at {self.node.name}" if self.node is not None else ""
        return f"{self.reason}{where} ({self.matched} nodes matched before)"


Goals = Any
"""A linked list of (plan, value, the node whose argument the value is, the goals after it), None at its end."""


_WAYS = 4_096
"""How many ways to match a pattern at a node are tried: a sum of twenty variables has half a million."""


class Search:
    """One search for a pattern at a node. With `explain` the failures are noted; `miss` is the one furthest on."""

    __slots__ = ("best", "bindings", "choices", "explain", "node", "nodes", "plan", "trail")

    def __init__(self, plan: p.PatternPlan, node: fx.Node, explain: bool = False) -> None:
        self.plan = plan
        self.node = node
        self.explain = explain
        self.bindings: dict[Any, Any] = {}
        self.trail: list[Any] = []
        self.nodes: list[fx.Node] = []
        self.choices: list[tuple[Goals, int, int]] = []
        self.best: Miss | None = None

    def run(self) -> Iterator[Match]:
        goals: Goals = None
        for output in reversed(self.plan.outputs):
            goals = (output, None, None, goals)
        goals = (self.plan.root, self.node, None, goals)
        for _ in range(_WAYS):
            if self._reach(goals):
                yield self._match()
            if not self.choices:
                return
            goals = self._back()

    def _back(self) -> Goals:
        goals, trail, nodes = self.choices.pop()
        while len(self.trail) > trail:
            del self.bindings[self.trail.pop()]
        del self.nodes[nodes:]
        return goals

    def _match(self) -> Match:
        found = self.bindings
        values = {name: found.get(name) for name in self.plan.names}
        counts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for key, value in found.items():
            if isinstance(key, str):
                values[key] = value
            elif isinstance(key, tuple):
                kind, name = cast("tuple[str, str]", key)
                if kind != "output":
                    (counts if kind == "count" else sizes)[name] = value
        roots = [self.node, *(found["output", output.number] for output in self.plan.outputs)]
        return Match(tuple(roots), values, tuple(dict.fromkeys((*roots, *self.nodes))), counts, sizes)

    def _bind(self, key: Any, value: Any) -> None:
        self.bindings[key] = value
        self.trail.append(key)

    def _choice(self, goals: Goals) -> None:
        self.choices.append((goals, len(self.trail), len(self.nodes)))

    def _reach(self, goals: Goals) -> bool:
        """Work off all goals; False when one fails."""
        while goals is not None:
            plan, value, owner, rest = goals
            goals = _STEPS[plan.tag](self, plan, value, owner, rest)
            if goals is FAILED:
                if self.explain and (self.best is None or len(self.nodes) > self.best.matched):
                    where = owner if owner is not None else self.node
                    self.best = Miss(len(self.nodes), where, _reason(self, plan, value, owner))
                return False
        return True

    # --- one method for each kind of plan: the goals that are left, or FAILED -----------------------------------------

    def _any(self, plan: Plan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        return rest

    def _var(self, plan: p.VarPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        name = plan.name
        if plan.kind in ("number", "constant") and isinstance(value, fx.Node):
            number = number_of(value)
            value = value if number is None else number
        if name and name in self.bindings:
            return rest if same_value(self.bindings[name], value) else FAILED
        if plan.test is not None and not plan.test(value):
            return FAILED
        if plan.sizes is not None and not self._sizes_fit(plan.sizes, value):
            return FAILED
        if name:
            self._bind(name, value)
        return rest

    def _sizes_fit(self, wanted: tuple[Any, ...], value: Any) -> bool:
        spec = schema.spec_of(value)
        if spec is None:
            return False
        shape: tuple[Any, ...] = spec.shape
        if wanted and wanted[0] is Ellipsis:
            wanted = wanted[1:]
            if len(shape) < len(wanted):
                return False
            shape = shape[len(shape) - len(wanted) :]
        if len(shape) != len(wanted):
            return False
        for want, size in zip(wanted, shape, strict=True):
            if want is None:
                continue
            if isinstance(want, str):
                key = ("size", want)
                if key not in self.bindings:
                    self._bind(key, size)
                    continue
                want = self.bindings[key]
            if not same_size(want, size):
                return False
        return True

    def _lit(self, plan: p.LitPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        return rest if value is plan.value or literal_matches(plan.value, value) else FAILED

    def _call(self, plan: p.CallPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        for other in plan.others:
            self._choice((other, value, owner, rest))
        if not isinstance(value, fx.Node) or value.op != "call_function":
            return FAILED
        rows = plan.rows.get(value.target)
        if rows is None or schema.is_pinned(value):
            return FAILED
        if plan.key is not None:
            known = self.bindings.get(plan.key)
            if known is not None:
                return rest if same_value(known, value) else FAILED
        actual = _operands(value)
        found: Goals = FAILED
        ways: list[Goals] = []
        for row in rows:
            if len(actual) != row.arity:
                continue
            ways.append(self._row(row.items, actual, value, rest))
            if row.swapped is not None and _may_swap(actual):
                ways.append(self._row(row.swapped, actual, value, rest))
        keyed = plan.key is not None
        for way in reversed(ways):
            if way is FAILED:
                continue
            if found is not FAILED:
                self.choices.append((_entered(value, plan.key, found), len(self.trail), len(self.nodes)))
            found = way
        if found is FAILED:
            return FAILED
        if keyed:
            self._bind(plan.key, value)
        self.nodes.append(value)
        return found

    def _row(
        self, items: tuple[tuple[int, Plan], ...], actual: tuple[Any, ...], owner: fx.Node, rest: Goals
    ) -> Goals:
        """The goals for the operands of a call; FAILED if one of them is plainly wrong."""
        if not self.explain:
            for i, plan in items:
                value = actual[i]
                if plan.tag == p.LIT:
                    wanted = cast(p.LitPlan, plan).value
                    if value is not wanted and not literal_matches(wanted, value):
                        return FAILED
                elif plan.tag == p.CALL:
                    call = cast(p.CallPlan, plan)
                    if not call.others and (not isinstance(value, fx.Node) or value.target not in call.rows):
                        return FAILED
        goals = rest
        for i, plan in reversed(items):
            if plan.tag != p.LIT or self.explain:
                goals = (plan, actual[i], owner, goals)
        return goals

    def _items(self, plan: p.ItemsPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        if not isinstance(value, list | tuple):
            return FAILED
        items = cast("list[Any]", value)
        if len(items) != len(plan.items):
            return FAILED
        for inner, item in zip(reversed(plan.items), reversed(items), strict=True):
            rest = (inner, item, owner, rest)
        return rest

    def _either(self, plan: p.EitherPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        ways: list[Goals] = []
        for option, note in plan.options:
            after = rest if note is None else (note, None, None, rest)
            ways.append((option, value, owner, after))
        for way in reversed(ways[1:]):
            self._choice(way)
        return ways[0]

    def _via(self, plan: p.ViaPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        found = plan.convert(value, owner)
        return FAILED if found is MISS else (plan.inner, found, owner, rest)

    def _repeat(self, plan: p.RepeatPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        term = plan.term
        assert term is not None
        stop = (plan.stop, value, owner, (plan.note, None, None, rest))
        enough = term.done >= term.at_least
        if not isinstance(value, fx.Node) or value.op != "call_function":
            return stop if enough else FAILED
        if enough:
            self._choice(stop)
        return (p.unfold(plan), value, owner, rest)

    def _through(self, plan: p.ThroughPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        source = seen_through(value, views=plan.views, casts=plan.casts)
        if source is not None:
            further = p.ThroughPlan(
                inner=plan.inner,
                views=plan.views,
                casts=plan.casts,
                name=plan.name,
                chain=(*plan.chain, value),
            )
            self._choice((further, source, owner, rest))
        for node in plan.chain:
            self.nodes.append(node)
        after = (p.path_note(plan), None, None, rest) if plan.name else rest
        return (plan.inner, value, owner, after)

    def _size(self, plan: p.SizePlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        spec = schema.spec_of(self.bindings.get(plan.name))
        if spec is None or isinstance(value, fx.Node) or not -len(spec.shape) <= plan.dim < len(spec.shape):
            return FAILED
        return rest if same_size(spec.shape[plan.dim], value) else FAILED

    def _sizes(self, plan: p.SizePlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        spec = schema.spec_of(self.bindings.get(plan.name))
        if spec is None or not isinstance(value, list | tuple):
            return FAILED
        items = cast("list[Any]", value)
        if len(items) != len(spec.shape):
            return FAILED
        return rest if all(same_size(a, b) for a, b in zip(spec.shape, items, strict=True)) else FAILED

    def _note(self, plan: p.NotePlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        if plan.key not in self.bindings:
            self._bind(plan.key, plan.value)
        return rest

    def _entry(self, plan: p.EnteredPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        if plan.key is not None:
            self._bind(plan.key, plan.node)
        self.nodes.append(plan.node)
        return rest

    def _output(self, plan: p.OutputPlan, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        taken = {self.node, *(self.bindings["output", n] for n in range(1, plan.number))}
        known = self.bindings.get(plan.term) if not isinstance(plan.term, str) else None
        if isinstance(known, fx.Node):
            if known in taken:
                return FAILED
            self._bind(("output", plan.number), known)
            return rest
        for node in reversed(self._candidates(plan)):
            if node not in taken:
                note = p.NotePlan(key=("output", plan.number), value=node)
                self._choice((plan.plan, node, None, (note, None, None, rest)))
        return FAILED

    def _candidates(self, plan: p.OutputPlan) -> list[fx.Node]:
        """The nodes that may be a further output: those that use what is known of it, nearest first."""
        anchors = [self.bindings.get(a) for a in plan.anchors]
        nodes = [a for a in anchors if isinstance(a, fx.Node)]
        if not nodes:
            return []
        # The one with the fewest users has the fewest nodes above it.
        level = [min(nodes, key=lambda n: len(n.users))]
        found: dict[fx.Node, None] = {}
        for _ in range(plan.depth):
            level = [u for n in level for u in n.users if u not in found and u.op == "call_function"]
            found.update(dict.fromkeys(level))
            if not level:
                break
        return list(found)


FAILED: Any = object()


def _entered(node: fx.Node, key: Any, goals: Goals) -> Goals:
    return (p.EnteredPlan(node=node, key=key), None, None, goals)


def _operands(node: fx.Node) -> tuple[Any, ...]:
    target = node.target
    if target is operator.getitem or (
        not node.kwargs and len(node.args) == len(schema.signature(target).parameters)
    ):
        return node.args
    return schema.bound_args(node)


def _may_swap(actual: tuple[Any, ...]) -> bool:
    return actual[0] is not actual[1] and (len(actual) == 2 or schema.same_literal(actual[2], 1))


_REARRANGING = frozenset(
    getattr(getattr(aten, name.partition(".")[0]), name.partition(".")[2] or "default")
    for name in (
        "permute", "transpose.int", "t", "numpy_T", "mT", "movedim.int", "movedim.intlist", "swapaxes", "swapdims",
        "view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int", "view_as", "reshape_as",
        "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze", "clone", "contiguous", "alias", "detach",
    )
)  # fmt: skip
_CASTING = frozenset({aten._to_copy.default, aten.to.dtype, aten.type_as.default})


def seen_through(value: Any, *, views: bool = True, casts: bool = True) -> fx.Node | None:
    """What `value` is a rearrangement, or a lossless cast, of; None if it is neither."""
    if not isinstance(value, fx.Node) or value.op != "call_function" or schema.is_pinned(value):
        return None
    target: Any = value.target
    if not (views and target in _REARRANGING) and not (casts and target in _CASTING):
        return None
    source: Any = value.args[0]
    before, after = schema.spec_of(source), schema.spec_of(value)
    if before is None or after is None or before.device != after.device:
        return None
    return source if is_lossless(before.dtype, after.dtype) else None


_STEPS: Any = (
    Search._any,
    Search._var,
    Search._lit,
    Search._call,
    Search._items,
    Search._either,
    Search._via,
    Search._repeat,
    Search._through,
    Search._size,
    Search._sizes,
    Search._note,
    Search._output,
    Search._entry,
)
"""By the tag of a plan."""


# --- why a pattern does not match -----------------------------------------------------------------------------------


def nearest_miss(pattern: Any, node: fx.Node) -> Miss | None:
    """How far the pattern came at `node`, by the way to match it that came furthest; None if it matches."""
    search = Search(plan_of(pattern), node, explain=True)
    if next(search.run(), None) is not None:
        return None
    return search.best


def nearest_miss_in(pattern: Any, graph: fx.Graph) -> Miss | None:
    """The nearest miss of a pattern anywhere in a graph; None if it matches somewhere, or there is nothing to match."""
    best: Miss | None = None
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        miss = nearest_miss(pattern, node)
        if miss is None:
            return None
        if best is None or miss.matched > best.matched:
            best = miss
    return best


def why_not(pattern: Any, node: fx.Node) -> Verdict:
    """Yes, or the first thing that keeps the pattern from matching at `node`, on the way that came furthest."""
    miss = nearest_miss(pattern, node)
    return Yes() if miss is None else No(miss.reason)


def _reason(search: Search, plan: Plan, value: Any, owner: fx.Node | None) -> str:
    text = f"expected {_wanted(search, plan)}, got {_describe(value)}"
    if isinstance(plan, p.CallPlan) and isinstance(value, fx.Node) and value.target in plan.rows:
        if schema.is_pinned(value):
            text = f"{value.name} is random or has an effect"
        elif plan.key is not None and plan.key in search.bindings:
            text = f"expected {search.bindings[plan.key].name} again, got {_describe(value)}"
    if isinstance(plan, p.VarPlan) and plan.term is not None and plan.term.where is not None:
        text = f"the predicate of {plan.name or 'a variable'} says no to {_describe(value)}"
    if isinstance(plan, p.OutputPlan):
        text = f"no node near is output {plan.number} of the pattern: expected {_wanted(search, plan.plan)}"
    position = _position(value, owner)
    return f"argument {position!r} of {cast(fx.Node, owner).name}: {text}" if position else text


def _position(value: Any, owner: fx.Node | None) -> str:
    if owner is None or owner.op != "call_function":
        return ""
    parameters = schema.signature(owner.target).parameters
    for parameter, actual in zip(parameters, _operands(owner), strict=False):
        if actual is value:
            return parameter.name
    return ""


def _wanted(search: Search, plan: Plan) -> str:
    match plan:
        case p.CallPlan():
            return plan.name
        case p.VarPlan():
            if plan.name in search.bindings:
                return f"{_describe(search.bindings[plan.name])} again for {plan.name}"
            return f"{_variable(plan)} for {plan.name or 'a variable'}"
        case p.LitPlan():
            return repr(plan.value)
        case p.ViaPlan():
            return plan.what
        case p.ItemsPlan():
            return f"a list of {len(plan.items)}"
        case p.RepeatPlan():
            return "the repeated op"
        case p.SizePlan():
            return f"the size of {plan.name}" if plan.tag == p.SIZE else f"the shape of {plan.name}"
        case _:
            return "something else"


def _variable(plan: p.VarPlan) -> str:
    term = plan.term
    text: str = plan.kind
    if term is None:
        return text
    if term.dtypes:
        text = " or ".join(str(d).removeprefix("torch.") for d in term.dtypes)
    if term.rank is not None:
        text += f" of rank {term.rank}"
    if term.sizes is not None:
        shown = ("..." if s is Ellipsis else "_" if s is None else str(s) for s in term.sizes)
        text += f"[{', '.join(shown)}]"
    return text


def _describe(value: Any) -> str:
    if isinstance(value, fx.Node):
        name = schema.packet_name(value.target) if value.op == "call_function" else value.op
        return f"{name} ({value.meta.get('val')})"
    return repr(value)
