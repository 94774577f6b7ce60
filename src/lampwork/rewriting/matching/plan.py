"""Patterns made ready for matching: what to look at, in which order, with all spellings worked out once.

A plan is a tree like the pattern's, of nodes with a `tag` that the matcher branches on. Calls have a row of checks for
each op that a node may have; what always fits is left out, literals come first, as they are cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import fx

from lampwork.errors import PassError
from lampwork.graph.spec import TensorSpec
from lampwork.rewriting import schema
from lampwork.rewriting.language.combine import Either, Hole, Path, Repeated, Through, Via
from lampwork.rewriting.language.term import Call, Leaf, Lit, Size, Sizes, Var
from lampwork.rewriting.language.traverse import depth_of, parts_of, shared_calls
from lampwork.rewriting.matching.equivalences.spellings import spellings
from lampwork.rewriting.matching.values import kind_matches
from lampwork.standard import functools

ANY, VAR, LIT, CALL, ITEMS, EITHER, VIA, REPEAT, THROUGH, SIZE, SIZES, NOTE, OUTPUT, ENTRY = range(14)

COMMUTATIVE = frozenset(
    {
        "add",
        "mul",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "logical_and",
        "logical_or",
        "logical_xor",
    }
)


@dataclass(slots=True, eq=False)
class Plan:
    """Base: `tag` says which of the classes below it is."""

    tag: int = ANY


@dataclass(slots=True, eq=False)
class VarPlan(Plan):
    """`test`: whether a value suits the variable by itself. `sizes`: what its shape must be."""

    tag: int = VAR
    name: str = ""
    kind: str = "any"
    test: Callable[[Any], bool] | None = None
    sizes: tuple[Any, ...] | None = None
    term: Var | None = None


@dataclass(slots=True, eq=False)
class LitPlan(Plan):
    tag: int = LIT
    value: Any = None


@dataclass(slots=True, eq=False)
class Row:
    """The operands of a call to look at: (position, plan). `swap`: the first two may change places, if the third
    operand is 1 or there is none."""

    items: tuple[tuple[int, Plan], ...]
    swapped: tuple[tuple[int, Plan], ...] | None
    arity: int


@dataclass(slots=True, eq=False)
class CallPlan(Plan):
    """`rows`: for each op of a node, the ways in which its operands are those of the pattern. `others`: spellings
    that are not calls. `key`: the call, where the pattern has it more than once or as an output."""

    tag: int = CALL
    name: str = ""
    rows: dict[Any, tuple[Row, ...]] = field(default_factory=dict[Any, tuple[Row, ...]])
    others: tuple[Plan, ...] = ()
    key: Call | None = None


@dataclass(slots=True, eq=False)
class ItemsPlan(Plan):
    tag: int = ITEMS
    items: tuple[Plan, ...] = ()


@dataclass(slots=True, eq=False)
class EitherPlan(Plan):
    """`options`: each with the note to take."""

    tag: int = EITHER
    options: tuple[tuple[Plan, Plan | None], ...] = ()


@dataclass(slots=True, eq=False)
class ViaPlan(Plan):
    tag: int = VIA
    convert: Callable[[Any, Any], Any] = lambda value, owner: value
    inner: Plan = field(default_factory=Plan)
    what: str = ""


@dataclass(slots=True, eq=False)
class RepeatPlan(Plan):
    """`step`: the step applied to the rest of the repetition, made when a graph gets that far."""

    tag: int = REPEAT
    term: Repeated | None = None
    stop: Plan = field(default_factory=Plan)
    note: Plan | None = None
    planner: Any = None
    step: Plan | None = None


@dataclass(slots=True, eq=False)
class ThroughPlan(Plan):
    tag: int = THROUGH
    inner: Plan = field(default_factory=Plan)
    views: bool = True
    casts: bool = True
    name: str = ""
    chain: tuple[fx.Node, ...] = ()


@dataclass(slots=True, eq=False)
class SizePlan(Plan):
    tag: int = SIZE
    name: str = ""
    dim: int = 0


@dataclass(slots=True, eq=False)
class NotePlan(Plan):
    """Takes a note under `key`, whatever the value."""

    tag: int = NOTE
    key: Any = None
    value: Any = None


@dataclass(slots=True, eq=False)
class OutputPlan(Plan):
    """A further output of the pattern: a node within `depth` users of one that is known by then."""

    tag: int = OUTPUT
    number: int = 0
    term: Any = None
    plan: Plan = field(default_factory=Plan)
    anchors: tuple[Any, ...] = ()
    depth: int = 0


@dataclass(slots=True, eq=False)
class EnteredPlan(Plan):
    """Takes note that a node is part of the match, when the matcher comes back to another way to read its operands."""

    tag: int = ENTRY
    node: Any = None
    key: Any = None


@dataclass(slots=True, eq=False)
class PatternPlan:
    """`names`: all variables; what a match leaves out is None."""

    root: Plan
    outputs: tuple[OutputPlan, ...]
    names: tuple[str, ...]
    keys: tuple[Call, ...]


_ANY = Plan()


@functools.lru_cache(maxsize=8192)
def plan_of(pattern: Any) -> PatternPlan:
    """The plan of a term, or of a tuple of them, one for each output."""
    terms: list[Any] = list(cast("Any", pattern)) if isinstance(pattern, tuple) else [pattern]
    keys = shared_calls(terms) | frozenset(t for t in terms if isinstance(t, Call) and len(terms) > 1)
    planner = Planner(keys)
    plans = [planner.plan(t) for t in terms]
    known: set[Any] = set(parts_of(terms[0]))
    outputs: list[OutputPlan] = []
    for i, term in enumerate(terms[1:], 1):
        parts = list(dict.fromkeys(parts_of(term)))
        anchors = tuple(p for p in parts if p in known and (isinstance(p, str) or p in keys))
        outputs.append(
            OutputPlan(number=i, term=term, plan=plans[i], anchors=anchors, depth=depth_of(term) + 2)
        )
        known.update(parts)
    names = tuple(dict.fromkeys(p for t in terms for p in parts_of(t) if isinstance(p, str)))
    return PatternPlan(plans[0], tuple(outputs), names, tuple(keys))


# --- from terms to plans --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Planner:
    """Makes the plans of one pattern; a call that it has several times has one."""

    keys: frozenset[Call]
    known: dict[Call, Plan] = field(default_factory=dict[Call, Plan])

    def plan(self, term: Any) -> Plan:
        if not isinstance(term, Call):
            return self._other(term)
        found = self.known.get(term)
        if found is None:
            found = self._call(term)
            if term in self.keys:
                self.known[term] = found
        return found

    def _other(self, term: Any) -> Plan:
        match term:
            case Var():
                return _variable(term)
            case Lit():
                return LitPlan(value=term.value)
            case Leaf():
                return LitPlan(value=term.node)
            case Either():
                notes = [
                    NotePlan(key=("count", term.name), value=n) if term.name else None for n in term.notes
                ]
                plans = [self.plan(o) for o in term.options]
                return EitherPlan(options=tuple(zip(plans, notes or [None] * len(plans), strict=True)))
            case Repeated():
                note = NotePlan(key=("count", term.name), value=term.done)
                return RepeatPlan(term=term, stop=self.plan(term.x), note=note, planner=self)
            case Through():
                return ThroughPlan(
                    inner=self.plan(term.x), views=term.views, casts=term.casts, name=term.name
                )
            case Via():
                return ViaPlan(convert=term.convert, inner=self.plan(term.inner), what=term.what)
            case Size() | Sizes():
                return _size(term)
            case Hole():
                return _ANY
            case list() | tuple():
                return ItemsPlan(items=tuple(self.plan(t) for t in cast("Sequence[Any]", term)))
            case _:
                return _ANY if term is Ellipsis else LitPlan(value=term)

    def _call(self, term: Call) -> CallPlan:
        rows: dict[Any, list[Row]] = {}
        others: list[Plan] = []
        # Operands are shared between overloads and spellings.
        known: dict[int, Plan] = {}

        def operand(t: Any) -> Plan:
            if id(t) not in known:
                known[id(t)] = self.plan(t)
            return known[id(t)]

        for spelling in spellings(term):
            if not isinstance(spelling, Call) or spelling.form != "final":
                others.append(self.plan(spelling))
                continue
            for target, terms in spelling.values.items():
                row = _row(spelling.name, [operand(t) for t in terms])
                rows.setdefault(target, []).append(row)
        return CallPlan(
            name=term.name,
            rows={target: tuple(r) for target, r in rows.items()},
            others=tuple(others),
            key=term if term in self.keys else None,
        )


def unfold(plan: RepeatPlan) -> Plan:
    """One step more of a repetition."""
    if plan.step is None:
        plan.step = cast(Planner, plan.planner).plan(cast(Repeated, plan.term).next())
    return plan.step


def path_note(plan: ThroughPlan) -> NotePlan:
    return NotePlan(key=plan.name, value=Path(plan.chain))


def _size(term: Size | Sizes) -> Plan:
    name = term.of.name if isinstance(term.of, Var) else ""
    return SizePlan(SIZE if isinstance(term, Size) else SIZES, name, getattr(term, "dim", 0))


def _variable(term: Var) -> Plan:
    plain = term.kind == "any" and not (term.dtypes or term.rank is not None or term.where)
    if plain and not term.name and term.sizes is None:
        return _ANY
    test = None if plain else functools.partial(_suits, term)
    return VarPlan(name=term.name, kind=term.kind, test=test, sizes=term.sizes, term=term)


def _suits(term: Var, value: Any) -> bool:
    if not kind_matches(term.kind, value):
        return False
    if term.dtypes or term.rank is not None:
        spec = schema.spec_of(value)
        if spec is None or (term.dtypes and spec.dtype not in term.dtypes):
            return False
        if term.rank is not None and len(spec.shape) != term.rank:
            return False
    return term.where is None or predicate_holds(term, value)


def predicate_holds(term: Var, value: Any) -> bool:
    """What the predicate of a variable says of a value.

    Raises:
        PassError: it raises.
    """
    spec: Any = value.meta.get("val") if isinstance(value, fx.Node) else None
    given: Any = spec if isinstance(spec, TensorSpec) else value
    try:
        return bool(cast("Callable[[Any], Any]", term.where)(given))
    except Exception as error:  # whatever the author's code raises
        raise PassError(
            f"the predicate of {term.name or 'a variable'} raised {type(error).__name__}: {error}"
        ) from error


def _row(name: str, plans: Sequence[Plan]) -> Row:
    items = list(enumerate(plans))
    swapped = None
    if name in COMMUTATIVE and len(plans) >= 2 and not _alike(plans[0], plans[1]):
        # The operand that is written first is looked for first.
        swapped = _ordered([(1, plans[0]), (0, plans[1]), *items[2:]])
    return Row(_ordered(items), swapped, len(plans))


def _alike(a: Plan, b: Plan) -> bool:
    """Whether changing two operands over changes nothing."""
    if a is b:
        return True
    return isinstance(a, VarPlan) and isinstance(b, VarPlan) and a.term is b.term


def _ordered(items: Sequence[tuple[int, Plan]]) -> tuple[tuple[int, Plan], ...]:
    wanted = [(i, p) for i, p in items if p.tag != ANY]
    return tuple(sorted(wanted, key=lambda item: item[1].tag != LIT))
