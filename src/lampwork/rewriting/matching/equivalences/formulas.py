"""Other formulas of the same values: what a pattern says as pow(x, 2) a model may say as x * x.

Only what torch computes alike stands here: the same operations on the same numbers, or in another op whose results are
equal (those of rsqrt and 1 / sqrt but for the last bit). So x * sigmoid(x) is not silu(x): a pattern for both says
either(...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import fx

from lampwork.rewriting.language.combinators.via import MISS, Via
from lampwork.rewriting.language.term import Call, Term, Var
from lampwork.rewriting.matching.equivalences.parts import is_default, literal, made, named, row_of
from lampwork.rewriting.matching.values import literal_matches, number_of

Spell = Callable[[Call], Iterator[Any]]


def _first(term: Call) -> tuple[Any, ...]:
    return next(iter(term.values.values()))


def is_number(term: Any, value: float) -> bool:
    """Whether an argument is this number, written as an int or a float."""
    found = literal(term)
    return found is not MISS and isinstance(found, int | float) and literal_matches(value, found)


# --- powers ---------------------------------------------------------------------------------------------------------


def _square(term: Call) -> Iterator[Any]:
    x = _first(term)[0]
    yield made("pow.Tensor_Scalar", x, 2)
    yield made("mul.Tensor", x, x)


def _pow(term: Call) -> Iterator[Any]:
    row = row_of(term, "pow.Tensor_Scalar")
    if row is None:
        return
    x, exponent = row
    if is_number(exponent, 2):
        yield made("mul.Tensor", x, x)
        yield made("square", x)
    elif is_number(exponent, 3):
        yield made("mul.Tensor", named("mul.Tensor", x, x), x)
    elif is_number(exponent, 0.5):
        yield made("sqrt", x)
    elif is_number(exponent, -1):
        yield from _inverse(x)
    elif is_number(exponent, -0.5):
        yield made("rsqrt", x)
        yield from _inverse(named("sqrt.default", x))


def _sqrt(term: Call) -> Iterator[Any]:
    yield made("pow.Tensor_Scalar", _first(term)[0], 0.5)


def _rsqrt(term: Call) -> Iterator[Any]:
    x = _first(term)[0]
    yield made("pow.Tensor_Scalar", x, -0.5)
    yield from _inverse(named("sqrt.default", x))
    yield from _inverse(named("pow.Tensor_Scalar", x, 0.5))


def _inverse(x: Any) -> Iterator[Any]:
    """1 / x, which Python's operator records as a product."""
    yield made("reciprocal", x)
    yield made("mul.Tensor", named("reciprocal.default", x), 1)
    yield made("div.Tensor", 1, x)
    yield made("pow.Tensor_Scalar", x, -1)


def _reciprocal(term: Call) -> Iterator[Any]:
    x = _first(term)[0]
    yield from list(_inverse(x))[1:]
    if isinstance(x, Call) and x.name == "sqrt" and x.form == "any":
        inner = _first(x)[0]
        yield made("rsqrt", inner)
        yield made("pow.Tensor_Scalar", inner, -0.5)


# --- sums and products ----------------------------------------------------------------------------------------------


def _mul(term: Call) -> Iterator[Any]:
    row = row_of(term, "mul.Tensor")
    if row is None:
        return
    a, b = row
    if a is b and isinstance(a, Term):
        yield made("pow.Tensor_Scalar", a, 2)
        yield made("square", a)
    for cube, x in ((a, b), (b, a)):
        if isinstance(cube, Call) and cube.name == "mul" and all(t is x for t in _first(cube)[:2]):
            yield made("pow.Tensor_Scalar", x, 3)
    for one, inverse in ((a, b), (b, a)):
        # Python's 1 / x, c / x.
        if isinstance(inverse, Call) and inverse.name == "reciprocal" and is_number(one, 1):
            yield from _reciprocal(inverse)


def _negated(term: Any) -> Any:
    """The other side of a - b as a + -b; MISS for what has none."""
    number = literal(term)
    if isinstance(number, int | float) and not isinstance(number, bool):
        # An int has no -0.
        return -number if number else -float(number)
    if isinstance(term, Var) and term.kind == "number":
        return Via(_minus, term, "a number other than 0")
    return MISS


def _minus(value: Any, _: fx.Node | None) -> Any:
    found = number_of(value)
    return -found if found else MISS


def _sub(term: Call) -> Iterator[Any]:
    row = row_of(term, "sub.Tensor")
    if row is None or not is_default(row[2], 1):
        return
    a, b, _ = row
    negated = _negated(b)
    if negated is not MISS:
        yield made("add.Tensor", a, negated)
    elif isinstance(b, Term):
        yield made("add.Tensor", a, named("neg.default", b))
    if literal(a) is not MISS or (isinstance(a, Var) and a.kind == "number"):
        yield made("rsub.Scalar", b, a)


def _rsub(term: Call) -> Iterator[Any]:
    row = row_of(term, "rsub.Scalar") or row_of(term, "rsub.Tensor")
    if row is None or not is_default(row[2], 1):
        return
    b, a, _ = row
    yield made("sub.Tensor", a, b)
    yield made("add.Tensor", named("neg.default", b), a)


def _add(term: Call) -> Iterator[Any]:
    row = row_of(term, "add.Tensor")
    if row is None or not is_default(row[2], 1):
        return
    for a, b in ((row[0], row[1]), (row[1], row[0])):
        if isinstance(b, Call) and b.name == "neg":
            y = _first(b)[0]
            yield made("sub.Tensor", a, y)
            yield made("rsub.Scalar", y, a)
        elif isinstance(a, Term) and (negated := _negated(b)) is not MISS:
            yield made("sub.Tensor", a, negated)


# --- choices --------------------------------------------------------------------------------------------------------


def _masked_fill(term: Call) -> Iterator[Any]:
    x, mask, value = _first(term)
    yield made("where", mask, value, x)


def _where(term: Call) -> Iterator[Any]:
    row = row_of(term, "where.self")
    if row is None:
        return
    c, a, b = row
    if literal(a) is not MISS or (isinstance(a, Var) and a.kind in ("number", "any")):
        yield made("masked_fill", b, c, a)


def _clamp_min(term: Call) -> Iterator[Any]:
    x, low = _first(term)
    yield made("clamp", x, low)


def _clamp_max(term: Call) -> Iterator[Any]:
    x, high = _first(term)
    yield made("clamp", x, None, high)


def _clamp(term: Call) -> Iterator[Any]:
    x, low, high = _first(term)
    if is_default(high, None):
        yield made("clamp_min", x, low)
    elif is_default(low, None):
        yield made("clamp_max", x, high)
    elif literal(low) is not MISS and literal(high) is not MISS:
        yield made("hardtanh", x, low, high)
        if is_number(low, 0) and is_number(high, 6):
            yield made("relu6", x)


def _relu6(term: Call) -> Iterator[Any]:
    x = _first(term)[0]
    yield made("hardtanh", x, 0, 6)
    yield made("clamp", x, 0, 6)


def _hardtanh(term: Call) -> Iterator[Any]:
    x, low, high = _first(term)
    yield made("clamp", x, low, high)
    if is_number(low, 0) and is_number(high, 6):
        yield made("relu6", x)


def _extreme(name: str) -> Spell:
    """amax(x, d) by max(x, d)[0], which has the same values."""

    def spell(term: Call) -> Iterator[Any]:
        x, dim, keep = _first(term)
        dim = literal(dim)
        if isinstance(dim, list) and len(dim) == 1:  # pyright: ignore[reportUnknownArgumentType]
            dim = dim[0]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(dim, int):
            yield made("getitem", named(f"{name}.dim", x, dim, keep), 0)

    return spell


def _getitem(term: Call) -> Iterator[Any]:
    source, index = _first(term)
    if not isinstance(source, Call) or source.name not in ("max", "min") or literal(index) != 0:
        return
    row = row_of(source, f"{source.name}.dim")
    if row is not None and isinstance(literal(row[1]), int):
        yield made(f"a{source.name}", row[0], [row[1]], row[2])


def _larger(term: Call) -> Iterator[Any]:
    """maximum(a, b) by max(a, b)."""
    a, b = _first(term)[:2]
    yield made("max.other" if term.name == "maximum" else "min.other", a, b)


def _max(term: Call) -> Iterator[Any]:
    row = row_of(term, f"{term.name}.other")
    if row is not None and isinstance(row[1], Term):
        yield made("maximum" if term.name == "max" else "minimum", *row)


def _mean(term: Call) -> Iterator[Any]:
    """Nothing but other ways to say "over all dimensions"."""
    if term.name == "sum" and (row := row_of(term, "sum")) is not None and is_default(row[1], None):
        yield made("sum.dim_IntList", row[0], Via(_all_dims, ..., "all dimensions"))
    elif term.name == "mean" and (row := row_of(term, "mean")) is not None and is_default(row[1], None):
        yield made("mean.dim", row[0], Via(_all_dims, ..., "all dimensions"))


def _all_dims(value: Any, owner: fx.Node | None) -> Any:
    if value is None or value == []:
        return value
    spec = owner.args[0].meta["val"] if owner is not None and isinstance(owner.args[0], fx.Node) else None
    if spec is None or not isinstance(value, list | tuple):
        return MISS
    rank = len(spec.shape)
    return value if sorted(d % rank for d in value if rank) == list(range(rank)) else MISS  # pyright: ignore[reportUnknownVariableType]


FORMULAS: Mapping[str, Spell] = {
    "square": _square,
    "pow": _pow,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "mul": _mul,
    "sub": _sub,
    "rsub": _rsub,
    "add": _add,
    "masked_fill": _masked_fill,
    "where": _where,
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "relu6": _relu6,
    "hardtanh": _hardtanh,
    "amax": _extreme("max"),
    "amin": _extreme("min"),
    "getitem": _getitem,
    "maximum": _larger,
    "minimum": _larger,
    "max": _max,
    "min": _max,
    "mean": _mean,
    "sum": _mean,
}
"""By the name of an op written without an overload: other formulas of its values."""
