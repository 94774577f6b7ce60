"""Our own matrix products on the card, launched by the driver itself, against float64: products of random sizes, orders
and epilogues, by tiles and strips of all kinds. What runs on the simulated card runs here too."""

from __future__ import annotations

import ctypes
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from grids import as_stored, from_stored
from product_cases import ProductCase, compare, product, random_case

import gpu
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.mma.strips import STRIPS
from lampwork.codegen.gpu.mma.tiles import tiles
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.products import ProductCode
from lampwork.loops.ir.nodes import Buffer
from lampwork.loops.ir.symbols import likely
from lampwork.loops.reference.evaluate import NUMPY_DTYPES
from lampwork.loops.reference.evaluate_kernel import from_memory, to_memory
from lampwork.standard import functools

gpu.require()
if not gpu.ON_GPU:
    pytest.skip("kernels of cards run on cards", allow_module_level=True)

FUZZ = int(os.environ.get("LAMPWORK_FUZZ", "48"))


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


def call(name: str, *arguments: object) -> None:
    error = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert error == 0, f"{name}: error {error}"


def stored(case: ProductCase, buffer: Buffer, given: np.ndarray | None) -> np.ndarray:
    """Flat memory of a parameter; what is written is NaN at first."""
    if given is None:
        shape = tuple(likely(size, case.sizes) for size in buffer.shape)
        given = np.full(shape, np.nan, NUMPY_DTYPES[buffer.dtype])
    return as_stored(to_memory(buffer, given, case.sizes), buffer.dtype)


def launch(code: ProductCode, rooms: list[torch.Tensor], case: ProductCase) -> None:
    """The kernel on memory of the card."""
    assert isinstance(code.image, str)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    text = generator().jit.emit(code.image, 0, verify=True) + b"\0"
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
    call("cuModuleGetFunction", ctypes.byref(function), module, code.name.encode())
    if code.shared > 48 << 10:
        call("cuFuncSetAttribute", function, 8, code.shared)
    extent = likely(code.extent, case.sizes)
    sizes = [likely(size, case.sizes) for size in code.sizes]
    values = [*(room.data_ptr() for room in rooms), *sizes, extent]
    numbers = (ctypes.c_int64 * len(values))(*values)
    places = [ctypes.addressof(numbers) + 8 * number for number in range(len(values))]
    parameters = (ctypes.c_void_p * len(values))(*places)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call("cuLaunchKernel", function, extent, 1, 1, code.threads, 1, 1, code.shared, stream, parameters, None)
    torch.cuda.synchronize()
    call("cuModuleUnload", module)


def check(case: ProductCase, variant: str, aligned: bool, target: GpuTarget | None = None) -> None:
    torch.zeros(1, device="cuda")  # makes the context
    code = TensorCores().compile(case.gemm, target or card(), variant, "lw_product")
    inputs = case.inputs()
    rooms: list[torch.Tensor] = []
    for each in code.params:
        here = stored(case, each, inputs.get(each.name))
        room = torch.zeros(here.nbytes + 16, dtype=torch.uint8, device="cuda")
        room = room[(0 if aligned else here.itemsize) :][: here.nbytes]
        room.copy_(torch.from_numpy(here.view(np.uint8)))
        rooms.append(room)
    launch(code, rooms, case)
    out = case.gemm.out
    kind = stored(case, out, None).dtype
    got = from_memory(out, from_stored(rooms[-1].cpu().numpy().view(kind), out.dtype), case.sizes)
    depth = likely(case.gemm.k.extent, case.sizes) or 0
    # Tensor cores cut what they add off, where float64 rounds.
    compare(case, got.astype(np.float64), case.expected(inputs), 8 * depth, f"{variant} {aligned}")


@pytest.mark.parametrize("seed", range(FUZZ))
def test_products_fuzz(seed: int) -> None:
    case = random_case(seed, most=300)
    variant = random.Random(seed).choice(tiles(case.gemm.a.dtype, card())).name
    for aligned in (True, False):
        check(case, variant, aligned)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_tile(dtype: str) -> None:
    for number, tile in enumerate(tiles(dtype, card())):
        orders = ("nt", "nn", "tn", "tt")[number % 4]
        check(
            ProductCase(product(dtype, 264, 280, 296, orders=orders, epilogue="bias"), "bias"),
            tile.name,
            True,
        )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_every_strip(dtype: str) -> None:
    exact = replace(card(), tf32=False)
    for strip in STRIPS:
        for rows in (1, 4):
            gemm = product(dtype, rows, 333, 1096, orders="nt", epilogue="gelu")
            for aligned in (True, False):
                check(ProductCase(gemm, "gelu", exact=True), strip.name, aligned, exact)
