"""How threads of a card take elements: half types two at a time, several turns, tiles of transposes, long rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import grid_cases as cases
import numpy as np
import ptxas
import pytest
import torch
from codegen_support import dense, load, pointwise, var
from grids import grids_of, kernels_of, memory_of
from simulated import MODEL, run_simulated
from test_gpu_ptx import generator
from test_gpu_simulated import check

from lampwork.codegen.gpu.nvidia import describe
from lampwork.errors import CodegenError
from lampwork.loops.ir.grid import lanes_of, parallel_loop, shared_loops
from lampwork.loops.ir.nodes import Const, Expr, Kernel, Op
from lampwork.loops.schedule.grid import FLAT_TURNS, on_grid

MANY = 1 << 24
Make = Callable[..., Expr]


def half(name: str, dtype: str, *args: Expr) -> Op:
    """As eager has an operator of a half type: in float32, and rounded."""
    wide = tuple(Op("cast", (arg,), "f32") if arg.dtype == dtype else arg for arg in args)
    return Op("cast", (Op(name, wide, "f32"),), dtype)


def kernel_of(
    make: Callable[[Expr, Expr], Expr], dtype: str = "bf16", n: int = MANY, inputs: int = 2
) -> Kernel:
    buffers = [dense(name, dtype, n) for name in "xy"[:inputs]]
    x, y = (load(buffer, var("i")) for buffer in (buffers * 2)[:2])
    value = make(x, y)
    out = dense("z", value.dtype, n)
    return pointwise(value, out, [*buffers, out], n)


def text_of(kernel: Kernel, capability: int = 90) -> str:
    of = generator(capability)
    text = of.jit.emit(of.emit(on_grid(kernel), "lw_kernel"), 0, verify=True).decode()
    if capability in ptxas.supported():
        ptxas.assemble(text, capability)
    return text


# --- half types -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "capability"), [("bf16", 90), ("f16", 90), ("f16", 80), ("bf16", 80), ("f16", 75)]
)
def test_sums_and_products_need_no_float32(dtype: str, capability: int) -> None:
    def value(x: Expr, y: Expr) -> Expr:
        return half("sub", dtype, half("add", dtype, half("mul", dtype, x, Const(2.0, "f32")), y), x)

    text = text_of(kernel_of(value, dtype), capability)
    assert ".f32" not in text and re.search(rf"(add|fma)\.(rn\.)?{dtype}x2", text), text


def test_the_larger_one_too() -> None:
    text = text_of(
        kernel_of(lambda x, y: half("maximum", "bf16", half("add", "bf16", x, y), Const(0.0, "f32")))
    )
    assert ".f32" not in text and "max.NaN.bf16x2" in text


@pytest.mark.parametrize(
    "make",
    [
        lambda x, y: half("mul", "bf16", x, Const(0.1, "f32")),  # 0.1 is no bfloat16
        lambda x, y: Op(
            "add", (Op("cast", (x,), "f32"), Op("cast", (y,), "f32")), "f32"
        ),  # it is not rounded
        lambda x, y: half("div", "bf16", x, y),
        lambda x, y: half("fma", "bf16", x, y, y),  # which would be rounded twice
    ],
)
def test_what_stays_float32(make: Make) -> None:
    text = text_of(kernel_of(make))
    assert ".f32" in text and not re.search(r"(add|mul|fma)\.(rn\.)?bf16", text)


def test_neighbours_are_unpacked_in_one_register() -> None:
    """One instruction for each: the lower one moves up, the other's neighbour is cleared."""
    text = text_of(kernel_of(lambda x, y: half("exp", "bf16", x), inputs=1))
    body = next(part for part in text.split("$L_") if "ld.global.v4" in part)
    assert body.count(", -65536;") == 8  # of two turns of 8 elements
    assert body.count("cvt.rn.bf16x2.f32") == 8 and "cvt.u32.u16" not in body


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_half_numbers_are_eagers(name: str) -> None:
    """Bits of float16, subnormal and infinite ones too, on the simulated card."""
    bits = np.random.default_rng(3).integers(0, 1 << 16, (2, 8192)).astype(np.uint16)
    bits[:, :6] = (0, 0x8000, 1, 0x03FF, 0x7BFF, 0x7C00)
    x, y = (torch.from_numpy(each.view(np.float16)) for each in bits)
    kernel = kernel_of(lambda a, b: half(name, "f16", a, b), "f16", 8192)
    memory = {"x": x.numpy().copy(), "y": y.numpy().copy(), "z": np.zeros(8192, np.float16)}
    run_simulated(replace(on_grid(kernel), lanes=8), memory)
    want = {"add": x + y, "sub": x - y, "mul": x * y}[name]
    assert np.array_equal(np.isnan(memory["z"]), want.isnan().numpy())
    finite = ~want.isnan().numpy()
    assert np.array_equal(memory["z"].view(np.uint16)[finite], want.numpy().view(np.uint16)[finite])


def rounded(number: Fraction, digits: int, least: int) -> Fraction:
    """To nearest, ties to even, to so many binary digits, none below 2^least."""
    if number == 0:
        return number
    top = abs(number.numerator).bit_length() - number.denominator.bit_length()
    top += abs(number) >= Fraction(2) ** (top + 1)
    top -= abs(number) < Fraction(2) ** top
    unit = Fraction(2) ** max(top - digits + 1, least)
    return round(number / unit) * unit


@pytest.mark.parametrize(("dtype", "digits", "least"), [("bf16", 8, -133), ("f16", 11, -24)])
def test_rounding_twice_is_rounding_once(dtype: str, digits: int, least: int) -> None:
    """Of sums and products of numbers of a half type, by way of float32: what lies half way between two of them, what
    is next to it, and what is near the smallest."""
    pick = np.random.default_rng(5)
    high = 10 if dtype == "bf16" else 4
    for _ in range(600):
        x, y = (Fraction(int(pick.integers(1, 1 << digits))) for _ in range(2))
        scales = (
            pick.integers(least, high, 2)
            if pick.random() < 0.5
            else pick.integers(least // 2 - 9, least // 2 + 2, 2)
        )
        x, y = (
            rounded(each * Fraction(2) ** int(s), digits, least)
            for each, s in zip((x, y), scales, strict=True)
        )
        for exact in (x + y, x - y, x * y):
            assert rounded(rounded(exact, 24, -149), digits, least) == rounded(exact, digits, least), (x, y)


def test_exponentials_of_half_types_are_short() -> None:
    """Of a softmax from bfloat16 to bfloat16: a product, the instruction and its square; not of one of float32."""
    counts = {}
    for dtype in ("bf16", "f32"):
        (kernel,) = kernels_of(cases.softmax(4096, 4096, dtype), describe(90, 132))
        text = text_of(kernel)
        counts[dtype] = text.count("fma.rn.f32") / text.count("ex2.approx.ftz.f32")
    assert counts["bf16"] < 0.5 and counts["f32"] >= 4


def test_short_exponentials_are_exact_enough() -> None:
    """On the simulated card: of all float16 that exp takes to finite numbers, subnormal ones too."""
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16)
    x = x[x.abs() < 11].contiguous()
    x = x[: x.numel() // 8 * 8]
    kernel = kernel_of(lambda a, b: half("exp", "f16", a), "f16", x.numel(), inputs=1)
    memory = {"x": x.numpy().copy(), "z": np.zeros(x.numel(), np.float16)}
    run_simulated(replace(on_grid(kernel), lanes=8), memory)
    want = x.double().exp().half().numpy()
    apart = np.abs(memory["z"].view(np.int16).astype(int) - want.view(np.int16))
    assert apart.max() <= 1 and (apart > 0).mean() < 0.01


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_thread_that_reads_one_tensor_takes_two_turns() -> None:
    grid = on_grid(kernel_of(lambda x, y: half("tanh", "bf16", x), inputs=1))
    assert (grid.turns, grid.lanes, grid.per_block) == (FLAT_TURNS, 8, 256 * 8 * 2)
    text = generator(90).jit.emit(generator(90).emit(grid, "lw_kernel"), 0, verify=True).decode()
    assert re.findall(r"(ld|st)\.global\.v4", text) == ["ld", "ld", "st", "st"]


@pytest.mark.parametrize(
    "kernel",
    [
        kernel_of(lambda x, y: half("add", "bf16", x, y)),  # two tensors
        kernel_of(lambda x, y: x, inputs=1),  # a copy
        kernel_of(lambda x, y: half("tanh", "bf16", x), inputs=1, n=MANY + 8),  # no whole blocks
        kernel_of(lambda x, y: half("tanh", "bf16", x), inputs=1, n=1 << 20),  # too few
    ],
)
def test_others_take_one(kernel: Kernel) -> None:
    assert on_grid(kernel).turns == 1


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_turns(dtype: str) -> None:
    """On the simulated card: all are taken once, by fewer blocks than there are too, and of unaligned buffers."""
    case = cases.flat(2048, dtype)
    lanes = 4 if dtype == "f32" else 8
    grids = [replace(grid, groups=32, lanes=lanes, turns=2) for grid in grids_of(case)]
    check(case, grids, blocks=3)


def test_turns_are_of_whole_blocks() -> None:
    case = cases.flat(2048 + 4)
    (grid,) = (replace(each, groups=64, lanes=4, turns=2) for each in grids_of(case))
    with pytest.raises(CodegenError, match="blocks of 512 iterations do not divide"):
        run_simulated(grid, memory_of(case, [grid]))


# --- tiles and rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "lanes"), [("bf16", 8), ("f32", 4), ("u8", 16), ("f64", 2)])
def test_transposes_move_16_bytes_both_ways(dtype: str, lanes: int) -> None:
    (kernel,) = kernels_of(cases.transpose(4096, 4096, dtype), describe(90, 132))
    assert on_grid(kernel).lanes == lanes
    text = text_of(kernel)
    assert re.search(r"ld\.global\.v\d", text) and re.search(r"st\.global\.v\d", text)


def test_tiles_whose_threads_meet_in_a_bank_are_read_by_elements() -> None:
    """Without the padding of lines all threads of a warp would want words of one bank."""
    (kernel,) = kernels_of(cases.transpose(4096, 4096, "bf16"), describe(90, 132))
    outer = parallel_loop(kernel)
    assert outer is not None
    _, writing = shared_loops(outer.body)
    (tile,) = kernel.scratch
    assert lanes_of(writing, {tile.name}) == 8
    (let, *stores) = writing.body
    plain = let.value.index[0].substitute({})
    j = var(writing.axis.name)
    unpadded = replace(let, value=replace(let.value, index=(j % 64 * 64 + j // 64,)))
    assert plain != unpadded.value.index[0]
    assert lanes_of(replace(writing, body=(unpadded, *stores)), {tile.name}) == 2


@pytest.mark.parametrize(
    "name", ["transpose of bf16", "transpose of bytes", "transpose of doubles", "blocks of many lines"]
)
def test_on_the_simulated_card(name: str) -> None:
    check(cases.CUT[name](), seed=2, blocks=2)


def test_lines_of_scratch_are_put_together_by_all_threads() -> None:
    (kernel,) = kernels_of(cases.columns("sum", 512, 32))
    assert [each.name for each in kernel.scratch] == ["block0", "again0"]


def test_long_rows_have_eight_loads_on_the_way() -> None:
    (kernel,) = kernels_of(cases.rows("sum", 128, 131072, "bf16"), describe(90, 132))
    text = text_of(kernel)
    assert ".minnctapersm 1" in text
    block = next(part for part in text.split("$L_") if part.count("ld.global.v4") == 8)
    assert block.rindex("ld.global.v4") < block.index("bra")
    found = ptxas.assemble(text, 90) if 90 in ptxas.supported() else None
    assert found is None or 32 < found.registers <= 64


def test_the_simulated_card_has_halves() -> None:
    assert MODEL.halves == {"f16"}
