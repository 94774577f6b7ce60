"""Programs: values, kernels, ATen calls, the arena, threads."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from typing import Any

import pytest
import torch
from runtime_programs import Kernels, lerp_program, value

from lampwork.codegen.target import MachineFunction
from lampwork.errors import RuntimeFailure
from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten, CallKernel, Program, Ref, Release, Value


def test_kernel_computes_into_a_fresh_output(kernels: Kernels) -> None:
    a, b, w = (torch.randn(200) for _ in range(3))
    program = Executable(lerp_program(kernels, a))
    first, second = program.run([a, b, w])[0], program.run([b, a, w])[0]
    torch.testing.assert_close(first, torch.lerp(a, b, w))
    torch.testing.assert_close(second, torch.lerp(b, a, w))
    assert first.data_ptr() != second.data_ptr()
    assert first.stride() == (1,) and first.dtype == torch.float32 and not first.requires_grad
    first.resize_(1000)
    assert program.stats["runs"] == 2


@pytest.mark.parametrize("n", [0, 1, 7, 100_000, 1_000_003])
def test_large_outputs_reuse_memory_only_when_dead(kernels: Kernels, n: int) -> None:
    a, b, w = (torch.randn(n) for _ in range(3))
    program = Executable(lerp_program(kernels, a))
    kept = [program.run([a, b, w])[0] for _ in range(3)]
    assert n == 0 or len({t.data_ptr() for t in kept}) == 3
    for tensor in kept:
        torch.testing.assert_close(tensor, torch.lerp(a, b, w))
    del tensor
    where = kept.pop().data_ptr()
    again = program.run([b, a, w])[0]
    if n * 4 > 1 << 20:
        assert again.data_ptr() == where
    del program
    gc.collect()
    torch.testing.assert_close(again, torch.lerp(b, a, w))
    torch.testing.assert_close(kept[0], torch.lerp(a, b, w))


def test_arena_views_offsets_and_strides(kernels: Kernels) -> None:
    """double(x) into the arena, then add its two halves, seen through views, into the output."""
    x = torch.randn(64)
    half = x[:32]
    values = (
        value("input", x, position=0),
        value("arena", x, offset=64),
        value("view", half, base=1, offset=0),
        value("view", half, base=1, offset=32),
        value("fresh", half),
    )
    program = Program(
        values,
        (
            CallKernel(kernels["double"], (0, 1), extent=64),
            CallKernel(kernels["add"], (2, 3, 4), extent=32),
        ),
        (4,),
        1,
        0,
        64 + 256,
    )
    run = Executable(program)
    torch.testing.assert_close(run.run([x])[0], 2 * x[:32] + 2 * x[32:])
    shifted = torch.randn(100)[36:]
    torch.testing.assert_close(run.run([shifted])[0], 2 * shifted[:32] + 2 * shifted[32:])


def test_kernel_in_chunks_over_threads(kernels: Kernels) -> None:
    a, b, w = (torch.randn(10_000) for _ in range(3))
    program = Executable(lerp_program(kernels, a, grain=64))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            torch.testing.assert_close(program.run([a, b, w])[0], torch.lerp(a, b, w))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("grains, wakes", [(8, False), (64, True)])
def test_sleeping_threads_are_woken_for_much_work(kernels: Kernels, grains: int, wakes: bool) -> None:
    like = torch.empty(64 * grains)
    call = CallKernel(kernels["begin"], (0,), extent=like.numel(), grain=64, name="begin")
    program = Executable(Program((value("fresh", like),), (call,), (0,), 0, 0, 0))

    def parts() -> int:
        return len(program.run([])[0].unique())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        time.sleep(0.01)
        assert parts() == (2 if wakes else 1)
        assert 2 in [parts() for _ in range(50)], "calls soon after each other share their work"
    finally:
        torch.set_num_threads(before)


def aten_program(
    calls: tuple[Any, ...], values: tuple[Value, ...], outputs: tuple[int, ...], n_inputs: int
) -> Executable:
    return Executable(Program(values, calls, outputs, n_inputs, 0, 1024))


def test_aten_calls_take_every_kind_of_argument() -> None:
    x = torch.randn(4, 6)
    idx = torch.tensor([3, 0, 2])
    values = (
        value("input", x, position=0),
        value("input", idx, position=1),
        Value("aten", torch.float32, (3, 6), (6, 1)),
        Value("aten", torch.float64, (3, 6), (6, 1)),
        Value("aten", torch.float64, (6, 6), (6, 1)),
        Value("aten", torch.float64, (3, 6), (6, 1)),
        Value("aten", torch.float64, (3, 6), (6, 1)),
        Value("aten", torch.float64, (1, 6), (6, 1)),
        Value("aten", torch.float64, (6,), (1,)),
    )
    calls = (
        CallAten("aten::index.Tensor", (Ref(0), [Ref(1), None]), outs=(2,)),
        CallAten(
            "aten::_to_copy", (Ref(2),), (("dtype", torch.float64), ("device", torch.device("cpu"))), (3,)
        ),
        CallAten("aten::cat.default", ((Ref(3), Ref(3)),), (("dim", 0),), (4,)),
        CallAten("aten::split.Tensor", (Ref(4), 3), outs=(5, 6)),
        CallAten("aten::mean.dim", (Ref(5), (0,), True), outs=(7,)),
        CallAten("aten::max.dim", (Ref(6), 0), outs=(8, -1)),
        Release((3, 4)),
    )
    run = aten_program(calls, values, (2, 5, 6, 7, 8), 2)
    for _ in range(2):
        got = run.run([x, idx])
        rows = x[idx].double()
        for mine, expected in zip(got, [x[idx], rows, rows, rows.mean(0, True), rows.max(0).values]):
            torch.testing.assert_close(mine, expected)
            assert mine.stride() == expected.stride()


def test_numbers_stand_for_tensors_as_in_python() -> None:
    x = torch.randn(4, dtype=torch.float32)
    values = (value("input", x, position=0), Value("aten", torch.float32, (4,), (1,)))
    run = aten_program((CallAten("aten::add.Tensor", (Ref(0), 1e-5), outs=(1,)),), values, (1,), 1)
    got = run.run([x])[0]
    assert got.dtype == torch.float32 and torch.equal(got, x + 1e-5)


def test_aten_call_on_arena_values(kernels: Kernels) -> None:
    """The result of an ATen call on arena memory never shares it, even if the operator returns its argument."""
    x = torch.randn(8, 8)
    values = (
        value("input", x, position=0),
        value("arena", x, offset=0),
        value("view", x.t(), base=1),
        Value("aten", torch.float32, (8, 8), (8, 1)),
        Value("aten", torch.float32, (8, 8), (8, 1)),
    )
    calls = (
        CallKernel(kernels["double"], (0, 1), extent=64),
        CallAten("aten::mm", (Ref(2), Ref(1)), outs=(3,)),
        CallAten("aten::view", (Ref(1), (8, 8)), outs=(4,)),
    )
    run = Executable(Program(values, calls, (3, 4, 1, 2), 1, 0, 256))
    first = run.run([x])
    y = torch.randn(8, 8)
    second = run.run([y])
    for inputs, outputs in ((x, first), (y, second)):
        torch.testing.assert_close(outputs[0], (2 * inputs).t() @ (2 * inputs))
        for tensor in outputs[1:3]:
            torch.testing.assert_close(tensor, 2 * inputs)
        torch.testing.assert_close(outputs[3], 2 * inputs.t())


def test_result_of_other_strides_is_laid_out_as_recorded() -> None:
    x = torch.randn(4, 6)
    values = (value("input", x, position=0), Value("aten", torch.float32, (6, 4), (4, 1)))
    got = aten_program((CallAten("aten::t", (Ref(0),), outs=(1,)),), values, (1,), 1).run([x])[0]
    assert got.stride() == (4, 1)
    torch.testing.assert_close(got, x.t())


def test_outputs_that_alias_inputs_are_views_of_them() -> None:
    x = torch.randn(4, 6)
    values = (value("input", x, position=0), value("view", x[1:3].t(), base=0, offset=6))
    same, view = aten_program((), values, (0, 1), 1).run([x])
    assert same is x
    assert view._base is x and view._is_view()
    torch.testing.assert_close(view, x[1:3].t())
    version = x._version
    view.zero_()
    assert x[1].abs().sum() == 0 and x._version == version + 1


def test_mutation_of_an_input_counts_a_version() -> None:
    x, y = torch.randn(5), torch.randn(5)
    values = (value("input", x, position=0), value("input", y, position=1))
    run = aten_program((CallAten("aten::copy_", (Ref(0), Ref(1))),), values, (), 2)
    version = x._version
    assert run.run([x, y]) == []
    assert torch.equal(x, y) and x._version == version + 1


def test_inference_mode_gives_inference_tensors(kernels: Kernels) -> None:
    a, b, w = (torch.randn(20) for _ in range(3))
    values = (value("input", a, position=0), value("fresh", a), Value("aten", torch.float32, (20,), (1,)))
    calls = (CallKernel(kernels["double"], (0, 1), extent=20), CallAten("aten::relu", (Ref(1),), outs=(2,)))
    run = aten_program(calls, values, (1, 2), 1)
    with torch.inference_mode():
        assert all(t.is_inference() for t in run.run([a]))
    normal = run.run([a])
    assert not any(t.is_inference() or t.requires_grad for t in normal)
    normal[0].add_(1)
    with torch.no_grad():
        assert not any(t.is_inference() for t in run.run([a]))


def test_program_runs_below_autograd_and_autocast() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    values = (value("input", x, position=0), Value("aten", torch.float32, (4, 4), (4, 1)))
    run = aten_program((CallAten("aten::mm", (Ref(0), Ref(0)), outs=(1,)),), values, (1,), 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run.run([x])[0]
    assert out.dtype == torch.float32 and not out.requires_grad
    torch.testing.assert_close(out, (x @ x).detach())


def test_failing_kernel_raises_and_leaves_the_program_usable(kernels: Kernels) -> None:
    x = torch.randn(4)
    values = (value("input", x, position=0), value("fresh", x))
    failing = aten_program((CallKernel(kernels["fail"], (0, 1), name="gather"),), values, (1,), 1)
    for _ in range(3):
        with pytest.raises(RuntimeFailure, match="kernel 'gather' reported a failure"):
            failing.run([x])


def test_aten_errors_keep_their_python_type() -> None:
    x = torch.randn(4, 4)
    values = (value("input", x, position=0), Value("aten", torch.float32, (4,), (1,)))
    run = aten_program((CallAten("aten::select.int", (Ref(0), 9, 0), outs=(1,)),), values, (1,), 1)
    with pytest.raises(IndexError, match="Dimension out of range"):
        run.run([x])


def test_python_operators_and_warnings() -> None:
    with torch.library._scoped_library("lwruntime", "FRAGMENT") as library:
        library.define("noisy(Tensor x, float scale) -> Tensor")

        def noisy(x: torch.Tensor, scale: float) -> torch.Tensor:
            if scale == 0:
                raise LookupError("zero scale")
            warnings.warn("noisy ran")
            return x * scale

        library.impl("noisy", noisy, "CompositeExplicitAutograd")
        x = torch.randn(3)
        values = (value("input", x, position=0), Value("aten", torch.float32, (3,), (1,)))
        run = aten_program((CallAten("lwruntime::noisy", (Ref(0), 2.0), outs=(1,)),), values, (1,), 1)
        with pytest.warns(UserWarning, match="noisy ran"):
            torch.testing.assert_close(run.run([x])[0], 2 * x)
        run = aten_program((CallAten("lwruntime::noisy", (Ref(0), 0.0), outs=(1,)),), values, (1,), 1)
        with pytest.raises(LookupError, match="zero scale"):
            run.run([x])


def test_many_threads_run_one_program(kernels: Kernels) -> None:
    n = 20_000
    values = (
        *(Value("input", torch.float32, (n,), (1,), position=i) for i in range(2)),
        Value("arena", torch.float32, (n,), (1,)),
        Value("fresh", torch.float32, (n,), (1,)),
    )
    calls = (
        CallKernel(kernels["double"], (0, 2), extent=n),
        CallKernel(kernels["add"], (2, 1, 3), extent=n),
    )
    run = Executable(Program(values, calls, (3,), 2, 0, n * 4))
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            x, y = (torch.randn(n, generator=generator) for _ in range(2))
            if not torch.equal(run.run([x, y])[0], 2 * x + y):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_program_of_wrong_form_is_refused(kernels: Kernels) -> None:
    x = torch.randn(4)
    inputs = (value("input", x, position=0),)
    cases = [
        (Program(inputs, (CallKernel(MachineFunction(0, None), (0,)),), (), 1, 0, 0), "no address"),
        (Program(inputs, (CallKernel(MachineFunction(1, None), (7,)),), (), 1, 0, 0), "out of range"),
        (Program((value("arena", x),), (), (), 0, 0, 8), "outside the arena"),
        (Program((value("view", x, base=0),), (), (), 0, 0, 0), "no base"),
        (Program((value("constant", x, position=0),), (), (), 0, 0, 0), "no constants program"),
        (
            Program(inputs, (CallAten("aten::relu", ()),), (), 1, 0, 0),
            "argument 'self' of aten::relu is missing",
        ),
        (Program(inputs, (CallAten("aten::relu", (Ref(0), 1)),), (), 1, 0, 0), "does not take"),
        (Program(inputs, (CallAten("aten::relu", (Ref(0),), outs=(0,)),), (), 1, 0, 0), "not an aten value"),
    ]
    for program, message in cases:
        with pytest.raises(ValueError, match=message):
            Executable(program)
    with pytest.raises(RuntimeError, match="no_such_op"):
        Executable(Program(inputs, (CallAten("aten::no_such_op", ()),), (), 1, 0, 0))
    with pytest.raises(TypeError, match="takes 3 inputs, got 1"):
        Executable(lerp_program(kernels, x)).run([x])
    with pytest.raises(TypeError, match="input 1 is not a tensor"):
        Executable(lerp_program(kernels, x)).run([x, 1, x])  # pyright: ignore


@pytest.mark.parametrize(("offset", "length"), [(33, 32), (0, 65), (-1, 8), (2**61, 8)])
def test_a_view_lies_inside_the_memory_that_it_is_of(kernels: Kernels, offset: int, length: int) -> None:
    x = torch.randn(64)
    values = (value("input", x, position=0), value("view", torch.empty(length), base=0, offset=offset))
    with pytest.raises(ValueError, match="a view reaches beyond the memory that it is of"):
        Executable(Program(values, (), (1,), 1, 0, 0))


def test_a_view_may_be_of_all_the_memory_or_of_none(kernels: Kernels) -> None:
    x = torch.randn(64)
    values = (
        value("input", x, position=0),
        value("view", torch.empty(32), base=0, offset=32),
        value("view", torch.empty(0, 3), base=0, offset=64),
    )
    half, none = Executable(Program(values, (), (1, 2), 1, 0, 0)).run([x])
    assert torch.equal(half, x[32:]) and none.shape == (0, 3)
