"""Proofs that an access stays in its buffer: what is proven is so, and what is not so is never proven."""

from __future__ import annotations

import itertools
import random

import pytest
from loops_build import buffer

from lampwork.loops.fusion.effects import reaches_all
from lampwork.loops.ir.bounds import elements_of, stays_inside
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Const, Expr, IndexValue, Load, Op

I0, I1 = Index.var("i0"), Index.var("i1")
S, T = Index.sym("s"), Index.sym("t")


def compares(how: str, index: Index, value: int | Index) -> Expr:
    right = IndexValue(value, "i64") if isinstance(value, Index) else Const(value, "i64")
    return Op(how, (IndexValue(index, "i64"), right), "bool")


both = lambda a, b: Op("and", (a, b), "bool")  # noqa: E731
one = Index.const


@pytest.mark.parametrize(
    ("size", "index", "extents", "mask", "proven"),
    [
        (8, I0, {"i0": one(8)}, None, True),
        (8, I0, {"i0": one(9)}, None, False),
        (8, I0 + 1, {"i0": one(8)}, None, False),
        (8, I0 - 2, {"i0": one(12)}, None, False),
        (8, I0 - 2, {"i0": one(12)}, both(compares("ge", I0, 2), compares("lt", I0, 10)), True),
        (8, I0 - 2, {"i0": one(12)}, both(compares("ge", I0, 2), compares("lt", I0, 11)), False),
        (
            8,
            I0 - 2,
            {"i0": one(12)},
            Op("or", (compares("ge", I0, 2), compares("lt", I0, 10)), "bool"),
            False,
        ),
        (8, (I0 - 2) // 3, {"i0": one(40)}, both(compares("ge", I0, 2), compares("lt", I0, 26)), True),
        (8, (I0 - 2) // 3, {"i0": one(40)}, both(compares("ge", I0, 2), compares("lt", I0, 27)), False),
        (8, I0 % 8, {"i0": one(100)}, None, True),
        (8, I0 // 8, {"i0": one(64)}, None, True),
        (8, I0 // 8, {"i0": one(65)}, None, False),
        (0, I0, {"i0": one(1)}, None, False),
        (S, I0, {"i0": S}, None, True),
        (S, I0 + 1, {"i0": S}, None, False),
        (S * T, I0 * T + I1, {"i0": S, "i1": T}, None, True),
        (S * T, I0 * T + I1 + 1, {"i0": S, "i1": T}, None, False),
        (S * T, I0 * T + I1 - T, {"i0": S + 1, "i1": T}, compares("ge", I0, 1), True),
        (S * T, (I0 % T) + T * (I0 // T), {"i0": S * T}, None, True),
        (8, I1, {"i0": one(8)}, None, False),
        (8, Index.indirect(Load(buffer("ids", 4, dtype="i64"), (I0,)), 8), {"i0": one(4)}, None, True),
        (8, Index.indirect(Load(buffer("ids", 4, dtype="i64"), (I0,)), 9), {"i0": one(4)}, None, False),
        (0, Index.indirect(Load(buffer("ids", 4, dtype="i64"), (I0,)), 0), {"i0": one(4)}, None, False),
    ],
)
def test_proofs(
    size: int | Index, index: Index, extents: dict[str, Index], mask: Expr | None, proven: bool
) -> None:
    assert stays_inside(buffer("x", size), (index,), extents, mask) is proven


@pytest.mark.parametrize("seed", range(200))
def test_no_wrong_proof(seed: int) -> None:
    """Random indices and masks: where the access is proven, trying every point finds none outside."""
    rng = random.Random(seed)
    sizes = {"i0": rng.randint(1, 9), "i1": rng.randint(1, 6)}

    def index() -> Index:
        value = I0 * rng.randint(-2, 3) + I1 * rng.randint(-2, 3) + rng.randint(-4, 4)
        kind = rng.random()
        if kind < 0.3:
            return value // rng.randint(1, 4) + I1
        return value % rng.randint(1, 4) * 2 + I0 if kind < 0.6 else value

    place, tests = index(), [(rng.choice(("lt", "ge", "eq")), index(), rng.randint(-2, 12)) for _ in range(2)]
    mask = both(*(compares(*each) for each in tests))
    x = buffer("x", rng.randint(1, 30))
    if not stays_inside(x, (place,), {name: one(n) for name, n in sizes.items()}, mask):
        return
    compare = {"lt": int.__lt__, "ge": int.__ge__, "eq": int.__eq__}
    for a, b in itertools.product(range(sizes["i0"]), range(sizes["i1"])):
        point = {"i0": one(a), "i1": one(b)}
        if all(compare[how](left.substitute(point).constant, right) for how, left, right in tests):
            assert 0 <= place.substitute(point).constant < elements_of(x).constant


@pytest.mark.parametrize(
    ("place", "shape", "extents", "all_of_it"),
    [
        ((I0, I1), (4, 5), {"i0": 4, "i1": 5}, True),
        ((I1, I0), (5, 4), {"i0": 4, "i1": 5}, True),
        ((I0, I1), (5, 5), {"i0": 4, "i1": 5}, False),
        ((I0, one(0)), (4, 2), {"i0": 4}, False),
        ((I0, one(0)), (4, 1), {"i0": 4}, True),
        ((I0 // 5, I0 % 5), (4, 5), {"i0": 20}, True),
        ((I0 + 1,), (5,), {"i0": 4}, False),
        ((I0 * 2,), (8,), {"i0": 4}, False),
        ((I0,), (4,), {"i0": 4, "i1": 7}, True),
    ],
)
def test_reading_all(
    place: tuple[Index, ...], shape: tuple[int, ...], extents: dict[str, int], all_of_it: bool
) -> None:
    sizes = {name: one(n) for name, n in extents.items()}
    assert reaches_all(place, tuple(map(one, shape)), sizes) is all_of_it
