"""Products by Triton, where it is installed: its interpreter runs the kernels' sources on this CPU, and its compiler
makes cubins of them. The files that are run are written by `write_product`, what is held to is eager in double
precision."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from graphkit import record

from lampwork.backends.native.tuning.product import Product
from lampwork.backends.native.tuning.tune_card import gemm_of, product_with_epilogue
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.triton_source import HIDDEN, TritonSource
from lampwork.codegen.gpu.triton_writer import Tile, TritonText, write_product
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import Gemm

CARD = describe(90, 132)
SMALL = Tile(16, 16, 16, 2, 4)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def half(*shape: int) -> torch.Tensor:
    return t(*shape, dtype=torch.bfloat16)


Case = tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    f16 = torch.float16
    return {
        "mm": (torch.mm, [t(32, 48), t(48, 16)]),
        "odd mm": (torch.mm, [t(33, 21), t(21, 37)]),
        "of bf16": (torch.mm, [half(40, 64), half(64, 24)]),
        "odd of f16": (torch.mm, [t(7, 19, dtype=f16), t(19, 5, dtype=f16)]),
        "transposed": (lambda a, b: a.t() @ b.t(), [half(21, 34), half(24, 21)]),
        "one row": (torch.mm, [t(1, 40), t(40, 33)]),
        "linear": (F.linear, [half(4, 8, 32), half(48, 32), half(48)]),
        "linear, gelu": (lambda *a: F.gelu(F.linear(*a)), [half(3, 9, 32), half(40, 32), half(40)]),
        "linear, tanh gelu": (
            lambda *a: F.gelu(F.linear(*a), approximate="tanh"),
            [t(18, 32, dtype=f16), t(40, 32, dtype=f16), t(40, dtype=f16)],
        ),
        "linear, relu, residual": (
            lambda x, w, b, r: torch.relu(F.linear(x, w, b)) + r,
            [t(20, 24), t(40, 24), t(40), t(20, 40)],
        ),
        "silu": (lambda a, b: F.silu(a @ b), [half(20, 24), half(24, 40)]),
        "sigmoid, max, where": (
            lambda a, b: torch.where(a @ b > 0, torch.sigmoid(a @ b), torch.zeros(())),
            [t(20, 24), t(24, 20)],
        ),
        "bmm": (torch.bmm, [half(3, 17, 24), half(3, 24, 18)]),
        "bmm of transposed": (lambda a, b: torch.bmm(a, b.transpose(1, 2)), [t(2, 17, 16), t(2, 18, 16)]),
        "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), [t(2, 9, 8), t(2, 9, 24), t(2, 24, 8)]),
        "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=2), [t(8), t(9, 24), t(24, 8)]),
        "heads": (lambda q, k: q @ k.transpose(-2, -1) * 0.125, [half(2, 3, 16, 8), half(2, 3, 20, 8)]),
        "masked": (lambda a, b: torch.tril(a @ b), [t(20, 24), t(24, 20)]),
        "by a mask": (
            lambda a, b, m: torch.where(m, a @ b, -1.0),
            [half(20, 24), half(24, 40), torch.ones(20, 40) > 0],
        ),
        "by positions": (
            lambda a, b, i: (a @ b).masked_fill(i > 3, 0.5) + i,
            [t(20, 24), t(24, 40), torch.arange(40)],
        ),
        "a view that is not aligned": (lambda a, b: a[:, 1:] @ b, [half(20, 25), half(24, 24)]),
    }  # fmt: skip


CASES = cases()


def product(name: str) -> tuple[Product, Gemm]:
    """The product of a case, with all that follows it."""
    fn, inputs = CASES[name]
    graph = record(fn, *inputs)
    found = [product_with_epilogue(node, CARD) for node in graph.nodes]
    last = next(each for each in found if each is not None)
    gemm = gemm_of(last, CARD)
    assert gemm is not None
    return last, gemm


def test_what_follows_is_part_of_the_product() -> None:
    steps = {
        name: [n.name for n in product(name)[0].graph.nodes if n.op == "call_function"] for name in CASES
    }
    assert len(steps["mm"]) == 1
    assert len(steps["linear, gelu"]) == 2
    assert len(steps["linear, relu, residual"]) == 3
    assert len(steps["sigmoid, max, where"]) == 1 or steps["sigmoid, max, where"][-1] != "product"


@pytest.mark.parametrize("tile", [SMALL, Tile(16, 32, 32, 2, 4)])
def test_equal_products_have_equal_sources(tile: Tile) -> None:
    texts = [write_product(product("linear, gelu")[1], tile, "f", tf32=False).text for _ in range(2)]
    assert texts[0] == texts[1]


def test_what_has_no_form_is_refused() -> None:
    graph = record(lambda a, b: torch.mm(a, b), t(4, 8).double(), t(8, 4).double())
    assert all(product_with_epilogue(node, CARD) is None for node in graph.nodes)
    gemm = product("mm")[1]
    with pytest.raises(CodegenError, match="no variant"):
        TritonSource().compile(gemm, CARD, "triton 3x3x3 stages 1 warps 1", "f")
    with pytest.raises(CodegenError, match="no variant"):
        TritonSource().compile(gemm, describe(75), "triton 64x64x32 stages 4 warps 4", "f")


def test_sizes_that_stay_open_are_parameters() -> None:
    from lampwork.loops.ir.index import Index
    from lampwork.loops.ir.nodes import Axis, Buffer, Load, Local

    m, n, k, s = (Index.var("m"), Index.var("n"), Index.var("k"), Index.sym("s7"))
    one, eight = Index.const(1), Index.const(8)
    a = Buffer("a", "f32", (s, eight), (eight, one))
    b = Buffer("b", "f32", (eight, eight), (eight, one))
    out = Buffer("out", "f32", (s, eight), (eight, one))
    axes = Axis("m", s), Axis("n", eight), Axis("k", eight)
    gemm = Gemm(out, (), *axes, Load(a, (m, k)), Load(b, (k, n)), (m, n), Local("acc", "f32"))
    written = write_product(gemm, SMALL, "f", tf32=False)
    assert written.symbols == ("s7",)
    assert "def f(p0, p1, p2, s0):" in written.text
    assert "(m < s0)" in written.text and ".to(tl.int64)" in written.text


# --- Triton's interpreter -------------------------------------------------------------------------------------------

RUNNER = """
import sys, torch, triton, types
import triton.language as tl
import sources

@triton.jit
def exp(x): return tl.exp(x)
@triton.jit
def erf(x): return tl.erf(x)
@triton.jit
def tanh(x): return 2 / (1 + tl.exp(-2 * x)) - 1
@triton.jit
def normcdf(x): return 0.5 * (1 + tl.erf(x * 0.7071067811865476))
@triton.jit
def mul_rn(x, y): return x * y

sources.libdevice.update(normcdf=normcdf, exp=exp, erf=erf, tanh=tanh, mul_rn=mul_rn)
for name, tensors, blocks in torch.load(sys.argv[1]):
    getattr(sources, name)[(blocks,)](*tensors)
    torch.save(tensors[0], f"{sys.argv[1]}.{name}")
"""


@needs_triton
@pytest.mark.parametrize("tile", [SMALL, Tile(32, 16, 16, 2, 4)])
def test_the_interpreter_gives_the_product(tile: Tile, tmp_path: Path) -> None:
    texts = ["import triton, types", "import triton.language as tl", "libdevice = types.SimpleNamespace()",
             "libdevice.update = libdevice.__dict__.update"]  # fmt: skip
    jobs, wanted = [], {}
    for number, name in enumerate(CASES):
        case, gemm = product(name)
        written = write_product(gemm, tile, f"f{number}", tf32=False)
        # Copies that come before the product are none of its business.
        inputs, _ = case.tensors()
        if len(written.params) - 1 > len(inputs):
            continue
        tensors, want = _run(case, gemm, written, inputs)
        blocks = 1
        for axis in gemm.batch:
            blocks *= axis.extent.constant
        blocks *= -(-gemm.m.extent.constant // tile.rows) * -(-gemm.n.extent.constant // tile.columns)
        # The interpreter multiplies the bits of bfloat16.
        wide = written.text.replace("tl.dot(x, y,", "tl.dot(x.to(tl.float32), y.to(tl.float32),")
        texts += ["@triton.jit", wide]
        jobs.append((f"f{number}", tensors, blocks))
        wanted[f"f{number}"] = (name, want)
    assert len(jobs) >= 15
    (tmp_path / "sources.py").write_text("\n".join(texts))
    (tmp_path / "runner.py").write_text(RUNNER)
    torch.save(jobs, tmp_path / "jobs")
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "runner.py"), str(tmp_path / "jobs")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for job, (name, want) in wanted.items():
        got = torch.load(tmp_path / f"jobs.{job}")
        tolerance = {torch.float32: 1e-4, torch.float16: 4e-3}.get(got.dtype, 3e-2)
        apart = (got.double() - want).abs().max().item()
        assert apart <= tolerance * want.abs().max().item(), name


def _run(
    case: Product, gemm: Gemm, written: TritonText, inputs: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The tensors of a kernel's parameters, the result first, and what is to be in that."""
    values: dict[str, torch.Tensor] = {}
    node_values = {}
    rest = iter(inputs)
    for node in case.graph.nodes:
        if node.op == "placeholder":
            values[node.name] = node_values[node] = next(rest)
        elif node.op == "output":
            want = node_values[node.args[0][0]]
        else:
            args = torch.fx.map_arg(node.args, lambda n: _wide(node_values[n]))
            kwargs = torch.fx.map_arg(node.kwargs, lambda n: _wide(node_values[n]))
            node_values[node] = node.target(*args, **kwargs)
    out = torch.empty(want.shape, dtype=case.graph.output_node().args[0][0].meta["val"].dtype)
    return [out if b.name == gemm.out.name else values[b.name] for b in written.params], want


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


# --- Triton's compiler ------------------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", ["of bf16", "linear, tanh gelu", "odd mm", "heads", "by a mask"])
def test_a_cubin_takes_the_parameters_that_our_launches_give(name: str) -> None:
    _, gemm = product(name)
    source = TritonSource()
    variants = source.variants(gemm, CARD)
    assert variants and len(set(variants)) == len(variants)
    code = source.compile(gemm, CARD, variants[0], "f")
    assert isinstance(code.image, bytes) and code.image.startswith(b"\x7fELF")
    assert code.params[0].name == gemm.out.name
    assert [size.as_int() for size in code.sizes] == [0] * HIDDEN
    assert code.threads % 32 == 0 and 0 < code.shared <= (CARD.scratch_bytes or 0)
    assert code.extent.as_int() is not None
