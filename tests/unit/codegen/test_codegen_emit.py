"""The emitter's own cases, in kernels written by hand: addresses, masks, tails, scratch, sizes, errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from codegen_support import axis, const, dense, generator, kernel, load, op, pointwise, run_kernel, var
from scalar_target import target_named

from lampwork.codegen.llvm.compile import KernelCompiler
from lampwork.codegen.llvm.emit_kernel import emit_kernel
from lampwork.codegen.llvm.generator import LlvmGenerator, llvm_generator
from lampwork.codegen.llvm.isa.x86 import describe, host_isa
from lampwork.codegen.llvm.jit import Jit, as_function
from lampwork.codegen.llvm.structure import structure
from lampwork.codegen.target import MachineFunction
from lampwork.errors import CodegenError, OptionError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import (
    Const,
    IndexValue,
    Kernel,
    Let,
    Local,
    Loop,
    ReduceLoop,
    Reducer,
    ScanLoop,
    Store,
)

N = 103


@pytest.mark.parametrize(("begin", "end"), [(0, 103), (3, 103), (5, 6), (17, 17), (90, 102), (0, 16)])
def test_any_range_of_a_flat_loop(begin: int, end: int, isa: str) -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    a = np.arange(N, dtype=np.float32)
    got = np.full(N, -1, np.float32)
    assert (
        run_kernel(
            pointwise(op("add", load(x, var("i")), const(1.0)), y, [x, y], N),
            isa,
            [a, got],
            begin=begin,
            end=end,
        )
        == 0
    )
    want = np.full(N, -1, np.float32)
    want[begin:end] = a[begin:end] + 1
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["f64", "f32", "i64", "i32", "i16", "i8", "u8", "bool", "f16", "bf16"])
@pytest.mark.parametrize("step", [1, -1, 2, -3, 0])
def test_strided_loads_and_stores(dtype: str, step: int, isa: str) -> None:
    from codegen_support import NUMPY

    n = 3 * N
    x, y = dense("x", dtype, n), dense("y", dtype, n)
    rng = np.random.default_rng(1)
    a = rng.integers(0, 2 if dtype == "bool" else 100, n).astype(NUMPY[dtype])
    first = (N - 1) * -step if step < 0 else 0
    place = var("i") * step + first
    got = np.zeros(n, NUMPY[dtype])
    assert run_kernel(pointwise(load(x, place), y, [x, y], N), isa, [a, got], end=N) == 0
    np.testing.assert_array_equal(got[:N], a[first + step * np.arange(N)])
    if step:
        got[:] = 0
        loop = Loop(axis("i", N), "parallel-vector", (Store(y, (place,), load(x, var("i"))),))
        assert run_kernel(kernel("scattered", [x, y], [loop]), isa, [a, got], end=N) == 0
        want = np.zeros_like(got)
        want[first + step * np.arange(N)] = a[:N]
        np.testing.assert_array_equal(got, want)


def test_masked_loads_read_nothing_where_the_mask_is_false(isa: str) -> None:
    """The address of the lanes that are masked out is far outside of any memory."""
    x, y = dense("x", "f32", 10), dense("y", "f32", N)
    i = var("i")
    inside = op("lt", IndexValue(i, "i64"), Const(10, "i64"), dtype="bool")
    a = np.arange(10, dtype=np.float32)
    for place in (i, i * 1_000_000 % 10_000_000_000 * 0 + i * 1, i * 2 - i):
        got = np.zeros(N, np.float32)
        run_kernel(pointwise(load(x, place, mask=inside, other=-2), y, [x, y], N), isa, [a, got], end=N)
        np.testing.assert_array_equal(got, np.concatenate([a, np.full(N - 10, -2)]))
    far = pointwise(
        load(x, i * 1_000_000_000, mask=op("lt", IndexValue(i, "i64"), Const(1, "i64"), dtype="bool")),
        y,
        [x, y],
        N,
    )
    got = np.ones(N, np.float32)
    run_kernel(far, isa, [a, got], end=N)
    np.testing.assert_array_equal(got, np.zeros(N))


def test_a_scalar_load_under_a_scalar_mask(isa: str) -> None:
    x, y = dense("x", "f32", 4), dense("y", "f32", 8, 32)
    r, j = var("r"), var("j")
    inside = op("lt", IndexValue(r, "i64"), Const(4, "i64"), dtype="bool")
    row = Loop(axis("j", 32), "vector", (Store(y, (r, j), load(x, r, mask=inside, other=9)),))
    a = np.arange(4, dtype=np.float32)
    got = np.zeros((8, 32), np.float32)
    assert (
        run_kernel(kernel("rows", [x, y], [Loop(axis("r", 8), "parallel", (row,))]), isa, [a, got], end=8)
        == 0
    )
    np.testing.assert_array_equal(got[:, 5], [0, 1, 2, 3, 9, 9, 9, 9])


@pytest.mark.parametrize("bad", [-1, 50, 2**40, -(2**63)])
def test_an_index_out_of_range_is_reported(bad: int, isa: str) -> None:
    table, ids, y = dense("t", "f32", 50), dense("ids", "i64", N), dense("y", "f32", N)
    k = pointwise(load(table, Index.indirect(load(ids, var("i")), 50)), y, [table, ids, y], N)
    t, a, got = np.arange(50, dtype=np.float32), np.arange(N, dtype=np.int64) % 50, np.zeros(N, np.float32)
    assert run_kernel(k, isa, [t, a, got], end=N) == 0
    np.testing.assert_array_equal(got, t[a])
    for place in (0, 40, N - 1):
        a[place] = bad
        assert run_kernel(k, isa, [t, a, got], end=N) == 1
        assert run_kernel(k, isa, [t, a, got], begin=place + 1, end=N) == 0
        a[place] = 0


def test_masked_indices_are_not_checked(isa: str) -> None:
    table, ids, y = dense("t", "f32", 50), dense("ids", "i64", N), dense("y", "f32", N)
    at = load(ids, var("i"))
    valid = op("ge", at, Const(0, "i64"), dtype="bool")
    k = pointwise(load(table, Index.indirect(at, 50), mask=valid, other=-1), y, [table, ids, y], N)
    t, a, got = (
        np.arange(50, dtype=np.float32),
        np.arange(N, dtype=np.int64) % 60 - 10,
        np.zeros(N, np.float32),
    )
    assert run_kernel(k, isa, [t, a, got], end=N) == 0
    np.testing.assert_array_equal(got, np.where(a < 0, -1, t[np.maximum(a, 0)]))


def test_scatter_through_an_index(isa: str) -> None:
    x, ids, y = dense("x", "f32", N), dense("ids", "i64", N), dense("y", "f32", N)
    body = Store(y, (Index.indirect(load(ids, var("i")), N),), load(x, var("i")))
    k = kernel("scatter", [x, ids, y], [Loop(axis("i", N), "parallel-vector", (body,))])
    rng = np.random.default_rng(4)
    a, at, got = rng.random(N, np.float32), rng.permutation(N), np.zeros(N, np.float32)
    assert run_kernel(k, isa, [a, at, got], end=N) == 0
    want = np.zeros_like(got)
    want[at] = a
    np.testing.assert_array_equal(got, want)


def row_sum(n: Index | int, scratch_first: bool, x, y, s) -> Kernel:
    """y[r, j] = (x[r, j] + 1) / sum_j (x[r, j] + 1), the first value kept in scratch."""
    r, j = var("r"), var("j")
    value = op("add", load(x, r, j), const(1.0))
    body = [
        ReduceLoop(
            axis("j", n),
            "vector",
            (Let("v", value), Store(s, (j,), Local("v", "f32"))),
            (Reducer("t", "sum", Local("v", "f32"), "f32"),),
        ),
        Loop(axis("j", n), "vector", (Store(y, (r, j), op("div", load(s, j), Local("t", "f32"))),)),
    ]
    sizes = tuple(sorted(x.shape[0].symbols() | x.shape[1].symbols()))
    return kernel("row_sum", [x, y], [Loop(axis("r", x.shape[0]), "parallel", tuple(body))], [s], sizes)


@pytest.mark.parametrize("n", [1, 15, 64, 1000, 9000])
@pytest.mark.parametrize("symbolic", [False, True])
def test_scratch_on_the_stack_and_on_the_heap(n: int, symbolic: bool, isa: str) -> None:
    rows, columns = (Index.sym("m"), Index.sym("n")) if symbolic else (Index.const(3), Index.const(n))
    x, y, s = dense("x", "f32", rows, columns), dense("y", "f32", rows, columns), dense("s", "f32", columns)
    k = row_sum(columns, True, x, y, s)
    a = np.random.default_rng(n).random((3, n), np.float32)
    got = np.zeros_like(a)
    for begin, end in ((0, 1), (1, 3)):
        assert run_kernel(k, isa, [a, got], begin=begin, end=end, sizes=(3, n) if symbolic else ()) == 0
    want = (a.astype(np.float64) + 1) / (a.astype(np.float64) + 1).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert ("aligned_alloc" in emit_kernel(k, target_named(isa))) == (symbolic or n > 4096)


def test_a_limit_cuts_the_last_block(isa: str) -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    start = var("b") * 32
    inner = Loop(
        axis("v", 32),
        "vector",
        (Store(y, (start + var("v"),), load(x, start + var("v"))),),
        Index.const(N) - start,
    )
    a = np.random.default_rng(0).random(N, np.float32)
    got = np.zeros(N + 32, np.float32)
    assert (
        run_kernel(kernel("blocks", [x, y], [Loop(axis("b", 4), "parallel", (inner,))]), isa, [a, got], end=4)
        == 0
    )
    np.testing.assert_array_equal(got[:N], a)
    np.testing.assert_array_equal(got[N:], 0)


def test_unrolled_loops_and_nested_reductions(isa: str) -> None:
    x, y = dense("x", "f32", 4, 3, 5), dense("y", "f32", 4)
    inner = ReduceLoop(
        axis("j", 5), "serial", (), (Reducer("s", "sum", load(x, var("r"), var("i"), var("j")), "f32"),)
    )
    outer = ReduceLoop(axis("i", 3), "serial", (inner,), (Reducer("m", "max", Local("s", "f32"), "f32"),))
    body = (outer, Store(y, (var("r"),), Local("m", "f32")))
    a = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    for kind in ("parallel", "serial", "vector"):
        got = np.zeros(4, np.float32)
        assert (
            run_kernel(
                kernel(f"nested_{kind}", [x, y], [Loop(axis("r", 4), kind, body)]), isa, [a, got], end=4
            )
            == 0
        )
        np.testing.assert_allclose(got, a.astype(np.float64).sum(2).max(1), rtol=1e-5)


def test_division_in_indices(isa: str) -> None:
    """Aligned blocks stay vector loads; others become gathers."""
    x, y = dense("x", "f32", 640), dense("y", "f32", 640)
    a = np.random.default_rng(0).random(640, np.float32)
    i = np.arange(640)
    for place, index in (
        (var("i") // 64 + var("i") % 64 * 10, i // 64 + i % 64 * 10),
        (var("i") // 64 * 64 + (var("i") + 3) % 64, i // 64 * 64 + (i + 3) % 64),
        ((var("i") % 32) * 20 + var("i") // 32, i % 32 * 20 + i // 32),
        (var("i") // 7, i // 7),
    ):
        got = np.zeros(640, np.float32)
        k = kernel(
            "divided", [x, y], [Loop(axis("i", 640), "vector", (Store(y, (var("i"),), load(x, place)),))]
        )
        assert run_kernel(k, isa, [a, got]) == 0
        np.testing.assert_array_equal(got, a[index])
    whole = load(x, var("i") // 64 * 64 + var("i") % 64)
    k = kernel("aligned", [x, y], [Loop(axis("i", 640), "vector", (Store(y, (var("i"),), whole),))])
    assert "gather" not in emit_kernel(k, target_named(isa))


def test_cummax_remembers_nan(isa: str) -> None:
    x, y = dense("x", "f32", 40), dense("y", "f32", 40)
    scan = ScanLoop(
        axis("i", 40), (), "m", "max", load(x, var("i")), "f32", (Store(y, (var("i"),), Local("m", "f32")),)
    )
    a = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    a[20] = np.nan
    got = np.zeros(40, np.float32)
    assert run_kernel(kernel("scan", [x, y], [scan]), isa, [a, got]) == 0
    np.testing.assert_array_equal(got, np.maximum.accumulate(a))


def test_shared_subexpressions_are_computed_once(isa: str) -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    value = load(x, var("i"))
    for _ in range(40):  # 2^40 nodes as a tree
        value = op("mul", op("add", value, const(1.0)), value)
        value = op("minimum", value, const(2.0))
    ir = emit_kernel(pointwise(value, y, [x, y], N), target_named(isa))
    assert ir.count("fmul") == (40 if isa == "scalar" else 80)  # in the loop, and in a tail of vectors


def test_equal_kernels_are_compiled_once() -> None:
    def make(prefix: str, factor: float) -> Kernel:
        x, y = dense(f"{prefix}x", "f32", N), dense(f"{prefix}y", "f32", N)
        i = var(f"{prefix}i")
        body = Store(y, (i,), op("mul", load(x, i), const(factor)))
        return Kernel(
            f"{prefix}k", (x, y), (), (), (Loop(axis(f"{prefix}i", N), "parallel-vector", (body,)),)
        )

    one, same, other = make("a", 2.0), make("b", 2.0), make("c", -2.0)
    assert structure(one) == structure(same) != structure(other)
    compiled = KernelCompiler(Jit(host_isa())).compile([one, same, other])
    assert compiled["ak"] == compiled["bk"] != compiled["ck"]
    assert len({id(function.owner) for function in compiled.values()}) == 1
    first, second = (llvm_generator(host_isa()).compile_kernels([each]) for each in (one, same))
    assert first["ak"] == second["bk"]


def test_kernels_are_taken_once_templates_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made = LlvmGenerator(host_isa())
    order: list[str] = []
    start = made._templates.start

    def starting(*given: Any) -> Any:
        order.append("templates")
        return start(*given)

    def kernels() -> Iterator[Kernel]:
        order.append("kernels")
        x, y = dense("x", "f32", N), dense("y", "f32", N)
        yield pointwise(op("neg", load(x, var("i"))), y, [x, y], N, "k")

    monkeypatch.setattr(made._templates, "start", starting)
    functions, templates = made.compile(kernels(), ())
    assert order == ["templates", "kernels"] and list(functions) == ["k"] and templates == []


def test_kernels_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that makes functions for ever does not grow; a batch is served whole though it has more kernels."""
    monkeypatch.setattr("lampwork.codegen.llvm.compile.REMEMBERED", 2)
    compiler = KernelCompiler(Jit(host_isa()))
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    kernels = [
        pointwise(op("add", load(x, var("i")), const(float(k))), y, [x, y], N, f"k{k}") for k in range(5)
    ]
    first = compiler.compile(kernels)
    assert len(first) == 5 and len(compiler._known) == 2
    last, again = compiler.compile([kernels[4]]), compiler.compile([kernels[0]])
    assert last["k4"] == first["k4"] and again["k0"] != first["k0"]


def test_zeros_of_both_signs_are_different_kernels() -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    kernels = [pointwise(op("add", load(x, var("i")), const(zero)), y, [x, y], N) for zero in (0.0, -0.0)]
    assert structure(kernels[0]) != structure(kernels[1])


def test_object_code_can_be_kept_and_loaded_again(isa: str) -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    k = pointwise(op("exp", load(x, var("i"))), y, [x, y], N, "kept")
    code = Jit(target_named(isa)).compile(emit_kernel(k, target_named(isa)), ["kept"])
    again = Jit(target_named(isa)).load(code.object_code, ["kept"])
    assert code.object_code[:4] == b"\x7fELF" and again.addresses["kept"] != 0
    a, got = np.linspace(-3, 3, N).astype(np.float32), np.zeros(N, np.float32)
    import ctypes

    pointers = (ctypes.c_void_p * 2)(a.ctypes.data, got.ctypes.data)
    assert as_function(again.addresses["kept"])(pointers, None, 0, N) == 0
    np.testing.assert_allclose(got, np.exp(a), rtol=3e-7)


def test_many_threads_may_compile() -> None:
    shared = KernelCompiler(Jit(host_isa()))
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    found: list[dict[str, MachineFunction]] = []

    def work(seed: int) -> None:
        kernels = [
            pointwise(op("add", load(x, var("i")), const(float(k % 5))), y, [x, y], N, f"k{k}")
            for k in range(6)
        ]
        found.append(shared.compile(kernels))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(each == found[0] for each in found)


def test_assembly_uses_the_vectors_of_the_isa(isa: str) -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    made = generator(isa)
    (ir,) = made.texts([pointwise(op("sqrt", load(x, var("i"))), y, [x, y], N)])
    text = made.assembly(ir)
    assert {"avx512": "%zmm", "avx2": "%ymm", "sse4": "sqrtps", "scalar": "sqrtss"}[isa] in text
    assert ("%zmm" in text) == (isa == "avx512")
    assert ("ps\t" in text) == (isa != "scalar")


def test_isa_options() -> None:
    assert host_isa("sse4").name == "sse4"
    assert host_isa("sse4").lanes("f32") == 4 and host_isa("sse4").lanes("bf16") == 4
    assert describe("avx512").lanes("f64") == 8 and describe("avx2").lanes("u8") == 32
    with pytest.raises(OptionError, match="not an instruction set"):
        host_isa("neon")


def test_a_wider_isa_than_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from lampwork.codegen.llvm.isa import x86 as room

    monkeypatch.setattr(room, "host_flags", lambda: frozenset(["sse4_2", "ssse3", "popcnt"]))
    assert room.host_isa().name == "sse4"
    with pytest.raises(OptionError, match="this CPU has only sse4"):
        room.host_isa("avx2")
    with pytest.raises(CodegenError, match="no SSE4.2"):
        room.widest(frozenset(["sse2"]))


def test_errors_name_what_is_missing(isa: str) -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    with pytest.raises(CodegenError, match="neither a parameter nor scratch"):
        emit_kernel(pointwise(load(x, var("i")), y, [y], N), target_named(isa))
    with pytest.raises(CodegenError, match="'nowhere' is read where it is not bound"):
        emit_kernel(pointwise(Local("nowhere", "f32"), y, [y], N), target_named(isa))
    with pytest.raises(CodegenError, match="no code for the operation 'frobnicate'"):
        emit_kernel(pointwise(op("frobnicate", load(x, var("i"))), y, [x, y], N), target_named(isa))
    with pytest.raises(CodegenError, match="loop variable 'q' is used outside of its loop"):
        emit_kernel(pointwise(load(x, var("q")), y, [x, y], N), target_named(isa))
    with pytest.raises(CodegenError, match="not valid"):
        Jit(target_named(isa)).compile("define i64 @f( {", ["f"])
    with pytest.raises(CodegenError, match="could not be linked"):
        Jit(target_named(isa)).compile(
            "declare void @no_such_symbol()\ndefine void @f() {\ncall void @no_such_symbol()\nret void\n}",
            ["f"],
        )


def test_what_a_loop_does_not_change_is_computed_before_it(isa: str) -> None:
    x, v, y = dense("x", "f32", 8, 64), dense("v", "f32", 8), dense("y", "f32", 8, 64)
    r, j = var("r"), var("j")
    value = op("mul", load(x, r, j), op("rsqrt", load(v, r)))
    inner = Loop(axis("j", 64), "vector", (Store(y, (r, j), value),))
    k = kernel("scaled", [x, v, y], [Loop(axis("r", 8), "parallel", (inner,))])
    ir = emit_kernel(k, target_named(isa))
    inside = ir.split("\nloop")[-1].split("\ndone")[0]
    assert "sqrt" in ir and "sqrt" not in inside and inside.count(" load ") == 1
    a, b = np.random.default_rng(0).random((8, 64), np.float32), np.arange(1, 9, dtype=np.float32)
    got = np.zeros_like(a)
    assert run_kernel(k, isa, [a, b, got], end=8) == 0
    np.testing.assert_allclose(got, a / np.sqrt(b)[:, None], rtol=1e-6)


def test_an_empty_loop_reads_nothing(isa: str) -> None:
    x, y = dense("x", "f32", 0), dense("y", "f32", 4)
    total = ReduceLoop(axis("j", 0), "vector", (), (Reducer("s", "sum", load(x, 0), "f32"),))
    k = kernel("empty", [x, y], [total, Store(y, (Index.const(0),), Local("s", "f32"))])
    got = np.ones(4, np.float32)
    assert run_kernel(k, isa, [np.zeros(0, np.float32), got]) == 0
    assert got[0] == 0


def test_spilled_vectors_are_aligned() -> None:
    x, y = dense("x", "f32", N), dense("y", "f32", N)
    value = load(x, var("i"))
    for name in ("sigmoid", "tanh", "erf", "log", "exp"):
        value = op("add", op(name, value), value)
    made = pointwise(value, y, [x, y], N)
    target = target_named("avx2")
    lines = Jit(target).assembly(emit_kernel(made, target)).splitlines()
    spills = [line for line in lines if "%ymm" in line and "(%rsp)" in line]
    assert any("vmovaps" in line for line in spills)
    assert not any("vmovups" in line for line in spills)


LONG = 64 * 16 + 1


@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 63, 64, 65, 127, 128, 1023, 1024])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_long_bodies_are_computed_for_several_vectors_a_turn(
    dtype: str, count: int, begin: int, isa: str
) -> None:
    from codegen_support import NUMPY

    x, y = dense("x", "f32", LONG), dense("y", dtype, LONG)
    made = pointwise(op("cast", op("tanh", load(x, var("i"))), dtype=dtype), y, [x, y], LONG)
    a = np.random.default_rng(1).standard_normal(LONG).astype(np.float32)
    got = np.zeros(LONG, NUMPY[dtype])
    assert run_kernel(made, isa, [a, got], begin=begin, end=begin + count) == 0
    want = np.zeros(LONG)
    want[begin : begin + count] = np.tanh(a[begin : begin + count].astype(np.float64))
    values = (got.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else got
    np.testing.assert_allclose(values, want, rtol=4e-3 if dtype == "bf16" else 3e-7)


@pytest.mark.parametrize(("name", "length", "wide"), [("tanh", LONG, 1), ("tanh", 500, 0), ("sin", LONG, 0)])
def test_which_bodies_are_computed_for_several_vectors_a_turn(name: str, length: int, wide: int) -> None:
    x, y = dense("x", "f32", length), dense("y", "f32", length)
    made = pointwise(op(name, load(x, var("i"))), y, [x, y], length)
    assert emit_kernel(made, target_named("avx2")).count("and i64 %v5, -32") == wide


def test_rows_of_long_bodies(isa: str) -> None:
    """A loop of a known number of turns, inside another: it has whole wide turns, others and a tail."""
    x, y = dense("x", "f32", 3, LONG), dense("y", "f32", 3, LONG)
    place = (var("r"), var("i"))
    row = Loop(axis("i", LONG), "vector", (Store(y, place, op("sigmoid", load(x, *place))),))
    made = kernel("rows", [x, y], [Loop(axis("r", 3), "parallel", (row,))])
    a = np.random.default_rng(1).standard_normal((3, LONG)).astype(np.float32)
    got = np.zeros_like(a)
    assert run_kernel(made, isa, [a, got], end=3) == 0
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-a.astype(np.float64))), rtol=3e-7)
