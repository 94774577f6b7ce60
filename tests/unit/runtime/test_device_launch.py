"""Kernels of a card, launched on a driver that runs them on the CPU: parameters, shapes, memory, graphs, threads."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
import torch
from device_support import Fake, call, device_kernel, double_program, doubled, with_driver
from runtime_programs import value

from lampwork import _C
from lampwork.errors import DriverError, RuntimeFailure
from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten, Launch, Program, Ref, Scalar


def launches(fake: Fake) -> list[str]:
    return [line for line in fake.log() if line.startswith("launch")]


@pytest.mark.parametrize(
    ("n", "launch", "shape"),
    [
        (1, Launch((32, 1), 32), "grid 1x1x1 block 32x1x1 shared 0"),
        (32, Launch((32, 1), 32), "grid 1x1x1 block 32x1x1 shared 0"),
        (33, Launch((32, 1), 32), "grid 2x1x1 block 32x1x1 shared 0"),
        (1000, Launch((32, 8), 8, 4096), "grid 125x1x1 block 32x8x1 shared 4096"),
        (1000, Launch((256, 1), 1), "grid 1000x1x1 block 256x1x1 shared 0"),
    ],
)
def test_launch_has_the_shape_of_extent_and_block(n: int, launch: Launch, shape: str) -> None:
    def job(fake: Fake) -> None:
        doubled(Executable(double_program(n, launch)), n)
        assert launches(fake) == [f"launch double {shape} stream (nil)"]

    with_driver(job)


def test_grid_is_as_large_as_a_card_allows() -> None:
    """The kernel strides over what is left; the extent goes to it whole."""

    def job(fake: Fake) -> None:
        x = torch.randn(4)
        values = (value("input", x, position=0), value("fresh", x))
        run = call(device_kernel("double"), (0, 1), 1 << 40, launch=Launch((1, 1), 1))
        program = Executable(Program(values, (run,), (1,), 1, 0, 0))
        fake.fail("cuLaunchKernel", 999)  # it is not to run
        with pytest.raises(RuntimeFailure):
            program.run([x])
        assert launches(fake) == ["launch double grid 2147483647x1x1 block 1x1x1 shared 0 stream (nil)"]

    with_driver(job)


def test_extent_0_is_not_launched() -> None:
    def job(fake: Fake) -> None:
        doubled(Executable(double_program(0)), 0)
        assert launches(fake) == []

    with_driver(job)


def test_parameters_are_buffers_sizes_and_numbers_of_the_call() -> None:
    """scale(x, out, a, b): out = a x + b, with b given with each call."""

    def job(fake: Fake) -> None:
        x = torch.randn(40)
        values = (value("input", x, position=0), value("fresh", x))
        run = call(device_kernel("scale"), (0, 1), 40, sizes=(3, Scalar(0)))
        program = Executable(Program(values, (run,), (1,), 1, 0, 0, n_scalars=1))
        for number in (0, -7, 1 << 20):
            torch.testing.assert_close(program.run([x], (number,))[0], 3 * x + number)

    with_driver(job)


def test_arena_views_offsets_and_aten_between_launches() -> None:
    """double(x) into the arena, ATen's negation of its first half, and that plus the second half."""

    def job(fake: Fake) -> None:
        x = torch.randn(64)
        half = x[:32]
        values = (
            value("input", x, position=0),
            value("arena", x, offset=64),
            value("view", half, base=1, offset=0),
            value("view", half, base=1, offset=32),
            value("aten", half),
            value("fresh", half),
        )
        steps = (
            call(device_kernel("double"), (0, 1), 64),
            CallAten("aten::neg.default", (Ref(2),), outs=(4,)),
            call(device_kernel("add"), (4, 3, 5), 32),
        )
        program = Executable(Program(values, steps, (5, 3), 1, 0, 64 + 256))
        for given in (x, torch.randn(100)[36:]):
            total, view = program.run([given])
            torch.testing.assert_close(total, -2 * given[:32] + 2 * given[32:])
            torch.testing.assert_close(view, 2 * given[32:])
        assert len(launches(fake)) == 4

    with_driver(job)


def test_writes_to_an_input_are_seen_and_undone() -> None:
    def job(fake: Fake) -> None:
        x, copy = torch.randn(8), torch.empty(8)
        values = (value("input", x, position=0), value("fresh", copy), value("fresh", copy))
        double, add = device_kernel("double"), device_kernel("add")
        steps = (
            call(double, (0, 1), 8),
            call(add, (0, 1, 0), 8, outside=(0,)),
            CallAten("aten::_assert_async.msg", (Ref(2), "no")),
        )
        # x += 2 x, and then an error: "undo" doubles the copy that was made before.
        undo = ((1, call(double, (1, 0), 8, outside=(0,))),)
        program = Executable(Program(values, steps, (1,), 1, 0, 0, undo=undo))
        before = x.clone()
        with pytest.raises(RuntimeError):
            program.run([x])
        torch.testing.assert_close(x, 4 * before)
        assert [line.split()[1] for line in launches(fake)] == ["double", "add", "double"]

    with_driver(job)


def test_constants_are_computed_by_launches() -> None:
    def job(fake: Fake) -> None:
        weight, x = torch.randn(8), torch.randn(8)
        values = (value("input", weight, position=0), value("fresh", weight))
        constants = Program(values, (call(device_kernel("double"), (0, 1), 8),), (1,), 1, 0, 0)
        main = (value("input", x, position=0), value("constant", x, position=0), value("fresh", x))
        program = Program(main, (call(device_kernel("add"), (0, 1, 2), 8),), (2,), 1, 1, 0, constants)
        run = Executable(program, (weight,))
        for _ in range(2):
            torch.testing.assert_close(run.run([x])[0], x + 2 * weight)
        weight.mul_(3)
        torch.testing.assert_close(run.run([x])[0], x + 2 * weight)
        assert [line.split()[1] for line in launches(fake)] == ["double", "add", "add", "double", "add"]

    with_driver(job)


def test_module_is_loaded_once_for_a_device_and_unloaded_with_its_kernel() -> None:
    def job(fake: Fake) -> None:
        program = double_program()
        runs = [Executable(program), Executable(program)]
        for run in runs:
            doubled(run)
            doubled(run)
        code = program.instructions[0].code  # type: ignore[union-attr]
        code.owner.load(1)
        code.owner.load(1)
        assert [code.owner.registers(1), code.owner.shared(1), code.owner.spills(1)] == [40, 0, 16]
        log = fake.log()
        assert [line for line in log if line.startswith(("load", "retain"))] == [
            "retain 0",
            "load fake:double on 0",
            "retain 1",
            "load fake:double on 1",
        ]
        assert log.count("set_context 0") == 1  # a thread keeps it
        del code, program
        gc.collect()
        assert fake.log() == []
        del run, runs
        gc.collect()
        assert fake.log() == ["unload double", "unload double"]

    with_driver(job)


def test_large_shared_memory_is_asked_for_once() -> None:
    def job(fake: Fake) -> None:
        kernel = device_kernel("double")
        x = torch.randn(8)
        values = (value("input", x, position=0), value("fresh", x))
        fake.set("static_shared", 1024)
        for shared in (47 << 10, (47 << 10) + 1, 65536, 60000):
            run = call(kernel, (0, 1), 8, launch=Launch((32, 1), 32, shared))
            doubled(Executable(Program(values, (run,), (1,), 1, 0, 0)))
        asked = [line for line in fake.log() if line.startswith("set_attribute")]
        assert asked == ["set_attribute double 8 48129", "set_attribute double 8 65536"]

    with_driver(job)


def test_a_thread_without_a_context_gets_the_devices() -> None:
    def job(fake: Fake) -> None:
        run = Executable(double_program())
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(50):
                    doubled(run)
            except BaseException as error:  # noqa: BLE001  (told to the test)
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert fake.log().count("set_context 0") == 4

    with_driver(job)


def test_a_forked_child_leaves_the_parents_context_alone() -> None:
    def job(fake: Fake) -> None:
        run = Executable(double_program())
        doubled(run)
        fake.log()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = []
            for attempt in (
                lambda: run.run([torch.randn(8)]),
                lambda: Executable(double_program()),
                _C.driver_version,
            ):
                try:
                    attempt()
                except RuntimeError as error:
                    said.append(str(error).splitlines()[0])
            del run
            gc.collect()
            os.write(write, repr((said, fake.log())).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said, log = eval(pipe.read())
        os.waitpid(pid, 0)
        assert len(said) == 3 and log == []
        assert all(one.startswith("Cannot re-initialize CUDA in forked subprocess") for one in said)
        doubled(run)

    with_driver(job)


def test_launches_alone_can_be_timed() -> None:
    def job(fake: Fake) -> None:
        kernel = device_kernel("double")  # of no elements
        before = time.perf_counter()
        took = kernel.time_launches(0, 7, 5)
        assert 0 < took <= time.perf_counter() - before
        assert launches(fake) == ["launch double grid 1x1x1 block 1x1x1 shared 0 stream 0x7"] * 5
        assert kernel.time_launches(0, 7, 0) >= 0 and launches(fake) == []
        fake.fail("cuLaunchKernel", 700)
        with pytest.raises(
            DriverError, match="kernel 'double' could not be launched: CUDA_ERROR_ILLEGAL_ADDRESS"
        ):
            kernel.time_launches(0, 0, 5)
        assert len(launches(fake)) == 1

    with_driver(job)
