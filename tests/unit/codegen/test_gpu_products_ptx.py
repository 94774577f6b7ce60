"""PTX of products on tensor cores: what ptxas makes of it, where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import llvmlite.binding as llvm
import ptxas
import pytest
from product_cases import product

from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.mma.strips import STRIPS
from lampwork.codegen.gpu.mma.tiles import Tile, tiles
from lampwork.codegen.gpu.nvidia import describe
from lampwork.loops.ir.nodes import Gemm
from lampwork.standard import functools

CAPABILITIES = (80, 90, 100)
GOLDEN_LLVM = 22  # the release whose PTX is kept
LARGE = "mma 128x128x32 stages 4 warps 2x2x1"


@functools.cache
def generator(capability: int) -> GpuGenerator:
    return GpuGenerator(replace(describe(capability, 132), tf32=True))


def texts(gemm: Gemm, variant: str, capability: int) -> tuple[str, str]:
    """IR and PTX."""
    of = generator(capability)
    image = TensorCores().compile(gemm, of.target, variant, "lw_product").image
    assert isinstance(image, str)
    return image, of.jit.emit(image, 0, verify=True).decode()


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Lines of what ptxas says, printed in the end (`pytest -s`)."""
    lines: list[str] = []
    yield lines
    print("\n" + "\n".join(lines))


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_no_tile_spills(dtype: str, capability: int, table: list[str]) -> None:
    if capability not in ptxas.supported():
        pytest.skip(f"this ptxas does not know sm_{capability}")
    target = generator(capability).target
    for number, tile in enumerate(tiles(dtype, target)):
        if number % 4 and (dtype, capability) != ("bf16", 90):
            continue  # ptxas takes half a second for one
        orders = ("nt", "nn", "tn", "tt")[number % 5 % 4]
        gemm = product(dtype, 1000, 1024, 1024, orders=orders, epilogue="gelu")
        found = ptxas.assemble(texts(gemm, tile.name, capability)[1], capability)
        line = (
            f"{dtype} {orders} {tile.name:42} sm_{capability:<4} {found.registers:4} registers {found.spills:4} bytes"
            f" spilled {tile.shared_bytes(dtype):7} bytes shared"
        )
        table.append(line)
        # ptxas spills one register of a tile of TF32 for 10.0, where elements are copied one by one.
        assert found.spills <= (16 if (dtype, capability) == ("f32", 100) else 0) and found.shared == 0, line
        assert found.registers * tile.threads <= 65536, line


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_no_strip_spills(dtype: str, table: list[str]) -> None:
    for strip in STRIPS:
        for rows in (1, 8):
            if rows * strip.columns > 32:
                continue
            gemm = product(dtype, rows, 4096, 4096, orders="nt", epilogue="bias")
            text = texts(gemm, strip.name, 90)[1]
            found = ptxas.assemble(text, 90)
            table.append(f"{dtype} {rows} rows {strip.name}: {found}")
            assert found.spills == 0 and found.shared == 0, table[-1]
            assert len(re.findall(r"ld\.global\.v4\.b32", text)) >= 2 * (strip.columns + rows)


# --- the loop over k --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Instructions of a loop: of tensor cores, matrices from shared memory, copies to it, and all."""

    multiplied: int
    loaded: int
    copied: int
    all: int


def loop_of(text: str, capability: int) -> Counts:
    """The machine code of the loop that multiplies and copies behind the registers' back."""
    program = Path(ptxas.required()).with_name("nvdisasm")
    found = str(program) if program.exists() else shutil.which("nvdisasm")
    if found is None:
        pytest.skip("there is no nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        subprocess.run([ptxas.required(), f"-arch=sm_{capability}", source, "-o", image], check=True)
        code = subprocess.run([found, "-c", image], capture_output=True, text=True, check=True).stdout
    blocks = re.split(r"^\.L_x_\d+:", code, flags=re.MULTILINE)
    loops = [block for block in blocks if "HMMA" in block and "LDGSTS" in block and "BRA" in block]
    body = max(loops, key=lambda block: block.count("HMMA")).partition("BRA")[0]
    counts = [len(re.findall(rf"\b{name}\b", body)) for name in ("HMMA", "LDSM", "LDGSTS")]
    return Counts(*counts, len(re.findall(r"/\*[0-9a-f]{4}\*/", body)))


@pytest.mark.parametrize(
    ("dtype", "variant"), [("bf16", LARGE), ("f32", "mma 128x128x16 stages 4 warps 2x2x1")]
)
def test_the_loop_multiplies(dtype: str, variant: str, table: list[str]) -> None:
    """A warp of 64 x 64 results multiplies eight times for each operand that it reads, as CUTLASS's does."""
    capability = 90
    if capability not in ptxas.supported():
        pytest.skip(f"this ptxas does not know sm_{capability}")
    tile = Tile.named(variant)
    found = loop_of(texts(product(dtype, 4096, 4096, 4096), variant, capability)[1], capability)
    table.append(f"{dtype} {variant}: {found}")
    steps = 2
    assert found.multiplied == steps * (tile.warp_m // 16) * (tile.warp_n // 8)
    assert found.loaded == steps * (tile.warp_m + tile.warp_n) // 16
    assert found.copied == tile.stage_bytes(dtype) // 16 // tile.threads
    # Two instructions make TF32 of a float32, four of them for each that reads operands.
    rounding = found.loaded * 4 * 2 if dtype == "f32" else 0
    assert found.all - found.multiplied - found.loaded - found.copied - rounding <= 60


def test_equal_products_have_equal_text() -> None:
    gemm = product("bf16", 64, 64, 64)
    assert texts(gemm, LARGE, 80) == texts(replace(gemm), LARGE, 80)


def test_golden(golden: Callable[[str, str], None]) -> None:
    """A small tile, of whole rows, with a bias."""
    if llvm.llvm_version_info[0] != GOLDEN_LLVM:
        pytest.skip(f"the texts are those of LLVM {GOLDEN_LLVM}")
    gemm = product("bf16", 256, 256, 256, epilogue="bias")
    image, ptx = texts(gemm, "mma 16x16x16 stages 2 warps 1x1x1", 80)
    golden("ptx/product", f"{image}\n{ptx}")
