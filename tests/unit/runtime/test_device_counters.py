"""Words that the blocks of a kernel count in: zero when it starts, one set for each stream, and for each capture."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch
from device_support import Fake, call, device_kernel, with_driver
from runtime_programs import value

from lampwork import _C
from lampwork.errors import RuntimeFailure
from lampwork.runtime import Executable
from lampwork.runtime.program import CallKernel, Launch, Program

N = 8


def counting(*counts: int) -> Executable:
    """Copies x as often as there are counts, by kernels of so many counters."""
    x = torch.empty(N)
    values = (value("input", x, position=0), value("fresh", x))
    return Executable(Program(values, tuple(_call(count) for count in counts), (1,), 1, 0, 0))


def _call(count: int) -> CallKernel:
    launch = Launch((32, 1), 1, counters=count)
    return call(device_kernel(f"count{min(max(count, 1), 9)}"), (0, 1), N, launch=launch)


def run(program: Executable, stream: int = 0) -> None:
    """The fake kernel gives -1 where it finds a counter that is not zero."""
    _C.use_bare_stream(stream)
    x = torch.rand(N)
    assert torch.equal(program.run([x])[0], x)


def counters(fake: Fake) -> tuple[list[str], list[str]]:
    """How counters were set, and their addresses in each launch, since the last time."""
    log = fake.log()
    places = [line.split()[1] for line in log if line.startswith("counters")]
    return [line for line in log if line.startswith("set ")], places


def test_a_stream_has_one_set_for_all_calls_that_is_set_once() -> None:
    def job(fake: Fake) -> None:
        one, two = counting(1, 2), counting(4)
        for stream in (0, 3):
            run(one, stream)
            first, places = counters(fake)
            assert first == [f"set 128 words to 0 stream {'(nil)' if stream == 0 else '0x3'}"]
            run(one, stream)
            run(two, stream)
            again, more = counters(fake)
            assert again == [] and len(set(places + more)) == 1 and len(places + more) == 5
        run(two, 0)
        assert counters(fake)[1] != more

    with_driver(job)


def test_a_kernel_that_needs_more_gets_more() -> None:
    """What there was before is not taken from a call that has it."""

    def job(fake: Fake) -> None:
        small, large = counting(1), counting(129)
        run(small)
        assert counters(fake)[0] == ["set 128 words to 0 stream (nil)"]
        run(large)
        assert counters(fake)[0] == ["set 256 words to 0 stream (nil)"]
        for _ in range(2):
            run(small)
            run(large)
        again, places = counters(fake)
        assert again == [] and len(set(places)) == 1

    with_driver(job)


def test_a_stream_with_the_handle_of_a_dead_one_is_another() -> None:
    """What is queued on the dead one may still run."""

    def job(fake: Fake) -> None:
        program = counting(1)
        run(program, 5)
        _, (before,) = counters(fake)
        fake.new_stream(5, 77)
        run(program, 5)
        again, (after,) = counters(fake)
        assert again == ["set 128 words to 0 stream 0x5"] and after != before
        fake.new_stream(5, 5)
        run(program, 5)
        assert counters(fake) == ([], [before])

    with_driver(job)


def test_streams_that_are_used_no_more_are_forgotten() -> None:
    def job(fake: Fake) -> None:
        program = counting(1)
        for number in range(1, 259):
            fake.new_stream(5, 1000 + number)
            run(program, 5)
            run(program, 4)  # is used all the time
            fake.log()
        fake.new_stream(5, 1000 + 258)
        run(program, 5)
        run(program, 4)
        assert counters(fake)[0] == []
        fake.new_stream(5, 1001)
        run(program, 5)
        assert len(counters(fake)[0]) == 1

    with_driver(job)


@pytest.mark.parametrize("flags", [(), ("-DOLD_DRIVER",)])
def test_each_call_has_its_own_where_streams_have_no_numbers(flags: tuple[str, ...]) -> None:
    def job(fake: Fake) -> None:
        fake.fail("cuStreamGetId", 201)
        program = counting(1, 3)
        for _ in range(2):
            run(program, 2)
            again, places = counters(fake)
            assert again == ["set 3 words to 0 stream 0x2"] and len(set(places)) == 1

    with_driver(job, *flags)


def test_a_captured_call_has_its_own_which_its_graph_sets() -> None:
    def job(fake: Fake) -> None:
        program = counting(2, 3)
        run(program, 2)
        _, (usual, _) = counters(fake)
        fake.set("capturing", 1)
        run(program, 2)
        again, places = counters(fake)
        assert again == ["set 3 words to 0 stream 0x2"]
        assert len(set(places)) == 1 and usual not in places
        fake.set("capturing", 0)
        run(program, 2)
        assert counters(fake) == ([], [usual, usual])

    with_driver(job)


def test_devices_have_their_own() -> None:
    def job(fake: Fake) -> None:
        program = counting(1)
        run(program)
        _, (first,) = counters(fake)
        context = ctypes.c_void_p()
        fake.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1)
        fake.library.cuCtxPushCurrent_v2(context)
        run(program)
        again, (second,) = counters(fake)
        assert len(again) == 1 and second != first
        fake.library.cuCtxPopCurrent_v2(ctypes.byref(context))
        run(program)
        assert counters(fake) == ([], [first])

    with_driver(job)


def test_threads_on_streams_of_their_own_and_on_one() -> None:
    def job(fake: Fake) -> None:
        programs = [counting(count) for count in (1, 2, 3, 200)]
        failures: list[BaseException] = []

        def work(stream: int) -> None:
            try:
                for round_ in range(100):
                    run(programs[round_ % 4], stream)
            except BaseException as error:  # noqa: BLE001  (told to the test)
                failures.append(error)

        for streams in ((1, 2, 3, 4), (9, 9, 9, 9)):
            threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert failures == []

    with_driver(job)


def test_what_fails() -> None:
    def job(fake: Fake) -> None:
        program = counting(1)
        fake.fail("cuMemsetD32Async", 700)
        said = "kernel 'count1' could not be launched.*CUDA_ERROR_ILLEGAL_ADDRESS"
        with pytest.raises(RuntimeFailure, match=said):
            run(program)
        fake.fail("", 0)
        run(program)
        run(program)
        assert len(counters(fake)[0]) == 2  # the one that failed, and one that is kept

    with_driver(job)


def test_what_no_launch_can_have() -> None:
    def job(fake: Fake) -> None:
        for count in (-1, 1 << 40):
            with pytest.raises(RuntimeError, match="cast"):
                counting(count)

    with_driver(job)
