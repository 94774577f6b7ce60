"""Kernels of matrix products on the card, launched by the driver itself, against float64."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from grids import as_stored, from_stored
from product_cases import ProductCase, compare

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.products import ProductCode
from lampwork.loops.ir.nodes import Buffer
from lampwork.loops.ir.symbols import likely
from lampwork.loops.reference.evaluate import NUMPY_DTYPES
from lampwork.loops.reference.evaluate_kernel import from_memory, to_memory
from lampwork.standard import functools

LIMIT = 10.0  # seconds that a kernel may take
NOT_READY = 600


@functools.cache
def card() -> GpuTarget:
    found = torch.cuda.get_device_properties(0)
    target = replace(describe(found.major * 10 + found.minor, found.multi_processor_count), tf32=True)
    if target.capability < 80:
        pytest.skip("this card has no tensor cores for bfloat16")
    return target


@functools.cache
def generator() -> GpuGenerator:
    return GpuGenerator(card())


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    error = getattr(driver(), name)(*arguments)
    assert error == 0, f"{name}: error {error}"


@functools.lru_cache(maxsize=1)
def _function(image: str, name: str, shared: int) -> ctypes.c_void_p:
    """One kernel is run on several inputs."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    text = generator().jit.emit(image, 0, verify=True) + b"\0"
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    if shared > 48 << 10:
        call("cuFuncSetAttribute", function, 8, shared)
    return function


def launch(code: ProductCode, rooms: Sequence[torch.Tensor], sizes: Sequence[int], blocks: int) -> None:
    """The kernel on memory of the card, to its end. A kernel that waits for what does not come cannot be stopped: then
    the process ends."""
    assert isinstance(code.image, str)
    function = _function(code.image, code.name, code.shared)
    values = [*(room.data_ptr() for room in rooms), *sizes, blocks]
    numbers = (ctypes.c_int64 * len(values))(*values)
    places = [ctypes.addressof(numbers) + 8 * number for number in range(len(values))]
    parameters = (ctypes.c_void_p * len(values))(*places)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    call("cuLaunchKernel", function, blocks, 1, 1, code.threads, 1, 1, code.shared, stream, parameters, None)
    deadline = time.monotonic() + LIMIT
    while driver().cuStreamQuery(stream) == NOT_READY:
        if time.monotonic() > deadline:
            print(f"{code.name} takes more than {LIMIT} s: the process ends", file=sys.__stderr__, flush=True)
            os._exit(1)
    torch.cuda.synchronize()


def check(case: ProductCase, variant: str, aligned: bool, target: GpuTarget | None = None) -> None:
    """The kernel of a variant gives what float64 does. aligned: whether buffers start at multiples of 16 bytes."""
    torch.zeros(1, device="cuda")  # makes the context
    code = TensorCores().compile(case.gemm, target or card(), variant, "lw_product")
    inputs = case.inputs()
    rooms: list[torch.Tensor] = []
    for each in code.params:
        here = _stored(case, each, inputs.get(each.name))
        room = torch.zeros(here.nbytes + 16, dtype=torch.uint8, device="cuda")
        room = room[(0 if aligned else here.itemsize) :][: here.nbytes]
        room.copy_(torch.from_numpy(here.view(np.uint8)))
        rooms.append(room)
    blocks = likely(code.extent, case.sizes)
    assert blocks is not None
    launch(code, rooms, [likely(size, case.sizes) or 0 for size in code.sizes], blocks)
    out = case.gemm.out
    kind = _stored(case, out, None).dtype
    got = from_memory(out, from_stored(rooms[-1].cpu().numpy().view(kind), out.dtype), case.sizes)
    depth = likely(case.gemm.k.extent, case.sizes) or 0
    # Tensor cores cut what they add off, where float64 rounds.
    compare(case, got.astype(np.float64), case.expected(inputs), 8 * depth, f"{variant} {aligned}")


def _stored(case: ProductCase, buffer: Buffer, given: np.ndarray | None) -> np.ndarray:
    """Flat memory of a parameter; what is written is NaN at first."""
    if given is None:
        shape = tuple(likely(size, case.sizes) for size in buffer.shape)
        given = np.full(shape, np.nan, NUMPY_DTYPES[buffer.dtype])
    return as_stored(to_memory(buffer, given, case.sizes), buffer.dtype)
