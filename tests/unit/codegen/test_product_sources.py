"""Products of cards by sources: what a variant names is compiled once, and becomes a function of the card."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lampwork.codegen.gpu import sources
from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.target import DeviceFunction
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm, Load, Local
from lampwork.loops.ir.symbols import NO_HINTS

M, N, K = (Index.var(name) for name in "mnk")
IR = """target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @{name}(ptr %c, ptr %a, ptr %b, i64 %rows, i64 %extent) {{
  store float 1.0, ptr %c
  ret void
}}
"""


def gemm(variant: str, prefix: str = "", rows: Index | int = 48, dtype: Any = "f32") -> Gemm:
    def buffer(name: str, height: Index | int, width: int) -> Buffer:
        one, across = Index.const(1), Index.const(width)
        return Buffer(prefix + name, dtype, (as_index(height), across), (across, one))

    a, b, out = buffer("a", rows, 32), buffer("b", 32, 64), buffer("out", rows, 64)
    axes = Axis("m", as_index(rows)), Axis("n", Index.const(64)), Axis("k", Index.const(32))
    value = Local("acc", "f32")
    return Gemm(out, (), *axes, Load(a, (M, K)), Load(b, (K, N)), (M, N), value, variant=variant)


class Written:
    """A source of LLVM IR."""

    name = "written"

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def variants(self, gemm: Gemm, target: GpuTarget, hints: Mapping[str, int] = NO_HINTS) -> Sequence[str]:
        return ("written",)

    def compile(
        self, gemm: Gemm, target: GpuTarget, variant: str, name: str, hints: Mapping[str, int] = NO_HINTS
    ) -> ProductCode:
        self.compiled.append(name)
        params = (gemm.out, gemm.a.buffer, gemm.b.buffer)
        rows = gemm.m.extent
        return ProductCode(IR.format(name=name), name, 128, 1024, params, (rows,), (rows + 15) // 16)


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Written:
    made = Written()
    monkeypatch.setattr(sources, "SOURCES", (made,))
    return made


def test_a_product_becomes_a_function_of_the_card(source: Written) -> None:
    _, (made,) = GpuGenerator(describe(90)).compile((), [gemm("written")])
    function = made.code
    assert isinstance(function, DeviceFunction)
    assert (function.block, function.per_block, function.shared) == ((128, 1), 1, as_index(1024))
    assert function.kernel.name == source.compiled[0]
    assert [buffer.name for buffer in made.params] == ["out", "a", "b"]
    assert (made.sizes, made.extent) == ((as_index(48),), as_index(3))
    assert made.text.startswith("; written\n") and "define ptx_kernel" in made.text


def test_equal_products_are_compiled_once_for_buffers_and_sizes_of_their_own(source: Written) -> None:
    generator = GpuGenerator(describe(90))
    _, (one, other) = generator.compile(
        (), [gemm("written", "x_", Index.sym("s0")), gemm("written", "y_", Index.sym("s1"))]
    )
    assert len(source.compiled) == 1
    assert one.code.owner is other.code.owner
    assert [buffer.name for buffer in other.params] == ["y_out", "y_a", "y_b"]
    assert one.sizes == (Index.sym("s0"),) and other.sizes == (Index.sym("s1"),)
    assert other.extent == (Index.sym("s1") + 15) // 16


def test_what_no_source_has_is_refused(source: Written) -> None:
    generator = GpuGenerator(describe(90))
    for variant in ("", "other 64x64", "writtenx"):
        with pytest.raises(CodegenError, match="no source of products"):
            generator.compile((), [gemm(variant)])
    with pytest.raises(CodegenError, match="no plain product"):
        generator.compile((), [Gemm(**{**_fields(gemm("written")), "rows": (Axis("r", as_index(48)),)})])


def _fields(made: Gemm) -> dict[str, Any]:
    return {name: getattr(made, name) for name in Gemm.__dataclass_fields__}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_cubin_of_triton_is_taken(dtype: str) -> None:
    product = gemm("", dtype=dtype)
    target = describe(90)
    (variant, *_) = sources.product_variants(product, target)
    _, (made,) = GpuGenerator(target).compile((), [gemm(variant, dtype=dtype)])
    assert isinstance(made.code, DeviceFunction)
    assert made.code.kernel.name == "product"
    assert [size.as_int() for size in made.sizes] == [0, 0]
