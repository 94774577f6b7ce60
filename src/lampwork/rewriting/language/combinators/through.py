"""`through(x)`: what lies behind views and casts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import fx

from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.casts import is_lossless
from lampwork.rewriting.language.term import Leaf, Term, call
from lampwork.rewriting.matching.match_plan import Goals, MatchPlan, Note, StepPlan

if TYPE_CHECKING:
    from lampwork.rewriting.matching.match import Search
    from lampwork.rewriting.matching.planner import Planner

aten = torch.ops.aten


@record(eq=False, repr=False)
class Through(Term):
    """`x`, or a chain of views and lossless casts of it. `name`: what the chain is called in the match."""

    x: Any
    views: bool
    casts: bool
    name: str

    depth: ClassVar[int] = 4

    def children(self) -> Sequence[Any]:
        return (self.x,)

    def plan(self, planner: Planner) -> MatchPlan:
        inner = planner.plan(self.x)

        def behind(chain: tuple[fx.Node, ...]) -> MatchPlan:
            def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
                source = seen_through(value, views=self.views, casts=self.casts)
                if source is not None:
                    search.choice((behind((*chain, value)), source, owner, rest))
                search.nodes.extend(chain)
                if self.name:
                    rest = (Note(self.name, Path(chain)), None, None, rest)
                return (inner, value, owner, rest)

            return StepPlan(step, str(self))

        return behind(())

    def names(self) -> Iterable[str]:
        return (self.name,)

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        return of(self.x)

    def __str__(self) -> str:
        return f"{self.x}, or views of it"


@record
class Path:
    """The views and casts that a `through(...)` saw through, the outermost first. Called with a term, or a node, it
    gives the same views and casts of that one, for use in a replacement."""

    nodes: tuple[fx.Node, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    def __call__(self, term: Any) -> Any:
        found: Any = Leaf(term) if isinstance(term, fx.Node) else term
        for node in reversed(self.nodes):
            found = call(node.target, found, *node.args[1:], **node.kwargs)
        return found


def through(x: Any, views: bool = True, casts: bool = True, name: str = "") -> Term:
    """`x`, or `x` behind any number of ops that move all its elements (permute, view, unsqueeze, contiguous, ...) and
    of casts that lose nothing.

    With a name, a parameter of the replacement so called is given the Path: `path(term)` puts the same ops on another
    term.
    """
    return Through(x, views, casts, name)


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
