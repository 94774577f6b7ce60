"""View operators: no data moves, an `Array` gets another index map (and strides, where there are any)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.graph.dims import permutation, slice_bounds
from lampwork.graph.shapes_common import wrap_dim
from lampwork.graph.symbols import same_size, same_sizes
from lampwork.loops.ir.index import ONE, ZERO, Index, as_index
from lampwork.loops.ir.nodes import Load
from lampwork.lower.arrays import AXES, AXIS_NAMES, Array, reindex
from lampwork.lower.context import Context
from lampwork.lower.registry import Lowering, NotExpressible, Registry, Rule

rules = Registry()

_COPYING_TWINS = frozenset(
    {
        *(
            "view",
            "permute",
            "transpose",
            "t",
            "slice",
            "select",
            "unbind",
            "split_with_sizes",
            "split",
            "diagonal",
        ),
        *("unfold", "squeeze", "unsqueeze", "expand", "narrow", "detach", "alias", "as_strided"),
    }
)


# --- reshaping --------------------------------------------------------------------------------------------------------


def infer_shape(numel: int, shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` with its -1, if any, replaced."""
    known = 1
    for size in shape:
        if size != -1:
            known *= size
    return tuple(numel // known if size == -1 else size for size in shape)


def reshape(array: Array, shape: tuple[int, ...]) -> Array:
    """The elements in row-major order, in another shape of equally many.

    before: x[2, 12], to (2, 3, 4)        after: x[i0, 4*i1 + i2]
    before: x[2, 3, 4], to (2, 12)        after: x[i0, i1 // 4, i1 % 4]
    """
    if same_sizes(array.shape, shape):
        return array
    if 0 in shape:
        return Array(
            array.buffer, shape, tuple(ZERO for _ in array.index), tuple(1 for _ in shape), array.offset
        )
    mapping: dict[str, Index] = {}
    strides: list[int] | None = None if array.strides is None else [0] * len(shape)
    divided = False
    for old, new in _matching_groups(array.shape, shape):
        old = [dim for dim in old if array.shape[dim] != 1]
        new = [dim for dim in new if shape[dim] != 1]
        if len(old) == 1 and len(new) == 1:
            mapping[AXIS_NAMES[old[0]]] = AXES[new[0]]
        elif old:
            flat = ZERO
            for dim in new:
                flat = flat * shape[dim] + AXES[dim]
            rest = 1
            for dim in reversed(old):
                size = array.shape[dim]
                part = flat // rest
                mapping[AXIS_NAMES[dim]] = part % size if dim != old[0] else part
                rest *= size
            divided = divided or len(old) > 1
        if strides is not None and array.strides is not None:
            group = _group_strides(
                [array.shape[dim] for dim in old],
                [array.strides[dim] for dim in old],
                [shape[dim] for dim in new],
            )
            if group is None:
                strides = None
            else:
                for dim, stride in zip(new, group, strict=True):
                    strides[dim] = stride
    if strides is not None:
        _fill_unit_strides(shape, strides)
    for dim, size in enumerate(array.shape):
        if size == 1:
            mapping[AXIS_NAMES[dim]] = ZERO
    mapping = {name: index for name, index in mapping.items() if index != AXES[int(name[1:])]}
    simplified = divided or not all(e.is_flat for e in array.index)
    return reindex(
        array,
        shape,
        mapping,
        tuple(strides) if strides is not None else None,
        array.offset,
        simplified=simplified,
    )


def _matching_groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions of both shapes with equal products, as fine as possible."""
    groups: list[tuple[list[int], list[int]]] = []
    left, right = 0, 0
    while left < len(old) or right < len(new):
        olds, news = [left] if left < len(old) else [], [right] if right < len(new) else []
        a = old[left] if left < len(old) else 1
        b = new[right] if right < len(new) else 1
        left, right = left + 1, right + 1
        while a != b:
            if (a < b and left < len(old)) or right >= len(new):
                olds.append(left)
                a *= old[left]
                left += 1
            else:
                news.append(right)
                b *= new[right]
                right += 1
        groups.append((olds, news))
    return groups


def _group_strides(sizes: list[int], strides: list[int], new_sizes: list[int]) -> list[int] | None:
    """Strides of one group's new dimensions (none of size 1); None if a new dimension would need two.

    Old dimensions that follow each other in memory make a run; each run must split into whole new dimensions.
    """
    result = [0] * len(new_sizes)
    target = len(new_sizes) - 1
    place = len(sizes) - 1
    while place >= 0:
        base, run = strides[place], sizes[place]
        while place > 0 and strides[place - 1] == strides[place] * sizes[place]:
            place -= 1
            run *= sizes[place]
        place -= 1
        covered = 1
        while target >= 0 and covered < run:
            result[target] = base * covered
            covered *= new_sizes[target]
            target -= 1
        if covered != run:
            return None
    return result


def _fill_unit_strides(shape: tuple[int, ...], strides: list[int]) -> None:
    """Dimensions of size 1 get the stride that a contiguous tensor would have there."""
    step = 1
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1:
            strides[dim] = step
        else:
            step = strides[dim] * shape[dim]


@rules.lowers("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(ctx: Context, x: Array, shape: Sequence[int], *_: Any) -> Array:
    return reshape(x, infer_shape(x.numel, shape))


@rules.lowers("view_as", "reshape_as")
def view_as(ctx: Context, x: Array, other: Array) -> Array:
    return reshape(x, other.shape)


@rules.lowers("flatten.using_ints")
def flatten(ctx: Context, x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    return reshape(x, ctx.spec.shape)


@rules.lowers("unflatten.int")
def unflatten(ctx: Context, x: Array, dim: int, sizes: Sequence[int]) -> Array:
    return reshape(x, ctx.spec.shape)


# --- order of dimensions ----------------------------------------------------------------------------------------------


def permute(array: Array, dims: Sequence[int]) -> Array:
    """Dimension n of the result is dimension dims[n] of the array."""
    dims = [wrap_dim(dim, array.rank) for dim in dims]
    mapping = {AXIS_NAMES[old]: AXES[new] for new, old in enumerate(dims) if old != new}
    strides = None if array.strides is None else tuple(array.strides[dim] for dim in dims)
    return reindex(array, tuple(array.shape[dim] for dim in dims), mapping, strides, array.offset)


def swap(array: Array, first: int, second: int) -> Array:
    """The array with two dimensions swapped; without dimensions it stays."""
    return permute(array, permutation("transpose", (first, second), array.rank) or ())


@rules.lowers("permute")
def permute_rule(ctx: Context, x: Array, dims: Sequence[int]) -> Array:
    return permute(x, dims)


@rules.lowers("transpose.int", "swapaxes", "swapdims")
def transpose(ctx: Context, x: Array, dim0: int, dim1: int) -> Array:
    return swap(x, dim0, dim1)


@rules.lowers("t", "numpy_T", "mT", "adjoint", "mH", "matrix_H")
def t(ctx: Context, x: Array) -> Array:
    return swap(x, -2, -1) if x.rank >= 2 else x


@rules.lowers("movedim.intlist", "movedim.int", "moveaxis.intlist", "moveaxis.int")
def movedim(ctx: Context, x: Array, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    return permute(x, permutation("movedim", (source, destination), x.rank) or ())


# --- parts ------------------------------------------------------------------------------------------------------------


def slice_dim(array: Array, dim: int, start: int, length: int, step: int = 1) -> Array:
    """`length` elements along `dim` from `start`, every `step`th. start and length must be in range."""
    if start == 0 and step == 1 and same_size(length, array.shape[dim]):
        return array
    shape = (*array.shape[:dim], length, *array.shape[dim + 1 :])
    mapping = {AXIS_NAMES[dim]: AXES[dim] * step + start}
    strides, offset = None, 0
    if array.strides is not None:
        stride = array.strides[dim]
        strides = (*array.strides[:dim], stride * step, *array.strides[dim + 1 :])
        offset = array.offset + start * stride
    return reindex(array, shape, mapping, strides, offset, simplified=True)


def select_dim(array: Array, dim: int, position: int) -> Array:
    """The part of the array at `position` of `dim`, without that dimension."""
    shape = array.shape[:dim] + array.shape[dim + 1 :]
    mapping = {AXIS_NAMES[dim]: as_index(position)}
    for later in range(dim + 1, array.rank):
        mapping[AXIS_NAMES[later]] = AXES[later - 1]
    strides, offset = None, 0
    if array.strides is not None:
        strides = array.strides[:dim] + array.strides[dim + 1 :]
        offset = array.offset + position * array.strides[dim]
    return reindex(array, shape, mapping, strides, offset, simplified=True)


@rules.lowers("slice.Tensor")
def slice_rule(
    ctx: Context, x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    dim = wrap_dim(dim, x.rank)
    first, last = slice_bounds(x.shape[dim], start, end)
    return slice_dim(x, dim, first, (last - first + step - 1) // step, step)


@rules.lowers("narrow")
def narrow(ctx: Context, x: Array, dim: int, start: int, length: int) -> Array:
    dim = wrap_dim(dim, x.rank)
    return slice_dim(x, dim, start + x.shape[dim] if start < 0 else start, length)


@rules.lowers("select.int")
def select(ctx: Context, x: Array, dim: int, index: int) -> Array:
    dim = wrap_dim(dim, x.rank)
    return select_dim(x, dim, index + x.shape[dim] if index < 0 else index)


@rules.lowers("unbind.int")
def unbind(ctx: Context, x: Array, dim: int = 0) -> list[Array]:
    dim = wrap_dim(dim, x.rank)
    return [select_dim(x, dim, position) for position in range(x.shape[dim])]


def _pieces(x: Array, dim: int, sizes: Sequence[int]) -> list[Array]:
    start = 0
    pieces: list[Array] = []
    for size in sizes:
        pieces.append(slice_dim(x, dim, start, size))
        start += size
    return pieces


@rules.lowers("split_with_sizes", "split.sizes")
def split_with_sizes(ctx: Context, x: Array, split_sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return _pieces(x, wrap_dim(dim, x.rank), split_sizes)


@rules.lowers("split.Tensor")
def split(ctx: Context, x: Array, split_size: int, dim: int = 0) -> list[Array]:
    dim = wrap_dim(dim, x.rank)
    size = x.shape[dim]
    if size == 0 or split_size == 0:
        return [x]
    return _pieces(x, dim, [min(split_size, size - start) for start in range(0, size, split_size)])


@rules.lowers("chunk")
def chunk(ctx: Context, x: Array, chunks: int, dim: int = 0) -> list[Array]:
    dim = wrap_dim(dim, x.rank)
    return split(ctx, x, (x.shape[dim] + chunks - 1) // chunks, dim)


@rules.lowers("diagonal")
def diagonal(ctx: Context, x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    dim1, dim2 = wrap_dim(dim1, x.rank), wrap_dim(dim2, x.rank)
    rest = [dim for dim in range(x.rank) if dim not in (dim1, dim2)]
    length = ctx.spec.shape[-1]
    last = AXES[len(rest)]
    down, right = max(-offset, 0), max(offset, 0)
    mapping = {AXIS_NAMES[dim]: AXES[n] for n, dim in enumerate(rest)}
    mapping[AXIS_NAMES[dim1]] = last + down
    mapping[AXIS_NAMES[dim2]] = last + right
    strides, start = None, 0
    if x.strides is not None:
        strides = (*(x.strides[dim] for dim in rest), x.strides[dim1] + x.strides[dim2])
        start = x.offset + (down * x.strides[dim1] + right * x.strides[dim2] if length else 0)
    return reindex(x, (*(x.shape[dim] for dim in rest), length), mapping, strides, start, simplified=True)


@rules.lowers("unfold")
def unfold(ctx: Context, x: Array, dimension: int, size: int, step: int) -> Array:
    if x.rank == 0:
        raise NotExpressible("unfold of a tensor without dimensions")
    dim = wrap_dim(dimension, x.rank)
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    mapping = {AXIS_NAMES[dim]: AXES[dim] * step + AXES[x.rank]}
    strides = None
    if x.strides is not None:
        strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim])
    return reindex(x, shape, mapping, strides, x.offset, simplified=True)


@rules.lowers("as_strided")
def as_strided(
    ctx: Context, x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    """Over a contiguous buffer: element at flat place p is buffer[p // s0, p // s1 % n1, …]."""
    dense = reshape_is_contiguous(x)
    if not dense or storage_offset not in (None, 0):
        # An explicit storage offset counts from the start of the storage, which may lie before this tensor.
        raise NotExpressible("as_strided of a tensor that is not contiguous")
    place = as_index(x.offset)
    for dim, step in enumerate(stride):
        place = place + AXES[dim] * step
    mapping: dict[str, Index] = {}
    rest = ONE
    rank = len(x.buffer.shape)
    flat = Array(x.buffer, x.shape, AXES[:rank], None)
    for dim in reversed(range(rank)):
        part = place // rest
        mapping[AXIS_NAMES[dim]] = part % x.buffer.shape[dim] if dim else part
        rest = rest * x.buffer.shape[dim]
    return reindex(flat, tuple(size), mapping, tuple(stride), x.offset, simplified=True)


def reshape_is_contiguous(x: Array) -> bool:
    """Whether x is all of a contiguous buffer, in order, from its first element."""
    step = ONE
    for size, stride in zip(reversed(x.buffer.shape), reversed(x.buffer.strides), strict=True):
        if size != ONE and stride != step:
            return False
        step = step * size
    return x.strides is not None and x.offset == 0 and step == as_index(x.numel)


# --- dimensions of size one -------------------------------------------------------------------------------------------


def squeeze_dims(array: Array, dims: Sequence[int]) -> Array:
    """Without those of `dims` that have size 1."""
    gone = {dim for dim in dims if array.shape[dim] == 1}
    if not gone:
        return array
    kept = [dim for dim in range(array.rank) if dim not in gone]
    mapping = {AXIS_NAMES[dim]: AXES[n] for n, dim in enumerate(kept)}
    mapping.update((AXIS_NAMES[dim], ZERO) for dim in gone)
    strides = None if array.strides is None else tuple(array.strides[dim] for dim in kept)
    return reindex(array, tuple(array.shape[dim] for dim in kept), mapping, strides, array.offset)


def unsqueeze_dim(array: Array, dim: int) -> Array:
    """With a new dimension of size 1 before dimension `dim`."""
    mapping = {AXIS_NAMES[n]: AXES[n + 1] for n in range(dim, array.rank)}
    strides = None
    if array.strides is not None:
        step = array.shape[dim] * array.strides[dim] if dim < array.rank else 1
        strides = (*array.strides[:dim], step, *array.strides[dim:])
    return reindex(array, (*array.shape[:dim], 1, *array.shape[dim:]), mapping, strides, array.offset)


@rules.lowers("squeeze")
def squeeze(ctx: Context, x: Array) -> Array:
    return squeeze_dims(x, range(x.rank))


@rules.lowers("squeeze.dim")
def squeeze_dim(ctx: Context, x: Array, dim: int) -> Array:
    return squeeze_dims(x, [wrap_dim(dim, x.rank)]) if x.rank else x


@rules.lowers("squeeze.dims")
def squeeze_several(ctx: Context, x: Array, dims: Sequence[int]) -> Array:
    return squeeze_dims(x, [wrap_dim(dim, x.rank) for dim in dims]) if x.rank else x


@rules.lowers("unsqueeze")
def unsqueeze(ctx: Context, x: Array, dim: int) -> Array:
    return unsqueeze_dim(x, wrap_dim(dim, x.rank + 1))


# --- repetition by stride zero ----------------------------------------------------------------------------------------


def expand_to(array: Array, shape: Sequence[int]) -> Array:
    """Broadcast; -1 keeps a size."""
    lead = len(shape) - array.rank
    sizes = tuple(array.shape[n - lead] if size == -1 else size for n, size in enumerate(shape))
    if same_sizes(sizes, array.shape):
        return array
    mapping: dict[str, Index] = {}
    strides = [0] * len(sizes)
    for dim, size in enumerate(array.shape):
        if size == 1 and sizes[dim + lead] != 1:
            mapping[AXIS_NAMES[dim]] = ZERO
        else:
            if lead:
                mapping[AXIS_NAMES[dim]] = AXES[dim + lead]
            if array.strides is not None:
                strides[dim + lead] = array.strides[dim]
    return reindex(array, sizes, mapping, None if array.strides is None else tuple(strides), array.offset)


@rules.lowers("expand")
def expand(ctx: Context, x: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    return expand_to(x, size)


@rules.lowers("expand_as")
def expand_as(ctx: Context, x: Array, other: Array) -> Array:
    return expand_to(x, other.shape)


@rules.lowers("broadcast_to")
def broadcast_to(ctx: Context, x: Array, size: Sequence[int]) -> Array:
    return expand_to(x, size)


# --- the same elements ------------------------------------------------------------------------------------------------


@rules.lowers("alias", "detach", "lift_fresh", "lift", "_conj", "positive", "resolve_conj", "resolve_neg")
def same(ctx: Context, x: Array, *_: Any) -> Array:
    return x


# --- copying twins ----------------------------------------------------------------------------------------------------


def _copying(rule: Rule) -> Rule:
    """The rule with its results copied, as `view_copy` copies what `view` shares."""

    def copy(ctx: Context, *args: Any, **kwargs: Any) -> Lowering:
        views = rule(ctx, *args, **kwargs)
        if isinstance(views, Array):
            return ctx.result(Load(views.buffer, views.index))
        return [ctx.materialise(part, hint=f"part{n}") for n, part in enumerate(views)]

    return copy


for _name, _rule in list(rules.rules.items()):
    _base, _, _overload = _name.removeprefix("aten::").partition(".")
    if _base in _COPYING_TWINS and _name != "aten::split.sizes":
        rules.add(f"{_base}_copy.{_overload}" if _overload else f"{_base}_copy", _copying(_rule))
