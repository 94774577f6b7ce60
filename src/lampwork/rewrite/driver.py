"""Rewrites, and the driver that applies a set of them to a graph until none fires.

A rewrite is a line of algebra::

    rule("neg(neg(x))", "x")

or a class whose pattern and replacement are plain PyTorch code::

    class MulSigmoidToSilu(Rewrite):
        def pattern(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

        def replacement(self, x: Tensor) -> Tensor:
            return torch.nn.functional.silu(x)

        def check(self, match: Match) -> Verdict:
            return match.only_use()
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

from torch import fx

from lampwork.errors import PassError
from lampwork.graph.spec import TensorSpec
from lampwork.rewrite import schema
from lampwork.rewrite.aliasing import escapes, may_stand_for
from lampwork.rewrite.edit import Editor, replace, spec_change
from lampwork.rewrite.layout import adopt_strides, propagate_strides, same_strides
from lampwork.rewrite.match import Match, matches, why_not
from lampwork.rewrite.parse import parse_term
from lampwork.rewrite.term import Call, Kind, Leaf, Term, Var
from lampwork.verdict import No, Verdict, Yes


class Host(Protocol):
    """What the driver needs of its surroundings; passes.PassContext is one."""

    def infer(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The spec of a call, or a tuple of specs."""
        ...

    def spend(self, name: str) -> bool:
        """Count one use of the rewrite `name`; False when the fuel is used up and it must not happen."""
        ...

    def refuse(self, name: str, reason: str) -> None:
        """Note that the rewrite `name` matched but was not applied."""
        ...


class Rewrite:
    """A rewrite in class form. `name` defaults to the class name in snake case.

    Parameters of `pattern` are its variables; their annotations give the kind: Tensor or Term, Const (a tensor known
    once the weights are), float or int (a Python number), Any (a list, a dtype, None). `replacement` takes variables
    by the same names (any subset): tensors as terms with `.shape`, `.dtype`, `.ndim`, all else as it stands in the
    graph.
    """

    name: str = ""
    pattern: ClassVar[Callable[..., Any]]
    replacement: ClassVar[Callable[..., Any]]

    def check(self, match: Match) -> Verdict:
        """Further conditions, after the pattern matched."""
        return Yes()


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rewrite ready for the driver. `strict`: a replacement of another shape or dtype is an error, not a miss."""

    name: str
    pattern: Call
    build: Callable[[Match, Editor], Any]
    check: Callable[[Match], Verdict]
    strict: bool


def rule(
    pattern: str, replacement: str, *, name: str = "", check: Callable[[Match], Verdict] | None = None
) -> Rule:
    """A line of algebra. It fires only where the replacement has the shape and dtype of what it replaces.

    Raises:
        PassError: the text cannot be parsed, or the pattern is not a call.
    """
    wanted = parse_term(pattern)
    if not isinstance(wanted, Call):
        raise PassError(f"the pattern {pattern!r} is not a call of an op")
    result = parse_term(replacement)
    unbound = sorted(set(_variables(result)) - set(_variables(wanted)))
    if unbound:
        raise PassError(
            f"the replacement {replacement!r} uses {unbound[0]!r}, which the pattern does not bind"
        )

    def build(match: Match, editor: Editor) -> Any:
        return editor.build(result, match.values)

    return Rule(name or f"{pattern} -> {replacement}", wanted, build, check or _always, strict=False)


def _always(_: Match) -> Verdict:
    return Yes()


def _variables(term: Any) -> Iterable[str]:
    if isinstance(term, Var):
        yield term.name
    elif isinstance(term, Call):
        # All overloads are of the same terms.
        yield from _variables(list(next(iter(term.values.values()))))
    elif isinstance(term, list | tuple):
        for t in cast("Sequence[Any]", term):
            yield from _variables(t)


_KIND_OF: dict[str, Kind] = {
    "Tensor": "tensor",
    "Term": "tensor",
    "Const": "const",
    "float": "number",
    "int": "number",
    "Any": "any",
}


def as_rule(rewrite: Rewrite | Rule) -> Rule:
    """The class form made ready for the driver.

    Raises:
        PassError: its pattern is not a call, or `replacement` takes a variable that `pattern` does not.
    """
    if isinstance(rewrite, Rule):
        return rewrite
    name = rewrite.name or re.sub(r"(?<!^)(?=[A-Z])", "_", type(rewrite).__name__).lower()
    variables = [Var(p, _kind(a, name)) for p, a in _parameters(rewrite.pattern)]
    wanted = rewrite.pattern(*variables)
    if not isinstance(wanted, Call):
        raise PassError(f"the pattern of rewrite {name} is not a call of an op")
    names = [p for p, _ in _parameters(rewrite.replacement)]
    unknown = [n for n in names if all(v.name != n for v in variables)]
    if unknown:
        raise PassError(f"the replacement of rewrite {name} takes {unknown[0]!r}, which its pattern does not")

    def build(match: Match, editor: Editor) -> Any:
        values = [match.values[n] for n in names]
        result = rewrite.replacement(*(Leaf(v) if isinstance(v, fx.Node) else v for v in values))
        return editor.build(result, match.values)

    return Rule(name, wanted, build, rewrite.check, strict=True)


def _parameters(function: Callable[..., Any]) -> list[tuple[str, str]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.annotation if isinstance(p.annotation, str) else p.annotation.__name__) for p in found]


def _kind(annotation: str, name: str) -> Kind:
    kind = _KIND_OF.get(annotation.rpartition(".")[2])
    if kind is None:
        raise PassError(
            f"rewrite {name}: no kind of variable is called {annotation!r}",
            fix=f"annotate with one of {', '.join(_KIND_OF)}",
        )
    return kind


@dataclass(slots=True)
class Rewriter:
    """A set of rewrites, indexed by the op at the root and the ops below it.

    before:  %n = neg(%x), %m = neg(%n), %y = relu(%m)
    after:   %y = relu(%x)
    """

    rules: tuple[Rule, ...]
    _index: dict[Any, list[tuple[int, frozenset[Any]]]] = field(init=False)
    _depth: int = field(init=False)

    def __init__(self, rewrites: Iterable[Rewrite | Rule]) -> None:
        self.rules = tuple(as_rule(r) for r in rewrites)
        self._index = {}
        for number, r in enumerate(self.rules):
            for target, args in r.pattern.values.items():
                needs = frozenset(a.name for a in args if isinstance(a, Call))
                self._index.setdefault(target, []).append((number, needs))
        self._depth = max((_depth(r.pattern) for r in self.rules), default=0)

    def run(self, graph: fx.Graph, host: Host) -> int:
        """Apply the rewrites until none fires; how many did.

        Raises:
            PassError: a replacement has another shape or dtype than what it replaces, or there is no end to it.
        """
        work = deque(n for n in graph.nodes if n.op == "call_function")
        queued = set(work)
        limit = 1000 + 20 * len(work)
        count = 0
        restrided: list[fx.Node] = []
        while work:
            node = work.popleft()
            queued.discard(node)
            if node._erased:
                continue
            new = self._rewrite(graph, node, host, restrided)
            if new is None:
                continue
            count += 1
            if count > limit:
                raise PassError(
                    f"the rewrites do not come to an end: {count} applied, last at {new[-1].name}"
                )
            for touched in self._affected(new):
                if touched not in queued:
                    queued.add(touched)
                    work.append(touched)
        if restrided:
            propagate_strides(graph, host.infer, restrided)
        return count

    def why_not(self, name: str, node: fx.Node) -> Verdict:
        """Why the rewrite `name` does not fire at `node`; Yes if it would."""
        r = next(r for r in self.rules if r.name == name)
        verdict = why_not(r.pattern, node)
        if not verdict:
            return verdict
        for match in matches(r.pattern, node):
            verdict = r.check(match)
            if verdict:
                break
        return verdict

    def _candidates(self, node: fx.Node) -> Iterable[Rule]:
        listed = self._index.get(node.target)
        if not listed:
            return
        below = {schema.packet_name(n.target) for n in node.all_input_nodes if n.op == "call_function"}
        for number, needs in listed:
            if needs <= below:
                yield self.rules[number]

    def _rewrite(
        self, graph: fx.Graph, node: fx.Node, host: Host, restrided: list[fx.Node]
    ) -> list[fx.Node] | None:
        for r in self._candidates(node):
            for match in matches(r.pattern, node):
                verdict = r.check(match)
                if isinstance(verdict, No):
                    host.refuse(r.name, verdict.reason)
                    continue
                done = self._apply(graph, r, match, host, restrided)
                if done is not None:
                    return done
        return None

    def _apply(
        self, graph: fx.Graph, r: Rule, match: Match, host: Host, restrided: list[fx.Node]
    ) -> list[fx.Node] | None:
        old = match.root
        editor = Editor(graph, host.infer, old)
        new = r.build(match, editor)
        reason = ""
        if not isinstance(new, fx.Node):
            reason = f"the replacement is {new!r}, not a tensor"
        elif change := spec_change(old.meta["val"], new.meta["val"]):
            reason = f"the replacement has another type: {change}"
        if reason and r.strict:
            raise PassError(f"rewrite {r.name} at {old.name}: {reason}", location=old.meta.get("location"))
        if not reason:
            verdict = _may_replace(old, new)
            reason = verdict.reason if isinstance(verdict, No) else ""
        if reason:
            host.refuse(r.name, reason)
        if reason or new is old or not host.spend(r.name):
            editor.discard()
            return None
        was, now = old.meta["val"], new.meta["val"]
        replace(graph, old, new)
        if new in editor.made:
            differ = adopt_strides(new, was)
        else:
            # It keeps its own strides; the users it gets were recorded for others.
            differ = isinstance(was, TensorSpec) and not same_strides(was, now)
        if differ:
            restrided.append(new)
        return [*editor.made, new]

    def _affected(self, new: Sequence[fx.Node]) -> list[fx.Node]:
        """Where patterns may match now: at the new nodes and above them."""
        found: dict[fx.Node, None] = {}
        level = [n for n in new if not n._erased]
        for _ in range(self._depth + 1):
            found.update(dict.fromkeys(n for n in level if n.op == "call_function"))
            level = list(dict.fromkeys(user for n in level for user in n.users))
        return list(found)


def _may_replace(old: fx.Node, new: fx.Node) -> Verdict:
    verdict = may_stand_for(new, old)
    if not verdict or not escapes(old):
        return verdict
    was, now = old.meta["val"], new.meta["val"]
    if isinstance(was, TensorSpec) and isinstance(now, TensorSpec) and was.strides != now.strides:
        return No(f"the result {old.name} would have other strides")
    return Yes()


def _depth(term: Term | Any) -> int:
    if isinstance(term, Call):
        return 1 + max((_depth(a) for a in next(iter(term.values.values()))), default=0)
    if isinstance(term, list | tuple):
        return max((_depth(t) for t in cast("Sequence[Any]", term)), default=0)
    return 0
