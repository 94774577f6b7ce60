"""Terms that stand for one of several things: a choice, an optional op, a repeated one, what lies behind views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.errors import PassError
from lampwork.records import record
from lampwork.rewriting.language.term import Call, Leaf, Lit, Term, Var, call
from lampwork.rewriting.matching.values import number_of

MISS: Any = object()
"""What a conversion gives for a value that it does not know."""

Convert = Callable[[Any, fx.Node | None], Any]
"""(value, the node whose argument it is) -> what stands for the value, or MISS."""


@record(eq=False)
class Either(Term):
    """The first of several terms that matches. `notes`: what `Match.count(name)` is for each."""

    options: tuple[Any, ...]
    name: str = ""
    notes: tuple[int, ...] = ()

    @property
    def alternatives(self) -> tuple[Any, ...]:
        return self.options


@record(eq=False)
class Hole(Term):
    """What a repeated step is applied to."""


@record(eq=False)
class Repeated(Term):
    """`step` applied `at_least` times or more, the innermost time to `x`. `done`: the times already matched."""

    step: Callable[[Any], Any]
    x: Any
    body: Any
    at_least: int
    name: str
    done: int = 0

    def next(self) -> Any:
        """The step, applied to what is left of the repetition."""
        return self.step(Repeated(self.step, self.x, self.body, self.at_least, self.name, self.done + 1))


@record(eq=False)
class Through(Term):
    """`x`, or a chain of views and lossless casts of it. `name`: what the chain is called in the match."""

    x: Any
    views: bool
    casts: bool
    name: str
    chain: tuple[fx.Node, ...] = ()


@record(eq=False)
class Via(Term):
    """A value that, converted, is `inner`. `what` says what it is, for messages."""

    convert: Convert
    inner: Any
    what: str


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


def either(*options: Any, name: str = "") -> Term:
    """Any of the terms, tried in this order. `match.count(name)` is the number of the one that it was, from 0.

    A variable that only other options have is None in the replacement.

    Raises:
        PassError: less than two options.
    """
    if len(options) < 2:
        raise PassError(f"either() takes two options or more, got {len(options)}")
    return Either(tuple(_term(o) for o in options), name, tuple(range(len(options))))


def maybe(op: Any, x: Any, *rest: Any, name: str = "") -> Term:
    """`op(x, *rest)`, or `x` itself: an op that may be there. `op` is a function of torch, or any other of terms, or
    the name of an op. `match.has(name)` says whether it was there; `name` defaults to the op's own.

    A variable in `rest` is None in the replacement if it was not.
    """
    if isinstance(op, str):
        return Either((call(op, x, *rest), x), name or op, (1, 0))
    own = str(getattr(op, "__name__", ""))
    return Either((op(x, *rest), x), name or own, (1, 0))


def repeated(step: Callable[[Any], Any], x: Any, at_least: int = 1, name: str = "n") -> Term:
    """`step(step(... x))`, as many times as the graph has it, `at_least` times or more. `match.count(name)` is how
    often.

    Raises:
        PassError: `at_least` is negative, or `step` gives its argument back.
    """
    if at_least < 0:
        raise PassError(f"repeated() at least {at_least} times")
    hole = Hole()
    body = step(hole)
    if body is hole or not isinstance(body, Term):
        raise PassError("the step of repeated() applies no op to its argument")
    return Repeated(step, x, body, at_least, name)


def through(x: Any, views: bool = True, casts: bool = True, name: str = "") -> Term:
    """`x`, or `x` behind any number of ops that move all its elements (permute, view, unsqueeze, contiguous, ...) and
    of casts that lose nothing.

    With a name, a parameter of the replacement so called is given the Path: `path(term)` puts the same ops on another
    term.
    """
    return Through(x, views, casts, name)


def scaled(x: Any, c: Any) -> Term:
    """`x` times a number, in either order, or divided by one: `c` is the factor, 1 / n for a division by n."""
    factor = Via(_number, c, "a number")
    divisor = Via(_inverse, c, "a number other than 0")
    return Either((call("mul", x, factor), call("div", x, divisor)))


def _number(value: Any, _: fx.Node | None) -> Any:
    number = number_of(value)
    return MISS if number is None else number


def _inverse(value: Any, _: fx.Node | None) -> Any:
    number = number_of(value)
    return MISS if not number else 1.0 / number


def _term(value: Any) -> Any:
    return value if isinstance(value, Term) else Lit(value)


# --- the vocabulary of patterns -------------------------------------------------------------------------------------


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
    return Var("", "tensor", _dtypes(dtype), rank, _shape(shape), where)


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
    return Var("", "const" if narrow else "constant", _dtypes(dtype), rank, _shape(shape), where)


def number(*, where: Callable[[Any], Any] | None = None) -> Any:
    """A variable for a Python int or float, also one that a tensor without dimensions was filled with."""
    return Var("", "number", where=where)


def anything(*, where: Callable[[Any], Any] | None = None) -> Any:
    """A variable for whatever stands there: a tensor, a number, a list, a dtype, None."""
    return Var("", "any", where=where)


def _dtypes(dtype: Any) -> tuple[torch.dtype, ...]:
    if dtype is None:
        return ()
    return (dtype,) if isinstance(dtype, torch.dtype) else tuple(cast("Sequence[torch.dtype]", dtype))


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


__all__ = [
    "MISS", "Call", "Either", "Path", "Repeated", "Through", "Via", "anything", "constant", "either", "maybe",
    "number", "repeated", "scaled", "tensor", "through",
]  # fmt: skip
