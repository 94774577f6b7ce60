"""Other spellings of ops that move elements, change their dtype, or multiply matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.dims import from_front, permutation
from lampwork.graph.symbols import same_sizes
from lampwork.rewriting import schema
from lampwork.rewriting.language.combinators.via import MISS, Via
from lampwork.rewriting.language.term import Call, call
from lampwork.rewriting.matching.equivalences.parts import (
    PERMUTATIONS,
    any_sizes,
    dims,
    final,
    is_default,
    literal,
    made,
    named,
    overload,
    permutation_of,
    rank_of,
    row_of,
)
from lampwork.standard import functools

aten = torch.ops.aten

Spell = Callable[[Call], Iterator[Any]]


def _first(term: Call) -> tuple[Any, ...]:
    return next(iter(term.values.values()))


# --- permutations ---------------------------------------------------------------------------------------------------


def _permutation(term: Call) -> Iterator[Any]:
    x, *args = _first(term)
    numbers = literal(args)
    if numbers is not MISS:
        yield permuted(x, term.name, numbers)
    elif term.name == "transpose":
        # Which two dimensions a permutation swaps.
        yield final(
            "permute", {aten.permute.default: (x, Via(_swapped, list(args), "a swap of two dimensions"))}
        )


def _beside(term: Call, other: Call) -> Call:
    """A spelling without the ops that the call has itself."""
    return final(other.name, {t: row for t, row in other.values.items() if t not in term.values})


def takes_in(term: Call, move: Any) -> bool:
    """Whether a spelling of a permutation, or of a part, also is the call as it was written."""
    return (
        term.name in ("slice", "transpose", "t", "numpy_T", "mT", "movedim", "swapaxes", "permute")
        and isinstance(move, Call)
        and term.values.keys() <= move.values.keys()
    )


@functools.lru_cache(maxsize=1)
def _permutations() -> Mapping[Any, int]:
    """The ops that permute dimensions, with the number of their parameters."""
    return {t: len(schema.signature(t).parameters) for t in map(overload, PERMUTATIONS)}


def permuted(x: Any, name: str, args: Sequence[Any]) -> Call:
    """`x` with its dimensions in the order in which `name(x, *args)` puts them, by whichever op."""

    def convert(value: Any, owner: fx.Node | None) -> Any:
        rank = rank_of(owner)
        if owner is None or rank is None:
            return MISS
        wanted = permutation(name, args, rank)
        return value if wanted is not None and wanted == permutation_of(owner) else MISS

    check = Via(convert, ..., f"dimensions in the order of {name}{tuple(args)}")
    alone = Via(convert, x, check.what)
    rows = {t: (x, check, *[...] * (n - 2)) if n > 1 else (alone,) for t, n in _permutations().items()}
    return final("permute", rows)


def _swapped(value: Any, owner: fx.Node | None) -> Any:
    order = from_front(value, rank_of(owner))
    moved = [i for i, d in enumerate(order) if i != d]
    return moved if len(moved) == 2 else MISS


# --- views ----------------------------------------------------------------------------------------------------------


def _views(term: Call, x: Any, shape: Any, copy: bool = True) -> Iterator[Any]:
    targets = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
    yield _beside(term, final("view", dict.fromkeys(targets, (x, shape))))
    if copy:
        # Where no view does it, eager copies first.
        yield final("view", {aten.view.default: (named("clone.default", x, memory_format=...), shape)})


def _reshape(term: Call) -> Iterator[Any]:
    row = row_of(term, term.name)
    if row is not None:
        yield from _views(term, row[0], any_sizes(row[1]), copy=term.name == "reshape")


def _flatten(term: Call) -> Iterator[Any]:
    row = row_of(term, "flatten.using_ints")
    bounds = literal(list(row[1:])) if row is not None else MISS
    if row is None or bounds is MISS:
        return

    def convert(value: Any, owner: fx.Node | None) -> Any:
        before = _source(owner)
        if before is None:
            return MISS
        start, end = from_front(bounds, len(before) or 1)
        merged: Any = 1
        for n in before[start : end + 1]:
            merged = merged * n
        wanted = (*before[:start], merged, *before[end + 1 :])
        return value if same_sizes(tuple(value), wanted) else MISS

    yield from _views(term, row[0], Via(convert, ..., f"flattened from dim {bounds[0]} to {bounds[1]}"))


def _unflatten(term: Call) -> Iterator[Any]:
    row = row_of(term, "unflatten.int")
    dim, parts = (literal(row[1]), literal(row[2])) if row is not None else (MISS, MISS)
    if row is None or dim is MISS or parts is MISS:
        return

    def convert(value: Any, owner: fx.Node | None) -> Any:
        before = _source(owner)
        if before is None:
            return MISS
        at = from_front(dim, len(before))
        found = list(value)
        inner = found[at : at + len(parts)]
        outer = (*found[:at], *found[at + len(parts) :])
        fits = (
            all(p in (-1, n) for p, n in zip(parts, inner, strict=True))
            if len(inner) == len(parts)
            else False
        )
        return value if fits and same_sizes(outer, (*before[:at], *before[at + 1 :])) else MISS

    yield from _views(term, row[0], Via(convert, ..., f"dim {dim} split into {parts}"), copy=False)


def _source(owner: fx.Node | None) -> tuple[int, ...] | None:
    spec = schema.spec_of(owner.args[0]) if owner is not None else None
    return None if spec is None else spec.shape


def _expand_as(term: Call) -> Iterator[Any]:
    x, other = _first(term)
    yield final("expand", {aten.expand.default: (x, other.shape, ...)})


def _contiguous(term: Call) -> Iterator[Any]:
    x = _first(term)[0]
    yield made("clone.default", x, memory_format=...)
    yield Via(_is_contiguous, x, "a contiguous tensor")


def _is_contiguous(value: Any, _: fx.Node | None) -> Any:
    spec = schema.spec_of(value)
    # is_contiguous would make conditions of symbolic strides.
    return value if spec is not None and "(" not in str(spec) else MISS


# --- parts ----------------------------------------------------------------------------------------------------------


def _narrow(term: Call) -> Iterator[Any]:
    row = row_of(term, "narrow")
    numbers = literal(list(row[1:])) if row is not None else MISS
    if row is None or numbers is MISS:
        return
    dim, start, length = numbers
    yield from _slice_of(row[0], dim, lambda n: (start + n if start < 0 else start, length))


def _slice(term: Call) -> Iterator[Any]:
    row = row_of(term, "slice.Tensor")
    numbers = literal(list(row[1:])) if row is not None else MISS
    if row is None or numbers is MISS:
        return
    dim, start, end, step = numbers

    def bounds(n: Any) -> tuple[Any, Any]:
        low = start or 0
        low = low + n if low < 0 else low
        high = n if end is None or (isinstance(end, int) and end > 2**62) else end
        high = high + n if isinstance(high, int) and high < 0 else high
        high = min(high, n) if isinstance(n, int) else high
        return low, high - low

    yield from _slice_of(row[0], dim, bounds, step)


def _slice_of(x: Any, dim: int, bounds: Callable[[Any], tuple[Any, Any]], step: int = 1) -> Iterator[Any]:
    def convert(value: Any, owner: fx.Node | None) -> Any:
        before = _source(owner)
        if before is None or owner is None:
            return MISS
        args = schema.bound_args(owner)
        at = from_front(dim, len(before))
        if from_front(args[1], len(before)) != at or not 0 <= at < len(before):
            return MISS
        n = before[at]
        low, length = bounds(n)
        start = 0 if args[2] is None else args[2]
        end = n if args[3] is None or (isinstance(args[3], int) and args[3] > 2**62) else args[3]
        if step > 1 and isinstance(n, int):
            return value if range(start, min(end, n), step) == range(low, low + length, step) else MISS
        return value if same_sizes((start, end), (low, low + length)) else MISS

    yield final("slice", {aten.slice.Tensor: (x, Via(convert, ..., f"a part of dim {dim}"), ..., ..., step)})


def parts(term: Call, index: int) -> Iterator[Any]:
    """One result of chunk, split or unbind, which graphs have as slices."""
    if term.name == "unbind":
        row = row_of(term, "unbind.int")
        if row is not None:
            yield made("select.int", row[0], row[1], index)
        return
    row = row_of(term, "chunk") or row_of(term, "split.Tensor") or row_of(term, "split.sizes")
    numbers = literal(list(row[1:])) if row is not None else MISS
    if row is None or numbers is MISS:
        return
    count, dim = numbers

    def bounds(n: Any) -> tuple[Any, Any]:
        if isinstance(count, list | tuple):
            lengths = cast("Sequence[int]", count)
            return sum(lengths[:index]), lengths[index]
        step = -(-n // count) if term.name == "chunk" else count
        return index * step, min(step, n - index * step)

    yield from _slice_of(row[0], dim, bounds)


# --- casts ----------------------------------------------------------------------------------------------------------


def _to(term: Call) -> Iterator[Any]:
    row = row_of(term, "to.dtype")
    if row is not None:
        yield from _cast(row[0], row[1])


def _to_copy(term: Call) -> Iterator[Any]:
    x, wanted, *rest = _first(term)
    if all(is_default(r, d) for r, d in zip(rest, (None, None, None, False, None), strict=True)):
        yield final("to", {aten.to.dtype: (x, wanted, ..., ..., ...)})


def _cast(x: Any, wanted: Any) -> Iterator[Any]:
    yield final("_to_copy", {aten._to_copy.default: (x, wanted, ..., ..., ..., ..., ...)})
    dtype = literal(wanted)
    if not isinstance(dtype, torch.dtype):
        return

    def convert(value: Any, _: fx.Node | None) -> Any:
        spec = schema.spec_of(value)
        return value if spec is not None and spec.dtype is dtype else MISS

    yield Via(convert, x, f"a tensor of {dtype}")


def _softmax(term: Call) -> Iterator[Any]:
    row = row_of(term, f"{term.name}.int")
    if row is None:
        return
    x, dim, dtype = row
    if is_default(dtype, None):
        yield made(f"_{term.name}", x, dim, False)
    elif literal(dtype) is not MISS:
        yield made(f"{term.name}.int", call("to.dtype", x, dtype), dim)


def _raw_softmax(term: Call) -> Iterator[Any]:
    x, dim, _ = _first(term)
    yield made(f"{term.name[1:]}.int", x, dim)


# --- products -------------------------------------------------------------------------------------------------------


def _untransposed(value: Any, _: fx.Node | None) -> Any:
    """The matrix that a node is the transpose of."""
    if isinstance(value, fx.Node) and value.op == "call_function" and permutation_of(value) == [1, 0]:
        return value.args[0]
    return MISS


def transposed(term: Any) -> Any:
    """The transpose of what a term is: of `t(w)`, `w`."""
    if isinstance(term, Call) and term.name in ("t", "numpy_T", "mT", "transpose", "permute", "swapaxes"):
        x, *args = _first(term)
        numbers = literal(args)
        if numbers is not MISS and permutation(term.name, numbers, 2) == [1, 0]:
            return x
    return Via(_untransposed, term, "a transposed matrix")


def _product(term: Call) -> Iterator[Any]:
    a, b = _first(term)[:2]
    targets = {"mm": (aten.mm, aten.matmul), "bmm": (aten.bmm, aten.matmul)}
    rank = {"mm": 2, "bmm": 3}.get(term.name)
    if rank is None:
        yield _beside(term, final("matmul", {t.default: (a, b) for t in (aten.matmul, aten.mm, aten.bmm)}))
    else:
        narrow = Via(_of_rank(rank), a, f"a tensor of rank {rank}"), Via(_of_rank(rank), b, f"of rank {rank}")
        yield final("matmul", {targets[term.name][1].default: narrow})
    if rank != 3:
        x = Via(_of_rank(2), a, "a matrix") if rank == 2 else a
        yield final("linear", {aten.linear.default: (x, transposed(b), None)})


def _of_rank(rank: int) -> Callable[[Any, fx.Node | None], Any]:
    def convert(value: Any, _: fx.Node | None) -> Any:
        spec = schema.spec_of(value)
        return value if spec is not None and len(spec.shape) == rank else MISS

    return convert


def _at_least_matrix(value: Any, _: fx.Node | None) -> Any:
    spec = schema.spec_of(value)
    return value if spec is not None and len(spec.shape) >= 2 else MISS


def _linear(term: Call) -> Iterator[Any]:
    x, w, b = _first(term)
    turned = transposed(w)
    if is_default(b, None):
        x = Via(_at_least_matrix, x, "a tensor of rank 2 or more")
        yield final("matmul", {t.default: (x, turned) for t in (aten.matmul, aten.mm)})
    else:
        bias = Via(_of_rank(1), b, "a bias")
        yield final("addmm", {aten.addmm.default: (bias, x, turned, 1, 1)})


def _addmm(term: Call) -> Iterator[Any]:
    row = row_of(term, "addmm")
    if row is not None and is_default(row[3], 1) and is_default(row[4], 1):
        x = Via(_of_rank(2), row[1], "a matrix")
        yield final("linear", {aten.linear.default: (x, transposed(row[2]), row[0])})


# --- reductions -----------------------------------------------------------------------------------------------------


def _variance(term: Call) -> Iterator[Any]:
    """By its correction: 0 for unbiased=False, 1 for True and for nothing."""
    overload = aten.var.correction if term.name == "var" else aten.std.correction
    row = row_of(term, f"{term.name}.correction")
    by_dim = row_of(term, f"{term.name}.dim")
    if by_dim is not None and isinstance(literal(by_dim[2]), bool):
        x, dim, unbiased, keep = by_dim
        yield made(f"{term.name}.correction", x, dim, correction=int(literal(unbiased)), keepdim=keep)
    elif row is not None and literal(row[2]) in (None, 1):
        x, dim, _, keep = row
        other = 1 if literal(row[2]) is None else None
        yield made(f"{term.name}.correction", x, dim, correction=other, keepdim=keep)
    if row is not None and by_dim is not None and literal(row[2]) is None and literal(by_dim[2]) is True:
        # A dimension alone leaves the correction at 1, which the recorder writes out.
        yield final(
            term.name,
            {overload: made(f"{term.name}.correction", row[0], row[1], correction=1).values[overload]},
        )


def _dims_of_all(term: Call) -> Iterator[Any]:
    """A squeeze of one dimension, or of a list with one."""
    row = row_of(term, "squeeze.dim")
    if row is not None and len(row) == 2:
        yield final("squeeze", {aten.squeeze.dims: (row[0], [dims(row[1])])})


MOVES: Mapping[str, Spell] = {
    **dict.fromkeys(("transpose", "t", "numpy_T", "mT", "movedim", "swapaxes", "permute"), _permutation),
    "reshape": _reshape,
    "view": _reshape,
    "_unsafe_view": _reshape,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "expand_as": _expand_as,
    "contiguous": _contiguous,
    "narrow": _narrow,
    "slice": _slice,
    "squeeze": _dims_of_all,
    "to": _to,
    "_to_copy": _to_copy,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "_softmax": _raw_softmax,
    "_log_softmax": _raw_softmax,
    "matmul": _product,
    "mm": _product,
    "bmm": _product,
    "linear": _linear,
    "addmm": _addmm,
    "var": _variance,
    "std": _variance,
}
"""By the name of an op: what else does the same, whatever the overload."""
