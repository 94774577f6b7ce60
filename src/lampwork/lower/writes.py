"""Writes to inputs in place: which scatters of a graph write to a placeholder's memory, and their definitions.

A graph is functional: a cache that is written comes out as a new value, which is copied back at the end. Where that
value is the cache with a few elements replaced, it becomes a chain of writes, each a Map onto the content before it,
which all can have the memory of the cache itself (`loops.ir.nodes.Map`):

    before: old = select(cache, 0, 1); new = index_copy(old, 2, at, keys); out = select_scatter(cache, new, 0, 1)
    after:  cache_1[1, i0, at[i1], i2] = keys[i0, i1, i2], onto cache

Whether they get it is for the memory plan to say, which knows the order of all that reads; a write copies otherwise.
For each write there is what takes it back, since a call that fails leaves its inputs as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.dims import slice_bounds
from lampwork.graph.shapes_common import broadcast, wrap_dim
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import SymbolicInt, hint_of
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Buffer, Load, Map
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, axes_of, indices_of, read
from lampwork.lower.context import Context
from lampwork.lower.embedding import position
from lampwork.lower.registry import NotExpressible
from lampwork.lower.views import expand_to
from lampwork.records import record

aten = torch.ops.aten

_VIEWS = frozenset(
    {
        aten.select.int,
        aten.slice.Tensor,
        aten.permute.default,
        aten.view.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.alias.default,
        aten.detach.default,
    }
)
_RESHAPES = frozenset({aten.view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims})
_SAME = frozenset({aten.alias.default, aten.detach.default})
_PARTS = {aten.select_scatter.default: aten.select.int, aten.slice_scatter.default: aten.slice.Tensor}
"""What writes a part back -> the view that the part is."""
_BY_INDEX = frozenset({aten.index_copy.default, aten.index_put.default})
_LARGEST_PART = 2
"""A write of more than one in this many elements is no cheaper than a copy with the elements replaced."""


@record
class Undo:
    """What takes the write that makes `out` of `onto` back: `restore` puts in what was read into `saved` before.

    `needs`: the buffers that it reads, `saved` among them: they have to live until the end of the call.
    """

    out: str
    onto: Buffer
    saved: str
    restore: Map
    needs: frozenset[str]


@record
class _Step:
    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    shape: tuple[Any, ...]
    """Of what it is a view of."""

    def equals(self, other: _Step) -> bool:
        return self.op is other.op and _equal((self.args, self.kwargs), (other.args, other.kwargs))


@record
class _Seen:
    """A node as the content of a placeholder after `writes`, through a chain of views."""

    path: tuple[_Step, ...]
    writes: tuple[fx.Node, ...]


@dataclass(slots=True)
class Writes:
    """The writes of a graph to its placeholders, and what became of them.

    chain: the nodes that a chain of writes goes through. nested: those of them that put a part back which was written
    where it lies. undo: one for each write.
    """

    chain: frozenset[fx.Node]
    nested: frozenset[fx.Node]
    undo: list[Undo] = field(default_factory=list[Undo])
    contents: dict[str, str] = field(default_factory=dict[str, str])
    """Buffer of a placeholder, or of what a write made of it -> the placeholder's."""

    def lower(
        self, ctx: Context, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Array | None:
        """The value of a node of the chain; None if it is to be lowered as any other."""
        base = args[0]
        if not isinstance(base, Array) or ctx.in_constant_part:
            return None
        root = self.contents.get(base.buffer.name)
        if root is None:
            return None
        if node.target is aten.clone.default:
            return base
        if node in self.nested:
            source = args[1]
            if isinstance(source, Array) and self.contents.get(source.buffer.name) == root:
                return replace(base, buffer=source.buffer)
            return None
        try:
            return self._write(ctx, node, root, args, kwargs)
        except NotExpressible:
            return None

    def _write(
        self, ctx: Context, node: fx.Node, root: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Array | None:
        base = cast(Array, args[0])
        region, source = _part(node, args, kwargs)
        if 0 in source.shape:
            return None
        if source.buffer.name in self.contents:
            source = ctx.materialise(source, "source")
        old = base.buffer
        new = replace(old, name=ctx.unique(f"{root}_written"))
        axes = axes_of(source.shape)
        place = at(base, region).index
        data = {load.buffer.name for load in loads(Load(new, place))} - {new.name}
        if data & self.contents.keys():
            return None
        kept = ctx.buffer(source.shape, base.dtype, hint="before")
        ctx.emit(Map(kept.buffer, axes, kept.index, Load(old, place)))
        value = e.cast(read(source, source.shape), base.dtype)
        ctx.emit(Map(new, axes, place, value, old))
        restore = Map(new, axes, place, Load(kept.buffer, kept.index), new)
        self.undo.append(Undo(new.name, old, kept.buffer.name, restore, frozenset({*data, kept.buffer.name})))
        self.contents[new.name] = root
        return replace(base, buffer=new)

    def made(self, buffer: Buffer) -> bool:
        """Whether a write made it, which then may lie in a placeholder's memory."""
        return self.contents.get(buffer.name, buffer.name) != buffer.name

    def is_whole(self, array: Array) -> bool:
        """Whether an array is the whole of what a write made, as it lies there."""
        buffer = array.buffer
        return (
            self.made(buffer)
            and array.index == AXES[: array.rank]
            and array.offset == 0
            and buffer.shape == indices_of(array.shape)
        )

    def enter(self, buffer: Buffer) -> None:
        """Note a placeholder that is written."""
        self.contents[buffer.name] = buffer.name


def find_writes(graph: fx.Graph, mutations: Sequence[tuple[int, int]]) -> tuple[Writes, frozenset[fx.Node]]:
    """The writes of a graph, and the placeholders that they are to.

    Args:
        mutations: (placeholder number, output number): that output is the placeholder's new content.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    results = cast(tuple[Any, ...], next(iter(reversed(graph.nodes))).args[0])
    chain: set[fx.Node] = set()
    nested: set[fx.Node] = set()
    written: set[fx.Node] = set()
    for place, result in mutations:
        finder = _Finder(placeholders[place])
        last = results[result]
        seen = finder.seen(last) if isinstance(last, fx.Node) else None
        if seen is None or seen.path or not seen.writes or not finder.is_private():
            continue
        chain |= finder.chain
        nested |= finder.nested
        written.add(placeholders[place])
    return Writes(frozenset(chain), frozenset(nested)), frozenset(written)


@dataclass(slots=True)
class _Finder:
    placeholder: fx.Node
    chain: set[fx.Node] = field(default_factory=set[fx.Node])
    nested: set[fx.Node] = field(default_factory=set[fx.Node])
    known: dict[fx.Node, _Seen | None] = field(default_factory=dict[fx.Node, "_Seen | None"])

    def seen(self, node: fx.Node) -> _Seen | None:
        """The node as a view of the placeholder's content, if it is one.

        A graph is as deep as it has writes: operands come first, without recursion.
        """
        todo = [node]
        while todo:
            each = todo[-1]
            if each in self.known:
                todo.pop()
                continue
            missing = [operand for operand in _operands(each) if operand not in self.known]
            if missing:
                todo += missing
                continue
            self.known[each] = self._seen(each)
            todo.pop()
        return self.known[node]

    def is_private(self) -> bool:
        """Whether only the chain reads its copies, which are left out of it."""
        copies = (node for node in self.chain if node.target is aten.clone.default)
        return all(user in self.chain or self._is_link(user) for node in copies for user in node.users)

    def _is_link(self, node: fx.Node) -> bool:
        """Whether a view leads on to the chain only."""
        return node.target in _VIEWS and all(user in self.chain or self._is_link(user) for user in node.users)

    def _seen(self, node: fx.Node) -> _Seen | None:
        if node is self.placeholder:
            return _Seen((), ())
        operands = _operands(node)
        base = self.known[operands[0]] if operands else None
        if base is None:
            return None
        if node.target in _VIEWS:
            return _Seen(_longer(base.path, _step(node), _shape(node)), base.writes)
        if node.target is aten.clone.default:
            if not base.writes:
                return None
            self.chain.add(node)
            return base
        self.chain.add(node)
        if node.target in _PARTS:
            part = self.known[operands[1]] if len(operands) > 1 else None
            step = _step(node)
            path = (*base.path, step)
            if (
                part is not None
                and len(part.path) == len(path)
                and all(a.equals(b) for a, b in zip(part.path, path, strict=True))
                and part.writes[: len(base.writes)] == base.writes
                and len(part.writes) > len(base.writes)
            ):
                self.nested.add(node)
                return _Seen(base.path, part.writes)
        if not _is_small(node, self.placeholder):
            return None
        return _Seen(base.path, (*base.writes, node))


def _operands(node: fx.Node) -> list[fx.Node]:
    """Those through which the content of a placeholder may have come."""
    if node.op != "call_function":
        return []
    if node.target in _VIEWS or node.target is aten.clone.default or node.target in _BY_INDEX:
        return [cast(fx.Node, node.args[0])]
    if node.target in _PARTS:
        return [operand for operand in node.args[:2] if isinstance(operand, fx.Node)]
    return []


def _shape(node: fx.Node) -> tuple[Any, ...]:
    return cast(TensorSpec, node.meta["val"]).shape


def _step(node: fx.Node) -> _Step:
    """A view, or the view whose inverse a scatter is."""
    op, first = _PARTS.get(cast(Any, node.target)), 2
    if op is None:
        op, first = node.target, 1
    return _Step(
        op, node.args[first:], tuple(sorted(node.kwargs.items())), _shape(cast(fx.Node, node.args[0]))
    )


def _longer(path: tuple[_Step, ...], step: _Step, shape: tuple[Any, ...]) -> tuple[_Step, ...]:
    """The path with one more step, without what undoes itself."""
    if step.op in _SAME:
        return path
    if path and step.op in _RESHAPES and path[-1].op in _RESHAPES and _equal(path[-1].shape, shape):
        return path[:-1]
    if path and step.op is aten.permute.default and path[-1].op is aten.permute.default:
        rank = len(step.shape)
        outer, inner = (([dim % rank for dim in each.args[0]]) for each in (step, path[-1]))
        if [inner[dim] for dim in outer] == list(range(rank)):
            return path[:-1]
    return (*path, step)


def _equal(a: Any, b: Any) -> bool:
    """Whether two arguments are the same for all values of symbols."""
    if isinstance(a, SymbolicInt) and isinstance(b, SymbolicInt):
        return a.index == b.index
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        first, second = cast("Sequence[Any]", a), cast("Sequence[Any]", b)
        return len(first) == len(second) and all(map(_equal, first, second))
    return type(a) is type(b) and not isinstance(a, SymbolicInt) and a == b


def _is_small(node: fx.Node, placeholder: fx.Node) -> bool:
    """Whether a write is to few elements of the placeholder's, at places that differ."""
    args: list[Any] = list(node.args)
    if node.target is aten.index_put.default:
        accumulate = args[3] if len(args) > 3 else node.kwargs.get("accumulate", False)
        given = [index for index in cast("Sequence[Any]", args[1]) if index is not None]
        if accumulate is not False or not given:
            return False
        if any(cast(TensorSpec, index.meta["val"]).dtype in (torch.bool, torch.uint8) for index in given):
            return False
        if _count(broadcast([_shape(index) for index in given])) != 1:
            return False  # which of equal places is written last is for ATen to say
    if node.target is aten.index_copy.default and _count(_shape(cast(fx.Node, args[2]))) != 1:
        return False
    if node.target in _BY_INDEX:
        source = cast(fx.Node, args[3] if node.target is aten.index_copy.default else args[2])
    else:
        source = cast(fx.Node, args[1])
    return _LARGEST_PART * _count(_shape(source)) <= _count(_shape(placeholder))


def _count(shape: Sequence[Any]) -> int:
    count = 1
    for size in shape:
        count *= hint_of(size)
    return count


def _part(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Index], Array]:
    """Where in its first argument a scatter writes, at a point (i0, i1, …) of what it writes, and that."""
    base: Array = args[0]
    rank = base.rank
    if node.target is aten.select_scatter.default:
        dim, index = wrap_dim(args[2], rank), args[3]
        where = index + base.shape[dim] if index < 0 else index
        shape = (*base.shape[:dim], *base.shape[dim + 1 :])
        return [*AXES[:dim], as_index(where), *AXES[dim : rank - 1]], expand_to(args[1], shape)
    if node.target is aten.slice_scatter.default:
        given = dict(zip(("dim", "start", "end", "step"), args[2:], strict=False)) | dict(kwargs)
        dim, step = wrap_dim(given.get("dim", 0), rank), given.get("step", 1)
        first, last = slice_bounds(base.shape[dim], given.get("start"), given.get("end"))
        length = (last - first + step - 1) // step
        shape = (*base.shape[:dim], length, *base.shape[dim + 1 :])
        return [*AXES[:dim], AXES[dim] * step + first, *AXES[dim + 1 : rank]], expand_to(args[1], shape)
    if node.target is aten.index_copy.default:
        if rank == 0:
            raise NotExpressible("index_copy of a tensor without dimensions")
        dim, index = wrap_dim(args[1], rank), cast(Array, args[2])
        where = position(index, [AXES[dim]] if index.rank else [], base.shape[dim])
        return [*AXES[:dim], where, *AXES[dim + 1 : rank]], args[3]
    indices = cast("Sequence[Array | None]", args[1])
    given = [dim for dim, index in enumerate(indices) if index is not None]
    arrays = [index for index in indices if index is not None]
    shape = broadcast([index.shape for index in arrays])
    adjacent = given == list(range(given[0], given[0] + len(given)))
    start = given[0] if adjacent else 0
    point = AXES[start : start + len(shape)]
    places = {
        dim: position(expand_to(index, shape), point, base.shape[dim], wrap=True)
        for dim, index in zip(given, arrays, strict=True)
    }
    rest = iter([*AXES[:start], *AXES[start + len(shape) :]])
    kept = [base.shape[dim] for dim in range(rank) if dim not in places]
    whole = (*kept[:start], *shape, *kept[start:])
    return [places[dim] if dim in places else next(rest) for dim in range(rank)], expand_to(args[2], whole)
