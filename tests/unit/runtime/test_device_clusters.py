"""Kernels whose blocks are launched in clusters: how many, with what the driver is asked, and where it cannot be."""

from __future__ import annotations

import pytest
import torch
from device_support import Fake, call, device_kernel, double_program, doubled, with_driver
from runtime_programs import value

from lampwork import _C
from lampwork.errors import DriverError, RuntimeFailure
from lampwork.runtime import Executable
from lampwork.runtime.program import Launch, Program

REPORT = "Report this, with the program that was compiled."


def launched(fake: Fake) -> list[str]:
    return [line for line in fake.log() if line.startswith(("launch", "set_attribute"))]


@pytest.mark.parametrize(
    ("n", "launch", "shape"),
    [
        (1, Launch((32, 1), 32, cluster=2), "grid 2x1x1 block 32x1x1 shared 0 stream 0x6 attribute 4: 2x1x1"),
        (
            33,
            Launch((32, 1), 32, cluster=4),
            "grid 8x1x1 block 32x1x1 shared 0 stream 0x6 attribute 4: 4x1x1",
        ),
        (
            5,
            Launch((64, 2), 1, 4096, 8),
            "grid 40x1x1 block 64x2x1 shared 4096 stream 0x6 attribute 4: 8x1x1",
        ),
    ],
)
def test_the_grid_is_a_multiple_of_the_cluster(n: int, launch: Launch, shape: str) -> None:
    def job(fake: Fake) -> None:
        run = Executable(double_program(n, launch))
        _C.use_bare_stream(6)
        doubled(run, n)
        assert launched(fake) == [f"launch double {shape}"]

    with_driver(job)


def test_a_cluster_of_more_than_eight_asks_for_it_and_counters_go_with_it() -> None:
    def job(fake: Fake) -> None:
        x = torch.rand(8)
        values = (value("input", x, position=0), value("fresh", x))
        run = call(
            device_kernel("count2"), (0, 1), 8, launch=Launch((32, 1), 8, 65536, cluster=16, counters=2)
        )
        program = Executable(Program(values, (run,), (1,), 1, 0, 0))
        assert torch.equal(program.run([x])[0], x)
        assert launched(fake) == [
            "set_attribute count2 8 65536",
            "set_attribute count2 14 1",
            "launch count2 grid 16x1x1 block 32x1x1 shared 65536 stream (nil) attribute 4: 16x1x1",
        ]

    with_driver(job)


def test_the_grid_is_as_large_as_a_card_allows() -> None:
    def job(fake: Fake) -> None:
        x = torch.randn(4)
        values = (value("input", x, position=0), value("fresh", x))
        run = call(device_kernel("double"), (0, 1), 1 << 40, launch=Launch((1, 1), 1, cluster=16))
        program = Executable(Program(values, (run,), (1,), 1, 0, 0))
        fake.fail("cuLaunchKernelEx", 999)  # it is not to run
        with pytest.raises(RuntimeFailure, match="kernel 'double' could not be launched"):
            program.run([x])
        assert "grid 2147483632x1x1" in launched(fake)[-1]

    with_driver(job)


def _refused(cluster: int, cause: str, fix: str) -> None:
    with pytest.raises(DriverError) as caught:
        Executable(double_program(launch=Launch((32, 1), 32, cluster=cluster)))
    assert (caught.value.cause, caught.value.fix) == (cause, fix)


def test_a_driver_that_is_too_old() -> None:
    def job(fake: Fake) -> None:
        cause = "the CUDA driver is too old to launch kernel 'double', whose blocks work in clusters"
        _refused(2, cause, "Install a driver of CUDA 11.8 or later.")
        doubled(Executable(double_program()))  # what has no clusters runs

    with_driver(job, "-DOLD_DRIVER")


def test_a_card_without_clusters_or_without_room() -> None:
    def job(fake: Fake) -> None:
        fake.set("clusters", 0)
        _refused(
            4, "cuda:0, of compute capability 7.5, has no clusters, of 4 blocks of kernel 'double'", REPORT
        )
        fake.set("clusters", 1)
        fake.set("room", 0)
        cause = "cuda:0 has no room for a cluster of 4 blocks of kernel 'double': error 801"
        _refused(4, cause, REPORT)
        fake.set("room", 1)
        fake.fail("cuFuncSetAttribute", 1)
        cause = "cuda:0 has no room for a cluster of 9 blocks of kernel 'double': CUDA_ERROR_INVALID_VALUE"
        _refused(9, f"{cause} (what happened)", REPORT)
        fake.fail("", 0)
        doubled(Executable(double_program(launch=Launch((32, 1), 32, cluster=9))))

    with_driver(job)


def test_no_cluster_is_empty() -> None:
    def job(fake: Fake) -> None:
        with pytest.raises(ValueError, match="an empty cluster"):
            Executable(double_program(launch=Launch((32, 1), 32, cluster=0)))

    with_driver(job)
