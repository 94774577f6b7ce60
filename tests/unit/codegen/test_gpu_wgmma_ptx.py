"""PTX of products by warpgroups: for 9.0 alone, and what ptxas makes of it, where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import ptxas
import pytest
from product_cases import ORDERS, product

from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.mma.source import TensorCores
from lampwork.codegen.gpu.mma.warpgroups import GROUPS, Groups
from lampwork.codegen.gpu.nvidia import describe
from lampwork.loops.ir.nodes import Gemm
from lampwork.standard import functools

REGISTERS = 65536  # of a multiprocessor


@functools.cache
def generator() -> GpuGenerator:
    return GpuGenerator(describe(90, 132))


def text_of(gemm: Gemm, variant: str) -> str:
    of = generator()
    image = TensorCores().compile(gemm, of.target, variant, "lw_product").image
    assert isinstance(image, str)
    return of.jit.emit(image, 0, verify=True).decode()


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Lines of what ptxas says, printed in the end (`pytest -s`)."""
    lines: list[str] = []
    yield lines
    print("\n" + "\n".join(lines))


def test_only_what_needs_it_is_for_one_card() -> None:
    gemm = product("bf16", 512, 512, 512)
    assert ".target sm_90a\n" in text_of(gemm, GROUPS[0].name)
    assert ".target sm_90\n" in text_of(gemm, "mma 128x128x32 stages 4 warps 2x2x1")


@pytest.mark.parametrize("groups", GROUPS)
def test_no_product_waits_for_another(groups: Groups, table: list[str]) -> None:
    """ptxas keeps sums in registers and products one behind the other, and adds no wait of its own."""
    if 90 not in ptxas.supported():
        pytest.skip("this ptxas does not know sm_90")
    scratch = generator().target.scratch_bytes
    assert scratch is not None
    number = GROUPS.index(groups)
    orders = ORDERS[number % 4] if 192 not in (groups.m, groups.n) else "nt"
    dtype, epilogue = ("bf16", "gelu") if number % 2 else ("f16", "residual")
    found = ptxas.assemble(
        text_of(product(dtype, 1000, 1024, 1024, orders=orders, epilogue=epilogue), groups.name), 90
    )
    table.append(f"{dtype} {orders} {groups.name:30} {found}")
    assert found.remarks == (), table[-1]
    assert found.spills == 0 and found.shared == 0, table[-1]
    together = scratch // groups.shared_bytes(dtype)
    assert found.registers * groups.threads * together <= REGISTERS, table[-1]


@pytest.mark.parametrize(
    ("right", "remark"),
    [("wgmma.fence.sync.aligned;", "C7519"), ("wgmma.wait_group.sync.aligned 0;", "C7514")],
)
def test_what_ptxas_adds_is_seen(right: str, remark: str) -> None:
    if 90 not in ptxas.supported():
        pytest.skip("this ptxas does not know sm_90")
    text = text_of(product("bf16", 1024, 1024, 1024, orders="nt"), GROUPS[-1].name)
    assert right in text
    remarks = ptxas.assemble(text.replace(right, ""), 90).remarks
    assert any(remark in each for each in remarks)
