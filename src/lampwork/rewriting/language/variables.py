"""Variables, as the defaults of the parameters of a pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from lampwork.errors import PassError
from lampwork.rewriting.language.term import Kind, Rest, Var


def tensor(
    *,
    dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    rank: int | None = None,
    shape: Sequence[Any] | None = None,
    where: Callable[[Any], Any] | None = None,
) -> Any:
    """A variable for a tensor, as the default of a parameter of a pattern (`x=tensor(rank=4)`) or, without a name,
    anywhere in it.

    An item of `shape` is a size, None for any, or a str: a size that is the same wherever the pattern has that str;
    `...` as the first item stands for any leading sizes. `where` is given the TensorSpec.
    """
    return _variable("tensor", dtype, rank, shape, where)


def constant(
    *,
    dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    rank: int | None = None,
    shape: Sequence[Any] | None = None,
    where: Callable[[Any], Any] | None = None,
) -> Any:
    """A variable for what is known once the weights are: a tensor computed from parameters, buffers and literals, or a
    Python number. With a dtype, a rank or a shape it is a tensor. `where` is given the TensorSpec or the number."""
    narrow = dtype is not None or rank is not None or shape is not None
    return _variable("const" if narrow else "constant", dtype, rank, shape, where)


def number(*, where: Callable[[Any], Any] | None = None) -> Any:
    """A variable for a Python int or float, also one that a tensor without dimensions was filled with."""
    return _variable("number", where=where)


def anything(*, where: Callable[[Any], Any] | None = None) -> Any:
    """A variable for whatever stands there: a tensor, a number, a list, a dtype, None."""
    return _variable("any", where=where)


def rest(name: str = "") -> Any:
    """The arguments of a call that the pattern does not give, whatever they are: the last argument of a call, by the
    name of a parameter of the pattern (`options=rest()`) or its own (`rest("options")`). `rest()` alone is anything.

    `match["options"]` is a dict of them, by the names of the op's parameters. In the replacement a call that has it
    last takes of it what the call does not give itself.
    """
    if not isinstance(cast(object, name), str):
        raise PassError(f"the name of the rest of the arguments is {name!r}", fix='write rest("options")')
    return Rest(name)


def _variable(kind: Kind, dtype: Any = None, rank: Any = None, shape: Any = None, where: Any = None) -> Var:
    for name, value, fits, expected in (
        ("dtype", dtype, _dtypes(dtype) is not None, "a torch.dtype, or several"),
        ("rank", rank, type(rank) is int, "an int"),
        ("shape", shape, isinstance(shape, list | tuple), "a tuple of sizes"),
        ("where", where, callable(where), "a function"),
    ):
        if value is not None and not fits:
            raise PassError(f"the {name} of a variable is {value!r}", fix=f"give {expected}")
    return Var("", kind, _dtypes(dtype) or (), rank, _shape(shape), where)


def _dtypes(dtype: Any) -> tuple[torch.dtype, ...] | None:
    """None: it is neither a dtype nor several."""
    several = cast("tuple[Any, ...]", tuple(dtype) if isinstance(dtype, list | tuple) else (dtype,))
    return several if all(isinstance(each, torch.dtype) for each in several) else None


def _shape(shape: Sequence[Any] | None) -> tuple[Any, ...] | None:
    if shape is None:
        return None
    for i, size in enumerate(shape):
        if not (size is None or isinstance(size, int | str) or (size is Ellipsis and i == 0)):
            raise PassError(
                f"{size!r} in the shape of a variable",
                fix="write a size, None for any, a str for one of the same wherever it stands, or ... in front",
            )
    return tuple(shape)
