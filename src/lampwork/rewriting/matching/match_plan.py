"""Plans: what the matcher does where a value must be a certain term of a pattern.

A pattern is planned once, by `Term.plan`, with all spellings worked out. Each plan has a `step`, which takes one goal
("this value must be that term") and gives the goals that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import fx

from lampwork.errors import PassError, text_of
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_size
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.matching.values import kind_matches, literal_matches, number_of, same_value
from lampwork.standard import operator

if TYPE_CHECKING:
    from lampwork.rewriting.language.term import Call, Var
    from lampwork.rewriting.matching.match import Search

FAILED: Any = object()
"""What a step gives when the value is not that term."""

Goals = Any
"""A linked list of (plan, value, the node whose argument the value is, the goals after it), None at its end."""

Step = Callable[["Search", Any, fx.Node | None, Goals], Goals]


class MatchPlan:
    """What to do about one term."""

    __slots__ = ()

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals, /) -> Goals:
        """The goals that are left, which are `rest` and what comes before it, or FAILED; other ways go to
        `search.choice`. `owner` is the node whose argument `value` is."""
        raise NotImplementedError

    def glance(self) -> Callable[[Any], bool] | None:
        """Whether a value may be right, at next to no cost; None where only the step can tell."""
        return None

    def wanted(self, search: Search) -> str:
        """The term in words."""
        return "anything"

    def reason(self, search: Search, value: Any) -> str:
        """Why a value failed."""
        return _unexpected(self.wanted(search), value)


class StepPlan(MatchPlan):
    """A plan of one function; `text` is the term in words."""

    __slots__ = ("step", "text")

    def __init__(self, step: Step, text: str) -> None:
        self.step = step
        self.text = text

    def wanted(self, search: Search) -> str:
        return self.text


def _fits(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
    return rest


ANYTHING = StepPlan(_fits, "anything")
"""The plan of what fits every value."""


@record(eq=False)
class VarPlan(MatchPlan):
    """`test`: whether a value suits the variable by itself, None if each does."""

    term: Var
    test: Callable[[Any], bool] | None

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        term = self.term
        name = term.name
        if term.kind in ("number", "constant") and isinstance(value, fx.Node):
            number = number_of(value)
            value = value if number is None else number
        if name and name in search.bindings:
            return rest if same_value(search.bindings[name], value) else FAILED
        if self.test is not None and not self.test(value):
            return FAILED
        if term.sizes is not None and not _sizes_fit(search, term.sizes, value):
            return FAILED
        if name:
            search.bind(name, value)
        return rest

    def wanted(self, search: Search) -> str:
        term = self.term
        if term.name in search.bindings:
            return f"{_describe(search.bindings[term.name])} again for {term.name}"
        text: str = term.kind
        if term.dtypes:
            text = " or ".join(str(d).removeprefix("torch.") for d in term.dtypes)
        if term.rank is not None:
            text += f" of rank {term.rank}"
        if term.sizes is not None:
            shown = ("..." if s is Ellipsis else "_" if s is None else str(s) for s in term.sizes)
            text += f"[{', '.join(shown)}]"
        return f"{text} for {term.name or 'a variable'}"

    def reason(self, search: Search, value: Any) -> str:
        if self.term.where is not None:
            return f"the predicate of {self.term.name or 'a variable'} says no to {_describe(value)}"
        return _unexpected(self.wanted(search), value)


def suits(term: Var, value: Any) -> bool:
    """Whether a value is of a variable's kind, dtypes and rank, and its predicate says yes.

    Raises:
        PassError: the predicate raises.
    """
    if not kind_matches(term.kind, value):
        return False
    if term.dtypes or term.rank is not None:
        spec = schema.spec_of(value)
        if spec is None or (term.dtypes and spec.dtype not in term.dtypes):
            return False
        if term.rank is not None and len(spec.shape) != term.rank:
            return False
    return term.where is None or _predicate_holds(term, value)


def _predicate_holds(term: Var, value: Any) -> bool:
    spec: Any = value.meta.get("val") if isinstance(value, fx.Node) else None
    given: Any = spec if isinstance(spec, TensorSpec) else value
    try:
        return bool(cast("Callable[[Any], Any]", term.where)(given))
    except Exception as error:  # whatever the author's code raises
        raise PassError(f"the predicate of {term.name or 'a variable'} raised {text_of(error)}") from error


def _sizes_fit(search: Search, wanted: tuple[Any, ...], value: Any) -> bool:
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
            if key not in search.bindings:
                search.bind(key, size)
                continue
            want = search.bindings[key]
        if not same_size(want, size):
            return False
    return True


@record(eq=False)
class LitPlan(MatchPlan):
    """A literal, or a certain node: a glance says all."""

    value: Any

    def glance(self) -> Callable[[Any], bool]:
        return self._is

    def _is(self, value: Any) -> bool:
        return value is self.value or literal_matches(self.value, value)

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        return rest if self._is(value) else FAILED

    def wanted(self, search: Search) -> str:
        return repr(self.value)


@record
class Row:
    """The operands of a call to look at, in order: `all` of them as (position, plan), `glances` of those that have
    one, and `goals`, last one first, of those for which a glance is not all."""

    all: tuple[tuple[int, MatchPlan], ...]
    glances: tuple[tuple[int, Callable[[Any], bool]], ...]
    goals: tuple[tuple[int, MatchPlan], ...]

    @staticmethod
    def of(plans: Sequence[tuple[int, MatchPlan]]) -> Row:
        """Literals come first, as they are cheapest; what fits every value is left out."""
        wanted = [(i, p) for i, p in plans if p is not ANYTHING]
        ordered = sorted(wanted, key=lambda item: not isinstance(item[1], LitPlan))
        glances = tuple((i, glance) for i, p in ordered if (glance := p.glance()) is not None)
        goals = tuple((i, p) for i, p in reversed(ordered) if not isinstance(p, LitPlan))
        return Row(tuple(ordered), glances, goals)


@record
class Overload:
    """One way to read the operands of a node. `swapped`: the first two may change places, if the third operand is 1 or
    there is none."""

    arity: int
    row: Row
    swapped: Row | None


@record(eq=False)
class CallPlan(MatchPlan):
    """`overloads`: for each op of a node, the ways in which its operands are those of the pattern. `others`: spellings
    that are not calls. `key`: the call, where the pattern has it more than once or as an output."""

    name: str
    overloads: dict[Any, tuple[Overload, ...]]
    others: tuple[MatchPlan, ...]
    key: Call | None

    def glance(self) -> Callable[[Any], bool] | None:
        return None if self.others else self._may_be

    def _may_be(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and value.target in self.overloads

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        for other in self.others:
            search.choice((other, value, owner, rest))
        if not isinstance(value, fx.Node) or value.op != "call_function":
            return FAILED
        overloads = self.overloads.get(value.target)
        if overloads is None or schema.is_pinned(value):
            return FAILED
        if self.key is not None:
            known = search.bindings.get(self.key)
            if known is not None:
                return rest if same_value(known, value) else FAILED
        actual = operands(value)
        found: Goals = FAILED
        ways: list[Goals] = []
        for overload in overloads:
            if len(actual) != overload.arity:
                continue
            ways.append(_operand_goals(search, overload.row, actual, value, rest))
            if overload.swapped is not None and _may_swap(actual):
                ways.append(_operand_goals(search, overload.swapped, actual, value, rest))
        for way in reversed(ways):
            if way is FAILED:
                continue
            if found is not FAILED:
                search.choice((_Entered(value, self.key), None, None, found))
            found = way
        if found is FAILED:
            return FAILED
        if self.key is not None:
            search.bind(self.key, value)
        search.nodes.append(value)
        return found

    def wanted(self, search: Search) -> str:
        return self.name

    def reason(self, search: Search, value: Any) -> str:
        if self._may_be(value):
            if schema.is_pinned(value):
                return f"{value.name} is random or has an effect"
            if self.key is not None and self.key in search.bindings:
                return f"expected {search.bindings[self.key].name} again, got {_describe(value)}"
        return _unexpected(self.wanted(search), value)


def _operand_goals(search: Search, row: Row, actual: tuple[Any, ...], owner: fx.Node, rest: Goals) -> Goals:
    """The goals for the operands of a call; FAILED if one of them is plainly wrong."""
    if search.explain:
        search.rows.setdefault(owner, []).append(row)
        for i, plan in reversed(row.all):
            rest = (plan, actual[i], owner, rest)
        return rest
    for i, may_be in row.glances:
        if not may_be(actual[i]):
            return FAILED
    for i, plan in row.goals:
        rest = (plan, actual[i], owner, rest)
    return rest


def operands(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node by position, defaults filled in."""
    target = node.target
    if target is operator.getitem or (
        not node.kwargs and len(node.args) == len(schema.signature(target).parameters)
    ):
        return node.args
    return schema.bound_args(node)


def _may_swap(actual: tuple[Any, ...]) -> bool:
    return actual[0] is not actual[1] and (len(actual) == 2 or schema.same_literal(actual[2], 1))


@record(eq=False)
class ItemsPlan(MatchPlan):
    """A list of as many items."""

    items: tuple[MatchPlan, ...]

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        if not isinstance(value, list | tuple):
            return FAILED
        items = cast("list[Any]", value)
        if len(items) != len(self.items):
            return FAILED
        for inner, item in zip(reversed(self.items), reversed(items), strict=True):
            rest = (inner, item, owner, rest)
        return rest

    def has(self, plan: MatchPlan, actual: Any, value: Any) -> bool:
        """Whether `plan` is that of an item, and `value` one of the list `actual`."""
        items = cast("Sequence[Any]", actual if isinstance(actual, list | tuple) else ())
        return any(item is plan for item in self.items) and any(item is value for item in items)

    def wanted(self, search: Search) -> str:
        return f"a list of {len(self.items)}"


@record(eq=False)
class Note(MatchPlan):
    """Takes a note under `key`, whatever the value: ("count", name) for `Match.count`, a str for `Match.values`."""

    key: Any
    value: Any

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        if self.key not in search.bindings:
            search.bind(self.key, self.value)
        return rest


@record(eq=False)
class _Entered(MatchPlan):
    """Takes note that a node is part of the match, when the matcher comes back to another way to read its operands."""

    node: fx.Node
    key: Any

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        if self.key is not None:
            search.bind(self.key, self.node)
        search.nodes.append(self.node)
        return rest


@record(eq=False)
class OutputPlan(MatchPlan):
    """A further output of the pattern: a node within `depth` users of one that is known by then."""

    number: int
    term: Any
    plan: MatchPlan
    anchors: tuple[Any, ...]
    depth: int

    def step(self, search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
        taken = {search.node, *(search.bindings["output", n] for n in range(1, self.number))}
        known = search.bindings.get(self.term) if not isinstance(self.term, str) else None
        if isinstance(known, fx.Node):
            if known in taken:
                return FAILED
            search.bind(("output", self.number), known)
            return rest
        for node in reversed(self._candidates(search)):
            if node not in taken:
                note = Note(("output", self.number), node)
                search.choice((self.plan, node, None, (note, None, None, rest)))
        return FAILED

    def _candidates(self, search: Search) -> list[fx.Node]:
        """The nodes that may be the output: those that use what is known of it, nearest first."""
        anchors = [search.bindings.get(a) for a in self.anchors]
        nodes = [a for a in anchors if isinstance(a, fx.Node)]
        if not nodes:
            return []
        # The one with the fewest users has the fewest nodes above it.
        level = [min(nodes, key=lambda n: len(n.users))]
        found: dict[fx.Node, None] = {}
        for _ in range(self.depth):
            level = [u for n in level for u in n.users if u not in found and u.op == "call_function"]
            found.update(dict.fromkeys(level))
            if not level:
                break
        return list(found)

    def wanted(self, search: Search) -> str:
        return self.plan.wanted(search)

    def reason(self, search: Search, value: Any) -> str:
        return f"no node near is output {self.number} of the pattern: expected {self.wanted(search)}"


def _unexpected(wanted: str, value: Any) -> str:
    return f"expected {wanted}, got {_describe(value)}"


def _describe(value: Any) -> str:
    """A value of a graph, in the words of a message."""
    if isinstance(value, fx.Node):
        name = schema.packet_name(value.target) if value.op == "call_function" else value.op
        return f"{name} ({value.meta.get('val')})"
    return repr(value)
