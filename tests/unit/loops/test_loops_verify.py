"""The verifier names what is wrong; each rule has one definition or kernel that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loops_build import ACC, I, at, axes, buffer, linear, op, pointwise, reduce

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Const,
    IndexValue,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    ReduceLoop,
    Reducer,
    Store,
)
from lampwork.loops.ir.verify import verify_definitions, verify_kernel

X, Y = buffer("x", 4, 6), buffer("y", 4, 6)
GOOD = pointwise(Y, op("exp", at(X)))


def test_good_definitions_pass():
    top, w, c = buffer("top", 4), buffer("w", 8, 6), buffer("c", 4, 8)
    verify_definitions([GOOD, reduce(top, (6,), "max", at(Y)), linear(c, Y, w, 4, 8, 6)])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (at(X, I[0], I[5]), "loop variable i5 is not bound"),
        (Load(X, (I[0],)), "read with 1 indices instead of 2"),
        (Op("add", (at(X),), "f32"), "add takes 2 operands, got 1"),
        (Op("frobnicate", (at(X),), "f32"), "no operation frobnicate"),
        (Op("add", (at(X), Const(1, "i64")), "f32"), "operands of add are f32, i64"),
        (Op("add", (at(X), at(X)), "f64"), "result of add is f32, not f64"),
        (Op("lt", (at(X), at(X)), "f32"), "result of lt is bool, not f32"),
        (Op("where", (at(X), at(X), at(X)), "f32"), "condition of where is f32"),
        (Op("require", (at(X), at(X)), "f32"), "condition of require is f32"),
        (Op("exp", (IndexValue(I[0], "i64"),), "i64"), "exp of i64"),
        (Local("acc", "f32"), "local acc is not bound"),
        (Load(X, (I[0], I[1]), at(X)), "mask of a load of x is f32"),
        (Load(X, (I[0], Index.indirect(at(X), 6))), "index is taken from f32 data"),
    ],
)
def test_bad_values(value, message):
    with pytest.raises(InvalidLoopsError, match=message):
        verify_definitions([pointwise(Y, value)])


def test_bad_definitions():
    with pytest.raises(InvalidLoopsError, match="y is made twice"):
        verify_definitions([GOOD, GOOD])
    with pytest.raises(InvalidLoopsError, match="z: y is read before it is made"):
        verify_definitions([pointwise(buffer("z", 4, 6), at(Y)), GOOD])
    with pytest.raises(InvalidLoopsError, match="expected 2 indices, got 1"):
        verify_definitions([replace(GOOD, index=(I[0],))])
    with pytest.raises(InvalidLoopsError, match="i7 is not bound in the store index"):
        verify_definitions([replace(GOOD, index=(I[0], I[7]))])
    with pytest.raises(InvalidLoopsError, match="two axes have one name"):
        verify_definitions([replace(GOOD, axes=(*axes(4), *axes(6)))])
    with pytest.raises(InvalidLoopsError, match="depends on loop variables"):
        verify_definitions([replace(GOOD, axes=(Axis("i0", I[1]), Axis("i1", as_index(6))))])


FLAT_X, FLAT_Y = (Buffer(name, "f32", (as_index(24),), (as_index(1),)) for name in "xy")
STORE = Store(FLAT_Y, (I[0],), Load(FLAT_X, (I[0],)))
FLAT = Loop(Axis("i0", as_index(24)), "parallel-vector", (STORE,))


def kernel(*body, params=(FLAT_X, FLAT_Y), sizes=()):
    return Kernel("k", params, sizes, (), body)


def test_good_kernels_pass():
    verify_kernel(kernel(FLAT))
    total = ReduceLoop(
        Axis("i0", as_index(24)), "vector", (), (Reducer("a", "sum", Load(FLAT_X, (I[0],)), "f32"),)
    )
    verify_kernel(kernel(total, Store(FLAT_Y, (as_index(0),), Local("a", "f32"))))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (kernel(FLAT, params=(FLAT_Y,)), "x is neither a parameter nor scratch"),
        (kernel(FLAT, params=(FLAT_X, FLAT_X, FLAT_Y)), "two buffers have one name"),
        (kernel(STORE), "loop variable i0 is not bound"),
        (kernel(FLAT, FLAT), "parallel loop must stand alone"),
        (
            kernel(Loop(Axis("i1", as_index(2)), "serial", (FLAT,))),
            "parallel loop i0 is not outermost",
        ),
        (
            kernel(Loop(Axis("i1", as_index(2)), "vector", (replace(FLAT, kind="vector"),))),
            "vector loop i0 inside a vector loop",
        ),
        (
            kernel(Loop(Axis("i0", as_index(2)), "serial", (replace(FLAT, kind="serial"),))),
            "i0 is bound by two loops",
        ),
        (
            kernel(replace(FLAT, body=(Store(FLAT_Y, (I[0],), Local("t", "f32")),))),
            "local t is not bound",
        ),
        (
            kernel(replace(FLAT, body=(Store(FLAT_Y, (I[0],), Const(1, "i64")),))),
            "i64 is stored to y of f32",
        ),
        (
            kernel(replace(FLAT, body=(Store(FLAT_Y, (I[0] + Index.sym("s"),), Const(1.0, "f32")),))),
            "size s is not a parameter",
        ),
        (kernel(replace(FLAT, kind="vector", limit=I[3])), "limit of i0 is not bound"),
    ],
)
def test_bad_kernels(bad, message):
    with pytest.raises(InvalidLoopsError, match=message):
        verify_kernel(bad)


def test_locals_end_with_their_loop():
    let = Loop(Axis("i0", as_index(2)), "serial", (Let("t", Const(1.0, "f32")),))
    with pytest.raises(InvalidLoopsError, match="local t is not bound"):
        verify_kernel(kernel(let, Store(FLAT_Y, (as_index(0),), Local("t", "f32"))))
    assert ACC.name == "acc"
