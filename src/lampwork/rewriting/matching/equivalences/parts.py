"""The building blocks of spellings: calls that match as they stand, and what stands for their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.dims import RANK_PLUS_ONE, from_front, permutation
from lampwork.graph.symbols import SymbolicInt, same_size
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.language.combinators.via import MISS, Via
from lampwork.rewriting.language.term import Call, Lit, RestArgument, Term, call
from lampwork.standard import functools, operator

aten = torch.ops.aten

_DIMENSIONS = ("dim", "dim0", "dim1", "dims", "start_dim", "end_dim")
PERMUTATIONS = (
    "transpose.int",
    "t",
    "numpy_T",
    "mT",
    "movedim.int",
    "movedim.intlist",
    "swapaxes",
    "permute",
)


def final(name: str, values: Mapping[Any, tuple[Any, ...]]) -> Call:
    """A call that matches as it stands."""
    return Call(name, values, "final")


def named(target: str, *args: Any, **kwargs: Any) -> Call:
    """A call of one overload, for which no other formula is looked for."""
    found = call(target, *args, **kwargs)
    return Call(found.name, found.values, "named")


def made(target: str, *args: Any, **kwargs: Any) -> Call:
    """A call as graphs may write it, and nothing else."""
    return own(call(target, *args, **kwargs))


def own(term: Call) -> Call:
    """The call itself, its arguments as a graph may write them."""
    if operator.getitem in term.values:
        return final(term.name, term.values)
    rows = {target: _row(target, row) for target, row in term.values.items()}
    for target, other in _SCALARS.items():
        if target in rows and other not in rows:
            rows[other] = rows[target]
    return final(term.name, rows)


# With a number in place of a tensor, canonical graphs have the one, replacements may have made the other.
_SCALARS = {getattr(aten, name).Tensor: getattr(aten, name).Scalar for name in ("add", "sub", "mul", "div")}


@functools.lru_cache(maxsize=1024)
def overload(name: str) -> Any:
    """The overload of an ATen op that "mean.dim" or "relu" means."""
    packet, _, rest = name.partition(".")
    return getattr(getattr(aten, packet), rest or "default")


def row_of(term: Call, name: str) -> tuple[Any, ...] | None:
    """The arguments of a call for one of its overloads ("mean.dim"), None if it is not one of them."""
    return term.values.get(overload(name))


def literal(term: Any) -> Any:
    """The Python value of a literal term; MISS for variables and calls."""
    if isinstance(term, Lit):
        return term.value
    if isinstance(term, Term) or term is Ellipsis:
        return MISS
    if isinstance(term, list | tuple):
        items = [literal(t) for t in cast("Sequence[Any]", term)]
        return MISS if any(i is MISS for i in items) else items
    return term


def is_default(term: Any, value: Any) -> bool:
    """Whether an argument is left out, or written as the default."""
    found = literal(term)
    return found is not MISS and schema.same_literal(found, value)


def _row(target: Any, row: Sequence[Any]) -> tuple[Any, ...]:
    values: list[Any] = list(row)
    for i, how in _readings(target):
        value = values[i]
        if isinstance(value, RestArgument):
            continue
        if how.is_list and isinstance(literal(value), int):
            value = [value] * how.length
        match how.sort:
            case "any":
                value = ...
            case "dim":
                value = dims(value, how.extra, ordered=how.ordered)
            case "size" if isinstance(value, list | tuple):
                value = sizes(cast("Sequence[Any]", value))
            case "dtype" if literal(value) is not MISS:
                value = Via(functools.partial(_dtype_is, literal(value)), ..., f"dtype {literal(value)}")
            case _:
                pass
        values[i] = value
    return tuple(values)


@record
class _Reading:
    """How an argument may be written. `length`: how long a list one int is. `extra`: the dimensions that it counts
    beyond the first operand's."""

    sort: str
    is_list: bool
    length: int = 1
    extra: int = 0
    ordered: bool = False


@functools.lru_cache(maxsize=4096)
def _readings(target: Any) -> tuple[tuple[int, _Reading], ...]:
    """The arguments of an op, by position, that may be written in several ways."""
    name = schema.packet_name(target)
    ours = target.namespace == "aten"
    found: list[tuple[int, _Reading]] = []
    for i, argument in enumerate(schema.schema_of(target).arguments):
        is_list = "List[int]" in str(argument.type)
        sort = ""
        if argument.name.startswith("cudnn_enable"):
            sort = "any"
        elif ours and argument.name in _DIMENSIONS and not name.endswith("_backward"):
            sort = "dim"
        elif ours and argument.name in ("size", "shape"):
            sort = "size"
        elif argument.name == "dtype" and name not in ("_to_copy", "full"):
            sort = "dtype"
        if sort or is_list:
            extra = 1 if name in RANK_PLUS_ONE else 0
            length = argument.N or 1
            found.append((i, _Reading(sort, is_list, length, extra, argument.name == "dims")))
    return tuple(found)


def _dtype_is(wanted: Any, value: Any, owner: fx.Node | None) -> Any:
    """A dtype that the operand has already is as good as none."""
    spec = schema.spec_of(owner.args[0]) if owner is not None and owner.args else None
    operand = None if spec is None else spec.dtype
    return value if (value or operand) is (wanted or operand) else MISS


# --- dimensions -----------------------------------------------------------------------------------------------------


def rank_of(owner: fx.Node | None) -> int | None:
    """The rank of the first operand of a node."""
    first: Any = owner.args[0] if owner is not None and owner.args else None
    if isinstance(first, list | tuple) and first:
        first = cast("Sequence[Any]", first)[0]
    spec = schema.spec_of(first)
    return None if spec is None else len(spec.shape)


def dims(term: Any, extra: int = 0, *, ordered: bool = False) -> Any:
    """A dimension, or a list of them, that may count from the front or the back."""
    if term is Ellipsis:
        return term
    if isinstance(term, list | tuple) and literal(term) is MISS:
        return [dims(t, extra) for t in cast("Sequence[Any]", term)]
    wanted = literal(term)

    def convert(value: Any, owner: fx.Node | None) -> Any:
        rank = rank_of(owner)
        rank = None if rank is None else rank + extra
        found = from_front(value, rank)
        if wanted is MISS:
            return found
        sought = from_front(wanted, rank)
        if isinstance(found, list | tuple) and isinstance(sought, list) and not ordered:
            found, sought = sorted(cast("list[int]", found)), sorted(cast("list[int]", sought))
        return value if schema.same_literal(found, sought) else MISS

    return Via(
        convert, ... if wanted is not MISS else term, f"dim {wanted if wanted is not MISS else ''}".strip()
    )


def sizes(terms: Sequence[Any]) -> list[Any]:
    """A shape: -1 is any size, and so is what it cannot be known to be."""
    return [... if literal(t) is not MISS and literal(t) == -1 else size(t) for t in terms]


def size(term: Any) -> Any:
    """A size that may be symbolic."""
    wanted = literal(term)
    if not isinstance(wanted, int):
        return term

    def convert(value: Any, _: fx.Node | None) -> Any:
        number = isinstance(value, int | SymbolicInt)
        return value if number and same_size(cast(int, value), wanted) else MISS

    return Via(convert, ..., str(wanted))


def any_sizes(term: Any) -> Any:
    """The shape that a view is asked for: a list of sizes, `x.shape`, or a variable for the whole list."""
    if isinstance(term, list | tuple):
        return sizes(cast("Sequence[Any]", term))
    return term


def permutation_of(node: fx.Node) -> list[int] | None:
    """The order in which a node puts the dimensions of its operand, None if it is no permutation."""
    rank = rank_of(node)
    return None if rank is None else permutation(schema.packet_name(node.target), node.args[1:], rank)
