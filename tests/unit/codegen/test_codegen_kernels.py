"""Kernels as fusion and scheduling make them: machine code against the interpreter of definitions."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_support import NUMPY, axis, const, dense, generator, load, op, run_kernel, var
from scalar_target import target_named

from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.kernel import parallel_extent
from lampwork.loops.ir.nodes import (
    Buffer,
    Const,
    IndexValue,
    Kernel,
    Load,
    Local,
    Loop,
    Map,
    Op,
    Reduce,
    Scan,
    Store,
)
from lampwork.loops.reference.evaluate import evaluate_definitions
from lampwork.loops.reference.evaluate_kernel import from_memory, to_memory
from lampwork.loops.schedule.schedule import schedule


def strided(name: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Buffer:
    return Buffer(name, dtype, tuple(map(as_index, shape)), tuple(map(as_index, strides)))


def ivars(n: int, first: int = 0) -> tuple[Index, ...]:
    return tuple(var(f"i{k}") for k in range(first, first + n))


def axes(*sizes: int, first: int = 0):
    return tuple(axis(f"i{first + k}", size) for k, size in enumerate(sizes))


def at(buffer: Buffer, *index) -> Load:
    return load(buffer, *(index or ivars(len(buffer.shape))))


def pointwise(out: Buffer, value) -> Map:
    sizes = [s.as_int() for s in out.shape]
    return Map(out, axes(*sizes), ivars(len(sizes)), value)


def reduce(out: Buffer, over: tuple[int, ...], how: str, value, finish=None) -> Reduce:
    sizes = [s.as_int() for s in out.shape]
    return Reduce(out, axes(*sizes), axes(*over, first=len(sizes)), ivars(len(sizes)), how, value, finish)


def random_array(buffer: Buffer, rng: np.random.Generator) -> np.ndarray:
    shape = tuple(s.as_int() for s in buffer.shape)
    if buffer.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if buffer.dtype[0] in "iu":
        return rng.integers(0, 5, shape).astype(NUMPY[buffer.dtype])
    return rng.standard_normal(shape).astype(NUMPY[buffer.dtype])


def check(definitions, inputs: list[Buffer], isa: str, *, rtol: float = 2e-6, atol: float = 1e-6, given=None):
    """All outs of `definitions`, from machine code in parallel ranges of several sizes, as the definitions say."""
    rng = np.random.default_rng(3)
    arrays = {b.name: random_array(b, rng) for b in inputs} | dict(given or {})
    want = evaluate_definitions(definitions, arrays)
    outs = {d.out.name: d.out for d in definitions}
    buffers = {b.name: b for b in inputs} | outs
    last = definitions[-1].out.name
    groups, _ = fuse(definitions, frozenset([last]), target_named(isa))
    for pieces in (1, 3):
        memory = {name: to_memory(buffers[name], array) for name, array in arrays.items()}
        for number, group in enumerate(groups):
            for kernel in schedule(group, f"k{number}", target_named(isa)):
                for param in kernel.params:
                    if param.name not in memory:
                        size = param.shape[0].as_int()
                        memory[param.name] = np.full(size, 99, NUMPY[param.dtype])
                extent = parallel_extent(kernel).as_int()
                cuts = sorted({round(extent * k / pieces) for k in range(pieces + 1)} | {0, extent})
                flat = [memory[param.name] for param in kernel.params]
                for begin, end in zip(cuts, cuts[1:]):
                    assert run_kernel(kernel, isa, flat, begin=begin, end=end) == 0
        got = from_memory(outs[last], memory[last])
        np.testing.assert_allclose(got, want[last], rtol=rtol, atol=atol, err_msg=str(kernel))


def test_gelu_chain(isa: str) -> None:
    x, y = dense("x", "f32", 37, 51), dense("y", "f32", 37, 51)
    half = Const(0.5, "f32")
    erf = op("erf", op("mul", at(x), Const(0.70710678, "f32")))
    gelu = op("mul", op("mul", at(x), half), op("add", erf, Const(1.0, "f32")))
    check([pointwise(y, op("mul", gelu, op("sigmoid", at(x))))], [x], isa)


@pytest.mark.parametrize("n", [1, 2, 5, 16, 100, 256, 1000])
def test_softmax(n: int, isa: str) -> None:
    x, m, e, s, y = (
        dense(name, "f32", *shape) for name, shape in zip("xmesy", [(7, n), (7,), (7, n), (7,), (7, n)])
    )
    i, j = ivars(2)
    definitions = [
        reduce(m, (n,), "max", at(x, i, j)),
        pointwise(e, op("exp", op("sub", at(x), at(m, i)))),
        reduce(s, (n,), "sum", at(e, i, j)),
        pointwise(y, op("div", at(e), at(s, i))),
    ]
    check(definitions, [x], isa)


@pytest.mark.parametrize("n", [10, 64, 768, 1023])
def test_layer_norm_with_residual(n: int, isa: str) -> None:
    x, r, w, h = (
        dense("x", "f32", 5, n),
        dense("r", "f32", 5, n),
        dense("w", "f32", n),
        dense("h", "f32", 5, n),
    )
    mean, variance, y = dense("mean", "f32", 5), dense("variance", "f32", 5), dense("y", "f32", 5, n)
    i, j = ivars(2)
    acc = Op("div", (Local("acc", "f32"), Const(float(n), "f32")), "f32")
    centered = op("sub", at(h), at(mean, i))
    definitions = [
        pointwise(h, op("add", at(x), at(r))),
        reduce(mean, (n,), "sum", at(h, i, j), acc),
        reduce(variance, (n,), "sum", op("mul", centered, centered), acc),
        pointwise(
            y,
            op(
                "mul",
                op("mul", centered, op("rsqrt", op("add", at(variance, i), Const(1e-5, "f32")))),
                at(w, j),
            ),
        ),
    ]
    check(definitions, [x, r, w], isa, rtol=1e-5, atol=1e-5)


OPERATORS = ["sum", "prod", "max", "min", "argmax", "argmin"]
REDUCTIONS = [(how, dtype) for how in OPERATORS for dtype in ("f32", "f64", "i64", "i32")]


@pytest.mark.parametrize(("how", "dtype"), [*REDUCTIONS, ("any", "bool"), ("all", "bool")])
def test_row_and_column_reductions(how: str, dtype: str, isa: str) -> None:
    result = "i64" if how.startswith("arg") else dtype
    i, j = ivars(2)
    x = dense("x", dtype, 9, 77)
    rows = dense("y", result, 9)
    check([reduce(rows, (77,), how, at(x, i, j))], [x], isa, rtol=1e-5)
    columns = dense("y", result, 77)
    check([reduce(columns, (9,), how, at(x, j, i))], [x], isa, rtol=1e-5)
    everything = dense("y", result)
    check([reduce(everything, (9, 77), how, at(x, i, j))], [x], isa, rtol=1e-5)


@pytest.mark.parametrize("how", ["max", "min", "argmax", "argmin"])
def test_nan_wins(how: str, isa: str) -> None:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((40, 61)).astype(np.float32)
    for row in range(20):
        array[row, rng.integers(0, 61, row % 4)] = np.nan
    array[20] = -np.inf
    array[21] = np.inf
    x, y = dense("x", "f32", 40, 61), dense("y", "i64" if how.startswith("arg") else "f32", 40)
    i, j = ivars(2)
    check([reduce(y, (61,), how, at(x, i, j))], [x], isa, given={"x": array})
    z = dense("z", y.dtype, 61)
    check([reduce(z, (40,), how, at(x, j, i))], [x], isa, given={"x": array})


def test_long_float32_sums_keep_their_digits(isa: str) -> None:
    n = 1_000_003
    x, y = dense("x", "f32", n), dense("y", "f32")
    array = (np.random.default_rng(1).random(n) + 1).astype(np.float32)
    want = array.astype(np.float64).sum()
    groups, _ = fuse([reduce(y, (n,), "sum", at(x, var("i0")))], frozenset("y"), target_named(isa))
    memory = {"x": array, "y": np.zeros(1, np.float32)}
    for kernel in schedule(groups[0], "k", target_named(isa)):
        for param in kernel.params:
            memory.setdefault(param.name, np.zeros(param.shape[0].as_int(), np.float32))
        flat = [memory[param.name] for param in kernel.params]
        assert run_kernel(kernel, isa, flat, end=parallel_extent(kernel).as_int()) == 0
    assert abs(memory["y"][0] - want) / want < 3e-7


def _prefetches(shape: tuple[int, int], isa: str) -> int:
    """How many lines the kernel that sums rows fetches ahead in a turn of its loop."""
    x, y = dense("x", "f32", *shape), dense("y", "f32", shape[0])
    groups, _ = fuse([reduce(y, shape[1:], "sum", at(x, *ivars(2)))], frozenset("y"), target_named(isa))
    (kernel,) = schedule(groups[0], "k", target_named(isa))
    return generator(isa).texts([kernel])[0].count("call void @llvm.prefetch")


def test_long_rows_are_fetched_ahead(isa: str) -> None:
    """Every line once: 4 vectors a turn."""
    vector = target_named(isa).vector_bytes
    assert _prefetches((256, 1024), isa) == 4 * vector // 64
    assert _prefetches((255, 1024), isa) == 0, "what stays in a core's cache"
    assert _prefetches((1024, 1000), isa) == 0, "short rows"
    x, y = dense("x", "f32", 250, 1060), dense("y", "f32", 250)
    check([reduce(y, (1060,), "sum", at(x, *ivars(2)))], [x], isa, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 48), (7, 37), (3, 5)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "bool"])
def test_transposes(shape: tuple[int, int], dtype: str, isa: str) -> None:
    m, n = shape
    x, y = dense("x", dtype, m, n), dense("y", dtype, n, m)
    i, j = ivars(2)
    check([pointwise(y, at(x, j, i))], [x], isa)


def test_broadcasts_and_strides(isa: str) -> None:
    x, b = strided("x", "f32", (6, 40), (97, 2)), dense("b", "f32", 40)
    c, y = dense("c", "f32", 6), dense("y", "f32", 6, 40)
    i, j = ivars(2)
    value = op("add", op("mul", at(x), at(b, j)), op("add", at(c, i), at(b, as_index(39) - j)))
    check([pointwise(y, value)], [x, b, c], isa)


def test_head_split(isa: str) -> None:
    x, y = dense("x", "f32", 9, 64), dense("y", "f32", 4, 9, 16)
    i, j = ivars(2)
    check([Map(y, axes(9, 64), (j // 16, i, j % 16), at(x))], [x], isa)


def test_causal_mask(isa: str) -> None:
    x, y = dense("x", "f32", 33, 33), dense("y", "f32", 33, 33)
    i, j = ivars(2)
    below = op("le", IndexValue(j, "i64"), IndexValue(i, "i64"), dtype="bool")
    check([pointwise(y, op("where", below, at(x), Const(float("-inf"), "f32")))], [x], isa)


def test_padding(isa: str) -> None:
    x, y = dense("x", "f32", 5, 21), dense("y", "f32", 5, 30)
    i, j = ivars(2)
    at_j = IndexValue(j - 4, "i64")
    inside = op(
        "and", op("ge", at_j, Const(0, "i64"), dtype="bool"), op("lt", at_j, Const(21, "i64"), dtype="bool")
    )
    check([pointwise(y, load(x, i, j - 4, mask=inside, other=7))], [x], isa)


def test_embedding(isa: str) -> None:
    table, ids, y = dense("t", "f32", 50, 24), dense("ids", "i64", 6), dense("y", "f32", 6, 24)
    i, j = ivars(2)
    row = Index.indirect(at(ids, i), 50)
    given = {"ids": np.array([3, 49, 0, 3, 17, 20], np.int64)}
    check([pointwise(y, load(table, row, j))], [table, ids], isa, given=given)


def test_gather_along_the_vector(isa: str) -> None:
    table, ids, y = dense("t", "f32", 50), dense("ids", "i64", 61), dense("y", "f32", 61)
    given = {"ids": np.random.default_rng(2).integers(0, 50, 61)}
    row = Index.indirect(at(ids, var("i0")), 50)
    check([pointwise(y, load(table, row))], [table, ids], isa, given=given)


@pytest.mark.parametrize("how", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_scans(how: str, dtype: str, isa: str) -> None:
    x, y = dense("x", dtype, 7, 33), dense("y", dtype, 7, 33)
    i, j = ivars(2)
    check([Scan(y, axes(7), axis("i1", 33), (i, j), how, at(x))], [x], isa)
    check([Scan(y, axes(33), axis("i1", 7), (j, i), how, at(x, j, i))], [x], isa)


def test_mixed_dtypes(isa: str) -> None:
    x, k, m, y = dense("x", "f32", 83), dense("k", "i64", 83), dense("m", "bool", 83), dense("y", "f64", 83)
    wide = op("add", op("cast", at(x), dtype="f64"), op("cast", at(k), dtype="f64"))
    check([pointwise(y, op("where", at(m), wide, Const(1.5, "f64")))], [x, k, m], isa)
    z = dense("z", "bool", 83)
    check([pointwise(z, op("and", at(m), op("gt", at(x), Const(0.0, "f32"), dtype="bool")))], [x, m], isa)


@pytest.mark.parametrize("bad", [None, 0, 31, 82])
def test_require_fails_the_kernel(bad: int | None, isa: str) -> None:
    """Also in the tail of the loop, and not for the lanes beyond its end."""
    x, y = dense("x", "f32", 83), dense("y", "f32", 83)
    positive = op("gt", at(x), Const(0.0, "f32"), dtype="bool")
    (group,), _ = fuse([pointwise(y, op("require", at(x), positive))], frozenset(["y"]), target_named(isa))
    (kernel,) = schedule(group, "k", target_named(isa))
    given, out = np.ones(83, np.float32), np.zeros(83, np.float32)
    if bad is not None:
        given[bad] = -1
    memory = {"x": given, "y": out}
    status = run_kernel(kernel, isa, [memory[p.name] for p in kernel.params], begin=0, end=83)
    assert status == int(bad is not None)
    np.testing.assert_array_equal(out, given)


@pytest.mark.parametrize("dtype", ["bf16", "i16", "u8", "i8", "f32"])
def test_a_tail_of_one_element_writes_no_other(isa: str, dtype: str) -> None:
    """LLVM stored 32 bits where a masked store of one 16-bit lane was asked for."""
    x, y = dense("x", dtype, 33), dense("y", dtype, 33)
    value = op("add", load(x, var("i")), load(x, var("i"))) if dtype != "bf16" else load(x, var("i"))
    if dtype == "bf16":
        value = op("cast", op("mul", op("cast", value, dtype="f32"), const(1.0), dtype="f32"), dtype="bf16")
    body = Loop(axis("i", 33), "vector", (Store(y, (var("i"),), value),))
    given, made = np.zeros(33, NUMPY[dtype]), np.full(40, 7, NUMPY[dtype])
    assert run_kernel(Kernel("tail", (x, y), (), (), (body,)), isa, [given, made]) == 0
    assert list(made) == [0] * 33 + [7] * 7
