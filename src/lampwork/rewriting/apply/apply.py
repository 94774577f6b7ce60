"""Putting the replacement of one match in its place, or leaving the graph as it was and saying why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from torch import fx

from lampwork.errors import CaptureError, LampworkError, RewriteError, text_of
from lampwork.graph.layouts import same_strides
from lampwork.graph.origin import place_of, stamp
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import same_sizes
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.apply.aliasing import escapes, may_stand_for, storage_root
from lampwork.rewriting.apply.edit import Editor, erase_unused, spec_change
from lampwork.rewriting.apply.layout import adopt_strides, is_dense
from lampwork.rewriting.language.rules import Rule
from lampwork.rewriting.matching.match import Match
from lampwork.verdict import No, Verdict, Yes


class Host(Protocol):
    """What the driver needs of its surroundings; passes.PassContext is one."""

    def infer(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The spec of a call, or a tuple of specs."""
        ...

    def approve(self, rule: Rule, match: Match, new: Sequence[fx.Node]) -> Verdict:
        """The last word, with the new nodes (one for each root of the match) in the graph but nothing that reads
        them."""
        ...

    def spend(self, name: str) -> bool:
        """Count one use of the rewrite `name`; False when the fuel is used up and it must not happen."""
        ...

    def refuse(self, name: str, reason: str) -> None:
        """Note that the rewrite `name` matched but was not applied."""
        ...

    def fault(self, error: RewriteError) -> None:
        """Rewrites are at fault, and have been left out for the rest of the run: raise `error`, or note it."""
        ...


@record
class Replaced:
    """`new`: what stands for the roots of the match now. `made`: the nodes that were made for it. `restrided`: those
    of the new ones with other strides than their users were recorded for."""

    new: tuple[fx.Node, ...]
    made: tuple[fx.Node, ...]
    restrided: tuple[fx.Node, ...]


@record
class Prepared:
    """A replacement that stands in the graph and that nothing reads yet. `late` nodes, which read an earlier root and
    stand before the last one, go behind it."""

    rule: Rule
    match: Match
    editor: Editor
    new: tuple[fx.Node, ...]
    late: tuple[fx.Node, ...]

    def commit(self) -> Replaced:
        """Put it in the place of the match."""
        editor, old = self.editor, self.match.roots
        for node in self.late:
            editor.point.prepend(node)
        restrided: list[fx.Node] = []
        for before, after in zip(old, self.new, strict=True):
            was, now = before.meta["val"], after.meta["val"]
            if after in editor.made:
                stamp(after, place_of(before))
            before.replace_all_uses_with(after)
            if after in editor.made:
                differ = adopt_strides(after, was)
            else:
                # It keeps its own strides; the users it gets were recorded for others.
                differ = isinstance(was, TensorSpec) and not same_strides(was, now)
            if differ:
                restrided.append(after)
        for before in old:
            if not before._erased:
                erase_unused(editor.graph, before)
        return Replaced(self.new, tuple(editor.made), tuple(restrided))


def verdict_of(r: Rule, match: Match) -> Verdict:
    """What the rewrite's own check says.

    Raises:
        RewriteError: it raises, or returns something else than Yes, No or a bool.
    """
    try:
        answer: Any = r.check(match)
    except Exception as error:  # whatever the author's code raises
        raise fault_at(r, match, f"its check raised {text_of(error)}") from error
    if isinstance(answer, Yes | No):
        return answer
    if isinstance(answer, bool):
        return Yes() if answer else No("its check says no")
    raise fault_at(
        r, match, f"its check returned {answer!r}", fix="return lampwork.Yes() or lampwork.No(reason)"
    )


def prepare(graph: fx.Graph, r: Rule, match: Match, host: Host) -> Prepared | No:
    """Make the replacement of a match. After a No, or an error, the graph is as it was.

    Raises:
        RewriteError: the replacement raises, is no tensor, or of another type (for a line of algebra that is a No).
    """
    old = match.roots
    point = old[0] if len(old) == 1 else max(old)
    editor = Editor(graph, host.infer, point)
    kept = False
    try:
        new = _built(r, match, editor)
        found = new if isinstance(new, No) else _prepared(r, match, editor, new, host)
        kept = isinstance(found, Prepared)
        return found
    finally:
        if not kept:
            editor.discard()


def fault_at(r: Rule, match: Match, what: str, *, fix: str = "") -> RewriteError:
    """The error of one rewrite at one match: its name, its source, the node and the user's line."""
    return RewriteError(
        f"rewrite {r} at {match.root.name}: {what}",
        rewrites=(r.name,),
        fix=fix,
        location=match.root.meta.get("location"),
    )


def _built(r: Rule, match: Match, editor: Editor) -> tuple[fx.Node, ...] | No:
    try:
        made: Any = r.build(match, editor)
    except CaptureError as error:
        if r.strict:
            raise fault_at(r, match, f"torch refuses its replacement: {error.cause}") from error
        return No(error.cause)
    except LampworkError as error:
        raise fault_at(r, match, f"its replacement fails: {error.cause}", fix=error.fix) from error
    except Exception as error:  # whatever the author's code raises
        raise fault_at(r, match, f"its replacement raised {text_of(error)}") from error
    several = isinstance(made, list | tuple)
    new = tuple(cast("Sequence[Any]", made)) if several else (made,)
    if len(new) != len(match.roots):
        what = f"its replacement has {len(new)} results, its pattern {len(match.roots)}"
        raise fault_at(r, match, what)
    for value in new:
        if not isinstance(value, fx.Node):
            raise fault_at(r, match, f"the replacement is {value!r}, not a tensor")
    return new


def _prepared(r: Rule, match: Match, editor: Editor, new: tuple[fx.Node, ...], host: Host) -> Prepared | No:
    for before, after in zip(match.roots, new, strict=True):
        change = spec_change(before.meta["val"], after.meta["val"])
        if change and r.strict:
            raise fault_at(r, match, f"the replacement has another type: {change}")
        if change:
            return No(f"the replacement has another type: {change}")
    made = set(editor.made)
    if all(_same_expression(b, a, made) for b, a in zip(match.roots, new, strict=True)):
        return No("")
    late = _late(r, match, editor, new)
    if isinstance(late, No):
        return late
    for before, after in zip(match.roots, new, strict=True):
        verdict = _may_replace(r, before, after, editor)
        if isinstance(verdict, No):
            return verdict
    verdict = _share_alike(match.roots, new)
    if verdict:
        verdict = host.approve(r, match, new)
    return verdict if isinstance(verdict, No) else Prepared(r, match, editor, new, late)


def _same_expression(old: Any, new: Any, made: set[fx.Node]) -> bool:
    """Whether a replacement is what it replaces, made anew: then nothing is to be done."""
    if old is new:
        return True
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        before, after = cast("Sequence[Any]", old), cast("Sequence[Any]", new)
        return len(before) == len(after) and all(
            _same_expression(a, b, made) for a, b in zip(before, after, strict=True)
        )
    if not isinstance(old, fx.Node) or not isinstance(new, fx.Node):
        return schema.same_literal(old, new)
    if new not in made or old.target is not new.target or old.kwargs.keys() != new.kwargs.keys():
        return False
    return _same_expression(old.args, new.args, made) and all(
        _same_expression(value, new.kwargs[key], made) for key, value in old.kwargs.items()
    )


def _late(r: Rule, match: Match, editor: Editor, new: Sequence[fx.Node]) -> tuple[fx.Node, ...] | No:
    """The nodes between the first and the last root that need a root and outlive the match."""
    roots, point = match.roots, editor.point
    made = set(editor.made)
    used = {i for n in made for i in n.all_input_nodes if i not in made} | {n for n in new if n not in made}
    bound = [v for v in match.values.values() if isinstance(v, fx.Node)]
    for node in used:
        if node in roots and node in bound:
            return No(f"{node.name}, which the replacement reads, is a result of the match")
        if node in roots and node not in new:
            raise fault_at(r, match, f"its replacement reads {node.name}, which it replaces")
        if not node < point and node not in roots:
            raise fault_at(r, match, f"its replacement reads {node.name}, which comes after the match")
    if len(roots) == 1:
        return ()
    late: dict[fx.Node, None] = {}
    needing = set(roots)
    node = min(roots).next
    while node is not point:
        if node not in made and node not in needing and any(i in needing for i in node.all_input_nodes):
            needing.add(node)
            late[node] = None
        node = node.next
    for node in late:
        if node in used:
            return No(f"{node.name}, which the replacement reads, is computed from a result of the match")
        if schema.is_pinned(node):
            return No(f"{node.name} cannot be moved behind the match")
    return tuple(late)


def _may_replace(r: Rule, old: fx.Node, new: fx.Node, editor: Editor) -> Verdict:
    verdict = may_stand_for(new, old)
    if not verdict or not escapes(old):
        return verdict
    was, now = old.meta["val"], new.meta["val"]
    if not isinstance(was, TensorSpec) or not isinstance(now, TensorSpec):
        return verdict
    if same_sizes(was.strides, now.strides):
        return verdict
    # A rewrite written for its speed is worth a copy behind it, a line of algebra is not.
    if r.strict and new in editor.made and storage_root(new) is new and is_dense(was):
        return verdict
    return No(f"the result {old.name} would have other strides")


def _share_alike(old: Sequence[fx.Node], new: Sequence[fx.Node]) -> Verdict:
    """Results that leave the graph share memory as before."""
    shown = [(a, b) for a, b in zip(old, new, strict=True) if escapes(a)]
    for i, (a, b) in enumerate(shown):
        for c, d in shown[i + 1 :]:
            if (storage_root(a) is storage_root(c)) != (storage_root(b) is storage_root(d)):
                return No(f"the results {a.name} and {c.name} would share memory in another way")
    return Yes()
