"""Parts cut out and put together again, and views undone behind what they made no difference to.

These keep eager's results bit for bit. The native backend reads through views and pieces as it is; what is won there
is the copy of `cat`, and on other backends every op that goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from lampwork.graph.symbols import same_size, same_sizes
from lampwork.rewriting.apply.driver import Rewrite, Rule, as_rule
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.language.functions import ops
from lampwork.rewriting.language.term import Leaf
from lampwork.rewriting.library.ranges import spec
from lampwork.rewriting.library.recognize import is_number
from lampwork.rewriting.matching.match import Match
from lampwork.rewriting.schema import bound_args, is_pinned, packet_name, signature, spec_of
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten

_LONGEST = 8
"""Ops between a view and the one that undoes it."""


class CatOfPieces(Rewrite):
    """Slices that follow each other become one, and the whole if they are all of it; empty parts go.

    before:  %a = slice(%x, 1, 0, 4), %b = slice(%x, 1, 4, 8), %y = cat([%a, %b, %z], 1)
    after:   %y = cat([%x, %z], 1)
    """

    def pattern(self, parts: Any, dim: Any):
        return ops.cat(parts, dim)

    def replacement(self, match: Match, dim: int):
        parts = [_whole(run, dim) for run in _runs(match["parts"], dim)]
        return parts[0] if len(parts) == 1 else ops.cat(parts, dim)

    def check(self, match: Match) -> Verdict:
        parts, dim = match["parts"], match["dim"]
        if not isinstance(parts, list | tuple) or len(cast("Sequence[Any]", parts)) < 2:
            return No("there is only one part")
        nodes = cast("Sequence[fx.Node]", parts)
        result = match.root
        rank = len(spec(result).shape)
        if any(len(spec(n).shape) != rank or spec(n).dtype is not spec(result).dtype for n in nodes):
            return No("a part has another rank or dtype")
        if not -rank <= dim < rank:
            return No(
                "no part has this dimension"
            )  # torch passes over parts of shape [0], whatever the dimension
        runs = _runs(nodes, dim)
        return Yes() if runs and len(runs) < len(nodes) else No("no two parts follow each other")


# (the tensor, first, one behind the last)
_Run = tuple[fx.Node, int, int]


def _runs(parts: Sequence[fx.Node], dim: int) -> list[_Run]:
    runs: list[_Run] = []
    for part in parts:
        size = spec(part).shape[dim]
        if type(size) is int and size == 0:
            continue
        source, start, end = _piece(part, dim)
        if runs and start >= 0 and runs[-1][0] is source and runs[-1][2] == start:
            runs[-1] = (source, runs[-1][1], end)
        else:
            runs.append((source, start, end))
    return runs


def _piece(part: fx.Node, dim: int) -> _Run:
    """What `part` is a slice of along `dim`, from where to where; itself if it is none."""
    if part.target is aten.slice.Tensor:
        source, along, start, end, step = bound_args(part)
        if along == dim and step == 1 and type(start) is int and type(end) is int:
            return source, start, end
    # From the front of itself: nothing follows on it, and it follows on nothing.
    return part, -1, -1


def _whole(run: _Run, dim: int) -> Any:
    source, start, end = run
    if start < 0 or (start == 0 and same_size(end, spec(source).shape[dim])):
        return Leaf(source)
    return aten.slice.Tensor(Leaf(source), dim, start, end)


class StackOfPieces(Rewrite):
    """
    before:  %a = select(%x, 1, 0), %b = select(%x, 1, 1), %y = stack([%a, %b], 1)  with %x: float32[3, 2, 4]
    after:   %x
    """

    def pattern(self, parts: Any, dim: Any):
        return ops.stack(parts, dim)

    def replacement(self, match: Match):
        return Leaf(_selected(match["parts"][0], match["dim"], 0))

    def check(self, match: Match) -> Verdict:
        parts, dim = cast("Sequence[fx.Node]", match["parts"]), match["dim"]
        sources = [_selected(part, dim, number) for number, part in enumerate(parts)]
        first = sources[0]
        if first is None or any(source is not first for source in sources):
            return No("the parts are not those of one tensor, in order")
        return Yes() if same_size(spec(first).shape[dim], len(parts)) else No(f"{first.name} has other parts")


def _selected(part: fx.Node, dim: int, number: int) -> Any:
    """The tensor of which `part` is the part of that number, None if it is not."""
    if part.target is not aten.select.int:
        return None
    source, along, index = part.args
    return source if along == dim and type(index) is int and index == number else None


class SliceOfCat(Rewrite):
    """
    before:  %c = cat([%x, %z], 1), %y = slice(%c, 1, 0, 4)  with %x: float32[3, 4]
    after:   %x
    """

    def pattern(self, parts: Any, dim: Any, start: Any, end: Any):
        return aten.slice.Tensor(ops.cat(parts, dim), dim, start, end)

    def replacement(self, match: Match, dim: int):
        return _whole(cast(_Run, _part(match)), dim)

    def check(self, match: Match) -> Verdict:
        return Yes() if _part(match) is not None else No("it is of more than one part")


def _part(match: Match) -> _Run | None:
    """The part of the cat that the slice is of, and which slice of it."""
    start, end, dim = match["start"], match["end"], match["dim"]
    if type(start) is not int or type(end) is not int or start < 0:
        return None
    offset = 0
    for part in cast("Sequence[fx.Node]", match["parts"]):
        found = spec(part)
        if len(found.shape) <= dim or type(found.shape[dim]) is not int:
            return None
        size = found.shape[dim]
        if offset <= start < end <= offset + size and found.dtype is spec(match.root).dtype:
            return part, start - offset, end - offset
        offset += size
    return None


class SelectOfStack(Rewrite):
    """
    before:  %s = stack([%x, %z], 1), %y = select(%s, 1, 0)
    after:   %x
    """

    def pattern(self, parts: Any, dim: Any, index: int):
        return aten.select.int(ops.stack(parts, dim), dim, index)

    def replacement(self, parts: Sequence[Tensor], index: int):
        return parts[index]

    def check(self, match: Match) -> Verdict:
        part = cast(fx.Node, match["parts"][match["index"]])
        return Yes() if spec(part).dtype is spec(match.root).dtype else No("the parts are of several dtypes")


class ViewUndone(Rewrite):
    """A view, ops on each element by itself, and the view that undoes the first.

    before:  %p = permute(%x, [0, 2, 1]), %r = relu(%p), %y = permute(%r, [0, 2, 1])
    after:   %y = relu(%x)
    """

    def __init__(self, view: OpOverload) -> None:
        self.view = view
        self.name = f"{packet_name(view)}_undone"

    def pattern(self, y: Tensor, how: Any):
        return self.view(y, how)

    def replacement(self, match: Match, editor: Editor):
        chain, x = _between(match.root)
        for node in reversed(chain):
            args = [x if a is node.all_input_nodes[0] else a for a in node.args]
            x = editor.call(node.target, *args, **node.kwargs)
        return x

    def check(self, match: Match) -> Verdict:
        root = match.root
        chain, x = _between(root)
        if x is root or not chain:
            return No("nothing between two views")
        first = chain[-1].all_input_nodes[0]
        if root.target is aten.permute.default:
            back, dims = cast("list[int]", root.args[1]), cast("list[int]", first.args[1])
            if [dims[d] for d in back] != list(range(len(dims))):
                return No("the second view does not undo the first")
        elif not same_sizes(spec(x).shape, spec(root).shape):
            return No("the second view does not undo the first")
        return Yes()


def _between(root: fx.Node) -> tuple[list[fx.Node], fx.Node]:
    """The pointwise ops of one tensor, last first, between the view `root` and a view of its kind, and what that is
    of; (.., root) if there is none."""
    chain: list[fx.Node] = []
    node = cast(fx.Node, root.args[0])
    while len(chain) < _LONGEST:
        if node.target is root.target:
            return chain, cast(fx.Node, node.args[0])
        if len(node.users) != 1 or not _is_unary(node):
            break
        chain.append(node)
        node = node.all_input_nodes[0]
    return chain, root


def _is_unary(node: fx.Node) -> bool:
    """An op on each element of one tensor, with numbers besides."""
    target = node.target
    if node.op != "call_function" or is_pinned(node) or not isinstance(target, OpOverload):
        return False
    if torch.Tag.pointwise not in target.tags or len(node.all_input_nodes) != 1:
        return False
    if signature(target).aliased >= 0 or spec_of(node) is None:
        return False
    source = node.all_input_nodes[0]
    others = [a for a in (*node.args, *node.kwargs.values()) if a is not source]
    plain = all(is_number(a) or isinstance(a, bool | str | None) for a in others)
    return plain and same_sizes(spec(source).shape, spec(node).shape)


class SqueezeUndone(Rewrite):
    """
    before:  %s = squeeze(%x, 1), %y = unsqueeze(%s, 1)
    after:   %x
    """

    def pattern(self, x: Tensor, dim: Any):
        return aten.squeeze.dim(x, dim).unsqueeze(dim)

    def replacement(self, x: Tensor):
        return x

    def check(self, match: Match) -> Verdict:
        before, after = match.spec("x").shape, spec(match.root).shape
        return Yes() if same_sizes(before, after) else No("nothing was squeezed")


def branch_rules() -> tuple[Rule, ...]:
    """All of them, in the order in which they are tried."""
    pieces = (CatOfPieces(), StackOfPieces(), SliceOfCat(), SelectOfStack(), SqueezeUndone())
    return (
        *map(as_rule, pieces),
        *(as_rule(ViewUndone(view)) for view in (aten.permute.default, aten.view.default)),
    )
