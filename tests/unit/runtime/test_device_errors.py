"""What the driver of a card does not do: each error with its cause and its fix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from device_support import Fake, call, device_kernel, double_program, doubled, with_driver
from runtime_programs import value

from lampwork import _C
from lampwork.errors import DriverError, RuntimeFailure
from lampwork.runtime import Executable
from lampwork.runtime.program import Launch, Program, Value


def refused(attempt: Any, cause: str, fix: str) -> None:
    with pytest.raises(DriverError) as caught:
        attempt()
    assert (caught.value.cause, caught.value.fix, caught.value.code) == (cause, fix, "LW420")


REPORT = "Report this, with the program that was compiled."
LOADING = [
    (
        "cuModuleLoadDataEx",
        222,
        "the CUDA driver, which serves CUDA 12.4, is too old for the PTX of kernel 'double'",
        "Install a newer driver.",
    ),
    (
        "cuModuleLoadDataEx",
        209,
        "kernel 'double' was compiled for another card than cuda:0, of compute capability 7.5",
        "Compile the function again, with its tensors on this card.",
    ),
    (
        "cuModuleLoadDataEx",
        2,
        "there is no memory on cuda:0 to load kernel 'double'",
        "Free memory of the card: `torch.cuda.empty_cache()` gives back what torch keeps.",
    ),
    (
        "cuModuleLoadDataEx",
        218,
        "the driver's assembler refused kernel 'double':\nptxas application ptx input, line 3; error",
        REPORT,
    ),
    (
        "cuModuleLoadDataEx",
        999,
        "kernel 'double' could not be loaded on cuda:0: CUDA_ERROR_UNKNOWN (what happened)",
        "",
    ),
    (
        "cuDevicePrimaryCtxRetain",
        2,
        "there is no memory on cuda:0 to load kernel 'double'",
        "Free memory of the card: `torch.cuda.empty_cache()` gives back what torch keeps.",
    ),
    (
        "cuDevicePrimaryCtxRetain",
        999,
        "cuda:0 cannot be used: CUDA_ERROR_UNKNOWN (what happened)",
        "See whether `nvidia-smi` finds the card.",
    ),
    (
        "cuModuleGetFunction",
        500,
        "the image of kernel 'double' has no function of that name",
        "",
    ),
]


@pytest.mark.parametrize(("function", "code", "cause", "fix"), LOADING)
def test_kernel_that_does_not_load(function: str, code: int, cause: str, fix: str) -> None:
    def job(fake: Fake) -> None:
        fake.fail(function, code)
        program = double_program()
        refused(lambda: Executable(program), cause, fix)
        fake.fail("", 0)
        doubled(Executable(program))  # nothing is left half done

    with_driver(job)


def test_image_that_is_no_ptx_or_has_another_function() -> None:
    def job(fake: Fake) -> None:
        program = double_program(image="nonsense")
        with pytest.raises(DriverError, match="refused kernel 'double':\nptxas"):
            Executable(program)
        program = double_program(image="fake:add")
        with pytest.raises(DriverError, match="no function of that name"):
            Executable(program)
        assert [line for line in fake.log() if line.startswith("unload")] == ["unload add"]

    with_driver(job)


def test_block_or_shared_memory_that_a_card_does_not_have() -> None:
    def job(fake: Fake) -> None:
        fake.set("max_threads", 256)
        refused(
            lambda: Executable(double_program(launch=Launch((32, 16), 1))),
            "kernel 'double' needs so many registers that a block has at most 256 threads on cuda:0, not 512",
            REPORT,
        )
        refused(
            lambda: Executable(double_program(launch=Launch((32, 1), 1, 300_000))),
            "kernel 'double' needs 300000 bytes of shared memory; a block has at most 232448 on cuda:0: "
            "CUDA_ERROR_INVALID_VALUE (what happened)",
            REPORT,
        )

    with_driver(job)


def test_no_driver_or_one_that_does_not_work() -> None:
    def job(fake: Fake) -> None:
        path = os.environ["LAMPWORK_CUDA_DRIVER"]
        fix = "Install the driver of the card, or set LAMPWORK_CUDA_DRIVER to the path of its libcuda.so.1."
        os.environ["LAMPWORK_CUDA_DRIVER"] = "/nowhere/libcuda.so.1"
        refused(
            _C.driver_version,
            "the CUDA driver cannot be opened: /nowhere/libcuda.so.1: cannot open shared object file: "
            "No such file or directory",
            fix,
        )
        os.environ["LAMPWORK_CUDA_DRIVER"] = "libm.so.6"
        refused(
            lambda: Executable(double_program()),
            "the CUDA driver libm.so.6 has no function cuInit",
            "Install a newer driver.",
        )
        os.environ["LAMPWORK_CUDA_DRIVER"] = path
        fake.fail("cuInit", 100)
        refused(
            _C.driver_version,
            f"the CUDA driver {path} does not work: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)",
            "See whether `nvidia-smi` finds the card, and what CUDA_VISIBLE_DEVICES says.",
        )
        fake.fail("", 0)
        assert _C.driver_version() == 12040
        doubled(Executable(double_program()))

    with_driver(job)


def test_launch_that_fails_names_its_kernel() -> None:
    def job(fake: Fake) -> None:
        run = Executable(double_program())
        for code, name in ((700, "CUDA_ERROR_ILLEGAL_ADDRESS"), (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")):
            fake.fail("cuLaunchKernel", code)
            with pytest.raises(
                RuntimeFailure, match=f"kernel 'double' could not be launched.*{name} .what happened"
            ):
                run.run([torch.randn(8)])
        fake.fail("", 0)
        doubled(run)

    with_driver(job)


def test_programs_that_cannot_be() -> None:
    x = torch.randn(8)
    values = (value("input", x, position=0), value("fresh", x))

    def program(*values: Value, **fields: Any) -> Program:
        return Program(values, (), (1,), 1, 0, 0, **fields)

    def job(fake: Fake) -> None:
        kernel = device_kernel("double")
        for run, said in (
            (call(kernel, (0, 1), 8, sizes=(1,)), "takes other parameters than it is given"),
            (call(kernel, (0, 1, 1), 8), "takes other parameters than it is given"),
            (call(kernel, (0, 1), 8, launch=Launch((0, 1), 1)), "an empty block"),
            (call(kernel, (0, 1), 8, launch=Launch((32, 1), 0)), "an empty block"),
        ):
            with pytest.raises(ValueError, match=said):
                Executable(Program(values, (run,), (1,), 1, 0, 0))

    with_driver(job)
    card = torch.device("cuda", 0)
    with pytest.raises(ValueError, match="a value lies on another device"):
        Executable(program(values[0], value("fresh", x, device=card)))
    with pytest.raises(ValueError, match="a device has no number"):
        Executable(program(values[0], value("fresh", x, device=torch.device("cuda"))))
    with pytest.raises(ValueError, match="lies outside the arena"):
        Executable(program(values[0], value("arena", x, device=card)))


def test_program_for_a_card_that_torch_does_not_find() -> None:
    """In a process of its own: torch asks for its devices once."""
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    code = """
import torch
from lampwork.runtime import Executable
from lampwork.runtime.program import Program, Value

values = tuple(Value(kind, torch.float32, (8,), (1,), position=0) for kind in ("input", "fresh"))
try:
    Executable(Program(values, (), (1,), 1, 0, 0, device=torch.device("cuda", 0)))
except (AssertionError, RuntimeError) as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search("Torch not compiled with CUDA enabled|NVIDIA", done.stdout)
