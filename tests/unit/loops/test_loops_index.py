"""Index algebra: normal form, printing, and every rewrite against brute-force evaluation."""

from __future__ import annotations

import itertools
import random

import pytest

from lampwork.loops.ir.index import (
    ONE,
    ZERO,
    FloorDiv,
    Index,
    Indirect,
    Mod,
    Sym,
    Var,
    as_index,
    bounds,
    is_nonnegative,
    simplify,
)
from lampwork.loops.ir.nodes import Buffer, Load

i, j, k = map(Index.var, "ijk")
s, t = Index.sym("s"), Index.sym("t")


def value(index, env):
    """The value of an index where every variable and size has a number."""
    total = 0
    for monomial, coefficient in index.terms:
        product = coefficient
        for atom in monomial:
            if isinstance(atom, Var | Sym):
                product *= env[atom.name]
            elif isinstance(atom, FloorDiv):
                product *= value(atom.a, env) // value(atom.b, env)
            else:
                assert isinstance(atom, Mod)
                product *= value(atom.a, env) % value(atom.b, env)
        total += product
    return total


def test_equality_is_structural():
    assert i * 2 + j == j + i + i
    assert hash(i * 2 + j) == hash(j + i + i)
    assert (i + 1) * (i - 1) == i * i - 1
    assert i - i == ZERO and as_index(1) == ONE and ZERO != ONE
    assert Index.var("s") != Index.sym("s")
    assert i != 3 and as_index(3) == Index.const(3)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (ZERO, "0"),
        (as_index(-4), "-4"),
        (i * 64 + j + 3, "64*i + j + 3"),
        (i - j * 3 - 1, "i - 3*j - 1"),
        (-(i + 1), "-i - 1"),
        ((i + 1) // 4 * 2, "2*((i + 1)//4)"),
        ((i % 7) * j, "j*(i%7)"),
        (i // 5 + i % 5, "i//5 + i%5"),
        (s * i + t, "i*s + t"),
    ],
)
def test_text(index, text):
    assert str(index) == text


def test_what_is_asked_of_an_index():
    index = i * 64 + j * s + 5
    assert index.variables() == {"i", "j"} and index.symbols() == {"s"}
    assert index.constant == 5 and index.as_int() is None and not index.is_const
    assert as_index(7).as_int() == 7 and ZERO.as_int() == 0 and ZERO.is_const
    assert i.as_var() == "i" and (i * 2).as_var() is None and s.as_var() is None
    assert index.coefficient("i") == as_index(64) and index.coefficient("j") == s
    assert index.coefficient("k") == ZERO
    assert (i * i).coefficient("i") is None and (i // 2).coefficient("i") is None
    assert (i // 2 + j).coefficient("j") == ONE
    assert index.without("i") == j * s + 5 and (i // 2 + j).without("i") == j


def test_divisions_that_need_no_ranges():
    assert i // 1 == i and i % 1 == ZERO
    assert (i * 64 + j) // 64 == i + j // 64
    assert (i * 64 + j) % 64 == j % 64
    assert (i * 8) // 4 == i * 2 and (i * 8) % 4 == ZERO
    assert (i * 4 + j * 8) // 16 == (i + j * 2) // 4
    assert (i * 4 + 1) % 16 == (i % 4) * 4 + 1
    assert i // 3 // 5 == i // 15
    assert i % 12 % 4 == i % 4 and (i % 12) // 4 == (i // 4) % 3
    assert (i * s + j) // s == i + j // s and (i * s) % s == ZERO
    assert (s + t) // (s + t) == ONE
    assert as_index(7) // 2 == as_index(3) and as_index(-7) % 4 == ONE
    with pytest.raises(ValueError, match="positive"):
        _ = i // 0


def test_simplify_uses_ranges():
    extents = {"i": as_index(12), "j": as_index(64), "k": as_index(8)}
    merged = i * 64 + j
    assert simplify(merged // 64, extents) == i and simplify(merged % 64, extents) == j
    assert simplify((merged // 64) * 64 + merged % 64, extents) == merged
    assert simplify((i // 4) * 4 + i % 4, extents) == i
    assert simplify((i // 4) * 12 + (i % 4) * 3, extents) == i * 3
    assert simplify((i * 8 + k) % 16, extents) == (i % 2) * 8 + k
    assert simplify((j // 16) * 16 + (j // 4) % 4 * 4 + j % 4, extents) == j
    assert simplify(i % 20, extents) == i and simplify(i // 20, extents) == ZERO
    assert simplify(i // 4, extents) == i // 4


def test_simplify_with_symbols():
    extents = {"i": t, "j": s}
    merged = i * s + j
    assert simplify(merged // s, extents) == i and simplify(merged % s, extents) == j
    assert simplify(j // (s + 1), extents) == ZERO
    assert simplify(j // (s - 1), extents) != ZERO


def test_bounds():
    extents = {"i": as_index(12), "j": s}
    assert bounds(i * 3 - 5, extents) == (as_index(-5), as_index(28))
    assert bounds(as_index(2) - i, extents) == (as_index(-9), as_index(2))
    assert bounds(j, extents) == (ZERO, s - 1)
    assert bounds(k, extents) is None
    assert bounds(i % 5, extents) == (ZERO, as_index(4)) and bounds(i // 5, extents) == (ZERO, as_index(2))
    assert is_nonnegative(s - 1) and not is_nonnegative(s - 2) and is_nonnegative(s * t - s)


def test_indirect():
    ids = Buffer("ids", "i64", (as_index(9),), (ONE,))
    row = Index.indirect(Load(ids, (i + 1,)), 50)
    index = row * 64 + j
    assert index.variables() == {"i", "j"} and index.coefficient("i") is None
    assert index.coefficient("j") == ONE
    assert str(index) == "j + 64*at(ids[i + 1], 50)"
    moved = index.substitute({"i": k * 2})
    assert moved == Index.indirect(Load(ids, (k * 2 + 1,)), 50) * 64 + j
    assert index.substitute({"i": k * 2}, inside_data=False) == index
    assert bounds(row, {}) == (ZERO, as_index(49))
    (atom,) = index.indirects()
    assert isinstance(atom, Indirect)


def test_substitution_is_simultaneous():
    assert (i * 2 + j).substitute({"i": j, "j": i}) == j * 2 + i
    assert ((i + j) // 4).substitute({"i": j * 4, "j": ZERO}) == j
    index = i * 64 + j
    assert index.substitute({"k": i}) is index


def random_index(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([i, j, k, as_index(rng.randint(0, 9))])
    kind = rng.choice(["add", "add", "scale", "div", "mod", "mul"])
    a = random_index(rng, depth - 1)
    if kind == "add":
        return a + random_index(rng, depth - 1)
    if kind == "scale":
        return a * rng.choice([2, 3, 4, 6, 8, 12])
    if kind == "mul":
        return a * rng.choice([i, j, k])
    divisor = rng.choice([2, 3, 4, 6, 8, 12, 24])
    return a // divisor if kind == "div" else a % divisor


def plain(rng, depth):
    """A random index and the same computation on Python numbers."""
    if depth == 0 or rng.random() < 0.15:
        name = rng.choice(["i", "j", "k", None])
        if name is None:
            number = rng.randint(0, 9)
            return as_index(number), lambda env: number
        return Index.var(name), lambda env: env[name]
    kind = rng.choice(["add", "sub", "scale", "div", "mod", "mul"])
    a, at_a = plain(rng, depth - 1)
    b, at_b = plain(rng, depth - 1)
    number = rng.choice([1, 2, 3, 4, 6, 8, 12, 24])
    if kind == "add":
        return a + b, lambda env: at_a(env) + at_b(env)
    if kind == "sub":
        return a - b, lambda env: at_a(env) - at_b(env)
    if kind == "scale":
        return a * number, lambda env: at_a(env) * number
    if kind == "mul":
        return a * b, lambda env: at_a(env) * at_b(env)
    if kind == "div":
        return a // number, lambda env: at_a(env) // number
    return a % number, lambda env: at_a(env) % number


@pytest.mark.parametrize("seed", range(300))
def test_algebra_against_numbers(seed):
    """Building, simplifying, bounding and substituting a random index never changes what it is worth."""
    rng = random.Random(seed)
    index, reference = plain(rng, rng.randint(1, 5))
    sizes = {name: rng.choice([1, 2, 3, 4, 6, 8]) for name in "ijk"}
    extents = {name: as_index(size) for name, size in sizes.items()}
    simple = simplify(index, extents)
    limits = bounds(index, extents)
    again = simplify(simple, extents)
    moved = index.substitute({"i": k * 2 + 1})
    for point in itertools.product(*(range(size) for size in sizes.values())):
        env = dict(zip("ijk", point, strict=True))
        expected = reference(env)
        assert value(index, env) == expected
        assert value(simple, env) == expected and value(again, env) == expected
        if limits is not None:
            assert limits[0].as_int() <= expected <= limits[1].as_int()
        assert value(moved, env) == value(index, {**env, "i": 2 * env["k"] + 1})


@pytest.mark.parametrize("seed", range(60))
def test_reshapes_there_and_back(seed):
    """Splitting and merging dimensions at random and back gives the plain index again."""
    rng = random.Random(seed)
    shape = [rng.choice([1, 2, 3, 4, 6]) for _ in range(3)]
    names = ["i", "j", "k"]
    extents = {name: as_index(size) for name, size in zip(names, shape, strict=True)}
    flat = ZERO
    for name, size in zip(names, shape, strict=True):
        flat = flat * size + Index.var(name)
    total = shape[0] * shape[1] * shape[2]
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    middle = rng.choice(divisors)
    parts = [flat // middle, flat % middle]
    back = parts[0] * middle + parts[1]
    assert simplify(back, extents) == simplify(flat, extents)
    again = [back // (shape[1] * shape[2]), (back // shape[2]) % shape[1], back % shape[2]]
    for position, name, size in zip(again, names, shape, strict=True):
        expected = ZERO if size == 1 else Index.var(name)
        simple = simplify(position, extents).substitute({n: ZERO for n, e in extents.items() if e == ONE})
        assert simple == expected, (shape, middle, str(position), str(simple))


def test_deep_expressions_stay_small():
    rng = random.Random(1)
    for _ in range(50):
        index = random_index(rng, 6)
        assert len(simplify(index, {name: as_index(8) for name in "ijk"}).terms) < 200
