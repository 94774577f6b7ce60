"""A fake CUDA driver for tests of the runtime, opened in forked children, and programs that it runs on the CPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from children import failure
from runtime_programs import value

from lampwork import _C
from lampwork.codegen.target import DeviceFunction
from lampwork.loops.ir.index import ZERO
from lampwork.runtime import Executable
from lampwork.runtime.program import CallKernel, Launch, Program, Scalar

SOURCE = Path(__file__).parents[2] / "support" / "fake_driver.c"
PARAMETERS = {"add": (3, 0), "scale": (2, 2), "double": (2, 0)}  # of its kernels: buffers and sizes
PARAMETERS |= {f"count{counters}": (2, 0) for counters in range(1, 10)}


@cache
def _library(*flags: str) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = Path(mkdtemp()) / "libfakecuda.so"
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", path, SOURCE], check=True)
    return str(path)


class Fake:
    """The fake driver in this process."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.library.fake_log.restype = ctypes.c_char_p

    def log(self) -> list[str]:
        """What was called since the last time."""
        return self.library.fake_log().decode().splitlines()

    def fail(self, function: str, code: int) -> None:
        self.library.fake_fail(function.encode(), code)

    def set(self, what: str, number: int) -> None:
        self.library.fake_set(what.encode(), number)

    def new_stream(self, handle: int, number: int) -> None:
        """A stream is made that has the handle of another."""
        self.library.fake_new_stream(handle, ctypes.c_ulonglong(number))


def with_driver(job: Callable[[Fake], None], *flags: str) -> None:
    """Run a test in a forked child that finds the fake driver, compiled with these flags."""
    path = _library(*flags)

    def task() -> None:
        os.environ["LAMPWORK_CUDA_DRIVER"] = path
        job(Fake(path))

    said = failure([("the child", task)])
    assert said == "", said


def device_kernel(name: str, image: str | None = None) -> _C.DeviceKernel:
    return _C.DeviceKernel((image or f"fake:{name}").encode(), name, *PARAMETERS[name])


def call(
    kernel: _C.DeviceKernel,
    buffers: tuple[int, ...],
    extent: int,
    *,
    sizes: tuple[int | Scalar, ...] = (),
    launch: Launch = Launch((32, 1), 32),
    **fields: Any,
) -> CallKernel:
    function = DeviceFunction(kernel, launch.block, launch.per_block, ZERO)
    return CallKernel(function, buffers, sizes, extent, name=kernel.name, launch=launch, **fields)


def double_program(n: int = 8, launch: Launch = Launch((32, 1), 32), image: str | None = None) -> Program:
    like = torch.empty(n)
    kernel = device_kernel("double", image)
    values = (value("input", like, position=0), value("fresh", like))
    return Program(values, (call(kernel, (0, 1), n, launch=launch),), (1,), 1, 0, 0)


def doubled(program: Executable, n: int = 8) -> None:
    x = torch.randn(n)
    torch.testing.assert_close(program.run([x])[0], 2 * x)
